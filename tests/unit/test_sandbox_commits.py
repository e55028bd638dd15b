"""The sandbox's commits and merges: what they contain, what they refuse, and the tables that they write."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import Problem, Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.committed import Committed
from spark_resources.model import AddressType, Commit
from spark_resources.sstable import commit_id, read_ranges, read_whole_entries, verify_table

MARCH = datetime(2022, 3, 9, tzinfo=UTC)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox that isn't started, because these tests need no HTTP. Its ranges are short, so that commits have
    several."""
    sandbox = Sandbox(tmp_path / "sandbox", range_entries=4)
    yield sandbox
    sandbox.stop()


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    return sandbox.create("lake")


def refused(status: int, message: str = "") -> Any:
    return pytest.raises(Problem, match=message or None, check=lambda problem: problem.status == status)


def content(repository: SandboxRepository, ref: str) -> dict[str, bytes]:
    """Every path of a ref with the bytes of its object."""
    page, more = repository.listing(ref, amount=100_000)
    assert not more
    return {
        entry.path.decode(): repository.read(ref, entry.path.decode())[1]
        for entry in page
        if not isinstance(entry, str)
    }


def table(repository: SandboxRepository, name: str) -> bytes:
    """The bytes of a table whose id was verified."""
    data = (repository.objects.file("_lakefs") / name).read_bytes()
    verify_table(data, name=name)
    return data


def range_ids(repository: SandboxRepository, commit: Commit) -> list[str]:
    return [ref.id for ref in read_ranges(table(repository, commit.metarange_id), name=commit.metarange_id)]


# --- commits ----------------------------------------------------------------------------------------------------------


def test_the_first_commit_is_like_that_of_a_real_server(lake: SandboxRepository) -> None:
    """The first commit is empty, has no committer and no metarange, and is of generation 1."""
    [first] = list(lake.log("main"))
    assert (first.committer, first.message, first.metarange_id) == ("", "Repository created", "")
    assert (first.generation, first.version, first.parents, dict(first.metadata)) == (1, 1, (), {})
    assert first.id == commit_id(first)


def test_a_commit_has_the_content_of_its_parent_plus_the_staged_changes(lake: SandboxRepository) -> None:
    """The commit has its own message, date and id."""
    lake.put_many("main", [(f"k{number}", b"old") for number in range(20)])
    first = lake.commit("main", "first", date=MARCH)
    lake.put("main", "k3", b"new")
    lake.put("main", "k99", b"added")
    lake.delete("main", ["k5"])
    second = lake.commit("main", "second", metadata={"team": "ml"}, date=MARCH)
    expected = {f"k{number}": b"old" for number in range(20) if number != 5} | {"k3": b"new", "k99": b"added"}
    assert content(lake, "main") == content(lake, second.id) == expected
    assert content(lake, first.id) == {f"k{number}": b"old" for number in range(20)}
    assert (second.parents, second.generation, second.created) == ((first.id,), 3, MARCH)
    assert (second.message, dict(second.metadata), second.committer) == ("second", {"team": "ml"}, "admin")
    assert second.id == commit_id(second)


def test_an_empty_commit_is_refused_unless_it_is_allowed(lake: SandboxRepository) -> None:
    """A commit is empty if nothing is staged, if the only change hides a path that was never committed, or if identical
    content is re-staged."""
    with refused(400, "no changes"):
        lake.commit("main", "nothing")
    lake.put("main", "a", b"1")
    lake.commit("main", "a")
    lake.put("main", "b", b"1")
    lake.delete("main", ["b"])
    lake.put("main", "a", b"1")
    with refused(400, "no changes"):
        lake.commit("main", "nothing")
    assert (
        lake.commit("main", "nothing", allow_empty=True).metarange_id
        == lake.commit_of(lake.resolve("main~1").commit.id).metarange_id
    )


def test_a_commit_keeps_the_address_of_identical_content_that_was_restaged(lake: SandboxRepository) -> None:
    """The staged address is no longer served."""
    first = lake.put("main", "_SUCCESS", b"")
    lake.commit("main", "first")
    again = lake.put("main", "_SUCCESS", b"")
    assert lake.stat("main", "_SUCCESS").address == again.address != first.address
    lake.put("main", "part", b"1")
    lake.commit("main", "second")
    assert lake.stat("main", "_SUCCESS").address == first.address


