"""What only one branch, one tag on hold or one commit keeps: the objects that would be garbage without it.

Commits and ranges come first, because they fit into one process: which commits would be lost without a branch, and
which ranges only lost commits have. Addresses, of which there are millions, come second: all rows of an address are
co-grouped, and it is pinned if every range that contains it is pinned by the same branch, tag or commit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import addresses_on_hold, recheck, uncommitted_addresses
from lakegc_assets.mark.addresses_on_hold import on_hold_producer
from lakegc_assets.mark.earlier_references import ADDRESS_PARTS
from lakegc_assets.queries.grouping import combined
from lakegc_assets.queries.history import History
from lakegc_assets.rules.addresses import have_dot_segments
from lakegc_assets.rules.garbage import STORED
from lakegc_assets.rules.holds import NamedCommit, PathHolds, References, prefixes_of
from lakegc_assets.rules.sole_keepers import kept_only_by_branch, kept_only_by_tag, main_children
from spark_resources.lakefs.ranges import address_batches, decoder_for, range_number, range_tasks
from spark_resources.mark_store.hold_file import BranchHold
from spark_resources.model import (
    ADDRESSES,
    ADDRESSES_ON_HOLD,
    COMMIT_VERDICTS,
    RANGE_ADDRESSES,
    RANGE_REFS,
    RANGES_ON_HOLD,
    STORED_OBJECTS,
)
from spark_resources.spark.arrow_shuffle import GroupedRows, Input, distinct_addresses
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Tasks, mapped

BRANCH, TAG, COMMIT = "branch", "tag", "commit"
KINDS = (BRANCH, TAG, COMMIT)
PINS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),  # branch, tag or commit
        pa.field("name", pa.string(), nullable=False),  # of the branch or tag, or the commit's id
        pa.field("objects", pa.int64(), nullable=False),  # that would be garbage without it
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("commits", pa.int64(), nullable=False),  # that only it retains
        pa.field("commit_id", pa.string(), nullable=False),  # the branch's head, or the tag's commit
        pa.field("created", COMMIT_VERDICTS.field("created").type),  # date of that commit, set by its client
        pa.field("message", pa.string()),
        pa.field("stale", pa.bool_(), nullable=False),  # a branch whose own rule would have expired its head
    ]
)


def pins_of(history: History) -> pa.Table:
    """What only one branch, one tag on hold or one commit of the mark keeps (PINS): stale branches first, then
    branches, tags and commits, each by bytes, largest first. Branches and tags that pin nothing are included, commits
    aren't.

    These are the objects that the next mark would find to be garbage without that branch, tag or commit, regardless of
    their age, if nothing else changed. Staged objects, those on hold by path or prefix, and those that other
    repositories refer to stay kept. Path probes aren't repeated: the next mark may find that another branch serves some
    of the objects.
    """
    history.refuse_unless_complete("'lakegc pins'")
    pins = Pins(history)
    amounts = {row["pin"]: row for row in amounts_by_pin(pins).to_pylist()}
    nothing = {"objects": 0, "bytes": 0}
    rows = [
        pins.row(number) | {name: amounts.get(number, nothing)[name] for name in nothing} for number in pins.numbers
    ]
    shown = [row for row in rows if row["objects"] or row["kind"] != COMMIT]
    shown.sort(key=lambda row: (not row["stale"], KINDS.index(row["kind"]), -row["bytes"], row["name"]))
    return pa.Table.from_pylist(shown, schema=PINS)


# --- commits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pin:
    """A branch, tag or commit, and the commits that would be lost without it."""

    kind: str
    name: str
    commit_id: str
    lost: frozenset[str]


@dataclass(frozen=True)
class Pins:
    """All pins of a mark, numbered, and the kept ranges, each with the pins without which it would be lost."""

    history: History

    @cached_property
    def all(self) -> tuple[Pin, ...]:
        commits = [Pin(COMMIT, commit_id, commit_id, frozenset({commit_id})) for commit_id in sorted(self.retained)]
        return (*self._branches(), *self._tags(), *commits)

    @property
    def numbers(self) -> range:
        return range(len(self.all))

    @cached_property
    def retained(self) -> frozenset[str]:
        """The commits that rules or holds retain."""
        verdicts = self.history.verdicts
        return frozenset(verdicts.filter(verdicts["retained"])["commit_id"].to_pylist())

    @cached_property
    def only_on_hold(self) -> frozenset[str]:
        """The commits that only holds retain."""
        verdicts = self.history.verdicts
        return frozenset(verdicts.filter(pc.is_valid(verdicts["hold"]))["commit_id"].to_pylist())

    def _branches(self) -> list[Pin]:
        named = self._named_by_branch()
        children = main_children(self.history.commits.values())
        has_branch_holds = any(isinstance(hold, BranchHold) for hold in self.history.holds)
        now, rules = self.history.record.server_now, self.history.record.rules

        def lost_without(branch: str) -> frozenset[str]:
            others = frozenset(pair for pair in self.history.heads if pair[0] != branch)
            if has_branch_holds:
                still_retained = {
                    verdict.commit_id for verdict in self.history.verdicts_with(heads=others) if verdict.retained
                }
                return self.retained - still_retained
            by_rules = kept_only_by_branch(
                named.get(branch, ()), self.history.commits, children, others, rules, now=now
            )
            return by_rules - self.history.on_hold

        heads = dict(sorted(self.history.heads))
        return [Pin(BRANCH, branch, head, lost_without(branch)) for branch, head in heads.items()]

    def _named_by_branch(self) -> dict[str, list[str]]:
        """The commits that the rules retain, by the branch that retains them longest."""
        verdicts = self.history.verdicts
        by_rules = verdicts.filter(pc.and_(verdicts["retained"], pc.is_null(verdicts["hold"])))
        groups = by_rules.group_by("branch", use_threads=False).aggregate([("commit_id", "list")]).to_pylist()
        return {group["branch"]: group["commit_id_list"] for group in groups if group["branch"] is not None}

    def _tags(self) -> list[Pin]:
        history, heads = self.history, dict(sorted(self.history.heads))
        lost: dict[NamedCommit, frozenset[str]] = kept_only_by_tag(
            self.only_on_hold, history.holds, history.commits, References((heads,), history.tags),
            history.record.rules, now=history.record.server_now,
        )  # fmt: skip
        return [Pin(TAG, tag, commit_id, commits) for (tag, commit_id), commits in sorted(lost.items())]

    def row(self, number: int) -> dict[str, Any]:
        """The columns of PINS that don't depend on objects."""
        pin = self.all[number]
        commit = self.history.commits.get(pin.commit_id)
        return {
            "kind": pin.kind,
            "name": pin.name,
            "commits": len(pin.lost),
            "commit_id": pin.commit_id,
            "created": None if commit is None else commit.created,
            "message": self._messages.get(pin.commit_id),
            "stale": self._is_stale(pin),
        }

    @cached_property
    def _messages(self) -> dict[str, str | None]:
        verdicts = self.history.verdicts
        return dict(zip(verdicts["commit_id"].to_pylist(), verdicts["message"].to_pylist(), strict=True))

    def _is_stale(self, pin: Pin) -> bool:
        """Whether a branch's own rule no longer retains its head, which is kept only because it is a head. Never true
        for the default branch, which can't be deleted."""
        rules, head = self.history.record.rules, self.history.commits.get(pin.commit_id)
        is_default = pin.name == self.history.run.target.repository.default_branch
        if pin.kind != BRANCH or rules is None or head is None or is_default:
            return False
        return head.created + timedelta(days=rules.days(pin.name)) < self.history.record.server_now

    # --- ranges -----------------------------------------------------------------------------------------------------

    @cached_property
    def kept_ranges(self) -> pa.Table:
        """The ranges of all retained commits (RANGE_REFS and RANGE_PINS)."""
        verdicts = self.history.verdicts
        kept = verdicts.filter(pc.and_(verdicts["retained"], pc.not_equal(verdicts["metarange_id"], "")))
        positions = {commit_id: position for position, commit_id in enumerate(kept["commit_id"].to_pylist())}
        by_kind = {kind: np.full(len(kept), NO_PIN, np.int64) for kind in KINDS}
        for number, pin in enumerate(self.all):
            for commit_id in pin.lost & positions.keys():
                by_kind[pin.kind][positions[commit_id]] = number
        pinned = pa.table([kept["metarange_id"], *map(pa.array, by_kind.values())], ["metarange_id", *KINDS])
        pinned = pinned_by_one(pinned, "metarange_id")
        rows = self.history.ranges_of(pinned["metarange_id"].to_pylist())
        refs = rows.select(RANGE_REFS.names).group_by(RANGE_REFS.names, use_threads=False).aggregate([])
        pairs = rows.select(["metarange_id", "range_id"])
        by_range = pinned_by_one(
            pairs.join(pinned, "metarange_id", use_threads=False).drop_columns("metarange_id"), "range_id"
        )
        return refs.join(by_range, "range_id", join_type="inner", use_threads=False)


