"""Approving and revoking: what is written, what is refused, and the effect of crashes and races (invariants 7, 9)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.approval import approve, proposals
from lakegc_assets.approval.preconditions import BrakeNotTripped, OutdatedMark, StoppedByBrakes
from lakegc_assets.rules.brakes import BRAKES
from spark_resources.errors import DamagedData, LakegcError, NothingToDo, Refused, Unavailable, WrongUsage
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store import approval as approvals
from spark_resources.mark_store.approval import Approval, ApprovalStatus, approval_key, withdraw_stale_summaries
from spark_resources.mark_store.files import remove_unrecorded_files
from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.mark_store.mark import Mark, mark_folder, reference_folder
from spark_resources.mark_store.record import digest_of
from spark_resources.model import MarkState, Rules
from tests.approval.conftest import LIMITS, PREVIOUS_MARK, Lake, alter_file, with_one_bit_flipped
from tests.support.finished_marks import COUNTS

DAY = timedelta(days=1)


def assert_refused(lake: Lake, kind: type[LakegcError], *words: str, **options: Any) -> None:
    """Check that approving raises this error with these words, and changes no file of the mark."""
    before = {key: lake.place.store().read(key) for key in lake.files() if "m1" in key}
    with pytest.raises(kind) as refused:
        lake.approve(**options)
    assert type(refused.value) is kind
    assert refused.value.exit_code in (2, 3)
    for word in words:
        assert word in str(refused.value)
    assert {key: lake.place.store().read(key) for key in lake.files() if "m1" in key} == before


# --- what is written ------------------------------------------------------------------------------------------------


def test_an_approval_records_digest_approver_interface_time_and_expiry(lake: Lake) -> None:
    """The mark's record names the approval, and a sweep may begin."""
    digest = lake.add_mark().record.digest
    approval = lake.approve(who="  Ada   Lovelace ", how="lakegc approve")
    stored = json.loads(lake.place.store().read(approval_key("m1")))

    assert (approval.who, approval.how, approval.digest, approval.released) == (
        "Ada Lovelace",
        "lakegc approve",
        digest,
        {},
    )
    assert approval.until == lake.finished + LIMITS.age
    assert stored["when"] == approval.when.isoformat()
    assert lake.approval() == approval
    assert (lake.record().state, lake.record().approval) == (MarkState.APPROVED, approval.sha256)
    assert lake.record().digest == digest
    assert lake.state() == "approved"
    lake.verify()


def test_no_summary_is_written_unless_the_approval_hands_the_mark_over(lake: Lake) -> None:
    """Without a summary the reference collector refuses to sweep the mark."""
    lake.add_mark()
    lake.approve()

    assert not lake.summary.exists()


def test_an_expired_approval_can_be_renewed(lake: Lake) -> None:
    """Until it is renewed, the status is 'approval expired', and no sweep starts."""
    lake.add_mark()
    approval = lake.approve(until=lake.now + timedelta(hours=1))
    late = approval.until

    lake.verify(now=late - timedelta(seconds=1))
    assert lake.state(now=late) == "approval expired"
    with pytest.raises(Refused, match="was approved until"):
        lake.verify(now=late)
    again = lake.approve(now=late, who="Grace")
    assert (lake.approval(), lake.state(now=late)) == (again, "approved")
    lake.verify(now=late)


# --- brakes ---------------------------------------------------------------------------------------------------------

TRIPPED: dict[str, dict[str, Any]] = {
    "share": {"counts": {**COUNTS, "expired": 60_000}},
    "bytes": {"counts": {**COUNTS, "expired_bytes": 2**50, "candidate_bytes": 2**52}},
    "count": {"counts": {**COUNTS, "expired": 50_000_001, "candidates": 200_000_000}},
    "jump": {"counts": COUNTS, "previous": {**PREVIOUS_MARK, "counts": {**COUNTS, "expired": 10}}},
    "live": {"counts": {**COUNTS, "live": 0}},
    "listing": {"previous": {**PREVIOUS_MARK, "counts": {**COUNTS, "candidates": 900_000}}},
    "others": {"facts": {"committed_addresses": {"elsewhere": {"unread": {"lost": "not with these permissions"}}}}},
    "age": {"start": timedelta(days=8)},
}


