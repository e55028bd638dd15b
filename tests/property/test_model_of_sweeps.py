"""Sweeps of a repository in use: after every sweep, everything live can be read byte for byte, however the sweep ended.

LAKEGC_MODEL_SWEEPS says how many sweeps there are; a long run is

    LAKEGC_MODEL_SWEEPS=500 uv run pytest -n 0 tests/property/test_model_of_sweeps.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.progress import listening
from lakegc_assets.sweep.preconditions import SweepOptions
from lakegc_assets.sweep.report import Report
from spark_resources.lakefs_sandbox.errors import Problem
from spark_resources.mark_store.lease import LEASE_TIME, LeaseHeld
from spark_resources.model import Outcome
from tests.support.changing_repository import (
    SOON,
    TALLY,
    ChangingRepositoryBehindProxy,
    Writers,
    assert_none,
    numbers,
    run,
    writes,
)
from tests.support.mark_runs import Marker, Sweeper
from tests.support.repository_model import OFTEN, OPERATIONS

SWEEPS = int(os.environ.get("LAKEGC_MODEL_SWEEPS", "6"))
SAME_EVERY_TIME = 100
STEPS_A_SWEEP = 15
SWEEPS_A_REPOSITORY = 3
CLOSING = "re-verifying deleted objects"
DELETE, QUARANTINE = SweepOptions(), SweepOptions(quarantine=True)


class Killed(BaseException):
    """Ends a sweep halfway, as a signal would: none of lakegc's code catches it."""


@contextmanager
def killed_at(sentence: int) -> Iterator[None]:
    """End an action at its nth message."""
    said = 0

    def listen(_: str) -> None:
        nonlocal said
        said += 1
        if said == sentence:
            raise Killed

    with listening(listen):
        yield


