"""What a mark decided about some addresses, and why: Arrow in, Arrow out.

The mark's own files say what is expired. What keeps the other objects is found with the mark's own rules, applied to
the rows of these addresses alone: `garbage.reference_status`, `keep_reasons` and `addresses`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import addresses_on_hold, committed_addresses, listed_objects, recheck, uncommitted_addresses
from lakegc_assets.mark.earlier_references import ADDRESS_PARTS
from lakegc_assets.mark.incremental_listing import FOLDERS
from lakegc_assets.mark.path_probes import PROBED_PARTS
from lakegc_assets.mark.restaged_content import PASSES, served_inside
from lakegc_assets.mark.writer import NOT_RETAINED_PART
from lakegc_assets.queries.history import History
from lakegc_assets.rules import garbage, keep_reasons
from lakegc_assets.rules.addresses import are_candidates, have_dot_segments, slices_of
from lakegc_assets.rules.garbage import COMMITTED, MAYBE_GONE, STORED, UNCOMMITTED
from lakegc_assets.rules.keep_reasons import BRANCH, HOLD, NEWLY_REFERENCED, OTHER_REPOSITORY, STAGED, Decide
from spark_resources.mark_store.mark import Mark
from spark_resources.model import (
    ADDRESSES,
    ADDRESSES_ON_HOLD,
    EXPIRED_OBJECTS,
    NOT_RETAINED,
    OBJECTS_ON_HOLD,
    RANGE_ADDRESSES,
    SERVED,
    STORED_OBJECTS,
    Scope,
)
from spark_resources.spark.datasets import Dataset, all_batches
from spark_resources.stores.prefetch import fetch_in_parallel

ROWS_PER_BATCH = 1_000_000
EXPIRED_SET = "expired_set"
YOUNG, DOT_SEGMENT, OUT_OF_SCOPE = "young", "dot_segment", "scope"
REASONS: Mapping[str, str] = {
    COMMITTED: keep_reasons.COMMITTED.sentence,
    STAGED.name: STAGED.sentence,
    YOUNG: "it is younger than the minimum age, or its age isn't known",
    OTHER_REPOSITORY.name: OTHER_REPOSITORY.sentence,
    BRANCH.name: "a branch serves it, or may serve it",
    NEWLY_REFERENCED.name: NEWLY_REFERENCED.sentence,
    HOLD.name: "it is on hold",
    DOT_SEGMENT: "a segment '.' or '..' in its key could make other tools delete another object",
    OUT_OF_SCOPE: "no expired commit refers to it, and the scope 'committed' collects nothing else",
}
"""The names in `kept_by`, each with its meaning for people."""


class Decision(StrEnum):
    """What a mark decided about an address."""

    KEPT = "kept"
    EXPIRED = "expired"
    NOT_STORED = "not stored"
    """The mark didn't find an object there."""
    NEVER_COLLECTED = "never collected"
    """The key isn't one that lakegc collects."""


_TIME = STORED_OBJECTS.field("modified").type
EXPLAINED = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("decision", pa.string(), nullable=False),  # see Decision
        pa.field("kept_by", pa.list_(pa.string()), nullable=False),  # all reasons that apply, by their names in REASONS
        pa.field("kept_until", _TIME),  # when age and retention rules no longer keep it; null: not known in advance
        pa.field("size", pa.int64()),  # bytes; null if it isn't stored
        pa.field("modified", _TIME),  # the store's clock
        pa.field("detail", pa.string()),  # which branch serves it, or which holds keep it
        *(EXPIRED_OBJECTS.field(name).with_nullable(True) for name in ("reason", "commit_id", "branch", "days")),
        pa.field("expired_since", _TIME),  # when the last commit that had it expired; the server's clock
        EXPIRED_OBJECTS.field("path"),  # its path in that commit
    ]
)


