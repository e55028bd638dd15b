"""`lakegc fsck` finds and reports every kind of damage, and reports nothing in an intact repository."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakegc_assets.cli import fsck
from spark_resources.model import Commit, Namespace
from spark_resources.sstable import read_commits, read_entries, read_properties, read_ranges, write_commits
from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.support.mark_runs import ANY_AGE, Marker, SharedSpark
from tests.support.recording_folders import PROJECT_RECORDINGS
from tests.support.replay_server import ACCESS_KEY_ID, SECRET_ACCESS_KEY, Recording, replaying
from tests.support.s3_servers import SeaweedFS

JUNK = "ab" * 32
_serial = itertools.count(1)


@pytest.fixture(autouse=True)
def _one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the session that all tests share, and leave it running."""

    @contextmanager
    def session() -> Iterator[Callable[[], SparkSession]]:
        shared = SharedSpark()
        yield lambda: shared.spark_session

    monkeypatch.setattr(fsck, "session", session)


def document(lakegc: Lakegc, settings: dict[str, str], repository: str, *options: str) -> tuple[int, dict[str, Any]]:
    outcome = lakegc(settings, "fsck", repository, "--format", "json", *options)
    assert outcome.out, outcome.err
    return outcome.code, json.loads(outcome.out)


def problems(found: dict[str, Any]) -> dict[str, str]:
    """The problem of each finding, by id."""
    return {finding["id"]: finding["problem"] for finding in found["findings"]}


def flipped(data: bytes) -> bytes:
    return data[: len(data) // 3] + bytes([data[len(data) // 3] ^ 0x10]) + data[len(data) // 3 + 1 :]


# --- a recording of a real server, over S3 --------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved(Recording):
    """A recording in its own bucket, so that damage affects no other test; responses can be changed."""

    bucket: str = ""
    forged: dict[str, dict[str, Any]] = field(default_factory=dict)  # fields of commits in logs, by commit
    dump_allowed: bool = True

    @cached_property
    def namespace(self) -> Namespace:
        return Namespace.parse(f"s3://{self.bucket}/lake")

    def api(self, name: str) -> Any:
        response = super().api(name)
        if name == "commits_reachable_from_branches":
            response["commits"] = [commit | self.forged.get(commit["id"], {}) for commit in response["commits"]]
        if name == "refs_dump" and not self.dump_allowed:
            response["status"] = 403
        old = str(self.meta["storage_namespace"]).rstrip("/")
        return json.loads(json.dumps(response).replace(old, self.namespace.uri))


@dataclass(frozen=True)
class Stored:
    """A recording's objects in a bucket, and the content of its tables."""

    recording: Moved
    client: Any
    server: SeaweedFS

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.recording.bucket, Key=f"lake/{key}", Body=data)

    def change(self, table_id: str, how: Callable[[bytes], bytes]) -> None:
        self.write(f"_lakefs/{table_id}", how(self.table(table_id)))

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=self.recording.bucket, Key=f"lake/{key}")

    def table(self, table_id: str) -> bytes:
        return self.recording.recorded_bytes(f"_lakefs/{table_id}")

    def ranges(self, metarange: str) -> list[str]:
        return [ref.id for ref in read_ranges(self.table(metarange), name=metarange)]

    def addresses(self, range_id: str) -> list[str]:
        return [
            str(address) for address in read_entries(self.table(range_id), name=range_id).column("address").to_pylist()
        ]

    @cached_property
    def dangling(self) -> list[Commit]:
        """The commits that no branch reaches."""
        dump = self.recording.api("refs_dump")["body"]["commits_meta_range_id"]
        parts = read_ranges(self.table(dump), name=dump, entity="commit")
        every = [commit for part in parts for commit in read_commits(self.table(part.id), name=part.id)]
        return [commit for commit in every if commit.id not in self.metaranges]

    @property
    def heads(self) -> dict[str, str]:
        return {branch["id"]: branch["commit_id"] for branch in self.recording.api("branches")["body"]["results"]}

    @property
    def metaranges(self) -> dict[str, str]:
        """The metarange of every commit in logs, in the order in which they were made."""
        commits = self.recording.api("commits_reachable_from_branches")["commits"]
        by_generation = sorted(commits, key=lambda commit: commit["generation"])
        return {commit["id"]: commit["meta_range_id"] for commit in by_generation}

    @contextmanager
    def settings(self) -> Iterator[dict[str, str]]:
        with replaying(self.recording) as endpoint:
            yield {
                "endpoint_url": endpoint,
                "access_key_id": ACCESS_KEY_ID,
                "secret_access_key": SECRET_ACCESS_KEY,
                "s3_endpoint_url": self.server.endpoint_url,
                "s3_access_key_id": self.server.access_key,
                "s3_secret_access_key": self.server.secret_key,
                "s3_region": "us-east-1",
            }


