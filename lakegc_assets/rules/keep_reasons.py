"""The reasons to keep an unreferenced object, each with its name and decision, in order.

Marks and the re-verification of a sweep run the same list, `KEEP_REASONS`. Each reason decides from evidence that was
looked up before (`mark/keep_lookups.py`). Pure: Arrow tables in, columns out; nothing here reads, writes or starts a
job. When in doubt, objects are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.garbage import first_of_each
from spark_resources.model import HOLD_SEPARATOR, SERVED

Column: TypeAlias = pa.Array | pa.ChunkedArray
Decide: TypeAlias = Callable[[pa.Table, Mapping[str, pa.Table]], Column]
"""Maps objects (columns address and size) and the rows of each input, by its name, to the column `found` (text): the
detail of a reason for each object that it keeps, null for the others."""


@dataclass(frozen=True, slots=True)
class KeepReason:
    """One reason. `sentence` is the text to display; `{}` is replaced by `found`."""

    name: str
    sentence: str


# --- references: read again by a re-verification, already subtracted by a mark --------------------------------------

STAGED = KeepReason("staged", "it is staged on a branch")
COMMITTED = KeepReason("committed", "a retained commit or a branch refers to it")

# --- reasons to keep objects that no list references ----------------------------------------------------------------

OTHER_REPOSITORY = KeepReason("other_repository", "another repository refers to it")
BRANCH = KeepReason("branch", "{}")
NEWLY_REFERENCED = KeepReason("meanwhile", "it was staged or committed while references were being read")
HOLD = KeepReason("hold", "it is on hold: {}")

KEEP_REASONS = (OTHER_REPOSITORY, BRANCH, NEWLY_REFERENCED, HOLD)
"""The reasons in the order in which they are looked up and decided. The first one that keeps an object is reported."""


# --- the decision ---------------------------------------------------------------------------------------------------

_KEPT_BY, _FOUND = "kept_by", "found"


def decided(
    objects: pa.Table, decisions: Sequence[tuple[KeepReason, Decide]], rows: Mapping[str, pa.Table]
) -> pa.Table:
    """The objects (columns address, size and more) with columns `kept_by`, the name of the first reason that keeps each
    of them, and `found`; both are null if none does.

    `rows` has all rows of these addresses in each input.
    """
    kept_by, details = (pa.chunked_array([pa.nulls(len(objects), pa.string())]) for _ in range(2))
    for reason, decide in decisions:
        detail = decide(objects, rows)
        is_new = pc.and_(pc.is_null(kept_by), pc.is_valid(detail))
        kept_by = pc.if_else(is_new, reason.name, kept_by)
        details = pc.if_else(is_new, detail, details)
    return objects.append_column(_KEPT_BY, kept_by).append_column(_FOUND, details)


def not_kept(decided_objects: pa.Table) -> pa.Table:
    """The objects that no reason keeps, with their original columns."""
    return decided_objects.filter(pc.is_null(decided_objects[_KEPT_BY])).drop_columns([_KEPT_BY, _FOUND])


def kept(decided_objects: pa.Table, reason: KeepReason | None = None) -> pa.Table:
    """The objects kept for this reason, or for any reason if None."""
    by = decided_objects[_KEPT_BY]
    return decided_objects.filter(pc.is_valid(by) if reason is None else pc.equal(by, reason.name))


def kept_counts(decided_objects: pa.Table) -> dict[str, int]:
    """How many objects each reason keeps, by the reason's name."""
    counted = pc.value_counts(decided_objects[_KEPT_BY].drop_null())
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def sentences(decided_objects: pa.Table) -> Column:
    """Why each decided object is kept, as a sentence; null if it isn't kept."""
    by, details = decided_objects[_KEPT_BY], decided_objects[_FOUND]
    text = pa.chunked_array([pa.nulls(len(decided_objects), pa.string())])
    for reason in (STAGED, COMMITTED, *KEEP_REASONS):
        start, gap, end = reason.sentence.partition("{}")
        sentence = pc.binary_join_element_wise(start, details, end, "") if gap else start
        text = pc.if_else(pc.equal(by, reason.name), sentence, text)
    return text


