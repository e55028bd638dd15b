"""`retained_commits`: the commits that the rules retain in the commit graph, those in the server's list, and all branch
heads (formats §6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lakegc_assets.formatting import is_or_are, plural
from lakegc_assets.mark import commit_graph, holds_in_force
from lakegc_assets.mark.context import DecidedCommits, Graph, MarkRun, StepNotes, step
from lakegc_assets.rules.holds import References, commits_on_hold, tagged_commits, with_holds
from lakegc_assets.rules.retention import Reason, Verdict, commit_verdicts, with_server_list
from spark_resources import sstable
from spark_resources.errors import DamagedData, NotFound, Refused
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.gc_lists import parse_commits_csv
from spark_resources.lakefs.ranges import read_table
from spark_resources.model import COMMIT_VERDICTS, HEADS, Commit, Scope
from spark_resources.spark.datasets import write_rows

ASSET = "retained_commits"
HEADS_PART = "heads"
KNOWN_VERSIONS = (0, 1)


def decide_commits(run: MarkRun) -> None:
    """Write a verdict on every known commit (COMMIT_VERDICTS), the heads of all branches (HEADS), and the commit graph.

    Branches are read before and after the server prepares its list, and every head found either time is retained
    (invariant 2). If holds refer to tags, the tags are read twice, too.
    """
    with step(run, ASSET) as notes:
        repository, rules = run.partition.repository, run.mark.record.rules
        check_rules(run)
        holds = holds_in_force.in_force(run)
        before, tags = run.lakefs.branches(repository), holds_in_force.tags_for_holds(run, holds)
        run.log_message("reading the commit graph")
        dumped = dumped_graph(run)
        refuse_without_graph(run, dumped)
        all_ranges = dumped is None and (rules is None or run.mark.record.scope is Scope.UNCOMMITTED)
        if not all_ranges:
            holds_in_force.refuse_unresolvable(run, holds, graph_known=dumped is not None)
        run.log_message("waiting for the server's list of retained commits")
        listed = server_list(run)
        after = run.lakefs.branches(repository)
        tags |= holds_in_force.tags_for_holds(run, holds)  # after the branches, to see a tag that replaced a branch
        named = {
            *before.values(),
            *after.values(),
            *tagged_commits(holds, tags),
            *(commit_id for commit_id, _ in listed or ()),
        }
        commits = complete_graph(run, dumped, named)
        verdicts = commit_verdicts(commits.values(), after, rules, now=run.mark.record.server_now)
        verdicts = with_server_list(verdicts, listed or [])
        verdicts = with_earlier_heads(verdicts, before, commits)
        on_hold = commits_on_hold(
            holds, commits, References((before, after), tags), rules, now=run.mark.record.server_now
        )
        verdicts = with_holds(verdicts, on_hold)
        run.decided = DecidedCommits(commits, holds, after, tags)
        write_verdicts(run, notes, verdicts)
        holds_in_force.write_tags(run, notes, tags)
        write_heads(run, notes, {*before.items(), *after.items()}, commits)
        commit_graph.write_graph(run, notes, commits)
        check_rules(run)
        holds_in_force.in_force(run)
        by_server = sum(1 for verdict in verdicts if verdict.why is Reason.SERVER)
        notes.facts |= {
            "commits": len(verdicts),
            "retained": sum(verdict.retained and verdict.hold is None for verdict in verdicts),
            "on_hold": sum(verdict.hold is not None for verdict in verdicts),
            "expired": sum(not verdict.retained for verdict in verdicts),
            "retained_by_server_only": by_server,
            "server_listed": None if listed is None else len(listed),
            "branches": len(after),
            "graph": dumped is not None,
            "all_ranges": all_ranges,
            "holds": [hold.id for hold in holds],
        }
        on_hold_count = notes.facts["on_hold"]
        also = f", and {on_hold_count:,} more {is_or_are(on_hold_count)} on hold" if on_hold_count else ""
        retained = notes.facts["retained"]
        run.log_message(f"{retained:,} of {plural(len(verdicts), 'commit')} {is_or_are(retained)} retained{also}")


def check_rules(run: MarkRun) -> None:
    """Raise `Refused` if the rules have changed since this mark began."""
    rules = run.lakefs.rules(run.partition.repository)
    if rules != run.mark.record.rules:
        raise Refused(
            f"the retention rules of {run.partition.repository} were changed while the repository was being marked. "
            "Make a new mark, so that it uses the new rules throughout.",
            invariant=7,
        )


def dumped_graph(run: MarkRun) -> Graph | None:
    """Every commit of the repository, from a dump of its references; None without permission to dump them.

    The dump's content hash and each commit's id are verified (formats §3).
    """
    dump = run.lakefs.dump_refs(run.partition.repository)
    if dump is None:
        return None
    graph: Graph = {}
    for ref in sstable.read_ranges(verified_table(run, dump.commits), name=dump.commits, entity="commit"):
        for commit in sstable.read_commits(verified_table(run, ref.id), name=ref.id):
            graph[commit.id] = verified_commit(commit)
    return graph


def refuse_without_graph(run: MarkRun, dumped: Graph | None) -> None:
    if dumped is None and run.mark.record.scope is Scope.COMMITTED:
        raise Refused(
            f"the scope 'committed' needs the commit graph of {run.partition.repository}, since only the graph "
            "contains expired commits, but these credentials have no permission to dump references. Allow "
            "fs:ListBranches, fs:ListTags and fs:ListCommits, or use the scope 'unified'."
        )


def verified_table(run: MarkRun, table_id: str) -> bytes:
    data = read_table(run.place, table_id, referrer="the dump of references")
    sstable.verify_table(data, name=table_id)
    return data


def verified_commit(commit: Commit) -> Commit:
    """The commit itself. Raises `DamagedData` if its version is unknown or it doesn't match its id (formats §3)."""
    if commit.version not in KNOWN_VERSIONS:
        raise DamagedData(
            f"commit {commit.id} has version {commit.version}, which this version of lakegc doesn't support. Update "
            "lakegc."
        )
    if sstable.commit_id(commit) != commit.id:
        raise DamagedData(
            f"the content of commit {commit.id} doesn't match its id: it was altered or damaged. Garbage can't be "
            "determined from such a commit graph: run 'lakegc fsck' on the repository."
        )
    return commit


