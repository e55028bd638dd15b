"""The commit graph, read from a dump of references and from commit logs. Every commit is verified against its id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from lakegc_assets.fsck.findings import Dependents, Finding, Problem, Report, problem_of, reason_of
from lakegc_assets.fsck.tables import read_tables, verified_bytes
from lakegc_assets.mark.context import Target
from spark_resources import sstable
from spark_resources.errors import DamagedData, Forbidden, LakegcError
from spark_resources.lakefs import LakeFS
from spark_resources.model import Commit

KNOWN_VERSIONS = (0, 1)
MAX_LOGGED_WITH_DUMP = 100_000  # commits: a hundred pages of the log
MAX_COMMITS_NAMED = 10
GRAPH_PERMISSIONS = "fs:ListBranches, fs:ListTags and fs:ListCommits"

_T = TypeVar("_T")


@dataclass(slots=True)
class Graph:
    """Commits by id, branch heads and tags. `is_complete` means that a dump listed all commits.

    `forged` are commits whose content doesn't match their id; `missing` are referenced commits that could not be
    fetched, each with the error. `dump_tables` are the ids of the dump's tables.
    """

    heads: Mapping[str, str]
    tags: Mapping[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    dump_tables: set[str] = field(default_factory=set)
    is_complete: bool = False
    forged: dict[str, str] = field(default_factory=dict)
    missing: dict[str, LakegcError] = field(default_factory=dict)
    retained: frozenset[str] = frozenset()
    _masks: dict[str, int] | None = None

    def add(self, commit: Commit) -> None:
        """Add a commit, and record it as forged if it doesn't match its id. A forged one never replaces a valid one."""
        why = why_forged(commit)
        if why is not None:
            self.forged.setdefault(commit.id, why)
            self.commits.setdefault(commit.id, commit)
        else:
            self.commits[commit.id] = commit

    def dependents(self, ids: Iterable[str]) -> Dependents:
        """The commits and branches that need the content of these commits."""
        commits = sorted(set(ids))
        heads = {branch for branch, head in self.heads.items() if head in set(commits)}
        return Dependents(
            commits=tuple(commits[:MAX_COMMITS_NAMED]),
            commit_count=len(commits),
            retained=sum(commit in self.retained for commit in commits),
            branches=tuple(sorted(heads)),
            history_of=tuple(branch for branch in self.branches_with(commits) if branch not in heads),
        )

    def branches_with(self, commits: Iterable[str]) -> list[str]:
        """The branches whose history contains one of these commits."""
        if self._masks is None:
            self._masks = branch_masks(self.commits, self.heads)
        mask = 0
        for commit in commits:
            mask |= self._masks.get(commit, 0)
        return [branch for position, branch in enumerate(sorted(self.heads)) if mask >> position & 1]


def read_graph(target: Target, lakefs: LakeFS, report: Report) -> Graph:
    """Read every available commit and verify each. Failures are recorded in the graph or the report."""
    repository = target.repository.id
    graph = Graph(lakefs.branches(repository))
    try:
        graph.tags = lakefs.tags(repository)
    except Forbidden as error:
        report.not_verified.append(f"Commits that only tags reach: {error}")
    for commit in read_dump(target, lakefs, graph, report):
        graph.add(commit)
    read_logs(repository, lakefs, graph, report)
    fetch_missing(repository, lakefs, graph)
    report.count({"commits": len(graph.commits) - len(graph.forged)})
    return graph


def report_commits(graph: Graph, report: Report) -> None:
    """Report forged and missing commits as findings, with the commits and branches that need them."""
    for commit_id, why in graph.forged.items():
        report.findings.append(Finding("commit", commit_id, Problem.DAMAGED, why, graph.dependents([commit_id])))
    for missing_id, error in graph.missing.items():
        dependents = graph.dependents(commit.id for commit in graph.commits.values() if missing_id in commit.parents)
        heads = tuple(sorted(branch for branch, head in graph.heads.items() if head == missing_id))
        history_of = sorted({*dependents.branches, *dependents.history_of} - {*heads})
        history_of += [f"tag {tag}" for tag, commit_id in sorted(graph.tags.items()) if commit_id == missing_id]
        needed_by = Dependents(
            dependents.commits, dependents.commit_count, dependents.retained, heads, tuple(history_of)
        )
        report.findings.append(Finding("commit", missing_id, problem_of(error), reason_of(error), needed_by))


# --- the dump -------------------------------------------------------------------------------------------------------


