"""Check the input of an approval: names of brakes, the approver's name, reasons. Pure."""

from __future__ import annotations

import unicodedata

from lakegc_assets.rules.brakes import BRAKES, OTHERS, name_of_release
from spark_resources.errors import WrongUsage, did_you_mean

LONGEST = 1_000  # characters of a name or a reason
DIGEST_CHARACTERS = 12  # the shortest prefix of a digest that is accepted


def known_brake(name: str) -> str:
    """The name itself. Raises `WrongUsage` if there is no such brake, or if it lacks the repository's name."""
    brake, _, repository = name.partition("/")
    if brake not in BRAKES or ("/" in name and brake != OTHERS):
        meant = did_you_mean(brake, BRAKES) or f"The brakes are {', '.join(BRAKES)}."
        raise WrongUsage(f"there is no brake '{name}'. {meant}")
    if brake == OTHERS and not repository:
        raise WrongUsage(
            f"the brake {OTHERS} can only be released for one repository at a time, by name: "
            f"{name_of_release('REPOSITORY')}"
        )
    return name


def single_line(text: str, what: str) -> str:
    """A text in one line, with runs of blanks collapsed. Raises `WrongUsage` if it has no letter or digit, or can't be
    shown on a terminal."""
    found = " ".join(text.split())
    if not any(char.isalnum() for char in found):
        raise WrongUsage(f"{what} is missing")
    if len(found) > LONGEST:
        raise WrongUsage(f"{what} is longer than {LONGEST:,} characters")
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in found):
        raise WrongUsage(f"{what} has unprintable characters")
    return found


def whole_digest(given: str, of_the_set: str) -> str:
    """The set's digest if a prefix of it was given, else the text as given. Raises `WrongUsage` if it is too short."""
    given = given.strip().lower()
    if len(given) < DIGEST_CHARACTERS:
        raise WrongUsage(
            f"give at least the first {DIGEST_CHARACTERS} characters of the digest, which identifies the reviewed "
            "set. The expired_set asset and 'lakegc review' show it."
        )
    return of_the_set if of_the_set.startswith(given) else given
