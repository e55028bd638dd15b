"""A fleet's marks share what tables contain, in signed notes. A note that isn't valid never makes an object expire."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.mark import table_notes
from lakegc_assets.mark.table_notes import MERGED_PART, NOTES_PART
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import NotFound
from spark_resources.lakefs.ranges import table_ids
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import CHAIN
from spark_resources.mark_store.table_notes import (
    TABLE_NOTES_FORMAT,
    TABLE_NOTES_KEY,
    read_table_notes,
    write_table_notes,
)
from spark_resources.model import TABLE_NOTES, AddressType
from spark_resources.spark.datasets import LIST_NAME, Dataset, all_rows, write_table
from spark_resources.stores.place import Place
from tests.support.mark_runs import ANY_AGE, Marked, Marker, Sweeper, on_executors, target_of

KEY = "4b" * 32
MAX_DATASETS = 2  # fewer than by default, so that a few marks are enough


class Fleet:
    """Three repositories. `other` imports one object of `lake`, in the history of a branch; nothing refers to another
    object of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.settings = sandbox, {**sandbox.settings, "signing_key": KEY}
        self.lake, self.other, self.third = (sandbox.create(name) for name in ("lake", "other", "third"))
        for repository in (self.lake, self.other, self.third):
            repository.put("main", "kept", b"of " + repository.id.encode())
            repository.commit("main", "kept")
        imported = self.lake.put("main", "imported", b"served elsewhere")
        self.garbage = self.lake.put("main", "garbage", b"...").address
        self.lake.delete("main", ["imported", "garbage"])
        self.imported = imported.address
        there = replace(imported, address=f"local://lake/{imported.address}", address_type=AddressType.FULL)
        self.other.stage("main", [there])
        [self.imports] = self.other.committed.ranges(self.other.commit("main", "imports").metarange_id)
        self.other.delete("main", ["imported"])  # objects at a head are probed anyway, and kept
        self.other.commit("main", "only history has it")

    def place(self, repository: str) -> Place:
        return target_of(self.settings, repository).place

    def mark(self, repository: str, mark_id: str = "m1") -> Marked:
        return Marker().mark(self.settings, repository, mark_id, ANY_AGE)

    def tables(self, repository: str) -> set[str]:
        return set(table_ids(self.place(repository)))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Sandbox(tmp_path / "sandbox") as sandbox:
        yield Fleet(sandbox)


def elsewhere(marked: Marked) -> dict[str, Any]:
    facts: dict[str, Any] = marked.facts("committed_addresses")["elsewhere"]
    return facts


def commit(repository: SandboxRepository, path: str) -> None:
    repository.put("main", path, path.encode())
    repository.commit("main", path)


def add_object(repository: SandboxRepository, path: str) -> str:
    """Commit a new object. Returns the id of the commit's metarange."""
    repository.put("main", path, path.encode())
    return repository.commit("main", path).metarange_id


def test_a_table_that_a_mark_of_the_fleet_has_read_is_not_read_again_for_another_repository(fleet: Fleet) -> None:
    """The exception is a table that imports an object: it is read again for the repository that has the object."""
    third = elsewhere(fleet.mark("third"))
    noted = fleet.tables("lake") | fleet.tables("other")
    own_tables = fleet.tables("third")
    lake = fleet.mark("lake")
    other = elsewhere(fleet.mark("other"))

    assert third["tables_read"] == third["tables"] == len(noted)
    assert lake.expired == {fleet.garbage}
    assert elsewhere(lake)["tables_read"] == len((own_tables - noted) | {fleet.imports.id})
    assert other["tables_read"] == len(fleet.tables("lake") - noted - own_tables)  # a dump, which its mark asked for
    assert other["tables_noted"] == other["tables"] - other["tables_read"]


def test_without_a_signing_key_each_mark_reads_every_table_itself(fleet: Fleet) -> None:
    del fleet.settings["signing_key"]
    for repository in ("third", "lake", "other"):
        facts = elsewhere(fleet.mark(repository))
        assert (facts["tables_read"], facts["tables_noted"]) == (facts["tables"], 0)
        with pytest.raises(NotFound):
            fleet.place(repository).store().stat(TABLE_NOTES_KEY)


def test_new_tables_are_read_even_if_older_ones_have_notes(fleet: Fleet) -> None:
    fleet.mark("third")
    before = fleet.tables("other")
    add_object(fleet.other, "new")
    new = fleet.tables("other") - before

    lake = elsewhere(fleet.mark("lake"))

    assert new
    assert lake["tables_read"] == len(fleet.tables("third") | new | {fleet.imports.id})


def noted_in(place: Place) -> set[str]:
    return {row["table_id"] for dataset in read_table_notes(place) for row in all_rows(place, dataset, TABLE_NOTES)}


# --- notes that don't count -----------------------------------------------------------------------------------------


def claim_nothing(fleet: Fleet, place: Place, folder: str) -> Dataset:
    """Write notes which say that no table of the other repository refers to any namespace or has any object."""
    rows = [{"table_id": table_id, "folders": [], "sizes": []} for table_id in sorted(fleet.tables("other"))]
    return write_table(place, folder, pa.Table.from_pylist(rows, schema=TABLE_NOTES))


