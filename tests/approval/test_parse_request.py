"""The input for an approval, which is checked before anything is written."""

from __future__ import annotations

import pytest

from lakegc_assets.approval.parse_request import complete_digest, known_brake, single_line
from lakegc_assets.rules.brakes import BRAKES
from spark_resources.errors import WrongUsage

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(("text", "kept"), [("Ada", "Ada"), ("  Ada\n Lovelace ", "Ada Lovelace"), ("a:b;c", "a:b;c")])
def test_a_name_or_reason_is_collapsed_to_one_line(text: str, kept: str) -> None:
    """Each run of white space becomes a single space; nothing else changes."""
    assert single_line(text, "the name") == kept


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the name is missing"),
        (" \n ", "the name is missing"),
        ("...", "the name is missing"),
        ("Ada\x1b[31m", "unprintable characters"),
        ("\u202eadA", "unprintable characters"),
        ("a" * 1001, "longer than 1,000 characters"),
    ],
)
def test_a_name_that_is_empty_unprintable_or_too_long_is_refused(text: str, why: str) -> None:
    """The approver and the reasons have to be readable on a terminal."""
    with pytest.raises(WrongUsage, match=why):
        single_line(text, "the name")


def test_only_known_brakes_can_be_released() -> None:
    """The error about an unknown name suggests the closest one, or lists all. An unreadable repository is released by
    its name."""
    names = ["others/lake" if name == "others" else name for name in BRAKES]
    assert [known_brake(name) for name in names] == names
    for unknown in ("jumps", "all", "jump/lake", ""):
        with pytest.raises(WrongUsage, match=rf"no brake '{unknown}'. (Did you mean jump|The brakes are .*jump)"):
            known_brake(unknown)
    with pytest.raises(WrongUsage, match="others/REPOSITORY"):
        known_brake("others")


def test_the_first_twelve_characters_of_a_digest_suffice() -> None:
    """Case doesn't matter. The digest of a different set is accepted here, and refused later."""
    assert complete_digest(f" {DIGEST[:12].upper()} ", DIGEST) == DIGEST
    assert complete_digest(DIGEST, DIGEST) == DIGEST
    assert complete_digest("f" * 12, DIGEST) == "f" * 12


@pytest.mark.parametrize("given", ["", DIGEST[:11], " " * 20])
def test_a_digest_shorter_than_twelve_characters_is_refused(given: str) -> None:
    """Fewer characters don't show that the set was reviewed."""
    with pytest.raises(WrongUsage, match="at least the first 12 characters"):
        complete_digest(given, DIGEST)
