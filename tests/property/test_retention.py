"""The retention rule against the oracle's walks, on generated histories, and on very large ones.

LAKEGC_RANDOM_HISTORIES says how many histories the main properties are tested with; a long run is

    LAKEGC_RANDOM_HISTORIES=20000 uv run pytest -n 0 tests/property/test_retention.py
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import Phase, event, find, given, settings
from hypothesis import strategies as st

from lakegc_assets.rules.retention import Reason, Verdict, commit_verdicts, with_server_list
from spark_resources.errors import DamagedData
from spark_resources.model import Commit, Rules
from tests.support import oracle
from tests.support.oracle import DAY, SECOND

pytestmark = pytest.mark.timeout(0)  # as long as the number of histories takes
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = 1_648_728_000 * SECOND
HISTORIES = int(os.environ.get("LAKEGC_RANDOM_HISTORIES", "200"))
MOST_DAYS = 4
NAMES = [f"c{number:02}" for number in range(12)]
BRANCHES = ["dev", "main", "topic", "zeta"]


class History(NamedTuple):
    """A commit graph, its branches and rules, in the oracle's form."""

    commits: dict[str, oracle.C]
    heads: dict[str, str]
    default_days: int
    branch_days: dict[str, int]
    now: int

    def product_commits(self) -> list[Commit]:
        return [
            Commit(name, c.parents, moment(c.date), f"range-of-{name}", c.version) for name, c in self.commits.items()
        ]

    def rules(self) -> Rules:
        return Rules(self.default_days, self.branch_days)

    def verdicts(self) -> dict[str, Verdict]:
        verdicts = commit_verdicts(self.product_commits(), self.heads, self.rules(), now=moment(self.now))
        return {verdict.commit_id: verdict for verdict in verdicts}

    def retained(self) -> set[str]:
        return {name for name, verdict in self.verdicts().items() if verdict.retained}

    def claims(self) -> dict[str, list[oracle.Claim]]:
        return oracle.claims(self.commits, self.heads, self.default_days, self.branch_days)


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


patient = settings(deadline=None)  # a busy machine must not fail a test