def forged_dataset(fleet: Fleet) -> None:
    """The record stays as it was; the dataset and its list of files are replaced."""
    place = fleet.place("third")
    [dataset] = read_table_notes(place)
    claim_nothing(fleet, place, dataset.folder)


def unsigned_record(fleet: Fleet) -> None:
    place = replace(fleet.place("third"), seal=None)
    write_table_notes(place, [claim_nothing(fleet, place, "_lakefs/retention/gc/lakegc/m1/forged/")])


def record_signed_with_another_key(fleet: Fleet) -> None:
    place = target_of({**fleet.settings, "signing_key": "c3" * 32}, "third").place
    write_table_notes(place, [claim_nothing(fleet, place, "_lakefs/retention/gc/lakegc/m1/forged/")])


def record_signed_for_another_repository(fleet: Fleet) -> None:
    """A record that was signed for the namespace of `other`, copied with its dataset."""
    place, folder = fleet.place("other"), "_lakefs/retention/gc/lakegc/m1/forged/"
    write_table_notes(place, [claim_nothing(fleet, place, folder)])
    claim_nothing(fleet, fleet.place("third"), folder)
    fleet.place("third").store().write(TABLE_NOTES_KEY, place.store().read(TABLE_NOTES_KEY))
    place.store().delete_many([TABLE_NOTES_KEY])


def record_of_another_format(fleet: Fleet) -> None:
    place = fleet.place("third")
    dataset = claim_nothing(fleet, place, "_lakefs/retention/gc/lakegc/m1/later/")
    record = {"format": TABLE_NOTES_FORMAT + 1, "datasets": [dataset.name_for_record()]}
    place.records().write(TABLE_NOTES_KEY, json.dumps(record).encode())


def missing_dataset(fleet: Fleet) -> None:
    place = fleet.place("third")
    for dataset in read_table_notes(place):
        place.store().delete_many([dataset.folder + file.name for file in dataset.files])


def missing_list_of_files(fleet: Fleet) -> None:
    place = fleet.place("third")
    place.store().delete_many([dataset.folder + LIST_NAME for dataset in read_table_notes(place)])


def altered_signature(fleet: Fleet, **fields: str) -> None:
    store = fleet.place("third").store()
    record = json.loads(store.read(TABLE_NOTES_KEY))
    store.write(TABLE_NOTES_KEY, json.dumps({**record, "signed": {**record["signed"], **fields}}).encode())


def signature_that_is_not_ascii(fleet: Fleet) -> None:
    altered_signature(fleet, hmac="é")


def signature_with_an_impossible_time(fleet: Fleet) -> None:
    altered_signature(fleet, written="0001-01-01T00:00:00+23:59")


def deeply_nested_record(fleet: Fleet) -> None:
    store = fleet.place("third").store()
    signature = json.loads(store.read(TABLE_NOTES_KEY))["signed"]
    record = f'{{"record": {"[" * 1200}{"]" * 1200}, "signed": {json.dumps(signature)}}}'
    store.write(TABLE_NOTES_KEY, record.encode())


def unreadable_record(fleet: Fleet) -> None:
    fleet.place("third").records().write(TABLE_NOTES_KEY, b'{"datasets": "none"}')


INVALID: list[Callable[[Fleet], None]] = [
    forged_dataset, unsigned_record, record_signed_with_another_key, record_signed_for_another_repository,
    record_of_another_format, missing_dataset, missing_list_of_files, unreadable_record,
    signature_that_is_not_ascii, signature_with_an_impossible_time, deeply_nested_record,
]  # fmt: skip


def test_a_table_without_a_valid_note_is_read_and_the_objects_to_which_it_refers_are_kept(
    fleet: Fleet, tmp_path: Path
) -> None:
    """A mark reads every table itself and its sweep deletes only garbage, in whatever way the notes are invalid."""
    fleet.mark("third")
    notes, valid = fleet.third.objects.file("_lakefs/retention/gc"), tmp_path / "valid"
    shutil.copytree(notes, valid)
    expired, from_notes = dict[str, set[str]](), dict[str, int]()
    for invalidate in INVALID:
        shutil.rmtree(notes)
        shutil.copytree(valid, notes)
        shutil.rmtree(fleet.lake.objects.file("_lakefs/retention/gc/lakegc/m1"), ignore_errors=True)  # its own notes
        invalidate(fleet)
        lake = fleet.mark("lake")
        expired[invalidate.__name__], facts = lake.expired, elsewhere(lake)
        from_notes[invalidate.__name__] = facts["tables_noted"] + facts["tables"] - facts["tables_read"]

    assert expired == {invalidate.__name__: {fleet.garbage} for invalidate in INVALID}
    assert from_notes == {invalidate.__name__: 0 for invalidate in INVALID}
    Sweeper().approve(fleet.settings, "lake", "m1")
    assert Sweeper().sweep(fleet.settings, "lake", "m1", SweepOptions()).objects == {"deleted": 1}
    assert fleet.lake.objects.file(fleet.imported).exists()


