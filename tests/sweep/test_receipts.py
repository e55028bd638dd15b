"""Receipts are read back as written, are distinguished from other files, and the last outcome counts."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.sweep_outcomes import APPROVED
from spark_resources.deleting.receipts import INTENTS, Receipts, receipt_rows
from spark_resources.errors import DamagedData
from spark_resources.model import RECEIPTS, Namespace, Outcome
from spark_resources.spark.datasets import parquet_bytes
from spark_resources.stores import StoreSettings
from spark_resources.stores.place import Place

FOLDER = "_lakefs/retention/gc/lakegc/m1/receipts/"


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    (tmp_path / "lake").mkdir()
    return Receipts(Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path))), FOLDER)


def rows(*addresses: str, outcome: Outcome = Outcome.DELETED, **changes: Any) -> pa.Table:
    at = datetime(2026, 11, 21, tzinfo=UTC)
    known = {"size": 3, "outcome": outcome.value, "code": "", "why": "", "attempts": 1, "at": at, **changes}
    return pa.Table.from_pylist([{"address": address, **known} for address in addresses], schema=RECEIPTS)


def intents(*addresses: str) -> pa.Table:
    return pa.table({"address": list(addresses)}, schema=INTENTS)


def test_receipts_are_read_back_as_written(receipts: Receipts) -> None:
    """Keys and messages may contain any characters."""
    written = rows("data/s/a", "data/s/two\nlines", "data/s/é %2F+", code="AccessDenied", why="a store's “words”")
    receipts.write("receipt", 3, "00000-7-00000", written)
    receipts.write("intent", 3, "00000-7-00000", intents("data/s/a"))

    assert [receipts.read(key) for key in receipts.keys("receipt")] == [written]
    assert [receipts.read(key) for key in receipts.keys("intent")] == [intents("data/s/a")]


def test_each_value_of_a_receipt_row_is_in_its_own_column() -> None:
    """The order of the objects' columns doesn't matter. A single value applies to all rows; a column has one value per
    row."""
    at = datetime(2026, 11, 21, tzinfo=UTC)
    objects = pa.table({"slice": ["data/s/"] * 2, "size": [3, 5], "address": ["a", "b"]})
    same = receipt_rows(objects, outcome=Outcome.CHANGED, why="its size", at=at)
    columns = {"outcome": ["deleted", "failed"], "code": ["", "Busy"], "why": ["", "too fast"]}
    attempts = pa.array([1, 8], pa.int32())
    written = receipt_rows(objects, **{name: pa.array(of) for name, of in columns.items()}, attempts=attempts, at=at)

    alike: dict[str, Any] = {"outcome": "changed", "code": "", "why": "its size", "attempts": 0, "at": at}
    assert same.to_pylist() == [{"address": "a", "size": 3, **alike}, {"address": "b", "size": 5, **alike}]
    assert written.to_pylist() == [
        {"address": "a", "size": 3, "outcome": "deleted", "code": "", "why": "", "attempts": 1, "at": at},
        {"address": "b", "size": 5, "outcome": "failed", "code": "Busy", "why": "too fast", "attempts": 8, "at": at},
    ]
    assert same.schema == written.schema == RECEIPTS


def test_only_files_named_like_receipts_are_read(receipts: Receipts) -> None:
    """Other files in the folder of a round are ignored."""
    receipts.write("receipt", 1, "00000-7-00000", rows("a"))
    receipts.write("receipt", 2, "00001-8-00000", rows("b"))
    receipts.write("receipt", 12_345, "00001-8-00000", rows("c"))
    data = parquet_bytes(rows("data/planted"))
    for name in ("1/x.1.receipt.parquet", "0001/x.receipt.parquet", "0001/x.1.receipt.parquet.bak", "may-delete-0123"):
        receipts.store.write(FOLDER + name, data)
    named = [key.removeprefix(FOLDER) for key in receipts.keys("receipt")]

    assert named == [
        "0001/00000-7-00000.1.receipt.parquet",
        "0002/00001-8-00000.1.receipt.parquet",
        "12345/00001-8-00000.1.receipt.parquet",
    ]
    assert list(receipts.keys("intent")) == []
    assert [key.removeprefix(FOLDER) for key in receipts.keys("receipt", "0002/00001-")] == named[1:2]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("0001/a.2.receipt.parquet", parquet_bytes(rows("a"))),
        ("0001/a.1.receipt.parquet", parquet_bytes(rows("a"))[:-9]),
        ("0001/a.1.receipt.parquet", b""),
        ("0001/a.1.receipt.parquet", parquet_bytes(intents("a"))),
        ("0001/a.1.intent.parquet", parquet_bytes(pa.table({"key": ["a"]}))),
    ],
    ids=["fewer rows", "truncated", "empty", "an intent", "another column"],
)
def test_a_damaged_receipt_or_intent_raises_an_error_that_names_it(receipts: Receipts, name: str, data: bytes) -> None:
    """A damaged file never counts as a missing one."""
    receipts.store.write(FOLDER + name, data)

    with pytest.raises(DamagedData, match=name.replace(".", r"\.")) as damaged:
        receipts.read(FOLDER + name)
    assert damaged.value.invariant == 10


def test_the_receipt_of_the_latest_round_decides_the_outcome_of_a_key(receipts: Receipts) -> None:
    """The latest round has the highest number, whatever the order of the files' names."""
    receipts.write("receipt", 9_999, "00000-1-00000", rows("a", "b", outcome=Outcome.FAILED, code="AccessDenied"))
    receipts.write("receipt", 10_000, "00000-1-00000", rows("a"))
    receipts.write("receipt", 2, "00000-9-00000", rows("a", "c", outcome=Outcome.CHANGED))
    for number in (1, 2):
        receipts.write("intent", number, "00000-1-00000", intents("a", "b"))
    newest = sweep_outcomes.latest(rows_in(receipts, "receipt")).select(["address", "outcome", "round"]).to_pylist()

    expected = [("a", "deleted", 10_000), ("b", "failed", 9_999), ("c", "changed", 2)]
    assert [tuple(row.values()) for row in newest] == expected
    assert sorted(rows_in(receipts, "intent")["address"].to_pylist()) == ["a", "a", "b", "b"]


