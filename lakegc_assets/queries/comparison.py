"""What other rules, a dropped branch, a different minimum age or more holds would delete: several variants, one scan.

Each variant is decided by the mark's own rules from the mark's files, at the time of the mark. Nothing is changed, and
a result isn't an expired set: it can't be approved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import recheck, uncommitted_addresses
from lakegc_assets.mark.addresses_on_hold import on_hold_producer
from lakegc_assets.mark.earlier_references import ADDRESS_PARTS
from lakegc_assets.mark.keep_evidence import KeepEvidence, evidence_at_addresses
from lakegc_assets.mark.restaged_content import PASSES, evidence_from_probes
from lakegc_assets.queries.grouping import combined
from lakegc_assets.queries.history import History
from lakegc_assets.queries.range_groups import (
    distinct_range_addresses,
    group_selector,
    grouped_ranges,
    live_in_any,
    range_address_reader,
    range_numbers_of,
)
from lakegc_assets.queries.recorded_inputs import (
    EXPIRED_SET,
    REMOVED_BY_SWEEPS,
    attributed_inputs,
    counted_input,
    folders_of,
    listing_inputs,
    listings_in,
    parts_of,
    removed_inputs,
    sizes_at_heads,
)
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.current_listing import current_listing
from lakegc_assets.rules.expiry_reasons import sorted_verdicts
from lakegc_assets.rules.garbage import UNCOMMITTED
from lakegc_assets.rules.holds import NamedCommit, PathHolds, prefixes_of
from lakegc_assets.rules.keep_reasons import Decide, KeepReason
from lakegc_assets.rules.retention import Verdict
from lakegc_assets.rules.what_if import (
    FREED,
    RANGES,
    Decided,
    freed,
    total,
)
from spark_resources.errors import WrongUsage, did_you_mean
from spark_resources.lakefs.ranges import (
    distinct_refs,
    range_number,
    range_tasks,
)
from spark_resources.mark_store.hold_file import Hold, PathHold, TagHold
from spark_resources.model import (
    ADDRESSES,
    ADDRESSES_ON_HOLD,
    RANGE_ADDRESSES,
    RANGE_REFS,
    RANGES_ON_HOLD,
    Rules,
    cutoff_for,
)
from spark_resources.spark.arrow_shuffle import GroupedRows, Input
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Rows, Tasks, mapped

MAX_VARIANTS = 20
AT_THE_END = tuple(
    (recheck.ASSET, part) for part in (recheck.STAGED_PART, recheck.DIFFS_PART, recheck.NEW_ADDRESSES_PART)
)

TOTALS = pa.schema(
    [
        pa.field("variant", pa.string(), nullable=False),
        pa.field("commits", pa.int64(), nullable=False),  # expired ones
        pa.field("objects", pa.int64(), nullable=False),  # expired ones, as are the following
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("more_objects", pa.int64(), nullable=False),  # those that the first variant keeps
        pa.field("more_bytes", pa.int64(), nullable=False),
        pa.field("fewer_objects", pa.int64(), nullable=False),  # those of the first variant that this one keeps
        pa.field("fewer_bytes", pa.int64(), nullable=False),
        pa.field("unprobed_objects", pa.int64(), nullable=False),  # those that a mark may find served by a branch
        pa.field("unprobed_bytes", pa.int64(), nullable=False),
    ]
)
"""One row per variant."""
BY_BRANCH = pa.schema(
    [
        TOTALS.field("variant"),
        pa.field("branch", pa.string()),  # whose rule expired the commit that kept the objects longest
        pa.field("committed", pa.bool_(), nullable=False),  # false: no commit had the objects, or it isn't known
        TOTALS.field("objects"),
        TOTALS.field("bytes"),
    ]
)
"""The expired objects of each variant by branch. Without a branch, they were in dangling commits or never committed."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Rules and other choices to compare. `rules` None means no rules; `dropped` are branches that no longer exist;
    `min_age` None means that of the mark; `holds` are added to those of the mark."""

    name: str
    rules: Rules | None
    dropped: frozenset[str] = frozenset()
    min_age: timedelta | None = None
    holds: tuple[Hold, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The result: `totals` (TOTALS) and `by_branch` (BY_BRANCH), both in the order of the variants; and the number and
    bytes of all stored objects."""

    totals: pa.Table
    by_branch: pa.Table
    stored_objects: int
    stored_bytes: int


