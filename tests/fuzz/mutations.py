"""Random changes to inputs: to any bytes, to JSON, and to the contents of a table or a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

_ODD_NUMBERS = (0, 1, -1, 127, 128, 255, 256, 1 << 31, (1 << 32) - 1, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 10**400)
_ODD_TEXTS = ("", "\x00", "\n", "../x", "/", "a" * 300, "\u202e\x1b[31m", "\ud800", "9" * 5_000, "é", "1e999", "%2F",
              "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-11-21T12:00:00")  # fmt: skip
_ODD_VALUES = (*_ODD_NUMBERS, *_ODD_TEXTS, None, True, False, 0.5, 1e308, -0.0, [], {}, [None], [[]], {"": None})
_MAX_BYTES = 1 << 16


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """One to three changes: bytes replaced, removed, repeated or moved."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        _change_bytes(changed, random)
    return bytes(changed[:_MAX_BYTES])


def _change_bytes(changed: bytearray, random: Random) -> None:
    at = random.randint(0, len(changed))
    end = min(len(changed), at + random.choice((1, 1, 2, 4, 8, 64)))
    match random.randrange(7):
        case 0 if at < end:
            changed[at] ^= 1 << random.randrange(8)
        case 1 if at < end:
            changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        case 2:
            del changed[at:end]
        case 3:
            changed[at:at] = changed[at:end]
        case 4:
            changed[at:at] = random.randbytes(random.choice((1, 1, 2, 8)))
        case 5:
            del changed[at:]
        case _:
            to = random.randint(0, len(changed))
            changed[to:to] = changed[at:end]


def mutate_json(data: bytes, random: Random) -> bytes:
    """One or two changes to values, or changes to bytes."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(data, random)
    if random.random() < 0.2:
        return mutate_bytes(data, random)
    for _ in range(random.randint(1, 2)):
        document = _change_value(document, random)
    return json.dumps(document).encode()


def _change_value(value: Any, random: Random) -> Any:
    if isinstance(value, dict) and value and random.random() < 0.8:
        changed, name = dict(value), random.choice(sorted(value))
        match random.randrange(8):
            case 0:
                del changed[name]
            case 1:
                changed[random.choice(_ODD_TEXTS)] = changed[name]
            case _:
                changed[name] = _change_value(changed[name], random)
        return changed
    if isinstance(value, list) and value and random.random() < 0.8:
        items, at = list(value), random.randrange(len(value))
        match random.randrange(5):
            case 0:
                del items[at]
            case 1:
                items.append(items[at])
            case _:
                items[at] = _change_value(items[at], random)
        return items
    match random.randrange(4):
        case 0 if isinstance(value, str):
            return mutate_bytes(value.encode("utf-8", "replace"), random).decode("utf-8", "replace")
        case 1 if isinstance(value, int):
            return value + random.choice((-1, 1))
        case 2:
            return [value]
    return random.choice(_ODD_VALUES)


def mutate_with(*mutations: Callable[[bytes, Random], bytes]) -> Callable[[bytes, Random], bytes]:
    """One of several mutations."""
    return lambda data, random: random.choice(mutations)(data, random)


def splice(parts: Sequence[bytes]) -> Callable[[bytes, Random], bytes]:
    """A mutation that also inserts one of these parts, such as the elements of an XML document."""

    def mutate(data: bytes, random: Random) -> bytes:
        if random.random() < 0.5:
            return mutate_bytes(data, random)
        at = random.randint(0, len(data))
        return (data[:at] + random.choice(parts) + data[at + random.choice((0, 0, 1, 8)) :])[:_MAX_BYTES]

    return mutate