def add_mark_stopped_by(lake: Lake, brake: str) -> None:
    """Write a mark that trips one brake."""
    changes = dict(TRIPPED[brake])
    if brake == "age":
        changes["start"] = lake.now - changes["start"]
    lake.add_mark(**changes)


def release_name(brake: str) -> str:
    """The name with which a brake of these marks is released."""
    return "others/lost" if brake == "others" else brake


@pytest.mark.parametrize("brake", BRAKES)
def test_a_tripped_brake_blocks_the_approval(lake: Lake, brake: str) -> None:
    """The refusal names the brake and its reason; releasing a different brake doesn't help."""
    add_mark_stopped_by(lake, brake)

    assert_refused(lake, StoppedByBrakes, brake, "--release")
    other = next(name for name in BRAKES if name != brake)
    assert_refused(lake, BrakeNotTripped, other, "has not tripped", released={release_name(other): "so"})


@pytest.mark.parametrize("brake", BRAKES)
def test_a_brake_released_with_a_reason_allows_the_approval(lake: Lake, brake: str) -> None:
    """The approval records the release and its reason."""
    add_mark_stopped_by(lake, brake)

    approval = lake.approve(released={release_name(brake): "it was  meant"})

    assert approval.released == {release_name(brake): "it was meant"}
    assert lake.approval() == approval
    lake.verify()


def test_the_brake_for_an_unreadable_repository_is_released_only_by_naming_that_repository(lake: Lake) -> None:
    """A release covers only the unreadable repository that it names, never all of them."""
    add_mark_stopped_by(lake, "others")

    assert_refused(lake, WrongUsage, "others/REPOSITORY", released={"others": "so"})
    assert_refused(lake, BrakeNotTripped, "others/found", "has not tripped", released={"others/found": "so"})
    assert_refused(lake, WrongUsage, "there is no brake", released={"share/lost": "so"})


def test_unexpected_growth_of_the_expired_set_trips_two_brakes(lake: Lake) -> None:
    """If a mark would delete many times as many objects as the previous one, two brakes have to be released by name.

    apache/iceberg#14319
    """
    stored = {**COUNTS, "candidates": 20_000, "live": 9_000}
    lake.add_mark(
        counts={**stored, "expired": 10_696}, previous={**PREVIOUS_MARK, "counts": {**stored, "expired": 1_590}}
    )

    assert_refused(lake, StoppedByBrakes, "share", "53", "--release")
    assert_refused(lake, StoppedByBrakes, "jump", "1,590", "10,696", released={"share": "so"})
    assert lake.approval() is None
    lake.approve(released={"share": "half of it is obsolete", "jump": "a one-time cleanup"})


def test_each_tripped_brake_needs_its_own_release(lake: Lake) -> None:
    """Releasing one of two tripped brakes isn't enough."""
    lake.add_mark(counts={**COUNTS, "expired": 60_000, "live": 0})

    assert_refused(lake, StoppedByBrakes, "live", released={"share": "so"})
    assert lake.approve(released={"share": "so", "live": "so"}).released.keys() == {"share", "live"}


def test_the_age_brake_measures_how_old_the_mark_would_be_when_the_approval_expires(lake: Lake) -> None:
    """Without this, an approval could outlast the age that the brake allows."""
    lake.add_mark()
    until = lake.finished + LIMITS.age + timedelta(seconds=1)

    assert_refused(lake, StoppedByBrakes, "age", until=until)
    assert lake.approve(until=until, released={"age": "a slow store"}).until == until


@pytest.mark.parametrize(
    ("released", "word"),
    [
        ({"share": ""}, "reason for releasing 'share'"),
        ({"share": " \n"}, "reason for releasing 'share'"),
        ({"share": "!"}, "reason for releasing 'share'"),
        ({"shares": "so"}, "no brake 'shares'"),
        ({"share": "\x1b[31m so"}, "unprintable characters"),
    ],
)
def test_a_release_of_an_unknown_brake_or_without_a_readable_reason_is_refused(
    lake: Lake, released: dict[str, str], word: str
) -> None:
    """The release is refused even though the brake has tripped."""
    add_mark_stopped_by(lake, "share")

    assert_refused(lake, WrongUsage, word, released=released)


