"""Helpers for tests of a changing repository: its server, concurrent writers, and the number of steps."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from starlette.requests import Request
from starlette.responses import Response

from spark_resources.errors import LakegcError
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.faults import Faults
from tests.support.replay_server import serving
from tests.support.repository_model import ANY_TIME, DURING_MARK, RepositoryModel
from tests.support.tampering_proxy import TamperingProxy

MOMENTS = 60  # about as many responses and messages as a mark has
SOON = timedelta(seconds=3)
TALLY: Counter[str] = Counter()
"""What a test counts and prints at its end."""

numbers = st.integers(0, 7)
writes = st.tuples(st.integers(0, MOMENTS), st.sampled_from([*DURING_MARK, *ANY_TIME]), numbers, numbers, numbers)


class ProxyWithMoments(TamperingProxy):
    """Forwards to the sandbox, and calls `moment` for each response before delivering it."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.moment = lambda: None

    def _forward(self, request: Request, body: bytes) -> Response:
        response = super()._forward(request, body)
        self.moment()
        return response


class Writers:
    """Concurrent writes during a mark, each at a planned moment: a response of the server, or a log message."""

    def __init__(self, model: RepositoryModel, planned: list[tuple[int, str, int, int, int]]) -> None:
        self._model, self._waiting = model, sorted(planned)
        self._lock, self.moments = threading.Lock(), 0
        self._once_dead: set[str] = set()
        self._observe()

    def moment(self) -> None:
        with self._lock:
            while self._waiting and self._waiting[0][0] <= self.moments:
                _, *what = self._waiting.pop(0)
                self._model.do(*what)
                TALLY["writes during marks"] += 1
                self._observe()
            self.moments += 1

    def always_live(self) -> set[str]:
        """The objects that are live now and have been live since the mark began, or since their upload."""
        self._observe()
        return self._model.live(self._model.sandbox.now()) - self._once_dead

    def _observe(self) -> None:
        self._once_dead |= self._model.stored().keys() - self._model.live(self._model.sandbox.now())


class ChangingRepository(RuleBasedStateMachine):
    """A repository in its own sandbox. The last of every `STEPS_A_TURN` steps is the operation under test."""

    STEPS_A_TURN: ClassVar[int]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._open = ExitStack()
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self.sandbox = self._open.enter_context(Sandbox(folder, **options))
        self.settings = self.sandbox.settings
        self.model = RepositoryModel(self.sandbox, "lake")
        self.steps = 0

    @property
    def due(self) -> bool:
        return self.steps % self.STEPS_A_TURN == self.STEPS_A_TURN - 1

    def teardown(self) -> None:
        self._open.close()


class ChangingRepositoryBehindProxy(ChangingRepository):
    """A changing repository behind a proxy that lets writers act after each response."""

    def __init__(self) -> None:
        # one staged address per page, so that there are moments between the pages
        # few staged records, so that most scans are complete before they would end early
        super().__init__(uncommitted_page_size=1, faults=frequent_faults(early_end_probability=0.3))
        self.between = ProxyWithMoments(self.sandbox.endpoint_url)
        endpoint = self._open.enter_context(serving(self.between))
        self.settings = {**self.sandbox.settings, "endpoint_url": endpoint, "retry_total_s": "0"}

    @contextmanager
    def broken_record(self, number: int) -> Iterator[None]:
        """Make one staging record unreadable, if there is one. As a result, an operation may be refused."""
        records = self.model.staged_records()
        faults = self.sandbox.faults
        faults.unreadable_records = {records[number % len(records)]} if records else ()
        before = faults.injection_counts["broken records"]
        try:
            yield
        except LakegcError:
            if faults.injection_counts["broken records"] == before:
                raise
            TALLY["refused for a broken record"] += 1
        finally:
            faults.unreadable_records = ()

    def teardown(self) -> None:
        TALLY.update(self.sandbox.faults.injection_counts)
        super().teardown()


def frequent_faults(*, early_end_probability: float = 0.1) -> Faults:
    """The faults that real servers have, each in about one of ten lists."""
    return Faults(deletion_probability=0.1, early_end_probability=early_end_probability)


def assert_none(what: str, wrong: set[str]) -> None:
    if wrong:
        TALLY.setdefault("steps to the first find", TALLY["steps"])
        TALLY.setdefault("marks to the first find", TALLY["marks"])
    assert not wrong, f"{what}: {sorted(wrong)}"


def run(machine: Any, capsys: pytest.CaptureFixture[str], *, repositories: int, steps: int, longer: bool) -> None:
    """Run this many repositories for this many steps each, and print the counts.

    A `longer` run makes different random choices each time, and shrinks a failing example.
    """
    TALLY.clear()
    chosen = settings(
        max_examples=repositories,
        stateful_step_count=steps,
        deadline=None,
        derandomize=not longer,
        database=None,
        phases=(Phase.generate, Phase.shrink) if longer else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    try:
        run_state_machine_as_test(machine, settings=chosen)
    finally:
        with capsys.disabled():
            print("\n" + ", ".join(f"{count:,} {name}" for name, count in TALLY.most_common()))
