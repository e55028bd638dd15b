"""Commits that are retained now and were not at the last re-verification (invariant 1; formats §6).

A new branch retains more than its head: by the rule, also the parents on its main line whose children are young. So the
rule is applied again, with the current branches, to the commit graph that the re-verification read and the commits made
since. A branch that only moved forward on its main line retains nothing but its new commits: its line was decided on
before. Deleting a branch can retain more, because the default rule then applies to its commits.

Commits that no branch reaches, such as those of a branch that was squashed into another one and deleted, appear in no
listing of branches, only in a dump of all commits.

Changed rules, changed holds and new tags on hold may retain anything. They are left to the next re-verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakegc_assets.mark.context import Graph, MarkRun
from lakegc_assets.mark.holds_in_force import tags_seen
from lakegc_assets.mark.retained_commits import unknown_ancestors
from lakegc_assets.rules.holds import References, commits_on_hold, tagged_commits
from lakegc_assets.rules.retention import retained_commits
from spark_resources.errors import LakegcError
from spark_resources.mark_store.holds import read_recorded_holds

MOST_COMMITS = 2_000  # newly retained ones per listing: reading their metaranges takes seconds


class TooMuchChanged(LakegcError):
    """Raised when only a re-verification can find out what is live now."""


@dataclass(slots=True)
class NewlyRetained:
    """The commits that were not retained before, listing by listing.

    `run` is the finished re-verification, `retained` the commits that it retained and those found since, `branches` the
    heads decided on last.
    """

    run: MarkRun
    retained: set[str]
    graph: Graph
    branches: Mapping[str, str]
    _since: set[str] = field(default_factory=set)
    _decided: set[str] = field(default_factory=set)  # those of them that the rule decided on

    @classmethod
    def of(cls, run: MarkRun, retained: Iterable[str]) -> NewlyRetained:
        assert run.decided is not None, "retained_commits was read"
        return cls(run, set(retained), dict(run.decided.commits), run.decided.branches)

    def refuse_changes(self) -> None:
        """Raise `TooMuchChanged` if the rules or holds changed since, or a hold names a new tag."""
        run, decided = self.run, self.run.decided
        assert decided is not None
        repository, record = run.partition.repository, run.mark.record
        if run.lakefs.rules(repository) != record.rules:
            raise TooMuchChanged(f"the retention rules of {repository} were changed")
        if read_recorded_holds(run.place).sha256 != record.holds["sha256"]:
            raise TooMuchChanged(f"the holds of {repository} were changed")
        if tagged_commits(decided.holds, tags_seen(run, decided.holds) - decided.tags):
            raise TooMuchChanged(f"a hold of {repository} names a new tag")

    def commits(self, branches: Mapping[str, str]) -> set[str]:
        """The commits that these branches retain and that were not retained before. Raises `TooMuchChanged` if there
        are too many."""
        if not (changed := changed_branches(self.branches, branches)):
            return set()
        heads = {branches[one] for one in changed if one in branches}
        self._read_unknown(changed, heads)
        found = heads | self._since
        if not self._only_moved_forward(changed, branches):
            found |= self._retained_by(branches)
        return self._checked(found - self.retained, names_of(changed))

    def commits_of(self, dumped: Graph) -> set[str]:
        """The same for a dump of all commits, with the branches decided on last."""
        new = dumped.keys() - self.graph.keys()
        self.graph |= {one: dumped[one] for one in new}
        self._since |= new
        if self._since <= self._decided:
            return set()
        return self._checked((self._since | self._retained_by(self.branches)) - self.retained, "new commits")

    def _checked(self, found: set[str], what: str) -> set[str]:
        if len(found) > MOST_COMMITS:
            raise TooMuchChanged(f"{what} retain {len(found):,} more commits")
        return found

    def add(self, branches: Mapping[str, str], commits: Iterable[str]) -> None:
        """Record these as decided on and retained, once the objects that they reach are kept."""
        self.branches = branches
        self.retained |= set(commits)
        self._decided |= self._since

    def _read_unknown(self, changed: Sequence[str], heads: Iterable[str]) -> None:
        """Read the commits that these heads reach and that have not been read; they count as retained."""
        run, read = self.run, Graph()
        for commit in unknown_ancestors(run.lakefs, run.partition.repository, self.graph, heads):
            read[commit.id] = commit
            if len(read) > MOST_COMMITS:
                raise TooMuchChanged(
                    f"{names_of(changed)} reach more than {MOST_COMMITS} commits that have not been read"
                )
        self.graph |= read
        self._since |= read.keys()

    def _only_moved_forward(self, changed: Sequence[str], branches: Mapping[str, str]) -> bool:
        """Whether these branches can't retain older commits: each moved forward on its main line by commits made since,
        and no others were made; or it was deleted, and had a rule of at least the default days."""
        rules, forward = self.run.mark.record.rules, set[str]()
        for branch in changed:
            before, one = self.branches.get(branch), branches.get(branch)
            if one is None:
                if rules is not None and rules.days(branch) < rules.default_days:
                    return False
                continue
            while one in self._since and one != before:
                forward.add(one)
                one = self.graph[one].main_parent
            if one is None or one != before:
                return False
        return self._since - self._decided <= forward

    def _retained_by(self, branches: Mapping[str, str]) -> set[str]:
        run = self.run
        assert run.decided is not None
        rules, now = run.mark.record.rules, run.mark.record.server_now
        verdicts = retained_commits(self.graph.values(), branches, rules, now=now)
        seen = References([branches], run.decided.tags)
        on_hold = commits_on_hold(run.decided.holds, self.graph, seen, rules, now=now)
        return {one.commit_id for one in verdicts if one.retained} | on_hold.keys()


def changed_branches(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The branches that are new, moved or gone, in order."""
    return sorted({branch for branch, _ in before.items() ^ after.items()})


def names_of(branches: Sequence[str]) -> str:
    return "changed branches " + ", ".join(f"'{one}'" for one in branches[:3]) + (" …" if len(branches) > 3 else "")
