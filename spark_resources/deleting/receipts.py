"""Receipts of a sweep, written by each task before it continues (invariant 10).

    <folder of the mark>/receipts/<round>/<task>-<chunk>.<rows>.intent.parquet    before a chunk of deletes: its keys
    <folder of the mark>/receipts/<round>/<task>-<chunk>.<rows>.receipt.parquet   after it: each key's outcome

A round is one Spark job of one sweep; a later round's receipt of a key replaces an earlier one. If a key has an
intent but no receipt, its round was interrupted in between; if the next round finds the key gone, it counts as deleted
by the interrupted one, unless the sweep of another mark has a receipt for it. A receipt can make a sweep leave a key
alone, but never makes a sweep delete a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from spark_resources.errors import DamagedData
from spark_resources.model import RECEIPTS, Outcome
from spark_resources.spark.arrow_shuffle import InputFile
from spark_resources.spark.datasets import parquet_bytes
from spark_resources.spark.task_logs import name_pattern, table_of
from spark_resources.stores.base import Store
from spark_resources.stores.place import Place

INTENTS = pa.schema([pa.field("address", pa.string(), nullable=False)])
NUMBERED = pa.schema([pa.field("round", pa.int32(), nullable=False), *RECEIPTS])
_NAME = name_pattern("intent|receipt")


Column: TypeAlias = pa.Array | pa.ChunkedArray


def receipt_rows(
    objects: pa.Table,
    *,
    at: datetime | Column,
    outcome: Outcome | str | Column,
    code: str | Column = "",
    why: str | Column = "",
    attempts: int | Column = 0,
) -> pa.Table:
    """Receipts (RECEIPTS) of these objects (columns address and size).

    A scalar applies to all rows; a column has one value per row. `at` is by the store's clock.
    """
    values = {
        "address": objects["address"], "size": objects["size"], "outcome": outcome, "code": code, "why": why,
        "attempts": attempts, "at": at,
    }  # fmt: skip
    return pa.table([_column(values[field.name], field, len(objects)) for field in RECEIPTS], schema=RECEIPTS)


def _column(value: object, field: pa.Field, rows: int) -> Column:
    return value if isinstance(value, Column) else pa.repeat(pa.scalar(value, field.type), rows)


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of one mark. `folder` is a key with a slash at its end."""

    place: Place
    folder: str

    @property
    def store(self) -> Store:
        return self.place.store()

    def keys(self, kind: str, below: str = "") -> Iterator[str]:
        """The keys of all intent files or all receipt files whose path in the folder starts with `below`."""
        for page in self.store.pages(self.folder + below):
            for listed in page.objects:
                name = _NAME.search(listed.key)
                if name is not None and name.group(4) == kind:
                    yield listed.key

    def have_unfinished(self) -> bool:
        """Whether a chunk has an intent but no receipt, by file names alone: its task was interrupted."""
        chunks: dict[str, set[tuple[str, str]]] = {"intent": set(), "receipt": set()}
        for page in self.store.pages(self.folder):
            for listed in page.objects:
                if name := _NAME.search(listed.key):
                    chunks[name.group(4)].add((name.group(1), name.group(2)))
        return not chunks["intent"] <= chunks["receipt"]

    def finished_count(self, round_number: int) -> int:
        """The number of rows with a receipt from a task of this round, by file names alone. For progress output."""
        names = (_NAME.search(key) for key in self.keys("receipt", f"{round_number:04d}/"))
        return sum(int(name.group(3)) for name in names if name is not None and name.group(2)[0].isdigit())

    def write(self, kind: str, round_number: int, stem: str, table: pa.Table) -> None:
        """Write one file of a task. `stem` is unique to the task's attempt and its chunk."""
        schema = INTENTS if kind == "intent" else RECEIPTS
        key = f"{self.folder}{round_number:04d}/{stem}.{len(table)}.{kind}.parquet"
        self.store.write(key, parquet_bytes(table.select(schema.names).cast(schema)))

    def read(self, key: str) -> pa.Table:
        """One file, as RECEIPTS or INTENTS. Raises `DamagedData` if its content contradicts its name."""
        schema = INTENTS if key.endswith(".intent.parquet") else RECEIPTS
        data = self.store.read(key)
        try:
            return table_of(data, _NAME.search(key), schema)
        except ValueError as error:
            raise DamagedData(
                f"{key} in {self.store.where} can't be read as a sweep's "
                f"{'intent' if schema is INTENTS else 'receipt'} ({error}). The outcomes of its keys are unknown. Move "
                "the file elsewhere and run the same command again: the keys are then looked up again.",
                invariant=10,
            ) from error

    def files(self, kind: str) -> list[InputFile]:
        """All files of receipts (NUMBERED) or of intents (INTENTS), as inputs of a shuffle."""
        return [InputFile(_row_count_of(key), partial(self._numbered, key)) for key in self.keys(kind)]

    def _numbered(self, key: str) -> pa.Table:
        table = self.read(key)
        if key.endswith(".intent.parquet"):
            return table
        round_number = pa.scalar(int(key.split("/")[-2]), pa.int32())
        return table.add_column(0, NUMBERED.field("round"), pa.repeat(round_number, len(table)))


def _row_count_of(key: str) -> int:
    name = _NAME.search(key)
    assert name is not None, "not one of `keys`"
    return int(name.group(3))
