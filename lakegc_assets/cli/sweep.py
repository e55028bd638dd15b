"""`lakegc sweep`, `undo` and `purge`: delete approved objects; restore or permanently delete quarantined ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dagster as dg

from lakegc_assets.approval.foreign_marks import open_sweep_record
from lakegc_assets.cli.console import print_command, print_sentence, printing, read_answer
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import with_probed_capabilities
from lakegc_assets.progress import warning_logger
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.delete_rounds import Tally
from lakegc_assets.sweep.history import record_sweep
from lakegc_assets.sweep.preconditions import SweepOptions, open_swept, refuse_sweep_early
from lakegc_assets.sweep.quarantine import read_quarantine
from lakegc_assets.sweep.report import Report, read_report
from spark_resources.deleting.quarantine import key_in_quarantine
from spark_resources.errors import FinishedWithFailures, LakegcError, WrongUsage
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import refuse_retired
from spark_resources.model import MarkState, Outcome, Partition
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

CONFIRMATION = "purge"


def refuse_early(partition: Partition) -> None:
    """Refuse a sweep before its run is created, as far as small records show that it would be refused."""
    servers = Servers.configured()
    target = with_probed_capabilities(servers.target(partition.repository))
    settings = servers.settings(partition.repository)
    refuse_sweep_early(target, partition.mark_id, backup_to=settings.backup_to, limits=BrakeLimits.of(settings))


def sweep(partition: Partition, options: SweepOptions) -> tuple[Report, FinishedWithFailures | None]:
    """Run the job `sweep` for one approved mark. Returns its report, and the error if the sweep had failures."""
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance, run_sweep

    config = {"rate": options.rate or 0.0, "quarantine": options.quarantine}
    with open_instance(dagster_home(os.environ)) as instance:
        try:
            run_sweep(partition, config, instance=instance)
            failure = None
        except FinishedWithFailures as error:
            failure = error
    place = Servers.configured().target(partition.repository).place
    report = read_report(place, partition.mark_id)
    if report is None:
        raise LakegcError(f"the sweep of {partition} wrote no report. Run the same command again.")
    return report, failure


# --- quarantined objects --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QuarantineResult:
    """The result of an undo or purge: quarantined objects by outcome."""

    partition: Partition
    objects: dict[str, int]
    receipts: str = ""
    """The folder of the receipts with the outcome of each object."""
    restore: tuple[str, str] | None = None
    """If the sweep deleted objects: how to restore them, as a pair of purpose and command line."""

    def show(self, *, as_json: bool) -> None:
        """Print the result. Raises `FinishedWithFailures` if an object failed."""
        with printing():
            if as_json:
                print_text(json.dumps({"repository": self.partition.repository, "mark_id": self.partition.mark_id,
                                  "objects": self.objects}))  # fmt: skip
            else:
                counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.objects.items()))
                text = counts or "no objects in quarantine"
                repository_and_mark = (self.partition.repository, self.partition.mark_id)
                print_sentence(f"Mark {repository_and_mark[1]} of {repository_and_mark[0]}: {text}.")
                if self.restore is not None:
                    print_command(*self.restore)
                print_command("Show the report of the sweep", command("report", *repository_and_mark))
        if failed := self.objects.get(Outcome.FAILED.value):
            raise FinishedWithFailures(
                f"{plural(failed, 'quarantined object')} of mark {self.partition.mark_id} could not be processed. "
                f"The reasons are in the receipts under {self.receipts}. Run the same command again to retry."
            )


def undo(partition: Partition) -> QuarantineResult:
    """Restore a mark's quarantined objects."""
    from lakegc_assets.sweep.undo import undo as undo_sweep

    if quarantined_count(partition) == 0:
        return QuarantineResult(partition, {}, restore=how_to_restore(partition))
    return run_on_quarantine(partition, undo_sweep)


def how_to_restore(partition: Partition) -> tuple[str, str] | None:
    """How to restore the objects that the sweep of a mark deleted: a purpose and a command line. None if it deleted
    none."""
    servers = Servers.configured()
    report = read_report(servers.target(partition.repository).place, partition.mark_id)
    deleted = 0 if report is None else report.objects.get(Outcome.DELETED.value, 0)
    if not deleted:
        return None
    settings = servers.settings(partition.repository)
    where = settings.backup_to or ""
    restore_command = command("restore", partition.repository, partition.mark_id, where or "PLACE")
    what = f"The sweep deleted {plural(deleted, 'object')}"
    if where and is_backed_up(partition, where, settings.store_settings()):
        return f"{what}. To restore what is missing from the backup", restore_command
    return f"{what}. If there is a backup of the mark, restore what is missing with", restore_command