def explain_addresses(history: History, addresses: pa.Array) -> pa.Table:
    """What the mark decided about each of these addresses (EXPLAINED, in the order of the distinct addresses).

    Addresses are keys relative to the namespace. They have to fit into memory; the mark's files are streamed.
    """
    wanted = pc.unique(addresses.cast(pa.string()))
    recorded = RecordedRows.of(history, wanted)
    expired = in_order_of(wanted, recorded.expired)
    attributed = in_order_of(
        wanted, pa.concat_tables([recorded.expired.select(NOT_RETAINED.names), recorded.not_retained])
    )
    stored = in_order_of(wanted, recorded.stored)
    is_stored, is_expired = pc.is_valid(stored["size"]), pc.is_valid(expired["size"])
    decision = pc.if_else(is_expired, Decision.EXPIRED.value, Decision.KEPT.value)
    decision = pc.if_else(is_stored, decision, Decision.NOT_STORED.value)
    is_candidate = are_candidates(wanted, local_adapter=history.run.local_adapter)
    decision = pc.if_else(is_candidate, decision, Decision.NEVER_COLLECTED.value)
    kept_by, details = reasons_to_keep(history, recorded, wanted)
    columns = {
        "address": wanted,
        "decision": decision,
        "kept_by": lists_of_names(kept_by),
        "kept_until": kept_until(history, recorded, wanted, kept_by),
        "size": stored["size"],
        "modified": stored["modified"],
        "detail": details,
        "reason": expired["reason"],
        "expired_since": attributed["until"],
        **{name: attributed[name] for name in ("commit_id", "branch", "days", "path")},
    }
    return pa.table([columns[name] for name in EXPLAINED.names], schema=EXPLAINED)


def in_order_of(addresses: pa.Array, rows: pa.Table) -> pa.Table:
    """For each address, its first row, or nulls if it has none."""
    return rows.take(pc.index_in(addresses, value_set=rows["address"]))


# --- the rows of these addresses ------------------------------------------------------------------------------------


def rows_of(mark: Mark, asset: str, part: str, schema: pa.Schema, wanted: pa.Array) -> pa.Table:
    """The rows with these addresses in a dataset of a mark; none if the mark has no such part."""
    if part not in mark.record.step(asset).datasets:
        return schema.empty_table()
    return rows_in(mark, [mark.dataset(asset, part)], schema, wanted)


def rows_in(mark: Mark, datasets: Iterable[Dataset], schema: pa.Schema, wanted: pa.Array) -> pa.Table:
    matching = (
        table.filter(pc.is_in(table["address"], value_set=wanted))
        for dataset in datasets
        for table in all_batches(mark.place, dataset, schema, rows=ROWS_PER_BATCH)
    )
    return pa.concat_tables([schema.empty_table(), *matching])


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """The rows with some addresses in a mark's files, by what they say about these addresses."""

    stored: pa.Table  # STORED_OBJECTS
    expired: pa.Table  # EXPIRED_OBJECTS
    not_retained: pa.Table  # NOT_RETAINED
    in_ranges: pa.Table  # RANGE_ADDRESSES, of ranges that counted as committed
    maybe_gone: pa.Table  # RANGE_ADDRESSES, committed only if stored
    staged: pa.Table  # ADDRESSES, like the next two
    elsewhere: pa.Table
    at_the_end: pa.Table
    served: pa.Table  # SERVED
    objects_on_hold: pa.Table  # OBJECTS_ON_HOLD
    on_hold: pa.Table  # ADDRESSES_ON_HOLD

    @classmethod
    def of(cls, history: History, wanted: pa.Array) -> RecordedRows:
        """Read the rows with these addresses. Each table is in separate files, so all are read in parallel."""

        def rows(schema: pa.Schema, *parts: tuple[str, str]) -> pa.Table:
            return concat(schema, (rows_of(history.mark, *part, schema, wanted) for part in parts))

        committed, hold = committed_addresses.ASSET, addresses_on_hold
        parts_at_the_end = (recheck.STAGED_PART, recheck.DIFFS_PART, recheck.NEW_ADDRESSES_PART)
        readers: dict[str, Callable[[], pa.Table]] = {
            "stored": lambda: stored_rows(history, wanted),
            "expired": lambda: rows(EXPIRED_OBJECTS, (EXPIRED_SET, "")),
            "not_retained": lambda: rows(NOT_RETAINED, (EXPIRED_SET, NOT_RETAINED_PART)),
            "in_ranges": lambda: live_range_addresses(history, wanted),
            "maybe_gone": lambda: rows(RANGE_ADDRESSES, (committed, committed_addresses.MAYBE_GONE_PART)),
            "staged": lambda: rows_in(history.mark, uncommitted_addresses.datasets(history.run), ADDRESSES, wanted),
            "elsewhere": lambda: rows(ADDRESSES, *ADDRESS_PARTS),
            "at_the_end": lambda: rows(ADDRESSES, *((EXPIRED_SET, part) for part in parts_at_the_end)),
            "served": lambda: rows(SERVED, *((EXPIRED_SET, part) for part in PROBED_PARTS)),
            "objects_on_hold": lambda: rows(OBJECTS_ON_HOLD, (EXPIRED_SET, hold.OBJECTS_PART)),
            "on_hold": lambda: rows(ADDRESSES_ON_HOLD, (hold.ASSET, hold.ADDRESSES_PART)),
        }
        tables = fetch_in_parallel(readers.values(), lambda read: read())
        return cls(**dict(zip(readers, tables, strict=True)))


