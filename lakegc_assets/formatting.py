"""Numbers, times and names as people read them."""

from __future__ import annotations

import unicodedata
from datetime import timedelta

from spark_resources.errors import duration, plural

__all__ = ["a_month", "age", "duration", "harmless", "money", "part", "plural", "size"]


def size(count: int) -> str:
    """Bytes with a binary unit: 1.5 MiB."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if amount < 1024 or unit == "PiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def part(some: int, whole: int) -> float:
    """A share of 1; of nothing it is 0."""
    return some / whole if whole else 0.0


def a_month(count: int, price: float) -> float:
    """What so many bytes cost in a month, at a price per GB; stores bill a GB as 2^30 bytes."""
    return count / 2**30 * price


def money(amount: float) -> str:
    """An amount in whatever currency the price was in."""
    return f"{amount:,.2f}" if amount >= 0.01 or not amount else "less than 0.01"


def age(span: timedelta) -> str:
    """A span by its largest unit: 3 days, 4 hours, 20 seconds."""
    seconds = max(0, int(span.total_seconds()))
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            return plural(seconds // length, unit)
    return plural(seconds, "second")


def harmless(name: str) -> str:
    """A key as a terminal can show it: characters that would move the cursor or change colours are escaped."""
    if name.isprintable():
        return name
    return "".join(
        char
        if unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        else char.encode("unicode_escape").decode()
        for char in name
    )
