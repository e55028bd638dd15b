"""The last part of `expired_set`: decides which objects are kept, and writes the expired ones and those that no
retained commit refers to, with reasons, in one pass."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import addresses_on_hold, expiry_reasons, sample_objects, totals
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.expiry_reasons import ATTRIBUTED, Attributions
from lakegc_assets.mark.keep_evidence import EvidenceByReason, decisions_of, inputs_of
from lakegc_assets.mark.mark_chain import can_be_base
from lakegc_assets.mark.reference_status import STATUS, ReferenceStatus
from lakegc_assets.rules import garbage, keep_reasons
from lakegc_assets.rules.expiry_reasons import explained, strongest_attributions
from lakegc_assets.rules.keep_reasons import HOLD, OTHER_REPOSITORY
from spark_resources.mark_store.foreign_layouts import reference_outputs
from spark_resources.model import EXPIRED_OBJECTS, NOT_RETAINED
from spark_resources.spark.arrow_shuffle import GroupedRows, even_boundaries, sampled_boundaries, shuffle
from spark_resources.spark.datasets import Dataset, Output, parquet_output, where_not_null
from spark_resources.spark.task_report import TaskReport

ASSET = "expired_set"
NOT_RETAINED_PART = "not_retained"
ROWS_PER_TASK, MIN_ROWS_PER_TASK = 100_000, 50_000


def write_mark(
    run: MarkRun,
    notes: StepNotes,
    status: ReferenceStatus,
    attributions: Attributions,
    evidence: EvidenceByReason,
) -> tuple[Dataset, TaskReport]:
    """Write the outputs of the mark in one pass. Returns the dataset of the expired set, and the counts.

    - the expired set, sorted and with reasons
    - its totals and sample objects, for review
    - the expired set in the reference collector's layout
    - the objects that only holds keep
    - if this mark can be a base: all objects that no retained commit refers to
    """
    all_known, verdicts = expiry_reasons.all_commits_read(run, notes), attributions.verdicts
    decisions, scope = decisions_of(evidence), run.mark.record.scope

    def combine(rows: GroupedRows, report: TaskReport) -> pa.Table:
        known = strongest_attributions(rows[ATTRIBUTED])
        unreferenced = garbage.in_scope(garbage.unreferenced(rows[STATUS]), known["address"], scope)
        decided = keep_reasons.decided(unreferenced, decisions, rows)
        for reason, count in keep_reasons.kept_counts(decided).items():
            report.count_for(reason, kept=count)
        on_hold = keep_reasons.kept(decided, HOLD).rename_columns({"found": "hold"})
        addresses_on_hold.count_by_hold(on_hold, report)
        objects = garbage.not_committed(rows[STATUS])
        output = explained(objects, keep_reasons.not_kept(decided), known, verdicts, all_known=all_known)
        report.count(bytes=pc.sum(output["size"].filter(pc.is_valid(output["reason"])), min_count=0).as_py())
        return output.append_column("hold", on_hold["hold"].take(pc.index_in(output["address"], on_hold["address"])))

    outputs = outputs_of(run)
    inputs = [status.input, *attributions.inputs, *inputs_of(evidence)]
    written, report = shuffle(run.spark, inputs, boundaries=boundaries_for(run, status)).write(
        combine, run.place, list(outputs.values())
    )
    datasets = dict(zip(outputs, written, strict=True))
    for part, part_dataset in datasets.items():
        notes.add_dataset(part_dataset, part)
    dataset, text, kept = datasets[""], datasets["deleted.text"], report.by_key["kept"]
    notes.facts |= {
        "expired": dataset.rows,
        "expired_bytes": report.counters["bytes"],
        "not_in_text": dataset.rows - text.rows,
        "kept_for_other_repositories": kept[OTHER_REPOSITORY.name],
        "kept_by_probes": notes.facts["unreferenced"] - kept[OTHER_REPOSITORY.name] - kept[HOLD.name] - dataset.rows,
    }
    return dataset, report


def outputs_of(run: MarkRun) -> dict[str, Output]:
    """The outputs, by part."""
    record = run.mark.record
    expired_outputs = {
        "": parquet_output(run.mark.folder(ASSET), EXPIRED_OBJECTS),
        totals.PART: totals.totals_output(run.mark.folder(ASSET, totals.PART), record.start),
        sample_objects.PART: sample_objects.samples_output(run.mark.folder(ASSET, sample_objects.PART), record.mark_id),
        **dict(zip(("deleted", "deleted.text"), reference_outputs(record.mark_id), strict=True)),
    }
    outputs = {part: where_not_null("reason", output) for part, output in expired_outputs.items()}
    outputs[addresses_on_hold.OBJECTS_PART] = addresses_on_hold.on_hold_output(run)
    if can_be_base(run):
        outputs[NOT_RETAINED_PART] = parquet_output(run.mark.folder(ASSET, NOT_RETAINED_PART), NOT_RETAINED)
    return outputs


def boundaries_for(run: MarkRun, status: ReferenceStatus) -> pa.Array:
    """The addresses that divide `status.not_retained` into about equal shares, one per task; empty if one task is
    enough."""
    count, addresses = status.not_retained_count, status.not_retained_if_few
    if status.driver_rows is not None or not count:
        return pa.array([], pa.string())
    tasks = task_count(count, run.spark().sparkContext.defaultParallelism)
    if addresses is None:
        return sampled_boundaries(status.not_retained, count, tasks)
    return even_boundaries(addresses, tasks)


def task_count(objects: int, cores: int) -> int:
    """How many tasks to use: enough for each to hold its rows in memory, and at least one per core if rows suffice."""
    return max(1 + objects // ROWS_PER_TASK, min(cores, objects // MIN_ROWS_PER_TASK))
