"""References from other repositories, on any server, to objects in this namespace. These objects are live, though no
list of this repository contains them.

Staging or importing `s3://bucket/this/data/…` into another repository stores a full address there (formats §4), and
readers of that repository are served from this namespace. So for each other repository on the same kind of block
store, every staged path is looked up and every table is read, whichever commit refers to it, because this mark doesn't
decide what is retained there. Tables are immutable, so a table without addresses of this namespace is never read again.
A table is also skipped if a signed note by any repository's mark says that it has none (`table_notes`).

A repository that can't be read (no permission, damaged, not responding) doesn't block the marks of the others: the mark
records it, a check fails, and the addresses that earlier marks and re-verifications found there stay live.
With `require_other_repositories`, it stops the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes, place_of
from lakegc_assets.mark.earlier_references import (
    AT_THE_END_PART,
    CARRIED_AT_THE_END_PART,
    CARRIED_PART,
    COMMITTED,
    COMMITTED_AT_THE_END_PART,
    COMMITTED_PART,
    EXPIRED,
    FACTS,
    KNOWN_PART,
    STAGED,
    STAGED_PARTS,
    TABLES,
    WITHOUT_REFERENCES_AT_THE_END_PART,
    WITHOUT_REFERENCES_PART,
    earlier_addresses,
    is_trusted,
    marks_with_same_spellings,
    spellings,
    tables_without_references,
    trusted_tables,
)
from lakegc_assets.mark.keep_evidence import KeepEvidence, UndecidedObjects, evidence_at_addresses
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.path_probes import ignoring_deleted, key_inside
from lakegc_assets.mark.table_notes import NOTED_COLUMNS, NOTES_PART, AllTableNotes, add_notes, note_on
from lakegc_assets.mark.uncommitted_readings import BRANCHES_ON_DRIVER, staged_addresses
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.brakes import name_of_release, sentence_about, servers_read, unread_repositories_in
from spark_resources import sstable
from spark_resources.errors import DamagedData, Forbidden, Refused, Unavailable, WrongUsage, full_stop
from spark_resources.identifiers import all_repositories_on, server_of
from spark_resources.lakefs import Repository
from spark_resources.lakefs.ranges import full_addresses_inside, range_properties, read_table, table_ids
from spark_resources.model import ADDRESSES, TABLE_NOTES, Namespace
from spark_resources.spark.datasets import (
    Dataset,
    Output,
    Producer,
    parquet_output,
    write_outputs,
    write_produced,
    write_table,
)
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import prefetch

TABLE_PARTS = (COMMITTED_PART, WITHOUT_REFERENCES_PART, NOTES_PART)
BRANCHES = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("repository", "branch")])
REPOSITORY_TABLES = pa.schema([pa.field("repository", pa.string(), nullable=False), *TABLES])
DISTINCT_TABLES = pa.schema([pa.field("repositories", pa.list_(pa.string()), nullable=False), *TABLES])
FOUND = pa.schema(  # for each table: a row for every address inside this namespace, and one with their count and a note
    [*TABLE_NOTES, pa.field("address", pa.string()), pa.field("addresses", pa.int64())]
)


# --- the other repositories -----------------------------------------------------------------------------------------


UnreadRepositories = dict[str, str]  # repositories that could not be read, each with the reason


@dataclass(frozen=True, slots=True)
class OtherRepositories:
    """The other repositories that may refer to this namespace, by name; those that are trusted not to; and those that
    could not be read, each with the reason."""

    places: dict[str, Place]
    trusted: tuple[str, ...] = ()
    unread: UnreadRepositories = field(default_factory=dict)


def list_other_repositories(run: MarkRun) -> OtherRepositories:
    """The other repositories that the servers list on this kind of block store (other kinds have different addresses),
    except trusted ones.

    If lakegc isn't permitted to list the repositories of a server, or if a server other than this repository's can't be
    read, all its repositories count as unread (`lab/*`; `*` for the only server). If this repository's own server can't
    be read, its error is raised.
    """
    refuse_changed_servers(run)
    if "*" in run.limits.trusted:
        return OtherRepositories({}, ("*",))
    places, trusted, unread = dict[str, Place](), set[str](), UnreadRepositories()
    for server in run.lakefs.servers:
        if server and all_repositories_on(server) in run.limits.trusted:
            trusted.add(all_repositories_on(server))
            continue
        if why := why_unlisted_before(run, server):
            unread[all_repositories_on(server)] = why
            continue
        with recording_unlisted(run, server, unread):
            config = run.lakefs.config(server)
            for other in run.lakefs.repositories_on(server):
                if other.id == run.target.repository.id:
                    continue
                if is_trusted(run, other.id):
                    trusted.add(other.id)
                elif config.blockstore(other.storage_id) == run.target.blockstore:
                    try:
                        places[other.id] = place_of_other(run, other)
                    except WrongUsage as error:  # its settings are invalid, which its own marks report, too
                        unread[other.id] = str(error)
    return OtherRepositories(places, tuple(sorted(trusted)), unread)


@contextmanager
def recording_unlisted(run: MarkRun, server: str, unread: UnreadRepositories) -> Iterator[None]:
    """Wrap the listing of a server's repositories: record all of them as unread if it isn't permitted or, on a
    server other than this repository's, not possible."""
    try:
        yield
    except Forbidden as error:
        unread[all_repositories_on(server)] = f"the credentials aren't permitted to list repositories: {error}"
    except (Unavailable, DamagedData) as error:
        if server == run.target.repository.server:
            raise
        unread[all_repositories_on(server)] = f"the repositories of server {server} could not be listed: {error}"


