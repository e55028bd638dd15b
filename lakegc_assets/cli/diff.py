"""Changes from one mark to another, as totals or object by object. Each set is read once, in address order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.cli.console import print_command, print_sentence, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import expired_tables, open_mark
from lakegc_assets.cli.object_list import list_rows
from lakegc_assets.cli.tables import amounts, as_document, show_sums
from lakegc_assets.formatting import duration
from lakegc_assets.mark.incremental_listing import FOLDERS
from lakegc_assets.mark.listed_objects import ASSET as SLICES
from lakegc_assets.mark.listed_objects import COMPARED_PART, FOLDERS_PART, LOOKED_UP_PART
from lakegc_assets.mark.totals import Sum, Totals, counted
from lakegc_assets.rules.set_diff import Change, changes
from spark_resources.errors import DamagedData, NotFound, WrongUsage
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord, finished_at, refuse_earlier_format
from spark_resources.model import ADDRESSES, OBJECTS_ON_HOLD, STORED_OBJECTS, Rules
from spark_resources.spark.datasets import all_rows, file_batches

SLICES_PARTS = ("", LOOKED_UP_PART)
KINDS = ("reason", "prefix", "slice")
AT_ONCE = 200_000  # objects per batch: their outcomes are looked up together, with one read of the later listing
GONE, ON_HOLD, KEPT = "no longer in the store", "on hold", "kept: referenced again, or unclear"
OUTCOMES = (GONE, ON_HOLD, KEPT)


@dataclass(slots=True)
class Difference:
    """Totals of the changes between two marks. `outcomes` has those of objects that are no longer expired."""

    newly: Totals = field(default_factory=Totals)
    no_longer: Totals = field(default_factory=Totals)
    still: Sum = field(default_factory=Sum)
    outcomes: dict[str, Sum] = field(default_factory=lambda: {outcome: Sum() for outcome in OUTCOMES})


def difference(before: Mark, after: Mark) -> Difference:
    """The totals of the changes. Raises `DamagedData` if a set doesn't match its mark's record."""
    found = Difference()
    for change, outcome, rows in compared(before, after):
        if change is Change.STILL:
            found.still.add(len(rows), total(rows))
            continue
        totals = found.newly if change is Change.NEWLY else found.no_longer
        totals.add(counted(rows, start=after.record.start))
        if outcome:
            found.outcomes[outcome].add(len(rows), total(rows))
    return found


def total(rows: pa.Table) -> int:
    return pc.sum(rows["size"]).as_py() or 0


def compared(before: Mark, after: Mark) -> Iterator[tuple[Change, str, pa.Table]]:
    """Every row of both sets once, with its change, and its outcome if it is no longer expired ("" otherwise)."""
    batches: list[pa.Table] = []
    for change, rows in changes(expired_tables(before), expired_tables(after)):
        if change is not Change.NO_LONGER:
            yield change, "", rows
            continue
        batches.append(rows)
        if sum(map(len, batches)) >= AT_ONCE:
            yield from with_outcomes(after, pa.concat_tables(batches))
            batches = []
    if batches:
        yield from with_outcomes(after, pa.concat_tables(batches))


def with_outcomes(after: Mark, rows: pa.Table) -> Iterator[tuple[Change, str, pa.Table]]:
    """The outcomes of objects that are no longer expired in a later mark, as far as that mark recorded them."""
    on_hold = among(after, "on_hold", OBJECTS_ON_HOLD, rows)
    stored = pc.or_(on_hold, still_there(after, rows))
    for outcome, chosen in ((GONE, pc.invert(stored)), (ON_HOLD, on_hold), (KEPT, pc.and_not(stored, on_hold))):
        if len(found := rows.filter(chosen)):
            yield Change.NO_LONGER, outcome, found


def still_there(after: Mark, rows: pa.Table) -> pa.Array:
    """Which rows a mark found in the store. For objects that it didn't read, the earlier mark in its chain decides; if
    that mark can't be read any more, they count as present."""
    there = decided = none_of(rows)
    for mark in chain_of(after):
        found = none_of(rows)
        for part in SLICES_PARTS:
            found = pc.or_(found, among(mark, part, STORED_OBJECTS, rows, asset=SLICES))
        there = pc.or_(there, pc.and_not(found, decided))
        if not mark.record.incremental:
            return there
        folders = pa.array(one["slice"] for one in all_rows(mark.place, mark.dataset(SLICES, FOLDERS_PART), FOLDERS))
        listed = pc.is_in(rows["slice"].combine_chunks(), value_set=folders.cast(pa.string()))
        looked_up = among(mark, COMPARED_PART, ADDRESSES, rows, asset=SLICES)
        decided = pc.or_(decided, pc.or_(found, pc.or_(listed, looked_up)))
    return pc.or_(there, pc.invert(decided))


def chain_of(mark: Mark) -> Iterator[Mark]:
    """A mark and its chain of base marks, newest first, as far as they can be read."""
    yield mark
    with suppress(NotFound, DamagedData):
        for mark_id in mark.record.basis["chain"] if mark.record.incremental else ():
            yield Mark.open(mark.place, mark_id)


def none_of(rows: pa.Table) -> pa.Array:
    return pa.array([False]).take(pa.array([0] * len(rows), pa.int64()))