# --- how each reason decides ----------------------------------------------------------------------------------------

INCONCLUSIVE_SIZES = pa.schema([SERVED.field("size"), SERVED.field("unclear")])
"""Sizes for which a path probe has no clear result, each once, with the reason."""


def at_addresses(name: str) -> Decide:
    """A decision that keeps the objects at the addresses in this input (column address, possibly with duplicates)."""

    def decide(objects: pa.Table, rows: Mapping[str, pa.Table]) -> Column:
        is_among = pc.is_in(objects["address"], value_set=rows[name]["address"])
        return pc.if_else(is_among, "", pa.scalar(None, pa.string()))

    return decide


def served(name: str, inconclusive: pa.Table) -> Decide:
    """A decision that keeps the objects that a branch serves (rows of SERVED in this input), and those that a branch
    may serve because a path probe for their size was inconclusive (`inconclusive`, INCONCLUSIVE_SIZES)."""

    def decide(objects: pa.Table, rows: Mapping[str, pa.Table]) -> Column:
        in_order = rows[name].sort_by([(column, "ascending") for column in ("address", "repository", "branch")])
        first = first_of_each(in_order, "address")
        serving = first.take(pc.index_in(objects["address"], value_set=first["address"]))
        unclear = inconclusive["unclear"].take(pc.index_in(objects["size"], value_set=inconclusive["size"]))
        serves = pc.binary_join_element_wise(
            "branch ", serving["branch"], " of repository ", serving["repository"], " serves it", ""
        )
        may_serve = pc.binary_join_element_wise(
            "a branch may serve it, since a path probe was inconclusive: ", unclear, ""
        )
        return pc.coalesce(serves, may_serve)

    return decide


def inconclusive_sizes(probed: pa.Table) -> pa.Table:
    """The sizes for which one of these probes (columns size and unclear) has no clear result (INCONCLUSIVE_SIZES)."""
    unclear = probed.filter(pc.is_valid(probed["unclear"])).select(INCONCLUSIVE_SIZES.names)
    by_size = unclear.group_by("size", use_threads=False).aggregate([("unclear", "min")])
    return by_size.select(["size", "unclear_min"]).rename_columns(INCONCLUSIVE_SIZES.names).cast(INCONCLUSIVE_SIZES)


def on_hold(name: str, prefixes: Sequence[tuple[str, str]]) -> Decide:
    """A decision that keeps objects on hold; `found` has the ids of all holds that keep an object, in order.

    The rows of this input are ADDRESSES_ON_HOLD, possibly with duplicates; `prefixes` are pairs of hold id and
    physical prefix.
    """

    def decide(objects: pa.Table, rows: Mapping[str, pa.Table]) -> Column:
        addresses = objects["address"]
        pairs = rows[name].group_by(["address", "hold"], use_threads=False).aggregate([])
        by_address = pairs.group_by("address", use_threads=False).aggregate([("hold", "list")])
        named = pc.binary_join(by_address["hold_list"], HOLD_SEPARATOR)
        ids = [pc.fill_null(named.take(pc.index_in(addresses, value_set=by_address["address"])), "")]
        ids += [pc.if_else(pc.starts_with(addresses, prefix), hold_id, "") for hold_id, prefix in prefixes]
        joined = pc.binary_join_element_wise(*ids, HOLD_SEPARATOR)
        distinct = pc.unique(joined)
        in_order = [
            HOLD_SEPARATOR.join(sorted(set(holds.split(HOLD_SEPARATOR)) - {""})) for holds in distinct.to_pylist()
        ]
        hold_ids = pa.array([holds or None for holds in in_order], pa.string())
        return hold_ids.take(pc.index_in(joined, value_set=distinct))

    return decide
