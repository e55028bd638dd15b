"""Whole sweeps on a sandbox, done as a user does them: mark, approve, sweep, report; and the objects that are still
served afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pytest

from lakegc_assets.sweep import round_loop
from lakegc_assets.sweep.context import Reverification, SweepRun
from lakegc_assets.sweep.head_watch import HeadWatch
from spark_resources.deleting.quarantine import key_in_quarantine
from spark_resources.deleting.receipts import INTENTS
from spark_resources.deleting.sweep_task import Action
from spark_resources.errors import LakegcError
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.history import read_history
from spark_resources.mark_store.lease import take_lease
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import target_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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


def json_output(lakegc: Lakegc, settings: Mapping[str, str], *arguments: str) -> Any:
    outcome = lakegc(settings, *arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def marked_and_approved(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> dict[str, Any]:
    record: dict[str, Any] = json_output(lakegc, sandbox.settings, "mark", lake.id, "--mark-id", "m1", *NO_AGE)
    json_output(lakegc, sandbox.settings, "approve", lake.id, "m1", "--yes", "--digest", record["digest"])
    return record


def expired(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json_output(lakegc, sandbox.settings, "review", lake.id, "m1", "--list")
    return rows


def keys(sandbox: Sandbox, lake: SandboxRepository) -> set[str]:
    store = target_of(sandbox.settings, lake.id).place.store()
    return {stored.key for page in store.pages("data/") for stored in page.objects}


def test_a_sweep_with_an_approval_and_a_free_lease_deletes_exactly_the_approved_set(
    lakegc_by_dagster: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """Before the approval, the sweep is refused and no object is deleted. The message about a lease says who holds it
    and until when. Afterwards, the report's counts add up, all served objects are still served, and the approval is
    used up."""
    lakegc, store = lakegc_by_dagster, target_of(sandbox.settings, lake.id).place.store()
    before = keys(sandbox, lake)
    record = json_output(lakegc, sandbox.settings, "mark", lake.id, "--mark-id", "m1", *NO_AGE)
    lakegc(sandbox.settings, "sweep", lake.id, "m1").stopped(3, "not approved")
    lakegc(sandbox.settings, "sweep", lake.id, "m2").stopped(2, "m2")
    assert keys(sandbox, lake) == before

    json_output(lakegc, sandbox.settings, "approve", lake.id, "m1", "--yes", "--digest", record["digest"])
    approved = {row["address"] for row in expired(lakegc, sandbox, lake)}
    lease = take_lease(store, who="grace@elsewhere", mark_id="m9", token="t", single_deployment=False)
    try:
        lakegc(sandbox.settings, "sweep", lake.id, "m1").stopped(3, "grace@elsewhere", "until")
    finally:
        lease.release()
    assert keys(sandbox, lake) == before

    report = json_output(lakegc, sandbox.settings, "sweep", lake.id, "m1")

    assert len(approved) == 3
    assert keys(sandbox, lake) == before - approved
    assert (report["approved"], report["objects"], report["success"]) == (3, {"deleted": 3}, True)
    assert [lake.read("main", f"dir/{name}")[1] for name in "abc"] == [b"new a", b"new b", b"new c"]
    lakegc(sandbox.settings, "sweep", lake.id, "m1").stopped(3, "used")
    assert json_output(lakegc, sandbox.settings, "status", lake.id)["marks"][0]["state"] == "swept"


def test_a_sweep_respects_what_changed_after_the_approval(
    lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """The sweep doesn't rely on the references and holds of its mark. It rescues objects that have become live or are
    on hold, keeps a replaced object, and doesn't count an object as deleted that somebody else deleted."""
    for name in ("d", "e"):
        lake.put("main", f"dir/{name}", f"old {name}".encode())
        lake.put("main", f"dir/{name}", f"new {name}".encode())
    sandbox.set_clock(sandbox.now() + timedelta(days=2))
    store = target_of(sandbox.settings, lake.id).place.store()
    record = marked_and_approved(lakegc, sandbox, lake)
    live, on_hold, replaced, deleted_elsewhere, garbage = sorted(
        row["address"] for row in expired(lakegc, sandbox, lake)
    )
    lake.stage_address("main", "again", lake.objects.location(live), size=5, checksum="x")
    hold = ("--prefix", on_hold, "--owner", "ada", "--reason", "needed")
    lakegc.output(sandbox.settings, "holds", lake.id, "add", "kept", *hold)
    store.write(replaced, b"something else")
    store.delete_many([deleted_elsewhere])
    report = json_output(lakegc, sandbox.settings, "sweep", lake.id, "m1")

    assert record["counts"]["expired"] == 5
    assert report["objects"] == {"already gone": 1, "changed": 1, "deleted": 1, "rescued": 2}
    assert {live, on_hold, replaced} <= keys(sandbox, lake)
    assert garbage not in keys(sandbox, lake)
    assert lake.read("main", "again")[1].startswith(b"old")


