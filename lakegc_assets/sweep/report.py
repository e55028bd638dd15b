"""The report of a sweep: the outcome of each approved object, and totals that must add up before the sweep is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import TypedDict

from lakegc_assets.formatting import plural
from lakegc_assets.mark.keep_evidence import OBJECTS
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.sweep.context import RESCUED, SWEEP_RECEIPTS, UNDONE, Reverification, SweepRun
from lakegc_assets.sweep.delete_rounds import Tally
from spark_resources.errors import DamagedData, NotFound, WrongUsage
from spark_resources.identifiers import lakefs_id, repository_on
from spark_resources.mark_store.mark import mark_folder
from spark_resources.model import RECEIPTS, Outcome
from spark_resources.records.json_records import record_bytes
from spark_resources.records.model import AsInJson, Count, Record, UtcTime
from spark_resources.spark.arrow_shuffle import GroupedRows, Input, sampled_boundaries, shuffle
from spark_resources.spark.datasets import DatasetName, parquet_output
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import first_rows
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPORT_FORMAT = 2
MAX_NAMED = 1_000  # maximum number of objects named in a summary; the dataset has all
ASSET = "sweep_report"
ROWS_PER_TASK = 250_000
MAX_REFUSALS = 3  # maximum number of reasons for failures in a summary


class Refusal(TypedDict):
    """One of the most frequent reasons why objects failed: the store's code, its message with "…" in place of the
    key, the number of objects, and an example key."""

    code: str
    why: str
    objects: int
    example: str


@dataclass(frozen=True, slots=True)
class Report(Record):
    """The summary of a sweep, as stored in `sweep.json`. Times are by the store's clock; `seconds` is the time spent
    deleting.

    `seconds`, `requests`, `attempts`, `verifications`, `unread` and `taken` (deleted or quarantined objects) are those
    of the run that ended the sweep, without earlier, interrupted runs. `objects` and `sizes` (in bytes), by outcome,
    add up to the approved set. `late` are the first MAX_NAMED objects that became live after the last re-verification
    but were already deleted: they can only be restored from a backup or from quarantine. `quarantine` means that the
    sweep quarantined objects, which a retry must also do. `unread` are the other repositories that could not be read
    and were released by name, each with the reason.
    """

    optional_fields = frozenset({"quarantine", "taken", "dataset", "deleting", "unread", "refusals"})

    mark_id: str
    repository: str
    digest: str
    by: str
    began: UtcTime
    ended: UtcTime
    approved: Count
    objects: Mapping[str, Count]
    sizes: Mapping[str, Count]
    seconds: float
    requests: Count
    attempts: Count
    verifications: AsInJson[tuple[UtcTime, ...]]
    late: AsInJson[tuple[str, ...]]
    late_objects: Count
    quarantine: bool = False
    taken: Count = 0
    dataset: DatasetName = field(default_factory=lambda: DatasetName(folder="", sha256="", rows=0, bytes=0))
    deleting: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)
    refusals: AsInJson[tuple[Refusal, ...]] = ()
    format: int = REPORT_FORMAT

    @property
    def success(self) -> bool:
        """True if every object has an outcome, none failed, and none that became live was deleted or quarantined."""
        return (
            sum(self.objects.values()) == self.approved
            and not self.objects.get(Outcome.FAILED.value)
            and not self.late_objects
        )

    def sentence(self) -> str:
        """The result in a few sentences, with the next step."""
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.objects.items())) or "nothing to do"
        approved = plural(self.approved, "object")
        text = f"mark {self.mark_id} of {self.repository}, {approved} approved: {counts}"
        if failed := self.objects.get(Outcome.FAILED.value):
            retry = f"lakegc sweep {self.repository} {self.mark_id}{' --quarantine' if self.quarantine else ''}"
            text += f". {failed:,} could not be deleted; the report has the store's responses. To retry: {retry}"
        if self.late_objects:
            text += (
                f". {plural(self.late_objects, 'object')} became live while being deleted, and "
                f"{'is' if self.late_objects == 1 else 'are'} now missing for readers: "
                f"{', '.join(self.late[:3])}{' …' if self.late_objects > 3 else ''}. Restore "
                f"{'it' if self.late_objects == 1 else 'them'} from a backup, or with 'lakegc undo' if quarantined"
            )
        if self.unread:
            text += f". Other repositories could not be read and were released: {', '.join(sorted(self.unread))}"
        return text

    def to_json(self) -> bytes:
        return record_bytes(
            {attribute.name: getattr(self, attribute.name) for attribute in fields(self)} | {"success": self.success}
        )

    @classmethod
    def as_declared(cls, plain: dict[str, Any]) -> dict[str, Any]:
        """The fields without `success`, which follows from them. Reports of the first format are converted, so that
        their quarantined objects can still be restored or purged."""
        fields_ = dict(plain)
        del fields_["success"]
        if fields_["format"] == 1:
            fields_ |= {"verifications": fields_.pop("proofs"), "format": REPORT_FORMAT}
        if fields_["format"] != REPORT_FORMAT:
            raise ValueError(f"format {fields_['format']}; this version of lakegc supports 1 and {REPORT_FORMAT}")
        return fields_

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid sweep report ({why}).", invariant=10)


def all_unread(verifications: Iterable[Reverification]) -> dict[str, str]:
    """The other repositories that any of these re-verifications could not read, each with the reason."""
    return {repository: why for verification in verifications for repository, why in verification.unread.items()}


def report_key(mark_id: str) -> str:
    return mark_folder(mark_id) + "sweep.json"


def read_report(place: Place, mark_id: str) -> Report | None:
    """The report of a mark's sweep; None if there is none yet."""
    key = report_key(mark_id)
    try:
        report = Report.from_json(place.records().read(key), f"{place.store().where}/{key}")
    except NotFound:
        return None
    return replace(report, repository=repository_on(place.server, lakefs_id(report.repository)))


