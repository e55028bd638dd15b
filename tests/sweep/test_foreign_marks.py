"""Interrupted sweeps of foreign marks, and files that others write to the marks' folders in the meantime."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.approval import approve
from lakegc_assets.approval.foreign_marks import open_sweep_record, sweep_record_root
from lakegc_assets.mark import namespace_slices
from lakegc_assets.sweep import foreign_marks, sweep
from lakegc_assets.sweep.context import ForeignMark
from spark_resources.errors import Unavailable
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.foreign_expired_set import REFERENCE_OBJECTS
from spark_resources.mark_store.hold_file import parse_configured_holds
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import StepRecord
from spark_resources.model import ADDRESSES, MarkState
from spark_resources.spark.datasets import all_rows, parquet_bytes, write_rows
from tests.approval.conftest import Lake, lake, sandbox
from tests.approval.test_foreign_marks import STORED, SUMMARY, foreign_mark, later, write_foreign_mark
from tests.support.command_line import Lakegc
from tests.support.finished_marks import recorded
from tests.support.foreign_sweeps import begin_foreign_sweep

__all__ = ["lake", "sandbox"]


def approved(lake: Lake, **when: Any) -> None:
    """An approved foreign mark of two objects. All objects are one hour older than the mark."""
    write_foreign_mark(lake, summary={**SUMMARY, "cutoff_time": (lake.now + timedelta(hours=1)).isoformat()})
    written = (lake.now - timedelta(hours=1)).timestamp()
    for key in STORED:
        os.utime(lake.folder / key, (written, written))
    lake.approve("t1", **{**later(lake), **when})


def stored(lake: Lake) -> set[str]:
    store = lake.place.store()
    return {stored.key for page in store.pages("") for stored in page.objects} & set(STORED)


def unavailable(*_: Any) -> None:
    raise Unavailable("the store is away")


def test_a_sweep_whose_listing_failed_lists_again_when_resumed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep's record says that the listing failed."""
    approved(lake)
    begin_foreign_sweep(lake, digest=lake.proposal("t1").digest, state=MarkState.FAILED, finished=None)
    mark, listed = open_sweep_record(lake.target, "t1"), lake.now
    known = ForeignMark(foreign_mark(lake), lake.approval("t1"))  # type: ignore[arg-type]
    monkeypatch.setattr(
        foreign_marks, "write_listing", lambda run, _: run.mark.move_to(MarkState.MARKED, finished=listed)
    )
    foreign_marks.record_stored_objects(SimpleNamespace(mark=mark), known)  # type: ignore[arg-type]

    again = open_sweep_record(lake.target, "t1")
    assert again is not None
    assert (again.record.state, again.record.finished) == (MarkState.APPROVED, listed)


