"""Whole sweeps on a sandbox, as a user makes them: mark, approve, sweep, report; and what is served afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest

from spark_resources.sandbox import Sandbox
from spark_resources.sandbox.repository import SandboxRepository
from tests.command_line import NO_AGE, Lakegc
from tests.marking import target_of


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("swept")) as server:
        yield server


@pytest.fixture
def lake(sandbox: Sandbox, request: pytest.FixtureRequest) -> SandboxRepository:
    """Three live objects, and three that were overwritten while they were staged."""
    repository = sandbox.create(f"lake-{abs(hash(request.node.nodeid)):x}")
    for name in ("a", "b", "c"):
        repository.put("main", f"dir/{name}", f"old {name}".encode())
        repository.put("main", f"dir/{name}", f"new {name}".encode())
    repository.commit("main", "three")
    sandbox.set_clock(sandbox.now() + timedelta(days=2))
    return repository


def shown(lakegc: Lakegc, settings: Mapping[str, str], *arguments: str) -> Any:
    outcome = lakegc(settings, *arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def marked_and_approved(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository, *releases: str) -> dict[str, Any]:
    record: dict[str, Any] = shown(lakegc, sandbox.settings, "mark", lake.id, "--mark-id", "m1", *NO_AGE)
    yes = ("--yes", "--digest", record["digest"], "--release", "share", "--because", "a test")
    shown(lakegc, sandbox.settings, "approve", lake.id, "m1", *yes[: 3 if not releases else None])
    return record


def keys(sandbox: Sandbox, lake: SandboxRepository) -> set[str]:
    store = target_of(sandbox.settings, lake.id).place.store()
    return {one.key for page in store.pages("data/") for one in page.objects}


def test_more_or_less_than_the_approved_set_goes(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> None:
    """Exactly the approved objects go, the report adds up, all that is served is served still, and the mark is used."""
    before = keys(sandbox, lake)
    marked_and_approved(lakegc, sandbox, lake)
    expired = {row["address"] for row in shown(lakegc, sandbox.settings, "review", lake.id, "m1", "--list")}
    report = shown(lakegc, sandbox.settings, "sweep", lake.id, "m1")

    assert len(expired) == 3
    assert keys(sandbox, lake) == before - expired
    assert (report["approved"], report["objects"], report["success"]) == (3, {"deleted": 3}, True)
    assert [lake.read("main", f"dir/{name}")[1] for name in "abc"] == [b"new a", b"new b", b"new c"]
    lakegc(sandbox.settings, "sweep", lake.id, "m1").stopped(3, "used")
    assert shown(lakegc, sandbox.settings, "status", lake.id)["marks"][0]["state"] == "swept"


def test_an_unapproved_mark_is_swept(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> None:
    """Without a person's word nothing goes."""
    before = keys(sandbox, lake)
    shown(lakegc, sandbox.settings, "mark", lake.id, "--mark-id", "m1", *NO_AGE)

    lakegc(sandbox.settings, "sweep", lake.id, "m1").stopped(3, "not approved")
    lakegc(sandbox.settings, "sweep", lake.id, "m2").stopped(2, "m2")
    assert keys(sandbox, lake) == before


def test_what_came_back_is_deleted(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> None:
    """An object that is live again when the sweep proves it is rescued, and named with the reason."""
    record = marked_and_approved(lakegc, sandbox, lake)
    expired = [row["address"] for row in shown(lakegc, sandbox.settings, "review", lake.id, "m1", "--list")]
    location = lake.objects.location(expired[0])
    lake.stage_address("main", "again", location, size=5, checksum="x")
    report = shown(lakegc, sandbox.settings, "sweep", lake.id, "m1")

    assert record["counts"]["expired"] == 3
    assert report["objects"] == {"deleted": 2, "rescued": 1}
    assert expired[0] in keys(sandbox, lake)
    assert lake.read("main", "again")[1].startswith(b"old")


def test_quarantine_is_a_one_way_street(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> None:
    """Objects that were put aside come back byte for byte; put aside again, they can be purged."""
    store = target_of(sandbox.settings, lake.id).place.store()
    before = {key: store.read(key) for key in keys(sandbox, lake)}
    marked_and_approved(lakegc, sandbox, lake)
    report = shown(lakegc, sandbox.settings, "sweep", lake.id, "m1", "--quarantine")
    aside = keys(sandbox, lake)
    undone = shown(lakegc, sandbox.settings, "undo", lake.id, "m1")

    assert report["objects"] == {"quarantined": 3}
    assert len(aside) == 3
    assert undone["objects"] == {"restored": 3}
    assert {key: store.read(key) for key in keys(sandbox, lake)} == before
    assert [one for page in store.pages("_lakefs/retention/gc/quarantine/") for one in page.objects] == []
