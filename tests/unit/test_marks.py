"""The record of a mark: its states, bytes, order of reading and digest, and the repository that owns its namespace."""

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

from lakegc_assets.mark.options import arguments_to_repeat
from spark_resources.errors import DamagedData, LakegcError, NotFound, Refused, WrongUsage
from spark_resources.mark_store.mark import (
    MARKS_ROOT,
    OWNER_KEY,
    UNFINISHED,
    Mark,
    asset_folder,
    claim_namespace,
    folder_ids,
    mark_folder,
    marks,
    reference_folder,
)
from spark_resources.mark_store.record import CHAIN, MarkRecord, StepRecord, check_order, digest_of
from spark_resources.model import ADDRESSES, MarkState, Namespace, Rules, Scope
from spark_resources.spark.datasets import write_rows
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.finished_marks import finished_record

START = datetime(2026, 11, 21, 8, 50, tzinfo=UTC)
KEY = "_lakefs/retention/gc/lakegc/m1/mark.json"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The namespace of a repository, in a folder."""
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def step(minute: int, **changes: Any) -> StepRecord:
    """A step that began at this minute and took half a minute."""
    began = START + timedelta(minutes=minute)
    datasets = {"": {"sha256": f"{minute:064x}", "rows": minute, "bytes": 10 * minute}}
    recorded = StepRecord(began, began + timedelta(seconds=30), minute, datasets, {"rows": minute, "kept": [1, "é"]})
    return replace(recorded, **changes)


def record(**changes: Any) -> MarkRecord:
    """The record of a finished mark, with these changes."""
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


# --- states -----------------------------------------------------------------------------------------------------------

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
    *product((S.MARKING, S.FAILED, S.MARKED, S.APPROVED, S.SWEPT, S.SUPERSEDED), (S.RETIRED,)),
}


@pytest.mark.parametrize(("old", "new"), list(product(MarkState, MarkState)), ids=lambda state: str(state.value))
def test_a_mark_makes_only_the_allowed_state_transitions(place: Place, old: MarkState, new: MarkState) -> None:
    """Any other transition is refused, and nothing is written."""
    mark = begun(place, state=old)
    before = place.store().read(KEY)

    if (old, new) in ALLOWED:
        mark.move_to(new, by="another")

        assert (Mark.open(place, "m1").record.state, mark.record.by) == (new, "another")
    else:
        with pytest.raises(Refused, match=f"is {old}, so it can't become {new}") as refused:
            mark.move_to(new, by="another")

        assert refused.value.invariant == 12
        assert place.store().read(KEY) == before


def test_only_running_and_failed_marks_are_unfinished() -> None:
    assert {MarkState.MARKING, MarkState.FAILED} == UNFINISHED


@pytest.mark.parametrize("state", sorted(set(MarkState) - UNFINISHED))
def test_a_finished_mark_is_never_begun_again(place: Place, state: MarkState) -> None:
    """No step is added to the mark either (invariant 12)."""
    mark = begun(place, state=state)
    before = place.store().read(KEY)

    for again in (lambda: begun(place), lambda: mark.add_step("expired_set", step(1)), mark.check_unfinished):
        with pytest.raises(Refused, match=r"mark m1 of lake (is finished .* a new mark|was retired)") as refused:
            again()
        assert refused.value.invariant == 12
    mark.fail("too late")

    assert before == place.store().read(KEY)


def test_resuming_a_mark_keeps_its_start_cutoff_and_steps(place: Place) -> None:
    """A later cutoff would make more objects old enough to expire."""
    begun(place).add_step(CHAIN[0], step(1))
    Mark.open(place, "m1").fail("the store was away")
    later = {"start": START + timedelta(days=3), "cutoff": START + timedelta(days=2), "server_now": START}

    resumed = begun(place, **later).record

    assert (resumed.start, resumed.cutoff, resumed.server_now) == (record().start, record().cutoff, record().server_now)
    assert (resumed.state, resumed.failure, list(resumed.steps)) == (MarkState.MARKING, None, [CHAIN[0]])
    assert Mark.open(place, "m1").record == resumed


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
def test_a_mark_is_resumed_only_with_the_options_that_it_was_begun_with(place: Place, name: str, value: Any) -> None:
    """Other options are wrong usage, and the mark's record stays unchanged."""
    begun(place)
    before = place.store().read(KEY)

    with pytest.raises(
        WrongUsage, match=f"mark m1 of lake was started with a different {name.replace('_', ' ')}"
    ) as caught:
        begun(place, **{name: value})
    if name == "min_age":
        assert "now 0 seconds)" in str(caught.value)

    assert place.store().read(KEY) == before


