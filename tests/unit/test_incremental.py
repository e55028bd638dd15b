"""Which base an incremental mark has, and which folders may have changed since that base."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakegc_assets.rules.incremental import MAX_UPLOAD_DELAY, basis_of, late_uploads, may_have_changed, slice_opened_at
from spark_resources.errors import NotFound
from spark_resources.lakefs_sandbox.xids import Xids
from spark_resources.mark_store.record import FULL_MARK, MarkRecord, StepRecord
from spark_resources.model import MarkState, Scope

NOW = datetime(2026, 11, 21, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)


def record(mark_id: str, hours_ago: float = 0, **changes: Any) -> MarkRecord:
    began = NOW - hours_ago * HOUR
    step = StepRecord(began, began, 5, {"": {"sha256": "", "rows": 0}, "not_retained": {"sha256": "", "rows": 0}})
    known = MarkRecord(
        mark_id=mark_id, state=MarkState.MARKED, repository="lake", repository_created=NOW - 999 * HOUR,
        namespace="local://lake", scope=Scope.UNIFIED, min_age=HOUR, start=began, cutoff=began, server_now=began,
        rules=None, by="ada", versions={}, finished=began, steps={"expired_set": step}, digest=f"digest of {mark_id}",
    )  # fmt: skip
    return replace(known, **changes)


def new(**changes: Any) -> MarkRecord:
    return record("new", **{"finished": None, "steps": {}, **changes})


def chained(mark_id: str, hours_ago: float, *chain: str) -> MarkRecord:
    digests = [f"digest of {mark}" for mark in chain]
    return record(
        mark_id, hours_ago, basis={**FULL_MARK, "incremental": True, "chain": list(chain), "digests": digests}
    )


def test_the_name_of_a_slice_tells_when_it_was_opened() -> None:
    """The time is exact to the second."""
    for hours in (0, 1, 24, 24 * 365 * 3):
        when = NOW - hours * HOUR
        assert slice_opened_at(NAME_OF(when)) == when
    assert slice_opened_at(NAME_OF(FIRST_SLICE)) == FIRST_SLICE


NAME_OF = Xids(1, lambda: NOW).descending_id
FIRST_SLICE = datetime(2022, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "name",
    [
        "", "a", "!ab", "0" * 19, "0" * 21, "z" * 20, "A" * 20, "0" * 19 + "1", NAME_OF(NOW).upper(),
        NAME_OF(NOW) + "0" * 8, NAME_OF(FIRST_SLICE - timedelta(seconds=1)),
    ],
)  # fmt: skip
def test_a_folder_that_is_not_a_slice_is_always_listed(name: str) -> None:
    """The name of such a folder doesn't tell when it was opened. Nor does the name of a folder older than slices."""
    assert slice_opened_at(name) is None
    assert may_have_changed(name, NOW)


def test_a_slice_is_listed_until_48_hours_after_it_was_opened() -> None:
    """An object that arrives a day after the hour of its slice is still found."""
    name = Xids(1, lambda: NOW).descending_id
    assert may_have_changed(name(NOW - 25 * HOUR), NOW)
    assert may_have_changed(name(NOW - MAX_UPLOAD_DELAY), NOW)
    assert may_have_changed(name(NOW + 99 * HOUR), NOW)
    assert not may_have_changed(name(NOW - MAX_UPLOAD_DELAY - timedelta(seconds=1)), NOW)


def test_the_base_is_the_newest_finished_mark_or_the_one_that_is_named() -> None:
    """An unfinished mark is never a base, even if it is named."""
    earlier = [record("old", 9), record("newer", 5), record("unfinished", 1, finished=None)]
    basis = basis_of(new(), earlier, every=9)
    assert basis == {**FULL_MARK, "incremental": True, "chain": ["newer"], "digests": ["digest of newer"], "full_in": 7}
    assert basis_of(new(), earlier, since="old", every=9)["chain"] == ["old"]
    assert basis_of(new(), [record("at once", 0)], every=9)["incremental"]
    assert basis_of(new(), [record("old", 9, digest=None)], every=9)["digests"] == [""]
    for unknown in ("unfinished", "none"):
        with pytest.raises(NotFound, match=unknown):
            basis_of(new(), earlier, since=unknown, every=9)


def test_a_full_mark_is_due_after_the_configured_number_of_incremental_ones() -> None:
    """The full mark still records the chain before it, and starts the next one. If a base is named, the mark is
    incremental."""
    earlier = [record("m1", 9), chained("m2", 8, "m1"), chained("m3", 7, "m2", "m1")]
    basis = basis_of(new(), earlier, every=4)
    assert (basis["incremental"], basis["chain"]) == (True, ["m3", "m2", "m1"])
    assert basis["digests"] == ["digest of m3", "digest of m2", "digest of m1"]
    due = basis_of(new(), earlier, every=3)
    assert (due["incremental"], due["chain"]) == (False, ["m3", "m2", "m1"])
    assert due["digests"] == basis["digests"]
    assert "every 3 marks" in due["why"]
    assert basis_of(new(), earlier, every=3, since="m3")["incremental"]
    assert not basis_of(new(), earlier, every=1)["incremental"]
    assert not basis_of(new(), earlier[:1], every=1)["incremental"]
    assert not basis_of(new(), earlier, every=0)["incremental"]
    full = record("m4", 6, basis=due)
    after = basis_of(new(), [*earlier, full], every=3)
    assert (after["chain"], after["digests"]) == (["m4"], ["digest of m4"])


