"""Marks that the reference collector left, in any of its layouts (formats §5): they are listed and reviewed, and never
shown as lakegc's own."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.stores.place import Place
from tests.support.command_line import Lakegc
from tests.support.mark_runs import target_of
from tests.support.recording_folders import PROJECT_RECORDINGS

GC = "_lakefs/retention/gc/"
LAYOUTS = {
    "unified": "unified/{}/deleted/",
    "uncommitted": "uncommitted/{}/deleted/",
    "committed": "addresses/mark_id={}/",
    "committed before 0.4": "addresses/run_id={}/",
}
STORED = {"data/s1/a": b"12345", "data/s1/b\nc": b"1234567", "data/right-here": b"1", "legacy": b"12"}
GONE = "data/s2/gone"


def parquet(addresses: list[str], name: str = "address", kind: pa.DataType | None = None) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(addresses, kind or pa.string())}), buffer)
    return buffer.getvalue()


def summary(count: int, *, success: object = True) -> bytes:
    return json.dumps({"run_id": "r", "success": success, "num_deleted_objects": count}).encode() + b"\n"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("others")) as server:
        yield server


@pytest.fixture
def lake(sandbox: Sandbox, request: pytest.FixtureRequest) -> str:
    """A repository with a few stored objects and no mark."""
    name = f"lake-{abs(hash(request.node.nodeid)):x}"
    sandbox.create(name)
    for key, data in STORED.items():
        place_of(sandbox, name).store().write(key, data)
    return name


def place_of(sandbox: Sandbox, lake: str) -> Place:
    return target_of(sandbox.settings, lake).place


def leave(place: Place, layout: str, mark_id: str, *files: list[str], summary_file: bytes | None = None) -> None:
    """Write a mark as the reference collector does: Parquet in several files, with text and markers beside it; the
    summary last."""
    folder = GC + LAYOUTS[layout].format(mark_id)
    for number, addresses in enumerate(files):
        place.store().write(f"{folder}part-0000{number}-x.snappy.parquet", parquet(addresses))
    place.store().write(f"{folder}_SUCCESS", b"")
    if layout in ("unified", "uncommitted"):
        place.store().write(f"{folder.removesuffix('/')}.text/part-0.txt", b"data/s1/b\nc\n")
    if summary_file is not None and layout in ("unified", "uncommitted"):
        place.store().write(f"{folder.removesuffix('deleted/')}summary.json", summary_file)


def json_output(lakegc: Lakegc, settings: Mapping[str, str], *arguments: str) -> Any:
    outcome = lakegc(settings, *arguments, "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def listed(lakegc: Lakegc, settings: Mapping[str, str], lake: str) -> dict[tuple[str, str], tuple[str, int | None]]:
    rows = json_output(lakegc, settings, "status", lake)["marks"]
    return {(row["by"], row["mark_id"]): (row["state"], row["expired"]) for row in rows}


def test_marks_of_every_layout_are_listed_with_their_state_and_count(
    lakegc: Lakegc, sandbox: Sandbox, lake: str
) -> None:
    """The list shows who made each mark, and whether its summary says that it is finished."""
    place = place_of(sandbox, lake)
    leave(place, "unified", "m1", ["data/s1/a"], summary_file=summary(1))
    leave(place, "unified", "m2", ["data/s1/a"])
    leave(place, "unified", "m3", ["data/s1/a"], summary_file=summary(7, success=False))
    leave(place, "unified", "m4", ["data/s1/a"], summary_file=b"{")
    leave(place, "uncommitted", "m1", ["data/s1/a"], summary_file=summary(2))
    leave(place, "committed", "m1", ["data/s1/a"])
    leave(place, "committed before 0.4", "m1", ["data/s1/a"])

    assert listed(lakegc, sandbox.settings, lake) == {
        ("the reference collector (unified)", "m1"): ("marked", 1),
        ("the reference collector (unified)", "m2"): ("unfinished (no summary)", None),
        ("the reference collector (unified)", "m3"): ("failed", 7),
        ("the reference collector (unified)", "m4"): ("unknown (summary unreadable)", None),
        ("the reference collector (uncommitted)", "m1"): ("marked", 2),
        ("the reference collector (committed)", "m1"): ("unknown (no summary in this layout)", None),
        ("the reference collector (committed before 0.4)", "m1"): ("unknown (no summary in this layout)", None),
    }
    table = lakegc(sandbox.settings, "status", lake).out
    assert table.count("the reference collector") == 7
    lakegc(sandbox.settings, "review", lake).stopped(1, "no finished mark")
    lakegc(sandbox.settings, "review", lake, "m1").stopped(2, "4 marks named m1", "'uncommitted/m1'", "'unified/m1'")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_address_of_a_foreign_mark_is_reviewed(lakegc: Lakegc, sandbox: Sandbox, lake: str, layout: str) -> None:
    """An address may contain a newline. Sizes are the store's, and reasons are not known."""
    addresses = [*STORED, GONE]
    leave(place_of(sandbox, lake), layout, "m1", addresses[:2], addresses[2:], summary_file=summary(5))

    totals = json_output(lakegc, sandbox.settings, "review", lake, "m1")
    every = json_output(lakegc, sandbox.settings, "review", lake, f"{layout}/m1", "--list")
    lines = lakegc(sandbox.settings, "review", lake, "m1", "--list", "--format", "csv").out
    people = lakegc(sandbox.settings, "review", lake, "m1")

    assert (totals["objects"], totals["not_in_the_store"], totals["bytes"]) == (5, 1, 15)
    assert (totals["layout"], totals["by"]) == (layout, f"the reference collector ({layout})")
    assert {group["slice"]: group["bytes"] for group in totals["by_slice"]} == {"data/s1/": 12, "data/": 1, "": 2}
    assert {row["address"]: row["size"] for row in every} == {
        **{key: len(data) for key, data in STORED.items()},
        GONE: None,
    }
    assert {row["reason"] for row in every} == {"not recorded by the collector that made the mark"}
    assert {row[0] for row in csv.reader(io.StringIO(lines))} == {"address", *addresses}
    assert people.code == 0
    for words in ("5 objects expired", "4 of them (15 B) are in the store", "foreign mark", f"lakegc mark {lake}"):
        assert words in people.out
    assert GONE in lakegc(sandbox.settings, "review", lake, "m1", "--list").out


