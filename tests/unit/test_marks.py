"""A mark's record in a namespace: its states, bytes, order of reading and digest, and whose namespace it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_resources.datasets import Place, write_rows
from spark_resources.errors import DamagedData, LakegcError, NotThere, Refused, WrongUsage
from spark_resources.marks import (
    CHAIN,
    OWNER_KEY,
    UNFINISHED,
    Mark,
    MarkRecord,
    StepRecord,
    asset_folder,
    check_order,
    claim_namespace,
    digest_of,
    mark_folder,
    marks,
    reference_folder,
)
from spark_resources.model import ADDRESSES, MarkState, Namespace, Rules, Scope
from spark_resources.stores.settings import StoreSettings

START = datetime(2026, 11, 21, 8, 50, tzinfo=UTC)
KEY = "_lakefs/retention/gc/lakegc/m1/mark.json"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The namespace of a repository, in a folder."""
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def step(minute: int, **changes: Any) -> StepRecord:
    """The step that began at this minute and took half of it."""
    began = START + timedelta(minutes=minute)
    datasets = {"": {"sha256": f"{minute:064x}", "rows": minute, "bytes": 10 * minute}}
    done = StepRecord(began, began + timedelta(seconds=30), minute, datasets, {"rows": minute, "kept": [1, "é"]})
    return replace(done, **changes)


def record(**changes: Any) -> MarkRecord:
    """The record of a finished mark, unless told otherwise."""
    whole = MarkRecord(
        mark_id="m1",
        state=MarkState.MARKED,
        repository="lake",
        repository_created=START - timedelta(days=100),
        namespace="local://lake",
        scope=Scope.UNIFIED,
        min_age=timedelta(hours=24),
        start=START,
        cutoff=START - timedelta(hours=24),
        server_now=START + timedelta(microseconds=1),
        rules=Rules(21, {"main": 21, "dev": 7}),
        by="someone@somewhere",
        versions={"lakegc": "1"},
        clocks={"store": START.isoformat()},
        accepted_missing=("data/lost", "data/lost, \n too"),
        steps={name: step(number) for number, name in enumerate(CHAIN, 1)},
        finished=START + timedelta(minutes=9),
        digest="d" * 64,
        counts={"expired": 3},
        failure=None,
    )
    return replace(whole, **changes)


UNFINISHED_RECORD: dict[str, Any] = {"state": MarkState.MARKING, "steps": {}, "finished": None, "digest": None}


def begun(place: Place, **changes: Any) -> Mark:
    return Mark.begin(place, record(**{**UNFINISHED_RECORD, **changes}))


# --- states ---------------------------------------------------------------------------------------------------------

S = MarkState
ALLOWED = {
    (S.MARKING, S.MARKED),
    (S.MARKING, S.FAILED),
    (S.FAILED, S.MARKING),
    (S.MARKED, S.APPROVED),
    (S.MARKED, S.SUPERSEDED),
    (S.APPROVED, S.MARKED),
    (S.APPROVED, S.SWEEPING),
    (S.APPROVED, S.SUPERSEDED),
    (S.SWEEPING, S.SWEPT),
    (S.SWEEPING, S.SWEPT_WITH_FAILURES),
    (S.SWEPT_WITH_FAILURES, S.SWEEPING),
}


@pytest.mark.parametrize(("old", "new"), list(product(MarkState, MarkState)), ids=lambda state: str(state.value))
def test_a_mark_skips_a_state(place: Place, old: MarkState, new: MarkState) -> None:
    """A mark goes from state to state as the table says; what isn't in it is refused, and nothing is written."""
    mark = begun(place, state=old)
    before = place.store().read(KEY)

    if (old, new) in ALLOWED:
        mark.move_to(new, by="another")

        assert (Mark.open(place, "m1").record.state, mark.record.by) == (new, "another")
    else:
        with pytest.raises(Refused, match=f"is {old}; it can't become {new}") as refused:
            mark.move_to(new, by="another")

        assert refused.value.invariant == 12
        assert place.store().read(KEY) == before


def test_marking_is_called_finished() -> None:
    """Only a mark at work and one that stopped are unfinished."""
    assert {MarkState.MARKING, MarkState.FAILED} == UNFINISHED


