"""Which commits retention rules retain, until when, and how the server's list is combined with them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakegc_assets.rules.retention import Reason, Verdict, commit_verdicts, with_server_list
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
    return {verdict.commit_id: verdict for verdict in commit_verdicts(commits, heads, rules, now=now)}


def retained(commits: list[Commit], heads: dict[str, str], rules: Rules | None, *, now: datetime = NOW) -> set[str]:
    return {name for name, verdict in verdicts(commits, heads, rules, now=now).items() if verdict.retained}


# --- the documented example -------------------------------------------------------------------------------------------

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


def test_exactly_the_documented_commits_are_retained_in_the_documented_example() -> None:
    """The example's rules are 21 days for main and 7 days for dev."""
    rules = Rules(30, {"main": 21, "dev": 7})

    retained_ids = retained(EXAMPLE, {"main": "m0326", "dev": "d0323"}, rules)

    assert retained_ids == {"m0309", "m0312", "m0318", "merge", "m0326", "d0323"}


def test_every_verdict_has_its_branch_days_and_end_of_retention() -> None:
    """The end is the moment until which the branch's rule retains the commit."""
    by_id = verdicts(EXAMPLE, {"main": "m0326", "dev": "d0323"}, Rules(30, {"main": 21, "dev": 7}))

    def reason_of(name: str) -> tuple[Reason, str | None, int | None, datetime | None]:
        return by_id[name].why, by_id[name].branch, by_id[name].days, by_id[name].until

    assert reason_of("m0326") == (Reason.HEAD, "main", 21, None)
    assert reason_of("d0323") == (Reason.HEAD, "dev", 7, None)
    assert reason_of("m0309") == (Reason.CHILD_YOUNG, "main", 21, march(12) + 21 * DAY + SECOND)
    assert reason_of("m0305") == (Reason.CHILD_OLD, "main", 21, march(9) + 21 * DAY + SECOND)
    assert reason_of("d0320") == (Reason.CHILD_OLD, "dev", 7, march(23) + 7 * DAY + SECOND)


def test_a_verdict_has_the_date_message_and_metarange_of_its_commit() -> None:
    """A reviewer reads the date and the message."""
    (verdict,) = commit_verdicts([commit("a", created=march(1), metarange="abc")], {"main": "a"}, Rules(7), now=NOW)

    assert (verdict.created, verdict.message, verdict.metarange_id) == (march(1), "message of a", "abc")


# --- starting points --------------------------------------------------------------------------------------------------


def test_branch_heads_are_retained_whatever_their_age() -> None:
    """Even a rule of zero days retains them."""
    old = commit("a", created=NOW - 9999 * DAY)

    assert retained([old], {"main": "a"}, Rules(0)) == {"a"}


def test_a_branch_head_is_retained_even_if_it_has_an_old_child() -> None:
    """The child is on another branch."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=march(2))]

    assert retained(commits, {"main": "b", "still": "a"}, Rules(1)) == {"a", "b"}


def test_the_default_days_apply_to_a_branch_without_a_rule() -> None:
    commits = [commit("a", created=march(1)), commit("b", "a", created=NOW - 5 * DAY)]

    assert retained(commits, {"other": "b"}, Rules(10, {"main": 1})) == {"a", "b"}


def test_dangling_commits_younger_than_the_default_rule_are_retained() -> None:
    """A dangling commit has neither a branch nor a child, so its own date decides."""
    young, old = commit("young", created=NOW - 3 * DAY), commit("old", created=NOW - 9 * DAY)

    by_id = verdicts([commit("a"), young, old], {"main": "a"}, Rules(5, {"main": 99}))

    assert (by_id["young"].retained, by_id["young"].why) == (True, Reason.DANGLING)
    assert (by_id["young"].branch, by_id["young"].days) == (None, 5)
    assert by_id["young"].until == NOW - 3 * DAY + 5 * DAY + SECOND
    assert (by_id["old"].retained, by_id["old"].why) == (False, Reason.EXPIRED_DANGLING)


def test_ancestors_of_a_dangling_commit_are_retained_by_the_default_rule() -> None:
    """The date of each ancestor's child decides."""
    line = [commit("a", created=march(1)), commit("b", "a", created=march(2)), commit("c", "b", created=NOW - DAY)]

    by_id = verdicts([commit("m"), *line], {"main": "m"}, Rules(5, {"main": 99}))

    assert {name for name in "abc" if by_id[name].retained} == {"b", "c"}
    assert (by_id["b"].why, by_id["b"].branch, by_id["b"].days) == (Reason.CHILD_YOUNG, None, 5)


