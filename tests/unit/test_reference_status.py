"""Reference status of stored objects, in full and incremental marks, and the co-grouping of rows by address."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakegc_assets.rules import garbage
from spark_resources.errors import DamagedData, LakegcError
from spark_resources.model import ADDRESSES, STORED_OBJECTS, Namespace
from spark_resources.spark import arrow_shuffle
from spark_resources.spark.arrow_shuffle import GroupedRows, Input, co_group
from spark_resources.spark.datasets import Dataset, all_rows, finish_dataset, parquet_bytes, write_file
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

CUTOFF, GRAIN = datetime(2026, 11, 20, 8, tzinfo=UTC), timedelta(seconds=1)
LISTED = ("modified", "size", "checksum", "slice")
COUNTS = (
    "candidates", "candidate_bytes", "young", "committed", "committed_bytes", "not_retained", "unreferenced",
    "dot_segments", "live_not_listed", "uncommitted", "live_inside",
)  # fmt: skip
AREAS = ("data/s{}/é{}", "data/{}{}", "root{}{}", "legacy/{}/{}", "data/s{}/../{}", "data/.{}.{}")


def addresses(draw: random.Random, most: int) -> pa.Table:
    """Some addresses in and outside the listed area, many of them several times."""
    found = [draw.choice(AREAS).format(draw.randrange(3), draw.randrange(8)) for _ in range(draw.randrange(most))]
    return pa.table([pa.array(found, pa.string())], schema=ADDRESSES)


def listed(draw: random.Random, most: int) -> pa.Table:
    """The same as rows of a listing, some of them listed twice, with other times, sizes and checksums."""
    rows = [
        {
            "address": address,
            "size": draw.randrange(3),
            "modified": CUTOFF - GRAIN + timedelta(microseconds=draw.randrange(-1, 2)),
            "checksum": draw.choice([None, "a", "b"]),
            "slice": draw.choice(["data/s1/", "data/s2/"]),
        }
        for address in addresses(draw, most)["address"].to_pylist()
        if address.startswith("data/") or "/" not in address
    ]
    return pa.Table.from_pylist(rows, schema=STORED_OBJECTS)


def known(draw: random.Random, most: int) -> pa.Table:
    """What ranges of earlier marks say of some addresses, of many more than once."""
    rows = [
        {"address": address, "before": before, "live": live, "again": live and not before and draw.random() < 0.5}
        for address in addresses(draw, most)["address"].to_pylist()
        for before, live in [draw.choice([(True, True), (True, False), (False, True)])]
    ]
    return pa.Table.from_pylist(rows, schema=garbage.KNOWN_ADDRESSES)


def expected_status(
    rows_of: GroupedRows, *, known: bool = False, folders: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, int]]:
    """The expected rows and counts, address by address; with `known`, those of an incremental mark."""
    listings: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of[garbage.STORED].to_pylist():
        listings.setdefault(row.pop("address"), []).append({name: row[name] for name in LISTED})
    youngest = {
        one: max(rows, key=lambda row: [(row[name] is not None, row[name]) for name in LISTED])
        for one, rows in listings.items()
    }
    of = {name: set(rows_of[name]["address"].to_pylist()) for name in rows_of if name != garbage.STORED}
    flags = {"before": set[str](), "live": set[str](), "again": set[str]()}
    for row in rows_of[garbage.KNOWN].to_pylist() if known else []:
        for name in flags:
            flags[name] |= {row["address"]} if row[name] else set()
    looked_at = of[garbage.LOOKED_UP] if known else set()
    rows, counts = [], dict.fromkeys((*COUNTS, "again", "again_bytes") if known else COUNTS, 0)
    addresses = {*youngest, *of[garbage.COMMITTED], *of[garbage.UNCOMMITTED], *looked_at, *flags["again"]}
    for one in addresses:
        listed, staged = youngest.get(one), one in of[garbage.UNCOMMITTED]
        seen = listed is not None or one in looked_at or folder_of(one) in folders
        if one in flags["before"] and not seen:
            continue
        committed = one in of[garbage.COMMITTED] or one in flags["live"]
        committed |= listed is not None and one in of[garbage.MAYBE_GONE]
        size = listed["size"] if listed else 0
        young = listed is not None and listed["modified"] > CUTOFF - GRAIN
        not_retained, missing = listed is not None and not committed, (committed or staged) and listed is None
        missing &= one.startswith("data/") or "/" not in one
        counts["live_inside"] += committed or staged
        counts["live_not_listed"] += missing
        counts["not_retained"] += not_retained
        dots = {".", ".."} & set(one.split("/"))
        counts["dot_segments" if dots else "unreferenced"] += not_retained and not staged and not young
        for name, counted in {
            "candidates": True,
            "young": young,
            "committed": committed,
            "uncommitted": staged,
        }.items():
            counts[name] += counted and listed is not None
        counts["candidate_bytes"] += size
        counts["committed_bytes"] += size if committed else 0
        if one in flags["before"]:
            counts["again"] += 1
            counts["again_bytes"] += size
        if not_retained or missing:
            rows.append({"address": one, **(listed or dict.fromkeys(LISTED)), "status": status_of(one, listed, staged)})
    return as_text(rows), counts


def status_of(address: str, listed: dict[str, Any] | None, staged: bool) -> str:
    if listed is None:
        return "missing"
    if staged or listed["modified"] > CUTOFF - GRAIN:
        return "young or uncommitted"
    return "dot segment" if {".", ".."} & set(address.split("/")) else "unreferenced"


def folder_of(address: str) -> str:
    """What a full run lists to find an address."""
    if not address.startswith("data/"):
        return ""
    return f"data/{address.split('/')[1]}/" if address.count("/") > 1 else "data/"


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, default=as_moment, sort_keys=True) for row in rows)


def as_moment(found: datetime) -> str:
    return found.astimezone(UTC).isoformat()


@pytest.mark.parametrize("seed", range(12))
def test_reference_status_has_the_expected_rows_and_counts(seed: int) -> None:
    """Addresses are listed once or twice, committed, staged, possibly expired, or missing."""
    draw = random.Random(seed)
    rows_of = {garbage.STORED: listed(draw, 120)}
    rows_of |= {name: addresses(draw, 40) for name in (garbage.COMMITTED, garbage.MAYBE_GONE, garbage.UNCOMMITTED)}
    if seed == 0:
        rows_of = {name: table.slice(0, 0) for name, table in rows_of.items()}

    rows, counts = garbage.reference_status(rows_of, CUTOFF, GRAIN)

    wanted, counted = expected_status(rows_of)
    assert as_text(rows.to_pylist()) == wanted
    assert counts == counted


@pytest.mark.parametrize("seed", range(40))
def test_incremental_reference_status_covers_what_was_listed_or_is_new(seed: int) -> None:
    """Only what was listed now, or was unknown to the base mark, has rows and counts; known references count for it."""
    draw = random.Random(seed)
    rows_of = {garbage.STORED: listed(draw, 120)}
    rows_of |= {name: addresses(draw, 40) for name in (garbage.COMMITTED, garbage.UNCOMMITTED, garbage.LOOKED_UP)}
    rows_of[garbage.MAYBE_GONE] = ADDRESSES.empty_table()
    rows_of[garbage.KNOWN] = known(draw, 80)
    folders = tuple(folder_of(one) for one in addresses(draw, 4)["address"].to_pylist())
    if seed == 0:
        rows_of, folders = {name: table.slice(0, 0) for name, table in rows_of.items()}, ()

    rows, counts = garbage.incremental_reference_status(rows_of, CUTOFF, GRAIN, pa.array(folders, pa.string()))

    wanted, counted = expected_status(rows_of, known=True, folders=folders)
    assert as_text(rows.to_pylist()) == wanted
    assert counts == counted


def test_a_known_live_object_is_missing_only_from_listed_folders() -> None:
    """In a folder that wasn't listed it isn't reported missing; an object of a range that counts again is."""
    settled = {"address": "data/s1/a", "before": True, "live": True, "again": False}
    back = {"address": "data/s1/b", "before": False, "live": True, "again": True}
    rows_of = {garbage.STORED: STORED_OBJECTS.empty_table()} | {
        name: ADDRESSES.empty_table()
        for name in (
            garbage.COMMITTED,
            garbage.MAYBE_GONE,
            garbage.UNCOMMITTED,
            garbage.LOOKED_UP,
        )
    }
    rows_of[garbage.KNOWN] = pa.Table.from_pylist([settled, back], schema=garbage.KNOWN_ADDRESSES)
    rows_of[garbage.UNCOMMITTED] = pa.table([["data/s1/a"]], schema=ADDRESSES)

    for folders, lost in (((), ["data/s1/b"]), (("data/s1/",), ["data/s1/a", "data/s1/b"])):
        rows, counts = garbage.incremental_reference_status(
            rows_of, CUTOFF, timedelta(0), pa.array(folders, pa.string())
        )
        assert sorted(rows["address"].to_pylist()) == lost
        assert counts["live_not_listed"] == len(lost)


# --- co-grouping --

COUNTED = pa.schema([("task", pa.string()), ("address", pa.string()), ("stored", pa.int64()), ("live", pa.int64())])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


@pytest.fixture
def persist() -> Iterator[Persisted]:
    kept = Persisted()
    yield kept
    kept.release()


def written(place: Place, name: str, table: pa.Table, files: int) -> Dataset:
    """A dataset of as many files, some maybe without a row."""
    step = -(-len(table) // files)
    parts = [
        write_file(place, f"{name}/", f"part-{at}.parquet", parquet_bytes(part), len(part))
        for at in range(files)
        for part in [table.slice(at * step, step)]
    ]
    return finish_dataset(place, f"{name}/", parts)


def count_by_address(grouped: GroupedRows, report: TaskReport) -> pa.Table:
    """A row for each address of a task, with how often it is in each input."""
    inputs = {name: grouped[name]["address"].to_pylist() for name in ("stored", "live")}
    task = str(random.SystemRandom().random())
    rows = [
        {"task": task, "address": one, **{name: of_input.count(one) for name, of_input in inputs.items()}}
        for one in {*inputs["stored"], *inputs["live"]}
    ]
    report.count(addresses=len(rows))
    return pa.Table.from_pylist(rows, schema=COUNTED)


@pytest.fixture
def inputs(place: Place) -> list[Input]:
    """An input of two datasets, and one of a dataset with strange addresses."""
    draw = random.Random(1)
    stored, live = listed(draw, 900), addresses(draw, 500)
    live = pa.concat_tables([live, pa.table([pa.array(["", "data/\n\x00", "data/s1/\U0001f600"])], schema=ADDRESSES)])
    return [
        Input.whole(
            "stored", [written(place, "a", stored, 3), written(place, "b", stored.slice(0, 7), 1)], STORED_OBJECTS
        ),
        Input.of_addresses("live", [written(place, "c", live, 4)], ADDRESSES),
    ]


def addresses_in(place: Place, one: Input) -> list[str]:
    return [row["address"] for dataset in one.datasets for row in all_rows(place, dataset, one.schema)]


@pytest.mark.parametrize(
    ("at_most", "here"),
    [(1_000_000, 1_000), (1_000_000, 0), (40, 0)],
    ids=["on the driver", "in one task", "in several tasks"],
)
def test_all_rows_of_an_address_come_to_one_task(
    spark: SparkSession,
    place: Place,
    inputs: list[Input],
    persist: Persisted,
    monkeypatch: pytest.MonkeyPatch,
    at_most: int,
    here: int,
) -> None:
    """Whatever file and input they are in, no row is lost and none is duplicated."""
    monkeypatch.setattr(arrow_shuffle, "ROWS_PER_BUCKET", at_most)
    monkeypatch.setattr(arrow_shuffle, "ROWS_HERE", here)

    grouped = co_group(spark, place, inputs, count_by_address, COUNTED, persist)
    found, report = grouped.rows, grouped.report

    rows = found.collect()
    stored, live = (addresses_in(place, one) for one in inputs)
    by_address = {row["address"]: row for row in rows}
    assert len(rows) == len(by_address) == report.counters["addresses"]
    assert by_address.keys() == {*stored, *live}
    assert all(row["stored"] == stored.count(one) for one, row in by_address.items())
    assert {one for one, row in by_address.items() if row["live"]} == set(live)
    assert (len({row["task"] for row in rows}) > 1) == (at_most < 1000)
    assert (grouped.few is not None) == (here > 0)
    if grouped.few is not None:
        assert grouped.few.to_pylist() == [row.asDict() for row in rows]


def test_a_file_without_wanted_rows_counts_as_read(
    spark: SparkSession, place: Place, inputs: list[Input], persist: Persisted
) -> None:
    """If no row of a file, or of all files, is wanted, the other rows are co-grouped all the same."""
    stored, live = inputs

    def wanted(table: pa.Table) -> pa.Table:
        return table.slice(0, 0) if "data/\n\x00" in table["address"].to_pylist() else table

    for select, least in ((wanted, 1), (lambda table: table.slice(0, 0), 0)):
        grouped = co_group(
            spark, place, [stored, replace(live, select=select, max_rows=3)], count_by_address, COUNTED, persist
        )
        kept = {row["address"] for row in grouped.rows.collect() if row["live"]}
        assert "data/\n\x00" not in kept
        assert (len(kept) > 0) == bool(least)


def test_inputs_without_a_file_are_combined_once(
    spark: SparkSession, place: Place, inputs: list[Input], persist: Persisted
) -> None:
    """Even if no input has a file, as in a repository without objects."""
    without = [replace(one, datasets=()) for one in inputs]

    grouped = co_group(spark, place, without, count_by_address, COUNTED, persist)

    assert grouped.rows.collect() == []
    assert grouped.report.counters == {"addresses": 0}


def test_a_changed_file_stops_the_co_grouping(
    spark: SparkSession, place: Place, inputs: list[Input], persist: Persisted
) -> None:
    """A file that isn't the one that was written is an error, and its rows are never silently left out."""
    dataset = inputs[1].datasets[0]
    place.store().write(dataset.folder + dataset.files[1].name, b"something else")

    with pytest.raises(DamagedData, match=r"part-1\.parquet"):
        co_group(spark, place, inputs, count_by_address, COUNTED, persist)


