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

from lakegc_assets.backup.context import CopyLimits, refuse_at_once
from lakegc_assets.backup.destination import backup_place, folder_of
from lakegc_assets.backup.manifest import Backup, read_backup
from lakegc_assets.backup.restore import Chosen, Restored, RestoreRun, open_source
from lakegc_assets.backup.restore import restore as restore_objects
from lakegc_assets.backup.restore_drill import Drilled, drill, scratch_place
from lakegc_assets.cli.console import outcomes, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Server
from lakegc_assets.formatting import plural
from lakegc_assets.progress import publish
from spark_resources.copying.copy_log import CopyStatus
from spark_resources.errors import LakegcError, SweptWithFailures, WrongUsage
from spark_resources.host.user_folders import home_folder
from spark_resources.model import Partition
from spark_resources.settings import Settings

if TYPE_CHECKING:
    from spark_resources.spark.resource import SparkResource

_SHOWN = 10
_RATE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?(?:/s)?$", re.IGNORECASE)
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_bandwidth(text: str) -> float | None:
    """Parse bytes per second, such as 50M or 1.5GiB; None for an empty text. Raises `WrongUsage`."""
    if not text:
        return None
    found = _RATE.match(text.strip())
    rate = float(found.group(1)) * _UNITS[found.group(2).lower()] if found else 0.0
    if not rate:
        raise WrongUsage(f"--bandwidth {text}: expected bytes per second, such as 500K, 50M or 1.5G (powers of 1024)")
    return rate


# --- backup -----------------------------------------------------------------------------------------------------------


def backup(repository: str, name: str, to: str, limits: CopyLimits) -> tuple[Backup, str]:
    """Run the job `back_up` for one finished mark. Returns the backup's summary and its place."""
    server = Server.configured()
    layout, _, mark_id = name.rpartition("/")
    partition, settings = Partition.of(repository, mark_id), server.settings
    to = to or settings.backup_to or ""
    if not to:
        raise WrongUsage("no backup destination is given: name one after the mark, or set LAKEGC_BACKUP_TO")
    refuse_at_once(server.lakefs, settings, repository, name, to)
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance, run_backup

    config = {"to": to, "at_once": limits.at_once, "bandwidth": limits.bandwidth or 0.0, "layout": layout}
    with open_instance(dagster_home(os.environ)) as instance:
        run_backup(partition, config, instance=instance)
    place = backup_place(to, settings.store())
    found = read_backup(place, folder_of(repository, mark_id))
    if found is None:
        raise LakegcError(f"the backup of {partition} wrote no summary. Run the same command again.")
    return found, to


def show_backup(made: tuple[Backup, str], *, as_json: bool) -> None:
    """Print the content of a backup. Raises `SweptWithFailures` if archived objects could not be copied."""
    found, to = made
    with printing():
        if as_json:
            sys.stdout.write(found.to_json().decode() + "\n")
        else:
            show_summary(found, to)
    if found.objects.get(CopyStatus.COLD.value):
        raise SweptWithFailures(found.sentence())


def show_summary(found: Backup, to: str) -> None:
    title = f"Backup of mark {found.subject.mark_id} of {found.subject.repository}"
    print_table(
        title, outcomes(CopyStatus, found.objects, found.sizes, ("in the backup", found.copied, found.copied_bytes))
    )
    rest = found.marked - found.copied
    why = f". The list of objects says why {rest:,} {'is' if rest == 1 else 'are'} not" if rest else ""
    print_sentence(
        f"{found.copied:,} of {plural(found.marked, 'object')} of the mark {'is' if found.copied == 1 else 'are'} in "
        f"the backup, each compared with its original{why}. Took {found.seconds:,.1f} s."
    )
    name = (found.subject.repository, found.subject.mark_id)
    few = str(min(100, max(1, found.copied)))
    print_command("Restore them", command("restore", *name, to))
    print_command("Test the restore with a few objects", command("restore", *name, to, "--drill", few))


# --- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Practice:
    """Options of a drill: number of objects, seed of the sample, and scratch place; by default a temporary folder."""

    objects: int
    seed: int = 0
    scratch: str = ""


def restore(
    partition: Partition, source: str, chosen: Chosen, limits: CopyLimits, practice: Practice | None
) -> Restored | Drilled:
    """Restore the missing objects; or, for a drill, copy a few objects to a scratch place."""
    with opened(partition, source, limits, lease=practice is None) as run:
        if practice is not None:
            settings = Settings.load(os.environ, home_folder()).store()
            with scratch_place(run, practice.scratch, settings) as scratch:
                return drill(run, chosen, practice.objects, practice.seed, scratch)
        return restore_objects(run, chosen)