def what_if(history: History, variants: Sequence[Variant], *, tags: Collection[NamedCommit] = ()) -> WhatIf:
    """Compare variants; the first one is the basis of the comparison.

    `tags` are needed for holds on tags that the mark didn't use; those of commits that the mark didn't know are
    ignored. Objects staged on a dropped branch count as kept. Raises `WrongUsage` for an unknown dropped branch or too
    many variants, and `Refused` if the mark doesn't know enough.
    """
    check_variants(history, variants)
    history.refuse_unless_complete("'lakegc what-if'")
    with history.run.persist, errors_from_executors():
        return Comparison(history, variants, tags).result()


def check_variants(history: History, variants: Sequence[Variant]) -> None:
    if not 0 < len(variants) <= MAX_VARIANTS:
        raise WrongUsage(f"{len(variants)} variants can't be compared: pass from 1 to {MAX_VARIANTS}")
    repository = history.run.target.repository
    branches = {branch for branch, _ in history.heads}
    for branch in sorted(branch for variant in variants for branch in variant.dropped):
        if branch == repository.default_branch:
            raise WrongUsage(
                f"'{branch}' is the default branch of {repository.id}, and a default branch can't be deleted"
            )
        refuse_unknown_branch(history, branch, branches)


def refuse_unknown_branch(history: History, branch: str, branches: Collection[str]) -> None:
    if branch not in branches:
        hint = did_you_mean(branch, branches) or "If the branch is newer than the mark, make a new mark."
        raise WrongUsage(
            f"mark {history.record.mark_id} of {history.record.repository} found no branch '{branch}'. {hint}"
        )


