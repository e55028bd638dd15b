"""Approvals and marks where a signing key is set: what isn't signed for its place, or was put back, doesn't count."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from spark_resources.errors import Refused, Untrusted
from spark_resources.mark_store.approval import approval_key, withdraw_stale_summaries
from spark_resources.mark_store.hold_file import parse_hold
from spark_resources.mark_store.holds import HOLDS_KEY, add_hold, read_holds
from spark_resources.mark_store.mark import mark_folder
from spark_resources.records.json_records import MAX_WRITE_DELAY
from tests.approval.conftest import Lake
from tests.approval.test_foreign_marks import leave
from tests.support.command_line import Lakegc
from tests.support.mark_runs import target_of

KEY = "5e" * 32
HOLD = {"id": "h1", "owner": "ada", "reason": "audit", "prefix": "data/s/"}


@pytest.fixture
def signed(lake: Lake) -> Lake:
    """The same repository for people who have the key."""
    return replace(lake, target=target_of(settings(lake), lake.name))


def settings(lake: Lake) -> Mapping[str, str]:
    return {**lake.sandbox.settings, "signing_key": KEY}


def age(lake: Lake, key: str) -> None:
    """Let the store date a file later than any write takes."""
    file = lake.folder / key
    later = file.stat().st_mtime + 2 * MAX_WRITE_DELAY.total_seconds()
    os.utime(file, (later, later))


def test_a_signed_mark_is_approved_and_revoked_only_with_the_key(lake: Lake, signed: Lake) -> None:
    """Its state is shown to everybody."""
    signed.marked()
    signed.approve()
    signed.verify()

    assert lake.state() == signed.state() == "approved"
    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        lake.revoke()
    signed.revoke()
    assert signed.state() == "marked"
    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        lake.approve()


def test_an_unsigned_mark_is_not_approved(lake: Lake, signed: Lake, lakegc: Lakegc) -> None:
    """It may be forged: the list of marks shows it as not signed, and its summary for the reference collector is
    removed."""
    lake.marked()
    lake.approve(for_reference=True)

    with pytest.raises(Untrusted, match="isn't signed"):
        signed.proposal()
    assert "not signed" in lakegc.output(settings(lake), "status", lake.name)
    lakegc(settings(lake), "sweep", lake.name, "m1").stopped(3, "isn't signed", "mark.json")
    assert lake.summary.exists()
    assert withdraw_stale_summaries(signed.place, now=signed.now) == ["m1"]
    assert not lake.summary.exists()


def test_an_unsigned_approval_does_not_count(signed: Lake) -> None:
    """It is refused even if its content matches the mark's record."""
    signed.marked()
    signed.approve()
    store, key = signed.place.store(), approval_key("m1")
    store.write(key, signed.place.records().read(key))

    with pytest.raises(Untrusted, match="isn't signed"):
        signed.verify()
    signed.revoke()
    signed.approve()
    signed.verify()


def test_an_approval_copied_from_another_mark_does_not_count(signed: Lake) -> None:
    """An approval is signed for the place where it was given."""
    for mark_id in ("m1", "m2"):
        signed.marked(mark_id=mark_id)
        signed.approve(mark_id)
    store = signed.place.store()
    store.write(approval_key("m2"), store.read(approval_key("m1")))

    signed.verify("m1")
    with pytest.raises(Untrusted, match="another place"):
        signed.verify("m2")


def test_a_revoked_approval_that_was_put_back_does_not_count(signed: Lake) -> None:
    """Record and approval have the content they had when the approval counted, but the store dates them later."""
    signed.marked()
    signed.approve()
    before = {key: (signed.folder / key).read_bytes() for key in (mark_folder("m1") + "mark.json", approval_key("m1"))}
    signed.revoke()
    for key, data in before.items():
        (signed.folder / key).write_bytes(data)
        age(signed, key)

    with pytest.raises(Untrusted, match="put back"):
        signed.verify()


def test_a_revoked_approval_of_a_foreign_mark_that_was_put_back_does_not_count(signed: Lake) -> None:
    """No record of lakegc's names such an approval: its own date shows that it was put back."""
    leave(signed)
    signed.approve("t1", now=signed.now + timedelta(seconds=1))
    before = (signed.folder / approval_key("t1")).read_bytes()
    signed.revoke("t1")
    assert signed.approval("t1") is not None
    (signed.folder / approval_key("t1")).write_bytes(before)
    age(signed, approval_key("t1"))

    with pytest.raises(Untrusted, match="put back"):
        signed.approval("t1")


def test_a_removed_file_of_holds_refuses_approvals(signed: Lake) -> None:
    """This holds for the mark that used these holds and for one made after they were removed."""
    add_hold(signed.place, parse_hold(HOLD))
    signed.marked(holds=read_holds(signed.place).recorded())
    signed.place.store().delete_many([HOLDS_KEY])

    with pytest.raises(Untrusted, match=r"holds\.yaml doesn't exist, but mark m1 used version 1"):
        signed.approve()
    signed.marked(mark_id="m2")
    with pytest.raises(Untrusted, match=r"holds\.yaml doesn't exist, but mark m1 used version 1"):
        signed.approve("m2")


def test_holds_from_before_there_was_a_key_count_once_signed(lake: Lake, signed: Lake, lakegc: Lakegc) -> None:
    """Somebody has to look at them and confirm with --yes."""
    add_hold(lake.place, parse_hold(HOLD))
    lakegc(settings(lake), "holds", lake.name, "list").stopped(3, "isn't signed", "lakegc holds REPO sign")
    assert lakegc(settings(lake), "holds", lake.name, "sign").code == 2

    assert "h1: " in lakegc.output(settings(lake), "holds", lake.name, "sign", "--yes")
    assert "h1" in lakegc.output(settings(lake), "holds", lake.name, "list")
    lakegc.output(settings(lake), "holds", lake.name, "drop", "h1")
    assert (read_holds(signed.place).ids, read_holds(signed.place).number) == ((), 2)
