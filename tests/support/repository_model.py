"""A model of a repository in the sandbox: what branches serve, which commits are retained, and which objects are
garbage.

The model has its own state: what each branch serves, and the entries, parents and date of each commit. Each operation
changes this state as lakeFS promises. Only the content of a merge, revert, cherry-pick or import is read from the
commit that it made. From this state and a walk over the folder, the oracle (oracle.py) decides which objects are
garbage. No code here calls lakegc.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.errors import Problem
from spark_resources.lakefs_sandbox.gc_api import delete_rules, set_rules
from spark_resources.lakefs_sandbox.repository import ImportSource
from spark_resources.model import Commit, Rules
from spark_resources.sstable import Entry
from tests.support import oracle

# some have equal sizes, so that a size alone identifies no object
CONTENTS = (b"one", b"two", b"three", b"", b"four", b"a size of its own")
UNIQUE_SIZE = 5
PATHS = ("a/_SUCCESS", "a/x", "b/x", "b/y", "z")
PREFIXES = ("a/", "b/", "")
BRANCHES = ("main", "dev", "exp", "rel")
DAYS_AGO = (0, 1, 2, 4, 6, 9, 14, 30)
RULES = (
    (0, {}), (1, {}), (3, {"main": 10}), (5, {"dev": 1}), (2, {"main": 7, "exp": 20}), (7, {"main": 2, "rel": 0}),
    (20, {}), (1, {"dev": 12}),
)  # fmt: skip
_OFF_THE_DAY = timedelta(hours=7)
_BEFORE_ANY_MARK = timedelta(days=40)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Operation = Callable[["RepositoryModel", int, int, int], None]
OPERATIONS: dict[str, Operation] = {}
ANY_TIME: list[str] = []  # operations that may run during a mark: no changes to rules or to the clock
DURING_MARK = (
    ("move",) * 6 + ("commit",) * 12 + ("commit_and_delete_branch", "hard_reset", "upload", "shallow_copy") * 2
)
OFTEN = (
    "upload", "upload", "upload", "commit", "commit", "upload_the_same_again", "create_branch", "change_rules",
    "create_tag", "add_hold", "add_hold", "fork",
)  # fmt: skip
LEGAL = {"legal": "hold"}
HOLDS = (
    oracle.H("path", "a/*"), oracle.H("history", "t?"), oracle.H("branch", "e*", days=20), oracle.H("prefix", ""),
    oracle.H("metadata", "ho*", key="legal"), oracle.H("tag", "*"), oracle.H("branch", "main", days=9),
    oracle.H("prefix", ""),
)  # fmt: skip


class Seen(NamedTuple):
    """The entry served at a path: its kind and address, and the attributes that identify its content."""

    kind: int
    address: str
    content: tuple[object, ...]


View = dict[str, Seen]


def operation(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    ANY_TIME.append(function.__name__)
    return function


def between_marks(function: Operation) -> Operation:
    OPERATIONS[function.__name__] = function
    return function


def seen(entry: Entry) -> Seen:
    content = (entry.checksum, entry.size, tuple(sorted(entry.metadata.items())), entry.content_type)
    return Seen(int(entry.address_type), entry.address, content)


def micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


class RepositoryModel:
    """One repository of a sandbox, and the model's state for it."""

    def __init__(self, sandbox: Sandbox, name: str, *, created: datetime | None = None) -> None:
        self.sandbox, self.name = sandbox, name
        self.repository = sandbox.create(name, date=created)
        self.folder = sandbox.local_path / name
        self.spellings = [f"local://{name}", f"local://{self.folder}"]
        self.rules: tuple[int, dict[str, int]] | None = None
        self.commits: dict[str, oracle.C] = {}
        self.trees: dict[str, View] = {}
        self.heads: dict[str, str] = {}
        self.views: dict[str, View] = {}
        self.tags: dict[str, str] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self.holds: dict[str, oracle.H] = {}
        self.refused = 0
        (first,) = self.repository.commits()
        self._record_commit(first, {})
        self._move_branch("main", first.id)

    # --- operations -------------------------------------------------------------------------------------------------

    def do(self, name: str, a: int, b: int, c: int) -> None:
        """Do one operation, with its arguments chosen by numbers. If the server refuses it, the model doesn't
        change."""
        try:
            OPERATIONS[name](self, a, b, c)
        except Problem:
            self.refused += 1

    def branch(self, number: int) -> str:
        return sorted(self.heads)[number % len(self.heads)]

    def commit_id(self, number: int) -> str:
        """One of the newest commits."""
        return list(self.commits)[-1 - number % len(self.commits)]

    @operation
    def upload(self, a: int, b: int, c: int) -> None:
        branch, path = self.branch(a), PATHS[b % len(PATHS)]
        self.views[branch][path] = seen(self.repository.put(branch, path, CONTENTS[c % len(CONTENTS)]))

    @operation
    def upload_the_same_again(self, a: int, b: int, c: int) -> None:
        """Upload the same content again, as a job does that rewrites its _SUCCESS file."""
        branch = self.branch(a)
        if served := sorted(self.views[branch]):
            path = served[b % len(served)]
            entry, data = self.repository.read(branch, path)
            again = self.repository.put(
                branch, path, data, content_type=entry.content_type or "", metadata=entry.metadata
            )
            self.views[branch][path] = seen(again)

    @operation
    def delete(self, a: int, b: int, c: int) -> None:
        branch, path = self.branch(a), PATHS[b % len(PATHS)]
        self.repository.delete(branch, [path])
        self.views[branch].pop(path, None)

    @operation
    def reset(self, a: int, b: int, c: int) -> None:
        branch = self.branch(a)
        self.repository.reset(branch)
        self._move_branch(branch, self.heads[branch])

    @operation
    def reset_prefix(self, a: int, b: int, c: int) -> None:
        """Reset a prefix. As on the server, an entry with the committed content at another address stays staged."""
        branch, prefix = self.branch(a), PREFIXES[b % len(PREFIXES)]
        self.repository.reset_prefix(branch, prefix)
        view, committed = self.views[branch], self.trees[self.heads[branch]]
        for path in sorted(view.keys() | committed.keys()):
            if path.startswith(prefix) and not _same(view.get(path), committed.get(path)):
                _set(view, path, committed.get(path))

    @operation
    def commit(self, a: int, b: int, c: int) -> None:
        branch = self.branch(a)
        ago = timedelta(days=DAYS_AGO[b % len(DAYS_AGO)]) + _OFF_THE_DAY
        metadata = LEGAL if (a + c) % 4 == 3 else {}
        new_commit = self.repository.commit(branch, f"{b}", metadata=metadata, date=self.sandbox.now() - ago)
        before, view = self.trees[self.heads[branch]], self.views[branch]
        # the same content at another address is no change: the commit keeps the older address
        tree = {path: before[path] if _same(before.get(path), now) else now for path, now in view.items()}
        self._record_commit(new_commit, tree)
        self._move_branch(branch, new_commit.id)

    @operation
    def create_branch(self, a: int, b: int, c: int) -> None:
        """Create a branch from another one or, as people do to recover data, from any commit."""
        name = BRANCHES[a % len(BRANCHES)]
        source = self.commit_id(b) if c % 2 else self.heads[self.branch(b)]
        self.repository.create_branch(name, source)
        self._move_branch(name, source)

    @operation
    def delete_branch(self, a: int, b: int, c: int) -> None:
        name = self.branch(a)
        self.repository.delete_branch(name)
        del self.heads[name], self.views[name]

    @operation
    def commit_and_delete_branch(self, a: int, b: int, c: int) -> None:
        """Commit the staged changes and delete the branch, so that the commit is dangling."""
        self.commit(a, 0, c)
        self.delete_branch(a, b, c)

    @operation
    def fork(self, a: int, b: int, c: int) -> None:
        """Two branches diverge from one commit, with different objects at a path: one long ago, and one recently."""
        branch, name = self.branch(a), BRANCHES[c % len(BRANCHES)]
        self._tidy(a, 7)
        self.upload(a, b, 0)
        self.commit(a, 7, c)
        self.repository.create_branch(name, self.heads[branch])
        self._move_branch(name, self.heads[branch])
        for ruled, days in ((branch, 7), (name, c % 2)):
            number = sorted(self.heads).index(ruled)
            self.upload(number, b, 1 + days)
            self.commit(number, days, c)

    @operation
    def merge(self, a: int, b: int, c: int) -> None:
        self._tidy(a, c)
        self._tidy(b, c)
        source, into = self.branch(a), self.branch(b)
        commit = self.repository.merge(source, into, strategy=("", "source-wins", "dest-wins")[c % 3])
        self._record_server_commit(into, commit)

    @operation
    def revert(self, a: int, b: int, c: int) -> None:
        self._tidy(a, c)
        branch = self.branch(a)
        self._record_server_commit(branch, self.repository.revert(branch, self.commit_id(b), parent_number=c % 2))

    @operation
    def cherry_pick(self, a: int, b: int, c: int) -> None:
        self._tidy(a, c)
        branch = self.branch(a)
        self._record_server_commit(branch, self.repository.cherry_pick(branch, self.commit_id(b), parent_number=1))

    @operation
    def hard_reset(self, a: int, b: int, c: int) -> None:
        """Reset a branch to another commit. Staged entries with the committed content stay staged."""
        self._tidy(a, c)
        branch, to = self.branch(a), self.commit_id(b)
        committed = self.trees[self.heads[branch]]
        staged = {path: now for path, now in self.views[branch].items() if now != committed.get(path)}
        self.repository.hard_reset(branch, to)
        self.heads[branch], self.views[branch] = to, {**self.trees[to], **staged}

    @operation
    def create_tag(self, a: int, b: int, c: int) -> None:
        source = self.commit_id(b) if c % 2 else self.heads[self.branch(b)]
        self.repository.create_tag(f"t{a % 2}", source)
        self.tags[f"t{a % 2}"] = source

    @operation
    def delete_tag(self, a: int, b: int, c: int) -> None:
        self.repository.delete_tag(f"t{a % 2}")
        del self.tags[f"t{a % 2}"]

    @operation
    def copy(self, a: int, b: int, c: int) -> None:
        """Copy an object to another path, from any branch. The copy is a new object."""
        branch, source = self.branch(a), self.branch(c)
        path = PATHS[(b + 1) % len(PATHS)]
        entry = self.repository.copy(branch, path, PATHS[b % len(PATHS)], source_ref=source)
        self.views[branch][path] = seen(entry)

    @operation
    def shallow_copy(self, a: int, b: int, c: int) -> None:
        branch, path = self.branch(a), PATHS[c % len(PATHS)]
        copied = self.repository.copy(branch, path, PATHS[b % len(PATHS)], shallow=True)
        self.views[branch][path] = seen(copied)

    @operation
    def move(self, a: int, b: int, c: int) -> None:
        """Rename an object as clients do: make a shallow copy at another path, then delete the first path."""
        if b % len(PATHS) != c % len(PATHS):
            self.shallow_copy(a, b, c)
            self.delete(a, b, c)

    @operation
    def link(self, a: int, b: int, c: int) -> None:
        """Write to a requested address, which is a full one here (local adapter), and usually link it, as a client
        does."""
        branch, path, data = self.branch(a), PATHS[b % len(PATHS)], CONTENTS[c % len(CONTENTS)]
        location = self.repository.new_location(branch, path)
        self._write(location, data)
        if c % 4:
            checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
            linked = self.repository.link(branch, path, location, size=len(data), checksum=checksum)
            self.views[branch][path] = seen(linked)

    @operation
    def link_an_old_upload(self, a: int, b: int, c: int) -> None:
        """Link a multipart upload, whose time is that of its start. If that was over a day ago, its address is staged
        instead."""
        branch, path, data = self.branch(a), PATHS[b % len(PATHS)], CONTENTS[c % len(CONTENTS)]
        location = self.repository.new_location(branch, path)
        file = self._write(location, data)
        begun = (self.sandbox.now() - timedelta(days=3)).timestamp()
        os.utime(file, (begun, begun))
        self._stage(branch, path, location, data)

    @operation
    def stage(self, a: int, b: int, c: int) -> None:
        """Stage the address of an object of any branch, in one of its spellings, or an address elsewhere."""
        branch, path, source = self.branch(a), PATHS[b % len(PATHS)], self.branch(c)
        if c % 5 == 4 or not self.views[source]:
            self._stage(branch, path, "local://elsewhere/data/s/o", b"outside")
            return
        served = sorted(self.views[source])
        entry = self.repository.stat(source, served[(b + c) % len(served)])
        key = oracle.inside(int(entry.address_type), entry.address, self.spellings)
        if key is not None:
            location = f"{self.spellings[c % 2]}/{key}"
            staged = self.repository.stage_address(branch, path, location, size=entry.size, checksum=entry.checksum)
            self.views[branch][path] = seen(staged)

    @operation
    def import_from_elsewhere(self, a: int, b: int, c: int) -> None:
        self._tidy(a, c)
        branch = self.branch(a)
        other = self.sandbox.local_path / "elsewhere" / "import"
        other.mkdir(parents=True, exist_ok=True)
        (other / f"o{b % 3}").write_bytes(b"outside")
        commit, _ = self.repository.import_objects(branch, [ImportSource("local://elsewhere/import/", PREFIXES[c % 2])])
        self._record_server_commit(branch, commit)

    @between_marks
    def change_rules(self, a: int, b: int, c: int) -> None:
        if a % 6 == 5:
            delete_rules(self.repository)
            self.rules = None
            return
        default_days, branch_days = RULES[b % len(RULES)]
        if default_days or branch_days:  # zero days everywhere can't be written: they mean a repository without rules
            set_rules(self.repository, Rules(default_days, branch_days))
            self.rules = default_days, dict(branch_days)

    @between_marks
    def add_hold(self, a: int, b: int, c: int) -> None:
        """Add one of at most two holds, forever or for some hours."""
        hold = HOLDS[b % len(HOLDS)]
        if hold.kind == "prefix":
            folders = sorted({key.rpartition("/")[0] + "/" for key in self.stored() if key.startswith("data/")})
            hold = hold._replace(pattern=folders[c % len(folders)] if folders else "data/none/")
        if c % 2:
            now = micros(self.sandbox.now())
            hold = hold._replace(until=now - now % oracle.SECOND + 12 * (1 + a) * 3600 * oracle.SECOND)
        self.holds[f"h{a % 2}"] = hold
        self._write_holds()

    @between_marks
    def drop_hold(self, a: int, b: int, c: int) -> None:
        self.holds.pop(f"h{a % 2}", None)
        self._write_holds()

    @between_marks
    def let_a_hold_run_out(self, a: int, b: int, c: int) -> None:
        """Set the clock to the end of a hold. The hold stays in the file."""
        ends = sorted(hold.until for hold in self.holds.values() if hold.until < oracle.FOR_EVER)
        future_ends = [end for end in ends if end > micros(self.sandbox.now())]
        if future_ends:
            self.sandbox.set_clock(_EPOCH + timedelta(microseconds=future_ends[0]))

    @between_marks
    def let_time_pass(self, a: int, b: int, c: int) -> None:
        self.sandbox.set_clock(self.sandbox.now() + timedelta(hours=12 * (1 + a % 8)))

    # --- the state --------------------------------------------------------------------------------------------------

    def _record_commit(self, commit: Commit, tree: View) -> None:
        self.commits[commit.id] = oracle.C(tuple(commit.parents), micros(commit.created))
        self.metadata[commit.id] = dict(commit.metadata)
        self.trees[commit.id] = dict(tree)

    def _move_branch(self, branch: str, commit_id: str) -> None:
        self.heads[branch], self.views[branch] = commit_id, dict(self.trees[commit_id])

    def _record_server_commit(self, branch: str, commit: Commit) -> None:
        """Record a commit whose content the server computed."""
        self._record_commit(commit, self.served(commit.id))
        self._move_branch(branch, commit.id)

    def _tidy(self, a: int, c: int) -> None:
        """Commit first, as people do because the server refuses a branch with staged changes."""
        with suppress(Problem):
            self.commit(a, c, 0)

    def _write(self, location: str, data: bytes) -> Path:
        file = Path(location.removeprefix("local://"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        now = self.sandbox.now().timestamp()
        os.utime(file, (now, now))
        return file

    def _write_holds(self) -> None:
        file = self.folder / "_lakefs/retention/gc/lakegc/holds.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"holds": [hold_fields(*hold) for hold in self.holds.items()]}, ensure_ascii=False))

    def _stage(self, branch: str, path: str, location: str, data: bytes) -> None:
        checksum = hashlib.md5(data, usedforsecurity=False).hexdigest()
        staged = self.repository.stage_address(branch, path, location, size=len(data), checksum=checksum)
        self.views[branch][path] = seen(staged)

    def staged_records(self) -> list[tuple[str, str]]:
        """The branch and path of every staged record."""
        return [
            (branch, entry.path.decode())
            for branch in sorted(self.heads)
            for entry in self.repository.staged_entries(branch)
        ]

    def served(self, ref: str) -> View:
        """The objects that the sandbox serves, by path, at a ref."""
        entries, more = self.repository.listing(ref)
        assert not more
        return {entry.path.decode(): seen(entry) for entry in entries if isinstance(entry, Entry)}

    def check_model(self) -> None:
        """Check that the sandbox serves what the model expects."""
        assert {listed.id: listed.commit_id for listed in self.repository.branches(include_hidden=True)} == self.heads
        for branch, view in self.views.items():
            assert self.served(branch) == view, branch

    # --- live objects and garbage -----------------------------------------------------------------------------------

    def retained(self, now: datetime) -> set[str]:
        """The retained commits by formats §6, rules 1 to 5.

        By rule 6 it would be correct to retain additional commits that the server lists. But the sandbox's list, like
        the real one, only has commits that the rules retain, so no tolerance is needed.
        """
        if self.rules is None:
            return set(self.commits)
        default_days, branch_days = self.rules
        return oracle.retained(oracle.claims(self.commits, self.heads, default_days, branch_days), micros(now))

    def live(self, now: datetime) -> set[str]:
        """Every key that a branch serves, that a retained commit refers to, or that is on hold."""
        return self.keys(self._live_entries(now)) | self.on_hold(now)

    def on_hold(self, now: datetime) -> set[str]:
        """Every key that a hold names, even if something else also refers to it."""
        keys: set[str] = set()
        for hold in self.holds.values():
            if hold.until <= micros(now) - micros(now) % oracle.SECOND:
                continue
            if hold.kind == "prefix":
                keys |= {key for key in self.stored() if key.startswith(hold.pattern)}
            elif hold.kind == "path":
                at_paths = (tree.items() for tree in self.trees.values())
                keys |= self.keys(
                    entry for tree in at_paths for path, entry in tree if oracle.matches(hold.pattern, path)
                )
            else:
                trees = (self.trees[commit] for commit in self._named_by(hold, now))
                keys |= self.keys(entry for tree in trees for entry in tree.values())
        return keys

    def _named_by(self, hold: oracle.H, now: datetime) -> set[str]:
        if hold.kind == "branch" and self.rules is None:
            return set()
        default_days, branch_days = self.rules or (0, {})
        return oracle.commits_of_hold(
            hold,
            self.commits,
            heads=self.heads,
            tags=self.tags,
            metadata=self.metadata,
            branch_days=branch_days,
            default_days=default_days,
            now=micros(now),
        )

    def keys(self, entries: Iterable[Seen]) -> set[str]:
        keys = (oracle.inside(entry.kind, entry.address, self.spellings) for entry in entries)
        return {key for key in keys if key is not None}

    def _live_entries(self, now: datetime) -> Iterator[Seen]:
        for view in self.views.values():
            yield from view.values()
        for commit_id in self.retained(now):
            yield from self.trees[commit_id].values()

    def stored(self) -> dict[str, int]:
        """Every file of the namespace and its modification time, found by a walk over the folder.

        Other threads may write and delete at the same time. A file that vanishes during the walk is left out.
        """
        times: dict[str, int] = {}
        for folder, _, names in os.walk(self.folder):
            for name in names:
                file = Path(folder, name)
                with suppress(FileNotFoundError):
                    times[str(file.relative_to(self.folder))] = file.stat().st_mtime_ns // 1000
        return times

    def garbage(
        self, stored: dict[str, int], now: datetime, min_age: timedelta, resolution: timedelta, *, on_hold: bool = True
    ) -> set[str]:
        """The garbage at a time, according to the oracle. Without `on_hold`, holds keep nothing.

        An object is kept because of its size only if a path probe has no clear result. A quiet server answers each
        probe clearly, so equal sizes need no tolerance. A listed time may precede the true time by up to `resolution`.
        """
        try:
            return oracle.expired_addresses(
                stored,
                committed=[(entry.kind, entry.address) for entry in self._live_entries(now)],
                uncommitted=(),
                served=(),
                on_hold=self.on_hold(now) if on_hold else (),
                spellings=self.spellings,
                cutoff=micros(now - min_age),
                resolution=resolution // timedelta(microseconds=1),
                local_adapter=True,
            )
        except oracle.Stop as stop:
            raise AssertionError(f"the model lost its own objects: {stop}") from stop


def hold_fields(name: str, hold: oracle.H) -> dict[str, Any]:
    """A hold as in the file of holds. Written as JSON, which is YAML, it needs no quoting of its own."""
    selectors: dict[str, dict[str, Any]] = {
        "tag": {"tags": hold.pattern},
        "history": {"tags": hold.pattern, "history": True},
        "metadata": {"commits": {hold.key: hold.pattern}},
        "branch": {"branches": hold.pattern, "days": hold.days},
        "path": {"paths": hold.pattern},
        "prefix": {"prefix": hold.pattern},
    }
    end = _EPOCH + timedelta(microseconds=0 if hold.until == oracle.FOR_EVER else hold.until)
    until = {} if hold.until == oracle.FOR_EVER else {"until": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
    return {"id": name, "owner": "a", "reason": "b", **selectors[hold.kind], **until}


def _same(left: Seen | None, right: Seen | None) -> bool:
    if left is None or right is None:
        return left is right
    return left.content == right.content


def _set(view: View, path: str, what: Seen | None) -> None:
    if what is None:
        view.pop(path, None)
    else:
        view[path] = what
