"""Approvals and marks with a signing key: unsigned, moved or restored ones don't count."""

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
from tests.approval.test_foreign_marks import write_foreign_mark
from tests.support.command_line import Lakegc
from tests.support.mark_runs import target_of

KEY = "5e" * 32
HOLD = {"id": "h1", "owner": "ada", "reason": "audit", "prefix": "data/s/"}


@pytest.fixture
def signed(lake: Lake) -> Lake:
    """The same repository, opened with the signing key."""
    return replace(lake, target=target_of(settings(lake), lake.name))


def settings(lake: Lake) -> Mapping[str, str]:
    return {**lake.sandbox.settings, "signing_key": KEY}


def date_later(lake: Lake, key: str) -> None:
    """Date a file later than any delayed write could be."""
    file = lake.folder / key
    later = file.stat().st_mtime + 2 * MAX_WRITE_DELAY.total_seconds()
    os.utime(file, (later, later))


def test_a_signed_mark_can_be_approved_or_revoked_only_with_the_key(lake: Lake, signed: Lake) -> None:
    """Without the key, the mark's state can still be read."""
    signed.add_mark()
    signed.approve()
    signed.verify()

    assert lake.state() == signed.state() == "approved"
    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        lake.revoke()
    signed.revoke()
    assert signed.state() == "marked"
    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        lake.approve()


def test_an_unsigned_mark_can_be_neither_approved_nor_swept(lake: Lake, signed: Lake, lakegc: Lakegc) -> None:
    """An unsigned mark may be forged: the list of marks shows it as not signed, and its summary for the reference
    collector is removed."""
    lake.add_mark()
    lake.approve(for_reference=True)

    with pytest.raises(Untrusted, match="isn't signed"):
        signed.proposal()
    assert "not signed" in lakegc.output(settings(lake), "status", lake.name)
    lakegc(settings(lake), "sweep", lake.name, "m1").stopped(3, "isn't signed", "mark.json")
    assert lake.summary.exists()
    assert withdraw_stale_summaries(signed.place, now=signed.now) == ["m1"]
    assert not lake.summary.exists()


def test_an_unsigned_approval_does_not_count(signed: Lake) -> None:
    """The approval is refused even if its content matches the mark's record."""
    signed.add_mark()
    signed.approve()
    store, key = signed.place.store(), approval_key("m1")
    store.write(key, signed.place.records().read(key))

    with pytest.raises(Untrusted, match="isn't signed"):
        signed.verify()
    signed.revoke()
    signed.approve()
    signed.verify()


def test_an_approval_copied_from_another_mark_does_not_count(signed: Lake) -> None:
    """An approval is signed for its own path."""
    for mark_id in ("m1", "m2"):
        signed.add_mark(mark_id=mark_id)
        signed.approve(mark_id)
    store = signed.place.store()
    store.write(approval_key("m2"), store.read(approval_key("m1")))

    signed.verify("m1")
    with pytest.raises(Untrusted, match="another location"):
        signed.verify("m2")


def test_a_revoked_approval_that_was_restored_does_not_count(signed: Lake) -> None:
    """Record and approval have their earlier content again, but the store dates them later."""
    signed.add_mark()
    signed.approve()
    before = {key: (signed.folder / key).read_bytes() for key in (mark_folder("m1") + "mark.json", approval_key("m1"))}
    signed.revoke()
    for key, data in before.items():
        (signed.folder / key).write_bytes(data)
        date_later(signed, key)

    with pytest.raises(Untrusted, match="put back"):
        signed.verify()


def test_a_revoked_approval_of_a_foreign_mark_that_was_restored_does_not_count(signed: Lake) -> None:
    """No record names such an approval, but the store's date shows that it was put back."""
    write_foreign_mark(signed)
    signed.approve("t1", now=signed.now + timedelta(seconds=1))
    before = (signed.folder / approval_key("t1")).read_bytes()
    signed.revoke("t1")
    assert signed.approval("t1") is not None
    (signed.folder / approval_key("t1")).write_bytes(before)
    date_later(signed, approval_key("t1"))

    with pytest.raises(Untrusted, match="put back"):
        signed.approval("t1")


def test_approvals_are_refused_if_the_holds_file_was_removed(signed: Lake) -> None:
    """Neither the mark that used the holds nor a mark made after their removal is approved."""
    add_hold(signed.place, parse_hold(HOLD))
    signed.add_mark(holds=read_holds(signed.place).record_fields())
    signed.place.store().delete_many([HOLDS_KEY])

    with pytest.raises(Untrusted, match=r"holds\.yaml doesn't exist, but mark m1 recorded version 1"):
        signed.approve()
    signed.add_mark(mark_id="m2")
    with pytest.raises(Untrusted, match=r"holds\.yaml doesn't exist, but mark m1 recorded version 1"):
        signed.approve("m2")


def test_holds_written_before_a_key_was_set_count_only_after_they_are_signed(
    lake: Lake, signed: Lake, lakegc: Lakegc
) -> None:
    """Somebody has to review the holds and confirm with --yes."""
    add_hold(lake.place, parse_hold(HOLD))
    lakegc(settings(lake), "holds", lake.name, "list").stopped(3, "isn't signed", "lakegc holds REPO sign")
    assert lakegc(settings(lake), "holds", lake.name, "sign").code == 2

    assert "h1: " in lakegc.output(settings(lake), "holds", lake.name, "sign", "--yes")
    assert "h1" in lakegc.output(settings(lake), "holds", lake.name, "list")
    lakegc.output(settings(lake), "holds", lake.name, "drop", "h1")
    assert (read_holds(signed.place).ids, read_holds(signed.place).number) == ((), 2)
