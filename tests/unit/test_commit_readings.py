"""The commit graph that a mark decides on: every commit is verified, all ancestors are read, and every head that was
seen is retained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakegc_assets.mark.retained_commits import (
    check_rules,
    complete_graph,
    head_verdict,
    refuse_without_graph,
    server_list,
    unknown_ancestors,
    verified_commit,
    with_earlier_heads,
)
from lakegc_assets.rules.retention import Reason, Verdict
from spark_resources import sstable
from spark_resources.errors import DamagedData, Refused
from spark_resources.model import Commit, Namespace, Rules, Scope
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

AT = datetime(2026, 11, 1, tzinfo=UTC)
RULES = Rules(21, {"dev": 7})


def commit(message: str, *parents: Commit, version: int = 1) -> Commit:
    """A commit with the id of its content."""
    draft = Commit("", tuple(parent.id for parent in parents), AT, f"{message:0>64}", version=version, message=message)
    return replace(draft, id=sstable.commit_id(draft))


ROOT = commit("a")
SIDE = commit("b", ROOT)
MERGE = commit("c", ROOT, SIDE)
HEAD = commit("d", MERGE)
OTHER = commit("e", SIDE)
ALL = {commit.id: commit for commit in (ROOT, SIDE, MERGE, HEAD, OTHER)}


class Server:
    """A server with these commits. It records which ones were requested."""

    def __init__(self, commits: dict[str, Commit]) -> None:
        self.commits, self.requested = commits, list[str]()

    def commit(self, repository: str, commit_id: str) -> Commit:
        assert repository == "lake"
        self.requested.append(commit_id)
        return self.commits[commit_id]

    def log(self, repository: str, commit_id: str) -> Iterator[Commit]:
        assert repository == "lake"
        self.requested.append(commit_id)
        waiting, visited = [commit_id], set[str]()
        while waiting:
            commit = self.commits[waiting.pop()]
            if commit.id not in visited:
                visited.add(commit.id)
                waiting.extend(commit.parents)
                yield commit


def run_with(server: Any, **changes: Any) -> Any:
    record = SimpleNamespace(rules=RULES, scope=Scope.UNIFIED, **changes)
    return SimpleNamespace(
        lakefs=server, partition=SimpleNamespace(repository="lake"), mark=SimpleNamespace(record=record)
    )


def test_a_commit_is_accepted_only_if_its_id_matches_its_content() -> None:
    """A commit that was altered could hide a parent, and with it live objects."""
    assert verified_commit(HEAD) is HEAD
    old = commit("old", SIDE, ROOT, version=0)
    assert verified_commit(old) is old
    for altered in (
        replace(HEAD, parents=()),
        replace(HEAD, metarange_id="0" * 64),
        replace(HEAD, created=AT.replace(year=2000)),
    ):
        with pytest.raises(DamagedData, match=f"content of commit {HEAD.id} doesn't match its id"):
            verified_commit(altered)
    with pytest.raises(DamagedData, match="has version 2"):
        verified_commit(replace(HEAD, version=2))


def test_ancestors_are_read_through_every_parent_up_to_known_commits() -> None:
    """Each commit is read once. Ancestors of known commits are also known."""
    server = Server(ALL)

    ancestors = list(unknown_ancestors(server, "lake", {}, [HEAD.id, OTHER.id, HEAD.id]))  # type: ignore[arg-type]
    assert sorted(commit.id for commit in ancestors) == sorted(ALL)
    assert sorted(server.requested) == sorted(ALL)

    known = {SIDE.id: SIDE, ROOT.id: ROOT}
    ancestors = list(unknown_ancestors(server, "lake", known, [OTHER.id, MERGE.id, SIDE.id]))  # type: ignore[arg-type]
    assert sorted(commit.id for commit in ancestors) == sorted([OTHER.id, MERGE.id])
    damaged = Server({HEAD.id: replace(HEAD, parents=())})
    with pytest.raises(DamagedData):
        list(unknown_ancestors(damaged, "lake", {}, [HEAD.id]))  # type: ignore[arg-type]


def test_commits_missing_from_a_dump_are_read_from_the_server() -> None:
    """A dump may lack newer heads and listed commits, and parents of its own commits."""
    dumped = {commit.id: commit for commit in (MERGE, ROOT)}
    server = Server(ALL)

    graph = complete_graph(run_with(server), dumped, {HEAD.id})

    assert graph == {commit.id: commit for commit in (ROOT, SIDE, MERGE, HEAD)}
    assert sorted(server.requested) == sorted([SIDE.id, HEAD.id])
    assert set(dumped) == {MERGE.id, ROOT.id}


def test_without_a_dump_the_graph_contains_the_whole_log_of_every_named_commit() -> None:
    """Each commit is verified. The log of a commit that is already known isn't read."""
    server = Server(ALL)

    assert complete_graph(run_with(server), None, {HEAD.id, OTHER.id}) == ALL
    assert complete_graph(run_with(server), None, {OTHER.id}) == {commit.id: commit for commit in (ROOT, SIDE, OTHER)}
    server.requested.clear()
    complete_graph(run_with(server), None, {HEAD.id, MERGE.id})
    assert set(server.requested) <= {HEAD.id, MERGE.id}
    assert HEAD.id in server.requested
    with pytest.raises(DamagedData):
        complete_graph(run_with(Server({HEAD.id: replace(HEAD, parents=())})), None, {HEAD.id})