def test_a_sweep_is_refused_if_its_settings_lack_a_hold_that_the_approvers_settings_had(
    lake: Lake, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the sweep applies holds to a foreign mark, and a different process might not have the fleet file."""
    hold = {"id": "kept", "prefix": "data/s/a", "owner": "ada", "reason": "because"}
    known = replace(lake.target, configured_holds=parse_configured_holds([hold], "lakegc.toml"))
    with monkeypatch.context() as with_hold:
        with_hold.setattr(lake, "target", known)
        approved(lake)

    lakegc(lake.sandbox.settings, "sweep", lake.name, "t1").stopped(3, "kept", "Set LAKEGC_CONFIG")
    assert stored(lake) == set(STORED)
    with_holds = {**lake.sandbox.settings, "holds": json.dumps([hold])}
    lakegc(with_holds, "sweep", lake.name, "t1")
    assert stored(lake) == set(STORED) - {"data/s/b"}


def test_keys_planted_in_the_files_of_an_unfinished_sweep_are_not_deleted(
    lake: Lake, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed sweep deletes the approved set and nothing else."""
    approved(lake)
    with monkeypatch.context() as killed:
        killed.setattr(sweep, "run_rounds", unavailable)
        lakegc(lake.sandbox.settings, "sweep", lake.name, "t1").stopped(1, "the store is away")
    plant(lake, "data/s/c", "_lakefs/retention/gc/lakegc/owner.json")
    report = json.loads(lakegc.output(lake.sandbox.settings, "sweep", lake.name, "t1", "--format", "json"))

    assert (report["objects"], report["approved"]) == ({"deleted": 2}, 2)
    assert stored(lake) == set(STORED) - {"data/s/a", "data/s/b"}
    assert lake.place.store().stat("_lakefs/retention/gc/lakegc/owner.json")


def plant(lake: Lake, *keys: str) -> None:
    """Add keys to the files of a sweep, and adapt the list of files and the record to them."""
    mark = open_sweep_record(lake.target, "t1")
    assert mark is not None
    rows = all_rows(lake.place, mark.dataset("expired_set"), REFERENCE_OBJECTS)
    there = [lake.place.store().stat(key) for key in keys]
    rows += [{**rows[0], "address": stored.key, "size": stored.size, "slice": "data/s/"} for stored in there]
    dataset = write_rows(lake.place, mark.folder("expired_set"), rows, REFERENCE_OBJECTS)
    step: StepRecord = replace(mark.record.steps["expired_set"], datasets={"": recorded(dataset)})
    record = replace(mark.record, steps={**mark.record.steps, "expired_set": step})
    lake.place.store().write(sweep_record_root("t1") + "mark.json", record.to_json())


@pytest.mark.parametrize("late", [False, True], ids=["while it lists", "at the last moment"])
def test_a_foreign_mark_whose_approval_is_revoked_before_the_first_delete_is_not_swept(
    lake: Lake, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Listing the store can take hours. The output of the revocation promises that no object will be deleted."""
    approved(lake)
    listed, move_to, proposal = foreign_marks.write_listing, Mark.move_to, lake.proposal("t1")

    def list_and_revoke(*arguments: Any) -> None:
        listed(*arguments)
        lake.revoke("t1")

    def begin_and_revoke(mark: Mark, state: MarkState, **changes: Any) -> None:
        move_to(mark, state, **changes)
        if state is MarkState.SWEEPING:  # the revocation has read the state before
            approve.record_end(proposal, who="Grace", how="revoked", now=lake.now)

    with monkeypatch.context() as raced:
        if late:
            raced.setattr(Mark, "move_to", begin_and_revoke)
        else:
            raced.setattr(foreign_marks, "write_listing", list_and_revoke)
        lakegc(lake.sandbox.settings, "sweep", lake.name, "t1").stopped(3, "revoked by Grace")
    lakegc(lake.sandbox.settings, "sweep", lake.name, "t1").stopped(3, "t1")

    assert stored(lake) == set(STORED)


def age(lake: Lake, key: str, when: datetime) -> None:
    os.utime(lake.folder / key, (when.timestamp(),) * 2)


@pytest.mark.parametrize("when", ["before it lists", "while it lists", "before the first delete"])
def test_addresses_added_to_a_mark_during_its_sweep_are_not_deleted(
    lake: Lake, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A sweep may take hours. It reads the files several times, and verifies them each time."""
    approved(lake)
    part = f"{foreign_mark(lake).folder}part-00000-x.snappy.parquet"
    before, listed, rounds = lake.place.store().read(part), namespace_slices.list_namespace, sweep.run_rounds

    def alter(*addresses: str) -> None:
        table = pa.table({"address": ["data/s/c", *addresses]}, schema=ADDRESSES)
        lake.place.store().write(part, parquet_bytes(table))

    def list_late(*arguments: Any) -> None:
        if when == "before it lists":
            alter()
        listed(*arguments)
        if when == "while it lists":
            alter("data/s/a")

    def delete_late(*arguments: Any, **named: Any) -> Any:
        alter()
        return rounds(*arguments, **named)

    with monkeypatch.context() as raced:
        raced.setattr(namespace_slices, "list_namespace", list_late)
        if when == "before the first delete":
            raced.setattr(sweep, "run_rounds", delete_late)
        outcome = lakegc(lake.sandbox.settings, "sweep", lake.name, "t1")
    if when == "before the first delete":  # the set to delete was read and verified by then
        assert outcome.code == 0, outcome.err
        assert stored(lake) == set(STORED) - {"data/s/a", "data/s/b"}
    else:
        outcome.stopped(3, "have changed since the approval", "Restore the approved files")
        assert stored(lake) == set(STORED)
        lake.place.store().write(part, before)
        assert lakegc(lake.sandbox.settings, "sweep", lake.name, "t1").code == 0
        assert stored(lake) == set(STORED) - {"data/s/a", "data/s/b"}


@pytest.mark.parametrize("altered", ["the summary", "the times of its files"])
def test_objects_written_after_a_foreign_mark_are_kept_whatever_its_summary_says(
    lake: Lake, lakegc: Lakegc, altered: str
) -> None:
    """No digest covers the summary or the times of files. With a later cutoff, an object that was uploaded again at the
    same key would be mistaken for the marked one."""
    minutes, now = timedelta(minutes=1), lake.now
    approved(lake, now=now + 20 * minutes)
    uploaded, files = (10, 0) if altered == "the summary" else (30, 40)
    age(lake, "data/s/a", now + uploaded * minutes)
    for key in foreign_mark(lake).files:
        age(lake, key, now + files * minutes)
    report = json.loads(lakegc.output(lake.sandbox.settings, "sweep", lake.name, "t1", "--format", "json"))

    assert report["objects"] == {"changed": 1, "deleted": 1}
    assert stored(lake) == set(STORED) - {"data/s/b"}


def test_a_sweep_is_refused_if_its_settings_lack_a_server_that_the_approvers_settings_had(
    lake: Lake, lakegc: Lakegc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the sweep reads other repositories for a foreign mark, and a different process might not have the fleet
    file."""
    with monkeypatch.context() as with_servers:
        with_servers.setattr(LakeFS, "servers", ("lab", "prod"))
        approved(lake)

    lakegc(lake.sandbox.settings, "sweep", lake.name, "t1").stopped(3, "missing now: lab, prod", "Set LAKEGC_CONFIG")