def test_the_first_failure_of_a_mark_stays_in_its_record(place: Place) -> None:
    """Later failures are consequences, and don't replace the cause."""
    mark = begun(place)

    mark.fail("the range is damaged")
    mark.fail("something that followed from it")

    stored = Mark.open(place, "m1").record
    assert (stored.state, stored.failure) == (MarkState.FAILED, "the range is damaged")


def test_a_record_that_another_process_changed_is_not_overwritten(place: Place) -> None:
    mine, another = begun(place), Mark.open(place, "m1")
    another.add_step(CHAIN[0], step(1))

    with pytest.raises(Refused, match="changed by another process") as refused:
        mine.add_step(CHAIN[0], step(2))

    assert refused.value.invariant == 12
    assert Mark.open(place, "m1").record == another.record


def test_a_repeated_write_whose_response_was_lost_is_recognized(place: Place) -> None:
    """The first write succeeded, and the mark recognizes it as its own."""
    first = begun(place)
    again = Mark.open(place, "m1")
    first.add_step(CHAIN[0], step(1))

    again.add_step(CHAIN[0], step(1))
    again.fail("and its tag is the present one")

    assert Mark.open(place, "m1").record.failure == "and its tag is the present one"


def test_steps_are_numbered_in_the_order_in_which_they_are_recorded(place: Place) -> None:
    """A repeated step counts as the last, whatever the times of the steps are."""
    mark = begun(place)
    for name in (CHAIN[0], CHAIN[1], CHAIN[0]):
        mark.add_step(name, step(1, number=0))

    assert {name: recorded.number for name, recorded in Mark.open(place, "m1").record.steps.items()} == {
        CHAIN[0]: 3,
        CHAIN[1]: 2,
    }


# --- its folders ------------------------------------------------------------------------------------------------------


def test_the_folders_of_a_mark_follow_from_its_id() -> None:
    """An id that isn't a single path segment is refused."""
    assert mark_folder("m1") == "_lakefs/retention/gc/lakegc/m1/"
    assert asset_folder("m1", "a") == "_lakefs/retention/gc/lakegc/m1/a/"
    assert asset_folder("m1", "a", "b") == "_lakefs/retention/gc/lakegc/m1/a/b/"
    assert reference_folder("m1") == "_lakefs/retention/gc/unified/m1/"
    for strange in ("", "..", "a/b", "/", ".hidden", "\n", "m1\n", "a b", "-", "é", "x" * 129):
        for folder in (mark_folder, reference_folder):
            with pytest.raises(WrongUsage, match="can't be a mark id"):
                folder(strange)


def test_only_folders_with_a_record_are_marks(place: Place) -> None:
    """The lease, the owner of the namespace and a folder that only has files are not marks."""
    for mark_id in ("m2", "m1", "m10"):
        begun(place, mark_id=mark_id)
    write_rows(place, asset_folder("m3", "expired_set"), [], ADDRESSES)
    claim_namespace(place, "lake", START)

    assert [mark.mark_id for mark in marks(place)] == ["m1", "m10", "m2"]
    assert [Mark.exists(place, mark_id) for mark_id in ("m1", "m3", "m4")] == [True, False, False]
    with pytest.raises(NotFound, match=r"no mark m3 in .*/lake\. 'lakegc status REPO' lists"):
        Mark.open(place, "m3")


def test_listing_the_marks_of_a_namespace_that_has_none_is_not_an_error(place: Place) -> None:
    """A namespace in which no mark has ever been made has an empty list."""
    assert list(marks(place)) == []


# --- its bytes --------------------------------------------------------------------------------------------------------


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
def test_a_record_is_read_back_as_written(changes: dict[str, Any]) -> None:
    """Writing the record again gives the same bytes."""
    whole = record(**changes)

    read_back = MarkRecord.from_json(whole.to_json(), "x")

    assert read_back == whole
    assert read_back.to_json() == whole.to_json()