def expired(commit: Commit, *, listed: bool = False) -> Verdict:
    why = Reason.CHILD_OLD
    return Verdict(commit.id, False, why, "main", 7, AT, commit.metarange_id, commit.created, commit.message, listed)


def test_a_head_that_was_seen_before_the_servers_list_is_retained() -> None:
    """The branch may have moved or been deleted since, but the head's objects were live when the mark began to read."""
    by_rule = replace(expired(HEAD), retained=True, why=Reason.CHILD_YOUNG)
    verdicts = [expired(ROOT), expired(SIDE, listed=True), by_rule, expired(OTHER)]
    before = {"dev": SIDE.id, "gone": MERGE.id, "main": HEAD.id, "old": ROOT.id}

    completed = with_earlier_heads(verdicts, before, ALL)

    assert [verdict.commit_id for verdict in completed] == sorted(ALL)
    assert {verdict.commit_id: verdict for verdict in completed} == {
        ROOT.id: head_verdict(ROOT, "old"),
        SIDE.id: replace(head_verdict(SIDE, "dev"), server_listed=True),
        MERGE.id: head_verdict(MERGE, "gone"),
        HEAD.id: by_rule,
        OTHER.id: expired(OTHER),
    }


def test_the_verdict_for_a_head_without_a_rule_names_its_branch() -> None:
    """No rule says until when the head is retained. Its metarange is read."""
    assert head_verdict(HEAD, "main") == Verdict(
        commit_id=HEAD.id, retained=True, why=Reason.HEAD, branch="main", days=None, until=None,
        metarange_id=HEAD.metarange_id, created=AT, message="d",
    )  # fmt: skip


@pytest.mark.parametrize("now", [None, Rules(20, {"dev": 7}), Rules(21)])
def test_rules_that_changed_during_a_mark_stop_the_mark(now: Rules | None) -> None:
    """Otherwise, the mark would retain commits by outdated rules."""
    with pytest.raises(Refused, match=r"retention rules of lake were changed") as refused:
        check_rules(run_with(SimpleNamespace(rules={"lake": now}.__getitem__)))
    assert refused.value.invariant == 7
    check_rules(run_with(SimpleNamespace(rules={"lake": Rules(21, {"dev": 7})}.__getitem__)))


def test_scope_committed_requires_the_whole_graph() -> None:
    """Expired commits are known only from the graph."""
    run = run_with(Server({}))
    run.mark.record.scope = Scope.COMMITTED

    with pytest.raises(Refused, match="the scope 'committed' needs the commit graph of lake"):
        refuse_without_graph(run, None)
    refuse_without_graph(run, {})
    run.mark.record.scope = Scope.UNIFIED
    refuse_without_graph(run, None)


def list_of(folder: Path, data: bytes | None, *, rules: Rules | None = RULES, located: bool = True) -> Any:
    (folder / "lake").mkdir()
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(folder)))
    key = "_lakefs/retention/gc/commits/run/commits.csv"
    if data is not None:
        place.store().write(key, data)
    location = f"local://lake/{key}" if located else None
    run = run_with(SimpleNamespace(prepare_commits={"lake": location}.__getitem__))
    run.mark.record.rules = rules
    run.place, run.store = place, place.store()
    return server_list(run)


def test_the_servers_list_has_each_retained_commit_with_its_metarange(tmp_path: Path) -> None:
    metarange = "0" * 64
    text = f"commit_id,expired,metarange_id\n{HEAD.id},false,{metarange}\n{ROOT.id},true,{metarange}\n"

    assert list_of(tmp_path, text.encode()) == [(HEAD.id, metarange)]


def test_a_repository_without_rules_has_no_list_of_retained_commits(tmp_path: Path) -> None:
    """All of the repository's commits are retained."""
    assert list_of(tmp_path, None, rules=None, located=False) is None


@pytest.mark.parametrize(
    ("rules", "located", "has"), [(None, True, "has retention"), (RULES, False, "has no retention")]
)
def test_a_server_that_disagrees_about_the_rules_stops_the_mark(
    tmp_path: Path, rules: Rules | None, located: bool, has: str
) -> None:
    """Without a list, commits that only the server retains would expire."""
    with pytest.raises(Refused, match=f"lake {has}") as refused:
        list_of(tmp_path, b"", rules=rules, located=located)
    assert refused.value.invariant == 7


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "no such file exists"),
        (b"commit_id,expired,metarange_id\n", "is empty"),
        (b"commit_id\n", "does not begin with the header"),
    ],
)
def test_a_list_that_is_missing_empty_or_damaged_stops_the_mark(tmp_path: Path, data: bytes | None, why: str) -> None:
    """Every repository has a branch head, so the server's list can't be empty. The error names the list."""
    with pytest.raises(
        DamagedData, match=rf"local://lake/_lakefs/retention/gc/commits/run/commits\.csv.* {why}"
    ) as damaged:
        list_of(tmp_path, data)
    assert damaged.value.invariant == 3
