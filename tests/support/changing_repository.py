"""Shared by tests of a changing repository: its server, concurrent writers, and the number of steps."""

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
from tests.support.tampering_proxy import Between

MOMENTS = 60  # about as many responses and messages as a mark has
SOON = timedelta(seconds=3)
COUNTED: Counter[str] = Counter()
"""What a test counts, and shows at its end."""

numbers = st.integers(0, 7)
writes = st.tuples(st.integers(0, MOMENTS), st.sampled_from([*DURING_MARK, *ANY_TIME]), numbers, numbers, numbers)


class Watched(Between):
    """Forwards to the sandbox, and calls a hook after each response, before it is delivered."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.moment = lambda: None

    def _forward(self, request: Request, body: bytes) -> Response:
        response = super()._forward(request, body)
        self.moment()
        return response


class Writers:
    """Concurrent writes during a mark, each at its moment: after a response of the server, or at a log message."""

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
                COUNTED["writes during marks"] += 1
                self._observe()
            self.moments += 1

    def always_live(self) -> set[str]:
        """The objects that are live now and have been live since the mark began, or since their upload."""
        self._observe()
        return self._model.live(self._model.sandbox.now()) - self._once_dead

    def _observe(self) -> None:
        self._once_dead |= self._model.stored().keys() - self._model.live(self._model.sandbox.now())


class Living(RuleBasedStateMachine):
    """A repository of a sandbox of its own. The last of each `STEPS_A_TURN` steps is due for what a test is about."""

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


class WatchedLiving(Living):
    """The same behind a server that lets others write after each of its responses."""

    def __init__(self) -> None:
        # one staged address a page, so that there are moments between the pages
        super().__init__(uncommitted_page=1, faults=often_wrong())
        self.between = Watched(self.sandbox.endpoint_url)
        endpoint = self._open.enter_context(serving(self.between))
        self.settings = {**self.sandbox.settings, "endpoint_url": endpoint, "retry_total_s": "0"}

    @contextmanager
    def broken_record(self, number: int) -> Iterator[None]:
        """A staging record that can't be read, if there is one; what is refused for it is refused rightly."""
        records = self.model.staged_records()
        faults = self.sandbox.faults
        faults.broken = {records[number % len(records)]} if records else ()
        before = faults.injected["broken records"]
        try:
            yield
        except LakegcError:
            if faults.injected["broken records"] == before:
                raise
            COUNTED["refused for a broken record"] += 1
        finally:
            faults.broken = ()

    def teardown(self) -> None:
        COUNTED.update(self.sandbox.faults.injected)
        super().teardown()


def often_wrong() -> Faults:
    """The faults of a real server that come by themselves, each in about one list of ten."""
    return Faults(branch_deleted=0.1, scan_ends=0.1)


def hold(what: str, wrong: set[str]) -> None:
    if wrong:
        COUNTED.setdefault("steps to the first find", COUNTED["steps"])
        COUNTED.setdefault("marks to the first find", COUNTED["marks"])
    assert not wrong, f"{what}: {sorted(wrong)}"


def run(machine: Any, capsys: pytest.CaptureFixture[str], *, repositories: int, steps: int, longer: bool) -> None:
    """Let so many repositories live for so many steps each, and show what was counted.

    A `longer` run is another one each time, and makes what fails small.
    """
    COUNTED.clear()
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
            print("\n" + ", ".join(f"{count:,} {name}" for name, count in COUNTED.most_common()))