def losing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def cutting(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first piece without its rows, as a stream that was cut at the end of a message reads."""
    first = pa.ipc.open_stream(batch.column("rows")[0].as_buffer()).schema
    empty = arrow_shuffle._packed(first.empty_table())
    rows = pa.array([empty, *batch.column("rows").to_pylist()[1:]], pa.binary())
    return batch.set_column(batch.schema.get_field_index("rows"), batch.schema.field("rows"), rows)


def nothing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 0)


@pytest.mark.parametrize("here", [1_000, 0], ids=["on the driver", "in tasks"])
@pytest.mark.parametrize("lost", [losing, cutting, nothing])
def test_rows_lost_between_tasks_are_an_error(
    spark: SparkSession,
    place: Place,
    inputs: list[Input],
    persist: Persisted,
    monkeypatch: pytest.MonkeyPatch,
    lost: Any,
    here: int,
) -> None:
    """A batch of one file, its rows, or all of its batches don't arrive."""
    monkeypatch.setattr(arrow_shuffle, "ROWS_PER_BUCKET", 1_000 if here else 40)
    monkeypatch.setattr(arrow_shuffle, "ROWS_HERE", here)
    whole = arrow_shuffle.bucket_batches

    def damaged(table: pa.Table, number: int, buckets: int, *, read: int) -> Batches:
        for batch in whole(table, number, buckets, read=read):
            yield lost(batch) if number == 1 else batch

    monkeypatch.setattr(arrow_shuffle, "bucket_batches", damaged)
    with pytest.raises(DamagedData, match="not all rows of addresses were compared"):
        co_group(spark, place, inputs, count_by_address, COUNTED, persist)


def test_rows_with_differing_hashes_are_an_error(
    spark: SparkSession, place: Place, inputs: list[Input], persist: Persisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two machines hashed an address differently, its rows would come to different tasks and look unreferenced."""
    whole = arrow_shuffle.bucket_batches

    def otherwise(table: pa.Table, number: int, buckets: int, *, read: int) -> Batches:
        for batch in whole(table, number, buckets, read=read):
            where = batch.schema.get_field_index("hashed")
            hashed = pa.array([one + number for one in batch.column("hashed").to_pylist()], pa.int64())
            yield batch.set_column(where, batch.schema.field("hashed"), hashed)

    monkeypatch.setattr(arrow_shuffle, "bucket_batches", otherwise)
    with pytest.raises(LakegcError, match="the same package versions"):
        co_group(spark, place, inputs, count_by_address, COUNTED, persist)