def why_unlisted_before(run: MarkRun, server: str) -> str | None:
    """Why an earlier step of this mark couldn't list the repositories of another server, so that no later one waits for
    its response again."""
    if server == run.target.repository.server:
        return None
    return unread_repositories_in(run.mark.record).get(all_repositories_on(server))


def refuse_changed_servers(run: MarkRun) -> None:
    """Raise `Refused` if the settings list different servers now than in the mark's first step: the mark would have
    read some of them only in part."""
    if STAGED not in run.mark.record.steps:
        return
    before, now = set(servers_read(run.mark.record)), set(run.lakefs.servers)
    if before != now:
        raise Refused(
            f"the servers in the settings have changed since mark {run.mark.record.mark_id} of "
            f"{run.mark.record.repository} began (then: {in_words(before)}; now: {in_words(now)}). Make a new mark.",
            invariant=2,
        )


def in_words(servers: set[str]) -> str:
    return ", ".join(sorted(servers - {""})) or "a single server"


def place_of_other(run: MarkRun, other: Repository) -> Place:
    """The location of another repository's objects, with the settings for its store. Its records are signed with the
    same keys, if any."""
    known = run.other_repositories.places
    if other not in known:
        settings = run.place.settings if run.store_settings_of is None else run.store_settings_of(other.id)
        place, seal = place_of(other, run.target.blockstore, settings), run.place.seal
        if seal is not None:
            other_seal = seal.for_repository(other.lakefs_id, created=other.created, namespace=other.storage_namespace)
            place = replace(place, seal=other_seal)
        known[other] = place
    return known[other]


@contextmanager
def recording_unread(repository: str, unread: UnreadRepositories) -> Iterator[None]:
    """Wrap reads of another repository: record a repository that can't be read, and name the repository if an ambiguous
    address is refused."""
    try:
        yield
    except (Unavailable, DamagedData) as error:
        unread.setdefault(repository, str(error))
    except Refused as error:
        raise Refused(
            f"repository {repository} may refer to objects of the marked repository: {error}", invariant=5
        ) from error


def report_unread(run: MarkRun, unread: UnreadRepositories) -> None:
    """Report which repositories could not be read. Raises `Refused` in a sweep for a repository that the mark's
    approval doesn't release by name and, if `require_other_repositories` is set, in any run for any unread
    repository."""
    stopping = unreleased(run, unread)
    for repository, why in sorted(unread.items()):
        sentence = f"{sentence_about(repository)}: {full_stop(why)}"
        if run.limits.others_required:
            raise Refused(
                f"{sentence} Repositories that don't refer to such objects can be named in "
                "LAKEGC_TRUSTED_REPOSITORIES.",
                invariant=2,
            )
        if repository in stopping:
            raise Refused(f"{sentence} {next_step(run, repository)}", invariant=2)
        run.log_message(sentence)


def unreleased(run: MarkRun, unread: UnreadRepositories) -> set[str]:
    """The unread repositories that stop a sweep because the approval of its mark doesn't cover them; empty in a mark.
    Raises the errors of listing the repositories."""
    released = run.released
    if released is None:
        return set()
    covered = unread.keys() & released.repositories.keys()
    for server in {server_of(name) for name in covered if all_repositories_on(server_of(name)) not in covered}:
        listed = run.lakefs.repositories_on(server)
        covered -= {other.id for other in listed if is_newer(run, other, released.mark_started_at)}
    return unread.keys() - covered


