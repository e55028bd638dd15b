from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakegc_assets.retention import Reason, Verdict, retained_commits, with_server_list
from spark_resources.errors import DamagedData
from spark_resources.model import Commit, Rules

NOW = datetime(2022, 3, 31, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
TICK = timedelta(microseconds=1)
HALF = timedelta(milliseconds=500)


def commit(name: str, *parents: str, created: datetime = NOW, version: int = 1, metarange: str = "") -> Commit:
    return Commit(name, parents, created, metarange or f"range-of-{name}", version, message=f"message of {name}")


def march(day: int) -> datetime:
    return datetime(2022, 3, day, tzinfo=UTC)


def verdicts(
    commits: list[Commit], heads: dict[str, str], rules: Rules | None, *, now: datetime = NOW
) -> dict[str, Verdict]:
    return {verdict.commit_id: verdict for verdict in retained_commits(commits, heads, rules, now=now)}


def retained(commits: list[Commit], heads: dict[str, str], rules: Rules | None, *, now: datetime = NOW) -> set[str]:
    return {name for name, verdict in verdicts(commits, heads, rules, now=now).items() if verdict.retained}


# --- the documented example -----------------------------------------------------------------------------------------

EXAMPLE = [
    commit("m0301", created=march(1)),
    commit("m0305", "m0301", created=march(5)),
    commit("m0309", "m0305", created=march(9)),
    commit("m0312", "m0309", created=march(12)),
    commit("d0314", "m0309", created=march(14)),
    commit("d0316", "d0314", created=march(16)),
    commit("m0318", "m0312", created=march(18)),
    commit("d0320", "d0316", created=march(20)),
    commit("d0323", "d0320", created=march(23)),
    commit("merge", "m0318", "d0323", created=march(24)),
    commit("m0326", "merge", created=march(26)),
]


def test_the_documented_example_is_decided_otherwise() -> None:
    """Main with 21 days and dev with 7 retain what lakeFS's documentation says, and nothing else."""
    rules = Rules(30, {"main": 21, "dev": 7})

    kept = retained(EXAMPLE, {"main": "m0326", "dev": "d0323"}, rules)

    assert kept == {"m0309", "m0312", "m0318", "merge", "m0326", "d0323"}


def test_a_reason_does_not_tell_whose_rule_until_when() -> None:
    """Every verdict names the branch, its days, and the moment at which that rule lets go."""
    told = verdicts(EXAMPLE, {"main": "m0326", "dev": "d0323"}, Rules(30, {"main": 21, "dev": 7}))

    def said(name: str) -> tuple[Reason, str | None, int | None, datetime | None]:
        return told[name].why, told[name].branch, told[name].days, told[name].until

    assert said("m0326") == (Reason.HEAD, "main", 21, None)
    assert said("d0323") == (Reason.HEAD, "dev", 7, None)
    assert said("m0309") == (Reason.CHILD_YOUNG, "main", 21, march(12) + 21 * DAY + SECOND)
    assert said("m0305") == (Reason.EXPIRED_BEHIND_CHILD, "main", 21, march(9) + 21 * DAY + SECOND)
    assert said("d0320") == (Reason.EXPIRED_BEHIND_CHILD, "dev", 7, march(23) + 7 * DAY + SECOND)


def test_a_verdict_loses_what_a_person_must_read() -> None:
    """A verdict carries its commit's date, message and metarange."""
    (told,) = retained_commits([commit("a", created=march(1), metarange="abc")], {"main": "a"}, Rules(7), now=NOW)

    assert (told.created, told.message, told.metarange_id) == (march(1), "message of a", "abc")


# --- starting points ------------------------------------------------------------------------------------------------


def test_a_head_expires_with_age_or_zero_days() -> None:
    """A head is retained however old it is, with 0 days too."""
    old = commit("a", created=NOW - 9999 * DAY)

    assert retained([old], {"main": "a"}, Rules(0)) == {"a"}


def test_a_head_behind_an_old_child_expires() -> None:
    """A commit that a branch points to is retained although its child on another line is old."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=march(2))]

    assert retained(commits, {"main": "b", "still": "a"}, Rules(1)) == {"a", "b"}


def test_a_branch_without_a_rule_gets_none() -> None:
    """A branch that the rules don't name has the default days."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=NOW - 5 * DAY)]

    assert retained(commits, {"other": "b"}, Rules(10, {"main": 1})) == {"a", "b"}


def test_a_young_dangling_commit_is_dropped() -> None:
    """A commit without branch or child is retained, by its own date and the default days, and then expires."""
    young, old = commit("young", created=NOW - 3 * DAY), commit("old", created=NOW - 9 * DAY)

    told = verdicts([commit("a"), young, old], {"main": "a"}, Rules(5, {"main": 99}))

    assert (told["young"].retained, told["young"].why) == (True, Reason.DANGLING)
    assert (told["young"].branch, told["young"].days) == (None, 5)
    assert told["young"].until == NOW - 3 * DAY + 5 * DAY + SECOND
    assert (told["old"].retained, told["old"].why) == (False, Reason.EXPIRED_DANGLING)


def test_what_stands_behind_a_dangling_commit_is_dropped() -> None:
    """The parents of a dangling commit are retained by the default days and their children's dates."""
    line = [commit("a", created=march(1)), commit("b", "a", created=march(2)), commit("c", "b", created=NOW - DAY)]

    told = verdicts([commit("m"), *line], {"main": "m"}, Rules(5, {"main": 99}))

    assert {name for name in "abc" if told[name].retained} == {"b", "c"}
    assert (told["b"].why, told["b"].branch, told["b"].days) == (Reason.CHILD_YOUNG, None, 5)


def test_a_merge_source_without_a_branch_counts_as_a_parent() -> None:
    """A commit that is only a merge parent is dangling: its own date decides, not that of the merge."""
    commits = [
        commit("root", created=march(1)),
        commit("side", "root", created=march(2)),
        commit("merge", "root", "side", created=NOW - DAY),
    ]

    told = verdicts(commits, {"main": "merge"}, Rules(5))

    assert (told["side"].retained, told["side"].why) == (False, Reason.EXPIRED_DANGLING)
    assert told["root"].retained


def test_a_version_0_merge_is_walked_to_its_first_parent() -> None:
    """In commits of version 0 the main parent is the last one; from version 1 on it is the first."""
    old, new = commit("old", created=march(1)), commit("new", created=march(1))

    version_0 = commit("m", "new", "old", version=0, created=NOW - DAY)
    version_1 = commit("m", "new", "old", version=1, created=NOW - DAY)

    assert retained([old, new, version_0], {"main": "m"}, Rules(5)) == {"m", "old"}
    assert retained([old, new, version_1], {"main": "m"}, Rules(5)) == {"m", "new"}


# --- the walk -------------------------------------------------------------------------------------------------------


def test_a_walk_ends_at_the_first_expired_commit() -> None:
    """Dates need not be in order: a parent whose child is young is retained behind an expired commit."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW - DAY),
        commit("c", "b", created=march(2)),
        commit("d", "c", created=march(3)),
    ]

    assert retained(commits, {"main": "d"}, Rules(5)) == {"a", "d"}


def test_a_shared_parent_is_decided_by_one_child_only() -> None:
    """Of several lines through a commit each has its say, by its own child's date, and the longest retention wins."""
    commits = [
        commit("root", created=march(1)),
        commit("parent", "root", created=march(2)),
        commit("young", "parent", created=NOW - 6 * DAY),
        commit("old", "parent", created=NOW - 20 * DAY),
    ]
    heads = {"short": "young", "long": "old"}

    by_young = verdicts(commits, heads, Rules(1, {"short": 7, "long": 19}))["parent"]
    by_old = verdicts(commits, heads, Rules(1, {"short": 5, "long": 21}))["parent"]
    by_neither = verdicts(commits, heads, Rules(1, {"short": 5, "long": 19}))["parent"]

    assert (by_young.retained, by_young.branch, by_young.days) == (True, "short", 7)
    assert (by_old.retained, by_old.branch, by_old.days) == (True, "long", 21)
    assert not by_neither.retained


def test_a_long_line_forgets_its_days_behind_a_shorter_head() -> None:
    """Days of a longer branch hold on behind a commit that is itself the head of a shorter one."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW - 10 * DAY),
        commit("c", "b", created=NOW - 9 * DAY),
    ]

    told = verdicts(commits, {"long": "c", "short": "b"}, Rules(1, {"long": 21, "short": 2}))

    assert (told["b"].why, told["b"].branch) == (Reason.HEAD, "short")
    assert (told["a"].retained, told["a"].branch) == (True, "long")


def test_a_shorter_line_overrules_a_longer_head_on_it() -> None:
    """What stands behind a head is retained by its days, though a shorter line comes through it."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW - 10 * DAY),
        commit("c", "b", created=NOW - 9 * DAY),
    ]

    told = verdicts(commits, {"short": "c", "long": "b"}, Rules(1, {"long": 21, "short": 2}))["a"]

    assert (told.retained, told.branch, told.days) == (True, "long", 21)


