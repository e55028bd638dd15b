"""Reference status of stored objects, in full and incremental marks, and the co-grouping of rows by address."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets.rules import garbage
from lakegc_assets.rules.garbage import Status
from spark_resources.errors import DamagedData, LakegcError
from spark_resources.model import ADDRESSES, STORED_OBJECTS, Namespace, Scope, cutoff_for
from spark_resources.spark import arrow_shuffle
from spark_resources.spark.arrow_shuffle import (
    Grouped,
    GroupedRows,
    Input,
    co_group,
    distinct_addresses,
    even_boundaries,
    shuffle,
)
from spark_resources.spark.datasets import Dataset, finish_dataset, parquet_bytes, write_file
from spark_resources.spark.persistence import Persisted
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, Tasks, as_frame
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
    drawn = [draw.choice(AREAS).format(draw.randrange(3), draw.randrange(8)) for _ in range(draw.randrange(most))]
    return pa.table([pa.array(drawn, pa.string())], schema=ADDRESSES)


def listed(draw: random.Random, most: int) -> pa.Table:
    """The same addresses as rows of a listing. Some are listed twice, with other times, sizes and checksums."""
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
    """Rows that ranges of earlier marks give for some addresses, several for many of them."""
    rows = [
        {"address": address, "before": before, "live": live, "again": live and not before and draw.random() < 0.5}
        for address in addresses(draw, most)["address"].to_pylist()
        for before, live in [draw.choice([(True, True), (True, False), (False, True)])]
    ]
    return pa.Table.from_pylist(rows, schema=garbage.KNOWN_ADDRESSES)


def expected_status(
    rows_of: GroupedRows, *, known: bool = False, folders: tuple[str, ...] = ()
) -> tuple[list[str], dict[str, int]]:
    """The expected rows and counts, computed address by address. With `known`, they are those of an incremental
    mark."""
    listings: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of[garbage.STORED].to_pylist():
        listings.setdefault(row.pop("address"), []).append({name: row[name] for name in LISTED})
    youngest = {
        address: max(rows, key=lambda row: [(row[name] is not None, row[name]) for name in LISTED])
        for address, rows in listings.items()
    }
    of = {name: set(rows_of[name]["address"].to_pylist()) for name in rows_of if name != garbage.STORED}
    flags = {"before": set[str](), "live": set[str](), "again": set[str]()}
    for row in rows_of[garbage.KNOWN].to_pylist() if known else []:
        for name in flags:
            flags[name] |= {row["address"]} if row[name] else set()
    looked_up = of[garbage.LOOKED_UP] if known else set()
    rows, counts = [], dict.fromkeys((*COUNTS, "again", "again_bytes") if known else COUNTS, 0)
    addresses = {*youngest, *of[garbage.COMMITTED], *of[garbage.UNCOMMITTED], *looked_up, *flags["again"]}
    for address in addresses:
        listed, staged = youngest.get(address), address in of[garbage.UNCOMMITTED]
        was_listed = listed is not None or address in looked_up or folder_of(address) in folders
        if address in flags["before"] and not was_listed:
            continue
        committed = address in of[garbage.COMMITTED] or address in flags["live"]
        committed |= listed is not None and address in of[garbage.MAYBE_GONE]
        size = listed["size"] if listed else 0
        young = listed is not None and listed["modified"] > CUTOFF - GRAIN
        not_retained, missing = listed is not None and not committed, (committed or staged) and listed is None
        missing &= address.startswith("data/") or "/" not in address
        counts["live_inside"] += committed or staged
        counts["live_not_listed"] += missing
        counts["not_retained"] += not_retained
        dots = {".", ".."} & set(address.split("/"))
        counts["dot_segments" if dots else "unreferenced"] += not_retained and not staged and not young
        for name, counted in {
            "candidates": True,
            "young": young,
            "committed": committed,
            "uncommitted": staged and not committed,
        }.items():
            counts[name] += counted and listed is not None
        counts["candidate_bytes"] += size
        counts["committed_bytes"] += size if committed else 0
        if address in flags["before"]:
            counts["again"] += 1
            counts["again_bytes"] += size
        if not_retained or missing:
            rows.append(
                {"address": address, **(listed or dict.fromkeys(LISTED)), "status": status_of(address, listed, staged)}
            )
    return as_text(rows), counts


def status_of(address: str, listed: dict[str, Any] | None, staged: bool) -> str:
    if listed is None:
        return "missing"
    if staged or listed["modified"] > CUTOFF - GRAIN:
        return "young or uncommitted"
    return "dot segment" if {".", ".."} & set(address.split("/")) else "unreferenced"


def folder_of(address: str) -> str:
    """The folder that a full mark lists to find an address."""
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
    """Only addresses that were listed now, or that the base mark didn't know, have rows and counts. References known
    from earlier marks count for them."""
    draw = random.Random(seed)
    rows_of = {garbage.STORED: listed(draw, 120)}
    rows_of |= {name: addresses(draw, 40) for name in (garbage.COMMITTED, garbage.UNCOMMITTED, garbage.LOOKED_UP)}
    rows_of[garbage.MAYBE_GONE] = ADDRESSES.empty_table()
    rows_of[garbage.KNOWN] = known(draw, 80)
    folders = tuple(folder_of(address) for address in addresses(draw, 4)["address"].to_pylist())
    if seed == 0:
        rows_of, folders = {name: table.slice(0, 0) for name, table in rows_of.items()}, ()

    rows, counts = garbage.incremental_reference_status(rows_of, CUTOFF, GRAIN, pa.array(folders, pa.string()))

    wanted, counted = expected_status(rows_of, known=True, folders=folders)
    assert as_text(rows.to_pylist()) == wanted
    assert counts == counted


def test_objects_are_selected_by_their_status() -> None:
    """Objects that expire are unreferenced. All stored objects that have a status are not committed."""
    stored = {"size": 1, "modified": CUTOFF, "checksum": "a", "slice": "data/s/"}
    statuses = pa.Table.from_pylist(
        [
            *(
                {"address": status.name, **stored, "status": status.value}
                for status in Status
                if status != Status.MISSING
            ),
            {"address": Status.MISSING.name, "status": Status.MISSING.value},
        ],
        schema=garbage.REFERENCE_STATUS,
    )

    unreferenced, not_committed = garbage.unreferenced(statuses), garbage.not_committed(statuses)

    assert unreferenced.to_pylist() == [{"address": "UNREFERENCED", **stored}]
    assert not_committed.to_pylist() == [
        {"address": name, **stored} for name in ("UNREFERENCED", "DOT_SEGMENT", "YOUNG_OR_UNCOMMITTED")
    ]
    assert not_committed.schema == STORED_OBJECTS


def test_scope_committed_selects_only_objects_of_expired_commits() -> None:
    """Every other scope has all unreferenced objects."""
    objects = pa.table([pa.array(["a", "b", "c"])], schema=ADDRESSES)
    attributed = pa.chunked_array([["b", "x"], ["b"]])

    selected = {scope: garbage.in_scope(objects, attributed, scope)["address"].to_pylist() for scope in Scope}

    assert selected == {Scope.UNIFIED: ["a", "b", "c"], Scope.COMMITTED: ["b"], Scope.UNCOMMITTED: ["a", "b", "c"]}


def test_a_known_live_object_is_reported_missing_only_from_listed_folders() -> None:
    """An object isn't reported as missing if its folder wasn't listed, unless a range that refers to it counts as live
    again."""
    known_before = {"address": "data/s1/a", "before": True, "live": True, "again": False}
    live_again = {"address": "data/s1/b", "before": False, "live": True, "again": True}
    rows_of = {garbage.STORED: STORED_OBJECTS.empty_table()} | {
        name: ADDRESSES.empty_table()
        for name in (
            garbage.COMMITTED,
            garbage.MAYBE_GONE,
            garbage.UNCOMMITTED,
            garbage.LOOKED_UP,
        )
    }
    rows_of[garbage.KNOWN] = pa.Table.from_pylist([known_before, live_again], schema=garbage.KNOWN_ADDRESSES)
    rows_of[garbage.UNCOMMITTED] = pa.table([["data/s1/a"]], schema=ADDRESSES)

    for folders, missing in (((), ["data/s1/b"]), (("data/s1/",), ["data/s1/a", "data/s1/b"])):
        rows, counts = garbage.incremental_reference_status(
            rows_of, CUTOFF, timedelta(0), pa.array(folders, pa.string())
        )
        assert sorted(rows["address"].to_pylist()) == missing
        assert counts["live_not_listed"] == len(missing)


# --- co-grouping --

COUNTED = pa.schema([("task", pa.string()), ("address", pa.string()), ("stored", pa.int64()), ("live", pa.int64())])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


@pytest.fixture
def persist() -> Iterator[Persisted]:
    persisted = Persisted()
    yield persisted
    persisted.release()


def written(place: Place, name: str, table: pa.Table, files: int) -> Dataset:
    """A dataset with this many files, some of which may have no rows."""
    step = -(-len(table) // files)
    parts = [
        write_file(place, f"{name}/", f"part-{at}.parquet", parquet_bytes(part), len(part))
        for at in range(files)
        for part in [table.slice(at * step, step)]
    ]
    return finish_dataset(place, f"{name}/", parts)


def count_by_address(grouped: GroupedRows, report: TaskReport) -> pa.Table:
    """One row for each address of a task, with its number of rows in each input."""
    inputs = {name: grouped[name]["address"].to_pylist() for name in ("stored", "live")}
    task = str(random.SystemRandom().random())
    rows = [
        {"task": task, "address": address, **{name: of_input.count(address) for name, of_input in inputs.items()}}
        for address in {*inputs["stored"], *inputs["live"]}
    ]
    report.count(addresses=len(rows))
    return pa.Table.from_pylist(rows, schema=COUNTED)


@pytest.fixture
def inputs(place: Place) -> list[Input]:
    """One input with two datasets, and one with a single dataset of unusual addresses."""
    draw = random.Random(1)
    stored, live = listed(draw, 900), addresses(draw, 500)
    live = pa.concat_tables([live, pa.table([pa.array(["", "data/\n\x00", "data/s1/\U0001f600"])], schema=ADDRESSES)])
    return [
        Input.whole(
            "stored",
            place,
            [written(place, "a", stored, 3), written(place, "b", stored.slice(0, 7), 1)],
            STORED_OBJECTS,
        ),
        Input.of_addresses("live", place, [written(place, "c", live, 4)], ADDRESSES),
    ]


def addresses_in(combined: Input) -> list[str]:
    return [address for file in combined.files for address in file.read()["address"].to_pylist()]


def rows_in(grouped: Grouped) -> list[dict[str, Any]]:
    return [row.asDict() for row in as_frame(grouped.rows).collect()]


@pytest.mark.parametrize(
    ("at_most", "here"),
    [(1_000_000, 1_000), (1_000_000, 0), (40, 0)],
    ids=["on the driver", "in one task", "in several tasks"],
)
def test_all_rows_of_an_address_are_in_one_task(
    spark: SparkSession,
    inputs: list[Input],
    persist: Persisted,
    monkeypatch: pytest.MonkeyPatch,
    at_most: int,
    here: int,
) -> None:
    """Whatever file and input the rows are in, none is lost or duplicated."""
    monkeypatch.setattr(arrow_shuffle, "ROWS_PER_BUCKET", at_most)
    monkeypatch.setattr(arrow_shuffle, "MAX_ROWS_ON_DRIVER", here)

    grouped = co_group(lambda: spark, inputs, count_by_address, COUNTED, persist)
    report = grouped.report

    rows = rows_in(grouped)
    stored, live = (addresses_in(combined) for combined in inputs)
    by_address = {row["address"]: row for row in rows}
    assert len(rows) == len(by_address) == report.counters["addresses"] == grouped.count
    assert by_address.keys() == {*stored, *live}
    assert all(row["stored"] == stored.count(address) for address, row in by_address.items())
    assert {address for address, row in by_address.items() if row["live"]} == set(live)
    assert (len({row["task"] for row in rows}) > 1) == (at_most < 1000)
    assert (grouped.driver_rows is not None) == (here > 0)
    if grouped.driver_rows is not None:
        assert grouped.driver_rows.to_pylist() == rows


def test_a_file_without_wanted_rows_counts_as_read(
    spark: SparkSession, inputs: list[Input], persist: Persisted
) -> None:
    """If no row of a file, or of all files, is wanted, the other rows are still co-grouped."""
    stored, live = inputs

    def wanted(table: pa.Table) -> pa.Table:
        return table.slice(0, 0) if "data/\n\x00" in table["address"].to_pylist() else table

    for select, least in ((wanted, 1), (lambda table: table.slice(0, 0), 0)):
        some = replace(live, files=tuple(replace(file, select=select) for file in live.files), max_rows=3)
        grouped = co_group(lambda: spark, [stored, some], count_by_address, COUNTED, persist)
        live_addresses = {row["address"] for row in rows_in(grouped) if row["live"]}
        assert "data/\n\x00" not in live_addresses
        assert (len(live_addresses) > 0) == bool(least)


def test_co_grouping_inputs_without_files_returns_no_rows(
    spark: SparkSession, inputs: list[Input], persist: Persisted
) -> None:
    """A repository without objects has no input with a file."""
    without = [replace(combined, files=(), count=0) for combined in inputs]

    grouped = co_group(lambda: spark, without, count_by_address, COUNTED, persist)

    assert rows_in(grouped) == []
    assert grouped.report.counters == {"addresses": 0}


def test_a_changed_file_stops_the_co_grouping(
    spark: SparkSession, place: Place, inputs: list[Input], persist: Persisted
) -> None:
    """A file that was replaced after it was written is an error. Its rows are never silently left out."""
    place.store().write("c/part-1.parquet", b"something else")

    with pytest.raises(DamagedData, match=r"part-1\.parquet"):
        co_group(lambda: spark, inputs, count_by_address, COUNTED, persist)


def losing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def cutting(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first piece without its rows, like a stream that was truncated at the end of a message."""
    first = pa.ipc.open_stream(batch.column("rows")[0].as_buffer()).schema
    empty = arrow_shuffle._packed(first.empty_table())
    rows = pa.array([empty, *batch.column("rows").to_pylist()[1:]], pa.binary())
    return batch.set_column(batch.schema.get_field_index("rows"), batch.schema.field("rows"), rows)


