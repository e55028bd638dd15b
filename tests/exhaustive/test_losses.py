"""In small worlds, nothing live is lost, whatever happens; and without any one of the safeguards, something is."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.exhaustive.explore import Exploration, Scope, explored_for
from tests.exhaustive.invisible import INVISIBLE
from tests.exhaustive.operations import OPERATIONS
from tests.exhaustive.safeguards import PAST, SAFEGUARDS, Safeguard, smallest_loss
from tests.exhaustive.scenarios import SCENARIOS
from tests.exhaustive.traces import PAGE, table, with_tables

EACH = [safeguard for safeguard in SAFEGUARDS if not safeguard.overlap]
OVERLAPPING = [safeguard for safeguard in SAFEGUARDS if safeguard.overlap]


@pytest.mark.parametrize("mark", ["full", "incremental"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_by_one_operation_and_one_fault(name: str, mark: str) -> None:
    """Both may happen at any moment of a mark, its approval and a sweep. `tests.exhaustive.explore` tries more of
    both."""
    result = Exploration(SCENARIOS[name], Scope(1, 1, mark)).run()

    assert [table(loss) for loss in result.losses] == []
    assert result.states > 1000


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_without_the_permission_to_dump_commits(name: str) -> None:
    """The exception is a commit that no branch shows: without a dump, nothing shows it until the next mark."""
    result = Exploration(SCENARIOS[name], Scope(1, 0, dump=False)).run()

    assert [table(loss) for loss in result.losses] == []


@pytest.mark.parametrize("safeguard", EACH, ids=[safeguard.name for safeguard in EACH])
def test_without_a_safeguard_something_is_lost(safeguard: Safeguard) -> None:
    loss = smallest_loss(safeguard)

    assert loss is not None
    assert len(loss.events) == safeguard.operations + safeguard.faults


@pytest.mark.parametrize("safeguard", OVERLAPPING, ids=[safeguard.name for safeguard in OVERLAPPING])
def test_without_a_redundant_safeguard_nothing_is_lost(safeguard: Safeguard) -> None:
    """If this fails, the safeguard is needed after all: document the loss that it prevents."""
    assert smallest_loss(safeguard) is None


@pytest.mark.parametrize("name", PAST)
def test_losses_of_earlier_versions_are_found_if_their_fixes_are_removed(name: str) -> None:
    assert PAST[name].losses()


def test_exactly_the_listed_kinds_of_invisible_losses_occur() -> None:
    """Each excuse for deleting a live object is on the list, and each excuse on the list occurs."""
    excused: Counter[str] = Counter()
    for name in ("an expired commit", "garbage beside another repository", "identical content at one path"):
        excused += Exploration(SCENARIOS[name], Scope(2)).run().excused
    wrong_size = Scope(1, of=("stage_with_a_wrong_size",))
    no_dump = Scope(2, of=("import_object", "hard_reset"), dump=False)

    assert Exploration(SCENARIOS["an expired commit"], wrong_size).run().losses
    assert Exploration(SCENARIOS["an expired commit"], no_dump).run().losses
    more = {"declared with a wrong size", "committed and left without a dump"}
    assert excused.keys() | more == {excuse.name for excuse in INVISIBLE}


@pytest.mark.parametrize(
    ("name", "without", "operations"),
    [
        ("identical content at the other path", ("probes twice",), 2),
        ("staged", ("the second reading", "the closing reading", "path probes"), 2),
        ("another repository stages it", ("the closing reading",), 1),
        ("an expired commit", ("heads are watched",), 1),
    ],
)
def test_skipping_operations_that_cannot_change_a_response_hides_no_loss(
    name: str, without: tuple[str, ...], operations: int
) -> None:
    """Each loss that is found by trying operations before every request is also found by trying them only where they
    matter."""
    scope = Scope(operations, sweep=operations == 1)
    few, all_of_them = (
        Exploration(SCENARIOS[name], scope, without, everywhere=everywhere).run(first=False)
        for everywhere in (False, True)
    )
    losses = [(loss.at, loss.objects, {event.what for event in loss.events}) for loss in few.losses]

    assert few.states < all_of_them.states
    assert all_of_them.losses
    for loss in all_of_them.losses:
        events = {event.what for event in loss.events}
        assert any((at, objects) == (loss.at, loss.objects) and some <= events for at, objects, some in losses)


def test_an_exploration_with_a_long_enough_time_limit_visits_every_state() -> None:
    name, scope = "identical content", Scope(1, 1)
    whole = Exploration(SCENARIOS[name], scope).run()

    halves = [explored_for(60, [name], scope, share=(number, 2), clock=lambda: 0) for number in (0, 1)]
    both = explored_for(60, [name], scope, clock=lambda: 0)

    assert both.states == whole.states
    assert both.done == both.all == sum(half.all for half in halves)
    assert all(half.done == half.all for half in halves)


def test_an_exploration_with_a_time_limit_ends_in_time_and_finds_losses() -> None:
    ticks = iter(range(100))
    explored = explored_for(3, ["identical content"], Scope(1), ("path probes",), clock=lambda: next(ticks))

    assert explored.done == 2 < explored.all
    assert explored.losses


def test_objects_that_another_tool_deleted_before_a_mark_do_not_count_as_losses() -> None:
    """A stale listing still shows such an object, and a new branch makes it live. A sweep then finds nothing to
    delete."""
    scope = Scope(2, 1, of=("sweep_by_another_tool", "create_branch"), kinds=("stale listing",))

    assert Exploration(SCENARIOS["an expired commit"], scope).run().losses == []


def test_every_operation_is_tried_in_some_scenario() -> None:
    names_tried = {
        successor.operation.name
        for name in SCENARIOS
        for exploration in [Exploration(SCENARIOS[name], Scope(1, of=tuple(OPERATIONS)))]
        for successor in exploration.successors(exploration.start)
    }

    assert names_tried == OPERATIONS.keys()


def test_the_safety_page_is_up_to_date() -> None:
    """Update it with `python -m tests.exhaustive.traces`."""
    page = PAGE.read_text(encoding="utf-8")

    assert with_tables(page) == page