class Comparison:
    """One comparison of variants."""

    def __init__(self, history: History, variants: Sequence[Variant], tags: Collection[NamedCommit]) -> None:
        self.history, self.variants = history, variants
        known_tags = {(tag, commit_id) for tag, commit_id in tags if commit_id in history.commits}
        self.verdicts = [verdicts_of(history, variant, known_tags) for variant in variants]

    def result(self) -> WhatIf:
        history, run = self.history, self.history.run
        pairs = self.ranges_of_commits()
        by_range = [
            self.decided(variant, verdicts, pairs)
            for variant, verdicts in zip(self.variants, self.verdicts, strict=True)
        ]
        groups, decided = grouped_ranges(by_range)
        listings = tuple((mark.record.start, folders_of(mark)) for mark in history.marks)
        time_resolution, sizes = run.store.capabilities.time_resolution, sizes_at_heads(history)
        evidence = self.evidence(pairs)
        inputs = [
            *listing_inputs(history),
            *self.range_inputs(pairs, groups, live=live_in_any(by_range)),
            Input.of_addresses(UNCOMMITTED, run.place, uncommitted_addresses.datasets(run), ADDRESSES),
            *attributed_inputs(history),
            *removed_inputs(run.place, since=history.marks[-1].record.start),
            *(source for by_reason in evidence.values() for source in by_reason.inputs),
        ]
        with_reasons = [
            replace(by_group, reasons=self.decisions(variant, evidence))
            for by_group, variant in zip(decided, self.variants, strict=True)
        ]

        def combine(rows: GroupedRows, report: TaskReport) -> pa.Table:
            stored = current_listing(listings_in(rows, listings), rows[REMOVED_BY_SWEEPS])
            report.count(objects=len(stored), bytes=pc.sum(stored["size"], min_count=0).as_py())
            return freed(rows, stored, with_reasons, time_resolution, sizes)

        found, report = combined(history, inputs, combine, FREED, run.persist)
        rows, counters = total(found), report.counters
        return WhatIf(self.totals(rows), self.by_branch(rows), counters["objects"], counters["bytes"])

    # --- commits and ranges -----------------------------------------------------------------------------------------

    def ranges_of_commits(self) -> pa.Table:
        """The ranges (METARANGE_RANGES) of all commits that the mark or a variant retains. Those of the commits that
        the mark retained were recorded; for the others, the immutable tables in the store are read."""
        recorded = self.history.verdicts
        metaranges = set(recorded.filter(recorded["retained"])["metarange_id"].to_pylist())
        metaranges |= {verdict.metarange_id for verdicts in self.verdicts for verdict in verdicts if verdict.retained}
        if self.path_holds.patterns:
            metaranges |= {verdict.metarange_id for verdict in self.verdicts[0]}
        return self.history.ranges_of(metaranges)

    def decided(self, variant: Variant, verdicts: Sequence[Verdict], pairs: pa.Table) -> Decided:
        """What a variant decides, without its reasons to keep unreferenced objects."""
        retained = pa.array(sorted({verdict.metarange_id for verdict in verdicts if verdict.retained}), pa.string())
        live = pc.unique(pairs["range_id"].filter(pc.is_in(pairs["metarange_id"], value_set=retained)))
        expired = [verdict for verdict in verdicts if not verdict.retained and verdict.metarange_id]
        sorted_rows = sorted_verdicts(
            [{name: getattr(verdict, name) for name in ("commit_id", "branch", "days", "until")} for verdict in expired]
        )
        position = {commit_id: number for number, commit_id in enumerate(sorted_rows["commit_id"].to_pylist())}
        of_metarange: dict[str, int] = {}
        for verdict in expired:
            previous = of_metarange.get(verdict.metarange_id, 0)
            of_metarange[verdict.metarange_id] = max(position[verdict.commit_id], previous)
        verdict_of = pa.table(
            [pa.array(of_metarange.keys(), pa.string()), pa.array(of_metarange.values(), pa.int64())],
            ["metarange_id", "verdict"],
        )
        others = pairs.filter(pc.invert(pc.is_in(pairs["range_id"], value_set=live))).select(
            ["metarange_id", "range_id"]
        )
        joined = others.join(verdict_of, "metarange_id", join_type="inner", use_threads=False)
        by_range = joined.group_by("range_id", use_threads=False).aggregate([("verdict", "max")])
        record = self.history.record
        cutoff = record.cutoff if variant.min_age is None else cutoff_for(record.start, variant.min_age)
        return Decided(
            range_numbers_of(live), sorted_rows,
            range_numbers_of(by_range["range_id"]), by_range["verdict_max"].combine_chunks(), cutoff, (),
        )  # fmt: skip

    def range_inputs(self, pairs: pa.Table, groups: pa.Table, *, live: set[int]) -> Iterator[Input]:
        """The addresses of all ranges that matter, each once per group (RANGE_ADDRESSES, with the group's number): of
        ranges that marks read, from their files, and of other `live` ones, from the store's tables."""
        history, select = self.history, group_selector(groups)
        recorded = Input.selected(
            RANGES, history.place, history.address_datasets, RANGE_ADDRESSES, RANGE_ADDRESSES, select
        )
        yield replace(recorded, reduce=distinct_range_addresses)
        unread = live - {range_number(range_id) for range_id in history.recorded_ranges.refs}
        if unread:
            refs = distinct_refs(pairs.select(RANGE_REFS.names))
            refs = refs.filter(
                pc.is_in(range_numbers_of(refs["range_id"]), value_set=pa.array(sorted(unread), pa.int64()))
            )
            tasks = range_tasks(history.run.spark, refs, order_by=("min_key", "max_key", "range_id"))
            rows = mapped(tasks, range_address_reader(history.place, select), RANGE_ADDRESSES)
            yield counted_input(history, RANGES, rows, RANGE_ADDRESSES, reduce=distinct_range_addresses)

    # --- reasons to keep unreferenced objects -----------------------------------------------------------------------

    @property
    def path_holds(self) -> PathHolds:
        """All path holds of the mark and the variants, named by their patterns: two variants may use one id for
        different holds."""
        holds = (*self.history.holds, *(hold for variant in self.variants for hold in variant.holds))
        return PathHolds(tuple((pattern, pattern) for pattern in sorted(path_patterns(holds))))

    def evidence(self, pairs: pa.Table) -> Mapping[KeepReason, KeepEvidence]:
        """What the mark looked up for each reason, except for holds by prefix. Paths on hold are looked up in the
        store's tables."""
        run, mark = self.history.run, self.history.mark
        probed = parts_of(mark, ((EXPIRED_SET, part) for parts in PASSES for part in parts))
        unclear = bool(self.history.record.step(EXPIRED_SET).facts.get("unclear"))
        hold = keep_reasons.HOLD
        return {
            keep_reasons.OTHER_REPOSITORY: evidence_at_addresses(
                keep_reasons.OTHER_REPOSITORY, run.place, parts_of(mark, ADDRESS_PARTS), ADDRESSES
            ),
            keep_reasons.BRANCH: evidence_from_probes(run, probed, unclear=unclear),
            keep_reasons.NEWLY_REFERENCED: evidence_at_addresses(
                keep_reasons.NEWLY_REFERENCED, run.place, parts_of(mark, AT_THE_END), ADDRESSES
            ),
            hold: KeepEvidence(keep_reasons.on_hold(hold.name, ()), (self.paths_on_hold(pairs),)),
        }

    def decisions(
        self, variant: Variant, evidence: Mapping[KeepReason, KeepEvidence]
    ) -> list[tuple[KeepReason, Decide]]:
        """The reasons with the variant's own holds, and without what its dropped branches serve."""
        holds, repository = (*self.history.holds, *variant.holds), self.history.run.partition.repository
        by_reason = {reason: found.decide for reason, found in evidence.items()}
        by_reason[keep_reasons.HOLD] = on_hold_by(holds)
        if variant.dropped:
            served = by_reason[keep_reasons.BRANCH]
            by_reason[keep_reasons.BRANCH] = served_by_others(served, repository, variant.dropped)
        return list(by_reason.items())

    def paths_on_hold(self, pairs: pa.Table) -> Input:
        """The addresses at paths on hold in any commit (ADDRESSES_ON_HOLD)."""
        history, paths = self.history, self.path_holds
        refs = distinct_refs(pairs.select(RANGE_REFS.names)).to_pylist() if paths.patterns else []
        rows = [{**ref, "hold": None} for ref in refs if paths.may_match_between(ref["min_key"], ref["max_key"])]
        tasks = range_tasks(history.run.spark, pa.Table.from_pylist(rows, schema=RANGES_ON_HOLD))
        produce = on_hold_producer(history.place, paths)

        def read(batches: Batches) -> Batches:
            return produce(batches, TaskReport())

        found: Rows = (
            mapped(tasks, read, ADDRESSES_ON_HOLD)
            if rows
            else Tasks.of(history.run.spark, ADDRESSES_ON_HOLD.empty_table())
        )
        return counted_input(history, keep_reasons.HOLD.name, found, ADDRESSES_ON_HOLD)

    # --- the result -------------------------------------------------------------------------------------------------

    def totals(self, rows: pa.Table) -> pa.Table:
        sums = [name for name in FREED.names if name not in ("variant", "branch", "committed")]
        grouped = rows.group_by("variant", use_threads=False).aggregate([(name, "sum") for name in sums])
        by_variant = {row["variant"]: row for row in grouped.to_pylist()}
        result: list[dict[str, Any]] = []
        for number, (variant, verdicts) in enumerate(zip(self.variants, self.verdicts, strict=True)):
            row = {name: by_variant.get(number, {}).get(f"{name}_sum", 0) for name in sums}
            row |= {"variant": variant.name, "commits": sum(not verdict.retained for verdict in verdicts)}
            first = result[0] if result else row
            for unit in ("objects", "bytes"):
                row[f"fewer_{unit}"] = first[unit] - (row[unit] - row[f"more_{unit}"])
            result.append(row)
        return pa.Table.from_pylist(result, schema=TOTALS)

    def by_branch(self, rows: pa.Table) -> pa.Table:
        names = pa.array([variant.name for variant in self.variants], pa.string())
        sorted_rows = rows.sort_by(
            [("variant", "ascending"), ("bytes", "descending"), ("objects", "descending"), ("branch", "ascending")]
        )
        variants = names.take(sorted_rows["variant"].combine_chunks())
        return pa.table([variants, *(sorted_rows[name] for name in BY_BRANCH.names[1:])], schema=BY_BRANCH)


