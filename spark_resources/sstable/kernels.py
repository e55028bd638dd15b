"""The loops of the vectorized decoder, compiled by numba.

Compiled code has no bounds checks, so each index is checked against the available data before it is used. A function
that finds broken data returns a negative number or False, and the readable decoder then finds the reason.

All compiled code and its constants are in this one file, because numba recompiles a cached function only when the
function's own file has changed. A test compares the constants with those of `blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Offsets = NDArray[np.int32]
_P = ParamSpec("_P")
_R = TypeVar("_R")
_int = cast(Callable[[object], int], np.int64)
_at = np.uint64  # an index of this type can't be negative, which saves a check in compiled code

BLOCK_TRAILER = 5
KEY_TRAILER = 8
MIN_BLOCK_BYTES = 8
SNAPPY_RATIO = 22
MAX_BYTES = 1 << 30
FIRST_SECOND, LAST_SECOND = -62135596800, 253402300799

BROKEN = -1
BAR = 0x7C
SLACK = 16  # extra bytes at the end of an output buffer, so that short copies may overrun

# indexes into Scratch.state
ROWS, KEY_LENGTH, KEY_BYTES, FIRST_LENGTH, STATED_ROWS, STATED_KEY_BYTES, CONTENT, STATE = range(8)
# indexes into the fields that `parse_entry` finds: start and length of a text, value of a number
ADDRESS, ADDRESS_LENGTH, TIME, TIME_LENGTH, HAS_TIME, SIZE, CHECKSUM, CHECKSUM_LENGTH, ADDRESS_TYPE, FIELDS = range(10)


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function on its first call, or load it from numba's cache. It must not allocate arrays.

    The caller allocates all arrays, so `_nrt` is off. This avoids reference counting for each entry, which took more
    than half of the time.
    """
    options: dict[str, bool] = {"_nrt": False}  # missing in numba's type stubs
    return cast(Callable[_P, _R], numba.njit(cache=True, nogil=True, **options)(function))  # type: ignore[call-overload]


