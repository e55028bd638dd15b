"""Re-verification: find out what is live now, with the steps of a mark but today's rules and holds.

The ranges that the approved mark read contain no address of the approved set, and ranges never change. Therefore only
the other ranges are read (see `committed_addresses.trusted_ranges`). Metaranges don't change either: their ranges, and
the sizes of the objects in those, are taken from the mark's record (see `committed_addresses.trusted_record`). Results
are written into a separate folder, like those of a mark.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark import (
    committed_addresses,
    expired_set,
    keep_lookups,
    uncommitted_addresses,
)
from lakegc_assets.mark.context import Clocks, MarkRun, ReleasedRepositories, StepNotes, read_clocks, step
from lakegc_assets.mark.keep_evidence import OBJECTS, UndecidedObjects, decisions_of, evidence_at_addresses, inputs_of
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.reading_order import read_references
from lakegc_assets.rules import keep_reasons
from lakegc_assets.rules.brakes import released_repositories, servers_read, unread_repositories_in
from lakegc_assets.rules.keep_reasons import COMMITTED, STAGED
from lakegc_assets.sweep.context import RESCUED, Reverification, SweepRun
from lakegc_assets.sweep.head_watch import verified_ranges_and_commits
from spark_resources.errors import Refused
from spark_resources.mark_store.approval import read_approval
from spark_resources.mark_store.holds import Holds, read_holds
from spark_resources.mark_store.lease import boottime_s
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import FULL_MARK, RECORD_FORMAT, MarkRecord
from spark_resources.model import ADDRESSES, PENDING, RANGE_ADDRESSES, MarkState
from spark_resources.spark.arrow_shuffle import Grouped, GroupedRows, shuffle
from spark_resources.spark.datasets import Dataset, parquet_output
from spark_resources.spark.remote_errors import errors_from_executors
from spark_resources.spark.task_report import TaskReport

CANDIDATES = pa.schema([PENDING.field("address"), PENDING.field("size")])
RESCUED_PART = "rescued"
MAX_TRIES = 3


def reverify(run: SweepRun, candidates: Grouped) -> Reverification:
    """Determine which candidates (CANDIDATES) are live, by rules and holds that don't change while it runs.

    Raises `Refused` if that can't be determined, for example because of a damaged table, or if rules or holds keep
    changing.
    """
    for is_last_try in (*[False] * (MAX_TRIES - 1), True):
        try:
            return reverify_once(run, candidates, run.next_number())
        except Refused as error:
            if error.invariant != 7 or is_last_try:
                raise
            run.log_message("rules or holds changed during the re-verification: restarting it")
    raise AssertionError("unreachable: the last try raises or returns")


def reverify_once(run: SweepRun, candidates: Grouped, number: int) -> Reverification:
    """One re-verification. Everything is read after `started_at`, in the order of a mark.

    Raises `Refused` if the clocks differ too much: a server whose clock is ahead would retain fewer commits than the
    rules do (invariant 6).
    """
    run.lease.check()
    started_s = boottime_s()
    clocks = read_clocks(run.store, run.lakefs, run.target.repository.server, lambda: datetime.now(UTC))
    clocks.check(run.limits.marking.clock_skew, run.partition.repository)
    inner = begin_reverification(run, number, clocks)
    read_references(inner)
    with step(inner, expired_set.ASSET) as notes, errors_from_executors():
        rescued = write_rescued(inner, notes, candidates)
    inner.mark.move_to(MarkState.MARKED, finished=run.store.now())
    run.log_message(
        f"re-verified: {plural(rescued.rows, 'object')} must be kept"
        if rescued.rows
        else "re-verified: all objects are still garbage"
    )
    return Reverification(
        number,
        clocks.store,
        rescued,
        replace(verified_ranges_and_commits(inner), started_s=started_s),
        unread_repositories_in(inner.mark.record),
    )


def begin_reverification(run: SweepRun, number: int, clocks: Clocks) -> MarkRun:
    """Begin a re-verification: a run like that of a mark, with today's rules and holds and the approved mark's
    listing."""
    approved, holds = run.mark.record, read_holds(run.place, run.target.configured_holds)
    refuse_missing_holds(approved, holds, () if run.foreign is None else run.foreign.approval.configured_holds)
    refuse_missing_servers(approved, run.lakefs.servers, () if run.foreign is None else run.foreign.approval.servers)
    run.mark.record_newer_holds(holds.number, holds.ids_in_file)
    record = replace(
        approved,
        state=MarkState.MARKING,
        start=clocks.store,
        cutoff=clocks.store,
        min_age=timedelta(0),
        server_now=clocks.server,
        clocks=clocks.for_record(),
        rules=run.lakefs.rules(run.partition.repository),
        holds=holds.record_fields(),
        steps={"namespace_slices": replace(approved.step("namespace_slices"), datasets={})},
        finished=None,
        digest=None,
        counts={},
        basis=FULL_MARK,
        format=RECORD_FORMAT,
    )
    verification = Mark.begin(run.place, record, root=f"{run.reverifications_folder}{number:04d}/")
    return MarkRun(
        run.partition, run.target, verification, run.lakefs, run.spark, run.limits.marking, run.log_message,
        pa.array(committed_addresses.trusted_ranges(run.mark), pa.string()),
        committed_addresses.trusted_record(run.mark), released_by_approval(run),
        store_settings_of=run.store_settings_of,
    )  # fmt: skip


def refuse_missing_holds(approved: MarkRecord, holds: Holds, at_approval: Collection[str] = ()) -> None:
    """Raise `Refused` if the settings lack a hold that they had when the mark was made, or when a foreign mark was
    approved, for example because this process doesn't read the same fleet file.

    The hold might cover what was tagged or renamed since then. A foreign mark was made without any hold.
    """
    made = "approved" if at_approval else "made"
    if missing := sorted({*approved.holds.get("configured", ()), *at_approval} - set(holds.ids)):
        raise Refused(
            f"mark {approved.mark_id} of {approved.repository} was {made} with holds from the settings that are "
            f"missing now: {', '.join(missing)}. Set LAKEGC_CONFIG to the fleet file that has them. If they were "
            "removed on purpose, make a new mark.",
            invariant=3,
        )


def refuse_missing_servers(approved: MarkRecord, servers: Collection[str], at_approval: Collection[str] = ()) -> None:
    """Raise `Refused` if the settings lack a server whose repositories were read for the mark, or that they had when a
    foreign mark was approved, because its repositories may refer to the mark's objects, too."""
    read = servers_read(approved) or at_approval
    if missing := sorted({*read} - {""} - set(servers)):
        raise Refused(
            f"mark {approved.mark_id} of {approved.repository} was {'approved' if at_approval else 'made'} with "
            f"servers in the settings that are missing now: {', '.join(missing)}. Set LAKEGC_CONFIG to the fleet file "
            "that has them. If they were removed on purpose, make a new mark.",
            invariant=2,
        )


