"""Marks of the reference collector, in each of its layouts, go through the same approval (formats §5)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.approval import approve
from lakegc_assets.approval.mark_states import status_of_foreign_approval
from lakegc_assets.approval.preconditions import StoppedByBrakes
from lakegc_assets.approval.proposals import propose
from spark_resources.errors import DamagedData, LakegcError, Refused, WrongUsage
from spark_resources.mark_store.approval import ApprovalStatus, approval_key
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.mark import GC_ROOT, MARKS_ROOT, own_mark_ids
from spark_resources.model import ADDRESSES
from spark_resources.spark.datasets import parquet_bytes
from tests.approval.conftest import Lake, alter_file, with_one_bit_flipped
from tests.support.command_line import Lakegc

LAYOUTS = {
    "unified": "unified/{}/deleted/",
    "uncommitted": "uncommitted/{}/deleted/",
    "committed": "addresses/mark_id={}/",
    "committed before 0.4": "addresses/run_id={}/",
}
SUMMARY = {"run_id": "t1", "success": True, "num_deleted_objects": 2}
STORED = ("data/s/a", "data/s/b", "data/s/c", "data/right-here", "legacy")


def write_foreign_mark(
    lake: Lake, layout: str = "unified", *files: tuple[str, ...], mark_id: str = "t1", summary: Any = SUMMARY
) -> str:
    """Write a mark as the reference collector does, by default two addresses in two files; returns its folder's key."""
    folder, store = GC_ROOT + LAYOUTS[layout].format(mark_id), lake.place.store()
    for key in STORED:
        store.write(key, b"12")
    for number, addresses in enumerate(files or (("data/s/a",), ("data/s/b",))):
        table = pa.table({"address": list(addresses)}, schema=ADDRESSES)
        store.write(f"{folder}part-0000{number}-x.snappy.parquet", parquet_bytes(table))
    if layout in ("unified", "uncommitted") and summary is not None:
        store.write(f"{folder.removesuffix('deleted/')}summary.json", json.dumps(summary).encode())
    return folder


def foreign_mark(lake: Lake, name: str = "t1") -> ReferenceMark:
    foreign = lake.proposal(name).foreign
    assert foreign is not None
    return foreign


def verify(lake: Lake, name: str = "t1", **when: Any) -> None:
    approve.verify_foreign(lake.target, foreign_mark(lake, name), lake.approval("t1"), now=when.get("now", lake.now))


def later(lake: Lake) -> dict[str, Any]:
    """Options for an approval dated later than any existing file."""
    return {"now": lake.now + timedelta(seconds=1)}


def assert_refused(lake: Lake, kind: type[LakegcError], *words: str, name: str = "t1", **options: Any) -> None:
    with pytest.raises(kind) as refused:
        lake.approve(name, **{**later(lake), **options})
    for word in words:
        assert word in str(refused.value)
    assert not (lake.folder / approval_key("t1")).exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_foreign_mark_of_each_layout_can_be_approved_verified_shown_and_revoked(
    lake: Lake, lakegc: Lakegc, layout: str
) -> None:
    """The mark remains one of the reference collector."""
    write_foreign_mark(lake, layout)
    approval = lake.approve("t1", **later(lake))
    listed = json.loads(lakegc(lake.sandbox.settings, "status", lake.name, "--format", "json").out)["marks"]
    reviewed = lakegc(lake.sandbox.settings, "review", lake.name, "t1")

    assert (approval.layout, approval.digest, lake.approval("t1")) == (layout, lake.proposal("t1").digest, approval)
    verify(lake)
    assert [row["state"].endswith(", approved") for row in listed] == [True]
    assert (reviewed.code, layout in reviewed.out) == (0, True), reviewed.err
    assert own_mark_ids(lake.place) == frozenset()
    assert status_of_foreign_approval(lake.place, foreign_mark(lake), now=lake.now) is ApprovalStatus.APPROVED
    assert status_of_foreign_approval(lake.place, foreign_mark(lake), now=approval.until) is ApprovalStatus.EXPIRED
    with pytest.raises(Refused, match="was approved until"):
        verify(lake, now=approval.until)
    lake.revoke("t1")
    with pytest.raises(Refused, match="is not approved"):
        verify(lake)
    with pytest.raises(WrongUsage, match="is not approved"):
        lake.revoke("t1")