def compiled_with_arrays(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Like `compiled`, for a function that allocates arrays."""
    return cast(Callable[_P, _R], numba.njit(cache=True, nogil=True)(function))


def _crc_tables() -> NDArray[np.uint32]:
    """Eight tables for computing CRC32C eight bytes at a time."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, value] = crc
    for table in range(1, 8):
        previous = tables[table - 1]
        tables[table] = tables[0, previous & 0xFF] ^ previous >> 8
    return tables


_CRC = _crc_tables()


@compiled
def masked_crc(data: Bytes, at: int, end: int) -> int:
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= 8:
        low = crc ^ (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        crc = np.uint32(
            _CRC[7, low & np.uint32(0xFF)]
            ^ _CRC[6, low >> np.uint32(8) & np.uint32(0xFF)]
            ^ _CRC[5, low >> np.uint32(16) & np.uint32(0xFF)]
            ^ _CRC[4, low >> np.uint32(24) & np.uint32(0xFF)]
            ^ _CRC[3, data[at + 4]]
            ^ _CRC[2, data[at + 5]]
            ^ _CRC[1, data[at + 6]]
            ^ _CRC[0, data[at + 7]]
        )
        at += 8
    while at < end:
        crc = np.uint32(_CRC[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ crc >> np.uint32(8))
        at += 1
    plain = _int(crc ^ np.uint32(0xFFFFFFFF))
    return ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


@compiled
def long_uvarint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    value = _int(0)
    shift = 0
    while at < end:
        byte = _int(data[_at(at)])
        at += 1
        if shift == 63 and byte > 1:
            break
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, BROKEN


@compiled
def uvarint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Like `wire.uvarint`, but values from 2**63 on wrap to negative ones; the end of an invalid varint is BROKEN."""
    if at < end and data[_at(at)] < 0x80:
        return _int(data[_at(at)]), at + 1
    return long_uvarint(data, at, end)


@compiled
def declared_length(data: Bytes, offset: int, length: int) -> int:
    """The decompressed length that a block declares, or BROKEN if it is impossible."""
    end = offset + length
    if data[end] == 0:
        return length
    raw, at = uvarint(data, offset, end)
    if data[end] != 1 or at < 0 or at - offset > 5 or raw > min(MAX_BYTES, SNAPPY_RATIO * length):
        return BROKEN
    return raw


@compiled
def raw_length(data: Bytes, limit: int, offset: int, length: int) -> int:
    """The decompressed length of a block; BROKEN if it extends beyond `limit`, or its checksum or length is invalid."""
    if offset < 0 or length < 0 or offset > limit - BLOCK_TRAILER or length > limit - BLOCK_TRAILER - offset:
        return BROKEN
    end = offset + length
    if masked_crc(data, offset, end + 1) != number(data, end + 1, 4):
        return BROKEN
    raw = declared_length(data, offset, length)
    return raw if raw >= MIN_BLOCK_BYTES else BROKEN


@compiled
def copy8(target: Bytes, to: int, source: Bytes, at: int) -> None:
    """Copy eight bytes, all read before the first is written: one load and one store."""
    a, b, c, d = source[_at(at)], source[_at(at + 1)], source[_at(at + 2)], source[_at(at + 3)]
    e, f, g, h = source[_at(at + 4)], source[_at(at + 5)], source[_at(at + 6)], source[_at(at + 7)]
    target[_at(to)], target[_at(to + 1)], target[_at(to + 2)], target[_at(to + 3)] = a, b, c, d
    target[_at(to + 4)], target[_at(to + 5)], target[_at(to + 6)], target[_at(to + 7)] = e, f, g, h


@compiled
def copy_bytes(target: Bytes, to: int, source: Bytes, at: int, length: int) -> None:
    """Copy in steps of eight bytes. Both buffers need slack."""
    for place in range(0, length, 8):
        copy8(target, to + place, source, at + place)


@compiled
def number(data: Bytes, at: int, length: int) -> int:
    """A little-endian number of up to four bytes."""
    value = _int(0)
    for place in range(length):
        value |= _int(data[_at(at + place)]) << (8 * place)
    return value


@compiled
def decompress(data: Bytes, at: int, end: int, out: Bytes, raw: int) -> int:
    """Decompress the Snappy elements from `at` to `end` into `out`, which has room for `raw` bytes plus slack.

    Returns 0 if the result has exactly `raw` bytes, else BROKEN.
    """
    written = 0
    while at < end:
        tag = _int(data[_at(at)])
        at += 1
        extra = tag & 3
        length = (tag >> 2) + 1
        if extra == 0:
            if length > 60:
                extra = length - 60
                if extra > end - at:
                    return BROKEN
                length = number(data, at, extra) + 1
                at += extra
            if length > end - at or length > raw - written:
                return BROKEN
            if length <= 16 and end - at >= 16:
                copy8(out, written, data, at)
                copy8(out, written + 8, data, at + 8)
            else:
                for place in range(length):
                    out[_at(written + place)] = data[_at(at + place)]
            at += length
        else:
            if extra == 3:
                extra = 4
            if extra > end - at:
                return BROKEN
            offset = number(data, at, extra)
            at += extra
            if extra == 1:
                length = (tag >> 2 & 7) + 4
                offset |= tag >> 5 << 8
            if offset == 0 or offset > written or length > raw - written:
                return BROKEN
            if offset >= 8:
                copy_bytes(out, written, out, written - offset, length)
            else:
                for place in range(length):
                    out[_at(written + place)] = out[_at(written - offset + place)]
        written += length
    return 0 if written == raw else BROKEN


@compiled
def load(data: Bytes, offset: int, length: int, raw: int, out: Bytes) -> int:
    """Load a block, of `raw` bytes when decompressed, into `out`; returns where its records end, or BROKEN."""
    end = offset + length
    if data[end] == 1:
        _, at = uvarint(data, offset, end)
        if decompress(data, at, end, out, raw) != 0:
            return BROKEN
    else:
        for place in range(length):
            out[_at(place)] = data[_at(offset + place)]
    restarts = number(out, raw - 4, 4)
    return BROKEN if restarts < 1 or 4 * restarts > raw - 4 else raw - 4 - 4 * restarts


@compiled
def record(block: Bytes, at: int, end: int, previous_length: int) -> tuple[int, int, int, int]:
    """The record at `at`: the lengths of the shared and unshared parts of its key, where the unshared part begins (or
    BROKEN), and the length of its value. `previous_length` is the length of the previous key in the block.
    """
    shared, at = uvarint(block, at, end)
    if at < 0 or shared < 0 or shared > previous_length:
        return 0, 0, BROKEN, 0
    unshared, at = uvarint(block, at, end)
    if at < 0:
        return 0, 0, BROKEN, 0
    length, at = uvarint(block, at, end)
    if at < 0 or unshared < 0 or unshared > end - at or length < 0 or length > end - at - unshared:
        return 0, 0, BROKEN, 0
    return shared, unshared, at, length


@compiled_with_arrays
def add_handles(
    data: Bytes, limit: int, index_handle: tuple[int, int], output: Ints, progress: tuple[int, int]
) -> tuple[int, int]:
    """Add the handles in the index block at `index_handle` to `output`; returns the new `progress`, or BROKEN twice.

    `progress` is the number of handles so far and the end of the last block, where the next block has to begin; if that
    end is negative, the next block may begin anywhere.
    """
    broken = BROKEN, BROKEN
    offset, length = index_handle
    count, begin = progress
    raw = raw_length(data, limit, offset, length)
    if raw < 0:
        return broken
    block = np.empty(raw + SLACK, dtype=np.uint8)
    end = load(data, offset, length, raw, block)
    if end < 0:
        return broken
    at, previous_length, key_bytes = _int(0), _int(0), _int(0)
    while at < end:
        shared, unshared, at, value = record(block, at, end, previous_length)
        if at < 0:
            return broken
        previous_length = shared + unshared
        key_bytes += previous_length
        at += unshared
        block_offset, middle = uvarint(block, at, at + value)
        if middle < 0 or key_bytes > MAX_BYTES:
            return broken
        block_length, stop = uvarint(block, middle, at + value)
        if stop != at + value or block_offset < 0 or block_offset > limit or block_length < 0 or block_length > limit:
            return broken
        if (begin >= 0 and block_offset != begin) or count >= len(output):
            return broken
        output[count, 0], output[count, 1] = block_offset, block_length
        count += 1
        begin = block_offset + block_length + BLOCK_TRAILER
        at += value
    return count, begin


@compiled_with_arrays
def data_blocks(data: Bytes, limit: int, offset: int, length: int, two_levels: bool) -> tuple[int, Ints]:
    """Like `blocks.data_blocks`: the number of data blocks, or BROKEN, and their handles."""
    max_blocks = limit // BLOCK_TRAILER + 2  # there can't be more contiguous blocks
    blocks = np.empty((max_blocks, 2), dtype=np.int64)
    count, end = add_handles(data, limit, (offset, length), blocks, (_int(0), _int(-1 if two_levels else 0)))
    if count <= 0 or end != offset:
        return BROKEN, blocks
    if not two_levels:
        return count, blocks
    parts, blocks = blocks, np.empty((max_blocks, 2), dtype=np.int64)
    total, end = _int(0), _int(0)
    for part in range(count):
        total, end = add_handles(data, limit, (parts[part, 0], parts[part, 1]), blocks, (total, end))
        if total < 0:
            return BROKEN, blocks
    return (total if total > 0 and end == parts[0, 0] else BROKEN), blocks


@compiled
def raw_sizes(data: Bytes, limit: int, blocks: Ints) -> tuple[int, int]:
    """The largest and the total size of decompressed data blocks, in bytes; BROKEN if invalid or too large."""
    largest, total = _int(0), _int(0)
    for block in range(len(blocks)):
        raw = raw_length(data, limit, blocks[block, 0], blocks[block, 1])
        total += raw
        largest = max(largest, raw)
        if raw < 0 or total > MAX_BYTES:
            return BROKEN, BROKEN
    return largest, total


@compiled
def next_key(block: Bytes, at: int, lengths: tuple[int, int], key: Bytes, length: int) -> int:
    """Turn `key` into the next key; returns its length, or BROKEN if it is out of order or its trailer isn't a set's.

    `length` is the length of `key` without trailer, negative before the first key; `lengths` are those of the shared
    prefix and of the unshared rest, which is at `at`.
    """
    shared, unshared = lengths
    new_length = shared + unshared - KEY_TRAILER
    if new_length < 0:
        return BROKEN
    if length >= 0:
        common = min(shared, new_length, length)
        least = min(new_length, length)
        while common < least and key[_at(common)] == block[_at(at + common - shared)]:
            common += 1
        if common == least:
            if new_length <= length:
                return BROKEN
        elif key[_at(common)] > block[_at(at + common - shared)]:
            return BROKEN
    copy_bytes(key, shared, block, at, unshared)
    if number(key, new_length, 4) != 1 or number(key, new_length + 4, 4) != 0:
        return BROKEN
    return new_length


class Scratch(NamedTuple):
    """State that is carried from block to block.

    The decompressed block, the last key, the first key, numbers (see ROWS), and the positions of the last entry's
    fields (see ADDRESS).
    """

    block: Bytes
    key: Bytes
    first: Bytes
    state: Ints
    fields: Ints


@compiled
def next_record(scratch: Scratch, at: int, end: int, previous_length: int) -> tuple[int, int, int]:
    """Read the next record, and put its key into `scratch`.

    Returns the start of its value (or BROKEN), and the lengths of its value and key. `previous_length` is the length
    of the previous key in this block. Both key lengths include the trailer.
    """
    block, key, first, state, _ = scratch
    shared, unshared, at, size = record(block, at, end, previous_length)
    if at < 0:
        return BROKEN, 0, 0
    length = next_key(block, at, (shared, unshared), key, state[KEY_LENGTH])
    state[KEY_BYTES] += shared + unshared
    if length < 0 or state[ROWS] >= state[STATED_ROWS] or state[KEY_BYTES] > state[STATED_KEY_BYTES]:
        return BROKEN, 0, 0
    if state[ROWS] == 0:
        copy_bytes(first, 0, key, 0, length)
        state[FIRST_LENGTH] = length
    state[KEY_LENGTH] = length
    state[ROWS] += 1
    return at + unshared, size, shared + unshared


@compiled
def parse_entry(block: Bytes, at: int, end: int, fields: Ints) -> bool:
    """Parse the entry from `at` to `end`, and put the positions of its fields into `fields` (see ADDRESS).

    Returns whether the entry is valid.
    """
    zigzag, at = uvarint(block, at, end)
    if at < 0 or zigzag < 0 or zigzag & 1 or zigzag >> 1 > end - at:
        return False
    zigzag, at = uvarint(block, at + (zigzag >> 1), end)
    if at < 0 or zigzag & 1 or zigzag < 0 or zigzag >> 1 != end - at:
        return False
    for place in range(len(fields)):
        fields[_at(place)] = 0
    seen = 0
    while at < end:
        tag = _int(block[_at(at)])
        value, at = uvarint(block, at + 1, end)
        if at < 0 or tag > 63 or (tag != 0x2A and seen >> tag & 1):
            return False
        seen |= 1 << tag
        if tag == 0x18:
            fields[SIZE] = value
        elif tag == 0x30:
            fields[ADDRESS_TYPE] = value
        else:
            if value < 0 or value > end - at:
                return False
            if tag == 0x0A:
                fields[ADDRESS], fields[ADDRESS_LENGTH] = at, value
            elif tag == 0x12:
                fields[TIME], fields[TIME_LENGTH], fields[HAS_TIME] = at, value, 1
            elif tag == 0x22:
                fields[CHECKSUM], fields[CHECKSUM_LENGTH] = at, value
            elif tag not in (0x2A, 0x3A):
                return False
            at += value
    return bool(fields[ADDRESS_LENGTH] > 0 and fields[ADDRESS_TYPE] >= 0 and fields[ADDRESS_TYPE] <= 2)


@compiled
def micros(block: Bytes, at: int, length: int) -> tuple[int, bool]:
    """A protobuf Timestamp in microseconds since 1970, and whether it is valid."""
    end = at + length
    seconds, nanos, seen = _int(0), _int(0), _int(0)
    while at < end:
        tag = _int(block[_at(at)])
        if tag not in (0x08, 0x10) or seen & tag:
            return 0, False
        seen |= tag
        value, at = uvarint(block, at + 1, end)
        if at < 0:
            return 0, False
        if tag == 0x08:
            seconds = value
        else:
            nanos = value
    if seconds < FIRST_SECOND or seconds > LAST_SECOND or nanos < 0 or nanos >= 1_000_000_000:
        return 0, False
    return seconds * 1_000_000 + nanos // 1000, True


class Columns(NamedTuple):
    """Buffers for columns; those of a column that is not requested have length 0.

    A text column is its concatenated bytes and the offset of each text, with the total length at the end; `has_time`
    is 1 for an entry with a time; `content` is what `write_content` writes.
    """

    paths: Bytes
    path_offsets: Offsets
    addresses: Bytes
    address_offsets: Offsets
    address_types: NDArray[np.int8]
    sizes: Ints
    checksums: Bytes
    checksum_offsets: Offsets
    times: Ints
    has_time: Bytes
    content: Bytes


@compiled
def add_text(target: Bytes, offsets: Offsets, row: int, source: Bytes, span: tuple[int, int]) -> None:
    at, length = span
    to = _int(offsets[_at(row)])
    copy_bytes(target, to, source, at, length)
    offsets[_at(row + 1)] = to + length


@compiled
def put_decimal(target: Bytes, to: int, value: int) -> int:
    """Write the digits of a non-negative number; returns where they end."""
    digits, rest = 1, value
    while rest >= 10:
        rest //= 10
        digits += 1
    for place in range(to + digits - 1, to - 1, -1):
        target[_at(place)] = 48 + value % 10
        value //= 10
    return to + digits


@compiled
def put_part(target: Bytes, to: int, source: Bytes, at: int, length: int) -> int:
    """Write a key or a value in the form from which a table's id is computed; returns where it ends."""
    to = put_decimal(target, to, length)
    copy_bytes(target, to, source, at, length)
    target[_at(to + length)] = BAR
    return to + length + 1


@compiled
def add_columns(scratch: Scratch, end: int, out: Columns) -> bool:
    """Add the entries of one block to the columns; returns whether the block is valid."""
    fields = scratch.fields
    at, key_length = _int(0), _int(0)
    to, with_content = scratch.state[CONTENT], len(out.content) > 0
    while at < end:
        row = scratch.state[ROWS]
        at, size, key_length = next_record(scratch, at, end, key_length)
        if at < 0 or not parse_entry(scratch.block, at, at + size, fields):
            return False
        if with_content:
            to = put_part(out.content, to, scratch.key, _int(0), scratch.state[KEY_LENGTH])
            to = put_part(out.content, to, scratch.block, at, size)
        at += size
        out.address_types[_at(row)] = fields[ADDRESS_TYPE]
        out.sizes[_at(row)] = fields[SIZE]
        if len(out.path_offsets) > 0:
            add_text(out.paths, out.path_offsets, row, scratch.key, (_int(0), scratch.state[KEY_LENGTH]))
        if len(out.address_offsets) > 0:
            span = fields[ADDRESS], fields[ADDRESS_LENGTH]
            add_text(out.addresses, out.address_offsets, row, scratch.block, span)
        if len(out.checksum_offsets) > 0:
            span = fields[CHECKSUM], fields[CHECKSUM_LENGTH]
            add_text(out.checksums, out.checksum_offsets, row, scratch.block, span)
        if len(out.times) > 0:
            out.has_time[_at(row)] = fields[HAS_TIME]
            out.times[_at(row)], valid = micros(scratch.block, fields[TIME], fields[TIME_LENGTH])
            if not valid:
                return False
    scratch.state[CONTENT] = to
    return True


@compiled
def fill_columns(data: Bytes, blocks: Ints, scratch: Scratch, out: Columns) -> bool:
    """Fill the columns of a range from data blocks with verified checksums; returns whether the range is valid."""
    for block in range(len(blocks)):
        offset, length = blocks[block, 0], blocks[block, 1]
        end = load(data, offset, length, declared_length(data, offset, length), scratch.block)
        if end < 0 or not add_columns(scratch, end, out):
            return False
    return True


@compiled
def write_content(data: Bytes, blocks: Ints, scratch: Scratch, out: Bytes) -> int:
    """Write the records as hashed for the table's id; returns the length, or BROKEN. Otherwise like `fill_columns`."""
    to = _int(0)
    for block in range(len(blocks)):
        offset, length = blocks[block, 0], blocks[block, 1]
        end = load(data, offset, length, declared_length(data, offset, length), scratch.block)
        if end < 0:
            return BROKEN
        at, key_length = _int(0), _int(0)
        while at < end:
            at, size, key_length = next_record(scratch, at, end, key_length)
            if at < 0:
                return BROKEN
            to = put_part(out, to, scratch.key, _int(0), scratch.state[KEY_LENGTH])
            to = put_part(out, to, scratch.block, at, size)
            at += size
    return to
