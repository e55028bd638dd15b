"""What earlier marks and re-verifications recorded about other repositories: the tables without references to this
namespace, and the addresses in the namespace that other repositories referred to.

These tables needn't be read again. The addresses stay live as long as a repository can't be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.path_probes import PROBED_PARTS
from lakegc_assets.rules.brakes import servers_read, unread_repositories_in
from spark_resources.errors import DamagedData, NotFound
from spark_resources.identifiers import all_repositories_on, matches_repository, server_of
from spark_resources.mark_store.mark import Mark, finished_marks, finished_reverifications, unreadable_roots
from spark_resources.mark_store.record import MarkRecord, finished_at, parts_needed_later
from spark_resources.model import ADDRESSES, SERVED, MarkState
from spark_resources.spark.datasets import LIST_NAME, Dataset, open_dataset, read_file

STAGED, COMMITTED, EXPIRED = "uncommitted_addresses", "committed_addresses", "expired_set"
STAGED_PARTS = ("first_elsewhere", "second_elsewhere")  # a rename during a scan can hide an address from that scan
AT_THE_END_PART, CARRIED_AT_THE_END_PART = "elsewhere_at_the_end", "carried_at_the_end"
COMMITTED_PART, CARRIED_PART = "elsewhere", "carried_elsewhere"  # carried over from earlier marks
# tables without an address of this namespace
WITHOUT_REFERENCES_PART, KNOWN_PART = "clean_elsewhere", "known_elsewhere"
COMMITTED_AT_THE_END_PART = "committed_elsewhere_since"
WITHOUT_REFERENCES_AT_THE_END_PART = "clean_elsewhere_since"
FACTS = "elsewhere"

TABLES = pa.schema([pa.field("table_id", pa.string(), nullable=False)])


def is_trusted(run: MarkRun, repository: str) -> bool:
    """Whether the settings trust a repository not to refer to this namespace."""
    return any(matches_repository(repository, pattern) for pattern in run.limits.trusted)


# --- tables ---------------------------------------------------------------------------------------------------------


def trusted_tables(run: MarkRun, newest: Mark | None) -> pa.ChunkedArray:
    """The ids of the tables that needn't be read: those in which earlier marks found no references, if these marks are
    signed. `newest` is the newest of them.

    If they aren't signed, an incremental mark still trusts them, a full mark reads everything, and a re-verification
    skips only tables that the approved mark itself read.
    """
    if run.place.seal is None and run.trusted_ranges is not None:
        return tables_read_by_approved_mark(run)
    trusted = run.place.seal is not None or run.mark.record.is_incremental
    return tables_without_references(run, newest if trusted else None, (WITHOUT_REFERENCES_PART, KNOWN_PART))


def tables_read_by_approved_mark(run: MarkRun) -> pa.ChunkedArray:
    """The ids of the tables that the approved mark itself read and in which it found no references.

    Tables that it took from the files of earlier marks are read again, because anyone who can write to the namespace
    could alter those files.
    """
    try:
        approved = Mark.open(run.place, run.mark.record.mark_id)
    except NotFound:
        return tables_without_references(run, None, ())  # a foreign mark records none
    return tables_without_references(
        run, approved if same_spellings(run, approved.record) else None, (WITHOUT_REFERENCES_PART,)
    )


def tables_without_references(run: MarkRun, mark: Mark | None, parts: Sequence[str]) -> pa.ChunkedArray:
    """The ids of the tables without references to this namespace, according to these parts of a mark; empty if unknown.

    Reading them again is always safe, so damaged or missing data of the older mark is ignored.
    """
    try:
        tables = [earlier_rows(run, mark, COMMITTED, part, TABLES) for part in parts]
    except (DamagedData, NotFound):
        tables = []
    return pa.concat_tables([TABLES.empty_table(), *tables])["table_id"]


# --- addresses ------------------------------------------------------------------------------------------------------


def earlier_addresses(run: MarkRun, earlier: Sequence[Mark], unread: Collection[str]) -> pa.Table:
    """All addresses to which other repositories refer according to earlier marks and re-verifications. Leaves out the
    addresses of a mark if each of the unread repositories was read by a later mark. Raises `DamagedData` for a damaged
    dataset.

    Addresses that path probes found are always included, because later marks probe only for objects that nothing else
    keeps, and re-verifications only for candidates: not finding an address again means nothing. If the record of a mark
    can't be read, all addresses in its folder are included.
    """
    addresses = [ADDRESSES.empty_table()]
    readers_by_repository = [
        [mark for mark in earlier if has_read(run, mark.record, repository)] for repository in unread
    ]
    for mark in (*earlier, *with_same_spellings(run, finished_reverifications(run.place))):
        addresses.append(probed_in_others(run, mark))
        if not all(
            any(is_later(reader.record, mark.record) for reader in readers_of_repository)
            for readers_of_repository in readers_by_repository
        ):
            addresses += (earlier_rows(run, mark, asset, part, ADDRESSES) for asset, part in ADDRESS_PARTS)
    addresses += (rows for root in unreadable_roots(run.place) for rows in addresses_in_folder(run, root))
    return pa.concat_tables(addresses).group_by("address").aggregate([]).cast(ADDRESSES)


def addresses_in_folder(run: MarkRun, root: str) -> Iterator[pa.Table]:
    """The addresses that other repositories refer to, from the finished datasets in the folder of a mark (ADDRESSES),
    without using its record. Raises `DamagedData` for a damaged dataset."""
    for asset, part in ADDRESS_PARTS:
        yield rows_in_folder(run, f"{root}{asset}/{part}/", ADDRESSES)
    for part in PROBED_PARTS:
        yield served_by_others(rows_in_folder(run, f"{root}{EXPIRED}/{part}/", SERVED), run.partition.repository)


def rows_in_folder(run: MarkRun, folder: str, schema: pa.Schema) -> pa.Table:
    try:
        run.store.stat(folder + LIST_NAME)
    except NotFound:
        return schema.empty_table()
    return rows_of(run, open_dataset(run.place, folder), schema)


ADDRESS_PARTS = (
    *((STAGED, part) for part in STAGED_PARTS),
    *((COMMITTED, part) for part in (COMMITTED_PART, CARRIED_PART)),
    *((EXPIRED, part) for part in (AT_THE_END_PART, COMMITTED_AT_THE_END_PART, CARRIED_AT_THE_END_PART)),
)
PARTS_WITH_ADDRESSES = frozenset({*ADDRESS_PARTS, *((EXPIRED, part) for part in PROBED_PARTS)})
"""All parts of earlier marks that are read here. A retirement keeps them (`record.PARTS_ABOUT_OTHERS`)."""


def has_read(run: MarkRun, record: MarkRecord, repository: str) -> bool:
    """Whether a mark completely read a repository. If `repository` stands for all repositories of a server (`lab/*`,
    or `*` for the only server): whether the mark read all of those that aren't trusted now."""
    facts, unread = record.step(COMMITTED).facts[FACTS], unread_repositories_in(record)
    server = server_of(repository)
    unlisted = unread.keys() & {"*", all_repositories_on(server)}
    if repository != all_repositories_on(server):
        return repository in facts["repositories"] and repository not in unread and not unlisted
    trusted = [name for name in facts["trusted"] if name == "*" or server_of(name) == server]
    return (
        server in servers_read(record)  # a mark may have been made without this server in the settings
        and not unlisted
        and not any(server_of(name) == server for name in unread)
        and all(is_trusted(run, name) for name in trusted)
    )


