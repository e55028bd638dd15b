"""Small helps for sentences that people read."""

from __future__ import annotations

from collections.abc import Iterable
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
