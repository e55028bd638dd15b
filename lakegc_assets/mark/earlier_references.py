"""What earlier marks and re-verifications recorded about other repositories: tables that hold nothing of this
namespace, and the addresses inside it that these repositories referred to.

The tables needn't be read again. The addresses stay live while a repository can't be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.path_probes import PROBED_PARTS
from lakegc_assets.rules.brakes import unread_in
from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.mark import Mark, earlier_marks, earlier_reverifications, unreadable_roots
from spark_resources.mark_store.record import MarkRecord, finished_at
from spark_resources.model import ADDRESSES, SERVED
from spark_resources.spark.datasets import LIST_NAME, Dataset, open_dataset, read_file

STAGED, COMMITTED, EXPIRED = "uncommitted_addresses", "committed_addresses", "expired_set"
STAGED_PARTS = ("first_elsewhere", "second_elsewhere")  # a rename during one scan hides an address from it
AT_THE_END_PART, CARRIED_AT_THE_END_PART = "elsewhere_at_the_end", "carried_at_the_end"
COMMITTED_PART, CARRIED_PART = "elsewhere", "carried_elsewhere"  # carried over from earlier marks
CLEAN_PART, KNOWN_PART = "clean_elsewhere", "known_elsewhere"  # tables without an address of this namespace
COMMITTED_AT_THE_END_PART, CLEAN_AT_THE_END_PART = "committed_elsewhere_since", "clean_elsewhere_since"
FACTS = "elsewhere"

TABLES = pa.schema([pa.field("table_id", pa.string(), nullable=False)])


def is_trusted(run: MarkRun, repository: str) -> bool:
    """Whether the settings trust a repository not to refer to this namespace."""
    return any(fnmatchcase(repository, pattern) for pattern in run.limits.trusted)


# --- tables ---------------------------------------------------------------------------------------------------------


def trusted_tables(run: MarkRun, before: Mark | None) -> pa.ChunkedArray:
    """The tables that needn't be read: those in which earlier marks found nothing, if these are signed.

    If they aren't, an incremental mark trusts them all the same, a full mark reads everything, and a re-verification
    skips what the approved mark read itself.
    """
    if run.place.seal is None and run.trusted_ranges is not None:
        return read_by_approved(run)
    trusted = run.place.seal is not None or run.mark.record.incremental
    return clean_tables(run, before if trusted else None, (CLEAN_PART, KNOWN_PART))


def read_by_approved(run: MarkRun) -> pa.ChunkedArray:
    """The tables that the approved mark read itself and in which it found nothing.

    Tables that it took from the files of earlier marks are read again: anyone who can write to the namespace could
    alter those.
    """
    try:
        approved = Mark.open(run.place, run.mark.record.mark_id)
    except NotFound:
        return clean_tables(run, None, ())  # a foreign mark records none
    return clean_tables(run, approved if same_spellings(run, approved.record) else None, (CLEAN_PART,))


def clean_tables(run: MarkRun, mark: Mark | None, parts: Sequence[str]) -> pa.ChunkedArray:
    """The tables in which a mark found nothing of this namespace; none if unknown.

    Reading them again is always safe, so errors of the older mark are ignored.
    """
    try:
        found = [rows_before(run, mark, COMMITTED, part, TABLES) for part in parts]
    except (DamagedData, NotFound):
        found = []
    return pa.concat_tables([TABLES.empty_table(), *found])["table_id"]


# --- addresses ------------------------------------------------------------------------------------------------------


def addresses_before(run: MarkRun, before: Sequence[Mark], unread: Collection[str]) -> pa.Table:
    """All addresses that other repositories refer to by earlier marks and re-verifications, unless later marks
    read each of the unread repositories. Raises `DamagedData`.

    Those that path probes found count in all of them, because they probe only for objects that nothing else keeps. A
    re-verification probes only for candidates, so what it doesn't find may be referred to all the same. A mark whose
    record can't be read may have found something, too: all that is in its folder counts.
    """
    found = [ADDRESSES.empty_table()]
    readers = [[mark for mark in before if has_read(run, mark.record, repository)] for repository in unread]
    for mark in (*before, *of_these_spellings(run, earlier_reverifications(run.place))):
        found.append(probed_elsewhere(run, mark))
        if not all(any(is_later(reader.record, mark.record) for reader in each) for each in readers):
            found += (rows_before(run, mark, asset, part, ADDRESSES) for asset, part in ADDRESS_PARTS)
    found += (rows for root in unreadable_roots(run.place) for rows in addresses_below(run, root))
    return pa.concat_tables(found).group_by("address").aggregate([]).cast(ADDRESSES)


def addresses_below(run: MarkRun, root: str) -> Iterator[pa.Table]:
    """The addresses of other repositories in the finished datasets below the folder of a mark (ADDRESSES), read without
    its record. Raises `DamagedData`."""
    for asset, part in ADDRESS_PARTS:
        yield rows_below(run, f"{root}{asset}/{part}/", ADDRESSES)
    for part in PROBED_PARTS:
        yield elsewhere(rows_below(run, f"{root}{EXPIRED}/{part}/", SERVED), run.partition.repository)


def rows_below(run: MarkRun, folder: str, schema: pa.Schema) -> pa.Table:
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


def has_read(run: MarkRun, record: MarkRecord, repository: str) -> bool:
    """Whether a mark read all of a repository; for `*`, of every repository but those trusted now, too."""
    facts, unread = record.step(COMMITTED).facts[FACTS], unread_in(record)
    if repository == "*":
        return not unread and all(is_trusted(run, name) for name in facts["trusted"])
    return repository in facts["repositories"] and repository not in unread and "*" not in unread


def is_later(record: MarkRecord, than: MarkRecord) -> bool:
    """Whether a mark is the later one by both the store's and the server's clock: either may have been set back."""
    return finished_at(record) > finished_at(than) and record.server_now >= than.server_now


def probed_elsewhere(run: MarkRun, mark: Mark) -> pa.Table:
    """The addresses that a mark's path probes found on branches of other repositories (ADDRESSES)."""
    if not mark.record.step(EXPIRED).facts.get("served_inside", 0):
        return ADDRESSES.empty_table()
    served = pa.concat_tables([rows_before(run, mark, EXPIRED, part, SERVED) for part in PROBED_PARTS])
    return elsewhere(served, mark.record.repository)