def concat(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *tables])


def stored_rows(history: History, wanted: pa.Array) -> pa.Table:
    """The rows of the objects that were in the store when the mark was made (STORED_OBJECTS). An incremental mark
    doesn't list every object: for the others, the newest mark of its chain that listed them decides."""
    found, undecided = [STORED_OBJECTS.empty_table()], wanted
    for mark in history.marks:
        rows = rows_in(mark, listed_objects.datasets(history.reading(mark)), STORED_OBJECTS, undecided)
        found.append(rows)
        if not mark.record.is_incremental:
            break
        looked_up = rows_of(mark, listed_objects.ASSET, listed_objects.COMPARED_PART, ADDRESSES, undecided)
        folders = concat(FOLDERS, all_batches(mark.place, mark.dataset(listed_objects.ASSET, "folders"), FOLDERS))
        decided = pc.or_(
            pc.is_in(
                undecided,
                value_set=pa.concat_arrays([rows["address"].combine_chunks(), looked_up["address"].combine_chunks()]),
            ),
            pc.is_in(slices_of(undecided), value_set=folders["slice"]),
        )
        undecided = undecided.filter(pc.invert(decided))
    return garbage.youngest_listing(pa.concat_tables(found))


def live_range_addresses(history: History, wanted: pa.Array) -> pa.Table:
    """These addresses in each range that counted as committed in the mark (RANGE_ADDRESSES)."""
    range_numbers = pa.array(sorted(history.live_ranges), pa.int64())
    rows = rows_in(history.mark, history.address_datasets, RANGE_ADDRESSES, wanted)
    live = rows.filter(pc.is_in(rows["range"], value_set=range_numbers))
    return live.group_by(RANGE_ADDRESSES.names, use_threads=False).aggregate([]).cast(RANGE_ADDRESSES)


# --- what keeps them ------------------------------------------------------------------------------------------------