def released_by_approval(run: SweepRun) -> ReleasedRepositories:
    """The other repositories that the approval of this mark released by name; none for a foreign mark, which records no
    repository as unread."""
    record = run.mark.record
    approval = None if run.foreign is not None else read_approval(run.place, record.mark_id)
    if approval is None or approval.sha256 != record.approval:
        return ReleasedRepositories({}, record.server_now)
    return ReleasedRepositories(released_repositories(record, approval.released), record.server_now)


def write_rescued(run: MarkRun, notes: StepNotes, candidates: Grouped) -> Dataset:
    """Write RESCUED: the candidates that must be kept now, and why."""
    objects = UndecidedObjects(run, candidates, CANDIDATES, with_sizes)
    notes.facts["unreferenced"] = candidates.count
    evidence = {
        STAGED: evidence_at_addresses(STAGED, run.place, uncommitted_addresses.datasets(run), ADDRESSES),
        COMMITTED: evidence_at_addresses(COMMITTED, run.place, committed_addresses.live_datasets(run), RANGE_ADDRESSES),
        **keep_lookups.look_up(run, notes, objects, MarkChain.of_full(run)),
    }
    decisions = decisions_of(evidence)

    def combine(rows: GroupedRows, _: TaskReport) -> pa.Table:
        kept = keep_reasons.kept(keep_reasons.decided(with_sizes(rows[OBJECTS]), decisions, rows))
        return kept.append_column("why", keep_reasons.sentences(kept)).select(RESCUED.names)

    output = parquet_output(run.mark.folder(expired_set.ASSET, RESCUED_PART), RESCUED)
    inputs = [candidates.as_input(OBJECTS, CANDIDATES), *inputs_of(evidence)]
    (dataset,), _ = shuffle(run.spark, inputs).write(combine, run.place, [output])
    notes.add_dataset(dataset, RESCUED_PART)
    notes.facts["rescued"] = dataset.rows
    return dataset


def with_sizes(candidates: pa.Table) -> pa.Table:
    """The addresses and sizes of candidates; those absent from the mark's listing get size 0."""
    return pa.table([candidates["address"], pc.fill_null(candidates["size"], 0)], CANDIDATES.names)
