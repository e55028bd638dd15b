"""Who refers to what is stored: by tables that met as by DataFrames, and every row of an address meets the others."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets import census, mark
from spark_resources import meeting
from spark_resources.datasets import (
    Batches,
    Counts,
    Dataset,
    Place,
    all_rows,
    finish_dataset,
    parquet_bytes,
    write_file,
)
from spark_resources.errors import DamagedData, LakegcError
from spark_resources.kept import Kept
from spark_resources.meeting import Met, Side, meet
from spark_resources.model import ADDRESSES, STORED_OBJECTS, Namespace
from spark_resources.stores.settings import StoreSettings

CUTOFF, GRAIN = datetime(2026, 11, 20, 8, tzinfo=UTC), timedelta(seconds=1)
AREAS = ("data/s{}/é{}", "data/{}{}", "root{}{}", "legacy/{}/{}")


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


def told(spark: SparkSession, met: Met) -> tuple[list[str], dict[str, int]]:
    """What DataFrames say of the same."""

    def frame(name: str) -> DataFrame:
        return spark.createDataFrame(met[name])

    stored = frame(census.STORED)
    there = frame(census.MAYBE_GONE).transform(mark.only(stored))
    committed = frame(census.COMMITTED).unionByName(there)
    found = mark.census(stored, committed=committed, uncommitted=frame(census.UNCOMMITTED)).persist()
    counts = found.agg(*[column.alias(name) for name, column in mark.counted(CUTOFF, GRAIN).items()]).first()
    rows = found.where(mark.is_unsettled() | mark.is_missing()).select(*census.CENSUS.names).collect()
    assert counts is not None
    return as_text([row.asDict(recursive=True) for row in rows]), {
        name: int(value or 0) for name, value in counts.asDict().items()
    }


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, default=as_moment, sort_keys=True) for row in rows)


def as_moment(found: datetime) -> str:
    return found.astimezone(UTC).isoformat()


@pytest.mark.parametrize("seed", range(12))
def test_tables_and_dataframes_tell_the_same(spark: SparkSession, seed: int) -> None:
    """Whatever is listed once or twice, committed, staged, maybe gone, or missing: the same rows and counts."""
    draw = random.Random(seed)
    met = {census.STORED: listed(draw, 120)}
    met |= {name: addresses(draw, 40) for name in (census.COMMITTED, census.MAYBE_GONE, census.UNCOMMITTED)}
    if seed == 0:
        met = {name: table.slice(0, 0) for name, table in met.items()}

    rows, counts = census.census(met, CUTOFF - GRAIN)

    wanted, counted = told(spark, met)
    assert as_text(rows.to_pylist()) == wanted
    assert counts == counted


# --- meeting ----------------------------------------------------------------------------------------------------------

MET = pa.schema([("task", pa.string()), ("address", pa.string()), ("stored", pa.int64()), ("live", pa.int64())])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


@pytest.fixture
def keep() -> Iterator[Kept]:
    kept = Kept()
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


def met_by_address(met: Met) -> tuple[pa.Table, Counts]:
    """A row for each address that came to a task, with how often each side has it."""
    sides = {name: met[name]["address"].to_pylist() for name in ("stored", "live")}
    task = str(random.SystemRandom().random())
    rows = [
        {"task": task, "address": one, **{name: of_side.count(one) for name, of_side in sides.items()}}
        for one in {*sides["stored"], *sides["live"]}
    ]
    return pa.Table.from_pylist(rows, schema=MET), {"addresses": len(rows)}


@pytest.fixture
def sides(place: Place) -> list[Side]:
    """A side of two datasets, and one of a dataset with strange addresses."""
    draw = random.Random(1)
    stored, live = listed(draw, 900), addresses(draw, 500)
    live = pa.concat_tables([live, pa.table([pa.array(["", "data/\n\x00", "data/s1/\U0001f600"])], schema=ADDRESSES)])
    return [
        Side("stored", (written(place, "a", stored, 3), written(place, "b", stored.slice(0, 7), 1)), STORED_OBJECTS),
        Side("live", (written(place, "c", live, 4),), ADDRESSES, distinct=True),
    ]


def of_side(place: Place, side: Side) -> list[str]:
    return [row["address"] for dataset in side.datasets for row in all_rows(place, dataset, side.schema)]


@pytest.mark.parametrize("at_most", [1_000_000, 40])
def test_rows_of_one_address_come_to_several_tasks(
    spark: SparkSession, place: Place, sides: list[Side], keep: Kept, monkeypatch: pytest.MonkeyPatch, at_most: int
) -> None:
    """Of whatever file and side: no row is lost, none comes twice, and no address to two tasks."""
    monkeypatch.setattr(meeting, "ROWS_A_BUCKET", at_most)

    found, counts = meet(spark, place, sides, met_by_address, MET, keep)

    rows = found.collect()
    stored, live = (of_side(place, side) for side in sides)
    by_address = {row["address"]: row for row in rows}
    assert len(rows) == len(by_address) == counts["addresses"]
    assert by_address.keys() == {*stored, *live}
    assert all(row["stored"] == stored.count(one) for one, row in by_address.items())
    assert {one for one, row in by_address.items() if row["live"]} == set(live)
    assert (len({row["task"] for row in rows}) > 1) == (at_most < 1000)


def test_files_that_were_changed_meet(spark: SparkSession, place: Place, sides: list[Side], keep: Kept) -> None:
    """A file that isn't the one that was written ends it with an error, and nothing is missed silently."""
    dataset = sides[1].datasets[0]
    place.store().write(dataset.folder + dataset.files[1].name, b"something else")

    with pytest.raises(DamagedData, match=r"part-1\.parquet"):
        meet(spark, place, sides, met_by_address, MET, keep)


