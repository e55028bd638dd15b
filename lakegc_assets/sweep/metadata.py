"""A sweep's metadata in Dagster: a summary, a plot of the rate, the objects that need attention, and what was freed in
all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural, size, was_or_were
from lakegc_assets.mark.metadata import details_table, questions
from lakegc_assets.mark.over_time import over_time
from lakegc_assets.markdown import as_text, asset_link, behind_a_click, column_plot, inline, table, unbroken
from lakegc_assets.sweep.report import Report
from spark_resources.mark_store.history import History
from spark_resources.model import RECEIPTS, Outcome, Partition
from spark_resources.spark.datasets import open_dataset, read_file
from spark_resources.stores.place import Place

PREVIEW_ROWS = 20
NEEDS_ATTENTION = (Outcome.FAILED.value, Outcome.CHANGED.value, Outcome.RESCUED.value)
MAX_COLUMNS = 60
LATE = "came_to_life_too_late"
"""The metadata entry with the number of objects that became live while they were being deleted, if there are any."""
OBJECTS = "objects."
"""The prefix of the names of metadata entries with the number of objects by outcome."""
OUTCOMES = {
    Outcome.DELETED.value: "deleted: the space is free",
    Outcome.QUARANTINED.value: "moved to quarantine: can be restored, and still takes space",
    Outcome.ALREADY_GONE.value: "already gone: something else deleted them",
    Outcome.RESCUED.value: "kept: something needs them again",
    Outcome.CHANGED.value: "kept: replaced since the mark",
    Outcome.FAILED.value: "not deleted: the store refused",
}
"""What an outcome means, in the order of the summary."""


def sweep_result(place: Place, report: Report, history: History | None) -> dg.MaterializeResult[Any]:
    """The result of `sweep_report`: outcomes, the rate with a plot, and the objects that were not deleted."""
    folder = report.dataset["folder"]
    times, not_deleted = times_and_samples(place, folder, report)
    partition = Partition(report.repository, report.mark_id)
    key = str(partition)
    return dg.MaterializeResult(
        metadata={  # in the order in which the UI displays them
            "summary": inline(summary(report)),
            "next": inline(
                f"Approved objects: {asset_link('expired_set', key)}. Approval: {asset_link('sweep_approval', key)}"
            ),
            "outcomes": inline(outcomes(report)),
            "questions": inline(questions(partition)),
            **({"not_deleted": behind_a_click(not_deleted)} if not_deleted else {}),
            **({"rate": inline(rate(times))} if times else {}),
            **({} if history is None else {"over_time": inline(over_time(history))}),
            **space_notes(report),
            **({"other_repositories_not_read": ", ".join(sorted(report.unread))} if report.unread else {}),
            **({LATE: report.late_objects} if report.late_objects else {}),
            **({"readers_miss": behind_a_click(late_objects(report))} if report.late else {}),
            **numbers(report, history),
            "details": behind_a_click(details(report, f"{place.namespace.uri}/{folder}")),
        }
    )


def summary(report: Report) -> str:
    """What became of the approved objects, and how long it took, if a single run did it."""
    gone = (Outcome.DELETED.value, Outcome.QUARANTINED.value)
    objects, freed = (sum(counts.get(name, 0) for name in gone) for counts in (report.objects, report.sizes))
    what = "moved to quarantine" if report.quarantine else "deleted"
    verdict = "" if report.success else " **Not everything went well**: see the table, and the failure of the run."
    kept, verified = report.approved - objects, len(report.verifications)
    duration = f" in {report.seconds:,.1f} seconds" if report.taken == objects else ""
    rest = f" {plural(kept, 'object')} had another outcome." if kept else ""
    return (
        f"**{objects:,} of {plural(report.approved, 'approved object')} ({size(freed)}) {was_or_were(objects)} "
        f"{what}**{duration}.{rest} Everything that may need approved objects was read "
        f"again {'before' if verified == 1 else f'{verified:,} times, before and while'} they were {what}.{verdict}"
    )


def outcomes(report: Report) -> str:
    rows = [
        (meaning, f"{report.objects[name]:,}", unbroken(size(report.sizes.get(name, 0))))
        for name, meaning in OUTCOMES.items()
        if name in report.objects
    ]
    others = [
        (as_text(name), f"{count:,}", unbroken(size(report.sizes.get(name, 0))))
        for name, count in sorted(report.objects.items())
        if name not in OUTCOMES
    ]
    return table(["outcome", "objects:", "bytes:"], [*rows, *others])


def numbers(report: Report, history: History | None) -> dict[str, int | float]:
    """The numbers that Dagster plots over the sweeps of all repositories."""
    return {
        "dagster/row_count": report.approved,
        **{f"{OBJECTS}{outcome}": count for outcome, count in sorted(report.objects.items())},
        **{f"bytes.{outcome}": count for outcome, count in sorted(report.sizes.items())},
        **({} if history is None else {"bytes_freed_in_all": history.freed_bytes}),
        "seconds": report.seconds,
        "keys_a_second": round(report.taken / report.seconds) if report.seconds else 0,
    }


def details(report: Report, where: str) -> str:
    return details_table(
        {
            "repository": report.repository,
            "mark": report.mark_id,
            "digest": report.digest,
            "by": report.by,
            "success": report.success,
            "requests": report.requests,
            "repeated": max(0, report.attempts - report.taken),
            "verifications": len(report.verifications),
            "where": where,
        }
    )


def space_notes(report: Report) -> dict[str, str]:
    """Whether deleting frees space in this store, and how to purge or restore quarantined objects."""
    metadata = {}
    if report.objects.get(Outcome.DELETED.value):
        metadata["deleting"] = report.deleting
    if report.objects.get(Outcome.QUARANTINED.value):
        name = f"{report.repository} {report.mark_id}"
        metadata["quarantine"] = (
            f"no space is freed until these objects are purged: lakegc purge {name}. To restore all of them: "
            f"lakegc undo {name}"
        )
    return metadata


def late_objects(report: Report) -> str:
    """The first PREVIEW_ROWS of the objects that became live while they were being deleted."""
    return table(["address"], [[as_text(address)] for address in report.late[:PREVIEW_ROWS]])


def times_and_samples(place: Place, folder: str, report: Report) -> tuple[Counter[float], str]:
    """The number of outcomes per second, and a table of the first PREVIEW_ROWS objects that were not deleted; "" if
    there are none. Reads one file at a time."""
    times: Counter[float] = Counter()
    rows: list[list[str]] = []
    dataset = open_dataset(place, folder, sha256=report.dataset["sha256"])
    for file in dataset.files:
        receipts = read_file(place, folder, file, RECEIPTS)
        seconds = pc.value_counts(pc.floor_temporal(receipts["at"], unit="second"))
        times.update({row["values"].timestamp(): row["counts"] for row in seconds.to_pylist()})
        needs_attention = receipts.filter(pc.is_in(receipts["outcome"], value_set=pa.array(NEEDS_ATTENTION)))
        for row in needs_attention.slice(0, PREVIEW_ROWS - len(rows)).to_pylist():
            why = ": ".join(filter(None, (row["code"], row["why"])))
            rows.append([as_text(row["outcome"]), as_text(why), size(row["size"] or 0), as_text(row["address"])])
    return times, table(["outcome", "why", "size:", "address"], rows) if rows else ""


def rate(times: Counter[float]) -> str:
    """A plot of objects processed per second over the sweep, with its scale in words, as Markdown."""
    first, last = min(times), max(times)
    width = max(1.0, (last - first + 1) / MAX_COLUMNS)
    columns = [0.0] * (int((last - first) / width) + 1)
    for moment, count in times.items():
        columns[int((moment - first) / width)] += count / width
    scale = f"At most {plural(round(max(columns)), 'object')} in a second."
    if len(columns) == 1:
        return scale
    return f"{scale} Each column: {width:,.1f} s.\n\n{column_plot('Objects per second', columns)}"
