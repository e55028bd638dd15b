"""The retention rule against what a real server retained (formats §6, §7)."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.rules.retention import Reason, Verdict, commit_verdicts, with_server_list
from spark_resources.lakefs.gc_lists import parse_commits_csv, read_uncommitted_file
from spark_resources.model import Commit, Rules
from spark_resources.sstable import read_branches, read_commits, read_entries, read_ranges
from tests.support import oracle
from tests.support.recording_folders import PROJECT_RECORDINGS, recording_folders

RECORDINGS = recording_folders()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class History:
    """The commit graph of a recording, and what its server said about it."""

    path: Path

    @cached_property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "meta.json").read_text()))

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.meta["recorded_at"], UTC)

    @property
    def rules(self) -> Rules | None:
        if self.meta["rules"] is None:
            return None
        branches = {rule["branch_id"]: rule["retention_days"] for rule in self.meta["rules"]["branches"]}
        return Rules(self.meta["rules"]["default_retention_days"], branches)

    @cached_property
    def commits(self) -> list[Commit]:
        refs = read_ranges(self.table(self.dump["commits_meta_range_id"]), name="commits", entity="commit")
        return [commit for ref in refs for commit in read_commits(self.table(ref.id), name=ref.id)]

    @cached_property
    def heads(self) -> dict[str, str]:
        refs = read_ranges(self.table(self.dump["branches_meta_range_id"]), name="branches", entity="branch")
        return {b.id: b.commit_id for ref in refs for b in read_branches(self.table(ref.id), name=ref.id)}

    @property
    def dump(self) -> dict[str, str]:
        return dict(self.api("refs_dump")["body"])

    @property
    def server_lists(self) -> list[list[tuple[str, str]]]:
        """The list that each call of prepare commits wrote."""
        files = sorted(self.path.glob("namespace/_lakefs/retention/gc/commits/*/commits.csv"))
        return [parse_commits_csv(path.read_bytes(), where=str(path)) for path in files]

    @property
    def listed(self) -> set[str]:
        """The commits of all the server's lists. The lists must exist if the repository has rules."""
        assert bool(self.server_lists) is (self.rules is not None)
        return {commit_id for listed in self.server_lists for commit_id, _ in listed}

    def verdicts(self) -> dict[str, Verdict]:
        return {v.commit_id: v for v in commit_verdicts(self.commits, self.heads, self.rules, now=self.now)}

    def retained(self) -> set[str]:
        return {name for name, verdict in self.verdicts().items() if verdict.retained}

    def named(self, commit_ids: set[str]) -> set[str]:
        """The messages of commits, by which tests name them."""
        return {commit.message for commit in self.commits if commit.id in commit_ids}

    def api(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.path / "api" / f"{name}.json").read_text()))

    def table(self, table_id: str) -> bytes:
        return (self.path / "namespace" / "_lakefs" / table_id).read_bytes()


def project_recording(name: str) -> History:
    """A recording of this project, whichever other recordings are tested."""
    return History(PROJECT_RECORDINGS / name)


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.name)
def history(request: pytest.FixtureRequest) -> History:
    """Each recording in turn."""
    return History(request.param)


def walks_in_the_servers_order(history: History) -> set[str]:
    """The commits that §6 retains if each walk stops where an earlier walk with at least its days has passed (§6.6)."""
    assert history.rules is not None
    commits = {commit.id: commit for commit in history.commits}
    parents = {commit.main_parent for commit in history.commits}
    heads = [(commit_id, history.rules.days(branch), True) for branch, commit_id in history.heads.items()]
    dangling = sorted(set(commits) - parents - set(history.heads.values()))
    retained: set[str] = set()
    passed: dict[str, int] = {}
    for start, days, is_head in sorted([*heads, *((name, history.rules.default_days, False) for name in dangling)]):
        cutoff = history.now - timedelta(days=days)
        if is_head or commits[start].created > cutoff:
            retained.add(start)
        child = commits[start]
        while (parent := child.main_parent) is not None and passed.get(parent, -1) < days:
            if child.created > cutoff:
                retained.add(parent)
            passed[parent] = days
            child = commits[parent]
    return retained


def test_recordings_exist() -> None:
    """A folder without recordings is a failure, not a success."""
    assert RECORDINGS


def test_lakegc_retains_every_commit_that_the_server_lists(history: History) -> None:
    assert history.listed - history.retained() == set()


def test_walks_that_stop_early_retain_exactly_the_commits_that_the_server_lists(history: History) -> None:
    """The walks begin in the order of ids."""
    for listed in history.server_lists:
        assert {commit_id for commit_id, _ in listed} == walks_in_the_servers_order(history)


