"""`lakegc backup` and `lakegc restore` on the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from lakegc_assets.backup.context import CopyLimits, refuse_backup_early
from lakegc_assets.backup.destination import backup_folder, parse_place
from lakegc_assets.backup.manifest import Backup, read_backup
from lakegc_assets.backup.restore import RestoreResult, RestoreRun, Selection, open_source
from lakegc_assets.backup.restore import restore as restore_objects
from lakegc_assets.backup.restore_drill import DrillResult, drill, scratch_place
from lakegc_assets.cli.console import outcomes_table, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.formatting import is_or_are, outcome_in_words, plural, was_or_were
from lakegc_assets.progress import publish
from spark_resources.copying.copy_log import CopyStatus
from spark_resources.errors import FinishedWithFailures, LakegcError, WrongUsage
from spark_resources.host.user_folders import home_folder
from spark_resources.model import Partition
from spark_resources.settings import Settings

if TYPE_CHECKING:
    from spark_resources.spark.resource import SparkResource

_MAX_EXAMPLES = 10
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?(?:/s)?\Z", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bandwidth(text: str) -> float | None:
    """Parse bytes per second, such as 50M or 1.5GiB; None if the text is empty. Raises `WrongUsage` if it can't be
    parsed."""
    if not text:
        return None
    match = _RATE.match(text.strip())
    rate = float(match.group(1)) * _UNITS[match.group(2).lower()] if match else 0.0
    if not rate:
        raise WrongUsage(f"--bandwidth {text}: expected bytes per second, such as 500K, 50M or 1.5G (powers of 1024)")
    return rate


# --- backup -----------------------------------------------------------------------------------------------------------


def backup(repository: str, name: str, to: str, limits: CopyLimits) -> tuple[Backup, str]:
    """Run the job `back_up` for one finished mark. Returns the backup's summary and its destination."""
    servers = Servers.configured()
    layout, _, mark_id = name.rpartition("/")
    partition, settings = Partition.of(repository, mark_id), servers.settings(repository)
    to = to or settings.backup_to or ""
    if not to:
        raise WrongUsage("no backup destination is set: pass one after the mark, or set LAKEGC_BACKUP_TO")
    refuse_backup_early(servers.lakefs, settings, repository, name, to, servers.store_settings)
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance, run_backup

    config = {"to": to, "at_once": limits.at_once, "bandwidth": limits.bandwidth or 0.0, "layout": layout}
    with open_instance(dagster_home(os.environ)) as instance:
        run_backup(partition, config, instance=instance)
    place = parse_place(to, settings.store_settings())
    summary = read_backup(place, backup_folder(repository, mark_id))
    if summary is None:
        raise LakegcError(f"the backup of {partition} wrote no summary. Run the same command again.")
    return summary, to


def show_backup(repository: str, result: tuple[Backup, str], *, as_json: bool) -> None:
    """Print the summary of a backup. Raises `FinishedWithFailures` if archived objects could not be copied, or if
    nothing was copied because every object changed or vanished after the mark."""
    summary, to = result
    with printing():
        if as_json:
            sys.stdout.write(summary.to_json().decode() + "\n")
        else:
            show_summary(repository, summary, to)
    if summary.objects.get(CopyStatus.COLD.value) or summary.is_empty:
        raise FinishedWithFailures(summary.sentence(repository))


def show_summary(repository: str, summary: Backup, to: str) -> None:
    title = f"Backup of mark {summary.subject.mark_id} of {repository}"
    print_table(
        title,
        outcomes_table(
            CopyStatus, summary.objects, summary.sizes, ("in the backup", summary.copied, summary.copied_bytes)
        ),
    )
    not_copied = summary.marked - summary.copied
    list_location = f"the backup's list of objects ({summary.dataset['folder']} in {to})"
    if summary.is_empty:
        print_sentence(f"The reason for each object is in {list_location}.")
        return
    why = f". For the other {not_copied:,}, the reason is in {list_location}" if not_copied else ""
    print_sentence(
        f"{summary.copied:,} of the mark's {plural(summary.marked, 'object')} {is_or_are(summary.copied)} in the "
        f"backup; each copy was verified against its original{why}. The backup took {summary.seconds:,.1f} s."
    )
    repository_and_mark = (repository, summary.subject.mark_id)
    sample_size = str(min(100, max(1, summary.copied)))
    print_command("Restore the objects", command("restore", *repository_and_mark, to))
    print_command(
        "Test the restore with a few objects", command("restore", *repository_and_mark, to, "--drill", sample_size)
    )


# --- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrillOptions:
    """The options of a drill: number of objects, seed of the sample, and scratch location ("": a temporary folder)."""

    objects: int
    seed: int = 0
    scratch: str = ""


def restore(
    partition: Partition, source: str, selection: Selection, limits: CopyLimits, drill_options: DrillOptions | None
) -> RestoreResult | DrillResult:
    """Restore the missing objects or, with `drill_options`, test the restore of a few in a scratch location."""
    with restore_run(partition, source, limits, with_lease=drill_options is None) as run:
        if drill_options is not None:
            settings = Settings.load(os.environ, home_folder(), repository=partition.repository).store_settings()
            with scratch_place(run, drill_options.scratch, settings) as scratch:
                return drill(run, selection, drill_options.objects, drill_options.seed, scratch)
        return restore_objects(run, selection)


