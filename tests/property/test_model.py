"""Marks of a repository that lives: any operations in any order, and after each mark the sets are compared.

LAKEGC_MODEL_STEPS says how many operations there are, one in twenty of them a mark; a long run is

    LAKEGC_MODEL_STEPS=20000 uv run pytest -n 0 tests/property/test_model.py

Up to 2,000 steps are the same ones every time; longer runs differ each time, and make what fails small.
LAKEGC_MODEL_SEED names a run to repeat.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from starlette.requests import Request
from starlette.responses import Response

from lakegc_assets.marking.resource import MarkOptions
from lakegc_assets.progress import listening
from spark_resources.sandbox import Sandbox
from tests.fault.between import Between
from tests.marking import Marker
from tests.property.repository_model import ANY_TIME, MEANWHILE, OFTEN, OPERATIONS, RepositoryModel
from tests.recordings.replay import serving

STEPS = int(os.environ.get("LAKEGC_MODEL_STEPS", "400"))
SAME_EVERY_TIME = 2000
SEED = os.environ.get("LAKEGC_MODEL_SEED")
STEPS_A_MARK = 20
MARKS_A_REPOSITORY = 5
STEPS_A_REPOSITORY = STEPS_A_MARK * MARKS_A_REPOSITORY
MOMENTS = 60  # about as many answers and sentences as a mark has
SOON = timedelta(seconds=3)
COUNTED: Counter[str] = Counter()

HOLDS_BEFORE = ("add_hold", "add_hold", "", "drop_hold", "let_a_hold_run_out")  # right before a mark

numbers = st.integers(0, 7)
writes = st.tuples(st.integers(0, MOMENTS), st.sampled_from([*MEANWHILE, *ANY_TIME]), numbers, numbers, numbers)


class Watched(Between):
    """Forwards to the sandbox, and lets somebody act after each answer, before it is heard."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.moment = lambda: None

    def _forward(self, request: Request, body: bytes) -> Response:
        response = super()._forward(request, body)
        self.moment()
        return response


class Writers:
    """What others write while a mark is made, each at its moment: after an answer of the server, or at a sentence."""

    def __init__(self, model: RepositoryModel, planned: list[tuple[int, str, int, int, int]]) -> None:
        self._model, self._waiting = model, sorted(planned)
        self._lock, self.moments = threading.Lock(), 0
        self._once_dead: set[str] = set()
        self._look()

    def moment(self) -> None:
        with self._lock:
            while self._waiting and self._waiting[0][0] <= self.moments:
                _, *what = self._waiting.pop(0)
                self._model.do(*what)
                COUNTED["writes during marks"] += 1
                self._look()
            self.moments += 1

    def always_live(self) -> set[str]:
        """What is live now and was at every moment since it was there: from before the mark, or from its upload on."""
        self._look()
        return self._model.live(self._model.sandbox.now()) - self._once_dead

    def _look(self) -> None:
        self._once_dead |= self._model.stored().keys() - self._model.live(self._model.sandbox.now())