days = st.integers(0, MOST_DAYS)
# Times around every cutoff of a rule: the cutoff itself, its whole second, and a tick or a second before and after.
near_cutoffs = st.builds(
    lambda days, offset: NOW - days * DAY + offset,
    days,
    st.sampled_from([-SECOND - 1, -SECOND, -SECOND + 1, -1, 0, 1, SECOND - 1, SECOND]),
)
anywhere = st.integers(NOW - (MOST_DAYS + 1) * DAY, NOW + DAY)
dates = near_cutoffs | anywhere | anywhere.map(lambda date: date - date % SECOND)
nows = st.sampled_from([0, 1, SECOND - 1]).map(lambda fraction: NOW + fraction)
versions = st.sampled_from([0, 1, 1])


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Complete graphs: every parent comes earlier in an order that is independent of names and dates."""
    order = draw(st.permutations(NAMES))[: draw(st.integers(1, len(NAMES)))]
    commits = {}
    for place, name in enumerate(order):
        # Mostly the previous commit, so that lines get long; otherwise any, so that lines fork, merge and dangle.
        older = st.sampled_from(order[max(0, place - 2) : place]) if place else st.nothing()
        parents = draw(st.lists(older, max_size=3, unique=True)) if place else []
        commits[name] = oracle.C(tuple(parents), draw(dates), draw(versions))
    shuffled = {name: commits[name] for name in draw(st.permutations(order))}
    heads = draw(st.dictionaries(st.sampled_from(BRANCHES), st.sampled_from(order)))
    return History(shuffled, heads, draw(days), draw(branch_days), draw(nows))


branch_days = st.dictionaries(st.sampled_from([*BRANCHES, "gone"]), days)


@st.composite
def scrambled(draw: st.DrawFn) -> History:
    """Graphs of any shape, with missing parents, cycles, and heads without a commit."""
    names = NAMES[: draw(st.integers(1, 6))]
    anyone = st.sampled_from(names) | st.sampled_from(names) | st.just("missing")
    parents = st.lists(anyone, max_size=2).map(tuple)
    commits = {name: oracle.C(draw(parents), draw(dates), draw(versions)) for name in names}
    return History(commits, draw(st.dictionaries(st.sampled_from(BRANCHES), anyone)), 1, {}, NOW)


def is_whole(history: History) -> bool:
    """Whether every name has a commit and every walk of main parents ends."""
    named = {*history.heads.values()}.union(*(commit.parents for commit in history.commits.values()))
    if not named <= set(history.commits):
        return False
    for name in history.commits:
        step: str | None = name
        for _ in history.commits:
            step = oracle.main_parent(history.commits[step]) if step is not None else None
        if step is not None:
            return False
    return True


@given(histories())
@settings(patient, max_examples=HISTORIES)
def test_the_single_pass_retains_exactly_what_the_oracles_walks_retain(history: History) -> None:
    """The walks are those of formats §6. Every commit gets a verdict."""
    verdicts = history.verdicts()

    assert set(verdicts) == set(history.commits)
    assert {name for name, verdict in verdicts.items() if verdict.retained} == oracle.retained(
        history.claims(), history.now
    )


@given(histories())
@settings(patient, max_examples=HISTORIES)
def test_a_verdict_names_the_walk_that_retains_its_commit_longest(history: History) -> None:
    """The verdict has the branch, days and end of that walk."""
    claims = history.claims()

    for name, verdict in history.verdicts().items():
        event(verdict.why.name)
        longest = max(claim.until for claim in claims[name])
        if verdict.why is Reason.HEAD:
            assert oracle.Claim(oracle.FOR_EVER, verdict.branch, verdict.days or 0) in claims[name]
            assert (verdict.retained, verdict.until) == (True, None)
            continue
        assert verdict.until is not None
        until = (verdict.until - EPOCH) // timedelta(microseconds=1)
        assert until == longest
        assert oracle.Claim(until, verdict.branch, verdict.days or 0) in claims[name]
        assert verdict.retained is (verdict.until > moment(history.now - history.now % SECOND))


@given(histories())
@patient
def test_the_reasons_of_verdicts_agree_with_the_graph(history: History) -> None:
    """Heads are called heads, other commits without children dangling, and all others are retained or expired
    by a child."""
    parents = {oracle.main_parent(commit) for commit in history.commits.values()}
    young = {True: Reason.DANGLING, False: Reason.EXPIRED_DANGLING}
    by_child = {True: Reason.CHILD_YOUNG, False: Reason.CHILD_OLD}

    for name, verdict in history.verdicts().items():
        if name in history.heads.values():
            assert verdict.why is Reason.HEAD
        else:
            assert verdict.why is (by_child if name in parents else young)[verdict.retained]


@given(histories(), st.randoms(use_true_random=False))
@patient
def test_verdicts_do_not_depend_on_the_order_of_the_input(history: History, random: Random) -> None:
    """Commits and heads may come in any order."""
    commits, heads = history.product_commits(), list(history.heads.items())
    before = commit_verdicts(commits, history.heads, history.rules(), now=moment(history.now))
    random.shuffle(commits)
    random.shuffle(heads)

    assert commit_verdicts(commits, dict(heads), history.rules(), now=moment(history.now)) == before


@given(histories(), st.sampled_from([*BRANCHES, None]), st.integers(1, 3), st.integers(0, 3 * DAY))
@patient
def test_a_longer_rule_or_an_earlier_now_retains_at_least_as_much(
    history: History, branch: str | None, more: int, earlier: int
) -> None:
    """The longer rule may be that of any branch, or the default."""
    before = history.retained()
    if branch is None:
        # Every branch gets a rule of its own, so that only the default grows.
        longer = history._replace(default_days=history.default_days + more)
    else:
        grown = history.branch_days.get(branch, history.default_days) + more
        longer = history._replace(branch_days={**history.branch_days, branch: grown})

    assert before <= longer.retained()
    assert before <= history._replace(now=history.now - earlier).retained()


@given(histories())
@patient
def test_dates_from_the_api_retain_at_least_what_dates_from_the_dump_retain(history: History) -> None:
    """The API's dates are truncated to seconds."""
    cut_off = {
        name: commit._replace(date=commit.date - commit.date % SECOND) for name, commit in history.commits.items()
    }

    assert history.retained() <= history._replace(commits=cut_off).retained()


@given(histories(), st.sets(st.sampled_from([*NAMES, "new1", "new2"])))
@patient
def test_the_union_with_the_servers_list_has_exactly_the_commits_of_both(history: History, names: set[str]) -> None:
    """A commit is retained if the rule retains it or the server lists it."""
    by_rule = list(history.verdicts().values())

    both = with_server_list(by_rule, [(name, f"range-of-{name}") for name in names])

    assert {verdict.commit_id for verdict in both if verdict.retained} == history.retained() | names
    assert {verdict.commit_id for verdict in both if verdict.server_listed} == names
    assert {verdict.commit_id for verdict in both} == set(history.commits) | names