def test_every_table_of_a_commit_has_the_id_of_its_content(lake: SandboxRepository) -> None:
    """The counts of each table are correct, and its entries have relative addresses."""
    for day in range(5):
        lake.put_many("main", [(f"d{day}/k{number}", f"{day} {number}".encode()) for number in range(10)])
        lake.commit("main", f"day {day}")
    for number, commit in enumerate(lake.log("main")):
        if not commit.metarange_id:
            continue
        refs = read_ranges(table(lake, commit.metarange_id), name=commit.metarange_id)
        entries = [read_whole_entries(table(lake, ref.id), name=ref.id) for ref in refs]
        assert [ref.count for ref in refs] == [len(rows) for rows in entries]
        assert [(ref.min_key, ref.max_key) for ref in refs] == [(rows[0].path, rows[-1].path) for rows in entries]
        assert sum(map(len, entries)) == (5 - number) * 10
        assert all(
            entry.address_type is AddressType.RELATIVE and lake.objects.file(entry.address).is_file()
            for rows in entries
            for entry in rows
        )


def test_a_commit_rewrites_only_the_ranges_that_changed(lake: SandboxRepository) -> None:
    """One changed path causes at most two new ranges out of many. All others are the parent's, with the same ids and
    files."""
    lake.put_many("main", [(f"k{number:04d}", b"old") for number in range(400)])
    first = lake.commit("main", "first")
    before = {name: lake.objects.file(f"_lakefs/{name}").stat().st_mtime_ns for name in range_ids(lake, first)}
    assert len(before) > 20
    lake.put("main", "k0200", b"new")
    second = lake.commit("main", "second")
    assert 1 <= len(set(range_ids(lake, second)) - set(before)) <= 2
    assert before == {name: lake.objects.file(f"_lakefs/{name}").stat().st_mtime_ns for name in before}


@pytest.mark.parametrize("seed", range(3))
def test_the_same_operations_produce_the_same_metaranges(sandbox: Sandbox, seed: int) -> None:
    """Random changes are made in two repositories."""
    draw = random.Random(seed)
    walked, again, expected = sandbox.create("walked"), sandbox.create("again"), dict[str, bytes]()
    paths = [f"{draw.randrange(3)}/{number:03d}" for number in range(80)]
    for step in range(12):
        chosen = draw.sample(paths, 15)
        for path in chosen[:10]:
            expected[path] = f"{step} {path}".encode()
            again.stage("main", [walked.put("main", path, expected[path])])
        for path in chosen[10:]:
            expected.pop(path, None)
        for lake in (walked, again):
            lake.delete("main", chosen[10:])
        commit = walked.commit("main", f"step {step}", allow_empty=True)
        assert content(walked, "main@") == expected
        assert again.commit("main", f"step {step}", allow_empty=True).metarange_id == commit.metarange_id


def test_an_entry_after_the_last_range_begins_a_new_range(lake: SandboxRepository) -> None:
    """The old range is reused unchanged, as on a real server."""
    lake.put("main", "base", b"1")
    first = range_ids(lake, lake.commit("main", "first"))
    lake.put("main", "kept", b"2")
    second = range_ids(lake, lake.commit("main", "second"))
    assert (len(second), second[:1]) == (2, first)


def test_reading_a_missing_range_for_the_first_time_raises_an_error(lake: SandboxRepository) -> None:
    """A missing range is not read as an empty one."""
    lake.put("main", "a", b"1")
    commit = lake.commit("main", "a")
    lake.objects.file(f"_lakefs/{range_ids(lake, commit)[0]}").unlink()
    with refused(410):
        Committed(lake.objects).value(commit.metarange_id, b"a")


# --- merges -----------------------------------------------------------------------------------------------------------


def branched(lake: SandboxRepository, base: dict[str, bytes]) -> None:
    """Two branches, main and dev, from one commit."""
    lake.put_many("main", base.items())
    lake.commit("main", "base")
    lake.create_branch("dev", "main")


def changed(lake: SandboxRepository, branch: str, **values: bytes | None) -> Commit:
    for path, data in values.items():
        if data is None:
            lake.delete(branch, [path])
        else:
            lake.put(branch, path, data)
    return lake.commit(branch, f"changes on {branch}")


def test_a_merge_has_the_changes_of_both_branches(lake: SandboxRepository) -> None:
    """The same change on both branches is no conflict."""
    branched(lake, dict.fromkeys("abcdefghijkl", b"base"))
    dest = changed(lake, "main", a=b"main", b=None, both=b"same", c=b"same", x=b"main")
    source = changed(lake, "dev", d=b"dev", e=None, both=b"same", c=b"same", y=b"dev")
    merged = lake.merge("dev", "main", metadata={"by": "test"})
    expected = dict.fromkeys("fghijkl", b"base") | {
        "a": b"main", "c": b"same", "d": b"dev", "both": b"same", "x": b"main", "y": b"dev",
    }  # fmt: skip
    assert content(lake, "main") == expected
    assert (merged.parents, merged.generation) == ((dest.id, source.id), 4)
    assert merged.message == "Merge 'dev' into 'main'"
    assert dict(merged.metadata) == {".lakefs.merge.strategy": "default", "by": "test"}
    assert merged.id == commit_id(merged)


