"""Files that are missing, truncated, changed or replaced: the mark stops, reports them, and is never finished."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_resources.model import Commit
from spark_resources.sstable import read_ranges
from tests.fault.conftest import NO_AGE, Lake, Lakegc, Outcome

Damage = Callable[[Path], None]


def remove(file: Path) -> None:
    file.unlink()


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0x10
    file.write_bytes(data)


def clear(file: Path) -> None:
    file.write_bytes(b"")


WAYS_TO_DAMAGE = [remove, truncate, flip_a_bit]


def mark(lakegc: Lakegc, lake: Lake) -> Outcome:
    return lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE)


def table(lake: Lake, table_id: str) -> Path:
    return lake.folder / "_lakefs" / table_id


def range_ids(lake: Lake, commit: Commit) -> list[str]:
    metarange = table(lake, commit.metarange_id).read_bytes()
    return [ref.id for ref in read_ranges(metarange, name=commit.metarange_id)]


# --- what commits refer to ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage_file", WAYS_TO_DAMAGE)
def test_a_missing_or_damaged_range_of_a_retained_commit_stops_the_mark(
    lakegc: Lakegc, lake: Lake, damage_file: Damage
) -> None:
    """The error names the range. If the range were skipped, its addresses would look like garbage."""
    range_id = range_ids(lake, lake.commits[1])[0]
    lake.server.after("/prepare_commits/status", lambda _: damage_file(table(lake, range_id)))

    mark(lakegc, lake).stopped(3, range_id)
    lake.check_no_finished_mark()


def test_a_range_replaced_by_one_with_different_keys_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The other range is intact and valid."""
    lake.repository.put("main", "d", b"d")
    lake.commits.append(lake.repository.commit("main", "third"))
    swap_ranges(lake)

    mark(lakegc, lake).stopped(3, range_ids(lake, lake.commits[-1])[0])
    lake.check_no_finished_mark()


def test_a_range_replaced_by_one_with_the_same_keys_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The keys and counts of both ranges agree; only the addresses differ."""
    swap_ranges(lake)

    mark(lakegc, lake).stopped(3, range_ids(lake, lake.commits[-1])[0])
    lake.check_no_finished_mark()


def swap_ranges(lake: Lake) -> None:
    """Replace the range of the last commit by that of the first one, once the lists have been prepared."""
    old, new = (range_ids(lake, commit)[0] for commit in (lake.commits[0], lake.commits[-1]))
    data = table(lake, old).read_bytes()
    lake.server.after("/prepare_commits/status", lambda _: table(lake, new).write_bytes(data))


@pytest.mark.parametrize("damage_file", WAYS_TO_DAMAGE)
def test_a_missing_or_damaged_metarange_stops_the_mark(lakegc: Lakegc, lake: Lake, damage_file: Damage) -> None:
    """The error names the metarange.

    apache/carbondata#3899
    """
    metarange_id = lake.commits[1].metarange_id
    lake.server.after("/prepare_commits/status", lambda _: damage_file(table(lake, metarange_id)))

    mark(lakegc, lake).stopped(3, metarange_id)
    lake.check_no_finished_mark()


def test_a_metarange_replaced_by_another_one_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The other metarange is intact and valid."""
    old, new = (commit.metarange_id for commit in lake.commits)
    lake.server.after("/prepare_commits/status", lambda _: table(lake, new).write_bytes(table(lake, old).read_bytes()))

    mark(lakegc, lake).stopped(3, new)
    lake.check_no_finished_mark()


# --- the commit graph -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage_file", WAYS_TO_DAMAGE)
def test_a_missing_or_damaged_dump_of_commits_stops_the_mark(lakegc: Lakegc, lake: Lake, damage_file: Damage) -> None:
    """The error names the dump. Otherwise, commits would be lost together with their objects."""
    dumped: list[str] = []

    def damage(body: dict[str, Any]) -> None:
        dumped.append(body["commits_meta_range_id"])
        damage_file(table(lake, dumped[0]))

    lake.server.after("/refs/dump", damage)
    outcome = mark(lakegc, lake)

    outcome.stopped(3, dumped[0])
    lake.check_no_finished_mark()


