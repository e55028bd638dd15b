"""Who refers to what is stored: by tables that met as by DataFrames, and every row of an address meets the others."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakegc_assets import census, mark
from spark_resources import meeting
from spark_resources.datasets import Batches, Dataset, Place, finish_dataset, parquet_bytes, write_file
from spark_resources.errors import DamagedData, LakegcError
from spark_resources.executors import errors_from_executors
from spark_resources.meeting import Met, Side, check_hashed_alike, how_hashed, lumps, meet
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


def written(place: Place, name: str, table: pa.Table, files: int) -> Dataset:
    """A dataset of as many files, some maybe without a row."""
    step = -(-len(table) // files)
    parts = [
        write_file(place, f"{name}/", f"part-{at}.parquet", parquet_bytes(part), len(part))
        for at in range(files)
        for part in [table.slice(at * step, step)]
    ]
    return finish_dataset(place, f"{name}/", parts)


def met_by_address(met: Met) -> Batches:
    """A row for each address that came to a task, with how often each side has it."""
    sides = {name: met[name]["address"].to_pylist() for name in ("stored", "live")}
    task = str(random.SystemRandom().random())
    rows = [
        {"task": task, "address": one, **{name: of_side.count(one) for name, of_side in sides.items()}}
        for one in {*sides["stored"], *sides["live"]}
    ]
    yield from pa.Table.from_pylist(rows, schema=MET).to_batches()


@pytest.mark.parametrize("at_most", [1_000_000, 40])
def test_every_row_of_an_address_comes_to_one_task(
    spark: SparkSession, place: Place, monkeypatch: pytest.MonkeyPatch, at_most: int
) -> None:
    """Of whatever file and side: no row is lost, none comes twice, and no address to two tasks."""
    monkeypatch.setattr(meeting, "ROWS_A_BUCKET", at_most)
    draw = random.Random(1)
    stored, live = listed(draw, 900), addresses(draw, 500)
    live = pa.concat_tables([live, pa.table([pa.array(["", "data/\n\x00", "data/s1/\U0001f600"])], schema=ADDRESSES)])
    sides = [
        Side("stored", (written(place, "a", stored, 3), written(place, "b", stored.slice(0, 7), 1)), STORED_OBJECTS),
        Side("live", (written(place, "c", live, 4),), ADDRESSES, distinct=True),
    ]

    found = meet(spark, place, sides, met_by_address, MET).toArrow().to_pylist()

    listings = [*stored["address"].to_pylist(), *stored.slice(0, 7)["address"].to_pylist()]
    by_address = {row["address"]: row for row in found}
    assert len(found) == len(by_address)
    assert by_address.keys() == {*listings, *live["address"].to_pylist()}
    assert all(row["stored"] == listings.count(one) for one, row in by_address.items())
    assert {one for one, row in by_address.items() if row["live"]} == set(live["address"].to_pylist())
    assert (len({row["task"] for row in found}) > 1) == (at_most < 1000)


def test_files_that_were_changed_do_not_meet(spark: SparkSession, place: Place) -> None:
    """A file that isn't the one that was written ends it with an error, and nothing is missed silently."""
    dataset = written(place, "a", addresses(random.Random(2), 100), 2)
    place.store().write(dataset.folder + dataset.files[1].name, b"something else")
    sides = [Side("stored", (), ADDRESSES), Side("live", (dataset,), ADDRESSES, distinct=True)]

    with pytest.raises(DamagedData, match=r"part-1\.parquet"), errors_from_executors():
        meet(spark, place, sides, met_by_address, MET).collect()


def test_rows_that_were_hashed_otherwise_do_not_meet() -> None:
    """Where one machine hashes in another way than the next, the mark ends: addresses would miss each other."""
    (sent,) = lumps(addresses(random.Random(3), 50), 0, 2)
    check_hashed_alike(sent.column("hashed"))

    with pytest.raises(LakegcError, match="the very same packages"):
        check_hashed_alike(pa.array([how_hashed(), how_hashed() + 1]))
