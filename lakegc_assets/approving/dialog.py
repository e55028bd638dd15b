"""What a person writes beside an approval in Dagster's dialog: `by NAME; release jump: because …; release share: …`.

Pure and strict: what can't be meant is refused with the form that was expected, never taken for nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from lakegc_assets.brakes import BRAKES, OTHERS, name_of_release
from spark_resources.errors import WrongUsage

UNKNOWN = "unknown (UI)"
LONGEST = 1_000  # characters of a name or a reason
FORM = "by NAME; release BRAKE: because REASON; release BRAKE: because REASON"

_BY = re.compile(r"by\s+(.+)", re.IGNORECASE | re.DOTALL)
_RELEASE = re.compile(r"release\s+([^\s:]+)\s*:\s*because\b(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Said:
    """Who approves, and which brakes they release, each with the reason."""

    who: str
    released: Mapping[str, str]


def parse(text: str) -> Said:
    """What a description says; an empty one says yes by somebody unknown. Raises `WrongUsage`.

    Parts are apart by semicolons, so neither a name nor a reason can hold one.
    """
    who: str | None = None
    released: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if by := _BY.fullmatch(part):
            if who is not None:
                raise WrongUsage(f"the approval names two people, {who!r} and {by.group(1)!r}; expected: {FORM}")
            who = worded(by.group(1), "the name after 'by'")
        elif release := _RELEASE.fullmatch(part):
            name = release.group(1).lower()
            if name in released:
                raise WrongUsage(f"the approval releases the brake {name} twice; expected: {FORM}")
            released[known_brake(name)] = worded(release.group(2), f"the reason for releasing {name}")
        elif part.lower().startswith("release"):
            raise WrongUsage(f"'{part}' names no reason: a brake is released by 'release BRAKE: because REASON'")
        else:
            raise WrongUsage(f"'{part}' can't be read as part of an approval; expected: {FORM}")
    return Said(who or UNKNOWN, released)


def known_brake(name: str) -> str:
    """The name itself. Raises `WrongUsage` where no brake is called that, or where it lacks the repository's name."""
    brake, _, repository = name.partition("/")
    if brake not in BRAKES or ("/" in name and brake != OTHERS):
        raise WrongUsage(f"there is no brake '{name}'; the brakes are {', '.join(BRAKES)}")
    if brake == OTHERS and not repository:
        raise WrongUsage(
            f"the brake {OTHERS} is released for one repository at a time, by its name: {name_of_release('REPOSITORY')}"
        )
    return name


def worded(text: str, what: str) -> str:
    """A text in one line, blanks folded. Raises `WrongUsage` where it says nothing, or can't be shown on a terminal."""
    found = " ".join(text.split())
    if not any(char.isalnum() for char in found):
        raise WrongUsage(f"{what} is missing")
    if len(found) > LONGEST:
        raise WrongUsage(f"{what} is longer than {LONGEST:,} characters")
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in found):
        raise WrongUsage(f"{what} has characters that can't be shown")
    return found
