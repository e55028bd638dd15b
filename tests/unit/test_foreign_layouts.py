"""The layouts of the reference collector's marks: what lakegc writes for it, and which of its marks lakegc finds
(formats §5)."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_resources.mark_store.foreign_layouts import ReferenceMark, reference_marks, reference_outputs
from spark_resources.model import ADDRESSES, EXPIRED_OBJECTS, Namespace
from spark_resources.spark.datasets import parquet_bytes, write_outputs
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.mark_runs import SharedSpark, environment

GC = "_lakefs/retention/gc/"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The namespace of a repository, in a folder."""
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def rows(addresses: Sequence[str]) -> pa.Table:
    """An expired set with these addresses."""
    when = datetime(2026, 11, 21, tzinfo=UTC)
    plain = [
        {"address": address, "size": 1, "modified": when, "slice": "data/s", "reason": "r"} for address in addresses
    ]
    return pa.Table.from_pylist(plain, schema=EXPIRED_OBJECTS)


def as_lines(addresses: Sequence[str]) -> tuple[bytes, int]:
    """The expired set as text, and the number of addresses that is reported for it."""
    return reference_outputs("m1")[1].encode(rows(addresses))


# --- what a mark writes -----------------------------------------------------------------------------------------------


def test_the_reference_collector_finds_the_files_that_it_reads(place: Place, tmp_path: Path) -> None:
    """Parquet with the one text column `address` lies in deleted/, lines in deleted.text/, and there is no summary."""
    addresses = ["data/s/a", "data/s/line\nbreak", "legacy", "data/s/é"]
    with environment({}):
        df = SharedSpark().spark_session.createDataFrame(
            rows(addresses).to_pandas(), "address string, size long", False
        )
        (deleted, text), _ = write_outputs(df.coalesce(1), lambda batches, _: batches, place, reference_outputs("m1"))

    folder = tmp_path / "lake" / GC / "unified/m1"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    (parquet,) = (folder / "deleted").glob("*.parquet")
    (lines,) = (folder / "deleted.text").glob("*.txt")
    table = pq.read_table(io.BytesIO(parquet.read_bytes()))
    assert files == {
        f"deleted/{parquet.name}", "deleted/_files.json", f"deleted.text/{lines.name}", "deleted.text/_files.json"
    }  # fmt: skip
    assert table.schema.remove_metadata() == pa.schema([pa.field("address", pa.string(), nullable=False)])
    assert set(table.column("address").to_pylist()) == set(addresses)
    assert lines.read_bytes() == "data/s/a\nlegacy\ndata/s/é\n".encode()
    assert (deleted.rows, text.rows) == (4, 3)


def test_each_line_of_the_text_file_is_one_key_byte_for_byte() -> None:
    """Every line ends with a newline, including the last one."""
    keys = ["data/s/a b", "data/s/#a", "data/;", "a#", "x;y", "data/s/\x1b[31m", "data/s/a\tb", "data/s/%0A", "é", "\\"]

    assert as_lines(keys) == ("".join(f"{key}\n" for key in keys).encode(), len(keys))


@pytest.mark.parametrize(
    "address",
    [
        "data/s/a\nb",
        "data/s/a\rb",
        "data/s/a\r\nb",
        "\ndata/s/a",
        "data/s/a\n",
        "data/s/a\r",
        " data/s/a",
        "data/s/a ",
        "data/s/a\t",
        "data/s/a\v",
        "data/s/a\f",
        "data/s/a\x85",
        "data/s/a\u00a0",
        "data/s/a\u2003",
        "data/s/a\u2028",
        "data/s/a\u202f",
        "data/s/a\u3000",
        "\u00a0legacy",
        "#legacy",
        ";legacy",
    ],
)
def test_a_key_that_rclone_would_misread_is_left_out_of_the_text_file(address: str) -> None:
    """Such a key has a line break, begins or ends with white space (including Unicode's), or looks like a comment."""
    assert as_lines([address]) == (b"", 0)
    assert as_lines(["data/s/first", address, "data/s/last"]) == (b"data/s/first\ndata/s/last\n", 2)


