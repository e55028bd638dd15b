"""Changes between two marks, as totals or object by object. Each set is read once, in address order."""

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
from lakegc_assets.cli.tables import amount_fields, show_totals, totals_document
from lakegc_assets.formatting import duration, rules_in_words
from lakegc_assets.mark.incremental_listing import FOLDERS
from lakegc_assets.mark.listed_objects import ASSET as SLICES
from lakegc_assets.mark.listed_objects import COMPARED_PART, FOLDERS_PART, LOOKED_UP_PART
from lakegc_assets.mark.totals import Sum, Totals, count_totals
from lakegc_assets.rules.set_diff import Change, changes
from spark_resources.errors import DamagedData, NotFound, WrongUsage
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord, finished_at, refuse_earlier_format
from spark_resources.model import ADDRESSES, OBJECTS_ON_HOLD, STORED_OBJECTS
from spark_resources.spark.datasets import all_rows, file_batches

SLICES_PARTS = ("", LOOKED_UP_PART)
KINDS = ("reason", "prefix", "slice")
BATCH_ROWS = 200_000  # objects whose outcomes are looked up together, with one read of the later listing
GONE, ON_HOLD, KEPT = "no longer in the store", "on hold", "kept: referenced again, or unclear"
OUTCOMES = (GONE, ON_HOLD, KEPT)


@dataclass(slots=True)
class Difference:
    """Totals of the changes between two marks. `outcomes` breaks down `no_longer_expired` by what became of
    the objects."""

    newly_expired: Totals = field(default_factory=Totals)
    no_longer_expired: Totals = field(default_factory=Totals)
    still_expired: Sum = field(default_factory=Sum)
    outcomes: dict[str, Sum] = field(default_factory=lambda: {outcome: Sum() for outcome in OUTCOMES})


def difference(before: Mark, after: Mark) -> Difference:
    """The totals of the changes. Raises `DamagedData` if a set doesn't match its mark's record."""
    diff = Difference()
    for change, outcome, rows in classified_rows(before, after):
        if change is Change.STILL:
            diff.still_expired.add(len(rows), total_bytes(rows))
            continue
        totals = diff.newly_expired if change is Change.NEWLY else diff.no_longer_expired
        totals.add(count_totals(rows, start=after.record.start))
        if outcome:
            diff.outcomes[outcome].add(len(rows), total_bytes(rows))
    return diff


def total_bytes(rows: pa.Table) -> int:
    return pc.sum(rows["size"]).as_py() or 0


def classified_rows(before: Mark, after: Mark) -> Iterator[tuple[Change, str, pa.Table]]:
    """Every row of both sets once, with its change, and its outcome if it is no longer expired ("" otherwise)."""
    batches: list[pa.Table] = []
    for change, rows in changes(expired_tables(before), expired_tables(after)):
        if change is not Change.NO_LONGER:
            yield change, "", rows
            continue
        batches.append(rows)
        if sum(map(len, batches)) >= BATCH_ROWS:
            yield from with_outcomes(after, pa.concat_tables(batches))
            batches = []
    if batches:
        yield from with_outcomes(after, pa.concat_tables(batches))


def with_outcomes(after: Mark, rows: pa.Table) -> Iterator[tuple[Change, str, pa.Table]]:
    """Group rows that are no longer expired in a later mark by outcome, as far as that mark recorded it."""
    on_hold = in_dataset(after, "on_hold", OBJECTS_ON_HOLD, rows)
    stored = pc.or_(on_hold, still_stored(after, rows))
    for outcome, mask in ((GONE, pc.invert(stored)), (ON_HOLD, on_hold), (KEPT, pc.and_not(stored, on_hold))):
        if len(with_outcome := rows.filter(mask)):
            yield Change.NO_LONGER, outcome, with_outcome


def still_stored(after: Mark, rows: pa.Table) -> pa.Array:
    """A mask of the rows that a mark found in the store. For objects that it didn't list, the earlier marks in its
    chain decide. If those can no longer be read, the objects count as stored."""
    is_stored = is_decided = all_false(rows)
    for mark in chain_of(after):
        in_mark = all_false(rows)
        for part in SLICES_PARTS:
            in_mark = pc.or_(in_mark, in_dataset(mark, part, STORED_OBJECTS, rows, asset=SLICES))
        is_stored = pc.or_(is_stored, pc.and_not(in_mark, is_decided))
        if not mark.record.is_incremental:
            return is_stored
        folders = pa.array(row["slice"] for row in all_rows(mark.place, mark.dataset(SLICES, FOLDERS_PART), FOLDERS))
        listed = pc.is_in(rows["slice"].combine_chunks(), value_set=folders.cast(pa.string()))
        looked_up = in_dataset(mark, COMPARED_PART, ADDRESSES, rows, asset=SLICES)
        is_decided = pc.or_(is_decided, pc.or_(in_mark, pc.or_(listed, looked_up)))
    return pc.or_(is_stored, pc.invert(is_decided))


def chain_of(mark: Mark) -> Iterator[Mark]:
    """A mark and its chain of base marks, newest first, as far as they can be read."""
    yield mark
    with suppress(NotFound, DamagedData):
        for mark_id in mark.record.basis["chain"] if mark.record.is_incremental else ():
            yield Mark.open(mark.place, mark_id)


def all_false(rows: pa.Table) -> pa.Array:
    return pa.array([False]).take(pa.array([0] * len(rows), pa.int64()))