NO_PIN = -1
RANGE_PINS = pa.schema(
    [RANGE_ADDRESSES.field("range"), *(pa.field(kind, pa.int64(), nullable=False) for kind in KINDS)]
)


def pinned_by_one(rows: pa.Table, key: str) -> pa.Table:
    """For each value of this column, the pin of each kind (columns KINDS) if all of its rows have the same one, NO_PIN
    otherwise."""
    aggregations = [(kind, how) for kind in KINDS for how in ("min", "max")]
    grouped = rows.group_by(key, use_threads=False).aggregate(aggregations)
    pins = [agreed(grouped[f"{kind}_min"], grouped[f"{kind}_max"]) for kind in KINDS]
    return pa.table([grouped[key], *pins], [key, *KINDS])


def agreed(smallest: pa.ChunkedArray, largest: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(smallest, largest), smallest, NO_PIN)


# --- addresses ------------------------------------------------------------------------------------------------------

_BOUNDS = [f"{kind}_{how}" for kind in KINDS for how in ("min", "max")]
ADDRESS_PINS = pa.schema(
    [ADDRESSES.field("address"), *(pa.field(name, pa.int64(), nullable=False) for name in _BOUNDS)]
)
"""The smallest and the largest pin, of each kind, of the ranges that have an address."""
SIZES = pa.schema([ADDRESSES.field("address"), pa.field("size", pa.int64(), nullable=False)])
AMOUNTS = pa.schema([pa.field(name, pa.int64(), nullable=False) for name in ("pin", "objects", "bytes")])
PINNED, NOT_PINNED, ON_HOLD = "pinned", "not_pinned", "on_hold"


