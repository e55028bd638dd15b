"""The command line on random repositories: what it marks and sweeps is what the oracle says, whatever the history,
scope, rules, holds and clocks.

LAKEGC_RANDOM_REPOSITORIES says how many there are, LAKEGC_RANDOM_SEED which ones; a long run is

    LAKEGC_RANDOM_REPOSITORIES=2000 uv run pytest -n 0 tests/property/test_random_repositories.py

The same seed draws the same repositories. A repository that fails is shrunk and printed, with a line that repeats it:
`@reproduce_failure(...)`, which has to be put above the test.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from spark_resources.lakefs_sandbox import Sandbox
from tests.support import oracle
from tests.support.command_line import Lakegc, LakegcWithoutDagster, Outcome
from tests.support.drawn_repository import DrawnRepository, moment
from tests.support.random_repositories import Drawn, repositories
from tests.support.repository_events import apply_all, object_of
from tests.support.repository_model import hold_fields, seen

REPOSITORIES = int(os.environ.get("LAKEGC_RANDOM_REPOSITORIES", "4"))
SEED = int(os.environ.get("LAKEGC_RANDOM_SEED", "0"))
SOON = timedelta(seconds=3)
LONGEST_COMMAND = timedelta(minutes=10)
LINE_BREAK = re.compile(r"[\n\r]")
TALLY: Counter[str] = Counter()


class Marked:
    """A mark that the command line made: its times, and the objects that it lists for review."""

    def __init__(self, folder: Path, mark_id: str, listed: str) -> None:
        record = json.loads((folder / f"_lakefs/retention/gc/lakegc/{mark_id}/mark.json").read_bytes())
        self.start, self.server_now = (datetime.fromisoformat(record[name]) for name in ("start", "server_now"))
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in listed.splitlines()]
        self.addresses = {row["address"] for row in self.rows}
        assert len(self.addresses) == len(self.rows)


class Example:
    """One repository, and the commands on it."""

    def __init__(self, drawn: Drawn, sandbox: Sandbox, folder: Path) -> None:
        self.drawn, self.sandbox, self.folder = drawn, sandbox, folder
        self.lake = DrawnRepository(sandbox, "lake", created=moment(drawn.created))
        self.command_line = (Lakegc if drawn.by_dagster else LakegcWithoutDagster)(folder / "dagster")
        self.settings = dict(sandbox.settings)

    def build(self) -> None:
        drawn, lake = self.drawn, self.lake
        apply_all(drawn.events, lake, drawn.now)
        lake.set_rules(drawn.rules)
        self.put_on_hold(drawn.holds)
        self.refer_from_elsewhere()
        self.lost = {object_of(lake, number)[0] for number in drawn.lost if lake.objects}
        for key in self.lost:
            (lake.folder / key).unlink(missing_ok=True)
        lake.check_model()

    def put_on_hold(self, holds: tuple[oracle.H, ...]) -> None:
        """Put these holds in force: some in the namespace's file, the others in the settings."""
        in_file = self.drawn.holds_in_file
        self.lake.set_holds(holds, written=in_file)
        configured = [hold_fields(name, hold) for name, hold in list(self.lake.holds.items())[in_file:]]
        self.settings["holds"] = json.dumps(configured)

    def refer_from_elsewhere(self) -> None:
        """Refer to some objects from another repository of the same server."""
        if not (self.drawn.elsewhere and self.lake.objects):
            return
        other = DrawnRepository(self.sandbox, "near", created=moment(self.drawn.created))
        for number, reference in enumerate(self.drawn.elsewhere):
            key, content = object_of(self.lake, reference.which)
            form = self.lake.forms(key)[1 + reference.form % 2]
            if not oracle.is_candidate(key, local_adapter=True):
                continue
            path = f"from/{number}"
            other.stage("main", path, form, content, self.drawn.now)
            self.lake.elsewhere.add(seen(other.entry(path, form, content, self.drawn.now)))
            if reference.how != "staged":
                other.commit_staged("main", moment(self.drawn.now), {})
            if reference.how == "removed":
                other.delete_path("main", path)
                other.commit_staged("main", moment(self.drawn.now), {})

    # --- commands ---------------------------------------------------------------------------------------------------

    def run(self, *arguments: str) -> Outcome:
        return self.command_line(self.settings, *arguments)

    def output(self, *arguments: str) -> str:
        return self.command_line.output(self.settings, *arguments)

    def let_pass(self, time: timedelta) -> datetime:
        self.sandbox.set_clock(self.sandbox.now() + time)
        return self.sandbox.now()

    def mark(self, mark_id: str, *options: str, accepted: set[str]) -> Outcome:
        text, minimum = self.drawn.min_age
        arguments = ["mark", "lake", "--mark-id", mark_id, "--scope", self.drawn.scope, "--min-age", text, *options]
        if minimum < oracle.DAY:
            arguments.append("--allow-young")
        if accepted:
            file = self.folder / f"accepted-{mark_id}"
            file.write_text("\n".join(sorted(accepted)))
            arguments += ["--accept-missing", str(file)]
        TALLY["marks"] += 1
        return self.run(*arguments)

    def marked(self, mark_id: str) -> Marked:
        return Marked(self.lake.folder, mark_id, self.output("review", "lake", mark_id, "--list", "--format", "jsonl"))

    def expired(self, stored: Mapping[str, int], mark: Marked) -> set[str]:
        """What the oracle says about a mark, by the times that the mark recorded."""
        cutoff = mark.start - timedelta(microseconds=self.drawn.min_age[1])
        return self.lake.expired(stored, self.drawn.scope, cutoff=cutoff, now=mark.server_now)

    # --- the steps --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.build()
        self.sandbox.set_clock(moment(self.drawn.now))
        stored, before = self.lake.stored(), self.lake.objects_now()
        missing = self.lake.live_keys(self.sandbox.now()) - stored.keys()
        accepted = self.lost if self.drawn.accepted else set()
        outcome = self.mark("m1", accepted=accepted)
        if outcome.code == 3 and missing:
            TALLY["refused, because objects were lost"] += 1
            assert "live addresses" in outcome.err or "Some stores normalize keys" in outcome.err
            assert not self.drawn.accepted or acceptance_is_refused(
                missing, self.lake.live_keys_of_its_own(self.sandbox.now()), stored
            )
            assert self.lake.objects_now() == before
            return
        assert outcome.code == 0, outcome.err
        mark = self.marked("m1")
        self.check_times(mark)
        expected = self.expired(stored, mark)
        assert_same("expired", mark.addresses, expected)
        assert {row["address"]: row["size"] for row in mark.rows} == {key: len(before[key]) for key in expected}
        assert self.lake.objects_now() == before
        TALLY["expired"] += len(expected)
        if expected:
            self.approve_and_sweep(mark, before)
        if self.drawn.again:
            self.mark_again()

    def check_times(self, mark: Marked) -> None:
        for recorded in (mark.start, mark.server_now + timedelta(seconds=1)):
            assert moment(self.drawn.now) <= recorded <= self.sandbox.now() + timedelta(seconds=1)

    def approve_and_sweep(self, mark: Marked, before: dict[str, bytes]) -> None:
        review = json.loads(self.output("review", "lake", "m1", "--format", "json"))
        assert review["objects"] == len(mark.addresses)
        self.let_pass(SOON)  # an approval in the same second as the mark's end is refused
        tripped = [brake["name"] for brake in review["brakes"] if brake["tripped"]]
        releases = [part for name in tripped for part in ("--release", name, "--because", "a test")]
        self.output("approve", "lake", "m1", "--yes", "--digest", review["digest"], *releases)
        copies = str(self.folder / "copies")
        if self.drawn.ending == "restore":
            self.output("backup", "lake", "m1", copies)
        self.change_afterwards(mark)
        quarantine = ["--quarantine"] if self.drawn.ending in ("undo", "purge") else []
        began, at_sweep = self.let_pass(SOON), self.lake.objects_now()
        self.output("sweep", "lake", "m1", *quarantine)
        after = self.lake.objects_now()
        gone = at_sweep.keys() - after.keys()
        kept = self.kept(began)
        assert_none("live and deleted", gone - (mark.addresses - self.kept(self.sandbox.now())))
        assert_none("approved, garbage, and still there", (mark.addresses & at_sweep.keys()) - kept - gone)
        assert after == {key: data for key, data in at_sweep.items() if key not in gone}
        TALLY["swept"] += len(gone)
        TALLY["rescued or changed"] += len((mark.addresses & at_sweep.keys()) - gone)
        self.end(gone, at_sweep, after, copies)

    def change_afterwards(self, mark: Marked) -> None:
        """What others do between the approval and the sweep."""
        drawn, lake = self.drawn, self.lake
        apply_all(drawn.later, lake, drawn.now)
        lake.set_rules(drawn.later_rules)
        if drawn.later_hold is not None:
            self.put_on_hold((*drawn.holds, drawn.later_hold))
        approved = sorted(mark.addresses)
        self.rewritten = {approved[number % len(approved)] for number in drawn.rewritten}
        for key in self.rewritten:
            (lake.folder / key).write_bytes(b"something else")
        for number in drawn.vanished:
            (lake.folder / approved[number % len(approved)]).unlink(missing_ok=True)
        lake.check_model()

    def kept(self, now: datetime) -> set[str]:
        """What a sweep must keep: what is now live or on hold, and what is no longer the marked object."""
        kept = self.lake.live_keys(now) | self.lake.on_hold(now) | self.rewritten
        if self.drawn.scope == "uncommitted":
            kept |= self.lake.keys(entry for tree in self.lake.trees.values() for entry in tree.values())
        return kept

    def end(self, gone: set[str], at_sweep: dict[str, bytes], after: dict[str, bytes], copies: str) -> None:
        TALLY[self.drawn.ending or "delete"] += 1
        quarantined = self.lake.folder / "_lakefs/retention/gc/quarantine"
        if self.drawn.ending == "undo":
            self.output("undo", "lake", "m1")
            assert self.lake.objects_now() == at_sweep
        elif self.drawn.ending == "purge":
            self.output("purge", "lake", "m1", "--yes")
            assert self.lake.objects_now() == after
        elif self.drawn.ending == "restore":
            outcome, conflicts = self.run("restore", "lake", "m1", copies), self.rewritten & at_sweep.keys()
            assert outcome.code == (4 if conflicts else 0), outcome.err
            assert all(repr(key) in outcome.err for key in conflicts)
            restored = self.lake.objects_now()
            assert {key: restored.get(key) for key in at_sweep} == at_sweep
        assert not [file for file in quarantined.rglob("*") if file.is_file()]

    def mark_again(self) -> None:
        """A second mark, which sees what the first mark, its sweep and others left behind."""
        now = self.let_pass(SOON)
        stored = self.lake.stored()
        missing = self.lake.live_keys(now) - stored.keys()
        options = ["--full"] if self.drawn.again == "--full" else []
        outcome = self.mark("m2", *options, accepted={key for key in missing if not LINE_BREAK.search(key)})
        if outcome.code == 3 and missing:
            assert acceptance_is_refused(missing, self.lake.live_keys_of_its_own(now), stored)
            return
        assert outcome.code == 0, outcome.err
        mark = self.marked("m2")
        expected = self.expired(stored, mark)
        if options:
            assert_same("expired by the second mark", mark.addresses, expected)
        else:  # it doesn't look for objects that somebody wrote or deleted in an old slice
            assert_none("live and expired by the incremental mark", mark.addresses - expected)