def test_the_reference_collectors_own_summary_is_never_removed(lake: Lake) -> None:
    """Approving, revoking and listing leave the summary in place, and such a mark can't be handed over."""
    folder = write_foreign_mark(lake)
    lake.approve("t1", **later(lake))
    lake.revoke("t1")
    propose(lake.target, "t1", now=lake.now)

    assert (lake.folder / folder.removesuffix("deleted/") / "summary.json").exists()
    handed_over = {"for_reference": True, "now": lake.now + timedelta(seconds=5)}
    with pytest.raises(WrongUsage, match="was made by the reference collector"):
        lake.approve("t1", **handed_over)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["altered", "added", "dropped"])
def test_a_foreign_mark_altered_after_review_or_approval_is_refused(lake: Lake, how: str, layout: str) -> None:
    """Altering, adding or removing a file is enough."""
    folder = lake.folder / write_foreign_mark(lake, layout, ("data/s/a",), ("data/s/b",))
    proposal = lake.proposal("t1")
    approval = lake.approve("t1", **later(lake))
    part = folder / "part-00000-x.snappy.parquet"
    if how == "altered":
        write_foreign_mark(lake, layout, ("data/s/c",))
    elif how == "added":
        write_foreign_mark(lake, layout, ("data/s/a",), ("data/s/b",), ("data/s/c",))
    else:
        part.unlink()

    with pytest.raises(Refused, match="have changed since the approval"):
        verify(lake)
    lake.revoke("t1")
    with pytest.raises(Refused, match="have changed since the review"):
        lake.approve(proposal=proposal, now=lake.now + timedelta(seconds=2))
    assert lake.proposal("t1").digest != approval.digest


def test_a_foreign_mark_with_damaged_parquet_is_refused(lake: Lake) -> None:
    """The error names the damaged file."""
    folder = write_foreign_mark(lake)
    alter_file(lake.folder / folder / "part-00001-x.snappy.parquet", lambda data: data[:-9])

    assert_refused(lake, DamagedData, "part-00001-x.snappy.parquet")


@pytest.mark.parametrize("summary", [None, {}, {"success": False}, {"success": "true"}])
def test_a_foreign_mark_without_a_successful_summary_is_refused(lake: Lake, summary: Any) -> None:
    """Without a summary with `"success": true` the mark isn't finished."""
    write_foreign_mark(lake, summary=summary)

    assert_refused(lake, WrongUsage, "not finished")


@pytest.mark.parametrize("key", ["_lakefs/x", "../x", "data/../_lakefs/x", "s3://b/data/x", "other/x", "dummy", ""])
@pytest.mark.parametrize("layout", ["unified", "committed"])
def test_a_foreign_mark_with_a_key_that_must_never_be_deleted_is_refused(lake: Lake, layout: str, key: str) -> None:
    """One such row is enough for the whole mark to be refused."""
    write_foreign_mark(lake, layout, ("data/s/a",), ("data/s/b", key))

    assert_refused(lake, Refused, "no sweep may delete", "part-00001", repr(key))


def test_a_foreign_mark_older_than_the_repository_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark belongs to an earlier repository of the same name."""
    write_foreign_mark(lake)
    repository = lake.target.repository
    younger = type(repository)(
        **{name: getattr(repository, name) for name in repository.__slots__ if name != "created"},
        created=lake.now + timedelta(hours=1),
    )
    lake.target = type(lake.target)(younger, lake.target.blockstore, lake.target.place)

    assert_refused(lake, Refused, "older than the repository")


def test_a_foreign_mark_in_another_repositorys_namespace_is_refused(lake: Lake) -> None:
    """The namespace's owner file names another repository."""
    write_foreign_mark(lake)
    owner = {"repository": "pond", "created": "2020-01-01T00:00:00+00:00"}
    lake.place.store().write(MARKS_ROOT + "owner.json", json.dumps(owner).encode())

    assert_refused(lake, Refused, "belonging to another repository", "pond")


