"""A target of fuzzing, and the property that holds for all its inputs: each is refused with one of lakegc's own errors,
which names the file, or it gives a value that passes the target's checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from spark_resources.errors import DamagedData, Refused
from tests.fuzz.mutations import mutate_bytes

T = TypeVar("T")
MAX_MESSAGE = 4_000  # characters: a message is for people, whatever a file contains

accepted = 0
"""The number of values that were read so far: without any, a target would only test refusals."""

Mutate = Callable[[bytes, Random], bytes]


class Violation(AssertionError):
    """Raised for an input that doesn't have the property."""


@dataclass(frozen=True)
class Kind:
    """One kind of input of a target, with intact examples. `check` raises for an input without the property."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    check: Callable[[bytes], object]
    mutate: Mutate = mutate_bytes


@dataclass(frozen=True)
class Target:
    """Several kinds of inputs that are fuzzed together. The first byte of an input selects its kind."""

    name: str
    kinds: Sequence[Kind]

    def seeds(self) -> list[bytes]:
        return [bytes([number]) + seed for number, kind in enumerate(self.kinds) for seed in kind.seeds()]

    def check(self, data: bytes) -> None:
        if data:
            self._kind(data).check(data[1:])

    def mutate(self, data: bytes, random: Random) -> bytes:
        return data[:1] + self._kind(data).mutate(data[1:], random)

    def _kind(self, data: bytes) -> Kind:
        return self.kinds[data[0] % len(self.kinds)]


def value_or_refusal(
    read: Callable[[], T], where: str, errors: tuple[type[Exception], ...] = (DamagedData, Refused)
) -> T | None:
    """The value that was read, or None if it was refused. Raises `Violation` for a message that doesn't name `where`,
    or that is too long; any other exception passes through."""
    global accepted  # noqa: PLW0603
    try:
        value = read()
    except errors as error:
        text = str(error)
        if where not in text:
            raise Violation(f"the message doesn't name {where}: {text[:500]}") from error
        if len(text) > MAX_MESSAGE:
            raise Violation(f"the message has {len(text)} characters: {text[:500]}") from error
        return None
    accepted += 1
    return value


def require(holds: Any, what: str) -> None:
    if not holds:
        raise Violation(what)
