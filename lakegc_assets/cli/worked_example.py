"""The documented worked example in a new sandbox, run on 2022-03-31: commits of main are retained for 21 days,
those of dev for 7 (formats §6).

The history is shifted so that its run day is now. The output shows the documented dates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules

REPOSITORY = "worked-example"
RUN_DAY = datetime(2022, 3, 31, 12, tzinfo=UTC)
RULES = Rules(21, {"main": 21, "dev": 7})
OVERWRITTEN_PATH = "overwritten-every-time.txt"


@dataclass(frozen=True, slots=True)
class Change:
    """One commit of the example: its documented day, its branch, the file that it adds, and those that it deletes."""

    month: int
    day: int
    branch: str
    deleted_paths: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.month:02d}-{self.day:02d}"

    @property
    def added_path(self) -> str:
        return f"{self.branch}/added-{self.name}.txt"

    @property
    def time(self) -> datetime:
        return datetime(2022, self.month, self.day, 12, tzinfo=UTC)


BEFORE_DEV = [Change(2, 27, "main"), Change(3, 1, "main"), Change(3, 9, "main")]
WITH_DEV = [
    Change(3, 12, "main"),
    Change(3, 14, "dev"),
    Change(3, 16, "dev"),
    Change(3, 18, "main", deleted_paths=("main/added-03-12.txt",)),
    Change(3, 20, "dev", deleted_paths=("dev/added-03-14.txt",)),
    Change(3, 23, "dev"),
]
MERGE_TIME = datetime(2022, 3, 24, 12, tzinfo=UTC)
AFTER_MERGE = [Change(3, 26, "main")]


@dataclass(frozen=True, slots=True)
class ReplayedExample:
    """The replayed example. `now` is the real time that stands for the documented run day; `paths` maps addresses to
    the lakeFS paths that they were written for."""

    now: datetime
    paths: Mapping[str, str] = field(default_factory=dict)

    def documented_day(self, moment: datetime) -> str:
        """The documented day that a real time stands for."""
        return f"{moment - (self.now - RUN_DAY):%Y-%m-%d}"


def replay(sandbox: Sandbox, *, now: datetime) -> ReplayedExample:
    """Create the example's repository in a sandbox, with the history shifted so that its run day is `now`.

    In a local folder, objects are as old as their commits; an object store dates them by its own clock.
    """
    shift = now - RUN_DAY
    paths: dict[str, str] = {}

    def set_day(moment: datetime) -> datetime:
        if sandbox.clock_can_be_set:
            sandbox.set_clock(moment + shift)
        return moment + shift

    repository = sandbox.create(REPOSITORY, date=set_day(datetime(2022, 2, 26, 12, tzinfo=UTC)))

    def commit(change: Change) -> None:
        commit_time = set_day(change.time)
        for path in (change.added_path, OVERWRITTEN_PATH):
            text = f"{path}, as written on {change.branch} on 2022-{change.name}\n"
            paths[repository.put(change.branch, path, text.encode()).address] = path
        if change.deleted_paths:
            repository.delete(change.branch, change.deleted_paths)
        repository.commit(change.branch, f"{change.branch}: 2022-{change.name}", date=commit_time)

    for change in BEFORE_DEV:
        commit(change)
    repository.create_branch("dev", "main")
    for change in WITH_DEV:
        commit(change)
    repository.merge("dev", "main", strategy="source-wins", message="merge of dev", date=set_day(MERGE_TIME))
    for change in AFTER_MERGE:
        commit(change)
    set_rules(repository, RULES)
    sandbox.set_clock(None)
    return ReplayedExample(now, paths)