@pytest.mark.parametrize("state", sorted(set(MarkState) - UNFINISHED))
def test_a_finished_mark_is_made_again(place: Place, state: MarkState) -> None:
    """A finished mark is never begun, and no step is added to it (invariant 12)."""
    mark = begun(place, state=state)
    before = place.store().read(KEY)

    for again in (lambda: begun(place), lambda: mark.add_step("expired_set", step(1)), mark.check_unfinished):
        with pytest.raises(Refused, match=r"mark m1 of lake is finished .* a mark id of its own") as refused:
            again()
        assert refused.value.invariant == 12
    mark.fail("too late")

    assert before == place.store().read(KEY)


def test_going_on_with_a_mark_makes_more_objects_old_enough(place: Place) -> None:
    """Who goes on with an unfinished mark keeps its first start, cutoff and steps."""
    begun(place).add_step(CHAIN[0], step(1))
    Mark.open(place, "m1").fail("the store was away")
    later = {"start": START + timedelta(days=3), "cutoff": START + timedelta(days=2), "server_now": START}

    found = begun(place, **later).record

    assert (found.start, found.cutoff, found.server_now) == (record().start, record().cutoff, record().server_now)
    assert (found.state, found.failure, list(found.steps)) == (MarkState.MARKING, None, [CHAIN[0]])
    assert Mark.open(place, "m1").record == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repository", "pond"),
        ("repository_created", START),
        ("namespace", "local://pond"),
        ("scope", Scope.COMMITTED),
        ("min_age", timedelta(0)),
        ("accepted_missing", ()),
    ],
)
def test_a_mark_goes_on_with_other_options(place: Place, name: str, value: Any) -> None:
    """An unfinished mark is gone on with by the options that it was begun with, or not at all."""
    begun(place)
    before = place.store().read(KEY)

    with pytest.raises(WrongUsage, match=f"mark m1 of lake was begun with another {name.replace('_', ' ')}") as caught:
        begun(place, **{name: value})
    if name == "min_age":
        assert "now 0 seconds)" in str(caught.value)

    assert place.store().read(KEY) == before


def test_a_failure_is_forgotten(place: Place) -> None:
    """Why a mark stopped is in its record, and the first reason stays."""
    mark = begun(place)

    mark.fail("the range is damaged")
    mark.fail("something that followed from it")

    found = Mark.open(place, "m1").record
    assert (found.state, found.failure) == (MarkState.FAILED, "the range is damaged")


def test_somebody_elses_change_is_overwritten(place: Place) -> None:
    """A record that another process changed meanwhile is left as it is, and the writer stops."""
    mine, theirs = begun(place), Mark.open(place, "m1")
    theirs.add_step(CHAIN[0], step(1))

    with pytest.raises(Refused, match="changed by somebody else") as refused:
        mine.add_step(CHAIN[0], step(2))

    assert refused.value.invariant == 12
    assert Mark.open(place, "m1").record == theirs.record


def test_a_lost_answer_stops_a_mark(place: Place) -> None:
    """A write that arrived though its answer was lost, and was then repeated, is known to be this mark's own."""
    first = begun(place)
    again = Mark.open(place, "m1")
    first.add_step(CHAIN[0], step(1))

    again.add_step(CHAIN[0], step(1))
    again.fail("and its tag is the present one")

    assert Mark.open(place, "m1").record.failure == "and its tag is the present one"


def test_steps_are_numbered_by_clocks(place: Place) -> None:
    """Steps count up as they are recorded, a repeated one last, whatever their times say."""
    mark = begun(place)
    for name in (CHAIN[0], CHAIN[1], CHAIN[0]):
        mark.add_step(name, step(1, number=0))

    assert {name: found.number for name, found in Mark.open(place, "m1").record.steps.items()} == {
        CHAIN[0]: 3,
        CHAIN[1]: 2,
    }


# --- its folders ----------------------------------------------------------------------------------------------------


