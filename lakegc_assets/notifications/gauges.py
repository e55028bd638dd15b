"""The metrics of one repository, computed from its records. Pure.

All are gauges: the records of a namespace can be retired, so any number can become smaller. Names follow the
conventions of Prometheus; `repository` is the only label, so the number of series doesn't grow with the number of
marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from lakegc_assets.backup.manifest import Backup
from lakegc_assets.rules.brakes import BrakeLimits, brakes, effective_time
from lakegc_assets.sweep.report import Report
from spark_resources.mark_store.record import RECORD_FORMAT, MarkRecord, finished_at
from spark_resources.model import MarkState, Outcome


@dataclass(frozen=True, slots=True)
class Gauge:
    """One metric: its name, what it measures, and its value."""

    name: str
    help: str
    value: float


def repository_gauges(
    marks: Sequence[MarkRecord], reports: Sequence[Report], limits: BrakeLimits, *, now: datetime
) -> list[Gauge]:
    """The metrics of a repository's finished marks and sweep reports, in any order. `now` is by the store's clock.

    Marks of earlier formats are left out. If there is no mark or no sweep, its metrics are left out instead of being 0.
    """
    known = [record for record in marks if record.format == RECORD_FORMAT and record.finished is not None]
    gauges: list[Gauge] = []
    if known:
        gauges += _newest_mark(max(known, key=finished_at), limits, now)
        waiting = sum(_is_waiting(record, limits, now) for record in known)
        gauges.append(Gauge("lakegc_marks_waiting", "Marks that can be approved and have expired objects.", waiting))
    if reports:
        gauges += _sweeps(reports)
    return gauges


def _newest_mark(record: MarkRecord, limits: BrakeLimits, now: datetime) -> Iterator[Gauge]:
    counts, finished = record.counts, finished_at(record)
    started = min((step.started for step in record.steps.values()), default=record.start)
    tripped = sum(brake.tripped for brake in brakes(record, limits, now=now))
    for name, text, value in (
        ("timestamp_seconds", "When the newest mark was finished, by the store's clock.", finished.timestamp()),
        ("duration_seconds", "How long the newest mark took.", (finished - started).total_seconds()),
        ("stored_objects", "Stored objects that the newest mark compared: its candidates.", counts["candidates"]),
        ("stored_bytes", "Size of the objects that the newest mark compared.", counts["candidate_bytes"]),
        ("live_objects", "Addresses that the newest mark found to be live.", counts["live"]),
        ("expired_objects", "Objects that the newest mark found to be expired.", counts["expired"]),
        ("expired_bytes", "Size of the objects that the newest mark found to be expired.", counts["expired_bytes"]),
        (
            "kept_bytes",
            "Size of the stored objects that the newest mark did not find to be expired.",
            counts["candidate_bytes"] - counts["expired_bytes"],
        ),
        ("brakes_tripped", "Brakes that the newest mark trips.", tripped),
    ):
        yield Gauge(f"lakegc_last_mark_{name}", text, value)


def _is_waiting(record: MarkRecord, limits: BrakeLimits, now: datetime) -> bool:
    is_recent = now - effective_time(record) <= limits.age
    return record.state is MarkState.MARKED and record.counts["expired"] > 0 and is_recent


def _sweeps(reports: Sequence[Report]) -> Iterator[Gauge]:
    newest = max(reports, key=lambda report: report.ended)
    objects, sizes = newest.objects, newest.sizes
    for name, text, value in (
        ("timestamp_seconds", "When the last sweep ended, by the store's clock.", newest.ended.timestamp()),
        (
            "duration_seconds",
            "How long the last run of the last sweep took.",
            (newest.ended - newest.began).total_seconds(),
        ),
        ("deleted_objects", "Objects that the last sweep deleted.", objects.get(Outcome.DELETED.value, 0)),
        ("deleted_bytes", "Size of the objects that the last sweep deleted.", sizes.get(Outcome.DELETED.value, 0)),
        (
            "quarantined_objects",
            "Objects that the last sweep quarantined.",
            objects.get(Outcome.QUARANTINED.value, 0),
        ),
        ("failed_objects", "Objects that the last sweep failed to delete.", objects.get(Outcome.FAILED.value, 0)),
        (
            "rescued_objects",
            "Objects that the last sweep kept because they were live again.",
            objects.get(Outcome.RESCUED.value, 0),
        ),
        (
            "late_objects",
            "Objects that became live while the last sweep was deleting them.",
            newest.late_objects,
        ),
    ):
        yield Gauge(f"lakegc_last_sweep_{name}", text, value)
    freed = (Outcome.DELETED.value, Outcome.PURGED.value)
    for unit, totals in (
        ("objects", [report.objects for report in reports]),
        ("bytes", [report.sizes for report in reports]),
    ):
        value = sum(total.get(outcome, 0) for total in totals for outcome in freed)
        text = f"Total {unit} deleted by all sweeps and purges with a report in the namespace."
        yield Gauge(f"lakegc_freed_{unit}", text, value)


def backup_gauges(backup: Backup) -> list[Gauge]:
    """The metrics of a repository's newest backup."""
    return [
        Gauge(f"lakegc_last_backup_{name}", text, value)
        for name, text, value in (
            (
                "timestamp_seconds",
                "When the newest backup ended, by the clock of the store that it is in.",
                backup.ended.timestamp(),
            ),
            ("duration_seconds", "How long the last run of the newest backup took.", backup.seconds),
            ("objects", "Objects in the newest backup.", backup.copied),
            ("bytes", "Size of the objects in the newest backup.", backup.copied_bytes),
        )
    ]
