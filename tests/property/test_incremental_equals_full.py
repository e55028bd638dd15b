"""Incremental marks expire exactly what full ones expire at the same moment, whatever happened in between.

LAKEGC_INCREMENTAL_MARKS says how many pairs are compared; a long run is

    LAKEGC_INCREMENTAL_MARKS=300 uv run pytest -n 0 tests/property/test_incremental_equals_full.py
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs_sandbox.xids import Xids
from spark_resources.model import EXPIRED_OBJECTS
from tests.support.changing_repository import SOON, TALLY, ChangingRepository, numbers, run
from tests.support.mark_runs import Marked, Marker, Sweeper
from tests.support.query_checks import check_pins, checked_explanations, checked_what_if
from tests.support.recorded_marks import history_of
from tests.support.repository_model import OFTEN, OPERATIONS, RepositoryModel

PAIRS = int(os.environ.get("LAKEGC_INCREMENTAL_MARKS", "6"))
SAME_EVERY_TIME = 100
STEPS_A_PAIR = 18
PAIRS_A_REPOSITORY = 3
COUNTS = (
    "candidates",
    "candidate_bytes",
    "committed",
    "live_inside",
    "young",
    "uncommitted",
    "not_retained",
    "expired",
)
SWEEPS = ("", "", "delete", "delete", "quarantine", "undo", "purge")
TIME = ("let_time_pass",) * 6
STRAY = ("legacy", "sharded", "beside", "deep", "late", "late in a shard")


def stray(model: RepositoryModel, kind: str, number: int) -> None:
    """Write an unreferenced object where a client, an older or newer server, or a late upload would write it."""
    now = model.sandbox.now()
    xids = Xids(number, model.sandbox.now)
    late, fresh = (xids.descending_id(now - timedelta(hours=hours)) for hours in (24, 0))
    named = {
        "legacy": f"{number:032x}",
        "sharded": f"data/!a{number % 3}/b/{fresh}/o",
        "beside": f"data/right{number}",
        "deep": f"data/of/a/client/{number}",
        "late": f"data/{late}/o",
        "late in a shard": f"data/!a{number % 3}/b/{late}/o",
    }
    model._write(str(model.folder / named[kind]), f"{kind} {number}".encode())


class RepeatedMarks(ChangingRepository):
    """Operations, and now and then two marks of the same moment, one incremental and one full, and then a sweep."""

    STEPS_A_TURN = STEPS_A_PAIR

    def __init__(self) -> None:
        super().__init__()
        self.settings = {**self.sandbox.settings, "full_every": "100"}
        self.sweeper = Sweeper()
        self.pairs = 0
        self.lost: set[str] = set()
        self.last = ""
        for number in range(12):
            self.model.do(("upload", "upload", "commit")[number % 3], 0, number, number)
        self.pass_days(9)
        self.mark("first", since="")

    @precondition(lambda self: not self.due)
    @rule(name=st.sampled_from([*OFTEN, *OPERATIONS, *TIME]), a=numbers, b=numbers, c=numbers)
    def write(self, name: str, a: int, b: int, c: int) -> None:
        self.steps += 1
        self.model.do(name, a, b, c)

    @precondition(lambda self: not self.due)
    @rule(kind=st.sampled_from(STRAY), number=st.integers(0, 99))
    def put(self, kind: str, number: int) -> None:
        self.steps += 1
        stray(self.model, kind, number)

    @precondition(lambda self: self.due)
    @rule(
        days=st.sampled_from([0, 1, 3, 9]),
        min_age_days=st.sampled_from([0, 0, 0, 1, 4]),
        sweep=st.sampled_from(SWEEPS),
        swept=st.booleans(),
    )
    def compare(self, days: int, min_age_days: int, sweep: str, swept: bool) -> None:
        """Both marks have the same objects, reasons and counts."""
        self.pass_days(days)
        self.steps += 1
        self.pairs += 1
        min_age = timedelta(days=min_age_days)
        incremental = self.mark(f"o{self.pairs}", since=self.last, min_age=min_age)
        full = self.mark(f"c{self.pairs}", since="", min_age=min_age)
        TALLY["pairs"] += 1
        TALLY["expired"] += len(full.expired)
        TALLY["compared"] += incremental.facts("expired_set")["compared"]
        TALLY["stored"] += full.facts("expired_set")["candidates"]
        assert incremental.record.is_incremental, incremental.record.basis
        assert not full.record.is_incremental
        assert explained(incremental) == explained(full)
        assert counts(incremental) == counts(full)
        self.check_queries(incremental, full)
        mark_id = incremental.record.mark_id if swept else full.record.mark_id
        self.sweep(sweep, mark_id)
        self.last = incremental.record.mark_id

    def check_queries(self, incremental: Marked, full: Marked) -> None:
        """An incremental mark and a full one give the same answers, and the oracle agrees with them."""
        now = self.sandbox.now()
        histories = [history_of(self.settings, mark) for mark in (incremental, full)]
        answers = [
            checked_explanations(history, mark, self.model, now)
            for history, mark in zip(histories, (incremental, full), strict=True)
        ]
        assert answers[0] == answers[1]
        check_pins(histories[0], self.model, now, answers[0])
        results = [checked_what_if(history, self.model, now) for history in histories]
        assert results[0] == results[1]
        TALLY["explained"] += len(answers[0])

    def pass_days(self, days: int) -> None:
        self.sandbox.set_clock(self.sandbox.now() + timedelta(days=days))

    def sweep(self, how: str, mark_id: str) -> None:
        if not how:
            return
        TALLY[how] += 1
        before = self.model.stored().keys()
        self.sweeper.approve(self.settings, "lake", mark_id)
        self.sweeper.sweep(self.settings, "lake", mark_id, SweepOptions(quarantine=how != "delete"))
        if how == "undo":
            self.sweeper.undo(self.settings, "lake", mark_id)
        elif how == "purge":
            self.sweeper.purge(self.settings, "lake", mark_id)
        self.lost |= {key for key in before if not key.startswith("_lakefs/")} - self.model.stored().keys()
        self.lost -= self.model.stored().keys()

    def mark(self, mark_id: str, *, since: str, min_age: timedelta = timedelta(0)) -> Marked:
        self.sandbox.set_clock(self.sandbox.now() + SOON)
        self.last = self.last or mark_id
        missing = tuple(sorted(self.lost & self.model.live(self.sandbox.now())))
        options = MarkOptions(min_age=min_age, allow_young=True, accept_missing=missing, since=since, full=not since)
        return Marker().mark(self.settings, "lake", mark_id, options)


def explained(mark: Marked) -> dict[str, Mapping[str, Any]]:
    """The expired objects with all their columns."""
    return {row["address"]: {name: row[name] for name in EXPIRED_OBJECTS.names} for row in mark.expired_rows()}


def counts(mark: Marked) -> dict[str, int]:
    return {name: mark.facts("expired_set")[name] for name in COUNTS}


@pytest.mark.timeout(0)  # as long as the number of pairs takes
def test_an_incremental_mark_expires_exactly_what_a_full_mark_expires(capsys: pytest.CaptureFixture[str]) -> None:
    """The two sets are equal whatever happened since the base mark.

    apache/iceberg#13568
    """
    run(
        RepeatedMarks,
        capsys,
        repositories=-(-PAIRS // PAIRS_A_REPOSITORY),
        steps=PAIRS_A_REPOSITORY * STEPS_A_PAIR,
        longer=PAIRS > SAME_EVERY_TIME,
    )
    assert TALLY["pairs"] >= PAIRS
    assert TALLY["compared"] < TALLY["stored"]


def test_a_staged_object_that_is_also_committed_counts_as_committed() -> None:
    """An incremental mark knows the object from its base; a full mark counts it in the same way."""
    marks = RepeatedMarks()
    try:
        marks.model.stage(6, 3, 3)
        marks.model.create_branch(1, 0, 6)
        marks.compare(days=0, min_age_days=4, sweep="", swept=True)
    finally:
        marks.teardown()