def test_a_key_that_cannot_be_a_line_of_text_is_in_the_parquet_file() -> None:
    data, count = reference_outputs("m1")[0].encode(rows(["data/a\nb", "data/c"]))

    table = pq.read_table(io.BytesIO(data))
    assert count == 2
    assert table.to_pydict() == {"address": ["data/a\nb", "data/c"]}


# --- marks of the reference collector ---------------------------------------------------------------------------------

SUMMARY = b'{"run_id":"x","success":true,"first_slice":"","num_deleted_objects":2}\n'


def leave(place: Place, *keys: str, data: bytes = b"") -> None:
    for key in keys:
        place.store().write(GC + key, data or parquet_bytes(pa.table({"address": ["data/a"]}, schema=ADDRESSES)))


def marks_by_name(place: Place, *, own_ids: frozenset[str] = frozenset()) -> dict[str, ReferenceMark]:
    return {f"{mark.layout}: {mark.mark_id}": mark for mark in reference_marks(place, own_ids=own_ids)}


def test_marks_in_every_layout_of_the_reference_collector_are_found(place: Place) -> None:
    """The files and the summary of each mark are found with it."""
    leave(place, "unified/m1/deleted/part-1.snappy.parquet", "unified/m1/deleted/part-0.snappy.parquet")
    leave(place, "unified/m1/summary.json", "uncommitted/m2/summary.json", data=SUMMARY)
    leave(place, "uncommitted/m2/deleted/part-0.parquet")
    leave(place, "addresses/mark_id=m3/part-0.parquet", "addresses/run_id=m4/part-0.parquet")

    marks = marks_by_name(place)

    summary = json.loads(SUMMARY)
    files = ("unified/m1/deleted/part-0.snappy.parquet", "unified/m1/deleted/part-1.snappy.parquet")
    assert {name: mark.folder.removeprefix(GC) for name, mark in marks.items()} == {
        "unified: m1": "unified/m1/deleted/",
        "uncommitted: m2": "uncommitted/m2/deleted/",
        "committed: m3": "addresses/mark_id=m3/",
        "committed before 0.4: m4": "addresses/run_id=m4/",
    }
    assert {name: mark.summary for name, mark in marks.items()} == {
        "unified: m1": summary,
        "uncommitted: m2": summary,
        "committed: m3": None,
        "committed before 0.4: m4": None,
    }
    assert marks["unified: m1"].files == tuple(GC + name for name in files)
    assert timedelta(0) <= place.store().now() - marks["unified: m1"].written < timedelta(minutes=5)


def test_other_files_are_not_marks_of_the_reference_collector(place: Place) -> None:
    """Hidden, deeper and other kinds of files, the server's lists and lakegc's own marks are ignored."""
    leave(
        place,
        "unified/a/deleted/_SUCCESS",
        "unified/b/deleted/.part-0.parquet.crc",
        "unified/c/deleted/.hidden.parquet",
        "unified/d/deleted/_hidden.parquet",
        "unified/e/deleted/deeper/part-0.parquet",
        "unified/f/deleted.text/part-0.txt",
        "unified/g/part-0.parquet",
        "unified/ours/deleted/part-0.parquet",
        "addresses/mark_id=h/part-0.csv",
        "addresses.text/mark_id=i/part-0.txt",
        "commits/run_id=j/commits.csv",
        "uncommitted/k/uncommitted/part-0.parquet",
        "lakegc/l/deleted/part-0.parquet",
    )
    leave(place, "unified/m/summary.json", data=SUMMARY)

    assert marks_by_name(place, own_ids=frozenset({"ours"})) == {}
    assert list(marks_by_name(place)) == ["unified: ours"]


@pytest.mark.parametrize("data", [b"", b"\xff", b"[1]", b"{", b'"success"'])
def test_an_unreadable_summary_counts_as_empty(place: Place, data: bytes) -> None:
    """The summary exists, but doesn't show that the collector succeeded."""
    leave(place, "unified/m1/deleted/part-0.parquet")
    place.store().write(f"{GC}unified/m1/summary.json", data)

    assert marks_by_name(place)["unified: m1"].summary == {}