def reasons_to_keep(history: History, recorded: RecordedRows, wanted: pa.Array) -> tuple[dict[str, pa.Array], pa.Array]:
    """For each reason in REASONS, which of the objects at these addresses it keeps; and, for each object, details about
    one of its reasons (text)."""
    record, time_resolution = history.record, history.run.store.capabilities.time_resolution
    nothing = {name: ADDRESSES.empty_table() for name in (COMMITTED, MAYBE_GONE, UNCOMMITTED)}
    references = {COMMITTED: recorded.in_ranges, MAYBE_GONE: recorded.maybe_gone, UNCOMMITTED: recorded.staged}
    alone, _ = garbage.reference_status({STORED: recorded.stored, **nothing}, record.cutoff, time_resolution)
    referenced, _ = garbage.reference_status({STORED: recorded.stored, **references}, record.cutoff, time_resolution)
    unreferenced = garbage.unreferenced(referenced)
    is_young = pc.equal(alone["status"], garbage.Status.YOUNG_OR_UNCOMMITTED.value)
    kept_by: dict[str, pa.Array] = {
        COMMITTED: pa.concat_arrays(
            [table["address"].combine_chunks() for table in (recorded.in_ranges, recorded.maybe_gone)]
        ),
        STAGED.name: recorded.staged["address"],
        YOUNG: alone["address"].filter(is_young),
        DOT_SEGMENT: recorded.stored["address"].filter(have_dot_segments(recorded.stored["address"])),
    }
    details = pa.nulls(len(wanted), pa.string())
    for reason, (objects, decide, rows) in looked_up_reasons(history, recorded, unreferenced).items():
        found = decide(objects, rows)
        kept = objects["address"].filter(pc.is_valid(found))
        kept_by[reason] = kept
        text = found.drop_null().take(pc.index_in(wanted, value_set=kept))
        details = pc.coalesce(details, pc.if_else(pc.equal(text, ""), None, text))
    if record.scope is Scope.COMMITTED:
        others = [
            recorded.expired["address"],
            *(pa.chunked_array([column]) if isinstance(column, pa.Array) else column for column in kept_by.values()),
        ]
        kept_by[OUT_OF_SCOPE] = without(unreferenced["address"], others)
    return {name: pc.is_in(wanted, value_set=kept_by[name]) for name in REASONS if name in kept_by}, details


