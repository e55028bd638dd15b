"""Approvals by a policy: announced, revocable, checked again when they are due, and never forged (invariant 7).

The sandbox's clock is set, so that days pass between two steps of a test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.approval import auto_approval
from lakegc_assets.approval.approve import revoke
from lakegc_assets.approval.auto_approval import POLICY, apply_policy
from lakegc_assets.rules.auto_approval import Policy
from lakegc_assets.sweep.preconditions import SweepOptions, options_in_force, refuse_sweep_early
from spark_resources.errors import DamagedData, LakegcError, Refused, UnknownFormat, Untrusted, WrongUsage
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.announcement import (
    AnnouncementConflict,
    announcement_key,
    read_announcement,
    withdraw_announcement,
)
from spark_resources.mark_store.mark import Mark, asset_folder, mark_folder
from spark_resources.model import MarkState, Rules
from spark_resources.settings import Settings
from tests.approval.conftest import Lake, alter_file, with_one_bit_flipped
from tests.support.command_line import Lakegc
from tests.support.finished_marks import START
from tests.support.mark_runs import target_of
from tests.support.policies import BEFORE, DAY, HOUR, OLD, Fleet
from tests.support.reviewable_marks import FACTS, expired

KEY = "5e" * 32
NEW_REASON = expired("data/s/new", old=50)


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A server whose clock begins two days after the marks' objects were listed, and then only moves forward."""
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as server:
        server.set_clock(START + 2 * DAY)
        yield server


@pytest.fixture
def fleet(lake: Lake) -> Fleet:
    return Fleet(lake)


@pytest.fixture
def signed(lake: Lake) -> Fleet:
    """The same repository with a signing key."""
    target = target_of({**lake.sandbox.settings, "signing_key": KEY}, lake.name)
    known = {"auto_approve": "true", "sweep_quarantine": "true", "signing_key": KEY}
    return Fleet(replace(lake, target=target), known)


# --- what is written --------------------------------------------------------------------------------------------------


def test_a_mark_is_announced_first_and_approved_when_the_waiting_time_has_passed(fleet: Fleet) -> None:
    """The approval names the policy, and every check of a person's approval passes."""
    digest = fleet.add_marks().record.digest
    announced_at = fleet.lake.now

    assert "at the earliest" in fleet.tick().sentence
    announcement, policy = fleet.announcement(), Policy.of(fleet.settings)
    assert (announcement.digest, announcement.policy, announcement.revoked) == (digest, policy.text, None)
    assert announcement.due == announcement.announced + DAY
    assert timedelta(0) <= announcement.announced - announced_at < HOUR
    fleet.wait(DAY - HOUR)
    assert "at the earliest" in fleet.tick().sentence
    fleet.assert_not_approved()

    fleet.wait(HOUR + timedelta(seconds=2))
    decision = fleet.tick()
    approval = fleet.lake.approval()
    assert decision.approval == approval is not None
    assert (approval.who, approval.how, approval.digest) == (POLICY, f"policy: {policy.text}", digest)
    assert approval.policy == {"sha256": policy.sha256, "quarantine": True, "backup_to": None}
    assert (approval.released, approval.for_reference) == ({}, False)
    fleet.lake.verify()
    assert fleet.tick().approval == approval  # to be reported again, if the daemon was killed before


UNUSUAL: Mapping[str, dict[str, Any]] = {
    "1.1% of all objects are expired (11 of 1,000)": {"rows": [*OLD, expired("data/s/x", path="x")]},
    "2.001% of all bytes": {"rows": [*OLD[:9], expired("data/s/x", 20_000, path="x")]},
    "youngest expired object was stored 2026-11-01": {"rows": [*OLD[:9], expired("data/s/x", old=20, path="x")]},
    "1 reason did not occur in the previous mark, m0: no commit": {"rows": [*OLD[:9], NEW_REASON]},
    "no object is expired": {"rows": []},
    "without reading them: pond": {"elsewhere": {"trusted": ["pond"], "unread": {}}},
    "without reading them: puddle": {"facts": {**FACTS, "elsewhere": {"trusted": ["puddle"], "unread": {}}}},
    "the brake 'others/pond' has tripped": {"elsewhere": {"trusted": [], "unread": {"pond": "forbidden"}}},
    "doesn't record which other repositories it trusted": {"elsewhere": None},
    "first mark": {"previous": None},
    "1 mark can't be read: m-1": {"previous": {"mark_id": "m0", "counts": BEFORE, "unreadable": ["m-1"]}},
    "inventory": {"inventory": {"where": "s3://i"}},
}
"""Changes to a mark that qualifies, by the words in which the policy then refuses it."""