# --- bad input ------------------------------------------------------------------------------------------------------


def test_an_unknown_mark_is_refused(lake: Lake) -> None:
    """Ids that no mark can have are also refused."""
    assert_refused(lake, WrongUsage, "there is no mark m1")
    assert_refused(lake, WrongUsage, "there is no mark ../m1", name="../m1")
    assert_refused(lake, WrongUsage, "can't be a mark id", name="m 1")


@pytest.mark.parametrize("state", [MarkState.MARKING, MarkState.FAILED])
def test_an_unfinished_mark_cannot_be_approved_and_its_failure_is_shown(lake: Lake, state: MarkState) -> None:
    """The message says why the mark stopped."""
    record = lake.add_mark().record
    unfinished = replace(record, state=state, finished=None, digest=None, failure="the wires melted")
    lake.place.store().write(mark_folder("m1") + "mark.json", unfinished.to_json())

    assert_refused(lake, WrongUsage, "not finished", state, "the wires melted")


@pytest.mark.parametrize("changes", [{"repository": "pond"}, {"created": -DAY}, {"namespace": "local://pond"}])
def test_a_mark_of_another_repository_is_refused(lake: Lake, changes: dict[str, Any]) -> None:
    """A repository that was deleted and re-created under the same name is a different one."""
    if "created" in changes:
        changes = {"repository_created": lake.target.repository.created + changes["created"]}
    lake.add_mark(**changes)

    assert_refused(lake, Refused, "a different repository", "Make a new mark")


def test_a_mark_in_another_repositorys_namespace_is_refused(lake: Lake) -> None:
    """The owner file of the namespace names another repository."""
    lake.add_mark()
    approvals_owner = {"repository": "pond", "created": "2020-01-01T00:00:00+00:00"}
    lake.place.store().write("_lakefs/retention/gc/lakegc/owner.json", json.dumps(approvals_owner).encode())

    assert_refused(lake, Refused, "belonging to another repository", "pond")


def test_an_approval_with_the_wrong_digest_is_refused(lake: Lake) -> None:
    """An approval that names a digest covers that set and no other."""
    lake.add_mark()

    assert_refused(
        lake,
        Refused,
        f"identifies a different set. Review the current set: lakegc review {lake.name} m1",
        digest="0" * 64,
    )
    assert_refused(lake, Refused, "only its beginning. Pass the whole digest", digest=(lake.record().digest or "")[:12])
    assert lake.approve(digest=lake.record().digest).digest == lake.record().digest


@pytest.mark.parametrize("early", [timedelta(0), timedelta(minutes=1), timedelta(days=400)])
def test_an_approval_that_is_not_dated_after_the_end_of_its_mark_is_refused(lake: Lake, early: timedelta) -> None:
    """Nobody can have reviewed the set before the mark was finished."""
    lake.add_mark()

    assert_refused(lake, Refused, "can't have seen this set", when=lake.finished - early)
    just_after = lake.finished + lake.place.store().capabilities.time_resolution
    assert lake.approve(when=just_after).when == just_after


def test_an_approval_dated_before_a_revocation_is_refused(lake: Lake) -> None:
    """An approval that was decided before the last one was revoked is not a new approval."""
    lake.add_mark()
    approval = lake.approve()
    lake.revoke()

    assert_refused(lake, Refused, "revoked by Grace", when=approval.when)
    lake.approve(who="Grace")
    lake.verify()


@pytest.mark.parametrize("state", [MarkState.SWEEPING, MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES])
def test_a_mark_whose_sweep_has_begun_can_be_neither_approved_nor_revoked(lake: Lake, state: MarkState) -> None:
    """An approval is used once: it allows no second sweep."""
    mark = lake.add_mark()
    lake.approve()
    swept = replace(lake.record(), state=state)
    lake.place.store().write(mark.key, swept.to_json())

    assert_refused(lake, NothingToDo, "has been used", state)
    with pytest.raises(Refused, match="has been used"):
        lake.revoke()
    with pytest.raises(Refused, match="has been used"):
        lake.verify()
    with pytest.raises(Refused, match="has been used"):
        approve.valid_approval(lake.proposal(), now=lake.now)


