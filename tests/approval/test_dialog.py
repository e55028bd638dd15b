"""What a person writes beside an approval in Dagster's dialog."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.approving.dialog import UNKNOWN, Said, parse
from lakegc_assets.brakes import BRAKES
from spark_resources.errors import WrongUsage

RELEASED = ["others/lake" if brake == "others" else brake for brake in BRAKES]
BLANKS = st.text(" \t\n", max_size=2)
WORDS = st.text(
    st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"], exclude_characters=";"), min_size=1, max_size=30
).filter(lambda text: any(char.isalnum() for char in text))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", Said(UNKNOWN, {})),
        (" ; ;\n", Said(UNKNOWN, {})),
        ("by Ada", Said("Ada", {})),
        ("BY  Ada\n Lovelace;", Said("Ada Lovelace", {})),
        ("release jump: because so", Said(UNKNOWN, {"jump": "so"})),
        ("by Ada; release jump: because so; release share: because a:b", Said("Ada", {"jump": "so", "share": "a:b"})),
        ("Release Jump : Because it was release day", Said(UNKNOWN, {"jump": "it was release day"})),
        ("by release jump", Said("release jump", {})),
        ("release others/a-lake: because so", Said(UNKNOWN, {"others/a-lake": "so"})),
        ("release others/*: because so", Said(UNKNOWN, {"others/*": "so"})),
    ],
)
def test_a_word_is_misheard(text: str, said: Said) -> None:
    """Who approves, and each release with its reason, however it is spaced and capitalised."""
    assert parse(text) == said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada", "can't be read"),
        ("by", "can't be read"),
        ("by ---", "name after 'by' is missing"),
        ("yes by Ada", "can't be read"),
        ("by Ada; by Grace", "two people"),
        ("by Ada, release jump: because so; please", "can't be read"),
        ("release jump", "no reason"),
        ("release jump: so", "no reason"),
        ("release jump: because", "reason for releasing jump is missing"),
        ("release jump: because ...", "reason for releasing jump is missing"),
        ("release jump: becauseso", "no reason"),
        ("release: because so", "no reason"),
        ("release jump share: because so", "no reason"),
        ("release jumps: because so", "no brake 'jumps'"),
        ("release all: because so", "no brake 'all'"),
        ("release others: because so", "others/REPOSITORY"),
        ("release jump/lake: because so", "no brake 'jump/lake'"),
        ("release jump: because so; release jump: because again", "twice"),
        ("by Ada\x1b[31m", "can't be shown"),
        ("by \u202eadA", "can't be shown"),
        ("by " + "a" * 1001, "longer than"),
        ("release jump: because " + "a" * 1001, "longer than"),
    ],
)
def test_a_word_that_says_something_else_is_taken_for_a_yes(text: str, words: str) -> None:
    """What can't be meant is refused with what was expected, and never passed over."""
    with pytest.raises(WrongUsage, match=words):
        parse(text)


@given(
    who=st.none() | WORDS,
    released=st.dictionaries(st.sampled_from(RELEASED), WORDS),
    order=st.randoms(use_true_random=False),
    blank=BLANKS,
)
def test_what_is_written_is_lost(who: str | None, released: dict[str, str], order: object, blank: str) -> None:
    """Whatever name and reasons are written in the form, in any order, all of them are read."""
    parts = [f"release {name}: because {reason}" for name, reason in released.items()]
    parts += [] if who is None else [f"by {who}"]
    order.shuffle(parts)  # type: ignore[attr-defined]

    said = parse(f"{blank};{blank}".join(parts))

    assert said.who == (UNKNOWN if who is None else " ".join(who.split()))
    assert said.released == {name: " ".join(reason.split()) for name, reason in released.items()}


@given(
    text=st.text(max_size=60)
    | st.lists(st.sampled_from(["by ", "release ", "jump", ": because", ";", "x"])).map("".join)
)
def test_any_text_is_refused_or_read(text: str) -> None:
    """Any text at all is either read or refused as wrong usage; what is read names brakes that there are."""
    try:
        said = parse(text)
    except WrongUsage:
        return
    assert said.who
    assert {name.partition("/")[0] for name in said.released} <= set(BRAKES)
    assert all(said.released.values())
