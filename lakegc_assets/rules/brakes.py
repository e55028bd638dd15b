"""The brakes of a finished mark (invariant 9): anything unusual must be released by name before the mark can be swept.

Pure: numbers in, verdicts out. A tripped brake never stops a mark, only an approval that doesn't release it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from lakegc_assets.formatting import is_or_are, plural
from lakegc_assets.formatting import size as in_units
from spark_resources.errors import DamagedData, WrongUsage
from spark_resources.identifiers import all_repositories_on, server_of

if TYPE_CHECKING:
    from spark_resources.mark_store.record import MarkRecord
    from spark_resources.settings import Settings

OTHERS = "others"
BRAKES = ("share", "bytes", "count", "jump", "live", "listing", OTHERS, "age")
COUNTS = ("candidates", "candidate_bytes", "expired", "expired_bytes", "live")
GIB = 2**30


@dataclass(frozen=True, slots=True)
class BrakeLimits:
    """The limit beyond which each brake trips. Shares are fractions of 1. `live` and `listing` are minimum fractions of
    what the previous mark found. `jump` applies only to `jump_least` or more expired objects. `gib` is the limit on
    expired bytes, in GiB."""

    share: float
    first_share: float
    gib: float
    count: int
    jump: float
    jump_least: int
    live: float
    listing: float
    age: timedelta

    @classmethod
    def of(cls, settings: Settings) -> BrakeLimits:
        """The configured limits (settings `brake_…`, the only place with defaults)."""
        return cls(**{name: getattr(settings, f"brake_{name}") for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Brake:
    """One brake: the measured value, its limit, and a sentence to display. `measured` is None if there is nothing to
    compare with; the brake then trips only if an earlier mark exists but can't be read."""

    name: str
    tripped: bool
    measured: float | None
    bound: float
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What the brakes measure: the COUNTS of a mark and of the previous one, and when the mark was finished or its
    inventory was taken (store's clock). `previous` is None for the first mark of a repository; `unreadable` names
    earlier marks that can't be read; `unread` are other repositories that could not be read, each with the reason, `*`
    for all.
    """

    counts: Mapping[str, int]
    previous: Mapping[str, int] | None
    previous_id: str | None
    unreadable: tuple[str, ...]
    finished: datetime
    unread: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, record: MarkRecord) -> Measured:
        """The measured values in a finished mark's record. Raises `WrongUsage` if the mark isn't finished, and
        `DamagedData` if a count is missing.
        """
        if record.finished is None:
            raise WrongUsage(f"mark {record.mark_id} of {record.repository} is not finished ({record.state})")
        previous: Mapping[str, Any] = record.previous or {}
        for counts in (record.counts, previous.get("counts") or record.counts):
            if missing := [name for name in COUNTS if type(counts.get(name)) is not int]:
                raise DamagedData(
                    f"mark {record.mark_id} of {record.repository} doesn't record these counts: {', '.join(missing)}. "
                    "Make a new mark."
                )
        return cls(
            record.counts, previous.get("counts"), previous.get("mark_id"), tuple(previous.get("unreadable", ())),
            effective_time(record), unread_repositories_in(record),
        )  # fmt: skip


def effective_time(record: MarkRecord) -> datetime:
    """The time from which a mark's age is measured: its end, or its start if it isn't finished or was made from an
    inventory (the time at which the inventory was taken)."""
    return record.finished if record.finished is not None and record.inventory is None else record.start


def brakes(record: MarkRecord, limits: BrakeLimits, *, now: datetime) -> tuple[Brake, ...]:
    """Every brake of a finished mark, in the order of BRAKES; `others` has one brake for each repository that could not
    be read. `now` is by the store's clock."""
    return brakes_of(Measured.of(record), limits, now=now)


def brakes_of(measured: Measured, limits: BrakeLimits, *, now: datetime) -> tuple[Brake, ...]:
    """Like `brakes`, for values that were already measured."""
    return (
        share(measured, limits),
        size(measured, limits),
        count(measured, limits),
        jump(measured, limits),
        live(measured, limits),
        listing(measured, limits),
        *others(measured),
        age(measured, limits, now),
    )


def share(measured: Measured, limits: BrakeLimits) -> Brake:
    """Trips if too large a share of the repository is expired, by objects or by bytes."""
    first = measured.previous is None and not measured.unreadable
    bound = limits.first_share if first else limits.share
    by_objects = ratio(measured.counts["expired"], measured.counts["candidates"])
    by_bytes = ratio(measured.counts["expired_bytes"], measured.counts["candidate_bytes"])
    highest = max(by_objects, by_bytes)
    found_now = f"{100 * by_objects:.1f}% of all objects and {100 * by_bytes:.1f}% of all bytes are expired"
    limit = f"the limit{' for the first mark of a repository' if first else ''} is {100 * bound:g}%"
    return Brake("share", highest > bound, highest, bound, f"{found_now}; {limit}")


def size(measured: Measured, limits: BrakeLimits) -> Brake:
    gib = measured.counts["expired_bytes"] / GIB
    why = f"{in_units(measured.counts['expired_bytes'])} expired; at most {limits.gib:,g} GiB is allowed"
    return Brake("bytes", gib > limits.gib, gib, limits.gib, why)


def count(measured: Measured, limits: BrakeLimits) -> Brake:
    objects = measured.counts["expired"]
    why = f"{plural(objects, 'object')} expired; at most {limits.count:,} {is_or_are(limits.count)} allowed"
    return Brake("count", objects > limits.count, objects, limits.count, why)


def jump(measured: Measured, limits: BrakeLimits) -> Brake:
    """Trips if many more objects or bytes are expired than in the previous mark. Small sets are exempt."""
    if measured.previous is None:
        return uncompared("jump", measured, limits.jump)
    times = max(ratio(measured.counts[name], max(measured.previous[name], 1)) for name in ("expired", "expired_bytes"))
    objects, before = measured.counts["expired"], measured.previous["expired"]
    against = (
        f"{times:,.1f} times as many objects or bytes as in mark {measured.previous_id} ({plural(before, 'object')})"
        if before
        else f"and none in mark {measured.previous_id}"
    )
    why = (
        f"{plural(objects, 'object')} expired, {against}; for {plural(limits.jump_least, 'object')} or more, at most "
        f"{limits.jump:g} times the previous count is expected"
    )
    return Brake("jump", objects >= limits.jump_least and times > limits.jump, times, limits.jump, why)


def live(measured: Measured, limits: BrakeLimits) -> Brake:
    """Trips if nothing is live in a repository that isn't empty, or much less than in the previous mark."""
    now = measured.counts["live"]
    if now == 0 and measured.counts["candidates"]:
        return Brake(
            "live", True, 0.0, limits.live, "nothing in this repository is live: every object looks like garbage"
        )
    if measured.previous is None:
        return uncompared("live", measured, limits.live)
    share = remaining_share(now, measured.previous["live"])
    before = measured.previous["live"]
    against = f"{100 * share:.1f}% of the {before:,} in" if before else "and there were none in"
    why = f"{there_are(now, 'live address', 'live addresses')}, {against} mark {measured.previous_id}"
    return Brake("live", share < limits.live, share, limits.live, f"{why}; the minimum is {100 * limits.live:g}%")


def listing(measured: Measured, limits: BrakeLimits) -> Brake:
    """Trips if much less is stored than a sweep of the whole expired set of the previous mark would leave."""
    if measured.previous is None:
        return uncompared("listing", measured, limits.listing)
    expected = max(measured.previous["candidates"] - measured.previous["expired"], 0)
    share = remaining_share(measured.counts["candidates"], expected)
    listed = there_are(measured.counts["candidates"], "listed object")
    against = (
        f"{100 * share:.1f}% of the {expected:,} that a sweep of mark {measured.previous_id} would leave"
        if expected
        else f"and a sweep of mark {measured.previous_id} would leave none"
    )
    why = f"{listed}, {against}; the minimum is {100 * limits.listing:g}%"
    return Brake("listing", share < limits.listing, share, limits.listing, why)


def others(measured: Measured) -> tuple[Brake, ...]:
    """One brake for each other repository that may refer to objects of the marked repository and could not be read
    (invariants 2 and 5)."""
    if not measured.unread:
        return (
            Brake(
                OTHERS,
                False,
                0,
                0,
                "every other repository that may refer to objects of the marked repository was read",
            ),
        )
    return tuple(
        Brake(name_of_release(repository), True, 1, 0, f"{sentence_about(repository)}: {why}")
        for repository, why in sorted(measured.unread.items())
    )


def sentence_about(repository: str) -> str:
    server = server_of(repository)
    who = f"repository {repository}"
    if repository == all_repositories_on(server):
        who = f"other repositories of server {server}" if server else "other repositories"
    return f"{who} may refer to objects of the marked repository and could not be read"


def name_of_release(repository: str) -> str:
    """The name by which an approval releases one repository that could not be read; `*` stands for all if they can't be
    listed, `lab/*` for all of one of several servers."""
    return f"{OTHERS}/{repository}"


def unread_repositories_in(record: MarkRecord) -> dict[str, str]:
    """The other repositories that a mark could not read, each with the reason; none for a foreign mark."""
    steps = [record.steps[name] for name in ("committed_addresses", "expired_set") if name in record.steps]
    return {name: why for step in steps for name, why in step.facts.get("elsewhere", {}).get("unread", {}).items()}


def servers_read(record: MarkRecord) -> tuple[str, ...]:
    """The names of the servers whose repositories a mark listed; "" for the only one, as in marks by earlier versions.
    Empty for a foreign mark."""
    staged = record.steps.get("uncommitted_addresses")
    return () if staged is None else tuple(staged.facts.get("elsewhere", {}).get("servers", [""]))


def released_repositories(record: MarkRecord, released: Mapping[str, str]) -> dict[str, str]:
    """The other repositories that may stay unread in a sweep, with the given reasons: those that the mark recorded as
    unread and that its approval released by name."""
    names = {repository: name_of_release(repository) for repository in unread_repositories_in(record)}
    return {repository: released[name] for repository, name in names.items() if name in released}


def age(measured: Measured, limits: BrakeLimits, now: datetime) -> Brake:
    days, bound = (now - measured.finished) / timedelta(days=1), limits.age / timedelta(days=1)
    allowed = f"at most {bound:g} {'is' if bound == 1 else 'are'} allowed"
    why = f"the mark is {days:,.1f} days old at {now:%Y-%m-%d %H:%M} UTC; {allowed}"
    return Brake("age", days > bound, days, bound, why)


def uncompared(name: str, measured: Measured, bound: float) -> Brake:
    """A brake without an earlier mark to compare with: it only trips if an earlier mark exists but can't be read."""
    if measured.unreadable:
        which = ", ".join(measured.unreadable)
        return Brake(name, True, None, bound, f"this mark can't be compared with earlier ones: {which} can't be read")
    return Brake(name, False, None, bound, "this is the first mark of the repository: nothing to compare with")


def there_are(count: int, thing: str, things: str = "") -> str:
    """The number of things as a clause, such as "there is 1 object" or "there are 2 objects"."""
    return f"there {'is' if count == 1 else 'are'} {plural(count, thing, things)}"


def ratio(some: int, whole: int) -> float:
    return some / whole if whole else float(some > 0)


def remaining_share(now: int, before: int) -> float:
    return now / before if before else 1.0