def test_a_merge_parent_is_retained_by_the_merge() -> None:
    """A young merge does not retain what stands behind its second parent."""
    commits = [
        commit("m1", created=march(1)),
        commit("d1", created=march(1)),
        commit("d2", "d1", created=march(2)),
        commit("merge", "m1", "d2", created=NOW - DAY),
    ]

    assert retained(commits, {"main": "merge"}, Rules(5)) == {"m1", "merge"}


# --- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before_now", "kept"),
    [
        pytest.param(5 * DAY - SECOND, True, id="a second younger"),
        pytest.param(5 * DAY, True, id="on the second, which may have been cut off"),
        pytest.param(5 * DAY + SECOND, False, id="a second older, cut off or not"),
        pytest.param(5 * DAY - TICK, True, id="a microsecond younger"),
        pytest.param(5 * DAY + TICK, False, id="a microsecond older"),
        pytest.param(5 * DAY + SECOND - TICK, False, id="almost a second older, and exactly known"),
    ],
)
def test_the_boundary_is_rounded_to_the_deleting_side(before_now: timedelta, kept: bool) -> None:
    """A parent is retained while its child, a dangling commit while itself may be later than now − days.

    A date of whole seconds may have lost its fraction.
    """
    commits = [commit("a", created=march(1)), commit("b", "a", created=NOW - before_now)]
    dangling = commit("x", created=NOW - before_now)

    told = verdicts([*commits, dangling], {"main": "b"}, Rules(5))

    assert told["a"].why is (Reason.CHILD_YOUNG if kept else Reason.EXPIRED_BEHIND_CHILD)
    assert told["x"].why is (Reason.DANGLING if kept else Reason.EXPIRED_DANGLING)
    for verdict in (told["a"], told["x"]):
        assert verdict.retained is kept
        assert verdict.until is not None
        assert (verdict.until > NOW) is kept