def nothing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 0)


@pytest.mark.parametrize("here", [1_000, 0], ids=["on the driver", "in tasks"])
@pytest.mark.parametrize("lost", [losing, cutting, nothing])
def test_rows_lost_between_tasks_raise_an_error(
    spark: SparkSession,
    inputs: list[Input],
    persist: Persisted,
    monkeypatch: pytest.MonkeyPatch,
    lost: Any,
    here: int,
) -> None:
    """One batch, its rows, or all batches of a file don't arrive."""
    monkeypatch.setattr(arrow_shuffle, "ROWS_PER_BUCKET", 1_000 if here else 40)
    monkeypatch.setattr(arrow_shuffle, "MAX_ROWS_ON_DRIVER", here)
    whole = arrow_shuffle.bucket_batches

    def damaged(table: pa.Table, number: int, *rest: Any, **more: Any) -> Batches:
        for batch in whole(table, number, *rest, **more):
            yield lost(batch) if number == 1 else batch

    monkeypatch.setattr(arrow_shuffle, "bucket_batches", damaged)
    with pytest.raises(DamagedData, match="not all rows were grouped by address"):
        co_group(lambda: spark, inputs, count_by_address, COUNTED, persist)


def test_rows_with_differing_hashes_raise_an_error(
    spark: SparkSession, inputs: list[Input], persist: Persisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If two machines hashed an address differently, its rows would be in different tasks, and the object would seem
    unreferenced."""
    whole = arrow_shuffle.bucket_batches

    def otherwise(table: pa.Table, number: int, *rest: Any, **more: Any) -> Batches:
        for batch in whole(table, number, *rest, **more):
            name = "hash_fingerprint"
            changed = pa.array([value + number for value in batch.column(name).to_pylist()], pa.int64())
            yield batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), changed)

    monkeypatch.setattr(arrow_shuffle, "bucket_batches", otherwise)
    with pytest.raises(LakegcError, match="the same package versions"):
        co_group(lambda: spark, inputs, count_by_address, COUNTED, persist)


# --- ranges of addresses --------------------------------------------------------------------------------------------

NAMES = [f"data/é{number % 7}/{number * 37 % 100:03}" for number in range(100)]


def of_names(name: str, spark: SparkSession, names: list[str], *, on_executors: bool = True) -> Input:
    table = pa.table([pa.array(names, pa.string())], schema=ADDRESSES)
    rows = spark.createDataFrame(table).repartition(3) if on_executors else Tasks.of(lambda: spark, table)
    return Input.of_rows(name, rows, ADDRESSES, len(names))


def numbered(grouped: GroupedRows, report: TaskReport) -> pa.Table:
    """The number of rows of each input in a task, and the task's first and last address."""
    unique = pc.unique(pa.concat_tables(grouped.values())["address"]).sort()
    ends = [unique[0].as_py(), unique[-1].as_py()] if len(unique) else [None, None]
    counts = [len(grouped["objects"]), len(grouped["more"])]
    return pa.Table.from_pylist([dict(zip(ENDS.names, [*ends, *counts], strict=True))], schema=ENDS)


ENDS = pa.schema([("first", pa.string()), ("last", pa.string()), ("objects", pa.int64()), ("more", pa.int64())])


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("old", [True, False])
def test_tasks_are_in_address_order(
    spark: SparkSession, persist: Persisted, tasks: int, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of an address are in one task, even with a Spark version that can't partition by id."""
    inputs = [of_names("objects", spark, NAMES), of_names("more", spark, [NAMES[0]] * 500 + NAMES[::3])]
    if old:
        for kind in (type(inputs[0].rows), DataFrame):
            monkeypatch.delattr(kind, "repartitionById", raising=False)

    grouped = shuffle(lambda: spark, inputs, boundaries=even_boundaries(pa.array(NAMES[::2]), tasks)).grouped(
        numbered, ENDS, persist
    )

    rows = as_frame(grouped.rows).collect()  # in the order of tasks
    assert (sum(row["objects"] for row in rows), sum(row["more"] for row in rows)) == (100, 534)
    ends = [(row["first"].encode(), row["last"].encode()) for row in rows if row["first"] is not None]
    assert all(last < first for (_, last), (first, _) in pairwise(ends))
    assert len(ends) == tasks


def test_objects_are_spread_evenly_however_skewed_other_rows_are(spark: SparkSession, persist: Persisted) -> None:
    """Tasks have about equal numbers of objects, even if most of the other rows belong to a few objects."""
    names = [f"data/s/{number:05}" for number in range(4000)]
    inputs = [of_names("objects", spark, names), of_names("more", spark, names[:10] * 400)]

    grouped = shuffle(lambda: spark, inputs, boundaries=even_boundaries(pa.array(names[::3]), 4)).grouped(
        numbered, ENDS, persist
    )

    assert all(990 < row["objects"] < 1010 for row in as_frame(grouped.rows).collect())


def test_without_sampled_addresses_one_task_gets_all_rows() -> None:
    """Without a sample, there are no bounds between tasks."""
    assert len(even_boundaries(pa.array([], pa.string()), 3)) == 0


def test_duplicate_rows_of_an_address_are_dropped_as_they_arrive(
    spark: SparkSession, persist: Persisted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task never has to hold the duplicates from many files all at once."""
    monkeypatch.setattr(arrow_shuffle, "ROWS_TO_REDUCE", 100)
    live = [of_names("live", spark, ["a", "b"] * 60, on_executors=False) for _ in range(3)]
    once = [replace(combined, reduce=distinct_addresses) for combined in live]

    def received(grouped: GroupedRows, report: TaskReport) -> pa.Table:
        report.count(held=len(grouped["live"]))
        return distinct_addresses(grouped["live"])

    co_grouped = co_group(lambda: spark, once, received, ADDRESSES, persist)

    assert sorted(row["address"] for row in rows_in(co_grouped)) == ["a", "b"]
    assert co_grouped.report.by_key["received"]["live"] == 360
    assert co_grouped.report.counters["held"] < 120


# --- age ------------------------------------------------------------------------------------------------------------


def test_objects_modified_at_least_the_minimum_age_before_the_start_are_old_enough() -> None:
    """A cutoff after the start would make every new upload garbage."""
    assert cutoff_for(CUTOFF, timedelta(hours=24)) == datetime(2026, 11, 19, 8, tzinfo=UTC)
    assert cutoff_for(CUTOFF, timedelta(0)) == CUTOFF
