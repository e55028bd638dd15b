"""A sweep's metadata in Dagster: outcomes, a plot of the rate, and the objects that need attention."""

from __future__ import annotations

from collections import Counter
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.figures import in_markdown, new_figure
from lakegc_assets.sweep.report import Report
from spark_resources.model import RECEIPTS, Outcome
from spark_resources.spark.datasets import open_dataset, read_file
from spark_resources.stores.place import Place

PREVIEW_ROWS = 20
NEEDS_ATTENTION = (Outcome.FAILED.value, Outcome.CHANGED.value, Outcome.RESCUED.value)
MAX_BARS = 60
LATE = "came_to_life_too_late"
"""The metadata entry with the number of objects that became live while they were being deleted."""


def sweep_result(place: Place, report: Report) -> dg.MaterializeResult[Any]:
    """The result of `sweep_report`: totals, seconds, rate with a plot, and the objects that were not deleted."""
    folder = report.dataset["folder"]
    times, rows = times_and_samples(place, folder, report)
    return dg.MaterializeResult(
        metadata={  # in the order in which the UI displays them
            "repository": report.repository,
            "mark": report.mark_id,
            "success": report.success,
            "dagster/row_count": report.approved,
            **{f"objects.{outcome}": count for outcome, count in sorted(report.objects.items())},
            **{f"bytes.{outcome}": count for outcome, count in sorted(report.sizes.items())},
            **({"not_deleted": dg.MetadataValue.table(rows)} if rows else {}),
            **({"rate": dg.MetadataValue.md(plot(times))} if times else {}),
            "seconds": report.seconds,
            "keys_a_second": round(report.taken / report.seconds) if report.seconds else 0,
            "requests": report.requests,
            "repeated": max(0, report.attempts - report.taken),
            "verifications": len(report.verifications),
            **space_notes(report),
            **({"other_repositories_not_read": ", ".join(sorted(report.unread))} if report.unread else {}),
            LATE: report.late_objects,
            **({"readers_miss": dg.MetadataValue.table(late_objects(report))} if report.late else {}),
            "where": f"{place.namespace.uri}/{folder}",
            "explain": f"lakegc explain {report.repository} PATH_OR_ADDRESS",
        }
    )


def space_notes(report: Report) -> dict[str, str]:
    """What deleting does to the space in this store, and how to purge or restore quarantined objects."""
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


def late_objects(report: Report) -> list[dg.TableRecord]:
    """The first PREVIEW_ROWS of the objects that became live while they were being deleted."""
    return [dg.TableRecord({"address": address}) for address in report.late[:PREVIEW_ROWS]]


def times_and_samples(place: Place, folder: str, report: Report) -> tuple[Counter[float], list[dg.TableRecord]]:
    """The number of outcomes per second, and the first PREVIEW_ROWS objects that were not deleted. Reads one file at
    a time."""
    times: Counter[float] = Counter()
    rows: list[dg.TableRecord] = []
    dataset = open_dataset(place, folder, sha256=report.dataset["sha256"])
    for file in dataset.files:
        table = read_file(place, folder, file, RECEIPTS)
        seconds = pc.value_counts(pc.floor_temporal(table["at"], unit="second"))
        times.update({row["values"].timestamp(): row["counts"] for row in seconds.to_pylist()})
        needs_attention = table.filter(pc.is_in(table["outcome"], value_set=pa.array(NEEDS_ATTENTION)))
        rows += [
            dg.TableRecord({name: row[name] for name in ("address", "size", "outcome", "code", "why")})
            for row in needs_attention.slice(0, PREVIEW_ROWS - len(rows)).to_pylist()
        ]
    return times, rows


def plot(times: Counter[float]) -> str:
    """A plot of objects processed per second over the sweep, as a PNG in a line of Markdown."""
    first, last = min(times), max(times)
    width = max(1.0, (last - first + 1) / MAX_BARS)
    bars: Counter[int] = Counter()
    for moment, count in times.items():
        bars[int((moment - first) / width)] += count
    figure = new_figure(8, 2.4)
    axes = figure.subplots()
    axes.bar([number * width for number in bars], [count / width for count in bars.values()], width=width, align="edge")
    axes.set_xlabel("seconds since the first object", fontsize=8)
    axes.set_title("Objects per second", loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return in_markdown(figure, "Objects per second")
