"""Format numbers, times and names for display."""

from __future__ import annotations

import unicodedata
from datetime import timedelta
from typing import TYPE_CHECKING

from spark_resources.errors import duration, plural

if TYPE_CHECKING:
    from spark_resources.model import Rules

__all__ = [
    "age",
    "duration",
    "duration_argument",
    "escaped_name",
    "fraction",
    "is_or_are",
    "money",
    "monthly_cost",
    "outcome_in_words",
    "percent",
    "plural",
    "rules_change_in_words",
    "rules_in_words",
    "size",
    "was_or_were",
]


def is_or_are(count: int) -> str:
    """The verb after this many things, as in "1 of 20 objects is expired"."""
    return "is" if count == 1 else "are"


def was_or_were(count: int) -> str:
    return "was" if count == 1 else "were"


def outcome_in_words(outcome: str) -> str:
    """The outcome of an object in a backup, restore or sweep, for people: as it is recorded, but archived, not cold."""
    return "archived" if outcome == "cold" else outcome


def size(count: int) -> str:
    """Format a number of bytes with a binary unit: 1.5 MiB."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def fraction(part: int, whole: int) -> float:
    """`part` as a fraction of `whole`; 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def percent(part: int, whole: int) -> str:
    """`part` as a percentage of `whole`: 14.8%. A small part is shown as "< 0.1%", never as "0.0%"."""
    share = 100 * fraction(part, whole)
    return "< 0.1%" if part and share < 0.05 else f"{share:.1f}%"


def monthly_cost(count: int, price: float) -> float:
    """The monthly cost of storing `count` bytes, at a price per GB per month. Stores bill a GB as 2^30 bytes."""
    return count / 2**30 * price


def money(amount: float) -> str:
    """Format an amount of money, without its currency: 1,234.50, or "less than 0.01"."""
    return f"{amount:,.2f}" if amount >= 0.01 or not amount else "less than 0.01"


def duration_argument(span: timedelta) -> str:
    """A duration in the form that options and settings accept, in its largest whole unit: 90d, 36h, 0."""
    seconds = round(span.total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s" if seconds else "0"


def age(span: timedelta) -> str:
    """Format a time span as a whole number of the largest unit that fits: 3 days, 4 hours, 20 seconds. A negative
    span counts as 0."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return plural(seconds // length, unit)
    return plural(seconds, "second")


def rules_in_words(rules: Rules | None) -> str:
    """Format retention rules, such as "default 7 days, main 21"; "none" if there are none."""
    if rules is None:
        return "none"
    branches = [f"{branch} {days}" for branch, days in sorted(rules.branch_days.items())]
    return ", ".join([f"default {plural(rules.default_days, 'day')}", *branches])


def rules_change_in_words(before: Rules | None, after: Rules | None) -> str:
    """Format how retention rules changed, such as "default: 30 days → 7 days; dev: 7 days → the default"; "" if they
    didn't."""
    if before == after:
        return ""
    if before is None or after is None:
        return f"{rules_in_words(before)} → {rules_in_words(after)}"

    def days(rules: Rules, branch: str) -> str:
        return plural(rules.branch_days[branch], "day") if branch in rules.branch_days else "the default"

    default = (plural(before.default_days, "day"), plural(after.default_days, "day"))
    branches = sorted(before.branch_days.keys() | after.branch_days.keys())
    changes = [("default", *default), *((branch, days(before, branch), days(after, branch)) for branch in branches)]
    return "; ".join(f"{name}: {old} → {new}" for name, old, new in changes if old != new)


def escaped_name(name: str) -> str:
    """The name, safe to show on a terminal: characters that would move the cursor or change colors are escaped."""
    if name.isprintable():
        return name
    return "".join(
        char
        if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else char.encode("unicode_escape").decode()
        for char in name
    )