def is_newer(run: MarkRun, other: Repository, mark_started_at: datetime) -> bool:
    """Whether a repository may have been created after a mark started, by the clock of that mark's server. The clock of
    another server may be behind it."""
    same_clock = other.server == run.target.repository.server
    return other.created > mark_started_at - (timedelta(0) if same_clock else run.limits.clock_skew)


def next_step(run: MarkRun, repository: str) -> str:
    """What an operator can do about a repository that stops a sweep."""
    name = run.partition.repository
    return (
        "The sweep was stopped and deletes nothing more. Run the same command again when the repository can be read. "
        f"If it can't be made readable, make a new mark, which records it as unread (lakegc mark {name}), and release "
        f"it by name when you approve that mark: lakegc approve {name} MARK --release "
        f"'{name_of_release(repository)}' --because 'why nothing there refers to objects of {name}'."
    )


# --- staged addresses -----------------------------------------------------------------------------------------------


def read_staged(run: MarkRun, notes: StepNotes) -> None:
    """Read twice, and write, the addresses inside this namespace that are staged on branches of other repositories."""
    listing = list_other_repositories(run)
    for part in STAGED_PARTS if listing.places else ():
        write_staged(run, notes, listing, STAGED, part)
    notes.facts[FACTS] = {
        "servers": list(run.lakefs.servers),
        "unread": listing.unread,
        "trusted": list(listing.trusted),
    }
    report_unread(run, listing.unread)


def read_at_the_end(run: MarkRun, notes: StepNotes) -> list[Dataset]:
    """Read the staged addresses again after the path probes, because neither the first reads nor a probe finds an
    object that is moved to another path in between. The object may also have been committed since, so new tables are
    read last. For repositories that became unreadable since `read_committed`, the addresses that earlier marks recorded
    are carried over. Returns the datasets (ADDRESSES)."""
    listing = list_other_repositories(run)
    datasets = []
    if listing.places:
        datasets.append(write_staged(run, notes, listing, EXPIRED, AT_THE_END_PART))
        datasets += read_new_tables(run, notes, listing)
    facts = notes.facts.setdefault(FACTS, {"unread": {}})
    facts["unread"] = {**listing.unread, **facts["unread"]}
    facts["trusted"] = list(listing.trusted)
    report_unread(run, listing.unread)
    newly_unread = facts["unread"].keys() - run.mark.record.step(COMMITTED).facts[FACTS]["unread"].keys()
    if newly_unread and len(carried := earlier_addresses(run, marks_with_same_spellings(run), newly_unread)):
        datasets.append(write_part(run, notes, EXPIRED, CARRIED_AT_THE_END_PART, carried))
    return datasets


def write_staged(run: MarkRun, notes: StepNotes, listing: OtherRepositories, asset: str, part: str) -> Dataset:
    """Read the addresses staged in other repositories once, and write them (ADDRESSES). Records which repositories
    could not be read."""
    heads = branch_heads(run, sorted(listing.places), listing.unread)
    if asset == STAGED:  # before tables are listed
        run.other_repositories.heads |= {(repository, head) for repository, _, head in heads}
    rows = [{"repository": repository, "branch": branch} for repository, branch, _ in heads]
    branches = pa.Table.from_pylist(rows, schema=BRANCHES)
    run.log_message(
        f"reading {plural(len(branches), 'branch')} of {plural(len(listing.places), 'other repository')} for staged "
        "addresses"
    )
    tasks = tasks_from_rows(run.spark, branches, batch_size=4, max_on_driver=BRANCHES_ON_DRIVER)
    dataset, report = write_produced(tasks, staged_producer(run), run.place, run.mark.folder(asset, part), ADDRESSES)
    notes.add_dataset(dataset, part)
    notes.facts[part] = {"branches": len(branches), "asked": report.counters["asked"], "addresses": dataset.rows}
    listing.unread.update(report.errors)
    return dataset


