"""All errors, as one tree, with the exit codes of the command line.

    LakegcError                 exit 1   something failed; the message says what to do next
    ├── WrongUsage              exit 2   the request is not valid: an option, an id, a setting
    │   └── NotAPartition       exit 2   a partition key that no repository and mark can have
    ├── Refused                 exit 3   an invariant or a brake forbids the request
    │   ├── NothingToDo         exit 3   already done, or not approved: nothing was changed
    │   └── DamagedData         exit 3   missing or invalid data (invariants 3 and 4)
    │       ├── Untrusted                a record without a valid signature by a known key
    │       ├── UnknownFormat            a record in a format that this version of lakegc doesn't support
    │       └── Retired                  a mark whose files were removed because of its age
    ├── FinishedWithFailures    exit 4   a sweep, undo, backup or restore ended, but did not fully succeed
    └── Unavailable             exit 1   the server or the store could not be used
        ├── Transient                    a temporary failure: retried by the retry policy, and only there
        ├── StillUnavailable             a temporary failure that lasted longer than all retries
        ├── Forbidden                    the response: permission denied
        ├── NotFound                     the response: not found
        └── Interrupted                  abandoned, because the repository changed at the same time

Every message tells an operator what failed, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from difflib import get_close_matches


class LakegcError(Exception):
    """The root of the tree. Raised directly only for failures that no other class describes."""

    exit_code = 1
    is_temporary = False
    """Whether the same request can succeed later even if nobody changes anything."""


class LakegcWarning(UserWarning):
    """A problem that doesn't stop the command, but that the user should know about. The command line shows it like an
    error."""


class WrongUsage(LakegcError):
    """Raised before anything is read or written: the user has to change the request."""

    exit_code = 2


class NotAPartition(WrongUsage):
    """Raised for a partition key that isn't `repository:mark_id`."""


class Refused(LakegcError):
    """Raised if continuing could delete a live object. The cause has to be examined or removed first.

    `invariant` is the number of the invariant that would be violated; docs/how-it-decides.md lists them.
    """

    exit_code = 3

    def __init__(self, message: str, *, invariant: int | None = None) -> None:
        super().__init__(message)
        self.invariant = invariant


class NothingToDo(Refused):
    """Raised if a mark or a sweep has already ended, or a sweep is not approved. Nothing was changed."""


class DamagedData(Refused):
    """Raised for data that is missing, truncated or foreign, or that doesn't match its name."""

    def __init__(self, message: str, *, invariant: int | None = 4) -> None:
        super().__init__(message, invariant=invariant)


class Untrusted(DamagedData):
    """Raised for a record that isn't signed by a known key for its location and content, if a signing key is set."""


class UnknownFormat(DamagedData):
    """Raised for a record in a format that this version of lakegc doesn't support, because a newer version wrote it."""


class Retired(DamagedData):
    """Raised for a mark that was retired: its record remains, but its files were or are being removed.

    Nothing is damaged, but code that can do without damaged files can do without these, too: an incremental mark
    becomes a full one, for example.
    """


class FinishedWithFailures(LakegcError):
    """Raised at the end of a sweep, undo, backup or restore that did not fully succeed. Its message is a summary."""

    exit_code = 4


class Unavailable(LakegcError):
    """Raised if the lakeFS server or the object store gave no usable response."""


class Transient(Unavailable):
    """Raised for a temporary failure: the server or store is busy or unreachable, or its response was lost.

    `after_s` is the wait in seconds that the server or store requests. The retry policy handles this error, and raises
    `StillUnavailable` when it gives up.
    """

    is_temporary = True

    def __init__(self, message: str, *, after_s: float = 0.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class StillUnavailable(Unavailable):
    """Raised if a temporary failure lasted longer than all retries. Outer policies don't retry it."""

    is_temporary = True


class Forbidden(Unavailable):
    """Raised if the server or the store refuses these credentials."""


class NotFound(Unavailable):
    """Raised if the named object, bucket or other item does not exist; never if its existence could not be checked."""


class Interrupted(Unavailable):
    """Raised if a result was abandoned because the repository changed at the same time. Trying again can help."""

    is_temporary = True


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean X?` for the known name that is closest to this one, ignoring case; "" if none is close."""
    by_lower_case = {known_name.lower(): known_name for known_name in known}
    matches = get_close_matches(name.lower(), by_lower_case, n=1, cutoff=0.7)
    return f"Did you mean {by_lower_case[matches[0]]}?" if matches else ""


def with_article(thing: str) -> str:
    """A noun with its indefinite article: an empty segment, a long key."""
    return f"{'an' if thing[:1].lower() in 'aeio' else 'a'} {thing}"


def shortened(text: object, length: int = 500) -> str:
    """The beginning of a text from outside, for a message that people read."""
    whole = str(text)
    return whole if len(whole) <= length else f"{whole[:length]} …"


def parse_problem(error: Exception) -> str:
    """What is wrong with data that could not be parsed, in terms of the data: Python's errors often name only a key, or
    describe the code."""
    match error:
        case KeyError() if error.args:
            return f"{shortened(error.args[0], 80)!r} is missing"
        case TypeError() | AttributeError():
            return "a value has an unexpected type"
        case OverflowError():
            return "a number is out of range"
        case _:
            return shortened(error)


def full_stop(text: object) -> str:
    """A text with exactly one full stop at its end."""
    return f"{str(text).rstrip('. ')}."


def capitalized(text: str) -> str:
    """The text with its first letter in upper case. Names in it keep their case, unlike with `str.capitalize`."""
    return f"{text[:1].upper()}{text[1:]}"


def plural(count: int, thing: str, things: str = "") -> str:
    """A count with its noun: 0 objects, 1 object, 1,000 objects, 2 entries, 2 branches."""
    if not things:
        things = (
            f"{thing[:-1]}ies" if thing.endswith("ry") else f"{thing}{'es' if thing.endswith(('s', 'ch')) else 's'}"
        )
    return f"{count:,} {thing if count == 1 else things}"


def duration(span: timedelta) -> str:
    """A duration in its two largest units: 1 day, 1 day 2 hours, 30 minutes, 0 seconds."""
    remaining = round(span.total_seconds())
    parts: list[str] = []
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        amount, remaining = divmod(remaining, length)
        if amount or parts:
            parts.append(plural(amount, unit) if amount else "")
    return " ".join(filter(None, parts[:2])) or "0 seconds"
