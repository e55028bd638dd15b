"""The options of one mark, validated without a store, server or Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakegc_assets.formatting import duration, duration_argument, plural
from spark_resources.errors import Refused, WrongUsage
from spark_resources.identifiers import Scope
from spark_resources.settings import parse_duration

if TYPE_CHECKING:
    from spark_resources.mark_store.record import MarkRecord

MAX_ACCEPTED_BYTES = 8 << 20  # the mark's record contains the list, and has a limit (`stores.size_limits`)
SAFE_MIN_AGE = timedelta(hours=24)  # the lifetime of a link token: an object can be linked this long after its upload


@dataclass(frozen=True, slots=True)
class MarkOptions:
    """The options of one mark. If `min_age` is None, the configured one applies."""

    scope: Scope = Scope.UNIFIED
    min_age: timedelta | None = None
    allow_young: bool = False
    accept_missing: tuple[str, ...] = ()
    inventory: str = ""  # location of a list of the bucket's objects, read instead of listing the bucket
    inventory_taken: datetime | None = None  # when the inventory was started, unless the inventory records its time
    since: str = ""  # the base mark; the newest by default
    full: bool = False  # make a full mark even if an incremental one is possible


def parse_min_age(text: str) -> timedelta | None:
    """Parse a minimum age such as 24h; None if the text is empty. Raises `WrongUsage` if it isn't a duration."""
    try:
        return parse_duration(text) if text else None
    except ValueError as error:
        raise WrongUsage(f"min_age: {error}; expected a duration such as 24h, 90m or 1d12h") from None


def parse_inventory_taken(text: str, inventory: str) -> datetime | None:
    """Parse the time of an inventory; None if the text is empty. Raises `WrongUsage` if it isn't a time, or if there is
    no inventory."""
    try:
        taken = datetime.fromisoformat(text) if text else None
    except ValueError as error:
        raise WrongUsage(f"inventory_taken: {error}; expected a time such as 2026-11-21T00:00:00Z") from None
    if taken is not None and not inventory:
        raise WrongUsage(
            "inventory_taken is the time of an inventory, but there is no inventory: pass one, or omit inventory_taken"
        )
    return taken


def checked_losses(addresses: Sequence[str]) -> tuple[str, ...]:
    """The addresses that are known to be lost. Raises `WrongUsage` if the list is too long for a mark's record."""
    if (size := sum(len(address.encode()) for address in addresses)) > MAX_ACCEPTED_BYTES:
        raise WrongUsage(
            f"accept_missing has {plural(len(addresses), 'address')} with {size:,} bytes, and at most "
            f"{MAX_ACCEPTED_BYTES:,} bytes are allowed. Set LAKEGC_MAX_MISSING to the number of lost objects instead."
        )
    return tuple(addresses)


def refuse_contradictions(options: MarkOptions) -> None:
    """Raise `WrongUsage` if options contradict each other."""
    if options.since and options.full:
        raise WrongUsage("a mark is either incremental or full: pass --since or --full, not both")
    if options.since and options.inventory:
        raise WrongUsage("a mark from an inventory can't be incremental: leave out --since")


def check_min_age(min_age: timedelta, options: MarkOptions) -> timedelta:
    """The minimum age. Raises `WrongUsage` if it is negative, `Refused` if it is too short and that isn't explicitly
    allowed (invariant 6)."""
    if min_age < timedelta(0):
        raise WrongUsage("a minimum age can't be negative")
    if min_age < SAFE_MIN_AGE and not options.allow_young:
        raise Refused(
            f"a minimum age of {duration(min_age)} is less than {duration(SAFE_MIN_AGE)}, the lifetime of a link "
            "token: an object that was uploaded but not linked yet would look like garbage. Add --allow-young if "
            "nothing is writing to this repository.",
            invariant=6,
        )
    return min_age


def arguments_to_repeat(
    record: MarkRecord, *, min_age: timedelta | None = None, configured: tuple[Scope, timedelta] | None = None
) -> Iterator[str]:
    """The arguments of `lakegc mark` for another mark with the options of this one, or with a different `min_age`.

    Leaves out its id, its base mark and its inventory, and a scope and minimum age that are `configured` anyway. `FILE`
    stands for the file with the addresses that are known to be lost, which the record doesn't name.
    """
    scope_now, age_now = configured or (None, None)
    age = record.min_age if min_age is None else min_age
    if record.scope is not scope_now:
        yield from ("--scope", record.scope.value)
    if age != age_now:
        yield from ("--min-age", duration_argument(age))
    if age < SAFE_MIN_AGE:
        yield "--allow-young"
    if record.accepted_missing:
        yield from ("--accept-missing", "FILE")