def branch_heads(run: MarkRun, repositories: Sequence[str], unread: UnreadRepositories) -> list[tuple[str, str, str]]:
    """Repository, name and head of every branch of these repositories. Skips repositories deleted since they
    were listed, and records in `unread` those that could not be read."""

    def heads(repository: str) -> list[tuple[str, str, str]]:
        with recording_unread(repository, unread), ignoring_deleted(run.lakefs, repository):
            return [(repository, *head) for head in sorted(run.lakefs.branches(repository).items())]
        return []

    with ThreadPoolExecutor(max_workers=run.lakefs.settings.probe_requests) as pool:
        return [head for heads_of_repository in pool.map(heads, repositories) for head in heads_of_repository]


def staged_producer(run: MarkRun) -> Producer:
    lakefs, namespace = run.lakefs, run.place.namespace

    def produce(batches: Batches, report: TaskReport) -> Batches:
        unread = report.errors
        for row in (row for batch in batches for row in batch.to_pylist()):
            keys_or_none = []
            with recording_unread(row["repository"], unread):
                for address in staged_addresses(lakefs, row["repository"], row["branch"]):
                    report.count(asked=1)
                    keys_or_none.append(key_inside(address, namespace))
            keys_inside = pa.array([key for key in keys_or_none if key is not None], pa.string())
            yield pa.RecordBatch.from_arrays([keys_inside], schema=ADDRESSES)

    return produce


# --- committed addresses --------------------------------------------------------------------------------------------


def read_committed(run: MarkRun, notes: StepNotes) -> None:
    """Write the addresses inside this namespace that tables of other repositories contain, and the tables that contain
    none."""
    listing = list_other_repositories(run)
    earlier = marks_with_same_spellings(run) if listing.places or listing.unread else []
    if listing.places:
        run.log_message(f"listing the tables of {plural(len(listing.places), 'other repository')}")
    by_repository = tables_of(run, listing)
    tables = distinct_tables(by_repository)
    is_known = pc.is_in(tables["table_id"], value_set=trusted_tables(run, earlier[0] if earlier else None))
    noted = noted_without_address(run, listing, tables.filter(pc.invert(is_known))["table_id"])
    is_known = pc.or_(is_known, pc.is_in(tables["table_id"], value_set=noted))
    to_read = tables.filter(pc.invert(is_known))
    notes.facts[FACTS] = {
        "repositories": sorted(listing.places),
        "trusted": list(listing.trusted),
        "spellings": spellings(run),
        "tables": len(tables),
        "tables_noted": len(noted),
        "tables_read": len(to_read),
        "addresses": 0,
    }
    if len(to_read) < len(tables):
        write_part(run, notes, COMMITTED, KNOWN_PART, tables.filter(is_known).select(TABLES.names))
    if len(to_read):
        run.log_message(
            f"reading {plural(len(to_read), 'table')} of other repositories; later marks can skip those without "
            "references to this repository"
        )
        with_notes = run.place.seal is not None and run.trusted_ranges is None  # a mark, not a re-verification
        parts = TABLE_PARTS if with_notes else TABLE_PARTS[:2]
        addresses, _, *table_notes = read_tables(run, notes, listing, to_read, COMMITTED, parts)
        for dataset in table_notes:
            add_notes(run, notes, dataset, tables["table_id"].combine_chunks())
        notes.facts[FACTS]["addresses"] = addresses.rows
    is_unread = pc.is_in(by_repository["repository"], value_set=pa.array(listing.unread, pa.string()))
    run.other_repositories.tables = pc.unique(by_repository.filter(pc.invert(is_unread))["table_id"])
    all_unread = {**run.mark.record.step(STAGED).facts.get(FACTS, {}).get("unread", {}), **listing.unread}
    notes.facts[FACTS]["unread"] = all_unread
    report_unread(run, listing.unread)
    if all_unread and len(carried := earlier_addresses(run, earlier, all_unread)):
        write_part(run, notes, COMMITTED, CARRIED_PART, carried)


def noted_without_address(run: MarkRun, listing: OtherRepositories, tables: pa.ChunkedArray) -> pa.Array:
    """Which of these tables (ids) contain no address of this namespace according to the notes of any repository."""
    if not len(tables):
        return tables.combine_chunks()
    return all_table_notes(run, listing).without_address(tables, run.place)


def all_table_notes(run: MarkRun, listing: OtherRepositories) -> AllTableNotes:
    """The notes of all repositories, read once per mark: a note never changes, and missing a new one does no harm."""
    others = run.other_repositories
    if others.notes is None:
        others.notes = AllTableNotes.read(run.place, listing.places.values())
    return others.notes