@pytest.mark.parametrize("fraction", [HALF, SECOND - TICK])
def test_a_fraction_of_now_expires_a_commit(fraction: timedelta) -> None:
    """A `now` with a fraction retains what the whole second before it retains."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=NOW - 5 * DAY + TICK)]

    assert retained(commits, {"main": "b"}, Rules(5), now=NOW + fraction) == {"a", "b"}


def test_zero_days_expire_the_future() -> None:
    """With 0 days a parent is retained while its child's date lies ahead of now."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW + SECOND),
        commit("c", "b", created=march(2)),
    ]

    assert retained(commits, {"main": "c"}, Rules(0)) == {"a", "c"}


@pytest.mark.parametrize("days", [36_500, 4_000_000, 10**12])
def test_days_without_end_overflow(days: int) -> None:
    """A rule that means "for ever" retains, beyond the last year that a date can hold too."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=march(2))]

    assert retained(commits, {"main": "b"}, Rules(days)) == {"a", "b"}


# --- no rules -------------------------------------------------------------------------------------------------------


def test_without_rules_something_expires() -> None:
    """Without rules every commit of the graph is retained, a dangling one too, and no branch or date is named."""
    told = verdicts([*EXAMPLE, commit("lost", created=march(1))], {"main": "m0326"}, None)

    assert {name for name, verdict in told.items() if verdict.retained} == {"lost", *(c.id for c in EXAMPLE)}
    assert {(v.why, v.branch, v.days, v.until) for v in told.values()} == {(Reason.NO_RULES, None, None, None)}


# --- graphs that are not whole --------------------------------------------------------------------------------------

both_ways = pytest.mark.parametrize("rules", [Rules(7), None], ids=["rules", "no rules"])


@both_ways
def test_a_head_missing_from_the_graph_is_no_head(rules: Rules | None) -> None:
    """A head that the graph doesn't know is an error that names branch and commit, never a shorter keep side."""
    with pytest.raises(DamagedData, match=r"(?s)'topic'.*c9") as raised:
        retained_commits([commit("a")], {"main": "a", "topic": "c9"}, rules, now=NOW)

    assert raised.value.invariant == 3


@both_ways
@pytest.mark.parametrize("parents", [("gone",), ("gone", "a"), ("a", "gone")], ids=["only", "main", "merge"])
def test_a_missing_parent_is_the_end_of_history(rules: Rules | None, parents: tuple[str, ...]) -> None:
    """A parent that the graph doesn't know, main or merged, is an error that names child and parent."""
    with pytest.raises(DamagedData, match=r"(?s)gone.*b7") as raised:
        retained_commits([commit("a"), commit("b7", *parents)], {"main": "b7"}, rules, now=NOW)

    assert raised.value.invariant == 3


