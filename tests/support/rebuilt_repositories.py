"""A recorded history rebuilt in a sandbox from its commits, tables, listing and served paths.

The operations themselves were not recorded (formats §7). Objects are written in the order of the listing, which is that
of their uploads, and each commit is made once its own objects exist. All other objects are staged; those that no branch
serves are then overwritten or reset.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.state import StagedEntry
from spark_resources.model import AddressType, Commit, Rules
from spark_resources.sstable import Entry, RangeRef, Record, read_branches, read_commits, read_ranges, read_records
from spark_resources.sstable.values import EntryMessage
from tests.support.replay_server import Recording

_STRATEGY = ".lakefs.merge.strategy"
_REVERT = re.compile(r"Revert ([0-9a-f]{64})")
Content = Mapping[bytes, Entry]


@dataclass(frozen=True)
class History:
    """The history of a recorded repository, as far as the recording shows it."""

    recording: Recording

    @cached_property
    def commits(self) -> dict[str, Commit]:
        return {commit.id: commit for commit in self._dumped("commit", read_commits)}

    @cached_property
    def heads(self) -> dict[str, str]:
        return {branch.id: branch.commit_id for branch in self._dumped("branch", read_branches)}

    @cached_property
    def rules(self) -> Rules | None:
        recorded = self.recording.meta["rules"]
        if recorded is None:
            return None
        return Rules(
            recorded["default_retention_days"],
            {r["branch_id"]: r["retention_days"] for r in recorded["branches"]},
        )

    @cached_property
    def values(self) -> dict[str, dict[bytes, bytes]]:
        """Every commit's values by path, as stored in the tables."""
        return {
            commit.id: {record.key: record.value for record in self._records(commit)}
            for commit in self.commits.values()
        }

    @cached_property
    def contents(self) -> dict[str, Content]:
        """Every commit's entries by path. Times are truncated to microseconds."""
        return {
            commit: {path: EntryMessage(value).to_entry(path) for path, value in values.items()}
            for commit, values in self.values.items()
        }

    @cached_property
    def branch_of(self) -> dict[str, str]:
        """The branch on which each commit was made. The branch may have been deleted since."""
        main = str(self.recording.api("repository")["body"]["default_branch"])
        parents = {commit.main_parent for commit in self.commits.values()} | set(self.heads.values())
        ends = sorted(self.heads.items(), key=lambda item: (item[0] != main, item[0]))
        ends += [(f"gone-{commit[:8]}", commit) for commit in sorted(set(self.commits) - parents)]
        branches: dict[str, str] = {}
        for branch, end in ends:
            commit: str | None = end
            while commit is not None and commit not in branches:
                branches[commit] = branch
                commit = self.commits[commit].main_parent
        return branches

    def parent_content(self, commit: Commit) -> Content:
        return self.contents[commit.main_parent] if commit.main_parent else {}

    @cached_property
    def own_objects(self) -> dict[str, list[Entry]]:
        """The entries that each commit adds to its main parent, in the order of uploads. A merge adds none."""
        return {
            commit.id: []
            if len(commit.parents) > 1
            else sorted(
                (e for path, e in self.contents[commit.id].items() if self.parent_content(commit).get(path) != e),
                key=lambda entry: entry.address,
            )
            for commit in self.commits.values()
        }

    @cached_property
    def served(self) -> dict[str, list[dict[str, Any]]]:
        """The objects that each branch serves, if they were recorded."""
        recorded = self.recording.api("objects_served_by_branches")
        return dict(recorded["objects"]) if recorded else {}

    @cached_property
    def stored(self) -> dict[str, datetime]:
        """When each object was stored, according to the recorded listing."""
        with (self.recording.path / "listing.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return {row["key"]: datetime.fromtimestamp(int(row["last_modified_ms"]) / 1000, UTC) for row in rows}

    def _dumped(self, entity: str, read: Callable[..., Any]) -> Iterator[Any]:
        name = {"commit": "commits_meta_range_id", "branch": "branches_meta_range_id"}[entity]
        dump = self.recording.api("refs_dump")["body"][name]
        for part in read_ranges(self._table(dump), name=dump, entity=entity):
            yield from read(self._table(part.id), name=part.id)

    def ranges(self, commit: Commit) -> list[RangeRef]:
        if not commit.metarange_id:
            return []
        return read_ranges(self._table(commit.metarange_id), name=commit.metarange_id)

    def _records(self, commit: Commit) -> Iterator[Record]:
        for part in self.ranges(commit):
            yield from read_records(self._table(part.id), name=part.id)

    def _table(self, table_id: str) -> bytes:
        return self.recording.recorded_bytes(f"_lakefs/{table_id}")


class _Staged(NamedTuple):
    """An object that no commit refers to: where it was staged, and whether it is still staged."""

    branch: str
    path: str
    key: str
    stays: bool


class Event(NamedTuple):
    """One operation. Operations are run in the order of these tuples."""

    upload: str
    is_commit: bool
    generation: int
    subject: str  # the commit's id, or the object's key


@dataclass
class Rebuilt:
    """The repository in the sandbox, and the new address or commit id of each recorded one."""

    history: History
    lake: SandboxRepository
    addresses: dict[str, str] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)