class SweptRepository(ChangingRepositoryBehindProxy):
    """Operations, and now and then a mark, an approval and a sweep: whole, killed, quarantined, undone, purged."""

    STEPS_A_TURN = STEPS_A_SWEEP

    def __init__(self) -> None:
        super().__init__()
        self.sweeper = Sweeper()
        self.sweeps = 0
        self.lost: set[str] = set()  # deleted for good: missing even if it is live again, e.g. by longer rules

    @precondition(lambda self: not self.due)
    @rule(name=st.sampled_from([*OFTEN, *OPERATIONS]), a=numbers, b=numbers, c=numbers)
    def write(self, name: str, a: int, b: int, c: int) -> None:
        self.steps += 1
        self.model.do(name, a, b, c)

    @precondition(lambda self: self.due)
    @rule(killed=st.sampled_from([0, 0, 1, 3, 6, 9, 12, 15, 18, 21]), ending=st.sampled_from(["", "", "undo", "purge"]))
    def sweep(self, killed: int, ending: str) -> None:
        """A sweep of a quiet repository, killed and resumed or not, deletes all garbage and nothing else."""
        self.marked_and_approved()
        stored, began = self.stored(), self.sandbox.now()
        before = self.readable()
        surely = self.model.garbage(stored, began - timedelta(seconds=1), timedelta(0), timedelta(seconds=1))
        options, report = QUARANTINE if ending else DELETE, None
        if killed % 2:
            with self.broken_record(killed):
                report = self.swept(options, 0)
        report = report or self.swept(options, killed)
        TALLY["swept objects"] += report.approved
        assert report.success, report.sentence()
        assert sum(report.objects.values()) == report.approved
        assert_none("garbage that stays", surely & self.stored().keys())
        self.undo_or_purge(ending, stored)
        self.still_read(before)

    @precondition(lambda self: self.due)
    @rule(planned=st.lists(writes, min_size=4, max_size=16))
    def sweep_while_somebody_writes(self, planned: list[tuple[int, str, int, int, int]]) -> None:
        """Objects that become live during a sweep are rescued, or named by its closing re-verification; undo brings
        them back."""
        self.marked_and_approved()
        writers = Writers(self.model, planned)
        live_before_closing: set[str] | None = None

        def listen(sentence: str) -> None:
            nonlocal live_before_closing
            if sentence == CLOSING:
                live_before_closing = self.model.live(self.sandbox.now())
            writers.moment()

        self.between.moment = writers.moment
        try:
            with listening(listen):
                report = self.sweeper.sweep(self.settings, "lake", self.mark_id, QUARANTINE)
        finally:
            self.between.moment = lambda: None
        missing = self.model.live(self.sandbox.now()) - self.lost - self.stored().keys()
        TALLY["came to life too late"] += len(report.late)
        if report.objects.get(Outcome.QUARANTINED.value):
            assert live_before_closing is not None, f"the sweep never said '{CLOSING}'"
        assert_none("gone and not named", missing & (live_before_closing or set()) - set(report.late))
        self.sweeper.undo(self.settings, "lake", self.mark_id)
        assert_none("not brought back", (self.model.live(self.sandbox.now()) - self.lost) - self.stored().keys())
        self.model.check_model()

    # --- parts ------------------------------------------------------------------------------------------------------

    @property
    def mark_id(self) -> str:
        return f"m{self.sweeps}"

    def marked_and_approved(self) -> None:
        self.steps += 1
        self.sweeps += 1
        TALLY["sweeps"] += 1
        self.sandbox.set_clock(self.sandbox.now() + SOON)
        self.model.check_model()
        missing = tuple(sorted(self.lost & self.model.live(self.sandbox.now())))
        options = MarkOptions(min_age=timedelta(0), allow_young=True, accept_missing=missing)
        Marker().mark(self.settings, "lake", self.mark_id, options)
        self.sweeper.approve(self.settings, "lake", self.mark_id)

    def swept(self, options: SweepOptions, killed: int) -> Report:
        if killed:
            try:
                with killed_at(killed):
                    report = self.sweeper.sweep(self.settings, "lake", self.mark_id, options)
            except Killed:
                TALLY["killed"] += 1
            else:
                return report
        try:
            return self.sweeper.sweep(self.settings, "lake", self.mark_id, options)
        except LeaseHeld:  # killed during deletes: the lease lasts as long as the killed sweep's tasks could run
            assert killed
            TALLY["waited for the lease"] += 1
            self.sandbox.set_clock(self.sandbox.now() + LEASE_TIME)
            return self.sweeper.sweep(self.settings, "lake", self.mark_id, options)

    def undo_or_purge(self, ending: str, stored: Mapping[str, int]) -> None:
        """Restore or purge the quarantined objects."""
        TALLY[ending or "delete"] += 1
        if ending == "undo":
            tally = self.sweeper.undo(self.settings, "lake", self.mark_id)
            assert not tally.objects[Outcome.FAILED.value]
            assert_none("not brought back", {key for key in stored if key.startswith("data/")} - self.stored().keys())
        elif ending == "purge":
            self.sweeper.purge(self.settings, "lake", self.mark_id)
        self.lost |= {key for key in stored if not key.startswith("_lakefs/")} - self.stored().keys()
        assert not [key for key in self.stored() if key.startswith("_lakefs/retention/gc/quarantine/")]

    def stored(self) -> dict[str, int]:
        return self.model.stored()

    def readable(self) -> dict[tuple[str, str], bytes]:
        """The content that branches and retained commits serve."""
        objects = {}
        commits = {commit: self.model.trees[commit] for commit in self.model.retained(self.sandbox.now())}
        refs = {**self.model.views, **commits}
        for ref, view in refs.items():
            for path in view:
                try:
                    objects[ref, path] = self.model.repository.read(ref, path)[1]
                except Problem:
                    continue  # outside the sandbox, or deleted by an earlier sweep
        return objects

    def still_read(self, before: Mapping[tuple[str, str], bytes]) -> None:
        after = self.readable()
        assert {key: after.get(key) for key in before} == dict(before)


@pytest.mark.timeout(0)  # as long as the number of sweeps takes
def test_a_sweep_deletes_exactly_the_garbage(capsys: pytest.CaptureFixture[str]) -> None:
    """The result is the same whatever happened before, and whether or not the sweep is killed."""
    longer = SWEEPS > SAME_EVERY_TIME
    repositories = -(-SWEEPS // SWEEPS_A_REPOSITORY)
    run(
        SweptRepository,
        capsys,
        # Hypothesis ends some repositories of a longer run before their last sweep
        repositories=repositories + repositories // 8 if longer else repositories,
        steps=SWEEPS_A_REPOSITORY * STEPS_A_SWEEP,
        longer=longer,
    )
    assert TALLY["sweeps"] >= SWEEPS
