"""The brakes (invariant 9): what trips each, what doesn't, and with which mark a mark is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.rules.brakes import (
    BRAKES,
    GIB,
    Brake,
    BrakeLimits,
    brakes,
    effective_time,
    released_repositories,
    unread_repositories_in,
)
from spark_resources.errors import DamagedData, WrongUsage
from spark_resources.mark_store.mark import MARKS_ROOT, Mark, previous_mark
from spark_resources.mark_store.record import StepRecord
from spark_resources.model import MarkState, Namespace, Scope
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.finished_marks import COUNTS, START, finished_record

LIMITS = BrakeLimits.of(Settings())
SOON = START + timedelta(minutes=10)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The namespace of a repository, in a folder."""
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def previous(**counts: int) -> dict[str, Any]:
    """The part of a mark's record about the previous mark."""
    return {"mark_id": "m0", "counts": {**COUNTS, **counts}, "unreadable": []}


def evaluated(
    now: datetime = SOON, limits: BrakeLimits = LIMITS, before: Mapping[str, Any] | None = None, **counts: int
) -> dict[str, Brake]:
    record = finished_record(counts={**COUNTS, **counts}, previous=previous() if before is None else before)
    return {brake.name: brake for brake in brakes(record, limits, now=now)}


def first(**counts: int) -> dict[str, Brake]:
    """The brakes of a repository's first mark."""
    record = finished_record(counts={**COUNTS, **counts})
    return {brake.name: brake for brake in brakes(record, LIMITS, now=SOON)}


def tripped(brakes_found: Mapping[str, Brake]) -> set[str]:
    return {name for name, brake in brakes_found.items() if brake.tripped}


def test_an_ordinary_mark_trips_no_brake() -> None:
    """The mark resembles the one before it. Every brake is still listed, in order and with a sentence."""
    assert tripped(evaluated()) == tripped(first()) == set()
    assert tuple(evaluated()) == BRAKES
    assert all(brake.why for brake in (*evaluated().values(), *first().values()))


TRIPS: dict[str, dict[str, Any]] = {
    "share": {"expired": 30_001, "before": previous(expired=29_000)},
    "share of bytes": {"expired_bytes": 300_001, "before": previous(expired_bytes=300_000)},
    "bytes": {
        "expired_bytes": 102_400 * GIB + 1,
        "candidate_bytes": 10**15,
        "before": previous(expired_bytes=102_400 * GIB),
    },
    "count": {
        "expired": 50_000_001,
        "candidates": 10**9,
        "live": 10**8,
        "before": previous(expired=50_000_000, candidates=10**9, live=10**8),
    },
    "jump": {"before": previous(expired=3_333)},
    "jump of bytes": {"before": previous(expired_bytes=33_333)},
    "jump of the least": {"expired": 1_000, "before": previous(expired=333)},
    "jump from nothing": {"before": previous(expired=0)},
    "live": {"before": previous(live=160_001)},
    "live of nothing": {"live": 0},
    "listing": {"before": previous(candidates=210_001)},
    "age": {"now": START + timedelta(days=7, minutes=9, seconds=1)},
}
AT_THE_BOUND: dict[str, dict[str, Any]] = {
    "share": {"expired": 30_000, "before": previous(expired=29_000)},
    "share of bytes": {"expired_bytes": 300_000, "before": previous(expired_bytes=300_000)},
    "bytes": {**TRIPS["bytes"], "expired_bytes": 102_400 * GIB},
    "count": {**TRIPS["count"], "expired": 50_000_000},
    "jump": {"before": previous(expired=3_334)},
    "jump to exactly three times": {"expired": 9_999, "before": previous(expired=3_333)},
    "jump of few": {"expired": 999, "before": previous(expired=1)},
    "live": {"before": previous(live=160_000)},
    "listing": {"before": previous(candidates=210_000)},
    "listing after a sweep": {"before": previous(candidates=1_000_000, expired=900_000)},
    "age": {"now": START + timedelta(days=7, minutes=9)},
}


@pytest.mark.parametrize("what", TRIPS)
def test_a_brake_trips_just_beyond_its_limit(what: str) -> None:
    """No other brake trips. The message states the measured value and the bound."""
    name = what.split(maxsplit=1)[0]
    brake = evaluated(**TRIPS[what])[name]

    assert tripped(evaluated(**TRIPS[what])) == {name}
    assert brake.measured is not None
    assert brake.why


