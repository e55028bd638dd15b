"""Names and sizes of the objects of a synthetic repository, computed from their numbers, many at a time."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_ALPHABET = np.frombuffer(b"0123456789abcdefghijklmnopqrstuv", dtype=np.uint8)
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_YEAR_4000, _WRAP = 64_060_588_800, 1 << 32
ADDRESS = len("data/") + 20 + len("/") + 20
LEAST_SIZE = 1 << 28  # all sizes differ, but have the same length in a table


def xids(seconds: Numbers, makers: Numbers, counts: Numbers) -> Bytes:
    """Names of 20 characters, one per row, as lakeFS makes them: four bytes of time, five of the creator, three of a
    counter."""
    raw = np.zeros((len(counts), 12), dtype=np.uint8)
    for place in range(4):
        raw[:, place] = (seconds >> (8 * (3 - place))) & 0xFF
    raw[:, 4:7] = np.frombuffer(b"bch", dtype=np.uint8)
    for place in range(2):
        raw[:, 7 + place] = (makers >> (8 * (1 - place))) & 0xFF
    for place in range(3):
        raw[:, 9 + place] = (counts >> (8 * (2 - place))) & 0xFF
    bits = np.unpackbits(raw, axis=1)
    bits = np.concatenate([bits, np.zeros((len(bits), 4), dtype=np.uint8)], axis=1).reshape(len(raw), 20, 5)
    return _ALPHABET[bits @ np.array([16, 8, 4, 2, 1], dtype=np.uint8)]


def slice_names(opened: Numbers) -> Bytes:
    """Names of slices, one per row, by the seconds at which they were opened. The newest sorts first."""
    numbers = np.arange(len(opened))
    return xids((_YEAR_4000 - opened) % _WRAP, numbers >> 24, numbers)


def addresses(numbers: Numbers, made: Numbers, slices: Bytes) -> Bytes:
    """The addresses of objects, one per row. `made` are their times in seconds; `slices` are the names of their slices,
    one per row."""
    rows = np.empty((len(numbers), ADDRESS), dtype=np.uint8)
    rows[:, :5] = np.frombuffer(b"data/", dtype=np.uint8)
    rows[:, 5:25] = slices
    rows[:, 25] = ord("/")
    rows[:, 26:] = xids(made, numbers >> 24, numbers & 0xFFFFFF)
    return rows


def texts(rows: Bytes) -> list[bytes]:
    """Rows of characters as bytes."""
    return rows.view(f"S{rows.shape[1]}").ravel().tolist()  # type: ignore[no-any-return]


def checksums(numbers: Numbers) -> Bytes:
    """Checksums of 32 hex digits, one per row, in the form of an MD5."""
    halves = [_mixed(numbers.astype(np.uint64) * np.uint64(2) + np.uint64(half)) for half in range(2)]
    raw = np.stack(halves, axis=1).view(np.uint8).reshape(len(numbers), 16)
    return _HEX[np.stack([raw >> 4, raw & 15], axis=2).reshape(len(numbers), 32)]


def _mixed(values: Any) -> Any:
    with np.errstate(over="ignore"):
        values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def sizes(numbers: Numbers) -> Numbers:
    return numbers + LEAST_SIZE