def without(addresses: pa.ChunkedArray, others: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    for column in others:
        addresses = addresses.filter(pc.invert(pc.is_in(addresses, value_set=column)))
    return addresses


def looked_up_reasons(
    history: History, recorded: RecordedRows, unreferenced: pa.Table
) -> dict[str, tuple[pa.Table, Decide, dict[str, pa.Table]]]:
    """For each reason that a mark looks up: the objects that it may keep, how it decides, and its rows."""
    probed = concat(
        SERVED,
        (rows for part in (part for parts in PASSES for part in parts) for rows in unclear_probes(history, part)),
    )
    inconclusive = keep_reasons.inconclusive_sizes(probed)
    hold_rows = pa.concat_tables([recorded.on_hold, recorded.objects_on_hold.select(ADDRESSES_ON_HOLD.names)])
    return {
        OTHER_REPOSITORY.name: (
            recorded.stored, keep_reasons.at_addresses(OTHER_REPOSITORY.name),
            {OTHER_REPOSITORY.name: recorded.elsewhere},
        ),
        BRANCH.name: (
            unreferenced, keep_reasons.served(BRANCH.name, inconclusive), {BRANCH.name: served_inside(recorded.served)}
        ),
        NEWLY_REFERENCED.name: (
            unreferenced, keep_reasons.at_addresses(NEWLY_REFERENCED.name),
            {NEWLY_REFERENCED.name: recorded.at_the_end},
        ),
        HOLD.name: (recorded.stored, keep_reasons.on_hold(HOLD.name, ()), {HOLD.name: hold_rows}),
    }  # fmt: skip


def unclear_probes(history: History, part: str) -> Iterable[pa.Table]:
    """The path probes without a clear result in this part of the expired set (SERVED)."""
    mark = history.mark
    if not mark.record.step(EXPIRED_SET).facts.get("unclear") or part not in mark.record.step(EXPIRED_SET).datasets:
        return
    for table in all_batches(mark.place, mark.dataset(EXPIRED_SET, part), SERVED, rows=ROWS_PER_BATCH):
        yield table.filter(pc.is_valid(table["unclear"]))


def lists_of_names(kept_by: Mapping[str, pa.Array]) -> pa.Array:
    """For each row, the names of the columns (bool) that are true in it."""
    names, flags = pa.array(list(kept_by)), np.column_stack([np.asarray(flag) for flag in kept_by.values()])
    offsets = np.concatenate([[0], np.cumsum(flags.sum(axis=1))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names.take(pa.array(np.nonzero(flags)[1])))


# --- until when -----------------------------------------------------------------------------------------------------

_RANGE_UNTIL = pa.schema(
    [RANGE_ADDRESSES.field("range"), pa.field("open", pa.bool_(), nullable=False), pa.field("until", _TIME)]
)


def kept_until(history: History, recorded: RecordedRows, wanted: pa.Array, kept_by: Mapping[str, pa.Array]) -> pa.Array:
    """When age and the retention rules no longer keep each object, by the rules and branches at the time of the mark.

    Null if that can't be said: it depends on a branch's head, a hold, staged changes, or anything but age and rules;
    the object's age isn't known; or the object isn't kept.
    """
    ranges = range_ends(history, recorded.in_ranges["range"])
    rows = recorded.in_ranges.join(ranges, "range", join_type="left outer", use_threads=False)
    is_open = pc.fill_null(rows["open"], True)
    by_address = (
        pa.table([rows["address"], is_open, rows["until"]], ["address", "open", "until"])
        .group_by("address", use_threads=False)
        .aggregate([("open", "max"), ("until", "max")])
    )
    retention = in_order_of(wanted, by_address)
    record, time_resolution = history.record, history.run.store.capabilities.time_resolution
    modified = in_order_of(wanted, recorded.stored)["modified"]
    old_enough = old_enough_at(modified, record.min_age + time_resolution)
    age_is_unknown = pc.and_(kept_by[YOUNG], pc.is_null(old_enough))
    old_enough = pc.if_else(kept_by[YOUNG], old_enough, pa.scalar(None, _TIME))
    until = later_of(old_enough, retention["until_max"])
    others = [age_is_unknown, *(flag for name, flag in kept_by.items() if name not in (COMMITTED, YOUNG))]
    known = pc.invert(reduce(pc.or_, others, pc.fill_null(retention["open_max"], False)))
    return pc.if_else(known, until, pa.scalar(None, _TIME))


def old_enough_at(modified: pa.ChunkedArray, min_age: timedelta) -> pa.ChunkedArray:
    """When objects with these modification times are old enough; null if the time is unknown or the result is later
    than any date."""
    latest = pa.scalar(datetime.max.replace(tzinfo=UTC) - min_age, _TIME)
    is_known = pc.and_(pc.invert(garbage.is_without_time(modified)), pc.less_equal(modified, latest))
    return pc.if_else(is_known, pc.add(modified, pa.scalar(min_age, pa.duration("us"))), pa.scalar(None, _TIME))


def later_of(times: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    """The later of two times in each row; the other one if one is null."""
    return pc.coalesce(pc.if_else(pc.greater(times, others), times, others), times, others)


def range_ends(history: History, range_numbers: pa.ChunkedArray) -> pa.Table:
    """For each of these live ranges, when the last commit that has it expires (_RANGE_UNTIL). A range is `open` if that
    isn't known, as for branch heads and without rules."""
    wanted = {number: str(history.live_ranges[number]["range_id"]) for number in pc.unique(range_numbers).to_pylist()}
    verdicts = history.verdicts
    retained = verdicts.filter(pc.and_(verdicts["retained"], pc.is_null(verdicts["hold"])))
    metaranges = set(retained["metarange_id"].to_pylist()) - {""}
    pairs = history.recorded_ranges.pairs_with(metaranges & history.recorded_ranges.metaranges, wanted.values())
    rows = pairs.join(ends_by_metarange(retained), "metarange_id", join_type="inner", use_threads=False)
    by_range = rows.group_by("range_id", use_threads=False).aggregate([("open", "max"), ("until", "max")])
    ids = pa.array(list(wanted.values()), pa.string())
    position = pc.index_in(ids, value_set=by_range["range_id"])
    columns = [
        pa.array(list(wanted), pa.int64()),
        pc.fill_null(by_range["open_max"].take(position), True),
        by_range["until_max"].take(position),
    ]
    return pa.table(columns, schema=_RANGE_UNTIL)


def ends_by_metarange(retained: pa.Table) -> pa.Table:
    """For each metarange of retained commits, whether one of them has no known end, and the last known one."""
    rows = pa.table(
        [retained["metarange_id"], pc.is_null(retained["until"]), retained["until"]], ["metarange_id", "open", "until"]
    )
    grouped = rows.group_by("metarange_id", use_threads=False).aggregate([("open", "max"), ("until", "max")])
    return grouped.rename_columns(["metarange_id", "open", "until"])