def read_new_tables(run: MarkRun, notes: StepNotes, listing: OtherRepositories) -> list[Dataset]:
    """Read the tables that were written since `read_committed`, whichever commit refers to them. If `read_committed`
    ran in another process, tables in which it found addresses are read again. Returns the dataset of addresses
    (ADDRESSES), if there are such tables."""
    tables, known = distinct_tables(tables_of(run, listing)), run.other_repositories.tables
    if known is None:
        known = tables_without_references(run, run.mark, (WITHOUT_REFERENCES_PART, KNOWN_PART))
    new = tables.filter(pc.invert(pc.is_in(tables["table_id"], value_set=known)))
    notes.facts["new_tables_elsewhere"] = len(new)
    if not len(new):
        return []
    run.log_message(f"reading {plural(len(new), 'new table')} of other repositories")
    parts = (COMMITTED_AT_THE_END_PART, WITHOUT_REFERENCES_AT_THE_END_PART)
    addresses, _ = read_tables(run, notes, listing, new, EXPIRED, parts)
    return [addresses]


def tables_of(run: MarkRun, listing: OtherRepositories) -> pa.Table:
    """The tables of each other repository (REPOSITORY_TABLES). Records which repositories could not be read."""

    def tables_in(repository: str) -> pa.Table:
        ids: list[str] = []
        with recording_unread(repository, listing.unread):
            ids = list(table_ids(listing.places[repository]))
        names = pa.repeat(pa.scalar(repository, pa.string()), len(ids))
        return pa.table([names, pa.array(ids, pa.string())], schema=REPOSITORY_TABLES)

    with ThreadPoolExecutor(max_workers=run.place.settings.listing_requests) as pool:
        return pa.concat_tables([REPOSITORY_TABLES.empty_table(), *pool.map(tables_in, sorted(listing.places))])


def distinct_tables(by_repository: pa.Table) -> pa.Table:
    """The distinct tables, each with all repositories that have it (DISTINCT_TABLES)."""
    grouped = by_repository.group_by("table_id", use_threads=False).aggregate([("repository", "list")])
    return grouped.select(["repository_list", "table_id"]).rename_columns(DISTINCT_TABLES.names).cast(DISTINCT_TABLES)


def read_tables(
    run: MarkRun, notes: StepNotes, listing: OtherRepositories, tables: pa.Table, asset: str, parts: Sequence[str]
) -> list[Dataset]:
    """Write the addresses inside this namespace that these tables contain (ADDRESSES), the tables that contain none
    (TABLES) and, if three parts are given, notes (TABLE_NOTES), as these parts of an asset. Records which repositories
    could not be read."""
    selections = [(ADDRESSES, is_address), (TABLES, is_without_address), (TABLE_NOTES, is_noted)][: len(parts)]
    outputs = [
        filtered_output(is_wanted, parquet_output(run.mark.folder(asset, part), schema))
        for part, (schema, is_wanted) in zip(parts, selections, strict=True)
    ]
    tasks = tasks_from_rows(run.spark, tables, batch_size=16)
    produce = tables_producer(run, listing, with_notes=len(parts) == len(TABLE_PARTS))
    datasets, report = write_outputs(tasks, produce, run.place, outputs)
    if report.counters["tables"] != len(tables):
        raise DamagedData(
            f"{report.counters['tables']:,} of {plural(len(tables), 'table')} of other repositories were read. "
            "The incomplete result was not used. Run the same command again.",
            invariant=3,
        )
    for dataset, part in zip(datasets, parts, strict=True):
        notes.add_dataset(dataset, part)
    listing.unread.update(report.errors)
    return datasets


def filtered_output(is_wanted: Callable[[pa.Table], pa.ChunkedArray], output: Output) -> Output:
    """This output, limited to the wanted rows."""
    return Output(output.folder, output.suffix, lambda table: output.encode(table.filter(is_wanted(table))))


def is_address(found: pa.Table) -> pa.ChunkedArray:
    return pc.is_valid(found["address"])


def is_without_address(found: pa.Table) -> pa.ChunkedArray:
    return pc.equal(found["addresses"], 0)


def is_noted(found: pa.Table) -> pa.ChunkedArray:
    return pc.or_(pc.is_valid(found["folders"]), pc.is_valid(found["sizes"]))


