"""The objects that each scope expires, and those that no scope expires."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from spark_resources.errors import Refused
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import AddressType, Rules
from tests.support.mark_runs import NO_MINIMUM_AGE, marked

NEVER_CANDIDATES = ["dummy", "0a1b2c-00001", "folder/x", "data-x/y", "_lakefs/retention/gc/x"]


@dataclass(frozen=True)
class World:
    """A repository in which every object is expired, never committed, or live, each in several ways."""

    settings: dict[str, str]
    expired: set[str]
    never_committed: set[str]
    live: set[str]

    def mark(self, scope: str) -> set[str]:
        return marked(self.settings, "lake", f"m-{scope.lower()}", {**NO_MINIMUM_AGE, "scope": scope}).expired


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Sandbox(tmp_path_factory.mktemp("scopes")) as sandbox:
        lake, now = sandbox.create("lake"), sandbox.now()
        set_rules(lake, Rules(7))

        def put(path: str) -> str:
            return lake.put("main", path, path.encode()).address

        def commit(branch: str, days: int) -> None:
            lake.commit(branch, f"{days} days ago", date=now - timedelta(days=days), allow_empty=True)

        only_expired, unlinked, copied, live = (put(name) for name in ("only", "lost", "copied", "kept"))
        commit("main", 60)
        lake.create_branch("gone", "main")
        dangling = lake.put("gone", "dangling", b"dangling").address
        commit("gone", 50)
        lake.delete_branch("gone")
        again = lake.stat("main", "copied")
        lake.delete("main", ["only", "lost", "copied"])
        commit("main", 40)
        lake.stage("main", [replace(again, path=b"copy")])
        staged, dropped = put("staged"), put("dropped")
        lake.delete("main", ["dropped"])
        lake.objects.file(unlinked).unlink()
        for key in ("data/direct", "legacy", "data/!ab/slice/id", "data/sibling", *NEVER_CANDIDATES):
            lake.objects.write(key, key.encode())
        sibling = replace(again, path=b"sibling", address="local://lake-other/data/sibling")
        lake.stage("main", [replace(sibling, address_type=AddressType.FULL)])
        yield World(
            sandbox.settings,
            {only_expired, dangling},
            {dropped, "data/direct", "legacy", "data/!ab/slice/id", "data/sibling"},
            {copied, live, staged},
        )


def test_scope_committed_expires_exactly_the_objects_of_expired_commits(world: World) -> None:
    """The store has these objects, and nothing live refers to them. Dangling commits count as well."""
    assert world.mark("COMMITTED") == world.expired


def test_scope_uncommitted_expires_exactly_the_objects_that_were_never_committed(world: World) -> None:
    """Objects that are staged don't expire."""
    assert world.mark("UNCOMMITTED") == world.never_committed


def test_scope_unified_expires_exactly_the_union_of_both_scopes(world: World) -> None:
    """Parts of unfinished uploads, the server's files and objects in other folders stay. A key under `lake-other`, a
    prefix that only begins like the namespace, belongs to another repository and keeps nothing here."""
    assert world.mark("UNIFIED") == world.expired | world.never_committed


def test_scope_committed_is_refused_without_the_commit_graph(world: World) -> None:
    """Without permission to read it, it is unknown which commits expired."""
    with mock.patch.object(LakeFS, "dump_refs", return_value=None), pytest.raises(Refused, match="needs the commit"):
        marked(world.settings, "lake", "no-graph", {**NO_MINIMUM_AGE, "scope": "COMMITTED"})


def test_a_repository_with_only_imports_can_be_marked(tmp_path: Path) -> None:
    """No live address is inside its namespace, so none can be missing; all objects that lie there expire."""
    with Sandbox(tmp_path) as sandbox:
        lake, where = sandbox.create("lake"), sandbox.create("where-it-lies")
        entry = where.put("main", "a", b"a")
        for number, root in enumerate(("local://where-it-lies", "s3://elsewhere/bucket")):
            there = replace(
                entry, path=b"%d" % number, address=f"{root}/{entry.address}", address_type=AddressType.FULL
            )
            lake.stage("main", [there])
        lake.commit("main", "imports")
        lake.objects.write("data/s/left", b"nobody's")

        mark = marked(sandbox.settings, "lake")

        assert mark.expired == {"data/s/left"}
        facts = mark.facts("committed_addresses")
        assert (facts["entries"], facts["inside"], facts["outside"]) == (2, 0, 2)