def test_undo_restores_quarantined_objects_byte_for_byte(
    lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """No object is left in quarantine. The history counts them, because other marks may list them as they were."""
    store = target_of(sandbox.settings, lake.id).place.store()
    before = {key: store.read(key) for key in keys(sandbox, lake)}
    marked_and_approved(lakegc, sandbox, lake)
    report = json_output(lakegc, sandbox.settings, "sweep", lake.id, "m1", "--quarantine")
    aside = keys(sandbox, lake)
    undone = json_output(lakegc, sandbox.settings, "undo", lake.id, "m1")
    listed = lakegc(sandbox.settings, "report", lake.id, "m1", "--list").out
    history = read_history(target_of(sandbox.settings, lake.id).place)

    assert history is not None
    assert [(sweep.quarantined, sweep.restored) for sweep in history.sweeps] == [(0, 3)]
    assert report["objects"] == {"quarantined": 3}
    assert "Quarantined objects now: 3 undone." in listed
    assert len(aside) == 3
    assert undone["objects"] == {"restored": 3}
    assert {key: store.read(key) for key in keys(sandbox, lake)} == before
    assert [stored for page in store.pages("_lakefs/retention/gc/quarantine/") for stored in page.objects] == []


def test_a_set_altered_after_its_approval_is_refused(lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository) -> None:
    """A single changed byte is enough. No object is deleted."""
    store = target_of(sandbox.settings, lake.id).place.store()
    before = keys(sandbox, lake)
    marked_and_approved(lakegc, sandbox, lake)
    [file] = [
        stored.key
        for page in store.pages("_lakefs/retention/gc/lakegc/m1/expired_set/", delimiter="/")
        for stored in page.objects
        if stored.key.endswith(".parquet")
    ]
    data = bytearray(store.read(file))
    data[len(data) // 2] ^= 1
    store.write(file, bytes(data))

    lakegc(sandbox.settings, "sweep", lake.id, "m1").stopped(3, file, "altered")
    assert keys(sandbox, lake) == before


def test_purge_restores_quarantined_objects_that_are_live_again(
    lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """All other quarantined objects are deleted for good."""
    store = target_of(sandbox.settings, lake.id).place.store()
    marked_and_approved(lakegc, sandbox, lake)
    addresses = [row["address"] for row in expired(lakegc, sandbox, lake)]
    json_output(lakegc, sandbox.settings, "sweep", lake.id, "m1", "--quarantine")
    lake.stage_address("main", "again", lake.objects.location(addresses[0]), size=5, checksum="x")
    lakegc(sandbox.settings, "purge", lake.id, "m1").stopped(2, "--yes")
    purged = json_output(lakegc, sandbox.settings, "purge", lake.id, "m1", "--yes")

    assert purged["objects"] == {"purged": 2, "restored": 1}
    assert set(addresses) & keys(sandbox, lake) == {addresses[0]}
    assert [stored for page in store.pages("_lakefs/retention/gc/quarantine/") for stored in page.objects] == []
    assert json_output(lakegc, sandbox.settings, "undo", lake.id, "m1")["objects"] == {}


def test_a_mark_with_an_empty_expired_set_is_swept_successfully(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """The mark can be approved, and its sweep deletes nothing."""
    empty = sandbox.create("nothing-to-do")
    empty.put("main", "a", b"a")
    marked_and_approved(lakegc, sandbox, empty)
    report = json_output(lakegc, sandbox.settings, "sweep", empty.id, "m1")

    assert (report["approved"], report["objects"], report["success"]) == (0, {}, True)


def test_copies_left_by_a_killed_sweep_are_restored_only_if_their_live_original_is_gone(
    lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """The sweep was killed between copying objects and deleting them, and the objects became live again. Until another
    sweep has ended, a copy is kept because it could be the only one left. Afterwards it is purged and its original
    kept. If the original is gone by then, the copy is restored."""
    store = target_of(sandbox.settings, lake.id).place.store()
    marked_and_approved(lakegc, sandbox, lake)
    addresses = [row["address"] for row in expired(lakegc, sandbox, lake)][:2]
    contents = [store.read(address) for address in addresses]
    with killed_after_copying(*addresses):
        lakegc(sandbox.settings, "sweep", lake.id, "m1", "--quarantine").stopped(1, "killed")
    hints = [lakegc.output(sandbox.settings, *command) for command in (("review", lake.id, "m1"), ("status", lake.id))]
    early = json_output(lakegc, sandbox.settings, "purge", lake.id, "m1", "--yes")
    copies = [store.read(key_in_quarantine("m1", address)) for address in addresses]
    for number, (address, content) in enumerate(zip(addresses, contents, strict=True)):
        lake.stage_address("main", f"again-{number}", lake.objects.location(address), size=len(content), checksum="x")
    report = json_output(lakegc, sandbox.settings, "sweep", lake.id, "m1")  # it continues to quarantine
    store.delete_many([addresses[1]])
    purged = json_output(lakegc, sandbox.settings, "purge", lake.id, "m1", "--yes")

    assert all(f"lakegc sweep {lake.id} m1 --quarantine" in hint for hint in hints)
    assert early["objects"] == {}
    assert copies == contents
    assert report["objects"] == {"quarantined": 1, "rescued": 2}
    assert purged["objects"] == {"purged": 1, "stray copies freed": 2}  # restored copies count as freed, too
    assert [store.read(address) for address in addresses] == contents
    assert [stored for page in store.pages("_lakefs/retention/gc/quarantine/") for stored in page.objects] == []
    assert json_output(lakegc, sandbox.settings, "report", lake.id, "m1")["in_quarantine"]["purged"] == 1
    assert json_output(lakegc, sandbox.settings, "purge", lake.id, "m1", "--yes")["objects"] == {}


def test_a_quarantined_object_that_becomes_live_after_a_killed_sweep_is_reported_as_late_and_restored(
    lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """A sweep was killed after it had removed an object and before it recorded that. Then the object became live.
    Readers miss it, so the report doesn't claim success, names the object and doesn't count it as rescued."""
    store = target_of(sandbox.settings, lake.id).place.store()
    marked_and_approved(lakegc, sandbox, lake)
    address = expired(lakegc, sandbox, lake)[0]["address"]
    content = store.read(address)
    with killed_after_copying(address):
        lakegc(sandbox.settings, "sweep", lake.id, "m1", "--quarantine").stopped(1, "killed")
    store.delete_many([address])
    lake.stage_address("main", "again", lake.objects.location(address), size=len(content), checksum="x")
    swept = lakegc(sandbox.settings, "sweep", lake.id, "m1", "--quarantine", "--format", "json")
    report = json.loads(swept.out)

    assert (swept.code, report["success"], report["late"]) == (4, False, [address])
    assert report["objects"] == {"quarantined": 3}
    json_output(lakegc, sandbox.settings, "undo", lake.id, "m1")
    assert lake.read("main", "again")[1] == content


def test_each_deleted_object_counts_in_one_sweep_even_if_another_one_was_killed(
    lakegc: Lakegc, sandbox: Sandbox, lake: SandboxRepository
) -> None:
    """A sweep was killed after it had begun to delete two objects and deleted one. Another mark's sweep deleted the
    rest, and the one that was already deleted became live. Once the first sweep is resumed, it has deleted one object,
    which readers miss. The records of both marks agree on that."""
    settings, store = sandbox.settings, target_of(sandbox.settings, lake.id).place.store()
    marked_and_approved(lakegc, sandbox, lake)
    deleted, shared, _ = addresses = [row["address"] for row in expired(lakegc, sandbox, lake)]
    with killed_after_copying(deleted, shared):
        lakegc(settings, "sweep", lake.id, "m1").stopped(1, "killed")
    store.delete_many([deleted, *(key_in_quarantine("m1", address) for address in (deleted, shared))])
    sandbox.set_clock(sandbox.now() + timedelta(minutes=1))
    record = json_output(lakegc, settings, "mark", lake.id, "--mark-id", "m2", *NO_AGE)
    release = ("--release", "share", "--because", "a small repository")
    json_output(lakegc, settings, "approve", lake.id, "m2", "--yes", "--digest", record["digest"], *release)
    other = json_output(lakegc, settings, "sweep", lake.id, "m2")
    sandbox.set_clock(sandbox.now() + timedelta(minutes=1))
    lake.stage_address("main", "again", lake.objects.location(deleted), size=5, checksum="x")
    swept = lakegc(settings, "sweep", lake.id, "m1")
    report = json_output(lakegc, settings, "report", lake.id, "m1")

    assert (swept.code, report["success"], report["late"]) == (4, False, [deleted])
    assert (other["objects"], report["objects"]) == ({"deleted": 2}, {"already gone": 2, "deleted": 1})
    assert {row["address"]: row["why"] for row in report["named"]["already gone"]} == {
        address: "the sweep of mark m2 deleted it" if address == shared else "" for address in addresses[1:]
    }
    assert "1 object was handled by earlier runs." in swept.out
    assert "Deleting took" not in swept.out
    overview = json_output(lakegc, settings, "status")["repositories"]
    assert [row["freed_objects"] for row in overview if row["repository"] == lake.id] == [3]
    assert f"To see what the last sweep did: lakegc report {lake.id} m1" in lakegc.output(settings, "status", lake.id)
    for mark_id in ("m1", "m2"):
        explained = lakegc.output(settings, "explain", lake.id, shared, "--address", "--mark", mark_id)
        assert f"{shared}: deleted (" in explained
        assert "UTC (the sweep of mark m2 deleted it). Receipt:" in explained
        assert f"Everything that the sweep did: lakegc report {lake.id} m2" in explained


@contextmanager
def killed_after_copying(*addresses: str) -> Iterator[None]:
    """The state after a sweep was killed when it had copied these objects to quarantine: intents and the copies."""

    def killed(run: SweepRun, garbage: DataFrame, action: Action, verification: Reverification, _: HeadWatch) -> None:
        rows = [{"address": address} for address in addresses]
        run.receipts.write("intent", verification.number, "00000-0-00000", pa.Table.from_pylist(rows, schema=INTENTS))
        for address in addresses:
            run.store.copy(address, key_in_quarantine("m1", address))
        raise LakegcError("killed")

    with mock.patch.object(round_loop, "delete_first", killed):
        yield
