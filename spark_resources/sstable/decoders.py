"""What a decoder of tables is, and which one to take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from spark_resources.sstable.blocks import Table
from spark_resources.sstable.readable import ReadableDecoder

READABLE = ReadableDecoder()


class Decoder(Protocol):
    """Reads a whole table or raises `Broken`; which decoder it was can't be told from what comes back."""

    @property
    def name(self) -> str: ...

    def entries(self, table: Table, columns: Sequence[str]) -> pa.RecordBatch:
        """The asked-for columns of every entry of a range, in order. Other fields are skipped, not decoded."""
        ...

    def content(self, table: Table) -> Iterable[bytes]:
        """The records of any table as its id reads them, in pieces of any length."""
        ...


def default_decoder(size: int) -> Decoder:
    """The decoder for `size` bytes of tables."""
    return READABLE


def decoders() -> list[Decoder]:
    """Every decoder that works here, for whoever wants to compare them."""
    return [READABLE]