CONFLICTS = [
    ({"a": b"main"}, {"a": b"dev"}),
    ({"a": b"main"}, {"a": None}),
    ({"a": None}, {"a": b"dev"}),
    ({"n": b"main"}, {"n": b"dev"}),
]


@pytest.mark.parametrize(("ours", "theirs"), CONFLICTS)
@pytest.mark.parametrize("strategy", ["", "dest-wins", "source-wins"])
def test_a_conflict_is_refused_unless_a_strategy_names_the_winner(
    lake: SandboxRepository, ours: dict[str, bytes | None], theirs: dict[str, bytes | None], strategy: str
) -> None:
    """Without a strategy, the merge gets a 409 and changes nothing."""
    branched(lake, {"a": b"base", "b": b"base"})
    head = changed(lake, "main", **ours)
    changed(lake, "dev", **theirs)
    if not strategy:
        with refused(409, "conflict found"):
            lake.merge("dev", "main")
        assert lake.branch("main").commit_id == head.id
        return
    merged = lake.merge("dev", "main", strategy=strategy)
    winner = ours if strategy == "dest-wins" else theirs
    expected = {"a": b"base", "b": b"base"} | winner
    assert content(lake, "main") == {path: data for path, data in expected.items() if data is not None}
    assert merged.metadata[".lakefs.merge.strategy"] == strategy


def test_identical_content_at_another_address_is_not_a_conflict(lake: SandboxRepository) -> None:
    """A branch that only moved the content didn't change it, so the other branch's change wins."""
    branched(lake, {"a": b"base", "b": b"base"})
    changed(lake, "dev", a=None)
    moved = changed(lake, "dev", a=b"base")
    assert lake.stat(moved.id, "a").address != lake.stat("main", "a").address
    changed(lake, "main", a=b"main")
    lake.merge("dev", "main")
    assert content(lake, "main") == {"a": b"main", "b": b"base"}


def test_an_impossible_merge_is_refused(lake: SandboxRepository) -> None:
    """The destination has staged changes, the source has no changes or is unknown, or the strategy doesn't exist."""
    branched(lake, {"a": b"base"})
    with refused(400, "no changes"):
        lake.merge("dev", "main")
    changed(lake, "dev", b=b"dev")
    lake.put("main", "c", b"staged")
    with refused(400, "dirty branch"):
        lake.merge("dev", "main")
    lake.reset("main")
    with refused(404):
        lake.merge("gone", "main")
    with refused(404, "branch not found"):
        lake.merge("dev", "gone")
    with refused(400, "strategy"):
        lake.merge("dev", "main", strategy="both-win")
    assert lake.merge("dev", "main").parents[1] == lake.branch("dev").commit_id


def test_restaged_identical_content_does_not_block_a_merge(lake: SandboxRepository) -> None:
    """The server doesn't count it as a change: it merges, and the staged entry is gone."""
    branched(lake, {"a": b"base"})
    committed = lake.stat("main", "a")
    changed(lake, "dev", b=b"dev")
    assert lake.put("main", "a", b"base").address != committed.address
    lake.merge("dev", "main")
    assert lake.stat("main", "a").address == committed.address


def test_the_log_is_newest_first_over_all_parents_or_along_the_main_line(lake: SandboxRepository) -> None:
    """`~` and `^` move along the log, and prefixes of ids name commits."""
    branched(lake, {"a": b"base"})
    base, dev, main = lake.resolve("main").commit, changed(lake, "dev", b=b"1"), changed(lake, "main", c=b"1")
    merged = lake.merge("dev", "main")
    every = [merged.id, main.id, dev.id, base.id, lake.resolve("main~3").commit.id]
    assert [commit.id for commit in lake.log("main")] == every
    assert [commit.id for commit in lake.log("main", first_parent=True)] == [every[0], every[1], *every[3:]]
    assert lake.resolve("main^2").commit.id == dev.id
    assert lake.resolve("main^2~1").commit.id == base.id
    assert lake.resolve(merged.id[:12]).commit.id == merged.id
    with refused(404):
        lake.resolve("main~9")
    with refused(400):
        lake.resolve("main^3")