def amounts_by_pin(pins: Pins) -> pa.Table:
    """The objects and bytes that would be garbage without each pin (AMOUNTS), leaving out pins that keep nothing."""
    history, prefixes = pins.history, prefixes_of(pins.history.holds)

    def combine(rows: GroupedRows, _: TaskReport) -> pa.Table:
        addresses = bounds_of_addresses(rows[PINNED])
        kept = pc.or_(
            *(pc.is_in(addresses["address"], value_set=rows[name]["address"]) for name in (NOT_PINNED, ON_HOLD))
        )
        kept = pc.or_(kept, have_dot_segments(addresses["address"]))
        for _hold, prefix in prefixes:
            kept = pc.or_(kept, pc.starts_with(addresses["address"], prefix))
        addresses = addresses.filter(pc.invert(kept))
        sizes = rows[STORED]["size"].take(pc.index_in(addresses["address"], value_set=rows[STORED]["address"]))
        totals = [total_by_pin(agreed(addresses[f"{kind}_min"], addresses[f"{kind}_max"]), sizes) for kind in KINDS]
        return pa.concat_tables([AMOUNTS.empty_table(), *totals])

    with Persisted() as persist:
        inputs = [
            *address_inputs(pins, persist),
            *paths_on_hold(pins, persist),
            stored_sizes(history),
            kept_otherwise(history),
        ]
        totals, _ = combined(history, inputs, combine, AMOUNTS, persist)
    summed = totals.group_by("pin", use_threads=False).aggregate([("objects", "sum"), ("bytes", "sum")])
    return summed.select(["pin", "objects_sum", "bytes_sum"]).rename_columns(AMOUNTS.names)


def total_by_pin(pin: pa.ChunkedArray, sizes: pa.ChunkedArray) -> pa.Table:
    """The number and bytes of the stored objects with each pin (AMOUNTS)."""
    rows = pa.table([pin, sizes], ["pin", "size"]).filter(pc.and_(pc.not_equal(pin, NO_PIN), pc.is_valid(sizes)))
    grouped = rows.group_by("pin", use_threads=False).aggregate([("size", "count"), ("size", "sum")])
    return grouped.select(["pin", "size_count", "size_sum"]).rename_columns(AMOUNTS.names).cast(AMOUNTS)


