"""Sweeping on the terminal: deleting what was approved, and quarantined objects back or gone for good."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from lakegc_assets.brakes import sentence_about
from lakegc_assets.sweeping.opening import SweepOptions, open_swept
from lakegc_assets.sweeping.report import Report, read_report
from lakegc_assets.sweeping.rounds import Tally
from lakegc_assets.sweeping.run import SweepRun
from lakegc_assets.terminal.marks import Server
from lakegc_assets.terminal.output import print_text
from lakegc_assets.terminal.words import cell, console, outcomes, printing
from spark_resources.errors import LakegcError, SweptWithFailures, WrongUsage
from spark_resources.model import Outcome, Partition

YES = "purge"


def sweep(partition: Partition, options: SweepOptions, *, as_json: bool) -> int:
    """Run the job `sweep` for one approved mark, and show its report; also that of a sweep with failures."""
    from lakegc_assets.launch import dagster_home, open_instance, run_sweep

    config = {"rate": options.rate or 0.0, "quarantine": options.quarantine}
    with open_instance(dagster_home(os.environ)) as instance:
        try:
            run_sweep(partition, config, instance=instance)
            failure = None
        except SweptWithFailures as error:
            failure = error
    place = Server.configured().target(partition.repository).place
    report = read_report(place, partition.mark_id)
    if report is None:
        raise LakegcError(f"the sweep of {partition} left no report. Run the same command again.")
    show_report(report, as_json=as_json)
    if failure is not None:
        raise failure
    return 0


@printing()
def show_report(report: Report, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(report.to_json().decode() + "\n")
        return
    title = f"Sweep of mark {report.mark_id} of {report.repository}"
    approved = ("approved", report.approved, sum(report.sizes.values()))
    out = console()
    out.print(outcomes(title, Outcome, report.objects, report.sizes, approved))
    done = sum(report.objects.get(one.value, 0) for one in (Outcome.DELETED, Outcome.QUARANTINED))
    rate = f", {report.taken / report.seconds:,.0f} objects a second" if report.seconds else ""
    before = f" {done - report.taken:,} objects were dealt with by earlier runs." if done > report.taken else ""
    out.print(
        f"Took {report.seconds:,.1f} s of deleting{rate}, with {report.requests:,} requests; proved "
        f"{len(report.proofs) + bool(done)} times.{before}",
        markup=False,
    )
    for repository, why in sorted(report.unread.items()):
        out.print(cell(f"Not read, and released: {sentence_about(repository)}: {why}"), soft_wrap=True)
    if done:
        out.print(f"As to space: {report.deleting}.", markup=False, soft_wrap=True)
    if report.objects.get(Outcome.QUARANTINED.value):
        name = f"{report.repository} {report.mark_id}"
        out.print(f"Back again: lakegc undo {name}. Gone for good: lakegc purge {name}", markup=False)


# --- what was put aside ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """What became of quarantined objects, by outcome."""

    partition: Partition
    objects: dict[str, int]

    def show(self, *, as_json: bool) -> None:
        with printing():
            if as_json:
                print_text(json.dumps({"repository": self.partition.repository, "mark_id": self.partition.mark_id,
                                  "objects": self.objects}))  # fmt: skip
            else:
                counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.objects.items()))
                text = counts or "nothing of it is in quarantine"
                console().print(cell(f"Mark {self.partition.mark_id} of {self.partition.repository}: {text}."))


def undo(partition: Partition, *, as_json: bool) -> None:
    from lakegc_assets.sweeping import undo as work

    finish(partition, work.undo, as_json=as_json)


def purge(partition: Partition, *, yes: bool, as_json: bool) -> None:
    from lakegc_assets.sweeping import undo as work

    if not yes:
        ask(partition)
    finish(partition, work.purge, as_json=as_json)


def ask(partition: Partition) -> None:
    """Want the word typed. Raises `WrongUsage` where nobody can, or somebody doesn't."""
    if not sys.stdin.isatty():
        raise WrongUsage("purge deletes quarantined objects for good, and nobody is there to ask: add --yes")
    out = console()
    out.print(
        f"What the sweep of mark {partition.mark_id} put aside in {partition.repository} is deleted for good; what is "
        f"live by now is brought back instead. Type '{YES}' to go on.",
        markup=False,
    )
    if input("> ").strip() != YES:
        raise WrongUsage("not purged: the word was not typed")


def finish(partition: Partition, work: Callable[[SweepRun], Tally], *, as_json: bool) -> None:
    with opened(partition) as run:
        tally = work(run)
    Done(partition, dict(tally.objects)).show(as_json=as_json)
    if failed := tally.objects.get(Outcome.FAILED.value):
        raise SweptWithFailures(
            f"{failed:,} quarantined objects of mark {partition.mark_id} could not be dealt with. The receipts under "
            f"{run.undone.folder} say why; run the same command again to try these once more."
        )


@contextmanager
def opened(partition: Partition) -> Iterator[SweepRun]:
    """A swept mark under its lease, with a Spark session of this command's own."""
    from lakegc_assets.marking.resource import MarksResource
    from spark_resources.lakefs.resource import LakeFSResource
    from spark_resources.session import SparkResource

    spark = SparkResource()
    marks = MarksResource(lakefs=LakeFSResource(), spark=spark)
    context = dg.build_init_resource_context()
    try:
        yield open_swept(marks, str(partition), SweepOptions(), lambda _: None)
    finally:
        marks.teardown_after_execution(context)
        spark.teardown_after_execution(context)
