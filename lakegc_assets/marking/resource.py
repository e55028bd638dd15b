"""Marks as a Dagster resource: opens a partition's mark for a step, and holds the repository's lease for the run."""

# no `from __future__ import annotations` here: Dagster reads the annotations of resources

import getpass
import os
import platform
import secrets
import socket
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from dagster import ConfigurableResource, InitResourceContext, ResourceDependency
from pydantic import PrivateAttr

from lakegc_assets.incremental import basis_of
from lakegc_assets.marking import inventories
from lakegc_assets.marking.options import MarkOptions, checked_age, refuse_both
from lakegc_assets.marking.run import Limits, MarkRun, Target, find_target, read_clocks
from lakegc_assets.progress import Say, tell
from spark_resources.errors import Forbidden, LakegcError, Refused, WrongUsage
from spark_resources.holds import read_holds
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lease import Lease, take_lease
from spark_resources.marks import CLEAN, Mark, MarkRecord, claim_namespace, earlier_marks
from spark_resources.model import MarkState, Partition, old_enough_before
from spark_resources.processes import interrupt_when_told_to_end
from spark_resources.session import SparkResource
from spark_resources.settings import Settings
from spark_resources.stores import lookalike
from spark_resources.stores.probe import remembered_quirks
from spark_resources.user_folders import home_folder


class MarksResource(ConfigurableResource["MarksResource"]):
    """Opens marks. What isn't configured here comes from `LAKEGC_*` variables (see `spark_resources.settings`)."""

    lakefs: ResourceDependency[LakeFSResource]
    spark: ResourceDependency[SparkResource]

    _lease: Lease | None = PrivateAttr(default=None)

    def refuse_finished(self, partition_key: str) -> None:
        """Raise `NothingToDo` where the mark is finished, before its options, clocks or lease are looked at: whatever
        else is wrong with the request, such a mark stays as it is."""
        partition = Partition.parse(partition_key)
        place = find_target(self.lakefs.client(), partition.repository, self.settings()).place
        if Mark.exists(place, partition.mark_id):
            Mark.open(place, partition.mark_id).check_unfinished()

    def begin(self, partition_key: str, options: MarkOptions, say: Say) -> MarkRun:
        """Begin the mark of a partition, or go on with it while it is unfinished. Takes the lease.

        Raises `Refused` where the namespace, the clocks or the minimum age forbid it (invariants 5, 6, 11, 12).
        """
        partition, settings, lakefs = Partition.parse(partition_key), self.settings(), self.lakefs.client()
        refuse_both(options)
        min_age = checked_age(settings.min_age if options.min_age is None else options.min_age, options)
        target = find_target(lakefs, partition.repository, settings)
        refuse_read_only(target.repository)
        refuse_overlap(target, lakefs)
        target = probed(target)
        clocks = read_clocks(target.place.store(), lakefs, lambda: datetime.now(UTC))
        clocks.check(settings.max_clock_skew, partition.repository)
        self.hold(partition, target, settings)
        inventory, start = self._inventory(options, target, clocks.store, settings)
        claim_namespace(target.place, target.repository.id, target.repository.created)
        record = MarkRecord(
            mark_id=partition.mark_id,
            state=MarkState.MARKING,
            repository=target.repository.id,
            repository_created=target.repository.created,
            namespace=target.place.namespace.uri,
            scope=options.scope,
            min_age=min_age,
            start=start,
            cutoff=old_enough_before(start, min_age),
            server_now=clocks.server,
            rules=lakefs.rules(partition.repository),
            by=who(),
            versions=versions(),
            clocks=clocks.facts(),
            accepted_missing=options.accept_missing,
            holds=read_holds(target.place).recorded(),
            inventory=inventory,
        )
        record = replace(record, basis={**CLEAN, "spellings": sorted(target.place.namespace.also)})
        earlier = earlier_marks(target.place)
        basis = basis_of(
            record, earlier.finished, untrusted=earlier.untrusted,
            since=options.since, clean=options.clean, every=settings.clean_every,
        )  # fmt: skip
        record = replace(record, basis=basis)
        mark = Mark.begin(target.place, record)
        refuse_another_basis(mark.record, options)
        return self._run(partition, target, mark, lakefs, say)

    def go_on(self, partition_key: str, say: Say) -> MarkRun:
        """The unfinished mark of a partition, for its next step. Takes the lease, unless this run holds it."""
        partition, settings, lakefs = Partition.parse(partition_key), self.settings(), self.lakefs.client()
        target = probed(find_target(lakefs, partition.repository, settings))
        mark = Mark.open(target.place, partition.mark_id)
        mark.check_unfinished()
        self.hold(partition, target, settings)
        refuse_another_repository(mark.record, target)
        return self._run(partition, target, mark, lakefs, say)

    def record(self, partition_key: str) -> MarkRecord:
        """The record of a partition's mark as the namespace holds it now."""
        partition = Partition.parse(partition_key)
        target = find_target(self.lakefs.client(), partition.repository, self.settings())
        return Mark.open(target.place, partition.mark_id).record

    def store_time(self, partition_key: str) -> datetime:
        """Now, by the clock of the store that a partition's mark is in."""
        repository = Partition.parse(partition_key).repository
        return find_target(self.lakefs.client(), repository, self.settings()).place.store().now()

    def settings(self) -> Settings:
        return Settings.load(os.environ, home_folder())

    def hold(self, partition: Partition, target: Target, settings: Settings) -> Lease:
        """Take the repository's lease for this run, once, and see that it still holds."""
        if self._lease is None:
            interrupt_when_told_to_end()
            self._lease = take_lease(
                target.place.store(),
                who=who(),
                mark_id=partition.mark_id,
                token=secrets.token_hex(16),
                single_deployment=settings.single_deployment,
                say=tell,
            )
        self._lease.check()
        return self._lease

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _inventory(
        self, options: MarkOptions, target: Target, now: datetime, settings: Settings
    ) -> tuple[dict[str, Any] | None, datetime]:
        """What a mark keeps of the inventory that it reads, if any, and when it begins by the store's clock."""
        if not options.inventory:
            return None, now
        found = inventories.chosen(
            options.inventory, options.inventory_taken, target, now=now, skew=settings.max_clock_skew
        )
        return found.recorded(), min(now, found.taken)

    def _run(self, partition: Partition, target: Target, mark: Mark, lakefs: LakeFS, say: Say) -> MarkRun:
        return MarkRun(partition, target, mark, lakefs, self.session, self.limits(), said_to(say))

    def limits(self) -> Limits:
        settings = self.settings()
        return Limits(
            settings.max_clock_skew,
            settings.max_missing,
            settings.max_questions,
            settings.trusted_repositories,
            settings.require_other_repositories,
        )

    def session(self) -> Any:
        """The run's Spark session; it is started when somebody asks for it."""
        return self.spark.spark_session