def rows_in(receipts: Receipts, kind: str) -> pa.Table:
    """The rows of all files of this kind, grouped as in a sweep."""
    return pa.concat_tables([file.read() for file in receipts.files(kind)])


def test_the_later_of_two_receipts_of_one_round_counts() -> None:
    """If Spark repeats a task, the task writes its receipts again."""
    times = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2)]
    both = [
        rows("a", outcome=outcome, at=at) for outcome, at in zip((Outcome.FAILED, Outcome.DELETED), times, strict=True)
    ]
    for tables in (both, both[::-1]):
        table = pa.concat_tables(tables)
        latest = sweep_outcomes.latest(table.append_column("round", pa.array([1, 1], pa.int32())))

        assert latest["outcome"].to_pylist() == ["deleted"]


def test_a_resumed_sweep_retries_failed_and_interrupted_deletes(receipts: Receipts) -> None:
    """A key is pending if it failed in an earlier run, or if an attempt left an intent without a receipt. Keys that
    failed in this run are left to the next one. Every other outcome is final."""
    final = [outcome for outcome in Outcome if outcome is not Outcome.FAILED]
    for outcome in final:
        receipts.write("receipt", 1, f"00000-1-{outcome.name}", rows(f"data/{outcome.value}", outcome=outcome))
    receipts.write("receipt", 1, "00000-2-00000", rows("data/before", "data/now", outcome=Outcome.FAILED))
    receipts.write("receipt", 2, "00000-3-00000", rows("data/now", outcome=Outcome.FAILED))
    receipts.write("intent", 1, "00000-2-00000", intents("data/before", "data/now", "data/cut off"))
    keys = [f"data/{outcome.value}" for outcome in final] + [
        "data/before",
        "data/now",
        "data/cut off",
        "data/untouched",
    ]
    approved = pa.Table.from_pylist([{"address": key, "size": 3, "slice": "data/"} for key in keys], APPROVED)
    pending = sweep_outcomes.pending(approved, rows_in(receipts, "receipt"), rows_in(receipts, "intent"), since_round=2)

    assert {row["address"]: row["intended"] for row in pending.to_pylist()} == {
        "data/before": True,
        "data/cut off": True,
        "data/untouched": False,
    }


def test_progress_counts_only_receipts_of_the_rounds_tasks(receipts: Receipts) -> None:
    """Receipts of the re-verification, such as those of rescued objects, don't count."""
    receipts.write("receipt", 2, "00000-7-00000", rows("a", "b"))
    receipts.write("receipt", 2, "rescued-part-00000-3", rows("c", outcome=Outcome.RESCUED))
    receipts.write("intent", 2, "00000-7-00001", intents("d", "e"))
    receipts.write("receipt", 1, "00000-5-00000", rows("f"))

    assert receipts.finished_count(2) == 2