def elsewhere(served: pa.Table, repository: str) -> pa.Table:
    """The addresses (ADDRESSES) that branches of other repositories than this one serve by these results (SERVED)."""
    is_elsewhere = pc.and_(pc.is_valid(served["address"]), pc.not_equal(served["repository"], repository))
    return served.filter(is_elsewhere).select(ADDRESSES.names).cast(ADDRESSES)


# --- records ----------------------------------------------------------------------------------------------------------


def rows_before(run: MarkRun, before: Mark | None, asset: str, part: str, schema: pa.Schema) -> pa.Table:
    """A part of an older mark's dataset; empty if it has none."""
    if before is None or part not in before.record.step(asset).datasets:
        return schema.empty_table()
    return rows_of(run, before.dataset(asset, part), schema)


def rows_of(run: MarkRun, dataset: Dataset, schema: pa.Schema) -> pa.Table:
    files = [read_file(run.place, dataset.folder, file, schema) for file in dataset.files]
    return pa.concat_tables([schema.empty_table(), *files])


def marks_of_these_spellings(run: MarkRun) -> list[Mark]:
    """The finished marks of the same repository that searched for the same address spellings and have a readable
    record, newest first."""
    return newest_first(of_these_spellings(run, earlier_marks(run.place).finished))


def of_these_spellings(run: MarkRun, marks: Iterable[Mark]) -> list[Mark]:
    created = run.mark.record.repository_created
    return [mark for mark in marks if mark.record.repository_created == created and same_spellings(run, mark.record)]


def newest_first(marks: Iterable[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: finished_at(mark.record), reverse=True)


def same_spellings(run: MarkRun, record: MarkRecord) -> bool:
    """Whether an older mark searched for the same address spellings."""
    return bool(record.step(COMMITTED).facts.get(FACTS, {}).get("spellings") == spellings(run))


def spellings(run: MarkRun) -> list[str]:
    return [run.place.namespace.uri, *run.place.namespace.aliases]