def losing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def cutting(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The first piece without its rows, as a stream that was cut at the end of a message reads."""
    first = pa.ipc.open_stream(batch.column("rows")[0].as_buffer()).schema
    empty = meeting._packed(first.empty_table())
    rows = pa.array([empty, *batch.column("rows").to_pylist()[1:]], pa.binary())
    return batch.set_column(batch.schema.get_field_index("rows"), batch.schema.field("rows"), rows)


def nothing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 0)


@pytest.mark.parametrize("lost", [losing, cutting, nothing])
def test_rows_that_are_lost_between_tasks_are_not_missed(
    spark: SparkSession, place: Place, sides: list[Side], keep: Kept, monkeypatch: pytest.MonkeyPatch, lost: Any
) -> None:
    """Where a piece of one file, its rows, or all of its pieces don't arrive, the comparison ends with an error."""
    monkeypatch.setattr(meeting, "ROWS_A_BUCKET", 40)
    whole = meeting.lumps

    def damaged(table: pa.Table, side: int, buckets: int, *, read: int) -> Batches:
        for batch in whole(table, side, buckets, read=read):
            yield lost(batch) if side == 1 else batch

    monkeypatch.setattr(meeting, "lumps", damaged)
    with pytest.raises(DamagedData, match="not all that is known of addresses was compared"):
        meet(spark, place, sides, met_by_address, MET, keep)


def test_rows_that_were_hashed_otherwise_meet(
    spark: SparkSession, place: Place, sides: list[Side], keep: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one machine hashes in another way than the next, the mark ends: addresses would miss each other."""
    whole = meeting.lumps

    def otherwise(table: pa.Table, side: int, buckets: int, *, read: int) -> Batches:
        for batch in whole(table, side, buckets, read=read):
            where = batch.schema.get_field_index("hashed")
            hashed = pa.array([one + side for one in batch.column("hashed").to_pylist()], pa.int64())
            yield batch.set_column(where, batch.schema.field("hashed"), hashed)

    monkeypatch.setattr(meeting, "lumps", otherwise)
    with pytest.raises(LakegcError, match="the very same packages"):
        meet(spark, place, sides, met_by_address, MET, keep)