def test_a_full_mark_is_due_after_enough_incremental_marks_even_if_each_names_the_same_base() -> None:
    """The chain doesn't grow if each mark names the same base, so marks are counted as well. A named base is still
    used."""
    earlier = [record("m1", 9), chained("m2", 8, "m1"), chained("m3", 7, "m1")]
    for every, full_in in ((6, 2), (5, 1), (4, 0), (3, 0)):
        named = basis_of(new(), earlier, since="m1", every=every)
        assert (named["incremental"], named["chain"], named["full_in"]) == (True, ["m1"], full_in)
    assert basis_of(new(), earlier, every=4)["incremental"]
    due = basis_of(new(), earlier, every=3)
    assert not due["incremental"]
    assert "every 3 marks" in due["why"]
    full = record("m4", 6, basis=due)
    assert basis_of(new(), [*earlier, full], every=3)["full_in"] == 1


def test_only_a_full_listing_of_all_objects_counts_as_a_full_mark() -> None:
    """Marks of a different scope and marks from an inventory find no late uploads, so a full mark stays due after
    them."""
    others = [record("m3", 7, scope=Scope.UNCOMMITTED), record("m4", 6, inventory={"where": "s3://i"})]
    earlier = [record("m1", 9), chained("m2", 8, "m1"), *others]
    assert basis_of(new(), earlier, since="m2", every=3)["full_in"] == 0
    earlier = [record("m1", 9), chained("m2", 8, "m1"), *others, record("m5", 5, scope=Scope.COMMITTED)]
    assert basis_of(new(), earlier, since="m1", every=4)["full_in"] == 1


def test_an_incremental_mark_says_what_only_a_full_one_finds_and_when_one_is_due() -> None:
    """A full mark misses nothing. A mark made before lakegc recorded this can't tell when a full one is due."""
    assert late_uploads(record("full")) == ""
    for marks, due in ((3, "after 3 more incremental marks"), (1, "after 1 more incremental mark."), (0, "due now")):
        incremental = record(
            "m2", basis={**FULL_MARK, "incremental": True, "chain": ["m1"], "digests": ["1"], "full_in": marks}
        )
        uploads = late_uploads(incremental)
        assert "more than 48 hours after their slice was created were not searched for" in uploads
        assert due in uploads
        assert MarkRecord.from_json(incremental.to_json(), "here").basis["full_in"] == marks
    assert "due" not in late_uploads(chained("m2", 1, "m1"))


@pytest.mark.parametrize(
    ("mine", "of_base", "why"),
    [
        ({}, {"repository_created": NOW}, "another repository"),
        ({}, {"namespace": "local://other"}, "another repository"),
        ({"scope": Scope.UNCOMMITTED}, {"scope": Scope.UNCOMMITTED}, "scope unified"),
        ({}, {"scope": Scope.COMMITTED}, "scope unified"),
        ({"inventory": {"where": "s3://i"}}, {}, "inventory"),
        ({}, {"inventory": {"where": "s3://i"}}, "inventory"),
        ({}, {"versions": {"lakegc": "0.0.1"}}, "another version"),
        ({}, {"basis": {**FULL_MARK, "spellings": ["local:///other/lake"]}}, "equivalent spellings"),
        ({}, {"start": NOW + HOUR}, "clocks were set back"),
        ({}, {"server_now": NOW + HOUR}, "clocks were set back"),
        ({}, {"steps": {"expired_set": StepRecord(NOW, NOW)}}, "couldn't read every commit"),
        ({}, {"steps": {"expired_set": StepRecord(NOW, NOW, facts={"unexplained": "x"})}}, "records no reasons for"),
    ],
)
def test_a_mark_is_full_if_an_incremental_one_might_have_a_different_result(mine: Any, of_base: Any, why: str) -> None:
    """The mark records the reason, even if a base was named."""
    for since in ("", "old"):
        basis = basis_of(new(**mine), [record("old", 9, **of_base)], since=since, every=9)
        assert not basis["incremental"]
        assert not basis["chain"]
        assert why in basis["why"]


def test_a_mark_can_be_incremental_if_its_base_was_made_by_the_same_lakegc_version() -> None:
    """The base must come from the same version of lakegc; versions of other packages may differ."""
    mine, of_base = {"lakegc": "1", "pyspark": "5"}, {"lakegc": "1", "pyspark": "4"}
    assert basis_of(new(versions=mine), [record("old", 9, versions=of_base)], every=9)["incremental"]


def test_an_unsigned_mark_is_never_a_base_even_if_it_is_named() -> None:
    """An unsigned mark may be forged, so a full mark is made and gives this reason. If a full mark was requested, no
    other reason is needed."""
    named = basis_of(new(), [record("old", 9), record("forged", 5)], untrusted=["forged"], since="forged", every=9)
    assert named == {**FULL_MARK, "why": "mark forged isn't signed with a known key"}
    only = basis_of(new(), [], untrusted=["a", "b"], every=9)
    assert only == {
        **FULL_MARK, "why": "mark b isn't signed with a known key, and there is no other finished mark"
    }  # fmt: skip
    assert basis_of(new(), [record("old", 9)], untrusted=["forged"], every=9)["chain"] == ["old"]
    requested = basis_of(new(), [record("forged", 9)], untrusted=["forged"], since="forged", full=True, every=9)
    assert requested["why"] == "requested"


def test_a_mark_is_full_if_requested_or_if_it_is_the_first() -> None:
    """The mark records the reason."""
    assert basis_of(new(), [record("old", 9)], full=True, every=9)["why"] == "requested"
    assert basis_of(new(), [], every=9)["why"] == "there is no finished mark"
