"""The context of a mark's steps, and how it is set up: repository, namespace, clocks, lease, record."""

from __future__ import annotations

import functools
import getpass
import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from lakegc_assets.formatting import duration
from lakegc_assets.progress import LogMessage
from spark_resources.errors import LakegcError, Refused, WrongUsage
from spark_resources.lakefs import LakeFS, Repository, ServerConfig
from spark_resources.mark_store.hold_file import Hold, parse_configured_holds
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import DatasetSummary, StepRecord, check_order
from spark_resources.model import Commit, Partition
from spark_resources.records.signing import Seal
from spark_resources.settings import Settings
from spark_resources.spark.datasets import Dataset, all_rows, read_datasets
from spark_resources.spark.persistence import Persisted
from spark_resources.stores import endpoint_to_probe
from spark_resources.stores.base import Store
from spark_resources.stores.place import Place
from spark_resources.stores.probe import recorded_capabilities
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lakegc_assets.mark.table_notes import AllTableNotes


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a mark.

    `clock_skew` is the maximum difference between any two clocks. `missing` is the maximum number of live addresses
    that may be missing from the store, not counting accepted ones. `probes` is the maximum number of path probes;
    objects that would need more are kept. `trusted` are name patterns of other repositories that are trusted not to
    refer to this namespace, and so aren't read. `others_required` stops the mark if one of the remaining repositories
    can't be read.
    """

    clock_skew: timedelta = timedelta(minutes=5)
    missing: int = 0
    probes: int = 1_000_000
    trusted: tuple[str, ...] = ()
    others_required: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A repository, the type of its block store, its namespace with the store behind it, and the holds from the
    settings (the namespace may have others)."""

    repository: Repository
    blockstore: str
    place: Place
    configured_holds: tuple[Hold, ...] = ()


def find_target(lakefs: LakeFS, repository_id: str, settings: Settings) -> Target:
    """Find the repository and the location of its objects. Records are signed if a key is set.

    Raises `NotFound` for an unknown repository, `WrongUsage` for an unknown server or an invalid hold in the settings,
    and the errors of `check_scheme`.
    """
    repository = lakefs.repository(repository_id)
    return target_of(repository, lakefs.config(repository.server), settings)


def target_of(repository: Repository, server: ServerConfig, settings: Settings) -> Target:
    """Like `find_target`, for a repository and a server's configuration that were already requested."""
    blockstore = server.blockstore(repository.storage_id)
    check_scheme(repository, blockstore)
    place = place_of(repository, blockstore, settings.store_settings())
    keys, holds = settings.signing_keys(), parse_configured_holds(settings.holds, settings.origins.get("holds", ""))
    if keys is None:
        return Target(repository, blockstore, place, holds)
    seal = Seal.of(
        keys, repository=repository.lakefs_id, created=repository.created, namespace=repository.storage_namespace
    )
    return Target(repository, blockstore, replace(place, seal=seal), holds)


# URL schemes of namespaces, by type of block store; the scheme is not checked for other types.
SCHEMES = {"s3": ("s3",), "gs": ("gs",), "azure": ("https", "http"), "local": ("local",)}


def check_scheme(repository: Repository, blockstore: str) -> None:
    """Raise `WrongUsage` if the namespace's scheme doesn't match the block store type that the server reports."""
    schemes = SCHEMES.get(blockstore)
    if schemes is not None and repository.namespace().scheme not in schemes:
        raise WrongUsage(
            f"the namespace of repository {repository.id} is {repository.storage_namespace}, but according to the "
            f"lakeFS server its block store{f' {repository.storage_id}' if repository.storage_id else ''} is of type "
            f"{blockstore}, whose namespaces begin with {schemes[0]}://. Correct the server's configuration; "
            "otherwise, lakegc and lakeFS would use different locations."
        )


