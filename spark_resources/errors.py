"""What can go wrong, as one tree; the exit codes are those of the command line.

    LakegcError                 exit 1   something failed; the message says what to do next
    ├── WrongUsage              exit 2   what was asked for can't be meant: an option, an id, a setting
    │   └── NotAPartition       exit 2   a partition key that no repository and mark can have
    ├── Refused                 exit 3   an invariant or a brake says no
    │   ├── NothingToDo         exit 3   it was done before, or is not due: nothing was changed
    │   └── DamagedData         exit 3   bytes that are not what they must be (invariants 3 and 4)
    │       ├── Untrusted                a record that no known key signed as it is
    │       └── UnknownFormat            a record of a format that this lakegc doesn't know
    ├── SweptWithFailures       exit 4   a sweep ended, and not every object could be deleted, or was garbage to the end
    └── Unavailable             exit 1   the server or the store could not be used
        ├── Transient                    it may pass: repeated by the retry policy, and only by that
        ├── Forbidden                    it answered: not with these rights
        ├── NotThere                     it answered: no such thing
        └── Interrupted                  it gave up, because something changed meanwhile

Every message is written for a person: what, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches


class LakegcError(Exception):
    """The root of the tree; raised itself only for failures that no branch below describes."""

    exit_code = 1


class LakegcWarning(UserWarning):
    """What a person should know and what stops nothing; the command line shows it as it shows errors."""


class WrongUsage(LakegcError):
    """Raised before anything was read or written: the request itself has to be changed."""

    exit_code = 2


class NotAPartition(WrongUsage):
    """Raised for a partition key that isn't `repository|mark_id`."""


class Refused(LakegcError):
    """Raised where going on could delete something live: the world has to be changed, or looked at.

    `invariant` is the number of the invariant (design, 1 to 12) that says no.
    """

    exit_code = 3

    def __init__(self, message: str, *, invariant: int | None = None) -> None:
        super().__init__(message)
        self.invariant = invariant


class NothingToDo(Refused):
    """Raised where a mark or a sweep has ended already, or a sweep wasn't approved; nothing was changed."""


class DamagedData(Refused):
    """Raised for bytes that are missing, short, foreign or not what their name promises."""

    def __init__(self, message: str, *, invariant: int | None = 4) -> None:
        super().__init__(message, invariant=invariant)


class Untrusted(DamagedData):
    """Raised for a record that isn't signed by a known key, or not for its place and content, where a key is set."""


class UnknownFormat(DamagedData):
    """Raised for a record in a format that this lakegc doesn't know: a newer one wrote it."""


class SweptWithFailures(LakegcError):
    """Raised at the end of a sweep whose report is no success; the message is the report's sentence."""

    exit_code = 4


class Unavailable(LakegcError):
    """Raised when the lakeFS server or the object store gave no usable answer."""


class Transient(Unavailable):
    """Raised for a failure that may pass by itself: busy, out of reach, an answer that got lost.

    `after_s` is how many seconds the other side asks to be left alone. The retry policy takes it for itself: what is
    raised when it gives up is a plain `Unavailable`.
    """

    def __init__(self, message: str, *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class Forbidden(Unavailable):
    """Raised when the server or the store refuses these credentials."""


class NotThere(Unavailable):
    """Raised when the thing that was named does not exist; never for "could not look"."""


class Interrupted(Unavailable):
    """Raised when an answer was given up because the repository changed meanwhile: asking again can help."""


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