def test_a_superseded_mark_cannot_be_approved(lake: Lake) -> None:
    """A newer mark has replaced it."""
    lake.add_mark().move_to(MarkState.SUPERSEDED)

    assert_refused(lake, Refused, "superseded")


def test_approving_an_approved_mark_is_refused(lake: Lake) -> None:
    """The first approval has to be revoked before somebody else can approve."""
    lake.add_mark()
    approval = lake.approve()

    assert_refused(lake, Refused, "already approved by Ada", who="Grace")
    assert lake.approval() == approval


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"who": " "}, "approver's name"),
        ({"who": "Ada\u202e"}, "unprintable characters"),
        ({"who": "A" * 1001}, "longer than"),
    ],
)
def test_an_approval_without_a_readable_name_is_refused(lake: Lake, options: dict[str, Any], words: str) -> None:
    """The approver's name has to be printable on a terminal."""
    lake.add_mark()

    assert_refused(lake, WrongUsage, words, **options)


def test_an_approval_that_would_already_have_expired_is_refused(lake: Lake) -> None:
    """An approval has to end in the future."""
    lake.add_mark()

    assert_refused(lake, WrongUsage, "has passed", until=lake.now - timedelta(seconds=1))


def test_a_store_without_conditional_writes_is_refused_except_for_a_single_deployment(lake: Lake) -> None:
    """Otherwise, two people who approve at the same time could overwrite each other's approval."""
    lake.add_mark()
    capabilities = replace(lake.place.store().capabilities, conditional_writes=False)
    weak = replace(lake.proposal(), target=replace(lake.target, place=replace(lake.place, capabilities=capabilities)))
    arguments = {"request": lake.request(), "lakefs": lake.lakefs, "limits": LIMITS, "now": lake.now}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(lake.place.store()), "capabilities", property(lambda _: capabilities))
        with pytest.raises(Refused, match="conditional writes"):
            approve.approve(weak, **arguments, single_deployment=False)
        approve.approve(weak, **arguments, single_deployment=True)


# --- altered between mark and approval, and after ---------------------------------------------------------------------

FILES = (
    "expired_set/part-00000.parquet",
    "expired_set/_files.json",
    "committed_addresses/ranges/_files.json",
    "namespace_slices/_files.json",
    "deleted/part-00000.parquet",
    "deleted/_files.json",
    "deleted.text/part-00000.txt",
    "deleted.text/_files.json",
)


def key_of(file: str) -> str:
    return (reference_folder("m1") if file.startswith("deleted") else mark_folder("m1")) + file


ALTERED: dict[str, Callable[[bytes], bytes | None]] = {
    "altered": with_one_bit_flipped,
    "longer": lambda data: data + b"\n",
    "dropped": lambda _: None,
}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("how", ALTERED)
def test_a_set_with_an_altered_file_is_neither_approved_nor_swept(lake: Lake, how: str, file: str) -> None:
    """The error names a file that was altered, extended or removed, both before and after the approval. No sweep begins
    or resumes."""
    lake.add_mark()
    path = lake.folder / key_of(file)
    whole = path.read_bytes()
    folder = re.escape(key_of(file).rpartition("/")[0])

    alter_file(path, ALTERED[how])
    with pytest.raises(Refused, match=folder):
        lake.approve()
    assert lake.record().state is MarkState.MARKED
    path.write_bytes(whole)
    lake.approve()
    lake.verify()
    alter_file(path, ALTERED[how])
    with pytest.raises(Refused, match=folder):
        lake.verify()
    with pytest.raises(Refused, match=folder):
        approve.verify_recorded_files(lake.target, lake.record())


ADDED = (
    "expired_set/part-00001.parquet",
    "expired_set/other",
    "expired_set/deeper/part-00000.parquet",
    "namespace_slices/part-00009.parquet",
    "something/else",
    "other.json",
    "deleted/part-00001.parquet",
    "deleted/.hidden",
    "deleted.text/part-00001.txt",
    "deleted2/part-0.parquet",
)