def test_a_commit_that_is_only_a_merge_parent_is_dangling() -> None:
    """The commit's own date decides, not that of the merge."""
    commits = [
        commit("root", created=march(1)),
        commit("side", "root", created=march(2)),
        commit("merge", "root", "side", created=NOW - DAY),
    ]

    by_id = verdicts(commits, {"main": "merge"}, Rules(5))

    assert (by_id["side"].retained, by_id["side"].why) == (False, Reason.EXPIRED_DANGLING)
    assert by_id["root"].retained


def test_the_main_parent_of_a_version_0_merge_is_its_last_one() -> None:
    """Since version 1, the main parent is the first one."""
    old, new = commit("old", created=march(1)), commit("new", created=march(1))

    version_0 = commit("m", "new", "old", version=0, created=NOW - DAY)
    version_1 = commit("m", "new", "old", version=1, created=NOW - DAY)

    assert retained([old, new, version_0], {"main": "m"}, Rules(5)) == {"m", "old"}
    assert retained([old, new, version_1], {"main": "m"}, Rules(5)) == {"m", "new"}


# --- the walk ---------------------------------------------------------------------------------------------------------


def test_a_walk_continues_past_an_expired_commit() -> None:
    """Dates need not be in order: before an expired commit there may be a parent with a young child."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW - DAY),
        commit("c", "b", created=march(2)),
        commit("d", "c", created=march(3)),
    ]

    assert retained(commits, {"main": "d"}, Rules(5)) == {"a", "d"}


def test_a_shared_parent_is_retained_by_any_of_its_children() -> None:
    """Each child counts with its own date and the days of its branch. The longest retention wins."""
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


def test_a_branch_with_a_longer_rule_extends_the_retention_behind_a_head_with_a_shorter_rule() -> None:
    """The walk of the branch with the longer rule continues past that head."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW - 10 * DAY),
        commit("c", "b", created=NOW - 9 * DAY),
    ]

    by_id = verdicts(commits, {"long": "c", "short": "b"}, Rules(1, {"long": 21, "short": 2}))

    assert (by_id["b"].why, by_id["b"].branch) == (Reason.HEAD, "short")
    assert (by_id["a"].retained, by_id["a"].branch) == (True, "long")


def test_a_branch_with_a_shorter_rule_does_not_cut_the_retention_behind_a_head_with_a_longer_rule() -> None:
    """The walk of the branch with the shorter rule passes through that head, but doesn't shorten the retention."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW - 10 * DAY),
        commit("c", "b", created=NOW - 9 * DAY),
    ]

    verdict = verdicts(commits, {"short": "c", "long": "b"}, Rules(1, {"long": 21, "short": 2}))["a"]

    assert (verdict.retained, verdict.branch, verdict.days) == (True, "long", 21)


def test_a_merge_does_not_retain_its_second_parent() -> None:
    """A young merge retains only its main parent."""
    commits = [
        commit("m1", created=march(1)),
        commit("d1", created=march(1)),
        commit("d2", "d1", created=march(2)),
        commit("merge", "m1", "d2", created=NOW - DAY),
    ]

    assert retained(commits, {"main": "merge"}, Rules(5)) == {"m1", "merge"}


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before_now", "kept"),
    [
        pytest.param(5 * DAY - SECOND, True, id="a second younger"),
        pytest.param(5 * DAY, True, id="exactly at the limit, where a fraction may have been lost"),
        pytest.param(5 * DAY + SECOND, False, id="a second older, whether or not a fraction was lost"),
        pytest.param(5 * DAY - TICK, True, id="a microsecond younger"),
        pytest.param(5 * DAY + TICK, False, id="a microsecond older"),
        pytest.param(5 * DAY + SECOND - TICK, False, id="almost a second older, with a known fraction"),
    ],
)
def test_the_end_of_retention_is_rounded_up_to_the_next_whole_second(before_now: timedelta, kept: bool) -> None:
    """Dates in whole seconds may have lost their fraction, so a commit dated exactly at the limit is retained."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=NOW - before_now)]
    dangling = commit("x", created=NOW - before_now)

    by_id = verdicts([*commits, dangling], {"main": "b"}, Rules(5))

    assert by_id["a"].why is (Reason.CHILD_YOUNG if kept else Reason.CHILD_OLD)
    assert by_id["x"].why is (Reason.DANGLING if kept else Reason.EXPIRED_DANGLING)
    for verdict in (by_id["a"], by_id["x"]):
        assert verdict.retained is kept
        assert verdict.until is not None
        assert (verdict.until > NOW) is kept