def among(mark: Mark, part: str, schema: pa.Schema, rows: pa.Table, *, asset: str = "expired_set") -> pa.Array:
    """Which rows have their address in a dataset of a mark; none if the mark has no such part."""
    wanted = rows["address"].combine_chunks()
    found = none_of(rows)
    if part not in mark.record.steps[asset].datasets:
        return found
    dataset = mark.dataset(asset, part)
    for file in dataset.files:
        for batch in file_batches(mark.place, dataset.folder, file, schema, rows=1_000_000, columns=("address",)):
            seen = batch.filter(pc.is_in(batch["address"], value_set=wanted))["address"].combine_chunks()
            found = pc.or_(found, pc.is_in(wanted, value_set=seen))
    return found


# --- on the terminal ------------------------------------------------------------------------------------------------


@printing()
def show(repository: str, first: str, second: str, *, every: bool, form: str) -> None:
    before, after = opened(repository, first, second)
    if every:
        list_rows(changed_rows(before, after), after.record.start, form, first=("change", "became"))
        return
    found = difference(before, after)
    if form == "table":
        show_difference(before.record, after.record, found)
        both = (before.record.mark_id, after.record.mark_id)
        print_command("List every changed object", command("diff", repository, *both, "--list"))
        print_command("The later mark", command("review", repository, both[1]))
    else:
        print_text(json.dumps(document(before.record, after.record, found), indent=1))


def opened(repository: str, first: str, second: str) -> tuple[Mark, Mark]:
    """Two finished marks of one repository, the earlier one first. Raises `WrongUsage` for any others."""
    before, after = open_mark(repository, first), open_mark(repository, second)
    refuse_earlier_format(after.record, "compared with an earlier mark")
    old, new = before.record, after.record
    if old.repository_created != new.repository_created:
        raise WrongUsage(
            f"{repository} was deleted and recreated between mark {old.mark_id} and mark {new.mark_id}: they belong "
            "to different repositories and can't be compared"
        )
    if finished_at(old) > finished_at(new):
        raise WrongUsage(f"mark {old.mark_id} was made after mark {new.mark_id}: give the earlier one first")
    return before, after


def changed_rows(before: Mark, after: Mark) -> Iterable[pa.Table]:
    for change, outcome, rows in compared(before, after):
        if change is not Change.STILL:
            both = [pa.array([text] * len(rows), pa.string()) for text in (change.value, outcome or None)]
            yield rows.add_column(0, "became", both[1]).add_column(0, "change", both[0])


def show_difference(before: MarkRecord, after: MarkRecord, found: Difference) -> None:
    newly, no_longer = found.newly.whole, found.no_longer.whole
    print_sentence(
        f"Since mark {before.mark_id} ({before.start:%Y-%m-%d %H:%M} UTC): {in_sum(newly)} newly expired, "
        f"{in_sum(no_longer)} no longer expired, {in_sum(found.still)} unchanged."
    )
    if no_longer.objects:
        parts = [f"{in_sum(one)} {outcome}" for outcome, one in found.outcomes.items() if one.objects]
        print_sentence(f"No longer expired: {'; '.join(parts)}.")
    for name, (old, new) in differing_settings(before, after).items():
        print_sentence(f"The marks differ in {name}: {old}, then {new}.")
    for kind in ("reason", "prefix"):
        show_sums(found.newly, kind, title=f"Newly expired, by {kind}")
        show_sums(found.no_longer, kind, title=f"No longer expired, by {kind} in mark {before.mark_id}")


def in_sum(one: Sum) -> str:
    return f"{one.objects:,} object{'s' if one.objects != 1 else ''} ({size(one.bytes)})"


def document(before: MarkRecord, after: MarkRecord, found: Difference) -> dict[str, Any]:
    outcomes = [{"became": outcome, **amounts(one)} for outcome, one in found.outcomes.items()]
    return {
        "repository": after.repository,
        "before": {"mark_id": before.mark_id, "start": before.start.isoformat(), "digest": before.digest},
        "after": {"mark_id": after.mark_id, "start": after.start.isoformat(), "digest": after.digest},
        "differ_in": {name: list(both) for name, both in differing_settings(before, after).items()},
        "newly_expired": as_document(found.newly, KINDS),
        "no_longer_expired": {**as_document(found.no_longer, KINDS), "by_fate": outcomes},
        "still_expired": amounts(found.still),
    }


def differing_settings(before: MarkRecord, after: MarkRecord) -> dict[str, tuple[str, str]]:
    """The differences between two marks in the settings that decide what expires, in words."""
    settings = {
        "scope": (before.scope.value, after.scope.value),
        "minimum age": (duration(before.min_age), duration(after.min_age)),
        "rules": (rules_in_words(before.rules), rules_in_words(after.rules)),
        "holds": (holds_in_words(before), holds_in_words(after)),
    }
    return {name: pair for name, pair in settings.items() if pair[0] != pair[1]}


def rules_in_words(rules: Rules | None) -> str:
    if rules is None:
        return "none"
    branches = [f"{branch} {days}" for branch, days in sorted(rules.branch_days.items())]
    return ", ".join([f"default {rules.default_days} days", *branches])


def holds_in_words(record: MarkRecord) -> str:
    ids = ", ".join(record.holds.get("ids", ()))
    return f"{ids} ({str(record.holds['sha256'])[:12]})" if ids and record.holds.get("sha256") else ids or "none"
