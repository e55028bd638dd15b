"""Marks that read an inventory instead of listing the store: they find the same set, as of the inventory's time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lakegc_assets.approval.approve import new_approval
from lakegc_assets.approval.proposals import ApprovalRequest, propose
from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.rules.brakes import BrakeLimits, brakes
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import Refused, WrongUsage
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.settings import Settings
from spark_resources.stores.base import Store
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox") as running:
        yield running


def garbage(lake: SandboxRepository, name: str) -> str:
    address = lake.put("main", name, f"old {name}".encode()).address
    lake.put("main", name, f"new {name}".encode())
    return address


def inventory(store: Store, file: Path) -> None:
    """Write a list of all objects that the store has now, as if a user had made the file."""
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["key", "size", "last_modified", "etag"])
        for page in store.pages(""):
            rows.writerows(
                [stored.key, stored.size, stored.modified.isoformat(), stored.checksum or ""] for stored in page.objects
            )


def options(file: Path, taken: datetime) -> MarkOptions:
    return MarkOptions(
        min_age=timedelta(0), allow_young=True, inventory=str(file), inventory_taken=taken + timedelta(seconds=1)
    )


def test_a_mark_from_an_inventory_expires_the_garbage_as_of_the_inventorys_time(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Later objects don't expire, and the sweep leaves objects that changed since the mark."""
    lake, file = sandbox.create("lake"), tmp_path / "list.csv"
    store = target_of(sandbox.settings, "lake").place.store()
    addresses = {name: garbage(lake, name) for name in ("a", "b", "c")}
    lake.commit("main", "three")
    sandbox.set_clock(sandbox.now() + timedelta(seconds=5))
    inventory(store, file)
    inventory_time = sandbox.now()
    sandbox.set_clock(inventory_time + timedelta(hours=12))
    garbage(lake, "later")
    lake.commit("main", "later")
    store.delete_many([addresses["b"]])
    store.write(addresses["c"], b"something else")
    marked = Marker().mark(sandbox.settings, "lake", "m1", options(file, inventory_time))

    assert marked.expired == set(addresses.values())
    assert marked.record.start == inventory_time + timedelta(seconds=1)
    Sweeper().approve(sandbox.settings, "lake", "m1")
    report = Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions())
    assert report.objects == {"deleted": 1, "already gone": 1, "changed": 1}
    assert [lake.read("main", name)[1] for name in ("a", "b", "c", "later")] == [
        b"new a", b"new b", b"new c", b"new later",
    ]  # fmt: skip


def test_brakes_compare_a_mark_from_an_inventory_with_the_last_finished_mark(sandbox: Sandbox, tmp_path: Path) -> None:
    """The inventory is older than that mark. A mark from an inventory can't be handed to the reference collector."""
    lake, file = sandbox.create("lake"), tmp_path / "list.csv"
    garbage(lake, "a")
    lake.commit("main", "one")
    sandbox.set_clock(sandbox.now() + timedelta(seconds=5))
    inventory(target_of(sandbox.settings, "lake").place.store(), file)
    inventory_time = sandbox.now()
    sandbox.set_clock(inventory_time + timedelta(days=8))
    Marker().mark(sandbox.settings, "lake", "m1", ANY_AGE)
    sandbox.set_clock(sandbox.now() + timedelta(seconds=5))
    record = Marker().mark(sandbox.settings, "lake", "m2", options(file, inventory_time)).record

    assert record.previous is not None
    assert record.previous["mark_id"] == "m1"
    tripped = {brake.name for brake in brakes(record, BrakeLimits.of(Settings()), now=sandbox.now()) if brake.tripped}
    assert "age" in tripped
    proposal = propose(target_of(sandbox.settings, "lake"), "m2", now=sandbox.now())
    request = ApprovalRequest("Ada", "tests", sandbox.now(), {}, digest=proposal.digest, for_reference=True)
    with pytest.raises(WrongUsage, match="inventory"):
        new_approval(proposal, request, BrakeLimits.of(Settings()), now=sandbox.now())


def test_an_incomplete_future_or_missing_inventory_stops_the_mark(sandbox: Sandbox, tmp_path: Path) -> None:
    """The incomplete inventory lacks all live objects."""
    lake, file = sandbox.create("lake"), tmp_path / "list.csv"
    store = target_of(sandbox.settings, "lake").place.store()
    live = lake.put("main", "a", b"live")
    lake.commit("main", "one")
    store.delete_many([live.address])
    store.write("data/s/other", b"of another repository")
    sandbox.set_clock(sandbox.now() + timedelta(seconds=5))
    inventory(store, file)

    with pytest.raises(Refused, match="live addresses") as refused:
        Marker().mark(sandbox.settings, "lake", "m1", options(file, sandbox.now()))
    assert refused.value.invariant == 3
    with pytest.raises(Refused, match="which is in the future"):
        Marker().mark(sandbox.settings, "lake", "m2", options(file, sandbox.now() + timedelta(days=1)))
    with pytest.raises(WrongUsage, match="does not exist"):
        Marker().mark(sandbox.settings, "lake", "m3", options(tmp_path / "no.csv", sandbox.now()))
