"""The commits that holds retain, compared with the oracle's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import event, given, settings
from hypothesis import strategies as st

from lakegc_assets.rules.holds import References, commits_on_hold, with_holds
from lakegc_assets.rules.retention import Reason
from spark_resources.mark_store.hold_file import BranchHold, CommitHold, Hold, TagHold
from tests.property.test_retention import NOW, History, histories, moment, patient
from tests.support import oracle

TAGS = ["v1", "v2", "w1"]
WHOSE = {"owner": "ada", "reason": "because"}
tag_patterns = st.sampled_from(["*", "v*", "?1", "v1", "x"])
branch_patterns = st.sampled_from(["*", "dev", "t*", "????", "x"])
values = st.sampled_from(["hold", "no", ""])
ends = st.sampled_from([None, NOW - oracle.DAY, NOW, NOW + oracle.SECOND])

plain_holds = st.one_of(
    st.builds(oracle.H, st.just("tag"), tag_patterns),
    st.builds(oracle.H, st.just("history"), tag_patterns),
    st.builds(oracle.H, st.just("metadata"), st.sampled_from(["hold", "h*", "*", "?"]), key=st.just("legal")),
    st.builds(oracle.H, st.just("branch"), branch_patterns, days=st.integers(1, 6)),
)


def product_hold(number: int, hold: oracle.H, end: int | None) -> Hold:
    fields = {"id": f"h{number}", **WHOSE, "until": None if end is None else f"{moment(end):%Y-%m-%dT%H:%M:%SZ}"}
    if hold.kind in ("tag", "history"):
        return TagHold(tags=hold.pattern, history="true" if hold.kind == "history" else "false", **fields)
    if hold.kind == "metadata":
        return CommitHold(commits={hold.key: hold.pattern}, **fields)
    return BranchHold(branches=hold.pattern, days=str(hold.days), **fields)


@given(histories(), st.data())
@settings(patient, max_examples=300)
def test_each_hold_retains_exactly_the_commits_that_it_names(history: History, data: st.DataObject) -> None:
    """All holds together only add commits to those that the rules retain."""
    known = st.sampled_from(sorted(history.commits))
    tags = data.draw(st.dictionaries(st.sampled_from(TAGS), known))
    metadata = data.draw(st.dictionaries(known, st.fixed_dictionaries({}, optional={"legal": values, "who": values})))
    several = data.draw(st.lists(st.tuples(plain_holds, ends), min_size=1, max_size=3))
    commits = {commit.id: replace(commit, metadata=metadata.get(commit.id, {})) for commit in history.product_commits()}
    references = References([history.heads], set(tags.items()))
    holds = [product_hold(number, hold, end) for number, (hold, end) in enumerate(several)]

    on_hold = commits_on_hold(holds, commits, references, history.rules(), now=moment(history.now))
    judged = with_holds(history.verdicts().values(), on_hold)

    by_rules = oracle.retained(history.claims(), history.now)
    expected = {
        f"h{number}": oracle.commits_of_hold(
            hold._replace(until=oracle.FOR_EVER if end is None else end),
            history.commits,
            heads=history.heads,
            tags=tags,
            metadata=metadata,
            branch_days=history.branch_days,
            default_days=history.default_days,
            now=history.now,
        )
        for number, (hold, end) in enumerate(several)
    }
    for number, (hold, _) in enumerate(several):
        by_this_hold = {commit for commit, ids in on_hold.items() if f"h{number}" in ids}
        # a hold on branches also retains all commits that the rules retain, for whatever reason
        assert by_this_hold - by_rules == expected[f"h{number}"] - by_rules
        event(f"{hold.kind}: {'more than the rules' if by_this_hold - by_rules else 'nothing more'}")
    assert {verdict.commit_id for verdict in judged if verdict.retained} == by_rules.union(*expected.values())
    for verdict in judged:
        alone = {name for name, commits_held in expected.items() if verdict.commit_id in commits_held}
        assert verdict.hold == (None if verdict.commit_id in by_rules or not alone else ", ".join(sorted(alone)))
        assert (verdict.why is Reason.ON_HOLD) is (verdict.hold is not None)


def test_a_hold_covers_a_branch_that_only_one_of_two_readings_found() -> None:
    """The hold keeps the branch as that reading saw it."""
    commits = {name: oracle.C(parents, NOW - 10 * oracle.DAY) for name, parents in (("a", ()), ("b", ("a",)))}
    history = History(commits, {}, 1, {}, NOW)
    hold = BranchHold(id="dev", branches="dev", days="20", **WHOSE)
    graph = {commit.id: commit for commit in history.product_commits()}

    for readings in ([{"dev": "b"}, {}], [{}, {"dev": "b"}]):
        on_hold = commits_on_hold([hold], graph, References(readings), history.rules(), now=moment(NOW))
        assert on_hold == {"a": ("dev",), "b": ("dev",)}


def test_a_hold_ends_exactly_at_its_given_second() -> None:
    """The given time counts, not this machine's clock."""
    hold = TagHold(id="h", tags="*", until="2027-01-01T00:00:00Z", **WHOSE)
    graph = {commit.id: commit for commit in History({"a": oracle.C((), NOW)}, {}, 1, {}, NOW).product_commits()}

    def is_on_hold(now: datetime) -> bool:
        return bool(commits_on_hold([hold], graph, References([{}], {("t", "a")}), None, now=now))

    assert is_on_hold(datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC))
    assert not is_on_hold(datetime(2027, 1, 1, tzinfo=UTC))