@pytest.fixture
def stored(seaweedfs: SeaweedFS) -> Stored:
    """The recording of a random walk: many branches, ranges and metaranges, dangling commits, staged objects."""
    recording = Moved(PROJECT_RECORDINGS / "random-1", bucket=f"fsck-{next(_serial)}")
    client = seaweedfs.client()
    client.create_bucket(Bucket=recording.bucket)
    copy = Stored(recording, client, seaweedfs)
    for key, data in recording.objects():
        copy.write(key, data)
    return copy


def test_fsck_finds_every_kind_of_damage_and_none_in_an_intact_recording(lakegc: Lakegc, stored: Stored) -> None:
    """Flipped, truncated, swapped, lost and forged parts are all found in one check."""
    with stored.settings() as settings:
        code, sound = document(lakegc, settings, stored.recording.repository)
    assert (code, sound["findings"], sound["missing"]["count"], sound["not_verified"]) == (0, [], 0, [])
    assert (sound["alien"]["count"], sound["named_like_tables"]) == (0, [])
    assert (sound["verified"]["commits"], sound["verified"]["metaranges"], sound["verified"]["ranges"]) == (43, 38, 38)

    expected, branches, forged = damage_everything(stored)
    changed = replace(stored, recording=replace(stored.recording, forged={forged: {"message": "another"}}))
    with changed.settings() as settings:
        code, report = document(lakegc, settings, stored.recording.repository)

    assert code == 1
    assert expected == problems(report)
    for finding in report["findings"]:
        assert branches.get(finding["id"], set()) <= {*finding["needs"]["branches"]}
    assert {"_lakefs/notes.txt", "_lakefs/retention/mine/x"} == {*report["alien"]["files"]}
    assert any("live metarange" in sentence and "can't be read" in sentence for sentence in report["not_verified"])