def read_dump(target: Target, lakefs: LakeFS, graph: Graph, report: Report) -> list[Commit]:
    """The commits in a dump of references, as far as its tables are intact; an empty list without a dump.

    Records in `graph.is_complete` whether all of them could be read, and failures in the report.
    """
    try:
        dump = lakefs.dump_refs(target.repository.id)
    except LakegcError as error:
        report.add_finding("dump of references", target.repository.id, error)
        return []
    if dump is None:
        report.not_verified.append(
            "Commits that no branch or tag reaches: these credentials aren't permitted to dump references, so commit "
            f"logs were read instead. Grant {GRAPH_PERMISSIONS}."
        )
        return []
    before = len(report.findings)
    commits = entries_of(target, dump.commits, "commit", sstable.read_commits, graph, report)
    graph.is_complete = len(report.findings) == before
    if not graph.is_complete:
        report.not_verified.append("Commits that no branch or tag reaches: the dump of references is damaged.")
    entries_of(target, dump.branches, "branch", sstable.read_branches, graph, report)
    entries_of(target, dump.tags, "tag", sstable.read_tags, graph, report)
    return commits


def entries_of(
    target: Target, dump: str, entity: str, read: Callable[..., list[_T]], graph: Graph, report: Report
) -> list[_T]:
    """The entries of one table of a dump and its parts, as far as they are intact. Failures are recorded in the report,
    and the ids of the tables in the graph."""
    entries: list[_T] = []
    parts: list[str] = []
    for table_id, data in read_tables(target.place, [dump] if dump else []):
        try:
            parts = [
                ref.id for ref in sstable.read_ranges(verified_bytes(table_id, data), name=table_id, entity=entity)
            ]
            report.count({"dump_tables": 1})
        except LakegcError as error:
            report.add_finding(f"dump of {entity} records", table_id, error)
    for table_id, data in read_tables(target.place, parts):
        try:
            entries.extend(read(verified_bytes(table_id, data), name=table_id))
            report.count({"dump_tables": 1})
        except LakegcError as error:
            report.add_finding(f"range of the dump of {entity} records", table_id, error)
    graph.dump_tables |= {dump, *parts} - {""}
    return entries


# --- commits --------------------------------------------------------------------------------------------------------


def why_forged(commit: Commit) -> str | None:
    """Why a commit doesn't match its id (formats §3) or can't be verified; None if it matches."""
    if commit.version not in KNOWN_VERSIONS:
        return f"it has version {commit.version}, which this version of lakegc doesn't support"
    try:
        actual_id = sstable.commit_id(commit)
    except (OverflowError, UnicodeEncodeError) as error:
        return f"it has a value that no commit can have ({error})"
    return None if actual_id == commit.id else f"forged or damaged (the id of its content is {actual_id})"


def read_logs(repository: str, lakefs: LakeFS, graph: Graph, report: Report) -> None:
    """Read commit logs from the server: at most MAX_LOGGED_WITH_DUMP commits if a dump listed all, otherwise all."""
    remaining = MAX_LOGGED_WITH_DUMP if graph.is_complete else None
    seen: set[str] = set()
    names = {commit: name for name, commit in [*graph.tags.items(), *graph.heads.items()]}
    for start, name in sorted(names.items()):
        if start in seen or remaining == 0:
            continue
        try:
            for commit in islice(lakefs.log(repository, start), remaining):
                remaining = None if remaining is None else remaining - 1
                seen.add(commit.id)
                graph.add(commit)
        except LakegcError as error:
            report.add_finding("commit log", name, error, graph.dependents([start]))
    report.count({"logged_commits": len(seen)})


def fetch_missing(repository: str, lakefs: LakeFS, graph: Graph) -> None:
    """Fetch every head, tagged commit and parent that isn't in the graph, and record those that can't be fetched."""
    wanted = {*graph.heads.values(), *graph.tags.values()}
    wanted |= {parent for commit in graph.commits.values() for parent in commit.parents}
    while missing := wanted - graph.commits.keys() - graph.missing.keys():
        wanted = set()
        for commit_id in sorted(missing):
            try:
                commit = lakefs.commit(repository, commit_id)
                if commit.id != commit_id:
                    raise DamagedData(f"the server returned commit {commit.id} instead")
                graph.add(commit)
                wanted |= set(commit.parents)
            except LakegcError as error:
                graph.missing[commit_id] = error


def branch_masks(commits: Mapping[str, Commit], heads: Mapping[str, str]) -> dict[str, int]:
    """For each commit, the branches that reach it, as a bit mask over the sorted branch names."""
    masks: dict[str, int] = dict.fromkeys(commits, 0)
    children_left = dict.fromkeys(commits, 0)  # the number of children not visited yet
    for position, branch in enumerate(sorted(heads)):
        masks[heads[branch]] = masks.get(heads[branch], 0) | 1 << position
    for commit in commits.values():
        for parent in commit.parents:
            children_left[parent] = children_left.get(parent, 0) + 1
    order = [commit_id for commit_id in commits if not children_left[commit_id]]
    for commit_id in order:  # grows during iteration; a cycle, possible only through damage, is left out
        for parent in commits[commit_id].parents if commit_id in commits else ():
            masks[parent] = masks.get(parent, 0) | masks[commit_id]
            children_left[parent] -= 1
            if not children_left[parent]:
                order.append(parent)
    return masks
