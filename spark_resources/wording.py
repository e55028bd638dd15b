"""Small helps for sentences that people read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean X?` for the known name that is closest to this one, whatever its case; "" where none is close."""
    folded = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), folded, n=1, cutoff=0.7)
    return f"Did you mean {folded[found[0]]}?" if found else ""


def with_article(thing: str) -> str:
    """A thing with its article: an empty segment, a long key."""
    return f"{'an' if thing[:1].lower() in 'aeio' else 'a'} {thing}"


def full_stop(text: object) -> str:
    """A text that ends with one full stop, whether it had one or not."""
    return f"{str(text).rstrip('. ')}."


def plural(count: int, thing: str, things: str = "") -> str:
    """So many things: 0 objects, 1 object, 1,000 objects, 2 entries, 2 branches."""
    if not things:
        things = (
            f"{thing[:-1]}ies" if thing.endswith("ry") else f"{thing}{'es' if thing.endswith(('s', 'ch')) else 's'}"
        )
    return f"{count:,} {thing if count == 1 else things}"


def duration(span: timedelta) -> str:
    """A span by its two largest units: 1 day, 1 day 2 hours, 30 minutes, 0 seconds."""
    left = round(span.total_seconds())
    parts: list[str] = []
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        amount, left = divmod(left, length)
        if amount or parts:
            parts.append(plural(amount, unit) if amount else "")
    return " ".join(filter(None, parts[:2])) or "0 seconds"