def test_lakegc_retains_the_commits_that_the_oracles_walks_retain(history: History) -> None:
    """The histories are those of recorded repositories."""
    if history.rules is None:
        assert history.retained() == {commit.id for commit in history.commits}
        return
    commits = {
        c.id: oracle.C(c.parents, (c.created - EPOCH) // timedelta(microseconds=1), c.version) for c in history.commits
    }
    claimed = oracle.claims(commits, history.heads, history.rules.default_days, history.rules.branch_days)

    assert history.retained() == oracle.retained(claimed, (history.now - EPOCH) // timedelta(microseconds=1))


def test_dates_truncated_to_seconds_retain_at_least_as_many_commits(history: History) -> None:
    """The API truncates dates to whole seconds."""
    dates = {c["id"]: c["creation_date"] for c in history.api("commits_reachable_from_branches")["commits"]}
    cut_off = [replace(commit, created=commit.created.replace(microsecond=0)) for commit in history.commits]

    verdicts = commit_verdicts(cut_off, history.heads, history.rules, now=history.now)

    assert dates.items() <= {commit.id: int(commit.created.timestamp()) for commit in cut_off}.items()
    assert {verdict.commit_id for verdict in verdicts if verdict.retained} >= history.retained()


def test_the_server_and_the_graph_name_the_same_metaranges(history: History) -> None:
    """The union of the rule with each list therefore has the commits of both."""
    for listed in history.server_lists:
        both = with_server_list(history.verdicts().values(), listed)

        assert {verdict.commit_id for verdict in both if verdict.retained} == history.retained() | history.listed
        assert not [verdict for verdict in both if verdict.why is Reason.SERVER]


def test_exactly_the_documented_commits_are_retained_in_the_documented_example() -> None:
    """The commits are 03-09, 03-12, 03-18, the merge and 03-26 on main, and 03-23 on dev."""
    history = project_recording("worked-example")
    expected = {"2022-03-09", "2022-03-12", "2022-03-18", "merge dev", "2022-03-26", "d: 2022-03-23"}

    assert history.named(history.retained()) == expected


def test_all_shared_parents_are_retained_even_if_the_server_lists_only_some() -> None:
    """The server's list lacks four of the twelve."""
    history = project_recording("shared-parent")
    parents = {verdict for verdict in history.verdicts().values() if (verdict.message or "").startswith("parent ")}

    assert {verdict.message for verdict in parents if verdict.retained} == {f"parent {number}" for number in range(12)}
    assert {verdict.branch for verdict in parents} == {f"short{number:02}" for number in range(12)}
    assert history.named(history.retained() - history.listed) == {"parent 1", "parent 5", "parent 6", "parent 11"}


def test_the_recorded_repository_without_rules_retains_all_commits() -> None:
    """The server has no list to compare with."""
    history = project_recording("no-rules")

    assert {verdict.why for verdict in history.verdicts().values()} == {Reason.NO_RULES}
    assert history.server_lists == []


# --- the oracle of marks --------------------------------------------------------------------------------------------


def entries_of(history: History, commit_ids: set[str]) -> set[tuple[int, str]]:
    """(Kind, address) of every entry that these commits reach."""
    metaranges = {c.metarange_id for c in history.commits if c.id in commit_ids and c.metarange_id}
    ranges = {ref.id for metarange in metaranges for ref in read_ranges(history.table(metarange), name=metarange)}
    batches = [read_entries(history.table(range_id), name=range_id) for range_id in sorted(ranges)]
    return {
        (kind, address)
        for batch in batches
        for kind, address in zip(
            batch.column("address_type").to_pylist(), batch.column("address").to_pylist(), strict=True
        )
    }


def staged_in(history: History) -> set[str]:
    """The addresses of the server's uncommitted lists, one file for every page that announces a location."""
    addresses: set[str] = set()
    for page in history.api("prepare_uncommitted")["pages"]:
        if page["gc_uncommitted_location"]:
            folder = page["gc_uncommitted_location"].removeprefix(history.meta["storage_namespace"] + "/")
            files = list((history.path / "namespace" / folder).iterdir())
            assert files
            for file in files:
                addresses |= set(
                    read_uncommitted_file(file.read_bytes(), where=str(file))["physical_address"].to_pylist()
                )
    return addresses


def served_in(history: History) -> set[str]:
    if not (history.path / "api" / "objects_served_by_branches.json").exists():
        return set()
    branches = history.api("objects_served_by_branches")["objects"].values()
    return {entry["physical_address"] for objects in branches for entry in objects}


def test_the_oracles_expired_set_equals_the_recorded_one(history: History) -> None:
    """Every recording is compared address by address."""
    with (history.path / "listing.csv").open(newline="") as file:
        listing = {row["key"]: int(row["last_modified_ms"]) * 1000 for row in csv.DictReader(file)}
    truth = (history.path / "expected" / "expired.txt").read_bytes().decode().split("\n")

    expired = oracle.expired_addresses(
        listing,
        committed=entries_of(history, history.retained() | history.listed),
        uncommitted=staged_in(history),
        served=served_in(history),
        spellings=[history.meta["storage_namespace"]],
        cutoff=max(listing.values()) + oracle.SECOND,
    )

    assert expired == set(truth) - {""}