def test_folders_of_two_marks_are_one() -> None:
    """A mark's folders lie where design and formats say, and an id that is no path segment has none."""
    assert mark_folder("m1") == "_lakefs/retention/gc/lakegc/m1/"
    assert asset_folder("m1", "a") == "_lakefs/retention/gc/lakegc/m1/a/"
    assert asset_folder("m1", "a", "b") == "_lakefs/retention/gc/lakegc/m1/a/b/"
    assert reference_folder("m1") == "_lakefs/retention/gc/unified/m1/"
    for strange in ("", "..", "a/b", "/", ".hidden", "\n", "a b", "-", "é", "x" * 129):
        for folder in (mark_folder, reference_folder):
            with pytest.raises(WrongUsage, match="can't be a mark id"):
                folder(strange)


def test_a_folder_without_a_record_is_a_mark(place: Place) -> None:
    """Marks are what has a record, by id; the lease, the owner's mark and a folder of files alone are none."""
    for mark_id in ("m2", "m1", "m10"):
        begun(place, mark_id=mark_id)
    write_rows(place, asset_folder("m3", "expired_set"), [], ADDRESSES)
    claim_namespace(place, "lake", START)

    assert [found.mark_id for found in marks(place)] == ["m1", "m10", "m2"]
    assert [Mark.exists(place, mark_id) for mark_id in ("m1", "m3", "m4")] == [True, False, False]
    with pytest.raises(NotThere, match=r"no mark m3 in .*/lake\. 'lakegc status' lists"):
        Mark.open(place, "m3")


def test_a_namespace_without_marks_is_an_error(place: Place) -> None:
    """Where nobody made a mark yet there are none."""
    assert list(marks(place)) == []


# --- its bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        UNFINISHED_RECORD,
        {"rules": None},
        {"rules": Rules(0, {})},
        {"min_age": timedelta(0)},
        {"min_age": timedelta(days=400, seconds=1, milliseconds=500)},
        {"failure": 'expired_set: "é"\n\x1b[31m'},
        {"start": START.astimezone(timezone(timedelta(hours=-11)))},
        {"accepted_missing": ()},
        *({"scope": scope} for scope in Scope),
        *({"state": state} for state in MarkState),
    ],
    ids=str,
)
def test_a_record_is_read_as_another(changes: dict[str, Any]) -> None:
    """A record is read back as it was written, and written the same again."""
    whole = record(**changes)

    found = MarkRecord.from_json(whole.to_json(), "x")

    assert found == whole
    assert found.to_json() == whole.to_json()


def test_something_odd_is_written_into_a_record() -> None:
    """What JSON can't hold is refused when it is written, not found when it is read."""
    with pytest.raises(TypeError, match="does not belong into a record"):
        record(counts={"expired": object()}).to_json()