@both_ways
@pytest.mark.parametrize("ring", [["a"], ["a", "b"], ["a", "b", "c"]], ids=len)
def test_a_ring_of_parents_hangs_or_is_left_out(rules: Rules | None, ring: list[str]) -> None:
    """A line of parents that comes back to itself is an error that names a commit on it, not one that leads to it."""
    commits = [commit(name, parent) for name, parent in zip(ring, [*ring[1:], ring[0]], strict=True)]

    with pytest.raises(DamagedData, match=r"commit a is on a line"):
        retained_commits([*commits, commit("Leads-in", "a")], {"main": "Leads-in"}, rules, now=NOW)


def test_one_id_stands_for_two_commits() -> None:
    """Two different commits with one id are an error that names it; the same commit twice is one commit."""
    same, other = commit("a", created=march(1)), commit("a", created=march(2))

    assert retained([same, commit("a", created=march(1))], {"main": "a"}, Rules(1)) == {"a"}
    with pytest.raises(DamagedData, match="id a"):
        retained_commits([same, other], {"main": "a"}, Rules(1), now=NOW)


def test_an_empty_graph_is_taken_for_a_repository() -> None:
    """No commits at all give no verdicts when there are no heads either, and an error when there are."""
    assert retained_commits([], {}, Rules(7), now=NOW) == []
    with pytest.raises(DamagedData, match="main"):
        retained_commits([], {"main": "a"}, Rules(7), now=NOW)


def test_the_order_of_input_changes_verdicts_or_their_order() -> None:
    """The verdicts and their order are those of the graph, whatever order commits and branches come in."""
    heads = {"main": "m0326", "copy": "m0326", "dev": "d0323"}
    rules = Rules(21, {"dev": 7})

    forwards = retained_commits(EXAMPLE, heads, rules, now=NOW)
    backwards = retained_commits(EXAMPLE[::-1], dict(reversed(heads.items())), rules, now=NOW)

    assert forwards == backwards
    assert [verdict.commit_id for verdict in forwards] == sorted(c.id for c in EXAMPLE)


# --- the server's list ----------------------------------------------------------------------------------------------


def server_and_rule(*listed: tuple[str, str]) -> dict[str, Verdict]:
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=march(2)),
        commit("c", "b", created=NOW - DAY),
    ]
    ours = retained_commits(commits, {"main": "c"}, Rules(5), now=NOW)
    return {verdict.commit_id: verdict for verdict in with_server_list(ours, listed)}


def test_what_the_server_leaves_out_expires() -> None:
    """A commit that the rule retains stays retained, by the rule, though the server's list lacks it."""
    told = server_and_rule(("c", "range-of-c"))

    assert (told["b"].retained, told["b"].why, told["b"].server_listed) == (True, Reason.CHILD_YOUNG, False)
    assert (told["c"].retained, told["c"].why, told["c"].server_listed) == (True, Reason.HEAD, True)
    assert not told["a"].retained


def test_what_only_the_server_retains_expires() -> None:
    """A commit that the server lists is retained where the rule lets go, with no date at which that ends."""
    told = server_and_rule(("a", "range-of-a"))["a"]

    assert (told.retained, told.why, told.server_listed) == (True, Reason.SERVER, True)
    assert (told.branch, told.days, told.until) == (None, None, None)
    assert (told.created, told.message) == (march(1), "message of a")


def test_a_listed_commit_that_the_graph_lacks_is_lost() -> None:
    """A commit that only the server's list knows is retained with the list's metarange, in the order of ids."""
    told = server_and_rule(("bb", "elsewhere"), ("bb", "elsewhere"))

    assert list(told) == ["a", "b", "bb", "c"]
    assert (told["bb"].retained, told["bb"].why, told["bb"].metarange_id) == (True, Reason.SERVER, "elsewhere")
    assert (told["bb"].created, told["bb"].message) == (None, None)


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param([("b", "other")], id="retained"),
        pytest.param([("a", "other")], id="expired"),
        pytest.param([("x", "one"), ("x", "two")], id="unknown"),
    ],
)
def test_two_metaranges_of_one_commit_are_believed(listed: list[tuple[str, str]]) -> None:
    """A listed metarange that is not the commit's own is an error: one of the two would not be read."""
    with pytest.raises(DamagedData, match=r"commit [abx]"):
        server_and_rule(*listed)


def test_an_empty_list_expires_what_the_rule_retains() -> None:
    """An empty list adds nothing and takes nothing away."""
    assert {name for name, verdict in server_and_rule().items() if verdict.retained} == {"b", "c"}
