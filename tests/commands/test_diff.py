"""The changes from one mark to the next, as reported by `lakegc diff` and by a review."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.model import STORED_OBJECTS, Rules
from spark_resources.stores.place import Place
from tests.support.command_line import Lakegc
from tests.support.finished_marks import COUNTS, START
from tests.support.reviewable_marks import expired, reviewable, sums, tables

LATER = START + timedelta(days=1)
STAYS = [expired(f"data/s/stays{n}", 10, path=f"t/{n}") for n in range(5)]
GONE, HELD, RESCUED = (
    expired("data/s/gone", 100),
    expired("data/s/held", 200, path="t/h"),
    expired("data/r", 400, path="r"),
)
NEW = [expired("data/n/1", 1_000, path="t/new"), expired("data/n/2", 2_000)]


def listing(rows: Sequence[Mapping[str, Any]]) -> list[pa.Table]:
    return [
        pa.Table.from_pylist([{column: row.get(column) for column in STORED_OBJECTS.names}], STORED_OBJECTS)
        for row in rows
    ]


@pytest.fixture
def two(place: Place) -> Place:
    """Mark m1, and m2 a day later. In between, one object was deleted, one was put on hold, and one became live again;
    two are new."""
    reviewable(place, tables([*STAYS, GONE, HELD, RESCUED], per_file=3), "m1")
    reviewable(
        place,
        tables([*STAYS, *NEW], per_file=2),
        "m2",
        start=LATER,
        listed=listing([*STAYS, *NEW, HELD, RESCUED]),
        on_hold=[{**{key: HELD[key] for key in ("address", "size", "modified", "slice")}, "hold": "legal"}],
        previous={"mark_id": "m1", "counts": dict(COUNTS), "unreadable": []},
        rules=Rules(7, {"dev": 3}),
    )
    return place


def difference(lakegc: Lakegc, sandbox: Sandbox, name: str, *marks: str) -> Any:
    return json.loads(lakegc.output(sandbox.settings, "diff", name, *marks, "--format", "json"))


def test_a_diff_reports_newly_and_no_longer_expired_objects(
    lakegc: Lakegc, sandbox: Sandbox, name: str, two: Place
) -> None:
    """The diff counts objects and bytes by reason and path, and says what happened to objects that no longer expire."""
    document = difference(lakegc, sandbox, name, "m1", "m2")

    newly, no_longer = document["newly_expired"], document["no_longer_expired"]
    assert (newly["objects"], newly["bytes"]) == (2, 3_000)
    assert (no_longer["objects"], no_longer["bytes"]) == (3, 700)
    assert document["still_expired"] == {"objects": 5, "bytes": 50}
    assert sums(newly["by_prefix"], "prefix") == {"t/": (1, 1_000), None: (1, 2_000)}
    assert sums(newly["by_reason"], "branch", "days") == {("main", 21): (1, 1_000), (None, None): (1, 2_000)}
    assert sums(no_longer["by_prefix"], "prefix") == {"t/": (1, 200), "": (1, 400), None: (1, 100)}
    assert sums(no_longer["by_fate"], "became") == {
        "no longer in the store": (1, 100), "on hold": (1, 200), "kept: referenced again, or unclear": (1, 400)
    }  # fmt: skip
    assert document["differ_in"] == {"rules": ["default 21 days, dev 7", "default 7 days, dev 3"]}


def test_a_review_reports_the_changes_since_the_previous_mark(
    lakegc: Lakegc, sandbox: Sandbox, name: str, two: Place
) -> None:
    """The review agrees with `diff`; a first mark is labelled as such."""
    output = lakegc.output(sandbox.settings, "review", name, "m2")
    document = json.loads(lakegc.output(sandbox.settings, "review", name, "m2", "--format", "json"))

    assert document["changed"] == difference(lakegc, sandbox, name, "m1", "latest")
    for words in (
        "2 objects (2.9 KiB) newly expired, 3 objects (700 B) no longer expired, 5 objects (50 B) unchanged",
        "1 object (100 B) no longer in the store; 1 object (200 B) on hold; 1 object (400 B) kept (referenced again",
        "The marks differ in rules: default 21 days, dev 7, then default 7 days, dev 3.",
        "Newly expired, by prefix",
        "No longer expired, by reason in mark m1",
    ):
        assert words in output
    assert "this is the first mark" in lakegc.output(sandbox.settings, "review", name, "m1")


def test_a_review_works_even_if_the_previous_mark_is_unreadable(
    lakegc: Lakegc, sandbox: Sandbox, name: str, two: Place
) -> None:
    """The review says that there is nothing to compare with, and shows all the rest."""
    folder = sandbox.local_path / name / "_lakefs/retention/gc/lakegc/m1"
    (folder / "expired_set" / "part-00000-0-000.parquet").write_bytes(b"")

    output = lakegc.output(sandbox.settings, "review", name, "m2")
    document = json.loads(lakegc.output(sandbox.settings, "review", name, "m2", "--format", "json"))

    assert "are unknown: the previous mark, m1, can't be compared with this one" in output
    assert (document["objects"], document["changed"]) == (7, None)
    assert "part-00000-0-000.parquet" in document["incomparable"]
    lakegc(sandbox.settings, "diff", name, "m1", "m2").stopped(3, "isn't the file that was written")


def test_the_list_of_a_diff_has_one_line_for_each_changed_object(
    lakegc: Lakegc, sandbox: Sandbox, name: str, two: Place
) -> None:
    """Each line has the change and what happened to the object."""
    lines = lakegc.output(sandbox.settings, "diff", name, "m1", "m2", "--list", "--format", "jsonl").splitlines()
    people = lakegc.output(sandbox.settings, "diff", name, "m1", "m2", "--list")

    assert {(row["address"], row["change"], row["became"]) for row in map(json.loads, lines)} == {
        ("data/n/1", "newly expired", None),
        ("data/n/2", "newly expired", None),
        ("data/s/gone", "no longer expired", "no longer in the store"),
        ("data/s/held", "no longer expired", "on hold"),
        ("data/r", "no longer expired", "kept: referenced again, or unclear"),
    }
    assert len(lines) == len(people.splitlines()) == 5
    assert lakegc.output(sandbox.settings, "diff", name, "m1", "m1", "--list") == "Nothing changed.\n"


def test_marks_that_cannot_be_compared_are_refused(lakegc: Lakegc, sandbox: Sandbox, name: str, two: Place) -> None:
    """Refused are the later mark given first, a mark that doesn't exist, and marks of two repositories with the same
    name (deleted and recreated)."""
    reviewable(two, [], "m0", repository_created=START - timedelta(days=200))

    lakegc(sandbox.settings, "diff", name, "m2", "m1").stopped(
        2, "m2 was made after mark m1: pass the earlier one first"
    )
    lakegc(sandbox.settings, "diff", name, "m1", "m7").stopped(1, "there is no mark m7")
    lakegc(sandbox.settings, "diff", name, "m0", "m2").stopped(2, "was deleted and recreated between mark m0")