def damage_everything(stored: Stored) -> tuple[dict[str, str], dict[str, set[str]], str]:
    """Damage each kind of file. Returns the expected findings, the branches that break, and a commit to forge."""
    metaranges, heads = [*stored.metaranges.values()], stored.heads
    by_head = {branch: stored.metaranges[head] for branch, head in heads.items() if stored.metaranges[head]}
    branch, metarange = sorted(by_head.items())[0]
    distinct = [candidate for candidate in dict.fromkeys(metaranges) if candidate and candidate != metarange]
    flip, cut, missing, left, right = distinct[:5]
    ranges = list(dict.fromkeys(r for candidate in distinct[5:] for r in stored.ranges(candidate)))
    ranges = [range_id for range_id in ranges if range_id not in stored.ranges(metarange)]
    first, second = equally_described_ranges(stored, ranges)
    third, fourth, fifth = [range_id for range_id in ranges if range_id not in (first, second)][:3]
    head_range = stored.ranges(metarange)[0]
    stored.change(flip, flipped)
    stored.change(cut, lambda data: data[:-10])
    stored.delete(f"_lakefs/{missing}")
    for here, there in ((first, second), (second, first), (left, right), (right, left)):
        stored.change(here, lambda _, there=there: stored.table(there))  # type: ignore[misc]
    stored.change(third, flipped)
    stored.change(fourth, lambda data: data[: len(data) // 2])
    stored.change(fifth, lambda _: b"")
    stored.delete(f"_lakefs/{head_range}")
    dump = stored.recording.api("refs_dump")["body"]
    branch_dump, tag_dump = dump["branches_meta_range_id"], dump["tags_meta_range_id"]
    part = read_ranges(stored.table(branch_dump), name=branch_dump, entity="branch")[0].id
    stored.change(tag_dump, flipped)
    stored.change(part, lambda data: data[:-1])
    for key in ("_lakefs/notes.txt", "_lakefs/retention/mine/x"):
        stored.write(key, b"somebody's own")
    forged = next(commit for commit in stored.metaranges if commit not in heads.values())
    expected = dict.fromkeys(
        [flip, cut, left, right, first, second, third, fourth, fifth, tag_dump, part, forged], "damaged"
    )
    return expected | dict.fromkeys([missing, head_range], "missing"), {head_range: {branch}}, forged


def equally_described_ranges(stored: Stored, ranges: list[str]) -> tuple[str, str]:
    """Two ranges that metaranges describe equally: they differ only in their content."""
    described: dict[tuple[int, bytes, bytes], str] = {}
    for range_id in ranges:
        response = read_properties(stored.table(range_id), name=range_id)
        other = described.setdefault((response.count, response.min_key, response.max_key), range_id)
        if other != range_id:
            return other, range_id
    raise AssertionError("no two ranges look alike")


def test_without_the_dump_all_tables_are_verified_and_gaps_are_reported(lakegc: Lakegc, stored: Stored) -> None:
    """Without permission for a dump, the logs of the branches are read instead."""
    recording = replace(stored.recording, dump_allowed=False)
    stray = next(
        range_id for range_id in stored.ranges(stored.dangling[0].metarange_id) if range_id not in all_ranges(stored)
    )
    stored.change(stray, flipped)
    stored.write(f"_lakefs/{JUNK}", b"somebody's own")
    branch, missing = lost_object(stored)
    stored.delete(missing)
    forged = next(iter(stored.heads.values()))
    recording = replace(recording, forged={forged: {"creation_date": 1}})
    with replace(stored, recording=recording).settings() as settings:
        code, report = document(lakegc, settings, recording.repository)

    assert code == 1
    assert problems(report) == {stray: "damaged", JUNK: "damaged", forged: "damaged"}
    assert [lost_object["address"] for lost_object in report["missing"]["objects"]] == [missing]
    assert branch in report["missing"]["branches"]
    assert len(report["missing"]["objects"][0]["needs"]["commits"]) > 0
    assert any("fs:ListCommits" in sentence for sentence in report["not_verified"])


def all_ranges(stored: Stored) -> set[str]:
    """The ranges of all commits that branches reach."""
    return {range_id for metarange in stored.metaranges.values() if metarange for range_id in stored.ranges(metarange)}


def lost_object(stored: Stored) -> tuple[str, str]:
    """A branch, and an address in its head."""
    for branch, head in sorted(stored.heads.items()):
        for range_id in stored.ranges(stored.metaranges[head]) if stored.metaranges[head] else ():
            for address in stored.addresses(range_id):
                if address.startswith("data/"):
                    return branch, address
    raise AssertionError("no head has an object of its own")


# --- a sandbox ------------------------------------------------------------------------------------------------------


def key_of(lake: Lake, path: str) -> str:
    return lake.repository.stat("main", path).address


def test_lost_live_objects_are_listed_in_the_form_that_a_mark_accepts(
    lakegc: Lakegc, lake: Lake, tmp_path: Path
) -> None:
    """Each object is listed with path and branch, and a mark accepts the written file as its list of accepted
    losses."""
    committed, staged, listed = key_of(lake, "b"), key_of(lake, "staged"), tmp_path / "missing.txt"
    for key in (committed, staged):
        (lake.folder / key).unlink()

    code, report = document(lakegc, lake.settings, lake.name, "--write-missing", str(listed))

    assert (code, report["findings"], report["missing"]["count"]) == (1, [], 2)
    assert listed.read_text() == "".join(f"{key}\n" for key in sorted([committed, staged]))
    objects = {lost_object["address"]: lost_object for lost_object in report["missing"]["objects"]}
    assert {key: lost_object["path"] for key, lost_object in objects.items()} == {committed: "b", staged: "staged"}
    assert {lost_object["needs"]["branches"][0] for lost_object in objects.values()} == {"main"}
    assert (objects[staged]["staged"], objects[staged]["committed"]) == (True, False)
    marked = lakegc(lake.settings, "mark", lake.name, "--accept-missing", str(listed), *NO_AGE)
    assert marked.code == 0, marked.err


def test_a_forged_commit_and_a_missing_list_of_retained_commits_are_reported(lakegc: Lakegc, lake: Lake) -> None:
    """The dump is intact, but its commit differs from the commit in the history."""
    forged = lake.commits[0]

    def forge(response: dict[str, Any]) -> None:
        dump = response["commits_meta_range_id"]
        parts = read_ranges((lake.folder / "_lakefs" / dump).read_bytes(), name=dump, entity="commit")
        commits = [c for p in parts for c in read_commits((lake.folder / "_lakefs" / p.id).read_bytes(), name=p.id)]
        other = write_commits(replace(commit, message="x") if commit.id == forged.id else commit for commit in commits)
        for table_id, data in other.tables.items():
            (lake.folder / "_lakefs" / table_id).write_bytes(data)
        response["commits_meta_range_id"] = other.id

    lake.server.after("/refs/dump", forge)
    lake.server.after(
        "/prepare_commits/status", lambda response: lake.file_at(response["result"]["gc_commits_location"]).unlink()
    )
    outcome = lakegc(lake.settings, "fsck", lake.name)

    assert outcome.code == 1
    assert f"commit {forged.id}: forged or damaged" in outcome.out
    assert "in the history of main" in outcome.out
    assert f"MISSING: list of retained commits {lake.name}" in outcome.out
    assert "2 problems" in outcome.err
    assert "Traceback" not in outcome.err


def test_unknown_files_under_the_lakefs_prefix_are_not_damage(lakegc: Lakegc, lake: Lake) -> None:
    """Unknown files don't stop a mark either. The report lists one that is named like a table.

    treeverse/lakeFS#8518, treeverse/lakeFS#9055
    """
    for name in (JUNK, "_SUCCESS", "part-00000.parquet", f"{JUNK[:-1]}/{JUNK}", "retention/gc/strange/x"):
        alien = lake.folder / "_lakefs" / name
        alien.parent.mkdir(parents=True, exist_ok=True)
        alien.write_bytes(b"somebody's own")

    code, report = document(lakegc, lake.settings, lake.name)
    mark = Marker().mark(lake.settings, lake.name, "m1", ANY_AGE)

    assert (code, report["findings"]) == (0, [])
    assert [file["id"] for file in report["named_like_tables"]] == [JUNK]
    assert mark.record.counts["expired"] == 1


def test_a_branch_that_is_deleted_during_the_check_is_not_damage(lakegc: Lakegc, lake: Lake) -> None:
    """Its staged changes can't be read any more, and are no longer live."""
    lake.repository.create_branch("short-lived", "main")

    def delete_branch(response: dict[str, Any]) -> None:
        if any(branch.id == "short-lived" for branch in lake.repository.branches()):
            lake.repository.delete_branch("short-lived")

    lake.server.after(f"/repositories/{lake.name}/branches", delete_branch)

    code, report = document(lakegc, lake.settings, lake.name)

    assert [branch.id for branch in lake.repository.branches()] == ["main"]
    assert (code, report["findings"]) == (0, [])


def test_a_read_only_repository_is_verified_as_far_as_possible(lakegc: Lakegc, lake: Lake) -> None:
    """lakeFS refuses to write lists in such a repository; what couldn't be verified is reported."""
    lake.server.after(f"/repositories/{lake.name}", lambda response: response.update(read_only=True))

    code, report = document(lakegc, lake.settings, lake.name)

    assert (code, report["findings"], report["verified"]["live_staged"]) == (0, [], 1)
    assert any("read-only" in sentence for sentence in report["not_verified"])


def test_an_unwritable_output_file_or_an_unknown_repository_stops_the_check(
    lakegc: Lakegc, lake: Lake, tmp_path: Path
) -> None:
    missing = str(tmp_path / "nowhere" / "missing.txt")

    lakegc(lake.settings, "fsck", lake.name, "--write-missing", missing).stopped(2, missing)
    lakegc(lake.settings, "fsck", "not-there").stopped(1, "not-there")