@given(histories())
@patient
def test_without_rules_all_commits_are_retained(history: History) -> None:
    """The dates, heads and versions of commits don't matter."""
    verdicts = commit_verdicts(history.product_commits(), history.heads, None, now=moment(history.now))

    assert {(verdict.commit_id, verdict.why) for verdict in verdicts if verdict.retained} == {
        (name, Reason.NO_RULES) for name in history.commits
    }


@given(scrambled())
@settings(patient, max_examples=HISTORIES)
def test_an_incomplete_or_cyclic_graph_is_refused(history: History) -> None:
    """A head or parent is missing, or main parents form a cycle. Every other graph gets correct verdicts."""
    event("whole" if is_whole(history) else "not whole")
    if is_whole(history):
        assert history.retained() == oracle.retained(history.claims(), history.now)
        return
    for rules in (history.rules(), None):
        with pytest.raises(DamagedData):
            commit_verdicts(history.product_commits(), history.heads, rules, now=moment(history.now))


@pytest.mark.parametrize(
    "reason", [reason for reason in Reason if reason not in (Reason.NO_RULES, Reason.SERVER, Reason.ON_HOLD)]
)
def test_the_generated_histories_cover_every_reason(reason: Reason) -> None:
    """Without this, these properties might not test every reason of the rule."""
    any_will_do = settings(patient, database=None, max_examples=1000, phases=[Phase.generate])

    example = find(
        histories(), lambda history: reason in {v.why for v in history.verdicts().values()}, settings=any_will_do
    )

    assert reason in {verdict.why for verdict in example.verdicts().values()}


# --- large graphs ---------------------------------------------------------------------------------------------------


def line(length: int, *, step: timedelta = timedelta(minutes=1)) -> list[Commit]:
    """A line of commits, the last one made at now, and every other one a step before its child."""
    return [
        Commit(
            f"{place:06}",
            (f"{place - 1:06}",) if place else (),
            moment(NOW) - step * (length - 1 - place),
            f"range-of-{place:06}",
        )
        for place in range(length)
    ]


def test_a_line_of_100_000_commits_gets_verdicts_to_its_root() -> None:
    """The head and the commits before a young child are retained."""
    commits = line(100_000)

    verdicts = commit_verdicts(commits, {"main": commits[-1].id}, Rules(1), now=moment(NOW))

    # A day has 1440 minutes. A child dated at the cutoff may have lost its fraction of a second, so it counts as young.
    retained = [verdict.commit_id for verdict in verdicts if verdict.retained]
    assert retained == [commit.id for commit in commits[-1 - 1441 :]]


def test_a_line_shared_by_20_000_branches_gets_verdicts_in_one_pass() -> None:
    """The line has 40,000 commits, and the branch with the longest rule is at its end."""
    commits = line(40_000)
    heads = {f"branch{place:05}": commits[place + 20_000].id for place in range(20_000)}
    longest = {"branch19999": 365}

    verdicts = commit_verdicts(commits, heads, Rules(0, longest), now=moment(NOW))

    assert [verdict.commit_id for verdict in verdicts if verdict.retained] == [commit.id for commit in commits]
    assert {verdict.branch for verdict in verdicts if verdict.why is Reason.CHILD_YOUNG} == {"branch19999"}


def test_a_parent_of_50_000_branches_is_retained_by_the_longest_rule() -> None:
    """All but one of the parent's children are too old to retain it and its ancestors."""
    old = moment(NOW) - timedelta(days=5)
    root, parent = Commit("root", (), old, "r"), Commit("parent", ("root",), old, "p")
    children = [Commit(f"child{number:05}", ("parent",), old, "c") for number in range(50_000)]
    heads = {child.id: child.id for child in children}

    verdicts = commit_verdicts([root, parent, *children], heads, Rules(1, {"child31415": 6}), now=moment(NOW))

    not_heads = {verdict.commit_id: verdict for verdict in verdicts if verdict.why is not Reason.HEAD}
    assert {(name, verdict.retained, verdict.branch) for name, verdict in not_heads.items()} == {
        ("parent", True, "child31415"),
        ("root", True, "child31415"),
    }
