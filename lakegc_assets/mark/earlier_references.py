"""What earlier marks recorded about other repositories: tables that hold nothing of this namespace, and the addresses
inside it that these repositories referred to.

The tables needn't be read again. The addresses stay live while a repository can't be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.path_probes import PROBED_PARTS
from lakegc_assets.rules.brakes import unread_in
from spark_resources.errors import DamagedData, NotThere
from spark_resources.mark_store.mark import Mark, earlier_marks
from spark_resources.mark_store.record import MarkRecord, finished_at
from spark_resources.model import ADDRESSES, SERVED
from spark_resources.spark.datasets import read_file

STAGED, COMMITTED, EXPIRED = "uncommitted_addresses", "committed_addresses", "expired_set"
STAGED_PARTS = ("first_elsewhere", "second_elsewhere")  # a rename during one scan hides an address from it
AT_THE_END_PART, CARRIED_AT_THE_END_PART = "elsewhere_at_the_end", "carried_at_the_end"
COMMITTED_PART, CARRIED_PART = "elsewhere", "carried_elsewhere"  # carried over from earlier marks
CLEAN_PART, KNOWN_PART = "clean_elsewhere", "known_elsewhere"  # tables without an address of this namespace
FACTS = "elsewhere"

TABLES = pa.schema([pa.field("table_id", pa.string(), nullable=False)])


def is_trusted(run: MarkRun, repository: str) -> bool:
    """Whether the settings trust a repository not to refer to this namespace."""
    return any(fnmatchcase(repository, pattern) for pattern in run.limits.trusted)


# --- tables ---------------------------------------------------------------------------------------------------------


def trusted_tables(run: MarkRun, before: MarkRecord | None) -> pa.ChunkedArray:
    """The tables that needn't be read: those in which earlier marks found nothing, if these are signed.

    If they aren't, an incremental mark trusts them all the same, a full mark reads everything, and a re-verification
    skips what the approved mark read itself.
    """
    if run.place.seal is None and run.proven is not None:
        return read_by_approved(run)
    trusted = run.place.seal is not None or run.mark.record.incremental
    return clean_tables(run, before if trusted else None, (CLEAN_PART, KNOWN_PART))


def read_by_approved(run: MarkRun) -> pa.ChunkedArray:
    """The tables that the approved mark read itself and in which it found nothing.

    Tables that it took from the files of earlier marks are read again: anyone who can write to the namespace could
    alter those.
    """
    try:
        approved = Mark.open(run.place, run.mark.record.mark_id).record
    except NotThere:
        return clean_tables(run, None, ())  # a foreign mark records none
    return clean_tables(run, approved if same_spellings(run, approved) else None, (CLEAN_PART,))


def clean_tables(run: MarkRun, record: MarkRecord | None, parts: Sequence[str]) -> pa.ChunkedArray:
    """The tables in which a mark found nothing of this namespace; none if unknown.

    Reading them again is always safe, so errors of the older mark are ignored.
    """
    try:
        found = [rows_before(run, record, COMMITTED, part, TABLES) for part in parts]
    except (DamagedData, NotThere):
        found = []
    return pa.concat_tables([TABLES.empty_table(), *found])["table_id"]


# --- addresses ------------------------------------------------------------------------------------------------------


def addresses_before(run: MarkRun, before: Iterable[MarkRecord], unread: Collection[str]) -> pa.Table:
    """All addresses that other repositories refer to by earlier marks, newest first, back to one that read each of the
    unread repositories. Raises `DamagedData`.

    Those that path probes found count in every mark, because a mark probes only for objects that nothing else keeps.
    """
    waiting, found = set(unread), [ADDRESSES.empty_table()]
    for record in before:
        found.append(probed_elsewhere(run, record))
        if waiting:
            found += (rows_before(run, record, asset, part, ADDRESSES) for asset, part in ADDRESS_PARTS)
            waiting -= {repository for repository in waiting if has_read(run, record, repository)}
    return pa.concat_tables(found).group_by("address").aggregate([]).cast(ADDRESSES)


ADDRESS_PARTS = (
    *((STAGED, part) for part in STAGED_PARTS),
    *((COMMITTED, part) for part in (COMMITTED_PART, CARRIED_PART)),
    *((EXPIRED, part) for part in (AT_THE_END_PART, CARRIED_AT_THE_END_PART)),
)


def has_read(run: MarkRun, record: MarkRecord, repository: str) -> bool:
    """Whether a mark read all of a repository; for `*`, of every repository but those trusted now, too."""
    facts, unread = record.step(COMMITTED).facts[FACTS], unread_in(record)
    if repository == "*":
        return not unread and all(is_trusted(run, name) for name in facts["trusted"])
    return repository in facts["repositories"] and repository not in unread and "*" not in unread


def probed_elsewhere(run: MarkRun, record: MarkRecord) -> pa.Table:
    """The addresses that a mark's path probes found on branches of other repositories (ADDRESSES)."""
    if not record.step(EXPIRED).facts.get("served_inside", 0):
        return ADDRESSES.empty_table()
    served = pa.concat_tables([rows_before(run, record, EXPIRED, part, SERVED) for part in PROBED_PARTS])
    elsewhere = pc.and_(pc.is_valid(served["address"]), pc.not_equal(served["repository"], record.repository))
    return served.filter(elsewhere).select(ADDRESSES.names).cast(ADDRESSES)


# --- records ----------------------------------------------------------------------------------------------------------


def rows_before(run: MarkRun, before: MarkRecord | None, asset: str, part: str, schema: pa.Schema) -> pa.Table:
    """A part of an older mark's dataset; empty if it has none."""
    if before is None or part not in before.step(asset).datasets:
        return schema.empty_table()
    dataset = Mark.open(run.place, before.mark_id).dataset(asset, part)
    files = [read_file(run.place, dataset.folder, file, schema) for file in dataset.files]
    return pa.concat_tables([schema.empty_table(), *files])


def marks_of_these_spellings(run: MarkRun) -> list[MarkRecord]:
    """The finished marks of the same repository that searched for the same address spellings and have a readable
    record, newest first."""
    found = [
        record
        for record in earlier_marks(run.place).finished
        if record.repository_created == run.mark.record.repository_created and same_spellings(run, record)
    ]
    return sorted(found, key=finished_at, reverse=True)


def same_spellings(run: MarkRun, record: MarkRecord) -> bool:
    """Whether an older mark searched for the same address spellings."""
    return bool(record.step(COMMITTED).facts.get(FACTS, {}).get("spellings") == spellings(run))


def spellings(run: MarkRun) -> list[str]:
    return [run.place.namespace.uri, *run.place.namespace.also]
