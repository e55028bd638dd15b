"""A repository without any object, and one of ten, through every step from a mark to a retirement."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import target_of


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path) as server:
        yield server


@pytest.mark.parametrize("objects", [0, 10])
def test_repositories_of_ten_objects_and_of_none_go_through_every_step(
    lakegc: Lakegc, sandbox: Sandbox, objects: int
) -> None:
    """Half of the objects were overwritten before they were committed: these are garbage."""
    repository, garbage = sandbox.create("lake"), objects // 2
    for content in ("old", "new") if objects else ():
        repository.put_many("main", [(f"{number}", f"{content} {number}".encode()) for number in range(garbage)])
    if objects:
        repository.commit("main", "the new ones")

    def output(*arguments: str) -> Any:
        return json.loads(lakegc.output(sandbox.settings, *arguments, "--format", "json"))

    def stored() -> int:
        store = target_of(sandbox.settings, "lake").place.store()
        return sum(len(page.objects) for page in store.pages("data/"))

    record = output("mark", "lake", "--mark-id", "m1", *NO_AGE)
    assert (record["counts"]["expired"], stored()) == (garbage, objects)
    assert len(output("review", "lake", "m1", "--list")) == garbage
    lakegc.output(sandbox.settings, "fsck", "lake")
    lakegc.output(sandbox.settings, "pins", "lake")
    output("approve", "lake", "m1", "--yes", "--digest", record["digest"])
    report = output("sweep", "lake", "m1")
    assert (report["approved"], report["objects"], report["success"]) == (
        garbage, {"deleted": garbage} if garbage else {}, True,
    )  # fmt: skip
    assert stored() == objects - garbage
    assert [repository.read("main", str(number))[1] for number in range(garbage)] == [
        f"new {number}".encode() for number in range(garbage)
    ]

    output("mark", "lake", "--mark-id", "m2", *NO_AGE)
    output("diff", "lake", "m1", "m2")
    sandbox.set_clock(sandbox.now() + timedelta(days=100))
    [retired] = output("retire", "lake", "--older-than", "90d", "--apply")["repositories"]
    assert {mark["mark_id"] for mark in retired["marks"]} == {"m1", "m2"}
    assert {row["mark_id"] for row in output("status", "lake")["marks"]} == {"m1", "m2"}