def verdicts_of(history: History, variant: Variant, tags: Collection[NamedCommit]) -> list[Verdict]:
    heads = [(branch, commit_id) for branch, commit_id in history.heads if branch not in variant.dropped]
    holds = (*history.holds, *variant.holds)
    wanted = history.tags | set(tags) if any(isinstance(hold, TagHold) for hold in variant.holds) else history.tags
    return history.verdicts_with(heads=heads, tags=wanted, rules=variant.rules, holds=holds)


def path_patterns(holds: Iterable[Hold]) -> set[str]:
    return {hold.paths for hold in holds if isinstance(hold, PathHold)}


def on_hold_by(holds: Iterable[Hold]) -> Decide:
    """A decision that keeps the objects at paths and prefixes on hold by these holds."""
    name, all_holds = keep_reasons.HOLD.name, tuple(holds)
    by_mark = keep_reasons.on_hold(name, prefixes_of(all_holds))
    patterns = pa.array(sorted(path_patterns(all_holds)), pa.string())

    def decide(objects: pa.Table, rows: Mapping[str, pa.Table]) -> keep_reasons.Column:
        return by_mark(objects, {name: rows[name].filter(pc.is_in(rows[name]["hold"], value_set=patterns))})

    return decide


def served_by_others(served: Decide, repository: str, dropped: Collection[str]) -> Decide:
    """A decision that keeps the objects that branches serve, ignoring these branches of this repository."""
    name, branches = keep_reasons.BRANCH.name, pa.array(sorted(dropped), pa.string())

    def decide(objects: pa.Table, rows: Mapping[str, pa.Table]) -> keep_reasons.Column:
        found = rows[name]
        is_dropped = pc.and_(pc.equal(found["repository"], repository), pc.is_in(found["branch"], value_set=branches))
        return served(objects, {name: found.filter(pc.invert(is_dropped))})

    return decide