def in_dataset(mark: Mark, part: str, schema: pa.Schema, rows: pa.Table, *, asset: str = "expired_set") -> pa.Array:
    """A mask of the rows whose address is in a dataset of a mark; all false if the mark has no such part."""
    wanted = rows["address"].combine_chunks()
    is_present = all_false(rows)
    if part not in mark.record.steps[asset].datasets:
        return is_present
    dataset = mark.dataset(asset, part)
    for file in dataset.files:
        for batch in file_batches(mark.place, dataset.folder, file, schema, rows=1_000_000, columns=("address",)):
            matches = batch.filter(pc.is_in(batch["address"], value_set=wanted))["address"].combine_chunks()
            is_present = pc.or_(is_present, pc.is_in(wanted, value_set=matches))
    return is_present


# --- on the terminal ------------------------------------------------------------------------------------------------


@printing()
def show(repository: str, first: str, second: str, *, list_all: bool, output_format: str) -> None:
    before, after = open_both(repository, first, second)
    if list_all:
        list_rows(changed_rows(before, after), after.record.start, output_format, leading_columns=("change", "became"))
        return
    diff = difference(before, after)
    if output_format == "table":
        show_difference(before.record, after.record, diff)
        mark_ids = (before.record.mark_id, after.record.mark_id)
        print_command("List every changed object", command("diff", repository, *mark_ids, "--list"))
        print_command("Review the later mark", command("review", repository, mark_ids[1]))
    else:
        print_text(json.dumps(document(before.record, after.record, diff), indent=1))


def open_both(repository: str, first: str, second: str) -> tuple[Mark, Mark]:
    """Open two finished marks. Raises `WrongUsage` unless both belong to the same repository and the first one is
    earlier."""
    before, after = open_mark(repository, first), open_mark(repository, second)
    refuse_earlier_format(after.record, "compared with an earlier mark")
    old, new = before.record, after.record
    if old.repository_created != new.repository_created:
        raise WrongUsage(
            f"{repository} was deleted and recreated between mark {old.mark_id} and mark {new.mark_id}: they belong "
            "to different repositories and can't be compared"
        )
    if finished_at(old) > finished_at(new):
        raise WrongUsage(f"mark {old.mark_id} was made after mark {new.mark_id}: pass the earlier one first")
    return before, after


def changed_rows(before: Mark, after: Mark) -> Iterable[pa.Table]:
    for change, outcome, rows in classified_rows(before, after):
        if change is not Change.STILL:
            columns = [pa.array([text] * len(rows), pa.string()) for text in (change.value, outcome or None)]
            yield rows.add_column(0, "became", columns[1]).add_column(0, "change", columns[0])


def show_difference(before: MarkRecord, after: MarkRecord, diff: Difference) -> None:
    newly_expired, no_longer_expired = diff.newly_expired.whole, diff.no_longer_expired.whole
    print_sentence(
        f"Since mark {before.mark_id} ({before.start:%Y-%m-%d %H:%M} UTC): {amount_in_words(newly_expired)} "
        f"newly expired, {amount_in_words(no_longer_expired)} no longer expired, "
        f"{amount_in_words(diff.still_expired)} unchanged."
    )
    if no_longer_expired.objects:
        parts = [
            f"{amount_in_words(amount)} {'kept (referenced again, or unclear)' if outcome == KEPT else outcome}"
            for outcome, amount in diff.outcomes.items()
            if amount.objects
        ]
        print_sentence(f"No longer expired: {'; '.join(parts)}.")
    for name, (old, new) in differing_settings(before, after).items():
        print_sentence(f"The marks differ in {name}: {old}, then {new}.")
    for kind in ("reason", "prefix"):
        show_totals(diff.newly_expired, kind, title=f"Newly expired, by {kind}")
        show_totals(diff.no_longer_expired, kind, title=f"No longer expired, by {kind} in mark {before.mark_id}")


def amount_in_words(amount: Sum) -> str:
    return f"{amount.objects:,} object{'s' if amount.objects != 1 else ''} ({size(amount.bytes)})"


def document(before: MarkRecord, after: MarkRecord, diff: Difference) -> dict[str, Any]:
    outcomes = [{"became": outcome, **amount_fields(amount)} for outcome, amount in diff.outcomes.items()]
    return {
        "repository": after.repository,
        "before": {"mark_id": before.mark_id, "start": before.start.isoformat(), "digest": before.digest},
        "after": {"mark_id": after.mark_id, "start": after.start.isoformat(), "digest": after.digest},
        "differ_in": {name: list(both) for name, both in differing_settings(before, after).items()},
        "newly_expired": totals_document(diff.newly_expired, KINDS),
        "no_longer_expired": {**totals_document(diff.no_longer_expired, KINDS), "by_fate": outcomes},
        "still_expired": amount_fields(diff.still_expired),
    }


def differing_settings(before: MarkRecord, after: MarkRecord) -> dict[str, tuple[str, str]]:
    """The settings that decide what expires, if they differ between two marks: both values, in words."""
    settings = {
        "scope": (before.scope.value, after.scope.value),
        "minimum age": (duration(before.min_age), duration(after.min_age)),
        "rules": (rules_in_words(before.rules), rules_in_words(after.rules)),
        "holds": (holds_in_words(before), holds_in_words(after)),
    }
    return {name: pair for name, pair in settings.items() if pair[0] != pair[1]}


def holds_in_words(record: MarkRecord) -> str:
    ids = ", ".join(record.holds.get("ids", ()))
    return f"{ids} ({str(record.holds['sha256'])[:12]})" if ids and record.holds.get("sha256") else ids or "none"