def place_of(repository: Repository, blockstore: str, store_settings: StoreSettings) -> Place:
    """The location of a repository's objects, with every spelling of the namespace that the block store accepts."""
    aliases: tuple[str, ...] = ()
    if blockstore == "local" and store_settings.local_path is not None:
        # the local adapter writes and reports this location with its configured path (formats §4)
        name = repository.storage_namespace.split("://", 1)[-1].rstrip("/")
        aliases = (f"local://{store_settings.local_path.rstrip('/')}/{name}",)
    return Place(repository.namespace(aliases=aliases), store_settings, server=repository.server)


@dataclass(slots=True)
class OtherRepositoryData:
    """Data from other repositories: the branch heads (repository and commit; read before the tables are listed), the
    ids of the tables, the notes on tables in all namespaces, and the namespaces. Repositories with an unreadable table
    are left out of `tables`."""

    heads: set[tuple[str, str]] = field(default_factory=set)
    tables: pa.Array | None = None
    notes: AllTableNotes | None = None
    places: dict[Repository, Place] = field(default_factory=dict)


Graph = dict[str, Commit]  # commits by id


@dataclass(frozen=True, slots=True)
class DecidedCommits:
    """The input of the decision on `retained_commits`: the commits, the holds in force, the branch heads as last read,
    and all tags that were seen, each with its commit."""

    commits: Graph
    holds: tuple[Hold, ...]
    branches: Mapping[str, str]
    tags: set[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ReleasedRepositories:
    """The other repositories that the approval of a mark released by name, each with the reason. A repository with
    such a name that was created after `mark_started_at` (the server's clock) isn't covered."""

    repositories: Mapping[str, str]
    mark_started_at: datetime


@dataclass(slots=True)
class MarkRun:
    """A running, unfinished mark: what its steps read from and write to, and their limits."""

    partition: Partition
    target: Target
    mark: Mark
    lakefs: LakeFS
    spark: Callable[[], SparkSession]
    limits: Limits
    log_message: LogMessage
    trusted_ranges: pa.Array | None = None
    """In a re-verification, the ids of the ranges that needn't be read (see `committed_addresses.trusted_ranges`)."""
    trusted_record: Mark | None = None
    """In a re-verification, the mark whose record says which ranges a metarange contains, and which sizes a range
    contains; None if all metaranges and ranges have to be read (see `committed_addresses.trusted_record`)."""
    released: ReleasedRepositories | None = None
    """In a sweep: the only other repositories that may remain unread."""
    other_repositories: OtherRepositoryData = field(default_factory=OtherRepositoryData)
    """Filled by the steps; also used to watch the heads of other repositories after a re-verification."""
    store_settings_of: Callable[[str], StoreSettings] | None = None
    """Returns the settings for the store of another repository; None if all repositories have the same ones."""
    decided: DecidedCommits | None = None
    """Used to watch the branches after a re-verification; None until `retained_commits` has run."""
    persist: Persisted = field(default_factory=Persisted)
    """Persists DataFrames until the end of the step."""

    @property
    def place(self) -> Place:
        return self.target.place

    @property
    def store(self) -> Store:
        return self.place.store()

    @property
    def local_adapter(self) -> bool:
        return self.target.blockstore == "local"

    def read(self, asset: str, schema: pa.Schema, part: str = "") -> DataFrame:
        """Read and verify a dataset that an earlier step of this mark wrote. Raises `DamagedData` if it is missing."""
        return self.read_dataset(self.mark.dataset(asset, part), schema)

    def rows(self, asset: str, schema: pa.Schema, part: str = "") -> list[dict[str, Any]]:
        """Read all rows of a dataset that fits in one process, such as commit verdicts, without Spark."""
        return all_rows(self.place, self.mark.dataset(asset, part), schema)

    def read_dataset(self, dataset: Dataset, schema: pa.Schema) -> DataFrame:
        return self.read_datasets([dataset], schema)

    def read_datasets(self, datasets: Sequence[Dataset], schema: pa.Schema) -> DataFrame:
        """The rows of all datasets, in fewer tasks than a union of DataFrames would have."""
        return read_datasets(self.spark(), self.place, datasets, schema)


@dataclass(frozen=True, slots=True)
class Clocks:
    """The current time by three clocks, read one after the other: the store's (rounded down), that of the
    repository's lakeFS server, and this machine's."""

    store: datetime
    server: datetime
    machine: datetime

    def check(self, max_skew: timedelta, where: str) -> None:
        """Raise `Refused` if two of the clocks differ by more than `max_skew` (invariant 6). `where` names a
        repository."""
        readings = {"the object store": self.store, "the lakeFS server": self.server, "this machine": self.machine}
        earliest, latest = (
            min(readings, key=lambda clock: readings[clock]),
            max(readings, key=lambda clock: readings[clock]),
        )
        difference = readings[latest] - readings[earliest]
        if difference > max_skew:
            raise Refused(
                f"the clocks used for {where} differ by {duration(difference)}, and at most {duration(max_skew)} is "
                f"allowed: {earliest} says {readings[earliest]:%Y-%m-%d %H:%M:%S}, {latest} says "
                f"{readings[latest]:%Y-%m-%d %H:%M:%S} UTC. Ages of objects can't be determined. "
                "Synchronize the clocks (NTP), or raise LAKEGC_MAX_CLOCK_SKEW if the difference "
                "is known and harmless.",
                invariant=6,
            )

    def for_record(self) -> dict[str, str]:
        """The three times as a mark records them."""
        return {name: getattr(self, name).isoformat() for name in ("store", "server", "machine")}


def read_clocks(store: Store, lakefs: LakeFS, server: str, machine: Callable[[], datetime]) -> Clocks:
    """Read the three clocks. If a store's clock is shifted on purpose (in a sandbox), this machine's clock is shifted
    by the same offset."""
    return Clocks(store.now(), lakefs.server_time(server), machine() + store.clock_offset)


@contextmanager
def step(run: MarkRun, asset: str) -> Iterator[StepNotes]:
    """Wrap the work of an asset: refuse a finished mark, record times by the store's clock, record failures."""
    run.mark.check_unfinished()
    check_order(run.mark.record, before=asset)
    started_at, started = run.store.now(), time.monotonic()
    notes = StepNotes()
    try:
        with run.persist:
            yield notes
    except Exception as error:
        kind = "" if isinstance(error, LakegcError) else f"{type(error).__name__}: "
        run.mark.fail(f"{asset}: {kind}{error}")
        raise
    notes.facts["seconds"] = round(time.monotonic() - started, 2)
    run.mark.add_step(asset, StepRecord(started_at, run.store.now(), 0, notes.datasets, notes.facts))


@dataclass(slots=True)
class StepNotes:
    """What a step records while it runs: its datasets, and facts (JSON) for checks and for display."""

    datasets: dict[str, DatasetSummary] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def add_dataset(self, dataset: Dataset, part: str = "") -> None:
        self.datasets[part] = {"sha256": dataset.sha256, "rows": dataset.rows, "bytes": dataset.size}


def with_probed_capabilities(target: Target) -> Target:
    """The target with the capabilities that a probe of its store found, because an S3-compatible store may lack some
    that it claims to have. Unchanged if the store needn't be probed (see `endpoint_to_probe`)."""
    place = target.place
    endpoint = endpoint_to_probe(place.namespace, place.settings)
    if endpoint is None:
        return target
    capabilities = recorded_capabilities(place.store(), endpoint, token=secrets.token_hex(8), seal=place.seal)
    return replace(target, place=replace(place, capabilities=capabilities))


def user_and_machine() -> str:
    """The user, machine and process, as shown to anyone who is blocked by the mark's lease."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"user {os.getuid()}"
    return f"{name}@{socket.gethostname()} (process {os.getpid()})"


@functools.cache
def versions() -> Mapping[str, str]:
    packages = ("lakegc", "pyspark", "pyarrow", "lakefs-sdk", "dagster")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}