class LivingRepository(RuleBasedStateMachine):
    """One repository; every twentieth step is a mark, of a quiet repository or while somebody writes."""

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        # one staged address a page, so that there are moments between the pages
        self.sandbox = self._open.enter_context(Sandbox(folder, uncommitted_page=1))
        self.between = Watched(self.sandbox.endpoint_url)
        endpoint = self._open.enter_context(serving(self.between))
        self.settings = {**self.sandbox.settings, "endpoint_url": endpoint}
        self.model = RepositoryModel(self.sandbox, "lake")
        self.steps = self.marks = 0
        COUNTED["repositories"] += 1

    @property
    def due(self) -> bool:
        return self.steps % STEPS_A_MARK == STEPS_A_MARK - 1

    @precondition(lambda self: not self.due)
    @rule(name=st.sampled_from([*OFTEN, *OPERATIONS]), a=numbers, b=numbers, c=numbers)
    def write(self, name: str, a: int, b: int, c: int) -> None:
        self._step(name)
        before = self.model.refused
        self.model.do(name, a, b, c)
        COUNTED["refused"] += self.model.refused - before

    @precondition(lambda self: self.due)
    @rule(min_age_days=st.sampled_from([0, 0, 0, 1, 4]), before=st.sampled_from(HOLDS_BEFORE), a=numbers, b=numbers)
    def mark(self, min_age_days: int, before: str, a: int, b: int) -> None:
        """All that is garbage is expired, and nothing else; between the moments before and after the mark."""
        self._step("mark")
        if before:
            self.model.do(before, a, b, a)
        min_age = timedelta(days=min_age_days)
        self.sandbox.set_clock(self.sandbox.now() + SOON)
        self.model.check_books()
        stored, began = self.model.stored(), self.sandbox.now()
        expired = self._marked(min_age)
        surely = self.model.garbage(stored, began - timedelta(seconds=1), min_age, timedelta(seconds=1))
        at_most = self.model.garbage(stored, self.sandbox.now(), min_age, timedelta(0))
        COUNTED["expired"] += len(expired)
        unheld = self.model.garbage(stored, began - timedelta(seconds=1), min_age, timedelta(seconds=1), held=False)
        COUNTED["kept by holds"] += len(unheld - surely)
        hold("garbage that stays", surely - expired)
        hold("live and expired", expired - at_most)

    @precondition(lambda self: self.due)
    @rule(planned=st.lists(writes, min_size=4, max_size=24))
    def mark_while_somebody_writes(self, planned: list[tuple[int, str, int, int, int]]) -> None:
        """What is live all the time is never expired, whatever moves in the middle of a mark."""
        self._step("mark while somebody writes")
        self.sandbox.set_clock(self.sandbox.now() + SOON)
        writers = Writers(self.model, planned)
        self.between.moment = writers.moment
        try:
            with listening(lambda _: writers.moment()):
                expired = self._marked(timedelta(0))
        finally:
            self.between.moment = lambda: None
        COUNTED["moments"] += writers.moments
        hold("live and expired", expired & writers.always_live())
        self.model.check_books()

    def _step(self, name: str) -> None:
        self.steps += 1
        COUNTED["steps"] += 1
        COUNTED[name] += 1

    def _marked(self, min_age: timedelta, accept_missing: tuple[str, ...] = ()) -> set[str]:
        self.marks += 1
        COUNTED["marks"] += 1
        options = MarkOptions(min_age=min_age, allow_young=True, accept_missing=accept_missing)
        return Marker().mark(self.settings, "lake", f"m{self.marks}", options).expired

    def teardown(self) -> None:
        self._open.close()


def hold(what: str, wrong: set[str]) -> None:
    if wrong:
        COUNTED.setdefault("steps to the first find", COUNTED["steps"])
        COUNTED.setdefault("marks to the first find", COUNTED["marks"])
    assert not wrong, f"{what}: {sorted(wrong)}"


def profile() -> Any:
    longer = STEPS > SAME_EVERY_TIME or SEED is not None
    return settings(
        max_examples=-(-STEPS // STEPS_A_REPOSITORY),
        stateful_step_count=STEPS_A_REPOSITORY,
        deadline=None,
        derandomize=not longer,
        database=None,
        phases=(Phase.generate, Phase.shrink) if longer else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


@pytest.mark.timeout(0)  # as long as the number of steps takes
def test_what_is_live_is_never_expired_and_garbage_always(capsys: pytest.CaptureFixture[str]) -> None:
    """After any operations in any order a mark holds exactly the garbage, and while others write nothing live."""
    machine: Any = LivingRepository if SEED is None else seed(int(SEED))(LivingRepository)
    COUNTED.clear()
    try:
        run_state_machine_as_test(machine, settings=profile())
    finally:
        with capsys.disabled():
            print("\n" + ", ".join(f"{count:,} {name}" for name, count in COUNTED.most_common()))
    assert COUNTED["steps"] >= STEPS
    assert COUNTED["marks"] >= STEPS // STEPS_A_MARK
    assert COUNTED["kept by holds"]