def test_marks_that_do_not_qualify_are_not_announced(fleet: Fleet) -> None:
    """The decision says why. Ten of a thousand objects are exactly the allowed share."""
    fleet.add_marks()
    for number, (words, changes) in enumerate(UNUSUAL.items(), 2):
        mark_id = f"m{number}"
        fleet.add_mark(mark_id, start=fleet.lake.finished + timedelta(minutes=number), **changes)

        sentence = fleet.tick().sentence

        assert f"mark {mark_id} doesn't qualify" in sentence
        assert words in sentence
        assert read_announcement(fleet.lake.place, mark_id) is None


def test_the_current_settings_decide_whether_a_mark_is_announced(fleet: Fleet) -> None:
    """A mark that would be too old when the approval is due isn't announced either."""
    fleet.add_marks()
    usual = dict(fleet.options)
    for words, options in {
        "neither sweep_quarantine nor backup_to": {"sweep_quarantine": "false"},
        "nobody could revoke": {"auto_approve_wait": "0"},
        "would trust other repositories without reading them: scratch-*": {"trusted_repositories": "scratch-*"},
        "the brake 'share' has tripped": {"brake_share": "0.001"},
        "the brake 'age' has tripped": {"auto_approve_wait": "8d"},
    }.items():
        fleet.options = usual | options
        assert words in fleet.tick().sentence
    assert not fleet.file.exists()


def test_a_repository_without_finished_marks_is_left_alone(fleet: Fleet) -> None:
    assert fleet.tick().sentence == "no mark is finished"


# --- when it is due, everything is checked again ----------------------------------------------------------------------


def announced(fleet: Fleet) -> Fleet:
    fleet.add_marks()
    fleet.tick()
    fleet.announcement()
    return fleet


def test_a_changed_policy_makes_a_new_announcement_with_a_new_waiting_time(fleet: Fleet) -> None:
    announced(fleet).wait(DAY + HOUR)
    fleet.tick(auto_approve_max_share="0.02")

    announcement = fleet.announcement()
    assert announcement.due > fleet.lake.now + DAY - HOUR
    assert "0.02" in announcement.policy
    fleet.assert_not_approved()
    fleet.wait(DAY + HOUR)
    assert fleet.tick().approval is not None


def test_a_mark_that_no_longer_qualifies_when_it_is_due_is_not_approved(fleet: Fleet) -> None:
    """Only the brake for the mark's age trips, because days have passed."""
    announced(fleet).wait(8 * DAY)

    assert "the brake 'age' has tripped" in fleet.tick().sentence
    fleet.assert_not_approved()


def test_an_altered_mark_is_not_approved(fleet: Fleet) -> None:
    announced(fleet).wait(DAY + HOUR)
    [file, *_] = (fleet.lake.folder / asset_folder("m1", "expired_set")).glob("part-*")
    alter_file(file, with_one_bit_flipped)

    with pytest.raises(Refused, match="was altered after the mark was made"):
        fleet.tick()
    fleet.assert_not_approved()


def test_an_altered_record_is_not_announced(fleet: Fleet) -> None:
    """The counts that the policy compares are covered by the digest."""
    fleet.add_marks(rows=[*OLD, *(expired(f"data/s/more-{number}") for number in range(20))])
    alter_file(
        fleet.lake.folder / mark_folder("m1") / "mark.json",
        lambda data: json.dumps({**(plain := json.loads(data)), "counts": {**plain["counts"], "expired": 1}}).encode(),
    )

    with pytest.raises(Refused, match="digest doesn't match"):
        fleet.tick()
    assert not fleet.file.exists()