def complete_graph(run: MarkRun, dumped: Graph | None, named: set[str]) -> Graph:
    """The dumped graph, completed with the named commits (heads, commits of tags covered by a hold, and those that the
    server lists as retained) and with all ancestors that the dump lacks.

    Without a dump, the graph has only the named commits and their ancestors. Dangling commits are then retained only if
    the server lists them. The rule is still applied to their ancestors, since the server's list can lack those (formats
    §6).
    """
    repository = run.partition.repository
    if dumped is None:
        graph: Graph = {}
        for commit_id in sorted(named):
            if commit_id not in graph:
                graph |= {commit.id: verified_commit(commit) for commit in run.lakefs.log(repository, commit_id)}
        return graph
    graph = dict(dumped)
    starts = named | {parent for commit in graph.values() for parent in commit.parents}
    return graph | {commit.id: commit for commit in unknown_ancestors(run.lakefs, repository, dumped, starts)}


def unknown_ancestors(lakefs: LakeFS, repository: str, known: Graph, starts: Iterable[str]) -> Iterator[Commit]:
    """Read these commits and their ancestors, along all parents, up to those that are already known. Raises
    `DamagedData` like `verified_commit`, and the errors of requests."""
    waiting, visited = sorted(set(starts)), set[str]()
    while waiting:
        commit_id = waiting.pop()
        if commit_id not in known and commit_id not in visited:
            commit = verified_commit(lakefs.commit(repository, commit_id))
            visited.add(commit_id)
            waiting.extend(commit.parents)
            yield commit


def server_list(run: MarkRun) -> list[tuple[str, str]] | None:
    """The commits that the server retains, with their metaranges; None for a repository without rules.

    Raises `Refused` if rules were set or removed since the mark began, `DamagedData` if the list is missing or empty.
    """
    location = run.lakefs.prepare_commits(run.partition.repository)
    rules = run.mark.record.rules
    if (location is None) != (rules is None):
        raise Refused(
            f"according to the server, {run.partition.repository} has {'no ' if location is None else ''}retention "
            "rules, unlike when this mark began. Make a new mark.",
            invariant=7,
        )
    if location is None:
        return None
    key = run.place.namespace.key(location)
    try:
        data = run.store.read(key)
    except NotFound as error:
        raise DamagedData(
            f"the server reported its list of retained commits at {location}, but no such file exists, so retained "
            "commits can't be determined. Check that lakegc and the server use the same store, and run the same "
            "command again.",
            invariant=3,
        ) from error
    listed = parse_commits_csv(data, where=location)
    if not listed:
        raise DamagedData(
            f"the list of retained commits at {location} is empty, but every repository has a branch head. Run "
            "the same command again.",
            invariant=3,
        )
    return listed


def head_verdict(commit: Commit, branch: str) -> Verdict:
    return Verdict(
        commit.id, True, Reason.HEAD, branch, None, None, commit.metarange_id, commit.created, commit.message
    )


def with_earlier_heads(verdicts: list[Verdict], before: Mapping[str, str], commits: Graph) -> list[Verdict]:
    """Retain every head that was read before the server prepared its list, even if its branch has moved or been
    deleted since."""
    by_id = {verdict.commit_id: verdict for verdict in verdicts}
    for branch, head in sorted(before.items()):
        if head not in by_id or not by_id[head].retained:
            listed = head in by_id and by_id[head].server_listed
            by_id[head] = replace(head_verdict(commits[head], branch), server_listed=listed)
    return sorted(by_id.values(), key=lambda verdict: verdict.commit_id)


def write_verdicts(run: MarkRun, notes: StepNotes, verdicts: list[Verdict]) -> None:
    rows = [
        {
            "commit_id": verdict.commit_id,
            "retained": verdict.retained,
            "reason": verdict.why.value,
            "branch": verdict.branch,
            "days": verdict.days,
            "until": verdict.until,
            "created": verdict.created,
            "message": verdict.message,
            "metarange_id": verdict.metarange_id,
            "server_listed": verdict.server_listed,
            "hold": verdict.hold,
        }
        for verdict in verdicts
    ]
    folder = run.mark.folder(ASSET)
    notes.add_dataset(write_rows(run.place, folder, rows, COMMIT_VERDICTS))


def write_heads(run: MarkRun, notes: StepNotes, heads: set[tuple[str, str]], commits: Graph) -> None:
    rows = [
        {"branch": branch, "commit_id": head, "metarange_id": commits[head].metarange_id}
        for branch, head in sorted(heads)
    ]
    folder = run.mark.folder(ASSET, HEADS_PART)
    notes.add_dataset(write_rows(run.place, folder, rows, HEADS), HEADS_PART)