def test_an_approval_that_is_not_dated_after_a_foreign_marks_newest_file_is_refused(lake: Lake) -> None:
    """The summary counts as one of its files."""
    write_foreign_mark(lake)
    summary = lake.place.store().stat(f"{GC_ROOT}unified/t1/summary.json").modified

    assert_refused(lake, Refused, "can't have seen this set", when=summary)


def test_brakes_apply_to_foreign_marks(lake: Lake) -> None:
    """Brakes measure what the store lists now, and compare it with lakegc's last mark."""
    write_foreign_mark(lake, "unified", STORED[:3])
    assert_refused(lake, StoppedByBrakes, "share", "60.0% of all objects")
    approval = lake.approve("t1", released={"share": "it was meant"}, **later(lake))
    assert approval.released == {"share": "it was meant"}

    lake.add_mark()
    counts = lake.proposal("t1").record
    assert counts.counts == {"candidates": 5, "candidate_bytes": 10, "expired": 3, "expired_bytes": 6, "live": 2}
    assert counts.previous is not None
    assert counts.previous["mark_id"] == "m1"


def test_an_approval_counts_only_for_the_layout_that_it_names(lake: Lake) -> None:
    """Two marks in two layouts may share an id."""
    write_foreign_mark(lake)
    write_foreign_mark(lake, "committed")
    with pytest.raises(WrongUsage, match="2 marks named t1"):
        lake.proposal("t1")
    lake.approve("committed/t1", **later(lake))

    verify(lake, "committed/t1")
    with pytest.raises(Refused, match="is not approved"):
        verify(lake, "unified/t1")


def test_an_approval_of_a_foreign_mark_can_be_used_only_once(lake: Lake) -> None:
    """Once a sweep has recorded the end of an approval, the mark is neither approved nor revoked again."""
    write_foreign_mark(lake)
    lake.approve("t1", **later(lake))
    approve.record_end(lake.proposal("t1"), who="a sweep", how="swept", now=lake.now)

    with pytest.raises(Refused, match="has been used"):
        lake.approve("t1", now=lake.now + timedelta(seconds=9))
    with pytest.raises(Refused, match="has been used"):
        lake.revoke("t1")
    with pytest.raises(Refused, match="is not approved"):
        verify(lake)


def test_the_second_of_two_simultaneous_approvals_of_a_foreign_mark_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names who approved first."""
    write_foreign_mark(lake)
    checked, first = approve.check_set, []

    def interrupted(proposal: Any) -> None:
        monkeypatch.setattr(approve, "check_set", checked)
        first.append(lake.approve("t1", who="Grace", **later(lake)))
        checked(proposal)

    monkeypatch.setattr(approve, "check_set", interrupted)
    with pytest.raises(Refused, match="already approved by Grace"):
        lake.approve("t1", **later(lake))
    assert [lake.approval("t1")] == first


def test_an_unreadable_approval_of_a_foreign_mark_does_not_count(lake: Lake) -> None:
    """The next approval replaces it."""
    write_foreign_mark(lake)
    lake.approve("t1", **later(lake))
    alter_file(lake.folder / approval_key("t1"), with_one_bit_flipped)

    with pytest.raises(DamagedData, match="is not a valid approval"):
        approve.valid_approval(lake.proposal("t1"), now=lake.now)
    assert status_of_foreign_approval(lake.place, foreign_mark(lake), now=lake.now) is ApprovalStatus.NONE
    assert lake.approve("t1", **later(lake)) == lake.approval("t1")
