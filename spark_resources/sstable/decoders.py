"""The protocol of a table decoder, and the choice of a decoder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from spark_resources.host.user_folders import cache_folder
from spark_resources.sstable.blocks import Table
from spark_resources.sstable.readable_decoder import ReadableDecoder

READABLE = ReadableDecoder()

#: The vectorized decoder pays off from this many bytes of tables on, which is about 65,000 entries.
VECTORIZED_MIN_BYTES = 2 << 20


class Decoder(Protocol):
    """Reads a whole table or raises `InvalidTable`. All decoders return the same results."""

    @property
    def name(self) -> str: ...

    def entries(self, table: Table, columns: Sequence[str]) -> pa.RecordBatch:
        """The requested columns of every entry of a range, in order. Other fields are skipped, not decoded."""
        ...

    def entries_and_content(self, table: Table, columns: Sequence[str]) -> tuple[pa.RecordBatch, Iterable[bytes]]:
        """The results of `entries` and `content` for a range, in one pass if the decoder supports that.

        The content must be used before the thread reads another table.
        """
        ...

    def content(self, table: Table) -> Iterable[bytes]:
        """The records of any table in the form from which its id is computed, in pieces of any length.

        The pieces must be used before the thread reads another table.
        """
        ...


def default_decoder(size: int) -> Decoder:
    """The decoder for a job with `size` bytes of tables to read.

    Starting the vectorized decoder takes about two seconds per process (ten the first time on a machine, to compile).
    So it is used only for jobs that would take longer with the readable one, and then for all later reads in the
    process.
    """
    started = vectorized_decoder.cache_info().currsize > 0
    return vectorized_decoder() if started or size >= VECTORIZED_MIN_BYTES else READABLE


@cache
def vectorized_decoder() -> Decoder:
    """The vectorized decoder, or the readable one with a warning if numba or a folder for its cache is missing."""
    try:
        import numba

        if not can_cache(numba.njit):
            numba.config.CACHE_DIR = str(cache_folder() / "numba")  # type: ignore[attr-defined]
        from spark_resources.sstable.vectorized_decoder import VectorizedDecoder
    except (ImportError, OSError, RuntimeError) as error:
        warnings.warn(
            f"numba can't be used ({error}), so tables are decoded in plain Python, about fifty times slower. "
            "Install numba, or set NUMBA_CACHE_DIR to a writable folder.",
            RuntimeWarning,
            stacklevel=2,
        )
        return READABLE
    return VectorizedDecoder()


def can_cache(njit: Callable[..., Any]) -> bool:
    """Whether numba finds a cache folder for compiled code: next to this installation or in the user's home."""
    try:
        njit(cache=True)(can_cache)
    except RuntimeError:
        return False
    return True


def decoders() -> list[Decoder]:
    """All decoders, for comparisons."""
    return [READABLE, vectorized_decoder()]
