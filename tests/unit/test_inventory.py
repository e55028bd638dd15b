"""Inventories, which are lists of a bucket's objects made by another program: their required content and their
candidates."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.mark.inventory_listing import inventory_candidates
from lakegc_assets.rules.addresses import is_candidate
from spark_resources.errors import DamagedData, WrongUsage
from spark_resources.stores.inventory import LISTED, Inventory, open_inventory, read_inventory
from spark_resources.stores.keys import EMPTY_SEGMENT, OBJECT_AND_FOLDER
from spark_resources.stores.settings import StoreSettings
from tests.support.s3_servers import SeaweedFS

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ROWS = [("lake/data/s/a b+%", 5, NOON, "e1"), ("lake/data/s/ü/c", 0, NOON - timedelta(days=3), "e2-2")]
S3_COLUMNS = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"


def read(inventory: Inventory) -> list[tuple[Any, ...]]:
    tables = [table for file in inventory.files for table in read_inventory(inventory, file)]
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def csv_of(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue().encode()


def s3_csv(rows: Iterable[tuple[str, int, datetime, str]]) -> bytes:
    """A CSV as S3 Inventory writes it, with an old version and a delete marker."""
    current = [
        ["b", quote_plus(key, safe="/"), "v", "true", "false", size, time.strftime("%Y-%m-%dT%H:%M:%S.000Z"), etag]
        for key, size, time, etag in rows
    ]
    others = [
        ["b", "lake/data/s/old", "v", "false", "false", 1, "2026-01-01T00:00:00.000Z", "e"],
        ["b", "lake/data/s/hidden", "v", "true", "true", "", "2026-01-01T00:00:00.000Z", ""],
    ]
    return gzip.compress(csv_of([*current, *others]))


def s3_inventory(folder: Path, data: bytes, *, form: str = "CSV", name: str = "inv/data/1.csv.gz") -> Path:
    """A manifest with its checksum and one file, as in a bucket of that name."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    md5 = hashlib.md5(data).hexdigest()
    manifest = {
        "sourceBucket": "b",
        "destinationBucket": "arn:aws:s3:::d",
        "version": "2016-11-30",
        "creationTimestamp": str(int(NOON.timestamp() * 1000)),
        "fileFormat": form,
        "fileSchema": S3_COLUMNS if form == "CSV" else "message s3.inventory {…}",
        "files": [{"key": name, "size": len(data), "MD5checksum": md5}],
    }
    written = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(written)
    (folder / "manifest.checksum").write_text(hashlib.md5(written).hexdigest() + "\n")
    return folder / "manifest.json"


def test_keys_of_an_s3_inventory_in_csv_are_decoded(tmp_path: Path) -> None:
    """Old versions and delete markers are left out."""
    inventory = open_inventory(str(s3_inventory(tmp_path, s3_csv(ROWS))), StoreSettings(), taken=None)

    assert (inventory.bucket, inventory.taken) == ("b", NOON)
    assert read(inventory) == ROWS


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    """A few hundred kB of gzip can contain hundreds of MB: a task would run out of memory or never end."""
    head = csv_of([["Key", "Size", "Last-Modified"]])
    row = csv_of([["data/s/" + "a" * 900, 1, NOON.isoformat()]])
    (tmp_path / "list.csv.gz").write_bytes(gzip.compress(head + row * (100_000_000 // len(row))))
    file = tmp_path / "list.csv.gz"
    assert file.stat().st_size < 1_000_000
    inventory = open_inventory(str(file), StoreSettings(), taken=NOON)

    with pytest.raises(DamagedData, match=r"400 times its size.*decompress it"):
        deque(read_inventory(inventory, inventory.files[0]), maxlen=0)


@pytest.mark.parametrize("zone", ["UTC", None])
def test_an_s3_inventory_in_parquet_has_the_same_objects_as_one_in_csv(tmp_path: Path, zone: str | None) -> None:
    """Times are in UTC whether or not the file says so."""
    keys, sizes, times, tags = zip(*ROWS, ("lake/data/s/old", 1, NOON, "e"), strict=True)
    stamps = pa.array([time.replace(tzinfo=None) for time in times], pa.timestamp("ms")).cast(pa.timestamp("ms", zone))
    table = pa.table(
        {"bucket": ["b"] * 3, "key": keys, "is_latest": [True, True, False], "size": sizes,
         "last_modified_date": stamps, "e_tag": tags}
    )  # fmt: skip
    sink = io.BytesIO()
    pq.write_table(table, sink)
    file = s3_inventory(tmp_path, sink.getvalue(), form="Parquet", name="inv/data/1.parquet")

    assert read(open_inventory(str(file), StoreSettings(), taken=None)) == ROWS


def test_a_csv_file_without_a_manifest_is_refused_unless_its_time_is_given(tmp_path: Path) -> None:
    """Any CSV that names its columns is accepted, but only with the time at which its creation began."""
    header = ["Key", "Size", "Last-Modified"]
    (tmp_path / "list.csv").write_bytes(csv_of([header, *([k, s, t.isoformat()] for k, s, t, _ in ROWS)]))
    inventory = open_inventory(str(tmp_path), StoreSettings(), taken=NOON)

    assert [(*row[:3], None) for row in ROWS] == read(inventory)
    with pytest.raises(WrongUsage, match="--inventory-taken"):
        open_inventory(str(tmp_path), StoreSettings(), taken=None)


def test_an_inventory_is_read_from_a_bucket(tmp_path: Path, seaweedfs: SeaweedFS) -> None:
    """The manifest in S3 is read with the credentials of the store, and so are the files beside it."""
    seaweedfs.make_bucket("inventories")
    s3_inventory(tmp_path, s3_csv(ROWS))
    for file in (path for path in tmp_path.rglob("*") if path.is_file()):
        key = str(file.relative_to(tmp_path))
        seaweedfs.client().put_object(Bucket="inventories", Key=key, Body=file.read_bytes())

    assert read(open_inventory("s3://inventories/manifest.json", seaweedfs.settings(), taken=None)) == ROWS


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / "manifest.checksum").write_text("0" * 32), "checksum"),
        (lambda folder: (folder / "inv/data/1.csv.gz").write_bytes(s3_csv(ROWS[:1])), "MD5"),
    ],
)
def test_an_altered_inventory_is_refused(tmp_path: Path, harm: Any, words: str) -> None:
    """The error names the manifest or file whose checksum differs."""
    file = s3_inventory(tmp_path, s3_csv(ROWS))
    harm(tmp_path)

    with pytest.raises(DamagedData, match=words):
        read(open_inventory(str(file), StoreSettings(), taken=None))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("key,size\na,1\n", "modified"),
        ("key,size,time\na,one,2026-01-01T00:00:00Z\n", "one"),
        ("key,size,time\na,1,2026-01-01T00:00:00\n", "zone"),
        ("key,size,time\na,,2026-01-01T00:00:00Z\n", "int64"),
        ("key,name,size,time\na,b,1,2026-01-01T00:00:00Z\n", "have the same meaning"),
        ("key,key,size,time\na,b,1,2026-01-01T00:00:00Z\n", "have the same meaning"),
        ("key, size, last modified\na,1,2026-01-01T00:00:00\n", "zone"),
        ('"a\nnote",key,size,time\nx,a,1,2026-01-01T00:00:00\n', "not a valid header"),
        ("key,size,time\ra,1,2026-01-01T00:00:00Z\r", "new-line"),
    ],
)
def test_an_incomplete_or_ambiguous_csv_file_raises_an_error(tmp_path: Path, text: str, words: str) -> None:
    """The error names the file."""
    (tmp_path / "list.csv").write_text(text)

    with pytest.raises(DamagedData, match=f"list.csv.*({words})"):
        read(open_inventory(str(tmp_path / "list.csv"), StoreSettings(), taken=NOON))


