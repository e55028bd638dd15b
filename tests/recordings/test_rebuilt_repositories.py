"""Recorded histories rebuilt in a sandbox give the recorded server's results: tables, ids, lists, and marks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakegc_assets.rules.retention import commit_verdicts
from spark_resources.lakefs.gc_lists import parse_commits_csv
from spark_resources.lakefs_sandbox import ALL_OVERSIGHTS, Sandbox
from spark_resources.lakefs_sandbox.gc_api import dump_refs, prepare_commits, prepare_uncommitted
from spark_resources.lakefs_sandbox.xids import Xids
from spark_resources.sstable import read_commits, read_ranges
from tests.support.mark_runs import marked
from tests.support.rebuilt_repositories import History, Rebuilt, rebuild, rebuild_commits
from tests.support.recording_folders import PROJECT_RECORDINGS
from tests.support.replay_server import load_recording

SMALL = ["worked-example", "same-bytes", "shared-parent"]
NEAR = timedelta(minutes=1)  # the sandbox's clock continues between setting and using it


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(tmp_path / "sandbox")
    yield sandbox
    sandbox.stop()


def history(name: str) -> History:
    return History(load_recording(PROJECT_RECORDINGS / name))


def recorded_file(source: History, pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in (source.recording.path / "namespace/_lakefs").glob(pattern) if path.is_file()]


# --- the same inputs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*SMALL, "random-1", "random-2", "random-20", "no-rules", "empty"])
def test_recorded_entries_and_dates_give_the_recorded_ids(sandbox: Sandbox, name: str) -> None:
    """The ids of commits and of all their tables are compared; merges and reverts are repeated."""
    source = history(name)
    rebuilt = rebuild_commits(source, sandbox)

    assert rebuilt.commits == {commit: commit for commit in source.commits}
    assert {branch.id: branch.commit_id for branch in rebuilt.lake.branches(include_hidden=True)} == source.heads
    dumped = dump_refs(rebuilt.lake)["commits_meta_range_id"]
    assert {commit.id for commit in _dumped_commits(rebuilt, dumped)} == source.commits.keys()


def test_rebuilt_ranges_are_the_recorded_ones(sandbox: Sandbox) -> None:
    """Every kind of path, address and operation gives identical rows. Ids of metaranges may differ, because they have
    sizes that depend on the compressor."""
    source = history("everything")
    rebuilt_lake = rebuild_commits(source, sandbox)

    for commit in source.commits.values():
        rebuilt_commit = rebuilt_lake.lake.commit_of(rebuilt_lake.commits[commit.id])
        rebuilt = [ref.id for ref in rebuilt_lake.lake.committed.ranges(rebuilt_commit.metarange_id)]
        assert rebuilt == [ref.id for ref in source.ranges(commit)], commit.message


def _dumped_commits(made: Rebuilt, dump: str) -> Iterator[Any]:
    tables = made.lake.objects
    for part in read_ranges(tables.read(f"_lakefs/{dump}"), name=dump, entity="commit"):
        yield from read_commits(tables.read(f"_lakefs/{part.id}"), name=part.id)


@pytest.mark.parametrize("name", SMALL)
def test_the_sandbox_lists_the_recorded_commits_and_staged_addresses(sandbox: Sandbox, name: str) -> None:
    """The sandbox leaves out what the recorded server left out."""
    source = history(name)
    lake = rebuild(source, sandbox, uploading=False).lake
    xids = Xids(1, sandbox.now)

    listed = lake.objects.read(_key(lake, prepare_commits(lake, xids, ALL_OVERSIGHTS).commits_location))
    page = prepare_uncommitted(lake, xids, None, page_size=1000, oversights=ALL_OVERSIGHTS)

    for recorded in recorded_file(source, "retention/gc/commits/*/commits.csv"):
        assert sorted(parse_commits_csv(listed, where="here")) == sorted(parse_commits_csv(recorded, where="there"))
    folder = sandbox.local_path / name / _key(lake, page.location) if page.location else None
    files = [file.read_bytes() for file in folder.iterdir()] if folder else []
    assert _addresses(files) == _addresses(recorded_file(source, "retention/gc/uncommitted/*/uncommitted/*"))
    root = f"{source.recording.namespace.uri}/"
    for branch, objects in source.served.items():
        served, _ = lake.listing(branch, amount=10_000)
        assert {entry.path.decode(): entry.address for entry in served if not isinstance(entry, str)} == {
            str(entry["path"]): str(entry["physical_address"]).removeprefix(root) for entry in objects
        }


def _key(lake: Any, location: str) -> str:
    return location.removeprefix(lake.objects.location("").rstrip("/") + "/")


def _addresses(files: list[bytes]) -> list[str]:
    return sorted(
        address for data in files for address in pq.read_table(io.BytesIO(data))["physical_address"].to_pylist()
    )


# --- the same history -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
def test_a_mark_of_a_rebuilt_history_gives_the_recorded_verdicts_and_expired_set(sandbox: Sandbox, name: str) -> None:
    """Objects were uploaded, committed, merged and staged again at the recorded times."""
    source = history(name)
    rebuilt = rebuild(source, sandbox, uploading=True)
    assert _stored(rebuilt) == {rebuilt.addresses[key] for key in source.recording.listing if key.startswith("data/")}

    with sandbox:
        mark = marked(sandbox.settings, source.recording.repository)

    assert mark.expired == {rebuilt.addresses[key] for key in source.recording.expired()}
    verdicts = {row["commit_id"]: row for row in mark.verdicts()}
    expected = commit_verdicts(source.commits.values(), source.heads, source.rules, now=source.recording.recorded_at)
    assert verdicts.keys() == {rebuilt.commits[verdict.commit_id] for verdict in expected}
    for verdict in expected:
        actual = verdicts[rebuilt.commits[verdict.commit_id]]
        assert (actual["retained"], actual["reason"], actual["branch"], actual["days"], actual["message"]) == (
            verdict.retained, verdict.why.value, verdict.branch, verdict.days, verdict.message,
        )  # fmt: skip
        assert (actual["until"] is None) == (verdict.until is None)
        assert verdict.until is None or abs(actual["until"] - verdict.until) < NEAR


def _stored(made: Rebuilt) -> set[str]:
    root = made.lake.objects.location("")
    return {
        external.address.removeprefix(f"{root}/") for external in made.lake.objects.external_objects(f"{root}/data/")
    }