@contextmanager
def opened(
    partition: Partition, source: str, limits: CopyLimits, *, lease: bool, spark: SparkResource | None = None
) -> Iterator[RestoreRun]:
    """Open a backup of a mark, under the repository's lease if something will be written, and with a new Spark session
    unless one is given."""
    from lakegc_assets.resources import MarksResource
    from lakegc_assets.sweep.preconditions import located
    from spark_resources.lakefs.resource import LakeFSResource
    from spark_resources.spark.resource import SparkResource

    spark = SparkResource() if spark is None else spark
    marks = MarksResource(lakefs=LakeFSResource(), spark=spark)
    context = dg.build_init_resource_context()
    try:
        _, target = located(marks, str(partition))
        place, backup = open_source(target, marks.settings().store(), partition.mark_id, source)
        if lease:
            marks.hold(partition, target, marks.settings())
        yield RestoreRun(target, backup, place, marks.lakefs.client(), marks.session, limits, publish)
    finally:
        marks.teardown_after_execution(context)
        spark.teardown_after_execution(context)


def show_restored(partition: Partition, done: Restored | Drilled, source: str, *, as_json: bool) -> None:
    """Print the result of a restore or drill. Raises `SweptWithFailures` if an object wasn't restored, or differs."""
    if isinstance(done, Drilled):
        show_drill(partition, done, source, as_json=as_json)
        return
    with printing():
        if as_json:
            print_text(json.dumps(document(partition, done), indent=1))
        else:
            for line in lines(done):
                print_sentence(line)
            print_command("Verify the metadata", command("fsck", partition.repository))
    if not done.success:
        raise SweptWithFailures(
            f"not all objects of mark {partition.mark_id} of {partition.repository} were restored: "
            f"{'; '.join(problems(done))}. Restored objects stay in place; run the same command again to retry the "
            "others."
        )


def document(partition: Partition, done: Restored) -> dict[str, Any]:
    return {
        "repository": partition.repository,
        "mark_id": partition.mark_id,
        "objects": dict(done.objects),
        "bytes": done.size,
        "never_held": done.not_in_backup,
        "unknown_keys": list(done.unknown),
        "lacking": list(done.lacking),
        "taken": list(done.taken),
        "failed": dict(done.failed),
        "stored": done.stored,
        "paths": {"known": done.paths, "asked": done.asked, "read": done.read, "unread": dict(done.unread)},
        "success": done.success,
    }


def lines(done: Restored) -> Iterator[str]:
    """The lines of a restore's output for people."""
    subject, back = done.backup.subject, done.objects[CopyStatus.COPIED.value]
    yield (
        f"Mark {subject.mark_id} of {subject.repository}: {plural(back, 'object')} ({size(done.size)}) "
        f"{'was' if back == 1 else 'were'} restored, {done.objects[CopyStatus.ALREADY_THERE.value]:,} already "
        "existed."
    )
    yield f"{done.stored:,} of them are in the store, by a fresh listing."
    if done.paths:
        more = f" of {done.paths:,}" if done.paths > done.asked else ""
        yield (
            f"{done.asked:,}{more} of their paths in commits were requested from lakeFS, and {done.read:,} could be "
            "read."
        )
    else:
        yield "The mark records no paths for them, so none were requested from lakeFS."
    if done.not_in_backup:
        counts = ", ".join(f"{count:,} {name}" for name, count in sorted(done.not_in_backup.items()))
        yield f"Not included in the backup: {counts}."


def problems(done: Restored) -> Iterator[str]:
    """The reasons why objects weren't restored, with the first few objects of each."""
    named = (
        (len(done.unknown), "of the given keys are not in the backup", [repr(key) for key in done.unknown]),
        (
            done.objects[CopyStatus.VANISHED.value],
            "copies are missing from the backup",
            [repr(key) for key in done.lacking],
        ),
        (
            done.objects[CopyStatus.TAKEN.value],
            "keys are in use by other objects, which are kept",
            [repr(key) for key in done.taken],
        ),
        (
            done.objects[CopyStatus.FAILED.value] + done.objects[CopyStatus.COLD.value],
            "failed",
            [f"{key!r}: {why}" for key, why in done.failed.items()],
        ),
        (len(done.unread), "paths can't be read by lakeFS", [f"{key!r}: {why}" for key, why in done.unread.items()]),
    )
    for count, what, which in named:
        if count:
            yield f"{count:,} {what}: {', '.join(which[:_SHOWN])}{' …' if count > _SHOWN else ''}"


def show_drill(partition: Partition, done: Drilled, source: str, *, as_json: bool) -> None:
    name = f"mark {partition.mark_id} of {partition.repository}"
    with printing():
        if as_json:
            found = {"wanted": done.wanted, "same": dict(done.same), "wrong": done.wrong, "success": done.success}
            print_text(
                json.dumps({"repository": partition.repository, "mark_id": partition.mark_id, **found}, indent=1)
            )
        else:
            same = sum(done.same.values())
            print_sentence(f"{same:,} of {plural(done.wanted, 'object')} of {name} were restored unchanged.")
            for how, count in sorted(done.same.items()):
                print_sentence(f"{count:,} matched by {how}.")
            again = command("restore", partition.repository, partition.mark_id, source)
            print_command("Restore what is missing", again)
    if not done.success:
        wrong = "; ".join(f"{key!r}: {why}" for key, why in list(done.wrong.items())[:_SHOWN])
        raise SweptWithFailures(
            f"{plural(len(done.wrong), 'object')} of the backup of {name} differ after the restore: {wrong}"
        )