def is_backed_up(partition: Partition, where: str, settings: StoreSettings) -> bool:
    """Whether this location has a complete backup of a mark, as far as can be seen now."""
    from lakegc_assets.backup.destination import backup_folder, parse_place
    from lakegc_assets.backup.manifest import read_backup

    folder = backup_folder(partition.repository, partition.mark_id)
    try:
        return read_backup(parse_place(where, settings), folder) is not None
    except LakegcError:
        return False


def purge(partition: Partition) -> QuarantineResult:
    """Permanently delete a mark's quarantined objects that are still garbage."""
    from lakegc_assets.sweep.undo import purge as purge_quarantine

    return run_on_quarantine(partition, purge_quarantine)


def confirm_purge(partition: Partition, *, yes: bool) -> bool:
    """Whether to delete quarantined objects permanently; False if there are none. Asks for confirmation unless `yes` is
    set.

    Raises `WrongUsage` if the deletion isn't confirmed, or if standard input isn't a terminal.
    """
    if not yes and not sys.stdin.isatty():
        raise WrongUsage(
            "purge deletes permanently, so it needs a terminal to prompt for confirmation. In a script, pass --yes."
        )
    objects = quarantined_count(partition)
    place = Servers.configured().target(partition.repository).place
    if objects == 0 and not has_copies(place, partition.mark_id):
        return False
    if not yes:
        ask_for_confirmation(partition, objects)
    return True


def quarantined_count(partition: Partition) -> int | None:
    """The number of a mark's objects that are in quarantine now; None if its sweep is running or was interrupted.

    Raises `WrongUsage` if the mark was never swept or doesn't exist, `Retired` if it was retired.
    """
    target = Servers.configured().target(partition.repository)
    place, mark_id = target.place, partition.mark_id
    mark = open_sweep_record(target, mark_id) if not Mark.exists(place, mark_id) else Mark.open(place, mark_id)
    if mark is not None:
        refuse_retired(mark.record)
    state = None if mark is None else mark.record.state
    if state not in (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES, MarkState.SWEEPING):
        state_text = "doesn't exist" if mark is None else f"is {state}"
        raise WrongUsage(
            f"mark {mark_id} of {partition.repository} {state_text}, so it has no objects in quarantine. To list the "
            f"marks: {command('status', partition.repository)}"
        )
    report = read_report(place, mark_id)
    if report is None or state is MarkState.SWEEPING:
        return None
    return read_quarantine(place, report).left


def has_copies(place: Place, mark_id: str) -> bool:
    """Whether a mark's quarantine has any copy, including stray copies of an interrupted sweep."""
    return any(page.objects for page in place.store().pages(key_in_quarantine(mark_id, ""), page_size=1))


def ask_for_confirmation(partition: Partition, objects: int | None) -> None:
    objects_text = "Everything that" if objects is None else f"{plural(objects, 'object')} that"
    print_sentence(
        f"{objects_text} the sweep of mark {partition.mark_id} quarantined in {partition.repository} will be deleted "
        "permanently; anything that is live again will be restored instead."
    )
    answer = read_answer(f"Type '{CONFIRMATION}' to continue, anything else to cancel: ").strip()
    if answer != CONFIRMATION:
        raise WrongUsage(f"'{answer}' is not '{CONFIRMATION}': nothing was purged")


def run_on_quarantine(partition: Partition, work: Callable[[SweepRun], Tally]) -> QuarantineResult:
    with swept_run(partition) as run:
        tally = work(run)
        record_sweep(run.place, partition.mark_id, warning_logger(lambda _: None))
    return QuarantineResult(partition, dict(tally.objects), run.undone.folder)


@contextmanager
def swept_run(partition: Partition) -> Iterator[SweepRun]:
    """Open a swept mark under the lease, with a Spark session for this command only."""
    from lakegc_assets.resources import MarksResource
    from spark_resources.lakefs.resource import LakeFSResource
    from spark_resources.spark.resource import SparkResource

    spark = SparkResource()
    marks = MarksResource(lakefs=LakeFSResource(), spark=spark)
    context = dg.build_init_resource_context()
    try:
        yield open_swept(marks, str(partition), SweepOptions(), lambda _: None)
    finally:
        marks.teardown_after_execution(context)
        spark.teardown_after_execution(context)
