"""The reader's view of a ref: staged entries over committed ones, listings, and diffs by content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from spark_resources.lakefs_sandbox.clock import Clock
from spark_resources.lakefs_sandbox.committed import Committed, Sides, same_content
from spark_resources.lakefs_sandbox.errors import Problem, bad_request, not_found
from spark_resources.lakefs_sandbox.faults import Faults
from spark_resources.lakefs_sandbox.objects import Objects
from spark_resources.lakefs_sandbox.refs import References, Resolved
from spark_resources.lakefs_sandbox.state import RepositoryRecord, Staged, State
from spark_resources.model import AddressType
from spark_resources.sstable import Entry, Record
from spark_resources.sstable.values import EntryMessage

LONGEST_PATH = 1024
_STAGED_PAGE = 1000
_BEHIND = b"\xff"  # never in UTF-8 text: a prefix plus this byte sorts after every path with the prefix


@dataclass(frozen=True, slots=True)
class Change:
    """One change: added, changed, removed or conflict. `entry` is the new entry, or the removed one."""

    kind: str
    entry: Entry


class Folded(NamedTuple):
    """Changes under a common prefix, reported as one."""

    path: str


class Views(References):
    """The reading side of a repository. Paths are text; methods raise `Problem` with the server's status."""

    def __init__(
        self, state: State, record: RepositoryRecord, *, objects: Objects, committed: Committed, clock: Clock,
        faults: Faults | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state, record)
        self.faults = faults or Faults()
        self.objects = objects
        self.committed = committed
        self.clock = clock

    # --- reading ----------------------------------------------------------------------------------------------------

    def stat(self, ref: str, path: str) -> Entry:
        """The entry that a reader of the ref gets at a path, whether or not its object is still in the store."""
        check_path(path)
        key = path.encode()
        with self._state.reading():
            found = self.resolve(ref)
            if found.branch is not None and (staged := self._state.staged_at(self.id, found.branch, key)):
                self.faults.check_readable(found.branch, key)
                value = staged.value
            else:
                value = self.committed.value(found.commit.metarange_id, key)
        if value is None:
            raise not_found()
        return EntryMessage(value).whole(key)

    def read(self, ref: str, path: str) -> tuple[Entry, bytes]:
        """An entry and its object's bytes. Raises `Problem` 410 if the object is gone from the store."""
        entry = self.stat(ref, path)
        return entry, self.data_of(entry)

    def data_of(self, entry: Entry) -> bytes:
        """The bytes of an entry's object, in this namespace or, for a full address, anywhere in the block store."""
        if _is_full(entry):
            entry = replace(entry, address=self.objects.resolved(entry.address))
        key = self.key_inside(entry)
        return self.objects.read_external(entry.address) if key is None else self.objects.read(key)

    def key_inside(self, entry: Entry) -> str | None:
        """An entry's key in the namespace, by its address as written; None if the address has another prefix."""
        if entry.address_type is AddressType.RELATIVE:
            return entry.address
        for root in (self.objects.storage_namespace, self.objects.location("").rstrip("/")):
            if entry.address.startswith(root + "/"):
                return entry.address[len(root) + 1 :]
        return None if _is_full(entry) else entry.address

    def physical_address(self, entry: Entry) -> str:
        """An entry's address as `stat` and `ls` show it."""
        return self.objects.resolved(entry.address) if _is_full(entry) else self.objects.location(entry.address)

    def listing(
        self, ref: str, *, prefix: str = "", after: str = "", delimiter: str = "", amount: int = 1000
    ) -> tuple[list[Entry | str], bool]:
        """A page of entries and (as text) common prefixes, in byte order, and whether there are more."""
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
        """The records that a reader gets from a path onwards: staged entries override committed ones."""
        staged = self._staged_since(found.branch, start) if found.branch else iter(())
        over = next(staged, None)
        for record in self.committed.since(found.commit.metarange_id, start):
            while over is not None and over.path < record.key:
                if over.value is not None:
                    yield Record(over.path, over.value)
                over = next(staged, None)
            if over is not None and over.path == record.key:
                continue  # the staged value replaces it, and is yielded before the next committed one
            yield record
        while over is not None:
            if over.value is not None:
                yield Record(over.path, over.value)
            over = next(staged, None)

    def _staged_since(self, branch: str, start: bytes) -> Iterator[Staged]:
        while page := self._state.staged(self.id, branch, at_least=start, limit=_STAGED_PAGE):
            for each in page:
                self.faults.check_readable(branch, each.path)
                yield each
            if len(page) < _STAGED_PAGE:
                return
            start = page[-1].path + b"\x00"

    def uncommitted(self, branch: str, *, since: str = "") -> Iterator[Change]:
        """The uncommitted changes of a branch from a path onwards; as on the server, by content, not by address."""
        return self._changes(branch, self._staged_since(branch, since.encode()))

    def uncommitted_as_read(self, branch: str, *, since: str = "") -> Iterator[Change]:
        """The same as in the server's list and diff, which end without an error at a record that can't be read."""
        return self._changes(branch, self._staged_until_unreadable(branch, since.encode()))

    def _staged_until_unreadable(self, branch: str, start: bytes) -> Iterator[Staged]:
        most = self.faults.records_read()
        try:
            for number, each in enumerate(self._staged_since(branch, start)):
                if number == most:
                    self.faults.happened["scans that ended early"] += 1
                    return
                yield each
        except Problem:
            return

    def _changes(self, branch: str, staged_entries: Iterator[Staged]) -> Iterator[Change]:
        metarange = self.commit_of(self.branch(branch).commit_id).metarange_id
        for staged, before in self.committed.changes(metarange, staged_entries):
            if staged.value is None:
                assert before is not None  # a tombstone for a missing path is no change
                yield Change("removed", EntryMessage(before).whole(staged.path))
            else:
                entry = EntryMessage(staged.value).whole(staged.path)
                yield Change("added" if before is None else "changed", entry)

    def staged_entries(self, branch: str, *, since: str = "") -> Iterator[Entry]:
        """Every entry staged on a branch from a path onwards, including those that aren't changes to the server."""
        for staged in self._staged_since(branch, since.encode()):
            if staged.value is not None:
                yield EntryMessage(staged.value).whole(staged.path)

    # --- differences ------------------------------------------------------------------------------------------------

    def differences(self, left: str, right: str, *, since_base: bool = True, since: str = "") -> Iterator[Change]:
        """The changes from `left` to `right`, by content and sorted by path.

        With `since_base`, these are the changes of `right` since the merge base ("three dots"), and a path that both
        sides changed is a conflict. Without it, this is the plain diff ("two dots"). If `right` is then a branch
        followed by `$`, the diff includes what is staged there, from the path `since` onwards.
        """
        if not since_base and right.endswith("$"):
            yield from self._differences_to_staged(left, right, since)
            return
        with self._state.reading():
            ours, foreign = self.resolve(left).commit, self.resolve(right).commit
            base = self.merge_base(foreign, ours) if since_base else ours
        for path, sides in self.committed.differences(ours.metarange_id, foreign.metarange_id).items():
            before = self.committed.value(base.metarange_id, path) if since_base else sides.before
            if (kind := _kind(before, sides)) and (value := sides.after or sides.before):
                yield Change(kind, EntryMessage(value).whole(path))

    def _differences_to_staged(self, left: str, right: str, since: str) -> Iterator[Change]:
        """The diff to a branch's staged data. As on the server, an unreadable staging record makes it fail."""
        before, after = self.resolve(left).commit.metarange_id, self.resolve(right)
        if after.branch is None:
            raise bad_request(f"{right}: ref: invalid value: validation error")
        committed = deque(self.committed.differences(before, after.commit.metarange_id).items())
        for staged in self._staged_since(after.branch, since.encode()):
            while committed and committed[0][0] < staged.path:
                yield from _change(*committed.popleft())
            if committed and committed[0][0] == staged.path:
                committed.popleft()
            yield from _change(staged.path, Sides(self.committed.value(before, staged.path), staged.value))
        for path, sides in committed:
            yield from _change(path, sides)