@pytest.mark.parametrize("fraction", [HALF, SECOND - TICK])
def test_now_is_rounded_down_to_the_second(fraction: timedelta) -> None:
    """A fraction of a second must not expire a commit."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=NOW - 5 * DAY + TICK)]

    assert retained(commits, {"main": "b"}, Rules(5), now=NOW + fraction) == {"a", "b"}


def test_a_rule_of_zero_days_retains_the_parent_of_a_commit_dated_in_the_future() -> None:
    """With 0 days, a parent is retained while its child's date is in the future."""
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=NOW + SECOND),
        commit("c", "b", created=march(2)),
    ]

    assert retained(commits, {"main": "c"}, Rules(0)) == {"a", "c"}


@pytest.mark.parametrize("days", [36_500, 4_000_000, 10**12])
def test_a_rule_with_a_huge_number_of_days_retains_commits_forever(days: int) -> None:
    """The end may lie beyond the last year that a date can hold."""
    commits = [commit("a", created=march(1)), commit("b", "a", created=march(2))]

    assert retained(commits, {"main": "b"}, Rules(days)) == {"a", "b"}


# --- no rules ---------------------------------------------------------------------------------------------------------


def test_without_rules_every_commit_is_retained() -> None:
    """Dangling commits are also retained. No verdict names a branch or a date."""
    by_id = verdicts([*EXAMPLE, commit("lost", created=march(1))], {"main": "m0326"}, None)

    assert {name for name, verdict in by_id.items() if verdict.retained} == {"lost", *(c.id for c in EXAMPLE)}
    assert {(v.why, v.branch, v.days, v.until) for v in by_id.values()} == {(Reason.NO_RULES, None, None, None)}


# --- incomplete graphs ------------------------------------------------------------------------------------------------

both_ways = pytest.mark.parametrize("rules", [Rules(7), None], ids=["rules", "no rules"])


@both_ways
def test_a_head_missing_from_the_graph_raises_an_error(rules: Rules | None) -> None:
    """The error names branch and commit. If the head were ignored, the live set would be too small."""
    with pytest.raises(DamagedData, match=r"(?s)'topic'.*c9") as raised:
        commit_verdicts([commit("a")], {"main": "a", "topic": "c9"}, rules, now=NOW)

    assert raised.value.invariant == 3


@both_ways
@pytest.mark.parametrize("parents", [("gone",), ("gone", "a"), ("a", "gone")], ids=["only", "main", "merge"])
def test_a_missing_parent_raises_an_error(rules: Rules | None, parents: tuple[str, ...]) -> None:
    """The error names child and parent. The parent may be the main one or a merged one."""
    with pytest.raises(DamagedData, match=r"(?s)gone.*b7") as raised:
        commit_verdicts([commit("a"), commit("b7", *parents)], {"main": "b7"}, rules, now=NOW)

    assert raised.value.invariant == 3


@both_ways
@pytest.mark.parametrize("ring", [["a"], ["a", "b"], ["a", "b", "c"]], ids=len)
def test_a_cycle_of_parents_raises_an_error(rules: Rules | None, ring: list[str]) -> None:
    """The error names a commit on the cycle, not one that leads to it."""
    commits = [commit(name, parent) for name, parent in zip(ring, [*ring[1:], ring[0]], strict=True)]

    with pytest.raises(DamagedData, match=r"commit a is in a cycle"):
        commit_verdicts([*commits, commit("Leads-in", "a")], {"main": "Leads-in"}, rules, now=NOW)