@pytest.mark.parametrize("what", AT_THE_BOUND)
def test_no_brake_trips_at_its_limit(what: str) -> None:
    assert tripped(evaluated(**AT_THE_BOUND[what])) == set()


def test_a_first_mark_may_expire_up_to_half_of_the_candidates() -> None:
    """A first mark has no earlier mark to be compared with. Even then, an empty live set trips a brake."""
    assert tripped(first(expired=50_000)) == set()
    assert tripped(first(expired=50_001)) == {"share"}
    assert tripped(first(live=0)) == {"live"}
    assert [first()[name].measured for name in ("jump", "listing", "live")] == [None, None, None]


def test_an_empty_repository_trips_no_brake() -> None:
    """If nothing is stored, no brake trips; if nothing expires, the share is 0."""
    assert tripped(first(candidates=0, candidate_bytes=0, expired=0, expired_bytes=0, live=0)) == set()
    assert evaluated(expired=0, expired_bytes=0)["share"].measured == 0


def test_a_comparison_with_zero_objects_says_that_there_were_none() -> None:
    """`10,000 times as much as (0 objects)` and `100% of 0` would mean nothing to an operator."""
    before = evaluated(before=previous(expired=0, expired_bytes=0, live=0, candidates=0))

    assert before["jump"].why.startswith("10,000 objects expired, and none in mark")
    assert "there were none in mark" in before["live"].why
    assert "would leave none" in before["listing"].why
    assert "1 object expired" in evaluated(expired=1, expired_bytes=1)["count"].why


ALLOWED_JUMP = "for 1,000 objects or more, at most 3 times the previous count is expected"
SENTENCES: dict[str, tuple[str, bool, float | None, float, dict[str, Any] | None]] = {  # None: a first mark
    "12.3% of all objects and 34.6% of all bytes are expired; the limit is 30%": (
        "share", True, 0.345678, 0.3, {"expired": 12_345, "expired_bytes": 345_678}
    ),
    "10.0% of all objects and 10.0% of all bytes are expired; the limit for the first mark of a repository is "
    "50%": ("share", False, 0.1, 0.5, None),
    "97.7 KiB expired; at most 102,400 GiB is allowed": ("bytes", False, 100_000 / GIB, 102_400, {}),
    "10,000 objects expired; at most 50,000,000 are allowed": ("count", False, 10_000, 50_000_000, {}),
    f"12,345 objects expired, 1.2 times as many objects or bytes as in mark m0 (10,000 objects); {ALLOWED_JUMP}": (
        "jump", False, 1.2345, 3, {"expired": 12_345}
    ),
    f"10,000 objects expired, and none in mark m0; {ALLOWED_JUMP}": (
        "jump", True, 10_000, 3, {"before": previous(expired=0)}
    ),
    "there are 60,000 live addresses, 75.0% of the 80,000 in mark m0; the minimum is 50%": (
        "live", False, 0.75, 0.5, {"live": 60_000}
    ),
    "there is 1 live address, 0.0% of the 80,000 in mark m0; the minimum is 50%": (
        "live", True, 1 / 80_000, 0.5, {"live": 1}
    ),
    "there are 80,000 live addresses, and there were none in mark m0; the minimum is 50%": (
        "live", False, 1, 0.5, {"before": previous(live=0)}
    ),
    "nothing in this repository is live: every object looks like garbage": ("live", True, 0, 0.5, {"live": 0}),
    "there are 45,000 listed objects, 50.0% of the 90,000 that a sweep of mark m0 would leave; the minimum is "
    "50%": (
        "listing", False, 0.5, 0.5, {"candidates": 45_000}
    ),
    "there is 1 listed object, 0.0% of the 90,000 that a sweep of mark m0 would leave; the minimum is 50%": (
        "listing", True, 1 / 90_000, 0.5, {"candidates": 1}
    ),
    "every other repository that may refer to objects of the marked repository was read": ("others", False, 0, 0, {}),
    "the mark is 0.0 days old at 2026-11-21 09:00 UTC; at most 7 are allowed": ("age", False, 1 / 1440, 7, {}),
}  # fmt: skip


@pytest.mark.parametrize("why", SENTENCES)
def test_each_brake_says_what_was_measured_and_what_is_allowed(why: str) -> None:
    """People decide by these sentences and figures whether to approve a mark."""
    name, trips, measured, bound, counts = SENTENCES[why]
    brake = (first() if counts is None else evaluated(**counts))[name]

    assert brake == Brake(name, trips, pytest.approx(measured), bound, why)
    assert brake.tripped is trips