def tables_producer(run: MarkRun, listing: OtherRepositories, *, with_notes: bool) -> Producer:
    """The function that each task runs: maps rows of DISTINCT_TABLES to the addresses inside this namespace and a row
    about each table (FOUND). The row includes a note on the table if `with_notes`.

    A table that can't be read in one repository is read in the next one that has it. A table that can't be read in any
    of them has no row, so the next mark reads it again.
    """
    places, namespace, ahead = listing.places, run.place.namespace, run.place.settings.reading_requests

    def produce(batches: Batches, report: TaskReport) -> Batches:
        unread = report.errors
        repositories = {row["table_id"]: row["repositories"] for batch in batches for row in batch.to_pylist()}
        report.count(tables=len(repositories))

        def fetch(table_id: str, repository: str) -> bytes:
            with recording_unread(repository, unread):
                return read_table(places[repository], table_id, referrer="another repository")
            return b""

        for table_id, data in prefetch(
            repositories, lambda table_id: fetch(table_id, repositories[table_id][0]), ahead
        ):
            report.count(bytes=len(data))
            decoder = sstable.default_decoder(report.counters["bytes"])
            for number, repository in enumerate(repositories[table_id]):
                with recording_unread(repository, unread):
                    table = fetch(table_id, repository) if number else data
                    entries = entries_of(table, table_id, places[repository], decoder, with_notes=with_notes)
                    yield from found_rows(table_id, entries, namespace, with_notes=with_notes)
                    break

    return produce


def entries_of(
    data: bytes, table_id: str, place: Place, decoder: sstable.Decoder, *, with_notes: bool = False
) -> pa.RecordBatch | None:
    """The entries of a range (NOTED_COLUMNS, with sizes only if `with_notes`); None if the table isn't a range of
    objects.

    Raises `DamagedData` if its content doesn't match its id, because the original table may contain other keys.
    """
    if range_properties(data, name=table_id, where=place.store().where) is None:
        return None
    columns = NOTED_COLUMNS if with_notes else NOTED_COLUMNS[:2]
    return sstable.read_verified_entries(data, name=table_id, columns=columns, decoder=decoder)[0]


def inside_keys(entries: pa.RecordBatch | None, namespace: Namespace) -> pa.Array:
    """The keys in this namespace that the entries of another namespace's table contain."""
    if entries is None:
        return pa.array([], pa.string())
    return full_addresses_inside(entries.column("address"), entries.column("address_type"), namespace)


def found_rows(table_id: str, entries: pa.RecordBatch | None, namespace: Namespace, *, with_notes: bool) -> Batches:
    """The addresses inside this namespace in a table of another repository, and a row about the table (FOUND)."""
    keys = inside_keys(entries, namespace)
    no_note = pa.RecordBatch.from_pylist([{"table_id": table_id}], TABLE_NOTES)
    about = note_on(table_id, entries) if with_notes else no_note
    for columns in (
        {"table_id": pa.repeat(pa.scalar(table_id), len(keys)), "address": keys},
        {name: about.column(name) for name in about.schema.names} | {"addresses": pa.array([len(keys)], pa.int64())},
    ):
        rows = len(columns["table_id"])
        arrays = [columns.get(field.name, pa.nulls(rows, field.type)) for field in FOUND]
        yield pa.RecordBatch.from_arrays(arrays, schema=FOUND)


def write_part(run: MarkRun, notes: StepNotes, asset: str, part: str, table: pa.Table) -> Dataset:
    """Write a table in the driver's memory as this part of an asset."""
    dataset = write_table(run.place, run.mark.folder(asset, part), table)
    notes.add_dataset(dataset, part)
    return dataset


# --- the reason to keep ---------------------------------------------------------------------------------------------


def look_up(run: MarkRun, notes: StepNotes, objects: UndecidedObjects, chain: MarkChain) -> KeepEvidence | None:
    """The evidence that keeps the objects to which other repositories refer; None if there are no such references, or
    no unreferenced objects. Repositories may also refer to objects that were deleted long ago."""
    recorded = run.mark.record.steps
    datasets: list[Dataset] = [
        run.mark.dataset(asset, part)
        for asset, parts in ((STAGED, STAGED_PARTS), (COMMITTED, (COMMITTED_PART, CARRIED_PART)))
        for part in parts
        if part in recorded[asset].datasets and recorded[asset].datasets[part]["rows"]
    ]
    if not datasets or not notes.facts["unreferenced"]:
        return None
    return evidence_at_addresses(keep_reasons.OTHER_REPOSITORY, run.place, datasets, ADDRESSES)
