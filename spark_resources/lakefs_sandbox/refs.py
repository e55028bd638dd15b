"""References and the commit graph: branches, tags, ref resolution, logs and merge bases."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_resources.lakefs_sandbox.errors import Problem, bad_request, conflict, forbidden, not_found, read_only
from spark_resources.lakefs_sandbox.state import BranchRecord, RepositoryRecord, State
from spark_resources.model import Commit

_BRANCH = re.compile(r"\w[-\w]*", re.ASCII)
_REF = re.compile(r"[^\s]+")
_HASH = re.compile(r"[0-9a-fA-F]{1,64}")
_REF_WITH_MODIFIERS = re.compile(r"([^~^@$]+)((?:[~^]\d*)*|@|\$)")
_STEP = re.compile(r"([~^])(\d*)")
_INVALID_TAG = re.compile(r"[\x00-\x20^:?*\[\\/]|\.\.|@\{|\.$|\.lock$|^@$")


@dataclass(frozen=True, slots=True)
class ResolvedRef:
    """A commit, and the branch with the staged entries that override it.

    `branch` is None if the ref isn't a branch or excludes staged entries.
    """

    commit: Commit
    branch: str | None = None


class References:
    """Branches, tags and commits of one repository. Methods raise `Problem` with the server's status."""

    def __init__(self, state: State, record: RepositoryRecord) -> None:
        self._state = state
        self.record = record
        self.id = record.id

    # --- resolving --------------------------------------------------------------------------------------------------

    def commit_of(self, commit_id: str) -> Commit:
        commit = self._state.commit(self.id, commit_id)
        if commit is None:
            raise not_found("commit")
        return commit

    def branch(self, branch: str) -> BranchRecord:
        record = self._state.branch(self.id, branch)
        if record is None:
            raise not_found("branch")
        return record

    def resolve(self, ref: str) -> ResolvedRef:
        """Resolve a branch, tag, commit id or id prefix, with git's modifiers `~` and `^`, or lakeFS's `@` and `$`.

        `@` excludes staged entries; `$` includes them, as a branch without a modifier does.
        """
        if not _REF.fullmatch(ref):
            raise bad_request("argument ref: ref: invalid value: validation error")
        parts = _REF_WITH_MODIFIERS.fullmatch(ref)
        if parts is None:
            raise bad_request(f"{ref}: ref: invalid value: validation error")
        base, modifiers = parts.groups()
        resolved = self._resolve_name(base)
        if modifiers in ("", "$"):
            return resolved
        if modifiers == "@":
            return ResolvedRef(resolved.commit)
        return ResolvedRef(self._follow_modifiers(resolved.commit, modifiers))

    def _resolve_name(self, name: str) -> ResolvedRef:
        if len(name) == 64 and (commit := self._state.commit(self.id, name)):
            return ResolvedRef(commit)
        if branch := self._state.branch(self.id, name):
            return ResolvedRef(self.commit_of(branch.commit_id), branch.id)
        if commit_id := self._state.tag(self.id, name):
            return ResolvedRef(self.commit_of(commit_id))
        if _HASH.fullmatch(name):
            commits = self._state.commits_with_prefix(self.id, name)
            if len(commits) == 1:
                return ResolvedRef(commits[0])
        raise not_found()

    def _follow_modifiers(self, commit: Commit, modifiers: str) -> Commit:
        for kind, number in _STEP.findall(modifiers):
            count = int(number or 1)
            if kind == "^":
                if count > len(commit.parents):
                    raise bad_request("ref: invalid value: validation error")
                commit = self.commit_of(commit.parents[count - 1]) if count else commit
                continue
            for _ in range(count):
                if not commit.parents:
                    raise not_found()
                commit = self.commit_of(commit.parents[0])
        return commit

    # --- branches and tags ------------------------------------------------------------------------------------------

    def branches(self, *, include_hidden: bool = False) -> list[BranchRecord]:
        """The branches, sorted by name; hidden ones only on request."""
        return [branch for branch in self._state.branches(self.id) if include_hidden or not branch.hidden]

    def create_branch(self, name: str, source: str, *, hidden: bool = False) -> str:
        """Create a branch. Returns the id of its head commit."""
        self.check_writable()
        if not _BRANCH.fullmatch(name):
            raise bad_request(
                "argument branch: branch id: invalid value: validation error: branch id must consist of letters, "
                "digits, underscores and dashes, and cannot start with a dash"
            )
        with self._state.write_transaction():
            if self._state.tag(self.id, name) is not None:
                raise conflict(f"tag ID {name}: conflict found")
            try:
                commit = self.resolve(source).commit
            except Problem as problem:
                raise Problem(problem.status, f"source reference '{source}': {problem.message}") from None
            if self._state.branch(self.id, name) is not None:
                raise conflict("branch already exists: not unique")
            self._state.put_branch(self.id, BranchRecord(name, commit.id, hidden))
        return commit.id

    def delete_branch(self, name: str) -> None:
        self.check_writable()
        if name == self.record.default_branch:
            raise forbidden("cannot delete repository default branch")
        with self._state.write_transaction():
            self.branch(name)
            self._state.drop_branch(self.id, name)

    def tags(self) -> list[tuple[str, str]]:
        """The tags, sorted by name, each with its commit id."""
        return self._state.tags(self.id)

    def tag(self, name: str) -> str:
        """The commit id of a tag."""
        commit_id = self._state.tag(self.id, name)
        if commit_id is None:
            raise not_found("tag")
        return commit_id

    def create_tag(self, name: str, ref: str) -> str:
        """Create a tag. Returns the id of its commit."""
        self.check_writable()
        if not name or _INVALID_TAG.search(name):
            raise bad_request("argument tagID: tag id: invalid value: validation error")
        with self._state.write_transaction():
            if self._state.branch(self.id, name) is not None:
                raise conflict(f"branch name {name}: conflict found")
            commit_id = self.resolve(ref).commit.id
            if self._state.tag(self.id, name) is not None:
                raise conflict("tag already exists: not unique")
            self._state.put_tag(self.id, name, commit_id)
        return commit_id

    def delete_tag(self, name: str) -> None:
        self.check_writable()
        if not self._state.drop_tag(self.id, name):
            raise not_found("tag")

    def check_writable(self) -> None:
        if self.record.read_only:
            raise read_only()

    # --- the graph --------------------------------------------------------------------------------------------------

    def commits(self) -> list[Commit]:
        """Every commit, reachable or not, sorted by id."""
        return self._state.commits(self.id)

    def log(self, ref: str, *, first_parent: bool = False) -> Iterator[Commit]:
        """The commits reachable from a ref: newest date first, then greatest id first."""
        start = self.resolve(ref).commit
        queue = [_NewestFirst(start)]
        seen = {start.id}
        while queue:
            commit = heapq.heappop(queue).commit
            yield commit
            for parent in commit.parents[:1] if first_parent else commit.parents:
                if parent not in seen:
                    seen.add(parent)
                    heapq.heappush(queue, _NewestFirst(self.commit_of(parent)))

    def merge_base(self, left: Commit, right: Commit) -> Commit:
        """The merge base of two commits of this repository. Raises `Problem` 400 if there is none."""
        return merge_base(left, right, self.commit_of)


@dataclass(frozen=True, slots=True)
class _NewestFirst:
    commit: Commit

    def __lt__(self, other: _NewestFirst) -> bool:
        return (self.commit.created, self.commit.id) > (other.commit.created, other.commit.id)


def merge_base(left: Commit, right: Commit, commit_of: Callable[[str], Commit]) -> Commit:
    """The first common ancestor found, from the highest generation down. Raises `Problem` 400 if there is none."""
    if left.id == right.id:
        return left
    reached = {left.id: {"left"}, right.id: {"right"}}
    queue = [(-commit.generation, commit.id) for commit in (left, right)]
    heapq.heapify(queue)
    while queue:
        _, commit_id = heapq.heappop(queue)
        for parent in commit_of(commit_id).parents:
            if parent not in reached:
                reached[parent] = set()
                heapq.heappush(queue, (-commit_of(parent).generation, parent))
            reached[parent] |= reached[commit_id]
            if len(reached[parent]) == 2:
                return commit_of(parent)
    raise bad_request("no merge base")
