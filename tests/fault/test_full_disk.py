"""A full disk stops marks and sweeps with a message that says so. Nothing is lost, and both continue once there is
space again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.deleting.receipts import Receipts
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository
from spark_resources.mark_store.lease import LEASE_TIME
from tests.support.command_line import NO_AGE, Lakegc, Outcome
from tests.support.mark_runs import target_of
from tests.support.messages import on_first_message
from tests.support.small_disk import SmallDisk, small_disk

__all__ = ["small_disk"]

NO_SPACE = "No space left on device. Free some space there, and run the same command again."
OBJECTS = 5


@pytest.fixture
def sandbox(small_disk: SmallDisk) -> Iterator[Sandbox]:
    """A server whose objects and metadata are on the small disk."""
    with Sandbox(small_disk.folder) as server:
        yield server


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    """Five live objects, and five that were overwritten before they were committed."""
    repository = sandbox.create("lake")
    for content in ("old", "new"):
        for number in range(OBJECTS):
            repository.put("main", f"{number}", f"{content} {number}".encode())
    repository.commit("main", "all")
    return repository


def keys(sandbox: Sandbox) -> set[str]:
    store = target_of(sandbox.settings, "lake").place.store()
    return {stored.key for page in store.pages("data/") for stored in page.objects}


def json_output(lakegc: Lakegc, sandbox: Sandbox, *arguments: str) -> Any:
    return json.loads(lakegc.output(sandbox.settings, *arguments, "--format", "json"))


def free_space(disk: SmallDisk, sandbox: Sandbox) -> None:
    """Free the disk, and let the lease expire, which the stopped run couldn't release."""
    disk.free()
    sandbox.set_clock(sandbox.now() + LEASE_TIME + timedelta(seconds=1))


def approved(lakegc: Lakegc, sandbox: Sandbox) -> set[str]:
    """Make a mark of the repository and approve it. Returns the objects in it."""
    record = json_output(lakegc, sandbox, "mark", "lake", "--mark-id", "m1", *NO_AGE)
    json_output(lakegc, sandbox, "approve", "lake", "m1", "--yes", "--digest", record["digest"])
    return {row["address"] for row in json_output(lakegc, sandbox, "review", "lake", "m1", "--list")}


@pytest.mark.parametrize("at", ["listing", "writing the expired set"])
@pytest.mark.usefixtures("lake")
def test_a_mark_stops_if_the_stores_disk_is_full_and_the_next_one_succeeds(
    lakegc: Lakegc, sandbox: Sandbox, small_disk: SmallDisk, at: str
) -> None:
    with on_first_message(at, small_disk.fill):
        outcome = lakegc(sandbox.settings, "mark", "lake", "--mark-id", "m1", *NO_AGE)

    outcome.stopped(1, "could not ", NO_SPACE)
    marks = json_output(lakegc, sandbox, "status", "lake")["marks"]
    assert {row["state"] for row in marks} <= {"marking", "failed"}
    free_space(small_disk, sandbox)
    assert json_output(lakegc, sandbox, "mark", "lake", "--mark-id", "m2", *NO_AGE)["counts"]["expired"] == OBJECTS


@pytest.mark.parametrize("kind", ["intent", "receipt"])
@pytest.mark.usefixtures("lake")
def test_a_sweep_stops_if_the_stores_disk_is_full_and_is_resumed_with_an_outcome_for_every_object(
    lakegc: Lakegc, sandbox: Sandbox, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Without space for an intent, nothing is deleted. Objects whose receipt couldn't be written count as deleted."""
    before, garbage = keys(sandbox), approved(lakegc, sandbox)
    with monkeypatch.context() as patched:
        patched.setattr(Receipts, "write", filling_before(kind, small_disk))
        outcome = lakegc(sandbox.settings, "sweep", "lake", "m1")

    outcome.stopped(1, f".{kind}.parquet", NO_SPACE)
    deleted = before - keys(sandbox)
    assert bool(deleted) == (kind == "receipt")
    assert deleted <= garbage
    free_space(small_disk, sandbox)
    report = json_output(lakegc, sandbox, "sweep", "lake", "m1")
    assert (report["objects"], report["success"]) == ({"deleted": OBJECTS}, True)
    assert keys(sandbox) == before - garbage


def filling_before(kind: str, disk: SmallDisk) -> Callable[..., None]:
    """`Receipts.write`, which fills the disk before it writes a file of this kind."""
    write = Receipts.write

    def fill_and_write(receipts: Receipts, written: str, *rest: Any) -> None:
        if written == kind:
            disk.fill()
        write(receipts, written, *rest)

    return fill_and_write


def test_a_mark_and_a_sweep_stop_if_the_disk_of_dagsters_history_is_full_and_the_sweep_resumes(
    lakegc: Lakegc, tmp_path: Path, small_disk: SmallDisk
) -> None:
    """The message names the history, and doesn't mention a bug in lakegc."""
    full = (1, "Dagster's history can't be written", "Marks and receipts are in the namespace")
    with Sandbox(tmp_path / "elsewhere") as sandbox:
        repository = sandbox.create("lake")
        for content in (b"old", b"new"):
            repository.put("main", "a", content)
        with_history = Lakegc(small_disk.folder / "home", on_disk=True)
        with on_first_message("reading staged", small_disk.fill):
            last_message(with_history(sandbox.settings, "mark", "lake", "--mark-id", "m0", *NO_AGE)).stopped(*full)
        small_disk.free()

        garbage = approved(lakegc, sandbox)
        before = keys(sandbox)
        with on_first_message("re-verif", small_disk.fill):
            last_message(with_history(sandbox.settings, "sweep", "lake", "m1")).stopped(*full)
        small_disk.free()
        report = json_output(with_history, sandbox, "sweep", "lake", "m1")
        assert (report["objects"], report["success"]) == ({"deleted": 1}, True)
        assert keys(sandbox) == before - garbage


def last_message(outcome: Outcome) -> Outcome:
    """The outcome with only lakegc's last message: Dagster itself reports each event that it can't write."""
    return replace(outcome, err="lakegc: " + outcome.err.rpartition("lakegc: ")[2])