def test_the_count_of_a_summary_is_shown_beside_that_of_the_files_if_they_disagree(
    lakegc: Lakegc, sandbox: Sandbox, lake: str
) -> None:
    leave(place_of(sandbox, lake), "unified", "m1", ["data/s1/a"], summary_file=summary(22))

    shown_to_people = lakegc(sandbox.settings, "review", lake, "m1").out
    assert "1 object expired" in shown_to_people
    assert "Its summary reports 22" in shown_to_people


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (parquet(["data/a"])[:-9], "is not a Parquet file"),
        (b"", "is not a Parquet file"),
        (b"data/a\n", "is not a Parquet file"),
        (parquet(["data/a"], name="key"), "'address'"),
        (parquet([["data/a"]], kind=pa.list_(pa.string())), "'address'"),  # type: ignore[list-item]
        (parquet(["data/a", None]), "1 row without an address"),  # type: ignore[list-item]
    ],
    ids=["truncated", "empty", "text", "another column", "another type", "null"],
)
def test_a_foreign_mark_with_one_damaged_file_is_refused_as_a_whole(
    lakegc: Lakegc, sandbox: Sandbox, lake: str, damage: bytes, words: str
) -> None:
    """The error names a file that isn't intact Parquet with addresses. The rest isn't shown as if it were
    everything."""
    place = place_of(sandbox, lake)
    leave(place, "unified", "m1", ["data/s1/a"], summary_file=summary(2))
    place.store().write(f"{GC}unified/m1/deleted/part-00009-y.parquet", damage)

    lakegc(sandbox.settings, "review", lake, "m1").stopped(3, "part-00009-y.parquet", words)
    assert listed(lakegc, sandbox.settings, lake) == {("the reference collector (unified)", "m1"): ("marked", 2)}


@pytest.mark.parametrize(
    "left", ["unified/m1/summary.json", "unified/m1/deleted.text/part-0.txt", "uncommitted/m1/deleted/_SUCCESS"]
)
def test_a_foreign_mark_without_its_parquet_files_is_reported_as_damaged(
    lakegc: Lakegc, sandbox: Sandbox, lake: str, left: str
) -> None:
    """The mark isn't reported as missing, since some of its files remain."""
    place_of(sandbox, lake).store().write(GC + left, summary(3))

    lakegc(sandbox.settings, "review", lake, "m1").stopped(3, "belongs to a mark", "are missing")


def test_an_unknown_foreign_mark_is_refused(lakegc: Lakegc, sandbox: Sandbox, lake: str) -> None:
    """The mark is refused whatever its id looks like."""
    leave(place_of(sandbox, lake), "unified", "m1", ["data/s1/a"], summary_file=summary(1))

    lakegc(sandbox.settings, "review", lake, "m2").stopped(1, "no mark m2")
    for strange in ("unified/m2", "../m1", "m1/deleted"):
        lakegc(sandbox.settings, "review", lake, strange).stopped(2, "can't be a mark id")


def test_an_unfinished_mark_of_lakegc_is_not_taken_for_a_foreign_one(
    lakegc: Lakegc, sandbox: Sandbox, lake: str
) -> None:
    """The mark has a folder of lakegc's, although its other files have the reference collector's layout."""
    place = place_of(sandbox, lake)
    leave(place, "unified", "m1", ["data/s1/a"], summary_file=summary(1))
    place.store().write(f"{GC}lakegc/m1/namespace_slices/part-0.parquet", b"")

    lakegc(sandbox.settings, "review", lake, "m1").stopped(1, "no mark m1")


@pytest.mark.parametrize("recording", ["same-bytes", "random-20", "everything"])
def test_every_address_of_a_recorded_reference_mark_is_listed(
    lakegc: Lakegc, sandbox: Sandbox, lake: str, recording: str
) -> None:
    """Every address that the reference collector marked is listed, correct or not."""
    folder = PROJECT_RECORDINGS / recording
    if not folder.exists():
        pytest.skip("this recording is not at hand")
    text = (folder / "expected" / "reference_deleted.txt").read_text(encoding="utf-8")
    marked = text.splitlines()
    leave(
        place_of(sandbox, lake),
        "unified",
        "m1",
        marked,
        summary_file=(folder / "expected" / "reference_summary.json").read_bytes(),
    )

    document = json_output(lakegc, sandbox.settings, "review", lake, "m1", "--list")
    assert sorted(row["address"] for row in document) == sorted(marked)