@pytest.mark.parametrize("file", ADDED)
def test_a_set_with_an_added_file_is_neither_approved_nor_swept(lake: Lake, file: str) -> None:
    """The error names a file that the mark doesn't record, both before and after the approval."""
    lake.add_mark()
    lake.place.store().write(key_of(file), b"x")

    assert_refused(lake, Refused, key_of(file), "added")
    (lake.folder / key_of(file)).unlink()
    lake.approve()
    lake.place.store().write(key_of(file), b"x")
    with pytest.raises(Refused, match=key_of(file)):
        lake.verify()


def test_unrecorded_files_of_retried_tasks_are_removed_before_a_mark_is_finished(lake: Lake) -> None:
    """Spark may run a task twice. Only files in the mark's own folders are removed; the mark can then be approved."""
    mark, store = lake.add_mark(), lake.place.store()
    lake.add_mark(mark_id="m2")
    beside = ["_lakefs/retention/gc/lakegc/m1x/part-0", "_lakefs/retention/gc/unified/m1x/part-0", "data/s/a"]
    for key in [*map(key_of, ADDED), *beside]:
        store.write(key, b"x")
    others = lake.files("m2")

    remove_unrecorded_files(lake.place, mark.record)

    lake.approve()
    lake.verify()
    assert all(store.read(key) == b"x" for key in beside)
    assert lake.files("m2") == others


def test_files_that_a_sweep_wrote_do_not_count_as_added_to_the_set(lake: Lake) -> None:
    """Receipts and re-verifications of a resumed sweep don't change the set."""
    lake.add_mark()
    lake.approve()
    for name in ("receipts/0001/part-0.parquet", "verifications/0001/mark.json", "sweep.json", "undone/part-0.parquet"):
        lake.place.store().write(mark_folder("m1") + name, b"x")

    approve.verify_recorded_files(lake.target, lake.record())


def test_a_mark_whose_record_does_not_match_its_digest_is_refused(lake: Lake) -> None:
    """Altered counts or hashes are found before the approval and after it."""
    mark = lake.add_mark()
    whole = mark.record
    altered = replace(whole, counts={**whole.counts, "expired": 1})
    lake.place.store().write(mark.key, altered.to_json())
    assert_refused(lake, Refused, "the record of mark m1", "altered")
    lake.place.store().write(mark.key, whole.to_json())

    lake.approve()
    lake.place.store().write(mark.key, replace(lake.record(), counts=altered.counts).to_json())
    with pytest.raises(Refused, match="the record of mark m1"):
        lake.verify()


def test_an_approval_does_not_count_if_the_record_and_its_digest_were_altered(lake: Lake) -> None:
    """Even if the altered record matches its altered digest, it is not the approved record."""
    mark = lake.add_mark()
    lake.approve()
    altered = replace(lake.record(), counts={**mark.record.counts, "expired": 1})
    lake.place.store().write(mark.key, replace(altered, digest=digest_of(altered)).to_json())

    assert lake.state() == "approval incomplete"
    with pytest.raises(Refused, match="was altered"):
        lake.verify()


def test_an_altered_approval_does_not_count(lake: Lake) -> None:
    """An approval.json that can't be read doesn't count either; the next approval replaces it."""
    lake.add_mark()
    approval = lake.approve()
    store = lake.place.store()
    store.write(approval_key("m1"), replace(approval, until=approval.until + DAY).to_json())
    assert lake.state() == "approval incomplete"
    with pytest.raises(Refused, match="was altered"):
        lake.verify()

    store.write(approval_key("m1"), b"{}")
    assert lake.state() == "approval incomplete"
    with pytest.raises(DamagedData, match="is not a valid approval"):
        lake.verify()
    lake.approve(who="Grace")
    lake.verify()


def test_an_approval_is_refused_if_the_rules_have_changed_since_the_mark(lake: Lake) -> None:
    """The refusal names the old and new rules. Rules that change after the approval don't invalidate it."""
    lake.add_mark()
    set_rules(lake.sandbox.repository(lake.name), Rules(7, {"dev": 3}))
    mark_again = f"Make a new mark: lakegc mark {lake.name}"
    assert_refused(lake, OutdatedMark, "rules", "from none to default 7 days, dev 3", mark_again)

    lake.add_mark(mark_id="m2", rules=Rules(7, {"dev": 3}))
    lake.approve("m2")
    set_rules(lake.sandbox.repository(lake.name), Rules(8))
    lake.verify("m2")