def is_later(record: MarkRecord, other: MarkRecord) -> bool:
    """Whether a mark is later than another by both the store's and the server's clock, as either may have been set
    back."""
    return finished_at(record) > finished_at(other) and record.server_now >= other.server_now


def probed_in_others(run: MarkRun, mark: Mark) -> pa.Table:
    """The addresses that a mark's path probes found on branches of other repositories (ADDRESSES)."""
    if not mark.record.step(EXPIRED).facts.get("served_inside", 0):
        return ADDRESSES.empty_table()
    served = pa.concat_tables([earlier_rows(run, mark, EXPIRED, part, SERVED) for part in PROBED_PARTS])
    return served_by_others(served, mark.record.repository)


def served_by_others(served: pa.Table, repository: str) -> pa.Table:
    """The addresses (ADDRESSES) that branches of repositories other than this one serve, according to these probe
    results (SERVED)."""
    is_elsewhere = pc.and_(pc.is_valid(served["address"]), pc.not_equal(served["repository"], repository))
    return served.filter(is_elsewhere).select(ADDRESSES.names).cast(ADDRESSES)


# --- records ----------------------------------------------------------------------------------------------------------


def earlier_rows(run: MarkRun, mark: Mark | None, asset: str, part: str, schema: pa.Schema) -> pa.Table:
    """The rows of this part of an older mark's asset; empty if there is no such mark or part."""
    if mark is None or part not in mark.record.step(asset).datasets:
        return schema.empty_table()
    removed = PARTS_WITH_ADDRESSES - parts_needed_later(mark.record)
    if mark.record.state is MarkState.RETIRED and (asset, part) in removed:
        return schema.empty_table()  # it had no rows, so the mark's retirement removed it
    return rows_of(run, mark.dataset(asset, part), schema)


def rows_of(run: MarkRun, dataset: Dataset, schema: pa.Schema) -> pa.Table:
    files = [read_file(run.place, dataset.folder, file, schema) for file in dataset.files]
    return pa.concat_tables([schema.empty_table(), *files])


def marks_with_same_spellings(run: MarkRun) -> list[Mark]:
    """The finished marks of this repository that have a readable record and searched for the same address spellings,
    newest first."""
    return newest_first(with_same_spellings(run, finished_marks(run.place).finished))


def with_same_spellings(run: MarkRun, marks: Iterable[Mark]) -> list[Mark]:
    created = run.mark.record.repository_created
    return [mark for mark in marks if mark.record.repository_created == created and same_spellings(run, mark.record)]


def newest_first(marks: Iterable[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: finished_at(mark.record), reverse=True)


def same_spellings(run: MarkRun, record: MarkRecord) -> bool:
    """Whether an older mark searched for the same address spellings."""
    return bool(record.step(COMMITTED).facts.get(FACTS, {}).get("spellings") == spellings(run))


def spellings(run: MarkRun) -> list[str]:
    return [run.place.namespace.uri, *run.place.namespace.aliases]
