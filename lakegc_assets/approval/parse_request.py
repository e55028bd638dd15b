"""Check the input of an approval: names of brakes, the approver's name, reasons, the digest. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from lakegc_assets.rules.brakes import BRAKES, OTHERS, name_of_release
from spark_resources.errors import WrongUsage, did_you_mean

MAX_LENGTH = 1_000  # characters of a name or a reason
MIN_DIGEST_CHARACTERS = 12  # the shortest prefix of a digest that is accepted
PLACEHOLDER = "WHY"  # in printed commands; refused as a reason, so that nobody releases a brake by pasting one


def known_brake(name: str) -> str:
    """Return a brake's name unchanged. Raises `WrongUsage` if there is no such brake, or if the name lacks the
    repository that it must contain."""
    brake, _, repository = name.partition("/")
    if brake not in BRAKES or ("/" in name and brake != OTHERS):
        hint = did_you_mean(brake, BRAKES) or f"The brakes are {', '.join(BRAKES)}."
        raise WrongUsage(f"there is no brake '{name}'. {hint}")
    if brake == OTHERS and not repository:
        raise WrongUsage(
            f"the brake '{OTHERS}' can only be released for one repository at a time, by name: "
            f"{name_of_release('REPOSITORY')}"
        )
    return name


def release_options(tripped: Iterable[str], reasons: Mapping[str, str] = {}) -> list[str]:
    """The options of `lakegc approve` that release these brakes, with a placeholder for each missing reason."""
    return [part for name in tripped for part in ("--release", name, "--because", reasons.get(name, PLACEHOLDER))]


def single_line(text: str, what: str) -> str:
    """The text as one line, with runs of whitespace collapsed. Raises `WrongUsage` if it is too long, has no letter or
    digit, or can't be shown on a terminal."""
    line = " ".join(text.split())
    if not any(char.isalnum() for char in line):
        raise WrongUsage(f"{what} is missing: enter at least one letter or digit")
    if len(line) > MAX_LENGTH:
        raise WrongUsage(f"{what} is longer than {MAX_LENGTH:,} characters: shorten it")
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs") for char in line):
        raise WrongUsage(f"{what} has unprintable characters: remove them")
    return line


def complete_digest(text: str, expected: str) -> str:
    """Complete a digest: return `expected` if it starts with the text (trimmed, in lower case), otherwise that text.
    Raises `WrongUsage` if the text is too short."""
    text = text.strip().lower()
    if len(text) < MIN_DIGEST_CHARACTERS:
        raise WrongUsage(
            f"enter at least the first {MIN_DIGEST_CHARACTERS} characters of the digest, which identifies the reviewed "
            "set. The expired_set asset and 'lakegc review' show the digest."
        )
    return expected if expected.startswith(text) else text
