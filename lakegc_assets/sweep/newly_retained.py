"""Commits that are retained now but were not at the last re-verification (invariant 1; formats §6).

A new branch retains more than its head: the rule also retains the parents on its main line whose children are young. So
the rule is applied again, with the current branches, to the commit graph that the re-verification read and to the
commits made since the re-verification. A branch that only moved forward on its main line newly retains only its new
commits, because the rule was already applied to the rest of its line. Deleting a branch can retain more commits,
because the default rule then applies to them.

Commits that no branch reaches, such as those of a branch that was squashed into another one and deleted, appear in no
listing of branches, only in a dump of all commits.

Changed rules, changed holds and new tags covered by a hold may retain any commit, so they are left to the next
re-verification.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakegc_assets.mark.context import Graph, MarkRun
from lakegc_assets.mark.holds_in_force import tags_for_holds
from lakegc_assets.mark.retained_commits import unknown_ancestors
from lakegc_assets.rules.holds import References, commits_on_hold, tagged_commits
from lakegc_assets.rules.retention import commit_verdicts
from spark_resources.errors import LakegcError
from spark_resources.mark_store.holds import read_holds_of_any_version

MAX_COMMITS = 2_000  # newly retained commits per listing; reading their metaranges takes seconds


class TooManyChanges(LakegcError):
    """Raised when only a re-verification can find out what is live now."""


@dataclass(slots=True)
class NewlyRetained:
    """Finds the commits that are newly retained, listing by listing.

    `run` is the finished re-verification, `retained` are the commits that it retained and those found since, and
    `branches` are the heads to which the rule was last applied. `graph` has all known commits by id.
    """

    run: MarkRun
    retained: set[str]
    graph: Graph
    branches: Mapping[str, str]
    _new_commits: set[str] = field(default_factory=set)  # commits made since the re-verification
    _decided: set[str] = field(default_factory=set)  # those of `_new_commits` to which the rule was applied

    @classmethod
    def of(cls, run: MarkRun, retained: Iterable[str]) -> NewlyRetained:
        assert run.decided is not None, "retained_commits hasn't run"
        return cls(run, set(retained), dict(run.decided.commits), run.decided.branches)

    def refuse_changes(self) -> None:
        """Raise `TooManyChanges` if the rules or holds have changed since the re-verification, or if a hold covers a
        new tag."""
        run, decided = self.run, self.run.decided
        assert decided is not None
        repository, record = run.partition.repository, run.mark.record
        if run.lakefs.rules(repository) != record.rules:
            raise TooManyChanges(f"the retention rules of {repository} were changed")
        if read_holds_of_any_version(run.place, run.target.configured_holds).sha256 != record.holds["sha256"]:
            raise TooManyChanges(f"the holds of {repository} were changed")
        if tagged_commits(decided.holds, tags_for_holds(run, decided.holds) - decided.tags):
            raise TooManyChanges(f"a new tag of {repository} is covered by a hold")

    def commits(self, branches: Mapping[str, str]) -> set[str]:
        """The commits that these branches newly retain. Raises `TooManyChanges` if there are too many."""
        if not (changed := changed_branches(self.branches, branches)):
            return set()
        heads = {branches[branch] for branch in changed if branch in branches}
        self._read_unknown(changed, heads)
        newly_retained = heads | self._new_commits
        if not self._only_moved_forward(changed, branches):
            newly_retained |= self._retained_by(branches)
        return self._checked(newly_retained - self.retained, changes_in_words(changed))

    def commits_of(self, dumped: Graph) -> set[str]:
        """The commits that are newly retained according to a dump of all commits and the branches last recorded.
        Adds the new commits of the dump to the graph. Raises `TooManyChanges` if too many are newly retained."""
        new = dumped.keys() - self.graph.keys()
        self.graph |= {commit_id: dumped[commit_id] for commit_id in new}
        self._new_commits |= new
        if self._new_commits <= self._decided:
            return set()
        return self._checked(
            (self._new_commits | self._retained_by(self.branches)) - self.retained, "there are new commits"
        )

    def _checked(self, commits: set[str], cause: str) -> set[str]:
        if len(commits) > MAX_COMMITS:
            raise TooManyChanges(
                f"{cause}: {len(commits):,} more commits are retained, too many to read while deleting"
            )
        return commits

    def add(self, branches: Mapping[str, str], commits: Iterable[str]) -> None:
        """Record that the rule was applied to these branches and that these commits are retained. Call this only
        after the objects that the commits reach are kept."""
        self.branches = branches
        self.retained |= set(commits)
        self._decided |= self._new_commits

    def _read_unknown(self, changed: Sequence[str], heads: Iterable[str]) -> None:
        """Read the commits that these heads reach and that have not been read yet; they count as retained."""
        run, graph = self.run, Graph()
        for commit in unknown_ancestors(run.lakefs, run.partition.repository, self.graph, heads):
            graph[commit.id] = commit
            if len(graph) > MAX_COMMITS:
                raise TooManyChanges(
                    f"{changes_in_words(changed)}: there are more than {MAX_COMMITS:,} new commits, too many to read "
                    "while deleting"
                )
        self.graph |= graph
        self._new_commits |= graph.keys()

    def _only_moved_forward(self, changed: Sequence[str], branches: Mapping[str, str]) -> bool:
        """Whether these branches can't newly retain older commits: each moved forward on its main line by new
        commits, or was deleted and its rule had at least the default days; and there are no other new commits."""
        rules, forward = self.run.mark.record.rules, set[str]()
        for branch in changed:
            old_head, commit_id = self.branches.get(branch), branches.get(branch)
            if commit_id is None:
                if rules is not None and rules.days(branch) < rules.default_days:
                    return False
                continue
            while commit_id in self._new_commits and commit_id != old_head:
                forward.add(commit_id)
                commit_id = self.graph[commit_id].main_parent
            if commit_id is None or commit_id != old_head:
                return False
        return self._new_commits - self._decided <= forward

    def _retained_by(self, branches: Mapping[str, str]) -> set[str]:
        run = self.run
        assert run.decided is not None
        rules, now = run.mark.record.rules, run.mark.record.server_now
        verdicts = commit_verdicts(self.graph.values(), branches, rules, now=now)
        references = References([branches], run.decided.tags)
        on_hold = commits_on_hold(run.decided.holds, self.graph, references, rules, now=now)
        return {verdict.commit_id for verdict in verdicts if verdict.retained} | on_hold.keys()


def changed_branches(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """The branches that are new, moved or gone, in order."""
    return sorted({branch for branch, _ in before.items() ^ after.items()})


def changes_in_words(branches: Sequence[str]) -> str:
    """That these branches changed, as a clause for messages."""
    names = ", ".join(f"'{branch}'" for branch in branches[:3]) + (" …" if len(branches) > 3 else "")
    return f"{'branch' if len(branches) == 1 else 'branches'} {names} changed"