def test_a_value_that_json_cannot_hold_is_refused_when_it_is_written() -> None:
    """Otherwise, the record could not be read later."""
    with pytest.raises(TypeError, match="can't be stored in a record"):
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
    in_step("facts", {"objects": float("nan")}),
    in_step("facts", {"objects": -float("inf")}),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_raises_an_error(place: Place, damage: Callable[[dict[str, Any]], Any]) -> None:
    """A part of the record is missing, unknown or malformed."""
    plain = damage(json.loads(record().to_json()))
    place.store().write(KEY, json.dumps(plain).encode())

    with pytest.raises(DamagedData):
        Mark.open(place, "m1")
    with pytest.raises(DamagedData):
        list(marks(place))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", record().to_json()[:-1], b"[" * 10])
def test_an_unreadable_record_raises_an_error_and_is_not_overwritten(place: Place, data: bytes) -> None:
    """A mark with an unreadable record doesn't count as missing."""
    place.store().write(KEY, data)

    for use in (lambda: Mark.open(place, "m1"), lambda: begun(place), lambda: list(marks(place))):
        with pytest.raises(DamagedData, match=re.escape(KEY)):
            use()
    assert Mark.exists(place, "m1")
    assert place.store().read(KEY) == data


@pytest.mark.parametrize("other", [0, 3, "2", True, None])
def test_a_record_of_another_format_is_refused_with_advice(place: Place, other: Any) -> None:
    """A later version of lakegc may have written the record. None of its other fields is read."""
    plain = {"format": other, "nothing else": "is known"}
    place.store().write(KEY, json.dumps(plain).encode())

    with pytest.raises(
        DamagedData,
        match=f"{re.escape(KEY)} is of format {other!r}, but this version of lakegc supports 1 and 2. Update lakegc.",
    ):
        Mark.open(place, "m1")


def test_a_record_in_the_folder_of_another_mark_raises_an_error(place: Place) -> None:
    """The folder may have been copied."""
    place.store().write(mark_folder("m2") + "mark.json", record().to_json())

    for use in (lambda: Mark.open(place, "m2"), lambda: list(marks(place))):
        with pytest.raises(DamagedData, match=r"m2/mark.json is the record of another mark, m1"):
            use()


# --- its datasets -----------------------------------------------------------------------------------------------------


def test_a_dataset_that_differs_from_the_recorded_one_is_refused(place: Place) -> None:
    """The record identifies a dataset by the hash of its list of files."""
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
        with pytest.raises(DamagedData, match=f"has no {asset}.*{part}. Materialize it again."):
            mark.dataset(asset, part)


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", CHAIN)
def test_steps_in_the_right_order_are_accepted(before: str) -> None:
    """Steps that come after `before` may already have been done."""
    check_order(record(), before=before)
    check_order(
        record(steps={name: step(number) for number, name in enumerate(CHAIN[: CHAIN.index(before)], 1)}), before=before
    )


@pytest.mark.parametrize("missing", CHAIN[:-1])
def test_a_missing_step_stops_the_later_ones(missing: str) -> None:
    """The error names the step. A missing step doesn't count as an empty one (invariants 2 and 3)."""
    steps = {name: recorded for name, recorded in record().steps.items() if name != missing}

    with pytest.raises(Refused, match=f"{missing} of mark m1 .lake. doesn't exist yet") as refused:
        check_order(record(steps=steps), before="expired_set")

    assert refused.value.invariant == 2


@pytest.mark.parametrize("place_in_chain", range(3))
@pytest.mark.parametrize("how", ["number", "time"])
def test_a_step_that_was_repeated_after_the_next_one_is_refused(place_in_chain: int, how: str) -> None:
    """Both the step numbers and the store's times must follow the order of reading; either alone is enough to
    refuse."""
    earlier, later = CHAIN[place_in_chain], CHAIN[place_in_chain + 1]
    original = record().steps[earlier]
    moved = (
        replace(original, number=record().steps[later].number)
        if how == "number"
        else replace(original, finished=record().steps[later].started + timedelta(microseconds=1))
    )

    with pytest.raises(Refused, match=f"{earlier} of mark m1 .lake. was read after {later}") as refused:
        check_order(record(steps={**record().steps, earlier: moved}), before="expired_set")

    assert refused.value.invariant == 2


def test_a_step_may_begin_at_the_very_time_at_which_the_previous_one_ended() -> None:
    """Clocks may be coarse."""
    steps = {
        name: replace(recorded, started=START, finished=START, number=number)
        for number, (name, recorded) in enumerate(record().steps.items(), 1)
    }

    check_order(record(steps=steps), before="expired_set")


# --- digest -----------------------------------------------------------------------------------------------------------


def with_hash(asset: str, part: str, sha256: str) -> dict[str, StepRecord]:
    """The steps, with another hash for the list of files of one dataset."""
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
def test_a_different_set_has_a_different_digest(what: str) -> None:
    """The digest depends on rows, live ranges, scope, cutoff, rules, namespace and repository (invariant 7), and on the
    numbers that brakes compare."""
    assert digest_of(record()) != digest_of(record(**OTHER_SETS[what]))


def test_sets_that_differ_in_any_one_value_have_different_digests() -> None:
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
def test_the_digest_of_a_set_stays_the_same_when_the_marks_record_is_rewritten(changes: dict[str, Any]) -> None:
    """The approved digest stays the same when the mark changes its state, and when its record is written and read."""
    same = record(**changes)

    assert digest_of(record()) == digest_of(MarkRecord.from_json(same.to_json(), "x"))


# --- whose namespace --------------------------------------------------------------------------------------------------


def test_a_namespace_belongs_to_the_repository_that_claimed_it_first(place: Place) -> None:
    """The owner may claim it again. Any other repository is refused, including a later one of the same name."""
    claim_namespace(place, "lake", START)
    claim_namespace(place, "lake", START.astimezone(timezone(timedelta(hours=5))))
    owner = place.store().read(OWNER_KEY)

    for repository, created in (("pond", START), ("lake", START + timedelta(seconds=1))):
        with pytest.raises(Refused, match=r"belonging to another repository \(lake, created 2026-11-21T08:50") as no:
            claim_namespace(place, repository, created)
        assert no.value.invariant == 5
    assert place.store().read(OWNER_KEY) == owner


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{}", b"\xff", b'{"repository": "lake"}'])
def test_no_repository_can_claim_a_namespace_whose_owner_file_is_unreadable(place: Place, data: bytes) -> None:
    """The owner may be another repository. Its file is left unchanged."""
    place.store().write(OWNER_KEY, data)

    with pytest.raises(Refused, match=r"another repository \(unreadable"):
        claim_namespace(place, "lake", START)

    assert place.store().read(OWNER_KEY) == data


def test_a_folder_whose_name_cannot_be_an_id_is_not_the_folder_of_a_mark(place: Place) -> None:
    """Probes of the store's capabilities have such a folder, and others can write there, too."""
    begun(place)
    for name in (".probe", "a b", "x" * 129):
        place.store().write(f"{MARKS_ROOT}{name}/file", b"")

    assert folder_ids(place.store()) == ["m1"]


def test_a_namespace_that_does_not_exist_raises_an_error(tmp_path: Path) -> None:
    """A missing namespace doesn't count as one without marks."""
    nowhere = Place(Namespace.parse("local://gone"), StoreSettings(local_path=str(tmp_path)))

    for use in (lambda: list(marks(nowhere)), lambda: begun(nowhere), lambda: claim_namespace(nowhere, "a", START)):
        with pytest.raises(LakegcError):
            use()


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({}, ""),
        ({"scope": Scope.COMMITTED}, "--scope committed"),
        ({"min_age": timedelta(hours=36)}, "--min-age 36h"),
        ({"min_age": timedelta(hours=1)}, "--min-age 1h --allow-young"),
        ({"accepted_missing": ("data/s/lost",)}, "--accept-missing FILE"),
    ],
)
def test_the_arguments_for_another_mark_like_this_one_are_those_that_differ_from_the_settings(
    changes: dict[str, Any], arguments: str
) -> None:
    marked, configured = finished_record(**changes), (Scope.UNIFIED, timedelta(hours=24))

    assert " ".join(arguments_to_repeat(marked, configured=configured)) == arguments
    young = " ".join(arguments_to_repeat(marked, min_age=timedelta(0), configured=configured))
    assert "--min-age 0 --allow-young" in young