def probed(target: Target) -> Target:
    """The target with what a probe found of its store, where that is a lookalike: its word is not enough."""
    place = target.place
    endpoint = lookalike(place.namespace, place.settings)
    if endpoint is None:
        return target
    quirks = remembered_quirks(place.store(), endpoint, token=secrets.token_hex(8))
    return replace(target, place=replace(place, quirks=quirks))


def said_to(log: Say) -> Say:
    """Say it to Dagster's log of this run, and to whoever listens in this process."""

    def say(sentence: str) -> None:
        log(sentence)
        tell(sentence)

    return say


def refuse_another_basis(record: MarkRecord, options: MarkOptions) -> None:
    """Raise `WrongUsage` where an unfinished mark that is gone on with was begun since another mark, or since any."""
    if record.optimized and (options.clean or options.since not in ("", record.basis["chain"][0])):
        raise WrongUsage(
            f"mark {record.mark_id} of {record.repository} was begun since mark {record.basis['chain'][0]}, and goes "
            "on so. Give this mark an id of its own."
        )


# --- what forbids a mark --------------------------------------------------------------------------------------------


def refuse_read_only(repository: Repository) -> None:
    if repository.read_only:
        raise LakegcError(
            f"repository {repository.id} is read-only, and lakeFS refuses to list what is live in it. "
            "It can't be marked until it is writable."
        )


def refuse_overlap(target: Target, lakefs: LakeFS) -> None:
    """Raise `Refused` where another repository of this server lives in, around or at the same place (invariant 5)."""
    mine = target.place.namespace.normal_form()
    try:
        for other in lakefs.repositories():
            theirs = other.namespace().normal_form()
            if other.id != target.repository.id and (mine + "/").startswith(theirs + "/"):
                raise overlap(target, other)
            if other.id != target.repository.id and (theirs + "/").startswith(mine + "/"):
                raise overlap(target, other)
    except Forbidden:
        pass  # who may not list repositories relies on the owner's mark in the namespace


def overlap(target: Target, other: Repository) -> Refused:
    return Refused(
        f"the namespace {target.place.namespace.uri} of {target.repository.id} overlaps {other.storage_namespace} of "
        f"{other.id}: each would take the other's objects for garbage. Neither can be collected.",
        invariant=5,
    )


def refuse_another_repository(record: MarkRecord, target: Target) -> None:
    today = (target.repository.id, target.repository.created, target.place.namespace.uri)
    if today != (record.repository, record.repository_created, record.namespace):
        raise Refused(
            f"mark {record.mark_id} was made of another repository than today's {target.repository.id} (created "
            f"{target.repository.created:%Y-%m-%d %H:%M:%S} in {target.place.namespace.uri}). Make a new mark.",
            invariant=7,
        )


# --- who and what made a mark ---------------------------------------------------------------------------------------


def who() -> str:
    """The person and machine that make a mark, for colleagues who meet its lease."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"user {os.getuid()}"
    return f"{name}@{socket.gethostname()} (process {os.getpid()})"


def versions() -> dict[str, str]:
    packages = ("lakegc", "pyspark", "pyarrow", "lakefs-sdk", "dagster")
    return {name: version(name) for name in packages} | {"python": platform.python_version()}
