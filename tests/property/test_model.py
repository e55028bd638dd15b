"""Marks of a repository in use: any operations in any order, and a comparison of the sets after each mark.

LAKEGC_MODEL_STEPS says how many operations there are, one in twenty of which is a mark; a long run is

    LAKEGC_MODEL_STEPS=20000 uv run pytest -n 0 tests/property/test_model.py

Up to 2,000 steps are the same every time. Longer runs differ each time, and shrink a failing example. LAKEGC_MODEL_SEED
names a run to repeat.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.progress import listening
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
from tests.support.mark_runs import Marker, on_executors
from tests.support.repository_model import OFTEN, OPERATIONS, UNIQUE_SIZE

STEPS = int(os.environ.get("LAKEGC_MODEL_STEPS", "240"))
SAME_EVERY_TIME = 2000
SEED = os.environ.get("LAKEGC_MODEL_SEED")
STEPS_A_MARK = 20
MARKS_A_REPOSITORY = 4
STEPS_A_REPOSITORY = STEPS_A_MARK * MARKS_A_REPOSITORY
MARKS_ON_EXECUTORS = 8  # every eighth; they take five times as long
HOLDS_BEFORE = ("add_hold", "add_hold", "", "drop_hold", "let_a_hold_run_out")  # right before a mark


class RepositoryInUse(ChangingRepositoryBehindProxy):
    """One repository. Every twentieth step is a mark, either of a quiet repository or during writes."""

    STEPS_A_TURN = STEPS_A_MARK

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0
        TALLY["repositories"] += 1

    @precondition(lambda self: not self.due)
    @rule(name=st.sampled_from([*OFTEN, *OPERATIONS]), a=numbers, b=numbers, c=numbers)
    def write(self, name: str, a: int, b: int, c: int) -> None:
        self._step(name)
        before = self.model.refused
        self.model.do(name, a, b, c)
        TALLY["refused"] += self.model.refused - before

    @precondition(lambda self: self.due)
    @rule(min_age_days=st.sampled_from([0, 0, 0, 1, 4]), before=st.sampled_from(HOLDS_BEFORE), a=numbers, b=numbers)
    def mark(self, min_age_days: int, before: str, a: int, b: int) -> None:
        """The mark expires all garbage and no other object, judged by the moments before and after it."""
        self._step("mark")
        if before:
            self.model.do(before, a, b, a)
        min_age = timedelta(days=min_age_days)
        self.sandbox.set_clock(self.sandbox.now() + SOON)
        self.model.check_model()
        if a % 3 == 2:
            with self.broken_record(a):
                expired = self._marked(min_age)
                assert_none("live and expired", expired & self.model.live(self.sandbox.now()))
        stored, began = self.model.stored(), self.sandbox.now()
        expired = self._marked(min_age)
        surely = self.model.garbage(stored, began - timedelta(seconds=1), min_age, timedelta(seconds=1))
        at_most = self.model.garbage(stored, self.sandbox.now(), min_age, timedelta(0))
        TALLY["expired"] += len(expired)
        second = timedelta(seconds=1)
        without_holds = self.model.garbage(stored, began - second, min_age, second, on_hold=False)
        TALLY["kept by holds"] += len(without_holds - surely)
        assert_none("garbage that stays", surely - expired)
        assert_none("live and expired", expired - at_most)

    @precondition(lambda self: self.due)
    @rule(planned=st.lists(writes, min_size=4, max_size=24), uploads=st.lists(numbers, max_size=4))
    def mark_while_somebody_writes(self, planned: list[tuple[int, str, int, int, int]], uploads: list[int]) -> None:
        """An object that is live all the time never expires, whatever is moved during the mark."""
        self._step("mark while somebody writes")
        for number in uploads:  # objects to commit during the mark, each of a unique size
            self.model.do("upload", number, number, UNIQUE_SIZE)
        self.sandbox.set_clock(self.sandbox.now() + SOON)
        writers = Writers(self.model, planned)
        self.between.moment = writers.moment
        try:
            with listening(lambda _: writers.moment()):
                expired = self._marked(timedelta(0))
        finally:
            self.between.moment = lambda: None
        TALLY["moments"] += writers.moments
        assert_none("live and expired", expired & writers.always_live())
        self.model.check_model()

    def _step(self, name: str) -> None:
        self.steps += 1
        TALLY["steps"] += 1
        TALLY[name] += 1

    def _marked(self, min_age: timedelta, accept_missing: tuple[str, ...] = ()) -> set[str]:
        self.marks += 1
        TALLY["marks"] += 1
        options = MarkOptions(min_age=min_age, allow_young=True, accept_missing=accept_missing)
        with on_executors(TALLY["marks"] % MARKS_ON_EXECUTORS == 0):
            return Marker().mark(self.settings, "lake", f"m{self.marks}", options).expired


@pytest.mark.timeout(0)  # as long as the number of steps takes
def test_marks_expire_all_garbage_and_no_live_object(capsys: pytest.CaptureFixture[str]) -> None:
    """After any operations in any order a mark has exactly the garbage; while others write, it has nothing live."""
    machine: Any = RepositoryInUse if SEED is None else seed(int(SEED))(RepositoryInUse)
    run(
        machine,
        capsys,
        repositories=-(-STEPS // STEPS_A_REPOSITORY),
        steps=STEPS_A_REPOSITORY,
        longer=STEPS > SAME_EVERY_TIME or SEED is not None,
    )
    assert TALLY["steps"] >= STEPS
    assert TALLY["marks"] >= STEPS // STEPS_A_MARK
    assert TALLY["kept by holds"]
    assert TALLY["scans that ended early"]
