"""The smallest parts of a table: varints, protobuf fields, and the one error for invalid bytes.

Everything here works on bytes that may be malicious: no number is trusted before it is checked against the available
data, and nothing recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_resources.errors import DamagedData

_SIGN = 1 << 63
_WRAP = 1 << 64
VARINT = 0
LENGTH_DELIMITED = 2


class InvalidTable(Exception):
    """Raised inside the package for invalid bytes; `errors_for_table` adds the table's name and the `advice`."""

    advice = "Restore this table from a backup."


@contextmanager
def errors_for_table(name: str) -> Iterator[None]:
    """Translates `InvalidTable` into `DamagedData` for the table `name`."""
    try:
        yield
    except InvalidTable as error:
        raise DamagedData(f"table {name} can't be read: {error}. Nothing was deleted. {error.advice}") from error


def uvarint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The unsigned varint at `at`, and where it ends: at most ten bytes and 64 bits, never extending past `end`."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >= _WRAP:
                break
            return value, at
        shift += 7
        if shift > 63:
            break
    raise InvalidTable("a number runs past the end of the data, or has more than 64 bits")


def as_uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> int:
    """The value of a 64-bit varint as a protobuf int64 (two's complement)."""
    return value - _WRAP if value >= _SIGN else value


def unsigned(value: int) -> int:
    return value + _WRAP if value < 0 else value


def text(data: bytes, what: str) -> str:
    """Decode bytes that must be UTF-8, like protobuf strings."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidTable(f"{what} is not UTF-8") from error


def fields(message: bytes, kinds: dict[int, int], what: str) -> Iterator[tuple[int, int, bytes]]:
    """The fields of a protobuf message: number, value of a varint (otherwise 0), bytes of a string (otherwise empty).

    `kinds` has the wire type of every field that lakegc knows; any other field is refused, because ignoring it might
    lose live data.
    """
    at, end = 0, len(message)
    while at < end:
        number, kind = message[at] >> 3, message[at] & 7  # all known tags fit into one byte
        if kinds.get(number) != kind:
            raise InvalidTable(f"{what} has an unknown field (its tag starts with 0x{message[at]:02x})")
        value, at = uvarint(message, at + 1, end)
        if kind == VARINT:
            yield number, value, b""
            continue
        if value > end - at:
            raise InvalidTable(f"field {number} of {what} runs past the message's end")
        yield number, 0, message[at : at + value]
        at += value


def varint_field(number: int, value: int) -> bytes:
    """A varint field as protobuf 3 writes it. The default value is not written at all."""
    return b"" if value == 0 else as_uvarint(number << 3 | VARINT) + as_uvarint(unsigned(value))


def bytes_field(number: int, value: bytes) -> bytes:
    return as_uvarint(number << 3 | LENGTH_DELIMITED) + as_uvarint(len(value)) + value


def text_field(number: int, value: str) -> bytes:
    return b"" if value == "" else bytes_field(number, value.encode("utf-8"))