def acceptance_is_refused(missing: set[str], own_live: set[str], stored: Mapping[str, int]) -> bool:
    """Whether a mark is refused although the lost objects are accepted: if none of the repository's own live objects is
    stored, if a file with an address in each line can't name one of the lost ones, or if one may be stored under a
    normalized name."""
    return (
        not own_live & stored.keys()
        or any(LINE_BREAK.search(key) for key in missing)
        or any(posixpath.normpath(key.replace("\\", "/")).lstrip("/") in stored for key in missing)
    )


def assert_same(what: str, found: set[str], expected: set[str]) -> None:
    assert_none(f"live, and yet {what}", found - expected)
    assert_none(f"garbage, and yet not {what}", expected - found)


def assert_none(what: str, wrong: set[str]) -> None:
    assert not wrong, f"{what}: {sorted(wrong)}"


@contextmanager
def local_zone(zone: str) -> Iterator[None]:
    """Put this process into a different time zone."""
    with mock.patch.dict(os.environ, {"TZ": zone}):
        time.tzset()
        try:
            yield
        finally:
            os.environ.pop("TZ")
            time.tzset()


def in_memory() -> str | None:
    """A folder in memory, if there is one, because a small sweep spends most of its time writing files to disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


@seed(SEED)
@settings(
    max_examples=REPOSITORIES,
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(repositories())
def check_repository(drawn: Drawn) -> None:
    TALLY["repositories"] += 1
    options: dict[str, Any] = {"range_entries": drawn.range_entries, "uncommitted_page_size": drawn.page_size}
    with (
        tempfile.TemporaryDirectory(prefix="lakegc-random.", dir=in_memory()) as folder,
        Sandbox(Path(folder, "sandbox"), oversights=drawn.oversights, **options) as sandbox,
        local_zone(drawn.zone),
    ):
        Example(drawn, sandbox, Path(folder)).check()


@pytest.mark.timeout(0)  # as long as the number of repositories takes
def test_the_command_line_marks_and_sweeps_exactly_the_garbage_of_random_repositories(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever is drawn, all live objects are kept, byte for byte, and all garbage is deleted."""
    TALLY.clear()
    try:
        check_repository()
    finally:
        with capsys.disabled():
            counts = ", ".join(f"{count:,} {name}" for name, count in TALLY.most_common())
            print(f"\nseed {SEED}: {counts}")
    assert TALLY["repositories"] >= REPOSITORIES
