"""The reader's view of a ref: staged entries override committed ones. Also listings, and diffs by content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from spark_resources.lakefs_sandbox.clock import Clock
from spark_resources.lakefs_sandbox.committed import Committed, ValuePair, same_content
from spark_resources.lakefs_sandbox.errors import Problem, bad_request, not_found
from spark_resources.lakefs_sandbox.faults import Faults
from spark_resources.lakefs_sandbox.objects import Objects
from spark_resources.lakefs_sandbox.refs import References, ResolvedRef
from spark_resources.lakefs_sandbox.state import RepositoryRecord, StagedEntry, State
from spark_resources.model import AddressType
from spark_resources.sstable import Entry, Record
from spark_resources.sstable.values import EntryMessage

MAX_PATH_BYTES = 1024
_STAGED_PAGE = 1000
_AFTER_ANY_SUFFIX = b"\xff"  # never in UTF-8 text: a prefix plus this byte sorts after every path with the prefix


@dataclass(frozen=True, slots=True)
class Change:
    """One change: added, changed, removed or conflict. `entry` is the new entry, or the removed one."""

    kind: str
    entry: Entry


class PrefixChange(NamedTuple):
    """All changes under a common prefix, reported as one."""

    path: str


class Views(References):
    """The read operations of a repository. Paths are text; methods raise `Problem` with the server's status."""

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
        """The entry that a reader of the ref gets at a path. Its object may be gone from the store."""
        check_path(path)
        key = path.encode()
        with self._state.read_transaction():
            resolved = self.resolve(ref)
            if resolved.branch is not None and (staged := self._state.staged_at(self.id, resolved.branch, key)):
                self.faults.check_readable(resolved.branch, key)
                value = staged.value
            else:
                value = self.committed.value(resolved.commit.metarange_id, key)
        if value is None:
            raise not_found()
        return EntryMessage(value).to_entry(key)

    def read(self, ref: str, path: str) -> tuple[Entry, bytes]:
        """An entry and its object's bytes. Raises `Problem` 410 if the object is gone from the store."""
        entry = self.stat(ref, path)
        return entry, self.data_of(entry)

    def data_of(self, entry: Entry) -> bytes:
        """The bytes of an entry's object, in this namespace or, for a full address, anywhere in the block store."""
        if _has_full_address(entry):
            entry = replace(entry, address=self.objects.resolve_address(entry.address))
        key = self.key_inside(entry)
        return self.objects.read_external(entry.address) if key is None else self.objects.read(key)

    def key_inside(self, entry: Entry) -> str | None:
        """An entry's key in the namespace, from its address as written; None if the address has another prefix."""
        if entry.address_type is AddressType.RELATIVE:
            return entry.address
        for root in (self.objects.storage_namespace, self.objects.location("").rstrip("/")):
            if entry.address.startswith(root + "/"):
                return entry.address[len(root) + 1 :]
        return None if _has_full_address(entry) else entry.address

    def physical_address(self, entry: Entry) -> str:
        """An entry's address as shown by `stat` and `ls`."""
        return (
            self.objects.resolve_address(entry.address)
            if _has_full_address(entry)
            else self.objects.location(entry.address)
        )

    def listing(
        self, ref: str, *, prefix: str = "", after: str = "", delimiter: str = "", amount: int = 1000
    ) -> tuple[list[Entry | str], bool]:
        """A page of entries and (as text) common prefixes, in byte order, and whether there are more."""
        with self._state.read_transaction():
            items = self._items(self.resolve(ref), prefix.encode(), after.encode(), delimiter.encode())
            page = list(islice(items, amount + 1))
        return page[:amount], len(page) > amount

    def _items(self, resolved: ResolvedRef, prefix: bytes, after: bytes, delimiter: bytes) -> Iterator[Entry | str]:
        view = self.merged_view(resolved, max(prefix, after))
        while (record := next(view, None)) is not None and record.key.startswith(prefix):
            delimiter_index = record.key.find(delimiter, len(prefix)) if delimiter else -1
            if delimiter_index < 0:
                if record.key != after:
                    yield EntryMessage(record.value).to_entry(record.key)
                continue
            common = record.key[: delimiter_index + len(delimiter)]
            if common != after:
                yield common.decode()
            view = self.merged_view(resolved, common + _AFTER_ANY_SUFFIX)

    def merged_view(self, resolved: ResolvedRef, start: bytes = b"") -> Iterator[Record]:
        """The records that a reader gets from a path onwards. Staged entries override committed ones."""
        staged = self._staged_from(resolved.branch, start) if resolved.branch else iter(())
        next_staged = next(staged, None)
        for record in self.committed.records_from(resolved.commit.metarange_id, start):
            while next_staged is not None and next_staged.path < record.key:
                if next_staged.value is not None:
                    yield Record(next_staged.path, next_staged.value)
                next_staged = next(staged, None)
            if next_staged is not None and next_staged.path == record.key:
                continue  # the staged value replaces it, and is yielded before the next committed one
            yield record
        while next_staged is not None:
            if next_staged.value is not None:
                yield Record(next_staged.path, next_staged.value)
            next_staged = next(staged, None)

    def _staged_from(self, branch: str, start: bytes) -> Iterator[StagedEntry]:
        while page := self._state.staged(self.id, branch, at_least=start, limit=_STAGED_PAGE):
            for entry in page:
                self.faults.check_readable(branch, entry.path)
                yield entry
            if len(page) < _STAGED_PAGE:
                return
            start = page[-1].path + b"\x00"

    def uncommitted_changes(self, branch: str, *, start: str = "") -> Iterator[Change]:
        """The uncommitted changes on a branch from a path onwards. As on the server, addresses aren't compared."""
        return self._changes(branch, self._staged_from(branch, start.encode()))

    def uncommitted_changes_until_unreadable(self, branch: str, *, start: str = "") -> Iterator[Change]:
        """Like `uncommitted_changes`, but an unreadable record ends the changes without an error.

        The server's list of staged objects and its diff end in the same way.
        """
        return self._changes(branch, self._staged_until_unreadable(branch, start.encode()))

    def _staged_until_unreadable(self, branch: str, start: bytes) -> Iterator[StagedEntry]:
        limit = self.faults.scan_limit()
        try:
            for number, entry in enumerate(self._staged_from(branch, start)):
                if number == limit:
                    self.faults.injection_counts["scans that ended early"] += 1
                    return
                yield entry
        except Problem:
            return

    def _changes(self, branch: str, staged_entries: Iterator[StagedEntry]) -> Iterator[Change]:
        metarange = self.commit_of(self.branch(branch).commit_id).metarange_id
        for staged, before in self.committed.changes(metarange, staged_entries):
            if staged.value is None:
                assert before is not None  # a tombstone for a missing path isn't a change
                yield Change("removed", EntryMessage(before).to_entry(staged.path))
            else:
                entry = EntryMessage(staged.value).to_entry(staged.path)
                yield Change("added" if before is None else "changed", entry)

    def staged_entries(self, branch: str, *, start: str = "") -> Iterator[Entry]:
        """Every entry staged on a branch from a path onwards, even if the server doesn't consider it a change."""
        for staged in self._staged_from(branch, start.encode()):
            if staged.value is not None:
                yield EntryMessage(staged.value).to_entry(staged.path)

    # --- differences ------------------------------------------------------------------------------------------------

    def differences(self, left: str, right: str, *, since_base: bool = True, start: str = "") -> Iterator[Change]:
        """The changes from `left` to `right`, by content and sorted by path.

        With `since_base`, these are the changes of `right` since the merge base ("three dots"), and a path that both
        sides changed is a conflict. Without it, this is the plain diff ("two dots"), which also includes staged entries
        from the path `start` onwards if `right` is a branch followed by `$`.
        """
        if not since_base and right.endswith("$"):
            yield from self._differences_to_staged(left, right, start)
            return
        with self._state.read_transaction():
            left_commit, right_commit = self.resolve(left).commit, self.resolve(right).commit
            base = self.merge_base(right_commit, left_commit) if since_base else left_commit
        for path, values in self.committed.differences(left_commit.metarange_id, right_commit.metarange_id).items():
            before = self.committed.value(base.metarange_id, path) if since_base else values.before
            if (kind := _change_kind(before, values)) and (value := values.after or values.before):
                yield Change(kind, EntryMessage(value).to_entry(path))

    def _differences_to_staged(self, left: str, right: str, start: str) -> Iterator[Change]:
        """The diff to a branch's staged data. As on the server, it fails if a staging record is unreadable."""
        left_metarange, resolved_right = self.resolve(left).commit.metarange_id, self.resolve(right)
        if resolved_right.branch is None:
            raise bad_request(f"{right}: ref: invalid value: validation error")
        committed = deque(self.committed.differences(left_metarange, resolved_right.commit.metarange_id).items())
        for staged in self._staged_from(resolved_right.branch, start.encode()):
            while committed and committed[0][0] < staged.path:
                yield from _change(*committed.popleft())
            if committed and committed[0][0] == staged.path:
                committed.popleft()
            yield from _change(staged.path, ValuePair(self.committed.value(left_metarange, staged.path), staged.value))
        for path, values in committed:
            yield from _change(path, values)