def test_rules_that_were_changed_on_the_server_prevent_the_approval(fleet: Fleet) -> None:
    announced(fleet).wait(DAY + HOUR)
    set_rules(fleet.lake.sandbox.repository(fleet.lake.name), Rules(3))

    with pytest.raises(Refused, match="retention rules"):
        fleet.tick()
    fleet.assert_not_approved()


def test_only_the_newest_finished_mark_is_approved(fleet: Fleet) -> None:
    """A mark that finishes in the meantime is announced instead, with its own waiting time."""
    announced(fleet).wait(DAY + HOUR)
    fleet.add_mark("m2", start=fleet.lake.now - HOUR)
    assert "mark m2 was announced" in fleet.tick().sentence

    fleet.assert_not_approved()
    assert fleet.lake.approval("m2") is None


def test_a_mark_that_finishes_during_the_approval_prevents_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifying the files of a large set takes long enough for another mark to finish."""
    announced(fleet).wait(DAY + HOUR)
    give = auto_approval.approve

    def give_after_another_mark(*arguments: Any, **options: Any) -> Any:
        fleet.add_mark("m2", start=fleet.lake.now - HOUR)
        return give(*arguments, **options)

    monkeypatch.setattr(auto_approval, "approve", give_after_another_mark)
    with pytest.raises(Refused, match="m2 was finished while the policy was approving mark m1"):
        fleet.tick()
    assert fleet.lake.record().state is MarkState.MARKED
    with pytest.raises(Refused, match="is not approved"):
        fleet.lake.verify()


def test_nothing_is_announced_or_approved_while_clocks_differ(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's clock jumps ahead, so that the waiting time seems to have passed; or it was behind when the mark was
    announced."""
    fleet.add_marks()
    server_time = LakeFS.server_time
    monkeypatch.setattr(LakeFS, "server_time", lambda lakefs, server: server_time(lakefs, server) + HOUR)
    with pytest.raises(Refused, match=r"clocks used for .* differ by"):
        fleet.tick()
    assert not fleet.file.exists()

    monkeypatch.setattr(LakeFS, "server_time", server_time)
    fleet.tick()
    fleet.wait(DAY + HOUR)
    monkeypatch.setattr(LakeFS, "server_time", lambda lakefs, server: server_time(lakefs, server) - DAY)
    with pytest.raises(Refused, match=r"clocks used for .* differ by"):
        fleet.tick()
    fleet.assert_not_approved()


def test_a_mark_that_two_daemons_approve_at_once_is_approved_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find that the mark is due. One of them writes the approval; the other one is refused or finds it."""
    announced(fleet).wait(DAY + HOUR)
    both, check = threading.Barrier(2), auto_approval.check_unchanged

    def check_together(*arguments: Any) -> None:
        both.wait(30)
        check(*arguments)

    monkeypatch.setattr(auto_approval, "check_unchanged", check_together)
    with ThreadPoolExecutor(2) as pool:
        attempts = [pool.submit(fleet.tick) for _ in range(2)]
    errors = [attempt.exception() for attempt in attempts]

    assert sum(error is None for error in errors) >= 1
    assert all(error is None or isinstance(error, Refused) for error in errors)
    fleet.lake.verify()


def test_a_mark_that_two_daemons_announce_is_announced_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first announcement is kept, with its time."""
    fleet.add_marks()
    check = auto_approval.check_unchanged

    def let_another_announce(*arguments: Any) -> None:
        monkeypatch.setattr(auto_approval, "check_unchanged", check)
        fleet.tick()
        fleet.wait(HOUR)

    monkeypatch.setattr(auto_approval, "check_unchanged", let_another_announce)
    with pytest.raises(AnnouncementConflict, match="at the same time"):
        fleet.tick()
    assert fleet.announcement().announced < fleet.lake.now - timedelta(minutes=59)


# --- revoking ---------------------------------------------------------------------------------------------------------


