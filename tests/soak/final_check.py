"""The end of a soak: everything interrupted is finished, a last sweep deletes garbage, and the store is compared."""

from __future__ import annotations

import re
import time

from tests.soak.commands import Commands
from tests.soak.lake import Lake
from tests.soak.world import MARKER, World, has_variable, processes, say

OWN_FILES = re.compile(r"dummy|_lakefs/(?!retention/gc/quarantine/).*")
PROCESSES_END_LIMIT_S = 180


def finish_and_collect(commands: Commands, repository: str) -> None:
    """Finish every interrupted sweep, purge every quarantine, then mark and sweep once more."""
    for mark in commands.marks(repository):
        mark_id, state = mark["mark_id"], mark["state"]
        if state in ("sweeping", "approved", "swept with failures"):
            commands.until_done("sweep", repository, mark_id, *(["--quarantine"] if mark["quarantine"] else []))
    purge_quarantines(commands, repository)
    marked = commands.mark(repository, "--full")
    if marked is not None and marked["counts"]["expired"] and commands.approve(repository, marked):
        commands.until_done("sweep", repository, marked["mark_id"])
        purge_quarantines(commands, repository)


def purge_quarantines(commands: Commands, repository: str) -> None:
    for mark in commands.marks(repository):
        if mark["quarantine"] and mark["state"].startswith("swept"):
            commands.until_done("purge", repository, mark["mark_id"], "--yes")


def check_lake(world: World, lake: Lake, commands: Commands) -> None:
    """Every live byte is there, and every garbage byte is gone; fsck finds nothing."""
    record, live, stored = world.record, lake.live(), lake.stored()
    if lost := live - stored:
        record.problem(f"{lake.name}: {len(lost)} live objects are gone from the store: {sorted(lost)[:5]}")
    if garbage := {key for key in stored - live if not OWN_FILES.fullmatch(key)}:
        record.problem(f"{lake.name}: {len(garbage)} garbage objects remain: {sorted(garbage)[:5]}")
    views = [*lake.views.items(), *((commit, lake.trees[commit]) for commit in lake.retained())]
    for ref, view in views:
        for path, key in view.items():
            if wrong := lake.check(ref, path, key):
                record.problem(wrong)
    checked = commands.once("fsck", lake.name)
    if checked.code:
        record.problem(f"fsck of {lake.name} found something: {checked.out[-500:]} {checked.message}")
    record.count("live objects at the end", len(live))
    record.count("files of lakegc and lakeFS at the end", len(stored - live))
    record.count("objects that were written", len(lake.contents))
    say(f"{lake.name}: {len(live)} live objects, {len(lost)} lost, {len(garbage)} garbage")


def check_no_process_is_left(world: World, known: set[int]) -> None:
    """Check that no command, JVM, worker or run has outlived its parent."""
    limit = time.monotonic() + PROCESSES_END_LIMIT_S
    while left := [(pid, line) for pid, line in processes(has_variable(MARKER, world.folder)) if pid not in known]:
        if time.monotonic() > limit:
            world.record.problem(f"{len(left)} processes are left: {[(pid, line[:150]) for pid, line in left[:5]]}")
            return
        time.sleep(1)
