"""Path probes of marks and sweeps while branches are deleted, and while the server gives no clear answer."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.model import RECEIPTS
from spark_resources.spark.datasets import all_rows, open_dataset
from tests.support.mark_runs import Marker, Sweeper, target_of
from tests.support.messages import on_first_message
from tests.support.tampering_proxy import Between, between

NO_AGE = MarkOptions(min_age=timedelta(0), allow_young=True)
BRANCHES = tuple(f"branch-{number}" for number in range(8))
PROBES = "asking what branches serve"


@pytest.fixture
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("probes")) as server:
        yield server


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Between]:
    with between(sandbox.endpoint_url) as found:
        yield found


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    """Branches that have each an object of four bytes and one of five at its head, and nothing staged."""
    found = sandbox.create("lake")
    for branch in BRANCHES:
        found.create_branch(branch, "main")
        found.put_many(branch, [(f"{branch}/four", b"four"), (f"{branch}/five", b"5 5 5")])
        found.commit(branch, "two objects")
    return found


def garbage(lake: SandboxRepository, data: bytes) -> str:
    entry = lake.put("main", "garbage", data)
    lake.delete("main", ["garbage"])
    return entry.address


def settings(sandbox: Sandbox, server: Between) -> dict[str, str]:
    return {**sandbox.settings, "endpoint_url": server.endpoint, "retry_total_s": "0"}


def test_a_branch_deleted_while_paths_are_probed_keeps_nothing(
    sandbox: Sandbox, server: Between, lake: SandboxRepository
) -> None:
    """Only the probes of that branch are dropped: the mark and the sweep expire all garbage."""
    free = {garbage(lake, data) for data in (b"four", b"FOUR", b"5 5 5")}
    known = settings(sandbox, server)

    with on_first_message(PROBES, lambda: lake.delete_branch(BRANCHES[0])):
        marked = Marker().mark(known, "lake", "m1", NO_AGE)

    assert (marked.facts("expired_set")["probes"], marked.facts("expired_set")["probes_failed"]) == (16, 0)
    assert marked.expired == free

    Sweeper().approve(known, "lake", "m1")
    with on_first_message(PROBES, lambda: lake.delete_branch(BRANCHES[1])):
        report = Sweeper().sweep(known, "lake", "m1", SweepOptions())

    assert report.objects == {"deleted": len(free)}


def test_a_probe_without_a_clear_answer_keeps_its_candidates(
    sandbox: Sandbox, server: Between, lake: SandboxRepository
) -> None:
    """A branch may serve them: the mark and the sweep keep them, and say why."""
    kept, free = garbage(lake, b"four"), garbage(lake, b"no branch has this size")
    known = settings(sandbox, server)
    server.refused = {"/objects/stat": 503}

    marked = Marker().mark(known, "lake", "m1", NO_AGE)

    facts = marked.facts("expired_set")
    assert marked.expired == {free}
    assert facts["probes_failed"] == facts["probes"] == 8
    assert "answered 503" in facts["unclear"][0]

    server.refused = {}
    assert Marker().mark(known, "lake", "m2", NO_AGE).expired == {kept, free}
    Sweeper().approve(known, "lake", "m2")
    server.refused = {"/objects/stat": 503}
    report = Sweeper().sweep(known, "lake", "m2", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 1}
    place = target_of(sandbox.settings, "lake").place
    rows = all_rows(place, open_dataset(place, str(report.dataset["folder"])), RECEIPTS)
    [rescued] = [row for row in rows if row["outcome"] == "rescued"]
    assert rescued["address"] == kept
    assert "inconclusive" in rescued["why"]
    assert "answered 503" in rescued["why"]
    assert lake.objects.file(kept).exists()


def test_a_404_of_a_gateway_hides_no_object(sandbox: Sandbox, server: Between, lake: SandboxRepository) -> None:
    """It answers a path probe in the server's place, as if nothing were there; the branch's listing has the object."""
    again = lake.put(BRANCHES[0], f"{BRANCHES[0]}/four", b"four")  # as committed, so no list has it
    free = {garbage(lake, data) for data in (b"FOUR", b"no branch has this size")}
    server.refused = {"/objects/stat": 404}

    marked = Marker().mark(settings(sandbox, server), "lake", "m1", NO_AGE)

    assert marked.expired == free
    assert lake.stat(BRANCHES[0], f"{BRANCHES[0]}/four").address == again.address
