"""Whole marks of a repository in which every kind of hold keeps something that nothing else keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from spark_resources.datasets import all_rows
from spark_resources.holds import HOLDS_KEY
from spark_resources.marks import Mark, marks
from spark_resources.model import HELD_OBJECTS, Rules
from spark_resources.sandbox import Sandbox, SandboxRepository
from spark_resources.sandbox.gc_api import set_rules
from tests.marking import NO_MINIMUM_AGE, Marked, marked, target_of

WHOSE = "owner: ada, reason: because"
EVERY_KIND = f"""
holds:
  - {{id: tagged, tags: "v*", {WHOSE}}}
  - {{id: with-history, tags: w1, history: true, {WHOSE}}}
  - {{id: legal, commits: {{legal: "hol?"}}, {WHOSE}}}
  - {{id: experiments, branches: "exp-*", days: 12, {WHOSE}}}
  - {{id: reports, paths: "reports/*", {WHOSE}}}
  - {{id: imported, prefix: data/imported/, {WHOSE}}}
"""


@dataclass(frozen=True)
class World:
    """A repository, and for each object that may go a name."""

    sandbox: Sandbox
    lake: SandboxRepository
    named: dict[str, str]

    def hold(self, text: str | None) -> None:
        file = self.lake.objects.file(HOLDS_KEY)
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(text)

    def mark(self, mark_id: str, **options: Any) -> Marked:
        return marked(self.sandbox.settings, "lake", mark_id, {**NO_MINIMUM_AGE, **options})

    def expired(self, mark: Marked) -> set[str]:
        return {self.named[address] for address in mark.expired}

    def held(self, mark: Marked) -> dict[str, str]:
        """What would have gone, by name, with the holds that keep it."""
        dataset = Mark.open(mark.target.place, mark.record.mark_id).dataset("expired_set", "held")
        return {self.named[row["address"]]: row["hold"] for row in all_rows(mark.target.place, dataset, HELD_OBJECTS)}

    def has_no_finished_mark(self, mark_id: str) -> None:
        (record,) = [one for one in marks(target_of(self.sandbox.settings, "lake").place) if one.mark_id == mark_id]
        assert (record.finished, record.digest) == (None, None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Sandbox(tmp_path_factory.mktemp("held")) as sandbox:
        lake, now, named = sandbox.create("lake"), sandbox.now(), {}
        set_rules(lake, Rules(7))

        def commit(branch: str, days: int, metadata: Mapping[str, str] | None = None, **paths: str) -> None:
            for path, name in paths.items():
                address = lake.put(branch, path.replace("_", "/"), name.encode()).address
                named[address] = name
            lake.commit(branch, f"{days} days ago", metadata=metadata, date=now - timedelta(days=days))

        commit("main", 90, a="a, first", reports_x="report, first")
        commit("main", 80, a="a, second", reports_x="report, second")
        lake.create_tag("v1", "main")
        commit("main", 70, a="a, third")
        lake.create_tag("w1", "main")
        commit("main", 60, a="a, fourth")
        lake.create_branch("gone", "main")
        commit("gone", 50, {"legal": "hold"}, b="legal")
        commit("gone", 49, {"legal": "hold", "who": "ada"}, b="legal, too")
        commit("gone", 48, {"legal": "no"}, b="not legal")
        lake.delete_branch("gone")
        lake.create_branch("exp-1", "main")
        for days, name in ((20, "experiment, first"), (15, "experiment, second"), (10, "experiment, third")):
            commit("exp-1", days, e=name)
        commit("main", 30, a="a, fifth", reports_x="report, last")
        for key in ("data/imported/1", "data/imported/2", "data/left", "data/imported-too/1"):
            lake.objects.write(key, key.encode())
            named[key] = key
        yield World(sandbox, lake, named)


@pytest.fixture
def world(whole: World) -> Iterator[World]:
    yield whole
    whole.hold(None)


LET_GO = {"a, first", "a, second", "a, third", "report, first"}
LET_GO |= {"legal", "legal, too", "not legal", "experiment, first", "experiment, second"}
NEVER_COMMITTED = {"data/imported/1", "data/imported/2", "data/left", "data/imported-too/1"}
HELD = {
    "a, first": "with-history",
    "report, first": "reports, with-history",
    "a, second": "tagged, with-history",
    "a, third": "with-history",
    "legal": "legal",
    "legal, too": "legal",
    "experiment, second": "experiments",
}
IMPORTED = {"data/imported/1": "imported", "data/imported/2": "imported"}


def test_a_hold_lets_something_go(world: World) -> None:
    """Each kind of hold keeps what it names and nothing else; what it kept is written apart, with all their ids."""
    world.hold(EVERY_KIND)
    mark = world.mark("every-kind")

    assert world.expired(mark) == (LET_GO | NEVER_COMMITTED) - HELD.keys() - IMPORTED.keys()
    assert world.held(mark) == {**HELD, **IMPORTED}
    facts = mark.facts("expired_set")
    assert facts["held"]["imported"] == {"objects": 2, "bytes": len(b"data/imported/1") * 2}
    assert (facts["held_objects"], facts["held"]["legal"]["objects"]) == (len(HELD) + 2, 2)
    assert facts["kept_as_served_or_unclear"] == 0