@pytest.mark.parametrize(("name", "bound"), [("jump", 3), ("live", 0.5), ("listing", 0.5)])
def test_a_brake_that_cannot_compare_says_whether_earlier_marks_are_missing_or_unreadable(
    name: str, bound: float
) -> None:
    """A first mark has no earlier mark. An earlier mark that exists but can't be read trips the brake."""
    unread = evaluated(before={"unreadable": ["m0", "m-1"]})[name]

    assert unread == Brake(
        name, True, None, bound, "this mark can't be compared with earlier ones: m0, m-1 can't be read"
    )
    why = "this is the first mark of the repository: nothing to compare with"
    assert first()[name] == Brake(name, False, None, bound, why)
    assert first()[name].tripped is False


def test_expired_objects_despite_an_empty_listing_count_as_a_share_of_100_percent() -> None:
    """Counts that contradict each other trip the brake instead of hiding what is expired."""
    assert first(candidates=0, candidate_bytes=0, expired=1, expired_bytes=0)["share"].measured == 1


def test_the_age_of_a_mark_from_an_inventory_is_counted_from_the_inventorys_time() -> None:
    """The objects are as old as the inventory says, whenever the mark was finished."""
    record = finished_record(inventory={"where": "s3://inventory"})
    late = START + timedelta(days=7, seconds=1)

    assert effective_time(finished_record()) == START + timedelta(minutes=9)
    assert effective_time(record) == START
    assert effective_time(finished_record(finished=None)) == START
    assert "age" in tripped({brake.name: brake for brake in brakes(record, LIMITS, now=late)})
    assert "age" not in tripped({brake.name: brake for brake in brakes(finished_record(), LIMITS, now=late)})


def test_unreadable_earlier_marks_trip_every_comparison() -> None:
    """The bound of a first mark, which allows more, isn't used when an earlier mark exists and can't be read."""
    unreadable = evaluated(before={"unreadable": ["m0"]}, expired=30_001)

    assert tripped(unreadable) == {"share", "jump", "live", "listing"}
    assert "m0" in unreadable["jump"].why


def test_every_limit_can_be_configured() -> None:
    """A setting replaces the default of its own bound, and of no other."""
    configured = {
        "share": 0.01, "gib": 0.00001, "count": 9_999, "jump": 0.5, "live": 1.0, "listing": 1.0, "age": timedelta(0)
    }  # fmt: skip
    strict = BrakeLimits.of(Settings(**{f"brake_{name}": value for name, value in configured.items()}))

    assert strict == replace(LIMITS, **configured)
    assert tripped(evaluated(limits=strict, before=previous(live=80_001, candidates=110_001))) == set(BRAKES) - {
        "others"
    }


@pytest.mark.parametrize(
    "unread",
    [{}, {"lost": "not with these permissions"}, {"*": "can't be listed"}, {"lost": "gone", "other": "damaged"}],
)
def test_each_unreadable_repository_trips_its_own_brake(unread: dict[str, str]) -> None:
    """A repository that couldn't be read may refer to expired objects, so an approval has to name each of them."""
    step = StepRecord(START, START, 4, facts={"elsewhere": {"unread": unread}})
    record = finished_record(steps={"committed_addresses": step})
    by_name = {brake.name: brake for brake in brakes(record, LIMITS, now=SOON) if brake.name.startswith("others")}

    assert {name for name, brake in by_name.items() if brake.tripped} == {f"others/{name}" for name in unread}
    assert all(why in by_name[f"others/{name}"].why for name, why in unread.items())
    assert unread or not by_name["others"].tripped