def test_two_commits_with_the_same_id_raise_an_error() -> None:
    """The same commit may be given twice."""
    same, other = commit("a", created=march(1)), commit("a", created=march(2))

    assert retained([same, commit("a", created=march(1))], {"main": "a"}, Rules(1)) == {"a"}
    with pytest.raises(DamagedData, match="id a"):
        commit_verdicts([same, other], {"main": "a"}, Rules(1), now=NOW)


def test_an_empty_graph_is_accepted_only_without_heads() -> None:
    """An empty graph with heads is an error."""
    assert commit_verdicts([], {}, Rules(7), now=NOW) == []
    with pytest.raises(DamagedData, match="main"):
        commit_verdicts([], {"main": "a"}, Rules(7), now=NOW)


def test_verdicts_do_not_depend_on_the_order_of_the_input() -> None:
    """The order of the verdicts doesn't depend on it either."""
    heads = {"main": "m0326", "copy": "m0326", "dev": "d0323"}
    rules = Rules(21, {"dev": 7})

    forwards = commit_verdicts(EXAMPLE, heads, rules, now=NOW)
    backwards = commit_verdicts(EXAMPLE[::-1], dict(reversed(heads.items())), rules, now=NOW)

    assert forwards == backwards
    assert [verdict.commit_id for verdict in forwards] == sorted(c.id for c in EXAMPLE)


# --- the server's list ------------------------------------------------------------------------------------------------


def server_and_rule(*listed: tuple[str, str]) -> dict[str, Verdict]:
    commits = [
        commit("a", created=march(1)),
        commit("b", "a", created=march(2)),
        commit("c", "b", created=NOW - DAY),
    ]
    by_rule = commit_verdicts(commits, {"main": "c"}, Rules(5), now=NOW)
    return {verdict.commit_id: verdict for verdict in with_server_list(by_rule, listed)}


def test_a_commit_that_the_server_does_not_list_is_retained_by_the_rule() -> None:
    """The verdict names the rule."""
    by_id = server_and_rule(("c", "range-of-c"))

    assert (by_id["b"].retained, by_id["b"].why, by_id["b"].server_listed) == (True, Reason.CHILD_YOUNG, False)
    assert (by_id["c"].retained, by_id["c"].why, by_id["c"].server_listed) == (True, Reason.HEAD, True)
    assert not by_id["a"].retained


def test_a_commit_that_only_the_server_lists_is_retained() -> None:
    """No date is known at which its retention ends. Its objects are read from its metarange."""
    verdict = server_and_rule(("a", "range-of-a"))["a"]

    assert verdict.metarange_id == "range-of-a"
    assert (verdict.retained, verdict.why, verdict.server_listed) == (True, Reason.SERVER, True)
    assert (verdict.branch, verdict.days, verdict.until) == (None, None, None)
    assert (verdict.created, verdict.message) == (march(1), "message of a")


def test_a_listed_commit_that_the_graph_lacks_is_retained() -> None:
    """The verdict has the metarange of the server's list, and is sorted by its id like all others."""
    by_id = server_and_rule(("bb", "elsewhere"), ("bb", "elsewhere"))

    assert list(by_id) == ["a", "b", "bb", "c"]
    assert (by_id["bb"].retained, by_id["bb"].why, by_id["bb"].metarange_id) == (True, Reason.SERVER, "elsewhere")
    assert (by_id["bb"].created, by_id["bb"].message) == (None, None)


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param([("b", "other")], id="retained"),
        pytest.param([("a", "other")], id="expired"),
        pytest.param([("x", "one"), ("x", "two")], id="unknown"),
    ],
)
def test_two_metaranges_for_one_commit_raise_an_error(listed: list[tuple[str, str]]) -> None:
    """One of the two metaranges would not be read."""
    with pytest.raises(DamagedData, match=r"commit [abx]"):
        server_and_rule(*listed)


def test_an_empty_list_from_the_server_changes_no_verdict() -> None:
    assert {name for name, verdict in server_and_rule().items() if verdict.retained} == {"b", "c"}