HOLDS = b"""holds:
  - id: releases
    tags: v*
    owner: ada
    reason: shipped
"""


def test_an_approval_is_refused_if_the_holds_have_changed_since_the_mark(lake: Lake) -> None:
    """The refusal names the holds. Holds that change after the approval don't invalidate it."""
    lake.add_mark()
    lake.place.store().write(HOLDS_KEY, HOLDS)
    assert_refused(lake, OutdatedMark, "holds", "added releases", f"Make a new mark: lakegc mark {lake.name}")
    (lake.folder / HOLDS_KEY).unlink()

    lake.approve()
    lake.place.store().write(HOLDS_KEY, HOLDS)
    lake.verify()


# --- keys that must not be deleted ------------------------------------------------------------------------------------

PLANTED = (
    "_lakefs/5678",
    "_lakefs/retention/gc/lakegc/m1/mark.json",
    "../lake/data/a",
    "data/../_lakefs/5678",
    "data/s/..",
    "data/./a",
    "..",
    "local://lake/data/a",
    "s3://bucket/data/a",
    "/data/a",
    "other/a",
    "data/",
    "dummy",
    "",
    "0a1b2c-00001",
)


@pytest.mark.parametrize("key", PLANTED)
def test_a_mark_with_a_key_that_must_never_be_deleted_cannot_be_approved(lake: Lake, key: str) -> None:
    """The key is outside the namespace, leads out of it, or can't be that of a candidate. The mark is refused even
    though all its hashes match.

    treeverse/lakeFS#4221
    """
    lake.add_mark(["data/s/a", key, "data/s/b"])

    with pytest.raises(Refused, match="no sweep may delete") as refused:
        lake.approve()
    assert refused.value.invariant == 5
    assert repr(key) in str(refused.value)


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_an_approval_interrupted_after_writing_the_record_does_not_count(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Approving again completes it, and revoking removes it."""
    lake.add_mark()
    lake.add_mark(mark_id="m2")
    with monkeypatch.context() as patch:
        patch.setattr(approve, "write_recorded_approval", fail_as_unavailable)
        for name in ("m1", "m2"):
            with pytest.raises(Unavailable):
                lake.approve(name)

    assert (lake.record().state, lake.approval()) == (MarkState.APPROVED, None)
    assert lake.state() == "approval incomplete"
    with pytest.raises(Refused, match="is incomplete or was altered"):
        lake.verify()
    lake.approve(who="Grace")
    lake.verify()
    lake.revoke("m2")
    assert lake.record("m2").state is MarkState.MARKED


def fail_as_unavailable(*_: Any, **__: Any) -> None:
    raise Unavailable("the network is gone")


def test_approving_writes_the_summary_last_and_revoking_removes_it_first(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash therefore never leaves an unapproved mark that the reference collector would sweep."""
    lake.add_mark()
    with monkeypatch.context() as patch:
        patch.setattr(approve, "write_reference_summary", fail_as_unavailable)
        with pytest.raises(Unavailable):
            lake.approve(for_reference=True)
    assert (lake.state(), lake.summary.exists()) == ("approved", False)
    lake.revoke()
    lake.approve(for_reference=True)
    with monkeypatch.context() as patch:
        patch.setattr(Mark, "move_to", fail_as_unavailable)
        with pytest.raises(Unavailable):
            lake.revoke()

    assert (lake.state(), lake.summary.exists()) == ("approved", False)
    lake.revoke()
    assert lake.state() == "marked"


def test_an_approval_whose_revocation_was_interrupted_does_not_count(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the mark's record is written, the approval no longer counts. Another revocation or approval replaces what is
    left."""
    lake.add_mark()
    approval = lake.approve()
    with monkeypatch.context() as patch:
        patch.setattr(approve, "record_end", fail_as_unavailable)
        with pytest.raises(Unavailable):
            lake.revoke()

    assert (lake.state(), lake.approval()) == ("marked", approval)
    with pytest.raises(Refused, match="is not approved"):
        lake.verify()
    lake.revoke()
    with pytest.raises(WrongUsage, match="is not approved"):
        lake.revoke()
    lake.approve(who="Grace")
    lake.verify()


# --- revoking ---------------------------------------------------------------------------------------------------------


def test_a_revoked_approval_does_not_count(lake: Lake) -> None:
    """The record says who revoked the approval, and the mark can be approved again."""
    lake.add_mark()
    approval = lake.approve()
    lake.revoke()
    ended = lake.approval()

    assert (lake.state(), lake.record().approval) == ("marked", None)
    assert ended is not None
    assert ended.ended is not None
    assert (ended.ended["how"], ended.ended["who"]) == ("revoked", "Grace")
    assert replace(ended, ended=None) == approval
    with pytest.raises(Refused, match="is not approved"):
        lake.verify()
    again = lake.approve()
    assert lake.approval() == again
    lake.verify()


def test_revoking_a_mark_that_is_not_approved_is_refused(lake: Lake) -> None:
    lake.add_mark()
    with pytest.raises(WrongUsage, match="is not approved"):
        lake.revoke()


# --- two at once ------------------------------------------------------------------------------------------------------


def test_the_second_of_two_simultaneous_approvals_is_refused(lake: Lake) -> None:
    """When two people review the same mark, the first one approves it; nothing is overwritten."""
    lake.add_mark()
    first, second = lake.proposal(), lake.proposal()
    approval = lake.approve(proposal=first)

    with pytest.raises(Refused, match="changed by another process"):
        lake.approve(proposal=second, who="Grace")
    assert lake.approval() == approval
    lake.verify()


def test_when_a_sweep_and_a_revocation_race_the_later_one_is_refused(lake: Lake) -> None:
    """Once a sweep has started, revoking is refused; once the approval is revoked, no sweep starts."""
    lake.add_mark()
    lake.approve()
    proposal = lake.proposal()
    sweep = Mark.open(lake.place, "m1")
    sweep.move_to(MarkState.SWEEPING)
    with pytest.raises(Refused, match="changed by another process"):
        lake.revoke(proposal=proposal)
    assert lake.record().state is MarkState.SWEEPING

    lake.add_mark(mark_id="m2")
    lake.approve("m2")
    sweep = Mark.open(lake.place, "m2")
    lake.revoke("m2")
    with pytest.raises(Refused, match="changed by another process"):
        sweep.move_to(MarkState.SWEEPING)


def test_a_slow_approval_does_not_overwrite_a_later_one(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval is interrupted between its two writes. In the meantime, it is revoked and somebody else approves."""
    lake.add_mark()
    written = approve.write_recorded_approval
    later: list[Approval] = []

    def interrupted(mark: Mark, given: Approval) -> None:
        monkeypatch.setattr(approve, "write_recorded_approval", written)
        lake.revoke()
        later.append(lake.approve(who="Grace"))
        written(mark, given)

    monkeypatch.setattr(approve, "write_recorded_approval", interrupted)
    with pytest.raises(Refused, match="was revoked"):
        lake.approve()
    assert [lake.approval()] == later
    lake.verify()


def test_a_slow_revocation_does_not_end_a_later_approval(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A revocation is interrupted. In the meantime, somebody else approves."""
    lake.add_mark()
    lake.approve()
    noted = approve.record_end
    later: list[Approval] = []

    def interrupted(*found: Any, **options: Any) -> bool:
        later.append(lake.approve(who="Grace"))
        return noted(*found, **options)

    monkeypatch.setattr(approve, "record_end", interrupted)
    lake.revoke()
    assert [lake.approval()] == later
    lake.verify()


def test_a_summary_written_after_its_approval_was_revoked_is_removed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that wrote the summary finds that the approval was revoked, and removes the summary."""
    lake.add_mark()
    written = approve.write_reference_summary

    def interrupted(*found: Any) -> None:
        lake.revoke()
        written(*found)

    monkeypatch.setattr(approve, "write_reference_summary", interrupted)
    with pytest.raises(Refused, match="was revoked"):
        lake.approve(for_reference=True)
    assert not lake.summary.exists()


# --- for the reference collector --------------------------------------------------------------------------------------


def test_the_summary_has_the_form_that_the_reference_collector_writes(lake: Lake) -> None:
    """The summary is one line with `"success":true` and the reference collector's fields."""
    lake.add_mark()
    lake.approve(for_reference=True)
    text = lake.summary.read_text()

    assert json.loads(text) == {
        "run_id": "m1",
        "success": True,
        "first_slice": "",
        "start_time": (lake.finished - timedelta(minutes=9)).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "cutoff_time": json.loads(text)["cutoff_time"],
        "num_deleted_objects": 3,
    }
    assert "\n" not in text
    assert '"success":true' in text
    lake.verify()


@pytest.mark.parametrize("how", ["revoked", "expired", "proposed"])
def test_the_summary_is_removed_when_its_approval_is_revoked_or_expires(lake: Lake, how: str) -> None:
    """Listing or proposing a mark whose approval has expired removes its summary."""
    lake.add_mark()
    approval = lake.approve(for_reference=True)
    assert withdraw_stale_summaries(lake.place, now=approval.until - timedelta(seconds=1)) == []
    assert lake.summary.exists()

    if how == "revoked":
        lake.revoke()
    elif how == "expired":
        assert withdraw_stale_summaries(lake.place, now=approval.until) == ["m1"]
    else:
        proposals.propose(lake.target, "m1", now=approval.until)
    assert not lake.summary.exists()
    assert withdraw_stale_summaries(lake.place, now=approval.until) == []


@pytest.mark.parametrize("state", ["marked", "approved", "damaged"])
def test_a_summary_of_a_mark_that_was_not_handed_over_is_removed(lake: Lake, state: str) -> None:
    """It doesn't matter who wrote the summary."""
    lake.add_mark()
    if state != "marked":
        lake.approve()
    if state == "damaged":
        lake.place.store().write(approval_key("m1"), b"{}")
    lake.place.store().write(approvals.summary_key("m1"), b'{"success":true}')

    assert withdraw_stale_summaries(lake.place, now=lake.now) == ["m1"]
    assert not lake.summary.exists()


# --- the file ---------------------------------------------------------------------------------------------------------


def test_an_approval_is_valid_only_in_exactly_the_form_that_lakegc_writes(lake: Lake) -> None:
    """Additional or missing fields, and other formatting, are refused."""
    approval = Approval("m1", None, "d", "Ada", "so", lake.now, lake.now + DAY, {"share": "é"}, True)
    data = approval.to_json()

    assert Approval.from_json(data, "x") == approval
    plain = json.loads(data)
    for wrong in (
        b"", b"{", b"[]", b"null", data[:-1], data + b" ", json.dumps(plain | {"more": 1}).encode(),
        json.dumps({name: value for name, value in plain.items() if name != "who"}).encode(),
        data.replace(b"+00:00", b""), data.replace(b'"format": 1', b'"format": 2'),
        replace(approval, ended={"how": "revoked"}).to_json(),
    ):  # fmt: skip
        with pytest.raises(DamagedData, match="is not a valid approval"):
            Approval.from_json(wrong, "x")


def test_an_approval_counts_only_if_the_marks_record_names_it(lake: Lake) -> None:
    """The mark's record has to be approved, name this approval, and have its digest."""
    record, when = lake.add_mark().record, lake.now
    approval = Approval("m1", None, record.digest or "", "Ada", "so", when, when + DAY)
    approved = replace(record, state=MarkState.APPROVED, approval=approval.sha256)

    assert approvals.approval_status(approved, approval, now=when) is ApprovalStatus.APPROVED
    assert approvals.approval_status(record, approval, now=when) is ApprovalStatus.NONE
    assert approvals.approval_status(replace(approved, approval=None), approval, now=when) is ApprovalStatus.INCOMPLETE
    assert approvals.approval_status(replace(approved, digest="x"), approval, now=when) is ApprovalStatus.INCOMPLETE
    assert approvals.approval_status(approved, None, now=when) is ApprovalStatus.INCOMPLETE
    assert approvals.approval_status(approved, approval, now=approval.until) is ApprovalStatus.EXPIRED
