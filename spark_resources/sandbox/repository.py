"""One repository of the sandbox: objects, staging, commits and merges, by the server's rules.

These are the methods behind the HTTP routes; tests and the demo may call them directly, where many calls would be slow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from spark_resources.model import AddressType, Commit
from spark_resources.sandbox.clock import SandboxClock
from spark_resources.sandbox.committed import STRATEGIES, Committed, merged
from spark_resources.sandbox.objects import Objects
from spark_resources.sandbox.problems import bad_request, no_changes, not_found
from spark_resources.sandbox.refs import References, Resolved
from spark_resources.sandbox.state import RepositoryRecord, Staged, State
from spark_resources.sandbox.xids import AddressMaker
from spark_resources.sstable import Entry, Record, commit_id, entry_identity
from spark_resources.sstable.values import EntryMessage, put_entry, put_value

DEFAULT_CONTENT_TYPE = "application/octet-stream"
COMMITTER = "admin"
FIRST_COMMIT = "Repository created"
LONGEST_PATH = 1024
_MERGE_STRATEGY_KEY = ".lakefs.merge.strategy"
_STAGED_PAGE = 1000
_BEHIND = b"\xff"  # in no UTF-8 text: a path and this byte come after every path that begins so


@dataclass(frozen=True, slots=True)
class Change:
    """One uncommitted change: added, changed or removed; `entry` is what is staged, or what was removed."""

    kind: str
    entry: Entry


class SandboxRepository(References):
    """A repository. Paths are text; every method raises `Problem` with the status that the server answers."""

    def __init__(
        self, state: State, record: RepositoryRecord, *, objects: Objects, committed: Committed,
        addresses: AddressMaker, clock: SandboxClock,
    ) -> None:  # fmt: skip
        super().__init__(state, record)
        self.objects = objects
        self.committed = committed
        self._addresses = addresses
        self.clock = clock

    # --- staging ----------------------------------------------------------------------------------------------------

    def put(
        self, branch: str, path: str, data: bytes, *, content_type: str = DEFAULT_CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:  # fmt: skip
        """Stores an object at a new address and stages it."""
        self.check_writable()
        self.branch(branch)
        _check_path(path)
        now = self.clock.now()
        entry = _entry(
            path, data, self._addresses.address(now), now, content_type=content_type, metadata=metadata or {}
        )
        self.objects.write(entry.address, data)
        self.stage(branch, [entry])
        return entry

    def put_many(
        self, branch: str, objects: Iterable[tuple[str, bytes]], *, content_type: str = DEFAULT_CONTENT_TYPE
    ) -> int:
        """Stores and stages many objects in one change, all dated alike; gives their number."""
        self.check_writable()
        self.branch(branch)
        now = self.clock.now()
        write = self.objects.writer()
        entries = []
        for path, data in objects:
            _check_path(path)
            entry = _entry(path, data, self._addresses.address(now), now, content_type=content_type, metadata={})
            write(entry.address, data)
            entries.append(entry)
        self.stage(branch, entries)
        return len(entries)

    def stage(self, branch: str, entries: Iterable[Entry]) -> None:
        """Stages entries whose objects are somewhere already (or nowhere)."""
        self.check_writable()
        staged = [Staged(entry.path, put_value(entry_identity(entry), put_entry(entry))) for entry in entries]
        with self._state.writing():
            self.branch(branch)
            self._state.stage(self.id, branch, staged)

    def delete(self, branch: str, paths: Iterable[str]) -> None:
        """Hides what is committed at the paths, and forgets what is staged there; a path with neither is fine."""
        self.check_writable()
        with self._state.writing():
            metarange = self.commit_of(self.branch(branch).commit_id).metarange_id
            hidden = [
                Staged(path, None)
                for path in (_key(each) for each in paths)
                if self._state.staged_at(self.id, branch, path) or self.committed.value(metarange, path) is not None
            ]
            self._state.stage(self.id, branch, hidden)

    def reset(self, branch: str) -> None:
        """Forgets everything staged on a branch. The objects stay where they are."""
        self.check_writable()
        with self._state.writing():
            self.branch(branch)
            self._state.clear_staged(self.id, branch)

    # --- reading ----------------------------------------------------------------------------------------------------

    def stat(self, ref: str, path: str) -> Entry:
        """What a reader of the ref gets at a path, whether or not its object is still in the store."""
        _check_path(path)
        key = path.encode()
        with self._state.reading():
            found = self.resolve(ref)
            if found.branch is not None and (staged := self._state.staged_at(self.id, found.branch, key)):
                value = staged.value
            else:
                value = self.committed.value(found.commit.metarange_id, key)
        if value is None:
            raise not_found()
        return EntryMessage(value).whole(key)

    def read(self, ref: str, path: str) -> tuple[Entry, bytes]:
        """An entry and its object's bytes. Raises `Problem` 410 where the object is gone from the store."""
        entry = self.stat(ref, path)
        return entry, self.objects.read(self.key_of(entry))

    def key_of(self, entry: Entry) -> str:
        """An entry's key in the namespace. Raises `Problem` 400 for an address that lies elsewhere."""
        for root in (self.objects.storage_namespace, self.objects.location("")):
            if entry.address_type is not AddressType.RELATIVE and entry.address.startswith(root + "/"):
                return entry.address[len(root) + 1 :]
        if entry.address_type is AddressType.FULL:
            raise bad_request(f"{entry.address}: the sandbox reads its own storage namespaces only")
        return entry.address

    def physical_address(self, entry: Entry) -> str:
        """An entry's address as `stat` and `ls` show it."""
        return entry.address if entry.address_type is AddressType.FULL else self.objects.location(entry.address)

    def listing(
        self, ref: str, *, prefix: str = "", after: str = "", delimiter: str = "", amount: int = 1000
    ) -> tuple[list[Entry | str], bool]:
        """A page of entries, and common prefixes as text, in the order of their bytes; and whether there are more."""
        with self._state.reading():
            items = self._items(self.resolve(ref), prefix.encode(), after.encode(), delimiter.encode())
            page = list(islice(items, amount + 1))
        return page[:amount], len(page) > amount

    def _items(self, found: Resolved, prefix: bytes, after: bytes, delimiter: bytes) -> Iterator[Entry | str]:
        view = self.merged_view(found, max(prefix, after))
        while (record := next(view, None)) is not None and record.key.startswith(prefix):
            at = record.key.find(delimiter, len(prefix)) if delimiter else -1
            if at < 0:
                if record.key != after:
                    yield EntryMessage(record.value).whole(record.key)
                continue
            common = record.key[: at + len(delimiter)]
            if common != after:
                yield common.decode()
            view = self.merged_view(found, common + _BEHIND)

    def merged_view(self, found: Resolved, start: bytes = b"") -> Iterator[Record]:
        """The records that a reader gets from a path on: what is staged lies over what is committed."""
        staged = self._staged_since(found.branch, start) if found.branch else iter(())
        over = next(staged, None)
        for record in self.committed.since(found.commit.metarange_id, start):
            while over is not None and over.path < record.key:
                if over.value is not None:
                    yield Record(over.path, over.value)
                over = next(staged, None)
            if over is not None and over.path == record.key:
                continue  # it comes from the staged side, before the next committed one
            yield record
        while over is not None:
            if over.value is not None:
                yield Record(over.path, over.value)
            over = next(staged, None)

    def _staged_since(self, branch: str, start: bytes) -> Iterator[Staged]:
        while page := self._state.staged(self.id, branch, at_least=start, limit=_STAGED_PAGE):
            yield from page
            if len(page) < _STAGED_PAGE:
                return
            start = page[-1].path + b"\x00"

    def uncommitted(self, branch: str, *, since: str = "") -> Iterator[Change]:
        """The changes of a branch from a path on, as the server sees them: by content, not by address."""
        metarange = self.commit_of(self.branch(branch).commit_id).metarange_id
        for staged, before in self.committed.changes(metarange, self._staged_since(branch, since.encode())):
            if staged.value is None:
                assert before is not None  # hiding what isn't there is no change
                yield Change("removed", EntryMessage(before).whole(staged.path))
            else:
                entry = EntryMessage(staged.value).whole(staged.path)
                yield Change("added" if before is None else "changed", entry)

    def staged_entries(self, branch: str, *, since: str = "") -> Iterator[Entry]:
        """Every entry staged on a branch from a path on, also those that the server holds to be no change."""
        for staged in self._staged_since(branch, since.encode()):
            if staged.value is not None:
                yield EntryMessage(staged.value).whole(staged.path)

    # --- commits ----------------------------------------------------------------------------------------------------

    def commit(
        self, branch: str, message: str, *, metadata: Mapping[str, str] | None = None, date: datetime | None = None,
        allow_empty: bool = False, committer: str = COMMITTER,
    ) -> Commit:  # fmt: skip
        """Commits what is staged. Raises `Problem` 400 where nothing is, unless an empty commit is allowed."""
        self.check_writable()
        with self._state.writing():
            parent = self.commit_of(self.branch(branch).commit_id)
            staged = self._state.staged(self.id, branch)
            changes = [change for change, _ in self.committed.changes(parent.metarange_id, staged)]
            if not changes and not allow_empty:
                raise no_changes("commit")
            metarange = self.committed.written(parent.metarange_id, changes)
            return self._committed(branch, Commit(
                id="", parents=(parent.id,), created=date or self.clock.now(), metarange_id=metarange,
                generation=parent.generation + 1, committer=committer, message=message, metadata=metadata or {},
            ))  # fmt: skip

    def merge(
        self, source: str, into: str, *, message: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str = "", allow_empty: bool = False, squash: bool = False, committer: str = COMMITTER,
    ) -> Commit:  # fmt: skip
        """Merges a ref into a branch. Raises `Problem` 409 for conflicts, 400 for a dirty branch or no changes."""
        self.check_writable()
        if strategy not in STRATEGIES:
            raise bad_request("argument strategy: invalid value: validation error")
        chosen = STRATEGIES[strategy]
        with self._state.writing():
            dest = self.commit_of(self.branch(into).commit_id)
            if next(self.uncommitted(into), None) is not None:
                raise bad_request(f"update branch {into}: uncommitted changes (dirty branch)")
            theirs = self.resolve(source).commit
            base = self.merge_base(theirs, dest)
            if theirs.metarange_id == base.metarange_id and not allow_empty:
                raise no_changes(f"update branch {into}")
            metarange = merged(
                self.committed, source=theirs.metarange_id, dest=dest.metarange_id, base=base.metarange_id,
                strategy=chosen,
            )  # fmt: skip
            return self._committed(into, Commit(
                id="", parents=(dest.id,) if squash else (dest.id, theirs.id), created=self.clock.now(),
                metarange_id=metarange, generation=max(dest.generation, theirs.generation) + 1, committer=committer,
                message=message or f"Merge '{source}' into '{into}'",
                metadata={**(metadata or {}), _MERGE_STRATEGY_KEY: chosen.name},
            ))  # fmt: skip

    def _committed(self, branch: str, commit: Commit) -> Commit:
        """Records a commit as the branch's head. What was staged goes, also what was held to be no change."""
        commit = replace(commit, id=commit_id(commit))
        self._state.put_commit(self.id, commit)
        self._state.put_branch(self.id, replace(self.branch(branch), commit_id=commit.id))
        self._state.clear_staged(self.id, branch)
        return commit


def first_commit(now: datetime) -> Commit:
    """The commit that every repository begins with: of nothing, by nobody."""
    commit = Commit(id="", parents=(), created=now, metarange_id="", generation=1, message=FIRST_COMMIT)
    return replace(commit, id=commit_id(commit))


def _entry(
    path: str, data: bytes, address: str, now: datetime, *, content_type: str, metadata: Mapping[str, str]
) -> Entry:
    return Entry(
        path=path.encode(), address=address, size=len(data), last_modified=now, metadata=metadata,
        checksum=hashlib.md5(data, usedforsecurity=False).hexdigest(), content_type=content_type,
    )  # fmt: skip


def _key(path: str) -> bytes:
    _check_path(path)
    return path.encode()


def _check_path(path: str) -> None:
    if not path:
        raise bad_request("argument path: missing path: required value: validation error")
    if len(path.encode()) > LONGEST_PATH:
        raise bad_request(f"argument path: invalid value: validation error: above maximum length ({LONGEST_PATH})")