def test_a_damaged_range_of_the_dump_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The error names the range with a flipped bit."""
    parts: list[str] = []

    def damage(body: dict[str, Any]) -> None:
        dump = body["commits_meta_range_id"]
        parts.extend(ref.id for ref in read_ranges(table(lake, dump).read_bytes(), name=dump, entity="commit"))
        flip_a_bit(table(lake, parts[0]))

    lake.server.after("/refs/dump", damage)
    outcome = mark(lakegc, lake)

    outcome.stopped(3, parts[0])
    lake.check_no_finished_mark()


# --- the server's list of retained commits --------------------------------------------------------------------------


def change_header(file: Path) -> None:
    file.write_text(file.read_text().replace("expired", "dead", 1))


def make_row_unreadable(file: Path) -> None:
    file.write_text(file.read_text().replace("false", "maybe", 1))


def keep_header_only(file: Path) -> None:
    file.write_text(file.read_text().split("\n")[0] + "\n")


@pytest.mark.parametrize(
    "damage_file",
    [remove, clear, keep_header_only, change_header, make_row_unreadable],
    ids=lambda damage_file: damage_file.__name__,
)
def test_a_missing_or_damaged_list_of_commits_stops_the_mark(lakegc: Lakegc, lake: Lake, damage_file: Damage) -> None:
    """The error names a `commits.csv` that is missing, empty, or unreadable in any row. Otherwise, fewer commits would
    be retained."""
    lake.server.after(
        "/prepare_commits/status", lambda body: damage_file(lake.file_at(body["result"]["gc_commits_location"]))
    )

    mark(lakegc, lake).stopped(3, "commits.csv")
    lake.check_no_finished_mark()


def test_a_failed_mark_is_recorded_and_its_id_cannot_be_reused(lakegc: Lakegc, lake: Lake) -> None:
    """A mark with another id then succeeds."""
    once = [change_header]

    def harm_once(body: dict[str, Any]) -> None:
        if once:
            once.pop()(lake.file_at(body["result"]["gc_commits_location"]))

    lake.server.after("/prepare_commits/status", harm_once)
    mark(lakegc, lake).stopped(3, "commits.csv")

    lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE).stopped(2, "in use")
    assert lakegc(lake.settings, "mark", lake.name, "--mark-id", "m2", *NO_AGE).code == 0
    failed, fine = lake.records()
    assert "commits.csv" in (failed.failure or "")
    assert (fine.mark_id, fine.counts["expired"]) == ("m2", 1)


# --- the server's lists of staged addresses -------------------------------------------------------------------------


def files_at(lake: Lake, body: dict[str, Any]) -> list[Path]:
    return sorted(lake.file_at(body["gc_uncommitted_location"]).iterdir())


def test_a_lost_file_of_staged_addresses_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The server announces how many files there are."""
    lake.server.after("/prepare_uncommited", lambda body: [file.unlink() for file in files_at(lake, body)])

    mark(lakegc, lake).stopped(3, "reported 1 file with staged addresses", "the store has only 0")
    lake.check_no_finished_mark()


def test_one_lost_file_of_several_with_staged_addresses_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The server announces three staged objects in two pages."""
    lake.repository.put("main", "staged as well", b"1")
    lake.repository.put("main", "and this one", b"2")
    responses: list[dict[str, Any]] = []

    def lose_the_last(body: dict[str, Any]) -> None:
        responses.append(body)
        if "continuation_token" not in body:
            files_at(lake, body)[0].unlink()

    lake.server.after("/prepare_uncommited", lose_the_last)

    mark(lakegc, lake).stopped(3, "staged addresses")
    assert len(responses) == 2
    lake.check_no_finished_mark()


@pytest.mark.parametrize("damage_file", [truncate, clear, lambda file: file.write_text("physical_address\ndata/x\n")])
def test_a_damaged_file_of_staged_addresses_stops_the_mark(lakegc: Lakegc, lake: Lake, damage_file: Damage) -> None:
    """The error names the file, and says that it isn't readable Parquet."""
    names: list[str] = []

    def damage(body: dict[str, Any]) -> None:
        file = files_at(lake, body)[0]
        names.append(file.name)
        damage_file(file)

    lake.server.after("/prepare_uncommited", damage)
    outcome = mark(lakegc, lake)

    outcome.stopped(3, names[0], "not a readable Parquet file")
    lake.check_no_finished_mark()