def test_a_mark_whose_announcement_was_revoked_is_never_announced_again(fleet: Fleet) -> None:
    """A changed policy doesn't announce it either. A person can still approve it."""
    announced(fleet).lake.revoke()
    assert fleet.announcement().revoked is not None
    fleet.wait(2 * DAY)

    for options in ({}, {"auto_approve_max_share": "0.02"}):
        assert "Grace revoked the announcement" in fleet.tick(**options).sentence
    fleet.assert_not_approved()
    with pytest.raises(WrongUsage, match="nothing to revoke"):
        fleet.lake.revoke()
    fleet.lake.approve()
    fleet.lake.verify()


def test_a_policy_never_approves_a_mark_whose_approval_was_revoked(fleet: Fleet) -> None:
    """The policy doesn't even if the announcement, which records the revocation, is deleted."""
    fleet.approve()
    fleet.lake.revoke()
    assert "revoked the announcement" in fleet.tick().sentence

    assert fleet.lake.record().state is MarkState.MARKED
    fleet.file.unlink()
    assert "has been approved before" in fleet.tick().sentence
    assert not fleet.file.exists()


def test_a_mark_that_a_person_approved_and_revoked_is_not_announced(fleet: Fleet) -> None:
    fleet.add_marks()
    fleet.lake.approve()
    assert "state is 'approved'" in fleet.tick().sentence
    fleet.lake.revoke()

    assert "has been approved before" in fleet.tick().sentence
    assert not fleet.file.exists()