def rebuild(history: History, sandbox: Sandbox, *, uploading: bool) -> Rebuilt:
    """Rebuild the history. With `uploading`, objects are uploaded at the recorded times and get new addresses. Without
    it, the recorded entries are staged unchanged, so that the inputs of commits are identical."""
    return _Rebuilding(history, sandbox, uploading, with_staged=True).run()


def rebuild_commits(history: History, sandbox: Sandbox) -> Rebuilt:
    """Rebuild only the commits, from the recorded entries. This is for recordings that don't show what else was
    staged."""
    return _Rebuilding(history, sandbox, uploading=False, with_staged=False).run()


class _Rebuilding:
    def __init__(self, history: History, sandbox: Sandbox, uploading: bool, with_staged: bool) -> None:
        self.history = history
        self.sandbox = sandbox
        self.uploading = uploading
        first = next(commit for commit in history.commits.values() if not commit.parents)
        self._set_clock(first.created)
        default = history.recording.api("repository")["body"]["default_branch"]
        lake = sandbox.create(history.recording.repository, default_branch=default)
        self.made = Rebuilt(history, lake, commits={first.id: lake.branch(default).commit_id})
        self.staged = {entry.key: entry for entry in self._never_committed()} if with_staged else {}

    def run(self) -> Rebuilt:
        for event in self._events():
            if event.is_commit:
                self._commit(self.history.commits[event.subject])
            elif event.subject in self.staged:
                self._stage(self.staged[event.subject])
        self._finish()
        return self.made

    def _set_clock(self, moment: datetime) -> None:
        self.sandbox.set_clock(moment.replace(microsecond=0))

    def _events(self) -> list[Event]:
        """The operations: commits follow their parents and their own objects, and other objects come in the order of
        uploads."""
        position: dict[str, str] = {}
        events = []
        for commit in sorted(self.history.commits.values(), key=lambda commit: commit.generation):
            own = [_upload(entry.address) for entry in self.history.own_objects[commit.id]]
            position[commit.id] = max([*own, *(position[parent] for parent in commit.parents)], default="")
            if commit.parents:
                events.append(Event(position[commit.id], True, commit.generation, commit.id))
        events += [Event(_upload(key), False, 0, key) for key in self.staged]
        return sorted(events)

    def _branch_at(self, branch: str, commit: str) -> None:
        """Create a branch if it doesn't exist yet."""
        if branch not in {listed.id for listed in self.made.lake.branches(include_hidden=True)}:
            self.made.lake.create_branch(branch, self.made.commits[commit])

    # --- commits ----------------------------------------------------------------------------------------------------

    def _commit(self, commit: Commit) -> None:
        lake, branch = self.made.lake, self.history.branch_of[commit.id]
        assert commit.main_parent is not None
        self._branch_at(branch, commit.main_parent)
        assert lake.branch(branch).commit_id == self.made.commits[commit.main_parent]
        commit_id = self._merge(commit, branch) if len(commit.parents) > 1 else self._plain(commit, branch)
        self.made.commits[commit.id] = commit_id.id

    def _merge(self, commit: Commit, branch: str) -> Commit:
        strategy = commit.metadata[_STRATEGY]
        self._set_clock(commit.created)
        return self.made.lake.merge(
            self.made.commits[commit.parents[1]], branch, message=commit.message, allow_empty=True,
            strategy="" if strategy == "default" else strategy,
        )  # fmt: skip

    def _plain(self, commit: Commit, branch: str) -> Commit:
        lake = self.made.lake
        if reverted := _REVERT.fullmatch(commit.message):
            self._set_clock(commit.created)
            undone = self.made.commits[reverted[1]]
            return lake.revert(branch, undone, message=commit.message, allow_empty=True)
        before, after = self.history.parent_content(commit), self.history.contents[commit.id]
        for entry in self.history.own_objects[commit.id]:
            self._stage_entry(branch, entry, self.history.values[commit.id][entry.path])
        lake.delete(branch, [path.decode() for path in before.keys() - after.keys()])
        return lake.commit(
            branch, commit.message, metadata=commit.metadata, date=commit.created, allow_empty=True,
            committer=commit.committer,
        )  # fmt: skip

    def _stage_entry(self, branch: str, entry: Entry, value: bytes) -> None:
        if not self.uploading or entry.address_type is not AddressType.RELATIVE:
            self.made.lake.stage_values(branch, [StagedEntry(entry.path, value)])
            self.made.addresses[entry.address] = entry.address
            return
        assert entry.last_modified is not None
        self._put(branch, entry.path.decode(), entry.address, entry.last_modified, entry.content_type)

    # --- staged objects --------------------------------------------------------------------------------------------

    def _never_committed(self) -> Iterator[_Staged]:
        """Objects that no commit refers to, in the order of uploads. Each is served by a branch or garbage."""
        committed = {entry.address for content in self.history.contents.values() for entry in content.values()}
        root = f"{self.history.recording.namespace.uri}/"
        served = {
            entry["physical_address"].removeprefix(root): (branch, str(entry["path"]))
            for branch, objects in self.history.served.items()
            for entry in objects
        }
        listed = sorted(self.history.recording.listing, key=_upload)
        rest = [key for key in listed if key.startswith("data/") and key not in committed]
        staged = {place: key for key, place in served.items() if key in rest}
        for key in rest:
            if key in served:
                yield _Staged(*served[key], key, stays=True)
            else:
                yield _Staged(*self._place_of_garbage(key, staged), key, stays=False)

    def _place_of_garbage(self, key: str, staged: Mapping[tuple[str, str], str]) -> tuple[str, str]:
        """Where an object may have been staged: at a path with its content, on the branch that overwrote it there or,
        if it was reset, on one that serves the committed object."""
        checksum = hashlib.md5(self.history.recording.recorded_bytes(key), usedforsecurity=False).hexdigest()
        places = [
            (branch, str(entry["path"]))
            for branch, objects in sorted(self.history.served.items())
            for entry in objects
            if self._has_content(str(entry["path"]), checksum)
        ]
        overwritten = [place for place in places if place in staged and _upload(staged[place]) > _upload(key)]
        return min(overwritten or [place for place in places if place not in staged], key=lambda p: staged.get(p, ""))

    def _has_content(self, path: str, checksum: str) -> bool:
        entries = [content.get(path.encode()) for content in self.history.contents.values()]
        return any(entry is not None and entry.checksum == checksum for entry in entries)

    def _stage(self, staged: _Staged) -> None:
        lake = self.made.lake
        self._branch_at(staged.branch, self.history.heads[staged.branch])
        seconds = self.history.stored[staged.key]
        if self.uploading:
            self._put(staged.branch, staged.path, staged.key, seconds, "application/octet-stream")
        else:
            data = self.history.recording.recorded_bytes(staged.key)
            lake.stage(staged.branch, [Entry(
                path=staged.path.encode(), address=staged.key, size=len(data), last_modified=seconds,
                checksum=hashlib.md5(data, usedforsecurity=False).hexdigest(), content_type="application/octet-stream",
            )])  # fmt: skip
            self.made.addresses[staged.key] = staged.key
        if not staged.stays and not self._is_overwritten(staged):
            lake.delete(staged.branch, [staged.path])
            lake.reset_path(staged.branch, staged.path)

    def _is_overwritten(self, staged: _Staged) -> bool:
        return any(
            (other.branch, other.path) == (staged.branch, staged.path) and _upload(other.key) > _upload(staged.key)
            for other in self.staged.values()
        )

    def _put(self, branch: str, path: str, key: str, moment: datetime, content_type: str) -> None:
        self._set_clock(moment)
        entry = self.made.lake.put(branch, path, self._bytes[key], content_type=content_type)
        self.made.addresses[key] = entry.address

    @cached_property
    def _bytes(self) -> dict[str, bytes]:
        return dict(self.history.recording.objects())

    # --- the end ----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Create the branches without their own commits, delete those that were deleted, and set the rules and the
        clock."""
        lake = self.made.lake
        for branch, head in self.history.heads.items():
            self._branch_at(branch, head)
        for branch in {listed.id for listed in lake.branches(include_hidden=True)} - set(self.history.heads):
            lake.delete_branch(branch)
        if self.history.rules is not None:
            set_rules(lake, self.history.rules)
        self.sandbox.set_clock(self.history.recording.recorded_at)


def _upload(key: str) -> str:
    """The object's own name, which sorts in the order of uploads."""
    return key.rsplit("/", 1)[-1]