def _change(path: bytes, values: ValuePair) -> Iterator[Change]:
    """Yield the change at a path for the plain diff, unless the content is the same."""
    if (kind := _change_kind(values.before, values)) and (value := values.after or values.before):
        yield Change(kind, EntryMessage(value).to_entry(path))


def _has_full_address(entry: Entry) -> bool:
    """Whether an entry's address is full: by its type or, for the deprecated type, by its form (formats §4)."""
    if entry.address_type is AddressType.BY_PREFIX:
        return "://" in entry.address
    return entry.address_type is AddressType.FULL


def _change_kind(base: bytes | None, values: ValuePair) -> str:
    """How the right side changed a path with this base value; "" if its content is the base's or the left side's."""
    if same_content(values.before, values.after) or same_content(base, values.after):
        return ""
    if not same_content(base, values.before):
        return "conflict"
    if values.before is None:
        return "added"
    return "removed" if values.after is None else "changed"


def group_by_prefix(
    changes: Iterator[Change], *, prefix: str, after: str, delimiter: str
) -> Iterator[Change | PrefixChange]:
    """The changes with this prefix to paths after `after`.

    Changes to paths that agree up to the first delimiter after the prefix become one.
    """
    start, after_path, last = prefix.encode(), after.encode(), b""
    for change in changes:
        path = change.entry.path
        if not path.startswith(start):
            if path > start:
                return
            continue
        delimiter_index = path.find(delimiter.encode(), len(start)) if delimiter else -1
        name = path if delimiter_index < 0 else path[: delimiter_index + len(delimiter.encode())]
        if name > after_path and name != last:
            last = name
            yield change if delimiter_index < 0 else PrefixChange(name.decode())


def as_text(path: bytes) -> str:
    """A path as in the server's JSON, with U+FFFD for each byte that is not UTF-8."""
    escaped = path.decode(errors="surrogateescape")
    return "".join("\ufffd" if "\udc80" <= char <= "\udcff" else char for char in escaped)


def check_path(path: str) -> None:
    """Raise `Problem` 400 for a path that no object can have."""
    if not path:
        raise bad_request("argument path: missing path: required value: validation error")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise bad_request(f"argument path: invalid value: validation error: above maximum length ({MAX_PATH_BYTES})")