def test_a_forged_note_counts_only_if_it_is_signed_with_the_key(fleet: Fleet) -> None:
    """Signed with the key, a forged note causes a loss, as those in the tests above would if they counted."""
    fleet.mark("third")
    place = fleet.place("third")
    write_table_notes(place, [claim_nothing(fleet, place, "_lakefs/retention/gc/lakegc/m1/claimed/")])
    assert fleet.mark("lake").expired == {fleet.garbage, fleet.imported}


# --- sizes, for path probes -----------------------------------------------------------------------------------------


def test_a_range_at_a_head_is_not_read_for_path_probes_if_no_object_in_it_has_the_size_of_a_candidate(
    fleet: Fleet,
) -> None:
    first = fleet.mark("lake")
    assert first.facts("expired_set")["ranges_of_other_heads"] == 0  # noted by this very mark
    alike = fleet.third.put("main", "alike", b"...")
    fleet.third.commit("main", "an object with the size of the garbage")
    assert alike.size == len(b"...")

    second = fleet.mark("lake", "m2")

    assert second.facts("expired_set")["ranges_of_other_heads"] == 1
    assert second.facts("expired_set")["probes"] == first.facts("expired_set")["probes"] + 1


# --- many notes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _few_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_notes, "MAX_DATASETS", MAX_DATASETS)


@pytest.mark.usefixtures("_few_datasets")
def test_many_datasets_of_notes_are_merged_into_one(fleet: Fleet) -> None:
    for number in range(MAX_DATASETS + 1):
        add_object(fleet.other, f"new {number}")
        fleet.mark("third", f"m{number}")

    [merged] = read_table_notes(fleet.place("third"))

    assert merged.rows == len(fleet.tables("lake") | fleet.tables("other"))
    record = Mark.open(fleet.place("third"), f"m{MAX_DATASETS}").record
    assert {NOTES_PART, MERGED_PART} < record.step("committed_addresses").datasets.keys()
    assert elsewhere(fleet.mark("lake"))["tables_read"] == len(fleet.tables("third")) + 1


@pytest.mark.usefixtures("_few_datasets")
def test_unreadable_notes_are_left_out_when_notes_are_merged(fleet: Fleet) -> None:
    fleet.mark("third", "m0")
    place, before = fleet.place("third"), fleet.tables("lake") | fleet.tables("other")
    [lost] = read_table_notes(place)
    place.store().delete_many([lost.folder + file.name for file in lost.files])  # but not the list of files
    for number in range(1, MAX_DATASETS + 1):
        add_object(fleet.other, f"new {number}")
        fleet.mark("third", f"m{number}")

    [merged] = read_table_notes(place)

    assert noted_in(place) == (fleet.tables("lake") | fleet.tables("other")) - before
    assert merged.rows == len(noted_in(place))


@pytest.mark.usefixtures("_few_datasets")
def test_each_table_is_noted_once_in_merged_notes_and_removed_tables_are_left_out(fleet: Fleet) -> None:
    """The marks of `lake` read a table that refers to it every time, so they also write a note on it every time."""
    removed = add_object(fleet.third, "old")
    for number in range(MAX_DATASETS + 1):
        add_object(fleet.third, f"new {number}")
        if number == MAX_DATASETS:
            fleet.third.objects.file(f"_lakefs/{removed}").unlink()
        fleet.mark("lake", f"m{number}")

    [merged] = read_table_notes(fleet.place("lake"))

    assert merged.rows == len(noted_in(fleet.place("lake")))
    assert noted_in(fleet.place("lake")) == fleet.tables("other") | fleet.tables("third")
    assert removed not in noted_in(fleet.place("lake"))


@pytest.mark.usefixtures("_few_datasets")
def test_a_resumed_mark_writes_its_notes_again(fleet: Fleet) -> None:
    """The first attempt had already merged notes into the mark's folder."""
    for number in range(MAX_DATASETS):
        add_object(fleet.other, f"new {number}")
        fleet.mark("third", f"m{number}")
    add_object(fleet.other, "one more")
    with on_executors():
        Marker().steps(fleet.settings, "third", "resumed", ANY_AGE, CHAIN[:-1])
        assert [MERGED_PART in dataset.folder for dataset in read_table_notes(fleet.place("third"))] == [True]
        add_object(fleet.other, "and more")

        resumed = fleet.mark("third", "resumed")

    assert resumed.record.finished is not None
    assert read_table_notes(fleet.place("third"))
    assert fleet.mark("lake").expired == {fleet.garbage}


def test_tables_whose_notes_were_removed_with_a_mark_are_read_again(fleet: Fleet) -> None:
    fleet.mark("third")
    shutil.rmtree(fleet.third.objects.file("_lakefs/retention/gc/lakegc/m1"))
    add_object(fleet.other, "new")

    assert elsewhere(fleet.mark("third", "m2"))["tables_read"] == len(fleet.tables("lake") | fleet.tables("other"))
    assert len(read_table_notes(fleet.place("third"))) == 1
    assert fleet.mark("lake").expired == {fleet.garbage}