def test_a_key_that_consists_of_digits_is_read_as_text(tmp_path: Path) -> None:
    """Blanks in the header don't change that."""
    (tmp_path / "list.csv").write_text("size, key, time\n1,0012,2026-01-01T00:00:00Z\n")

    assert [row[0] for row in read(open_inventory(str(tmp_path / "list.csv"), StoreSettings(), taken=NOON))] == ["0012"]


@pytest.mark.parametrize("times", [pa.array([1_763_683_200_000]), pa.array([20_000], pa.int32()).cast(pa.date32())])
def test_times_written_as_numbers_or_dates_are_refused(tmp_path: Path, times: pa.Array) -> None:
    """Read in the wrong unit, they would make every object old enough to delete."""
    pq.write_table(pa.table({"key": ["a"], "size": [1], "time": times}), tmp_path / "list.parquet")

    with pytest.raises(DamagedData, match="expected timestamps"):
        read(open_inventory(str(tmp_path / "list.parquet"), StoreSettings(), taken=NOON))


@pytest.mark.parametrize("taken", ["9" * 30, "-99999999999999"])
def test_a_manifest_with_an_impossible_time_is_refused(tmp_path: Path, taken: str) -> None:
    """The error names the manifest."""
    file = s3_inventory(tmp_path, s3_csv(ROWS))
    changed = json.dumps(json.loads(file.read_bytes()) | {"creationTimestamp": taken}).encode()
    file.write_bytes(changed)
    (tmp_path / "manifest.checksum").write_text(hashlib.md5(changed).hexdigest())

    with pytest.raises(DamagedData, match="manifest"):
        open_inventory(str(file), StoreSettings(), taken=None)


def test_a_key_that_the_store_would_change_is_not_a_candidate() -> None:
    """The store would return another object for such a key. In other stores the key is a candidate, with its slice."""
    keys = ["data//o", "data/s//o", "data/s/o"]
    table = pa.table([keys, [1] * 3, [NOON] * 3, [None] * 3], schema=LISTED)
    folding = inventory_candidates(table, "", local_adapter=False, unsupported_keys={EMPTY_SEGMENT, OBJECT_AND_FOLDER})

    assert folding["address"].to_pylist() == ["data/s/o"]
    assert inventory_candidates(table, "", local_adapter=False)["slice"].to_pylist() == ["data//", "data/s/", "data/s/"]


@given(st.lists(st.text(st.sampled_from("dat/_lkefs0123456789-xümy"), max_size=24)), st.booleans())
def test_an_inventory_has_the_same_candidates_as_a_listing(names: list[str], local_adapter: bool) -> None:
    """The candidates are exactly the listed objects in the namespace that may be collected."""
    keys = [*names, *(f"ns/{name}" for name in names), "ns/data/s/o", "ns/data/o", "ns/0a-00001", "ns/dummy", "ns/x"]
    table = pa.table([keys, [1] * len(keys), [NOON] * len(keys), [None] * len(keys)], schema=LISTED)
    candidates = inventory_candidates(table, "ns/", local_adapter=local_adapter).to_pylist()
    wanted = [key[3:] for key in keys if key.startswith("ns/") and is_candidate(key[3:], local_adapter=local_adapter)]

    assert [row["address"] for row in candidates] == wanted
    assert all(row["address"].startswith(row["slice"]) for row in candidates)
    assert {row["slice"] for row in candidates if row["address"] == "data/s/o"} == {"data/s/"}