def test_each_repository_that_some_step_could_not_read_is_released_separately() -> None:
    """Each step may find another repository that it can't read. If a repository were released without being named, the
    objects that it refers to would be deleted. Releases of repositories that the mark could read are ignored."""
    steps = {
        "retained_commits": StepRecord(START, START, 3, facts={"elsewhere": {"unread": {"no reading": "x"}}}),
        "committed_addresses": StepRecord(START, START, 4, facts={"elsewhere": {"unread": {"lost": "gone"}}}),
        "expired_set": StepRecord(START, START, 5, facts={"elsewhere": {"unread": {"late": "damaged", "*": "hidden"}}}),
    }
    record = finished_record(steps=steps)
    named = {brake.name: brake.why for brake in brakes(record, LIMITS, now=SOON) if brake.name.startswith("others")}

    assert unread_repositories_in(record) == {"lost": "gone", "late": "damaged", "*": "hidden"}
    assert (
        unread_repositories_in(
            finished_record(steps={"expired_set": StepRecord(START, START, 5, facts={"elsewhere": {}})})
        )
        == {}
    )
    assert unread_repositories_in(finished_record(steps={"expired_set": StepRecord(START, START, 5)})) == {}
    assert named == {
        "others/*": "other repositories may refer to objects of the marked repository and could not be read: hidden",
        "others/late": "repository late may refer to objects of the marked repository and could not be read: damaged",
        "others/lost": "repository lost may refer to objects of the marked repository and could not be read: gone",
    }
    reasons = {"others/late": "it is empty", "others/read": "never mind", "lost": "not its name", "age": "fine"}
    assert released_repositories(record, reasons) == {"late": "it is empty"}
    assert released_repositories(record, dict.fromkeys(named, "agreed")) == dict.fromkeys(
        ("lost", "late", "*"), "agreed"
    )
    measured = [brake for brake in brakes(record, LIMITS, now=SOON) if brake.name in named]
    assert [(brake.measured, brake.bound, brake.tripped) for brake in measured] == [(1, 0, True)] * 3


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("SHARE", "30", "from 0 to 1"),
        ("FIRST_SHARE", "-0.1", "from 0 to 1"),
        ("LIVE", "nan", "from 0 to 1"),
        ("LISTING", "half", "from 0 to 1"),
        ("GIB", "inf", "a number"),
        ("JUMP", "-1", "a number"),
        ("COUNT", "1.5", "a whole number"),
        ("AGE", "7", "a duration such as 7d"),
    ],
)
def test_an_impossible_limit_is_refused_with_the_name_of_its_environment_variable(
    tmp_path: Path, name: str, value: str, expected: str
) -> None:
    """A share of 30, for example, was meant as a percentage."""
    with pytest.raises(WrongUsage, match=f"LAKEGC_BRAKE_{name}.*{expected}"):
        Settings.load({f"LAKEGC_BRAKE_{name}": value}, tmp_path)


def test_an_unfinished_mark_or_a_missing_count_raises_an_error() -> None:
    """A count that is missing from the mark or from the previous mark is never read as zero."""
    with pytest.raises(WrongUsage, match="not finished"):
        brakes(finished_record(finished=None, state=MarkState.MARKING), LIMITS, now=SOON)
    for name in COUNTS:
        short = {count: value for count, value in COUNTS.items() if count != name}
        with pytest.raises(DamagedData, match=name):
            brakes(finished_record(counts=short), LIMITS, now=SOON)
        with pytest.raises(DamagedData, match=name):
            brakes(finished_record(previous={"mark_id": "m0", "counts": short}), LIMITS, now=SOON)


# --- which mark a mark is compared with -------------------------------------------------------------------------------


def test_a_mark_is_compared_with_the_newest_earlier_mark_of_its_scope(place: Place) -> None:
    """The earlier mark must be finished and must belong to this repository, not to an earlier one of the same name."""
    day = timedelta(days=1)
    for mark_id, changes in {
        "oldest": {"start": START - 5 * day},
        "newest": {"start": START - 2 * day, "counts": {**COUNTS, "expired": 7}, "state": MarkState.SWEPT},
        "later": {"start": START + day},
        "unfinished": {"start": START - day, "finished": None, "state": MarkState.FAILED},
        "scope": {"start": START - day, "scope": Scope.UNCOMMITTED},
        "again": {"start": START - day, "repository_created": START - 3 * day},
        "of-another": {"start": START - day, "repository": "pond"},
    }.items():
        created: dict[str, Any] = {"repository_created": START - 100 * day}
        Mark.begin(place, finished_record(mark_id, **{**created, **changes}))
    place.store().write(f"{MARKS_ROOT}no-record/x.parquet", b"")
    place.store().write(f"{MARKS_ROOT}_probes/x", b"")

    assert previous_mark(place, finished_record()) == {
        "mark_id": "newest", "counts": {**COUNTS, "expired": 7}, "unreadable": []
    }  # fmt: skip


def test_an_unreadable_earlier_mark_is_reported(place: Place) -> None:
    """Without an earlier mark there is nothing to compare with; one that can't be read is not treated as absent."""
    assert previous_mark(place, finished_record()) is None

    place.store().write(f"{MARKS_ROOT}m0/mark.json", b"{")

    assert previous_mark(place, finished_record()) == {"unreadable": ["m0"]}