def changed(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda plain: {**plain, name: value}


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda plain: {key: value for key, value in plain.items() if key != name}


def in_step(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda plain: {**plain, "steps": {**plain["steps"], CHAIN[0]: {**plain["steps"][CHAIN[0]], name: value}}}


DAMAGE = [
    lambda _: [],
    lambda _: None,
    lambda _: "mark",
    *(without(name) for name in json.loads(record().to_json())),
    changed("added", 1),
    changed("state", "done"),
    changed("state", None),
    changed("scope", "all"),
    changed("min_age", "24h"),
    changed("min_age", 1e300),
    changed("min_age", float("nan")),
    changed("start", ""),
    changed("start", 1),
    changed("start", "2026-11-21T08:50:00"),
    changed("cutoff", "yesterday"),
    changed("finished", "0001-01-01T00:00:00+14:00"),
    changed("rules", {}),
    changed("rules", {"default_days": "x", "branch_days": {}}),
    changed("rules", {"default_days": -1, "branch_days": {}}),
    changed("steps", []),
    changed("steps", {"namespace_slices": {}}),
    changed("counts", None),
    changed("accepted_missing", None),
    in_step("started", None),
    in_step("number", "one"),
    in_step("datasets", {"": {"rows": 1}}),
    in_step("datasets", {"": None}),
    in_step("datasets", None),
    in_step("facts", None),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_believed(place: Place, damage: Callable[[dict[str, Any]], Any]) -> None:
    """A record with anything missing, added or of another form is damaged data, and the error names the file."""
    plain = damage(json.loads(record().to_json()))
    place.store().write(KEY, json.dumps(plain).encode())

    with pytest.raises(DamagedData):
        Mark.open(place, "m1")
    with pytest.raises(DamagedData):
        list(marks(place))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", record().to_json()[:-1], b"[" * 10])
def test_a_truncated_record_is_believed(place: Place, data: bytes) -> None:
    """Bytes that are no JSON are damaged data, not a mark that isn't there; they are never written over."""
    place.store().write(KEY, data)

    for use in (lambda: Mark.open(place, "m1"), lambda: begun(place), lambda: list(marks(place))):
        with pytest.raises(DamagedData, match=re.escape(KEY)):
            use()
    assert Mark.exists(place, "m1")
    assert place.store().read(KEY) == data


@pytest.mark.parametrize("other", [0, 2, "1", None])
def test_a_record_of_a_later_lakegc_is_half_understood(place: Place, other: Any) -> None:
    """A record of another format says so, and what to do."""
    plain = {"format": other, "nothing else": "is known"}
    place.store().write(KEY, json.dumps(plain).encode())

    with pytest.raises(DamagedData, match=f"{re.escape(KEY)} is of format {other}; this lakegc knows 1. Update it."):
        Mark.open(place, "m1")


def test_a_copied_folder_is_taken_for_a_mark_of_its_own(place: Place) -> None:
    """A record that lies in the folder of another mark is nobody's."""
    place.store().write(mark_folder("m2") + "mark.json", record().to_json())

    for use in (lambda: Mark.open(place, "m2"), lambda: list(marks(place))):
        with pytest.raises(DamagedData, match=r"m2/mark.json is the record of another mark, m1"):
            use()


# --- its datasets ---------------------------------------------------------------------------------------------------


def test_a_dataset_is_another_than_was_recorded(place: Place) -> None:
    """A step's dataset is the one that its record names, by the hash of its list of files."""
    mark = begun(place)
    schema = pa.schema([("address", pa.string())])
    folder = asset_folder("m1", "a", "part")
    dataset = write_rows(place, folder, [{"address": "data/x"}], schema)
    mark.add_step("a", step(1, datasets={"part": {"sha256": dataset.sha256}}))

    assert mark.dataset("a", "part") == dataset
    write_rows(place, folder, [{"address": "data/y"}], schema)
    with pytest.raises(DamagedData, match="was changed after it was written"):
        mark.dataset("a", "part")
    for asset, part in (("a", ""), ("b", "part")):
        with pytest.raises(DamagedData, match=f"has no {asset} {part}. Materialize it again."):
            mark.dataset(asset, part)


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", CHAIN)
def test_the_right_order_is_refused(before: str) -> None:
    """Steps that were done one after the other are in order, whatever was done behind them before."""
    check_order(record(), before=before)
    check_order(
        record(steps={name: step(number) for number, name in enumerate(CHAIN[: CHAIN.index(before)], 1)}), before=before
    )


@pytest.mark.parametrize("missing", CHAIN[:-1])
def test_a_missing_step_is_an_empty_one(missing: str) -> None:
    """A step that wasn't done stops those behind it, and is named (invariants 2 and 3)."""
    steps = {name: found for name, found in record().steps.items() if name != missing}

    with pytest.raises(Refused, match=f"{missing} of mark m1 .lake. is not there yet") as refused:
        check_order(record(steps=steps), before="expired_set")

    assert refused.value.invariant == 2


@pytest.mark.parametrize("place_in_chain", range(3))
@pytest.mark.parametrize("how", ["number", "time"])
def test_a_step_was_repeated_after_the_next_one(place_in_chain: int, how: str) -> None:
    """What is read first was read first, by the count of steps and by the store's clock: either alone refuses."""
    earlier, later = CHAIN[place_in_chain], CHAIN[place_in_chain + 1]
    done = record().steps[earlier]
    moved = (
        replace(done, number=record().steps[later].number)
        if how == "number"
        else replace(done, finished=record().steps[later].started + timedelta(microseconds=1))
    )

    with pytest.raises(Refused, match=f"{earlier} of mark m1 .lake. was read after {later}") as refused:
        check_order(record(steps={**record().steps, earlier: moved}), before="expired_set")

    assert refused.value.invariant == 2


def test_steps_of_one_moment_are_out_of_order() -> None:
    """A step that begins in the very moment that the one before it ended is in order: clocks may be coarse."""
    steps = {
        name: replace(found, started=START, finished=START, number=number)
        for number, (name, found) in enumerate(record().steps.items(), 1)
    }

    check_order(record(steps=steps), before="expired_set")


# --- digest ---------------------------------------------------------------------------------------------------------


def with_hash(asset: str, part: str, sha256: str) -> dict[str, StepRecord]:
    """The steps, but for one dataset's list of files."""
    steps = dict(record().steps)
    steps[asset] = replace(steps[asset], datasets={**steps[asset].datasets, part: {"sha256": sha256}})
    return steps


OTHER_SETS: dict[str, dict[str, Any]] = {
    "repository": {"repository": "pond"},
    "repository's creation": {"repository_created": START},
    "namespace": {"namespace": "local://lake2"},
    "mark": {"mark_id": "m2"},
    "scope": {"scope": Scope.UNCOMMITTED},
    "cutoff": {"cutoff": START - timedelta(hours=24, microseconds=1)},
    "rules": {"rules": None},
    "default days": {"rules": Rules(20, {"main": 21, "dev": 7})},
    "days of a branch": {"rules": Rules(21, {"main": 21, "dev": 8})},
    "branch of a rule": {"rules": Rules(21, {"main": 21, "deva": 7})},
    **{f"files of {name}": {"steps": with_hash(name, "", "f" * 64)} for name in CHAIN},
    "another part": {"steps": with_hash("expired_set", "deleted", "f" * 64)},
    "counts": {"counts": {"expired": 4}},
    "previous mark": {"previous": {"mark_id": "m0", "counts": {"expired": 3}}},
    "previous mark's counts": {"previous": {"mark_id": "m0", "counts": {"expired": 2}}},
}


@pytest.mark.parametrize("what", OTHER_SETS)
def test_another_set_has_the_approved_digest(what: str) -> None:
    """The digest changes with rows, live ranges, scope, cutoff, rules, namespace and repository (invariant 7), and
    with the numbers that brakes compare.
    """
    assert digest_of(record()) != digest_of(record(**OTHER_SETS[what]))


def test_sets_that_differ_share_a_digest() -> None:
    """No two of them have the same digest either."""
    assert len({digest_of(record(**changes)) for changes in OTHER_SETS.values()}) == len(OTHER_SETS)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": MarkState.APPROVED},
        {"by": "another"},
        {"rules": Rules(21, {"dev": 7, "main": 21})},
        {"steps": dict(reversed(record().steps.items()))},
    ],
)
def test_the_approved_set_has_another_digest(changes: dict[str, Any]) -> None:
    """The digest stays with the set, through its states, and through writing and reading."""
    same = record(**changes)

    assert digest_of(record()) == digest_of(MarkRecord.from_json(same.to_json(), "x"))


# --- whose namespace ------------------------------------------------------------------------------------------------


def test_a_namespace_is_claimed_twice(place: Place) -> None:
    """Its repository claims a namespace as often as it likes; another of that name, or any other, doesn't get it."""
    claim_namespace(place, "lake", START)
    claim_namespace(place, "lake", START.astimezone(timezone(timedelta(hours=5))))
    owner = place.store().read(OWNER_KEY)

    for repository, created in (("pond", START), ("lake", START + timedelta(seconds=1))):
        with pytest.raises(Refused, match=r"belonging to another repository \(lake, created 2026-11-21T08:50") as no:
            claim_namespace(place, repository, created)
        assert no.value.invariant == 5
    assert place.store().read(OWNER_KEY) == owner


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b'{"repository": "lake"}'])
def test_an_unreadable_owner_is_nobody(place: Place, data: bytes) -> None:
    """An owner's mark that can't be read isn't taken for one's own, nor for none."""
    place.store().write(OWNER_KEY, data)

    with pytest.raises(Refused, match=r"another repository \(unreadable"):
        claim_namespace(place, "lake", START)

    assert place.store().read(OWNER_KEY) == data


def test_a_mark_in_a_namespace_that_is_gone_looks_empty(tmp_path: Path) -> None:
    """A namespace that isn't there is an error, not one without marks."""
    nowhere = Place(Namespace.parse("local://gone"), StoreSettings(local_path=str(tmp_path)))

    for use in (lambda: list(marks(nowhere)), lambda: begun(nowhere), lambda: claim_namespace(nowhere, "a", START)):
        with pytest.raises(LakegcError):
            use()