def address_inputs(pins: Pins, persist: Persisted) -> list[Input]:
    """The addresses of all kept ranges, with the pins of their ranges (ADDRESS_PINS): those that the marks read, and
    those of ranges that only commits on hold have, which are read now."""
    history, ranges, place = pins.history, pins.kept_ranges, pins.history.place
    range_numbers = pa.array([range_number(range_id) for range_id in ranges["range_id"].to_pylist()], pa.int64())
    range_pins = pa.table([range_numbers, *(ranges[kind] for kind in KINDS)], schema=RANGE_PINS)

    def with_pins(table: pa.Table) -> pa.Table:
        position = pc.index_in(table["range"], value_set=range_pins["range"])
        rows = pa.table([table["address"], *(range_pins[kind].take(position) for kind in KINDS)], ["address", *KINDS])
        bounds = [column for kind in KINDS for column in (rows[kind], rows[kind])]
        return bounds_of_addresses(
            pa.table([rows["address"], *bounds], ADDRESS_PINS.names).filter(pc.is_valid(position))
        )

    recorded = Input.selected(PINNED, place, history.address_datasets, RANGE_ADDRESSES, ADDRESS_PINS, with_pins)
    is_live = pc.is_in(range_numbers, value_set=pa.array(sorted(history.live_ranges), pa.int64()))
    only_on_hold = ranges.select(RANGE_REFS.names).filter(pc.invert(is_live)).cast(RANGE_REFS)

    def read(batches: Batches) -> Batches:
        refs = [row for batch in batches for row in batch.to_pylist()]
        for range_id, addresses, _ in address_batches(place, refs, TaskReport(), decoder_for(refs)):
            number = pa.repeat(pa.scalar(range_number(range_id), pa.int64()), len(addresses))
            yield from with_pins(pa.table([number, addresses], schema=RANGE_ADDRESSES)).to_batches()

    rows = persist(mapped(range_tasks(history.run.spark, only_on_hold), read, ADDRESS_PINS))
    read_now = Input.of_rows(PINNED, rows, ADDRESS_PINS, count_of(rows), reduce=bounds_of_addresses)
    return [replace(recorded, reduce=bounds_of_addresses), read_now]


def bounds_of_addresses(rows: pa.Table) -> pa.Table:
    """The smallest and largest pin of each address in all of these rows (ADDRESS_PINS)."""
    aggregations = [(name, name.rpartition("_")[2]) for name in _BOUNDS]
    grouped = rows.group_by("address", use_threads=False).aggregate(aggregations)
    columns = [grouped["address"], *(grouped[f"{name}_{how}"] for name, how in aggregations)]
    return pa.table(columns, schema=ADDRESS_PINS)


def count_of(rows: Rows) -> int:
    return len(rows.table) if isinstance(rows, Tasks) else rows.count()


def stored_sizes(history: History) -> Input:
    """The sizes of all objects that the mark and its chain listed (SIZES)."""

    def select(table: pa.Table) -> pa.Table:
        return table.select(SIZES.names).cast(SIZES)

    return Input.selected(STORED, history.place, history.stored_datasets, STORED_OBJECTS, SIZES, select)


def kept_otherwise(history: History) -> Input:
    """The addresses that something other than a commit of this repository keeps (ADDRESSES)."""
    mark, at_the_end = history.mark, (recheck.STAGED_PART, recheck.DIFFS_PART)
    parts = [*ADDRESS_PARTS, *((recheck.ASSET, part) for part in at_the_end)]
    datasets = [mark.dataset(asset, part) for asset, part in parts if part in mark.record.step(asset).datasets]
    staged = uncommitted_addresses.datasets(history.run)
    return Input.of_addresses(NOT_PINNED, history.place, [*staged, *datasets], ADDRESSES)


def paths_on_hold(pins: Pins, persist: Persisted) -> list[Input]:
    """The addresses at paths on hold, in ranges of retained and of expired commits (ADDRESSES)."""
    history, paths = pins.history, PathHolds.of(pins.history.holds)
    ids = pa.array([hold_id for hold_id, _ in paths.patterns], pa.string())

    def select(table: pa.Table) -> pa.Table:
        return distinct_addresses(table.filter(pc.is_in(table["hold"], value_set=ids)))

    recorded = history.mark.dataset(addresses_on_hold.ASSET, addresses_on_hold.ADDRESSES_PART)
    expired = Input.selected(ON_HOLD, history.place, [recorded], ADDRESSES_ON_HOLD, ADDRESSES, select)
    if not paths.patterns:
        return [expired]
    refs = pins.kept_ranges.select(RANGE_REFS.names).to_pylist()
    matching = [row | {"hold": None} for row in refs if paths.may_match_between(row["min_key"], row["max_key"])]
    read = on_hold_producer(history.place, paths)

    def step(batches: Batches) -> Batches:
        for batch in read(batches, TaskReport()):
            yield pa.RecordBatch.from_arrays([batch.column("address")], schema=ADDRESSES)

    tasks = range_tasks(history.run.spark, pa.Table.from_pylist(matching, schema=RANGES_ON_HOLD))
    rows = persist(mapped(tasks, step, ADDRESSES))
    return [expired, Input.of_rows(ON_HOLD, rows, ADDRESSES, count_of(rows), reduce=distinct_addresses)]