def _change(path: bytes, sides: Sides) -> Iterator[Change]:
    """The plain diff at a path; nothing if the content is the same."""
    if (kind := _kind(sides.before, sides)) and (value := sides.after or sides.before):
        yield Change(kind, EntryMessage(value).whole(path))


def _is_full(entry: Entry) -> bool:
    """Whether an entry's address is full: by its type or, for the deprecated type, by its form (formats §4)."""
    if entry.address_type is AddressType.BY_PREFIX:
        return "://" in entry.address
    return entry.address_type is AddressType.FULL


def _kind(base: bytes | None, sides: Sides) -> str:
    """How the right side changed a path with this value in the base; "" if it equals the base or the left side."""
    if same_content(sides.before, sides.after) or same_content(base, sides.after):
        return ""
    if not same_content(base, sides.before):
        return "conflict"
    if sides.before is None:
        return "added"
    return "removed" if sides.after is None else "changed"


def folded(changes: Iterator[Change], *, prefix: str, after: str, delimiter: str) -> Iterator[Change | Folded]:
    """The changes after `after` with this prefix; those with a common prefix up to a delimiter are folded into one."""
    start, behind, last = prefix.encode(), after.encode(), b""
    for change in changes:
        path = change.entry.path
        if not path.startswith(start):
            if path > start:
                return
            continue
        at = path.find(delimiter.encode(), len(start)) if delimiter else -1
        name = path if at < 0 else path[: at + len(delimiter.encode())]
        if name > behind and name != last:
            last = name
            yield change if at < 0 else Folded(name.decode())


def as_text(path: bytes) -> str:
    """A path as in the server's JSON: U+FFFD for each byte that is not UTF-8."""
    escaped = path.decode(errors="surrogateescape")
    return "".join("\ufffd" if "\udc80" <= char <= "\udcff" else char for char in escaped)


def check_path(path: str) -> None:
    """Raise `Problem` 400 for a path that no object can have."""
    if not path:
        raise bad_request("argument path: missing path: required value: validation error")
    if len(path.encode()) > LONGEST_PATH:
        raise bad_request(f"argument path: invalid value: validation error: above maximum length ({LONGEST_PATH})")