def test_a_revocation_during_the_approval_prevents_it(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revocation comes after everything was checked, and right before the mark becomes approved."""
    announced(fleet).wait(DAY + HOUR)
    give = auto_approval.approve

    def give_after_a_revocation(*arguments: Any, **options: Any) -> Any:
        fleet.lake.revoke()
        return give(*arguments, **options)

    monkeypatch.setattr(auto_approval, "approve", give_after_a_revocation)
    with pytest.raises(Refused, match="Grace revoked"):
        fleet.tick()
    assert fleet.lake.record().state is MarkState.MARKED
    with pytest.raises(Refused, match="is not approved"):
        fleet.lake.verify()


def test_revoking_an_announcement_also_revokes_the_approval_that_followed_it(fleet: Fleet) -> None:
    """When the person looked, the mark was only announced."""
    announced(fleet).wait(DAY + HOUR)
    seen = fleet.lake.proposal()
    assert fleet.tick().approval is not None

    revoke(seen, who="Grace", now=fleet.lake.now)

    assert fleet.lake.record().state is MarkState.MARKED
    approval = fleet.lake.approval()
    assert approval is not None
    assert (approval.ended or {})["who"] == "Grace"


def test_an_announcement_cannot_be_revoked_once_the_sweep_has_begun(fleet: Fleet) -> None:
    announced(fleet).wait(DAY + HOUR)
    seen = fleet.lake.proposal()
    fleet.tick()
    Mark.open(fleet.lake.place, "m1").move_to(MarkState.SWEEPING)

    with pytest.raises(Refused, match="the mark's state is sweeping"):
        revoke(seen, who="Grace", now=fleet.lake.now)


def test_a_sweep_is_refused_if_the_announcement_was_revoked_or_removed(fleet: Fleet) -> None:
    """The sweep is refused even if the process that approved the mark was killed before it noticed."""
    fleet.approve()
    data = fleet.file.read_bytes()
    withdraw_announcement(fleet.lake.place, "m1", digest="", who="Grace", now=fleet.lake.now)
    with pytest.raises(Refused, match="Grace revoked the policy's approval"):
        fleet.lake.verify()
    fleet.file.unlink()
    with pytest.raises(Refused, match="was removed"):
        fleet.lake.verify()
    fleet.file.write_bytes(data)
    fleet.lake.verify()


def test_an_unreadable_announcement_can_be_revoked(fleet: Fleet) -> None:
    fleet.add_marks()
    for content in (b"", b"{", b'{"format": 99}', b"[]"):
        fleet.file.write_bytes(content)
        fleet.lake.revoke()
        assert "revoked" in fleet.tick().sentence


# --- announcements that lakegc didn't write ---------------------------------------------------------------------------


def without(name: str, data: bytes) -> bytes:
    return json.dumps({key: value for key, value in json.loads(data).items() if key != name}).encode()


def with_field(data: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(data), **fields}).encode()


DAMAGED: Mapping[str, tuple[Any, type[LakegcError], str]] = {
    "cut off": (lambda data: data[: len(data) // 2], DamagedData, "not a valid announcement"),
    "without its due time": (lambda data: without("due", data), DamagedData, "due is missing"),
    "with another policy's text": (lambda data: with_field(data, policy="x"), DamagedData, "text was altered"),
    "due before it was announced": (
        lambda data: with_field(data, due="2020-01-01T00:00:00+00:00"), DamagedData, "before it was announced"
    ),
    "for another digest": (lambda data: with_field(data, digest="d" * 64), DamagedData, "one of them was altered"),
    "of another mark": (lambda data: with_field(data, mark_id="m0"), DamagedData, "copied from mark m0"),
    "of an unknown format": (lambda data: with_field(data, format=2), UnknownFormat, "Update lakegc"),
}  # fmt: skip


def test_a_damaged_announcement_stops_the_approval_and_is_kept(fleet: Fleet) -> None:
    """The message says what is wrong. The file isn't replaced, so that a person can look at it."""
    announced(fleet).wait(DAY + HOUR)
    intact = fleet.file.read_bytes()
    for case, (damage, kind, words) in DAMAGED.items():
        damaged = damage(intact)
        fleet.file.write_bytes(damaged)

        with pytest.raises(kind, match=words):
            fleet.tick()
        assert fleet.file.read_bytes() == damaged, case
        fleet.assert_not_approved()


def test_the_waiting_time_of_a_backdated_announcement_starts_when_it_was_stored(fleet: Fleet) -> None:
    """Without a key, anyone who can write to the bucket can write any time into the file."""
    announced(fleet).wait(HOUR)
    before = (fleet.lake.now - 5 * DAY).isoformat()
    fleet.lake.place.store().write(
        announcement_key("m1"), with_field(fleet.file.read_bytes(), announced=before, due=before)
    )

    assert fleet.tick().approval is None
    fleet.assert_not_approved()


def test_with_a_signing_key_a_mark_is_announced_and_approved(signed: Fleet) -> None:
    signed.approve()

    signed.lake.verify()
    assert set(json.loads(signed.file.read_bytes())) == {"record", "signed"}


def test_with_a_signing_key_an_unsigned_announcement_does_not_count(signed: Fleet) -> None:
    announced(signed).wait(DAY + HOUR)
    signed.file.write_bytes(signed.announcement().to_json())

    with pytest.raises(Untrusted, match="isn't signed"):
        signed.tick()
    signed.lake.revoke()
    assert "revoked" in signed.tick().sentence
    signed.assert_not_approved()


def test_with_a_signing_key_an_announcement_copied_from_another_mark_does_not_count(signed: Fleet) -> None:
    announced(signed)
    signed.wait(DAY + HOUR)
    signed.add_mark("m2", start=signed.lake.now - HOUR)
    (signed.lake.folder / announcement_key("m2")).write_bytes(signed.file.read_bytes())

    with pytest.raises(Untrusted, match="another location"):
        signed.tick()
    assert signed.lake.approval("m2") is None


def test_with_a_signing_key_an_unsigned_mark_prevents_announcements(signed: Fleet) -> None:
    """The unsigned mark may be newer than the others, or the one that they would be compared with."""
    signed.add_marks()
    Fleet(replace(signed.lake, target=target_of(signed.lake.sandbox.settings, signed.lake.name))).add_mark("m9")

    assert "1 mark can't be read: m9" in signed.tick().sentence


def test_with_a_signing_key_a_revoked_announcement_that_was_restored_does_not_count(signed: Fleet) -> None:
    announced(signed)
    data = signed.file.read_bytes()
    signed.lake.revoke()
    signed.wait(DAY + HOUR)
    signed.lake.place.store().write(announcement_key("m1"), data)

    with pytest.raises(Untrusted, match="put back"):
        signed.tick()
    signed.assert_not_approved()


def test_without_the_signing_key_a_signed_announcement_is_neither_approved_nor_revoked(signed: Fleet) -> None:
    """A process without the key can't sign the announcement again."""
    lake = replace(signed.lake, target=target_of(signed.lake.sandbox.settings, signed.lake.name))
    announced(signed).wait(DAY + HOUR)
    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        apply_policy(lake.target, lake.lakefs, replace_key(signed))
    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        lake.revoke()
    signed.assert_not_approved()


def replace_key(fleet: Fleet) -> Settings:
    """The settings of a process without the key."""
    return Fleet(fleet.lake).settings


# --- the sweep --------------------------------------------------------------------------------------------------------


def test_the_quarantine_and_backup_that_the_policy_relied_on_apply_even_if_the_settings_change(fleet: Fleet) -> None:
    fleet.approve(backup_to="/backups")
    approval = fleet.lake.approval()
    fleet.options |= {"sweep_quarantine": "false"}
    fleet.options.pop("backup_to")

    assert options_in_force(SweepOptions(), fleet.settings, approval) == SweepOptions(None, True, "/backups")
    assert options_in_force(SweepOptions(), fleet.settings, None) == SweepOptions()


def test_a_backup_in_a_different_location_does_not_replace_the_one_that_the_policy_relied_on(fleet: Fleet) -> None:
    fleet.approve(backup_to="/backups")
    approval = fleet.lake.approval()
    fleet.options["backup_to"] = "/tmp/scratch"

    with pytest.raises(Refused, match="relied on a backup in /backups, but this sweep would require one in /tmp/scr"):
        options_in_force(SweepOptions(), fleet.settings, approval)
    with pytest.raises(Refused, match="relied on a backup in /backups"):
        refuse_sweep_early(fleet.lake.target, "m1", backup_to="/tmp/scratch")
    assert options_in_force(SweepOptions(backup_to="/backups"), fleet.settings, approval).backup_to == "/backups"
    assert options_in_force(SweepOptions(), fleet.settings, None).backup_to == "/tmp/scratch"


def test_the_setting_sweep_quarantine_applies_to_sweeps_without_an_option(fleet: Fleet) -> None:
    assert options_in_force(SweepOptions(), fleet.settings, None).quarantine
    fleet.options["sweep_quarantine"] = "false"

    assert not options_in_force(SweepOptions(), fleet.settings, None).quarantine
    assert options_in_force(SweepOptions(), fleet.settings, None, has_quarantined=True).quarantine
    assert options_in_force(SweepOptions(quarantine=True), fleet.settings, None).quarantine


# --- what people see --------------------------------------------------------------------------------------------------


def test_status_and_review_show_an_announcement_and_how_to_revoke_it(fleet: Fleet, lakegc: Lakegc) -> None:
    settings, name = fleet.lake.sandbox.settings, fleet.lake.name
    announced(fleet)
    due, policy = f"{fleet.announcement().due:%Y-%m-%d %H:%M} UTC", fleet.announcement().policy

    for command in ("status", "review"):
        shown = " ".join(lakegc.output(settings, command, name, *(["m1"] if command == "review" else [])).split())
        assert f"a policy will approve mark m1 of {name} on {due}" in shown
        assert policy in shown
        assert f"lakegc revoke {name} m1" in shown
    [newest] = [row for row in json.loads(lakegc.output(settings, "status", name, "--format", "json"))["marks"]
                if row["announced"]]  # fmt: skip
    assert newest["mark_id"] == "m1"
    assert due in json.loads(lakegc.output(settings, "review", name, "m1", "--format", "json"))["announced"]

    assert "no policy will approve it" in lakegc.output(settings, "revoke", name, "m1", "--by", "Grace")
    assert "policy" not in lakegc.output(settings, "status", name)


def test_status_shows_a_damaged_announcement(fleet: Fleet, lakegc: Lakegc) -> None:
    announced(fleet).file.write_bytes(b"{}")

    assert "is not a valid announcement" in lakegc.output(fleet.lake.sandbox.settings, "status", fleet.lake.name)