def read_report_if_intact(place: Place, mark_id: str) -> Report | None:
    """Like `read_report`, but also None for a report that can't be read, or that isn't in a mark's folder."""
    try:
        return read_report(place, mark_id)
    except (DamagedData, WrongUsage):
        return None


def most_frequent_failures(outcomes: DataFrame) -> tuple[Refusal, ...]:
    """`Report.refusals` computed from the outcomes (RECEIPTS)."""
    from pyspark.sql import functions as F

    failed = outcomes.where(F.col("outcome") == Outcome.FAILED.value)
    comparable = failed.withColumn("why", F.replace(F.coalesce("why", F.lit("")), F.col("address"), F.lit("…")))
    groups = comparable.groupBy("code", "why").agg(F.count("*").alias("objects"), F.min("address").alias("example"))
    rows = groups.orderBy(F.desc("objects"), "code", "why").limit(MAX_REFUSALS).collect()
    return tuple(
        Refusal(code=row["code"], why=row["why"], objects=row["objects"], example=row["example"]) for row in rows
    )


def write_report(
    run: SweepRun, approved: Input, tally: Tally, closing: Reverification | None, started_at: datetime
) -> Report:
    """Write each object's outcome (RECEIPTS), then `sweep.json`. Raises `DamagedData` if an object has no outcome."""

    def reported(rows: GroupedRows, report: TaskReport) -> pa.Table:
        outcomes = sweep_outcomes.reported(rows[OBJECTS], rows[SWEEP_RECEIPTS], rows[UNDONE])
        report.count(approved=len(rows[OBJECTS]))
        groups = outcomes.group_by("outcome", use_threads=False).aggregate([("size", "count"), ("size", "sum")])
        for group in groups.to_pylist():
            report.count_for(group["outcome"], objects=group["size_count"], bytes=group["size_sum"])
        return outcomes

    inputs = [approved, run.outcomes(SWEEP_RECEIPTS), run.outcomes(UNDONE, run.undone)]
    output = parquet_output(run.mark.folder(ASSET), RECEIPTS)
    with errors_from_executors():
        (dataset,), totals = shuffle(run.spark, inputs, boundaries=boundaries_for(run, approved)).write(
            reported, run.place, [output]
        )
        count, objects = totals.counters["approved"], totals.by_key["objects"]
        if without_outcome := count - dataset.rows:
            raise DamagedData(
                f"mark {run.mark.record.mark_id} has no outcome for {without_outcome:,} of "
                f"{plural(count, 'approved object')}. "
                "The sweep isn't finished: run the same command again.",
                invariant=10,
            )
        late = run.read(closing.rescued, RESCUED) if closing and closing.rescued.rows else None
        late_addresses = first_rows(late, ["address"], MAX_NAMED)["address"].to_pylist() if late is not None else []
        refusals = most_frequent_failures(run.read(dataset, RECEIPTS)) if objects[Outcome.FAILED.value] else ()
    record = run.mark.record
    report = Report(
        mark_id=record.mark_id,
        repository=record.repository,
        digest=record.digest or "",
        by=run.by,
        began=started_at,
        ended=run.store.now(),
        approved=count,
        objects=dict(objects),
        sizes=dict(totals.by_key["bytes"]),
        seconds=round(tally.seconds, 2),
        requests=tally.requests,
        attempts=tally.attempts,
        verifications=tuple(verification.started_at for verification in tally.reverifications),
        late=tuple(late_addresses),
        late_objects=closing.rescued.rows if closing else 0,
        quarantine=run.limits.quarantine,
        taken=sum(tally.objects[outcome.value] for outcome in (Outcome.DELETED, Outcome.QUARANTINED)),
        deleting=run.store.delete_effect().value,
        unread=all_unread([*tally.reverifications, *([closing] if closing else [])]),
        refusals=refusals,
        dataset=dataset.name_for_record(),
    )
    stored = replace(report, repository=lakefs_id(report.repository))  # without the server's name
    run.place.records().write(report_key(record.mark_id), stored.to_json())
    return report


def boundaries_for(run: SweepRun, approved: Input) -> pa.Array:
    """Addresses that divide the approved ones evenly among tasks."""
    tasks = 1 + approved.count // ROWS_PER_TASK
    if tasks == 1:
        return pa.array([], pa.string())
    return sampled_boundaries(run.read(*run.recorded_objects), approved.count, tasks)