@contextmanager
def restore_run(
    partition: Partition, source: str, limits: CopyLimits, *, with_lease: bool, spark: SparkResource | None = None
) -> Iterator[RestoreRun]:
    """Open a mark's backup to restore from it, under the repository's lease if `with_lease` is set (a drill needs no
    lease), and with a new Spark session unless `spark` is given. At the end, releases the lease and tears down
    `spark`."""
    from lakegc_assets.resources import MarksResource
    from lakegc_assets.sweep.preconditions import partition_and_target
    from spark_resources.lakefs.resource import LakeFSResource
    from spark_resources.spark.resource import SparkResource

    spark = SparkResource() if spark is None else spark
    marks = MarksResource(lakefs=LakeFSResource(), spark=spark)
    context = dg.build_init_resource_context()
    try:
        _, target = partition_and_target(marks, str(partition))
        settings = marks.settings(partition.repository)
        place, backup = open_source(target, settings.store_settings(), partition.mark_id, source)
        if with_lease:
            marks.ensure_lease(partition, target, settings)
        yield RestoreRun(target, backup, place, marks.lakefs.client(), marks.session, limits, publish)
    finally:
        marks.teardown_after_execution(context)
        spark.teardown_after_execution(context)


def show_restored(partition: Partition, result: RestoreResult | DrillResult, source: str, *, as_json: bool) -> None:
    """Print the result of a restore or drill. Raises `FinishedWithFailures` if an object differs or wasn't restored."""
    if isinstance(result, DrillResult):
        show_drill(partition, result, source, as_json=as_json)
        return
    with printing():
        if as_json:
            print_text(json.dumps(document(partition, result), indent=1))
        else:
            for line in result_lines(result):
                print_sentence(line)
            print_command("Verify the metadata", command("fsck", partition.repository))
    if not result.success:
        raise FinishedWithFailures(
            f"not all objects of mark {partition.mark_id} of {partition.repository} could be restored and read: "
            f"{'; '.join(problems(result))}. Restored objects stay in place; run the same command again to retry the "
            "others."
        )


def document(partition: Partition, result: RestoreResult) -> dict[str, Any]:
    return {
        "repository": partition.repository,
        "mark_id": partition.mark_id,
        "objects": dict(result.objects),
        "bytes": result.restored_bytes,
        "never_held": result.not_in_backup,
        "unknown_keys": list(result.unknown_keys),
        "lacking": list(result.missing_copies),
        "taken": list(result.key_conflicts),
        "failed": dict(result.failures),
        "stored": result.stored_count,
        "paths": {
            "known": result.path_count,
            "asked": result.paths_requested,
            "read": result.paths_read,
            "unread": dict(result.unreadable_paths),
        },
        "success": result.success,
    }


def result_lines(result: RestoreResult) -> Iterator[str]:
    """The result of a restore, as sentences for people."""
    subject, restored = result.backup.subject, result.objects[CopyStatus.COPIED.value]
    yield (
        f"Mark {subject.mark_id} of {subject.repository}: {plural(restored, 'object')} ({size(result.restored_bytes)}) "
        f"{was_or_were(restored)} restored, and {result.objects[CopyStatus.ALREADY_THERE.value]:,} already existed."
    )
    yield f"A new lookup found {result.stored_count:,} of these objects in the store."
    if result.path_count:
        requested, paths = f"{result.paths_requested:,}", plural(result.path_count, "recorded path")
        yield f"lakeFS was asked for {requested} of {paths} of these objects; {result.paths_read:,} could be read."
    else:
        yield "The mark records no paths for these objects, so none were requested from lakeFS."
    if result.not_in_backup:
        counts = ", ".join(
            f"{count:,} {outcome_in_words(name)}" for name, count in sorted(result.not_in_backup.items())
        )
        yield f"Objects not included in the backup: {counts}."


def problems(result: RestoreResult) -> Iterator[str]:
    """The reasons why objects weren't restored or can't be read, with the first few objects for each."""
    kinds = (
        (len(result.unknown_keys), "requested but not in the backup", [repr(key) for key in result.unknown_keys]),
        (
            result.objects[CopyStatus.VANISHED.value],
            "missing from the backup",
            [repr(key) for key in result.missing_copies],
        ),
        (
            result.objects[CopyStatus.KEY_CONFLICT.value],
            "not restored, because a different object is at the key",
            [repr(key) for key in result.key_conflicts],
        ),
        (
            result.objects[CopyStatus.FAILED.value] + result.objects[CopyStatus.COLD.value],
            "failed",
            [f"{key!r}: {why}" for key, why in result.failures.items()],
        ),
        (
            len(result.unreadable_paths),
            "unreadable through lakeFS",
            [f"{key!r}: {why}" for key, why in result.unreadable_paths.items()],
        ),
    )
    for count, problem, examples in kinds:
        if count:
            yield f"{count:,} {problem} ({', '.join(examples[:_MAX_EXAMPLES])}{', …' if count > _MAX_EXAMPLES else ''})"


def show_drill(partition: Partition, result: DrillResult, source: str, *, as_json: bool) -> None:
    name = f"mark {partition.mark_id} of {partition.repository}"
    with printing():
        if as_json:
            counts = {
                "wanted": result.sample_size,
                "same": dict(result.identical),
                "wrong": result.problems,
                "success": result.success,
            }
            print_text(
                json.dumps({"repository": partition.repository, "mark_id": partition.mark_id, **counts}, indent=1)
            )
        else:
            same = sum(result.identical.values())
            print_sentence(
                f"{same:,} of {plural(result.sample_size, 'object')} of {name} {was_or_were(same)} restored unchanged."
            )
            for how, count in sorted(result.identical.items()):
                print_sentence(f"Compared with {how}: {count:,} matched.")
            restore_command = command("restore", partition.repository, partition.mark_id, source)
            print_command("Restore what is missing", restore_command)
    if not result.success:
        wrong = "; ".join(f"{key!r}: {why}" for key, why in list(result.problems.items())[:_MAX_EXAMPLES])
        raise FinishedWithFailures(
            f"in the drill, {plural(len(result.problems), 'object')} from the backup of {name} could not be restored "
            f"unchanged: {wrong}"
        )
