"""What-if predicts the next mark: each variant is compared with a mark for which the change was really made."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from unittest import mock

import pytest

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.queries import grouping
from lakegc_assets.queries.comparison import Variant, WhatIf, what_if
from spark_resources.errors import Refused, WrongUsage
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.hold_file import parse_holds
from spark_resources.model import Rules, Scope
from tests.property.test_marks_with_holds import (
    EVERY_KIND,
    HELD,
    IMPORTED,
    NEVER_COMMITTED,
    ONLY_IN_EXPIRED_COMMITS,
    World,
    whole,
    world,
)
from tests.support.mark_runs import Marked, Marker, on_executors
from tests.support.recorded_marks import history_of

__all__ = ["whole", "world"]

OWN = Variant("own", Rules(7))


@pytest.fixture(scope="module")
def before(whole: World) -> Marked:
    """A mark before any change."""
    return whole.mark("before")


def asked(world: World, mark: Marked, *variants: Variant, tags: Sequence[tuple[str, str]] = ()) -> WhatIf:
    return what_if(history_of(world.sandbox.settings, mark), [OWN, *variants], tags=tags)


def amounts(mark: Marked) -> tuple[int, int]:
    """The objects and bytes that a mark expires."""
    facts = mark.facts("expired_set")
    return facts["expired"], facts["expired_bytes"]


def without_hold(hold_id: str) -> tuple[int, int]:
    """The objects and bytes that a mark with this hold alone expires. Each object's content is its name."""
    kept = {name for name, hold_ids in {**HELD, **IMPORTED}.items() if hold_id in hold_ids.split(", ")}
    expired = (ONLY_IN_EXPIRED_COMMITS | NEVER_COMMITTED) - kept
    return len(expired), sum(map(len, expired))


def predicted(result: WhatIf) -> list[tuple[int, int]]:
    return [(row["objects"], row["bytes"]) for row in result.totals.to_pylist()]


def test_variants_predict_the_mark_after_each_change(world: World, before: Marked) -> None:
    """The changes are holds of every kind, alone and together, different rules, with holds as well, and a different
    minimum age."""
    holds = parse_holds(EVERY_KIND.encode(), "holds.yaml")
    variants = [Variant(hold.id, Rules(7), holds=(hold,)) for hold in holds]
    variants.append(Variant("all holds", Rules(7), holds=holds))
    rules = {
        "shorter": Rules(0, {"main": 0}),
        "longer": Rules(55),
        "of a branch": Rules(7, {"exp-1": 18}),
    }
    variants += [Variant(name, other) for name, other in rules.items()]
    variants += [Variant("held, shorter", Rules(0), holds=holds), Variant("all young", Rules(7), min_age=timedelta(1))]
    tags = [("v1", world.lake.tag("v1")), ("w1", world.lake.tag("w1")), ("newer", "f" * 64)]
    result = asked(world, before, *variants, tags=tags)

    expected = [amounts(before), *(without_hold(hold.id) for hold in holds)]
    world.hold(EVERY_KIND)
    expected.append(amounts(world.mark("held")))
    world.hold(None)
    for name, other in rules.items():
        set_rules(world.lake, other)
        expected.append(amounts(world.mark(f"rules-{name.replace(' ', '-')}")))
    world.hold(EVERY_KIND)
    set_rules(world.lake, Rules(0, {"main": 0}))
    expected.append(amounts(world.mark("held-shorter")))
    world.hold(None)
    set_rules(world.lake, Rules(7))
    assert predicted(result) == [*expected, (0, 0)]
    assert result.totals["variant"].to_pylist() == ["own", *(variant.name for variant in variants)]


def test_a_variant_without_a_branch_predicts_the_mark_after_its_deletion(world: World, before: Marked) -> None:
    """The branch's last commits are then dangling, and the default rule decides. The objects are attributed to no
    branch. Here, the executors do the work, as for large repositories."""
    dropped = frozenset({"exp-1"})
    with on_executors(), mock.patch.object(grouping, "ROWS_ON_DRIVER", -1):
        result = asked(world, before, Variant("dropped", Rules(7), dropped), Variant("later", Rules(12), dropped))
    head = world.lake.resolve("exp-1").commit.id
    world.lake.delete_branch("exp-1")
    try:
        after = world.mark("without-branch")
        set_rules(world.lake, Rules(12))
        later = world.mark("without-branch-longer")
    finally:
        set_rules(world.lake, Rules(7))
        world.lake.create_branch("exp-1", head)

    assert predicted(result) == [amounts(before), amounts(after), amounts(later)]
    rows = result.totals.to_pylist()
    assert rows[1]["more_objects"] == rows[1]["objects"] - rows[0]["objects"] > 0
    branches = {row["branch"] for row in result.by_branch.to_pylist() if row["variant"] == "dropped"}
    assert "exp-1" not in branches


def test_variants_that_a_mark_cannot_predict_are_refused(world: World, before: Marked) -> None:
    """The default branch can't be deleted, and a mark of a different scope lacks objects."""
    for name, words in (("exp-2", "no branch 'exp-2'. Did you mean exp-1?"), ("main", "default branch")):
        with pytest.raises(WrongUsage, match=words):
            asked(world, before, Variant("x", Rules(7), frozenset({name})))
    with pytest.raises(WrongUsage, match="from 1 to"):
        asked(world, before, *[OWN] * 20)
    options = MarkOptions(Scope.COMMITTED, timedelta(0), allow_young=True)
    committed = Marker().mark(world.sandbox.settings, "lake", "committed-only", options)
    with pytest.raises(Refused, match="Make a mark with the scope 'unified'"):
        asked(world, committed)
