"""What a person types for an approval: checked before anything is written."""

from __future__ import annotations

import pytest

from lakegc_assets.approving.wording import known_brake, whole_digest, worded
from lakegc_assets.brakes import BRAKES
from spark_resources.errors import WrongUsage

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(("text", "kept"), [("Ada", "Ada"), ("  Ada\n Lovelace ", "Ada Lovelace"), ("a:b;c", "a:b;c")])
def test_a_name_or_reason_is_kept_in_one_line(text: str, kept: str) -> None:
    """Blanks are folded; nothing else is changed."""
    assert worded(text, "the name") == kept


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the name is missing"),
        (" \n ", "the name is missing"),
        ("...", "the name is missing"),
        ("Ada\x1b[31m", "can't be shown"),
        ("\u202eadA", "can't be shown"),
        ("a" * 1001, "longer than 1,000 characters"),
    ],
)
def test_a_name_that_says_nothing_or_cannot_be_shown_is_refused(text: str, why: str) -> None:
    """An approval is by somebody, for a reason that can be read on a terminal."""
    with pytest.raises(WrongUsage, match=why):
        worded(text, "the name")


def test_only_known_brakes_are_released() -> None:
    """A brake that doesn't exist is refused with the one that is meant, or all; unread repositories go one by one."""
    names = ["others/lake" if name == "others" else name for name in BRAKES]
    assert [known_brake(name) for name in names] == names
    for unknown in ("jumps", "all", "jump/lake", ""):
        with pytest.raises(WrongUsage, match=rf"no brake '{unknown}'. (Did you mean jump|The brakes are .*jump)"):
            known_brake(unknown)
    with pytest.raises(WrongUsage, match="others/REPOSITORY"):
        known_brake("others")


def test_the_beginning_of_a_digest_stands_for_the_whole() -> None:
    """Twelve characters suffice, in either case; others are left as given, and refused as another set's."""
    assert whole_digest(f" {DIGEST[:12].upper()} ", DIGEST) == DIGEST
    assert whole_digest(DIGEST, DIGEST) == DIGEST
    assert whole_digest("f" * 12, DIGEST) == "f" * 12


@pytest.mark.parametrize("given", ["", DIGEST[:11], " " * 20])
def test_too_short_a_digest_is_refused(given: str) -> None:
    """Whoever gives no digest, or a few characters of one, hasn't looked at a set."""
    with pytest.raises(WrongUsage, match="at least its first 12 characters"):
        whole_digest(given, DIGEST)
