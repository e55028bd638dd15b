"""The staging area of a branch: writes, deletes, resets, copies and links. No object is ever removed from the store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from spark_resources.lakefs_sandbox.clock import Clock
from spark_resources.lakefs_sandbox.committed import Committed, same_content
from spark_resources.lakefs_sandbox.errors import bad_request
from spark_resources.lakefs_sandbox.faults import Faults
from spark_resources.lakefs_sandbox.link_tokens import LinkTokens
from spark_resources.lakefs_sandbox.objects import Objects
from spark_resources.lakefs_sandbox.ref_views import Views, check_path
from spark_resources.lakefs_sandbox.state import RepositoryRecord, StagedEntry, State
from spark_resources.lakefs_sandbox.xids import AddressGenerator
from spark_resources.model import AddressType
from spark_resources.sstable import Entry, entry_identity
from spark_resources.sstable.values import encode_entry, encode_value

DEFAULT_CONTENT_TYPE = "application/octet-stream"
SHALLOW_COPY_KEY = "::lakefs::shallow-copy"


class StagingArea(Views):
    """The operations that write a repository's staged entries; `SandboxRepository` adds commits.

    Methods raise `Problem` with the server's status.
    """

    def __init__(
        self, state: State, record: RepositoryRecord, *, objects: Objects, committed: Committed,
        addresses: AddressGenerator, clock: Clock, signing_key: str = "", faults: Faults | None = None,
    ) -> None:  # fmt: skip
        super().__init__(state, record, objects=objects, committed=committed, clock=clock, faults=faults)
        self._addresses = addresses
        self._tokens = LinkTokens(signing_key)

    # --- objects through the server ---------------------------------------------------------------------------------

    def put(
        self, branch: str, path: str, data: bytes, *, content_type: str = DEFAULT_CONTENT_TYPE,
        metadata: Mapping[str, str] | None = None,
    ) -> Entry:  # fmt: skip
        """Store an object at a new address and stage it."""
        self.check_writable()
        self.branch(branch)
        check_path(path)
        now = self.clock.now()
        entry = _entry(
            path, data, self._addresses.new_address(now), now, content_type=content_type, metadata=metadata or {}
        )
        self.objects.write(entry.address, data)
        self.stage(branch, [entry])
        return entry

    def put_many(
        self, branch: str, objects: Iterable[tuple[str, bytes]], *, content_type: str = DEFAULT_CONTENT_TYPE
    ) -> int:
        """Store many objects with the same date and stage them in one transaction. Returns their number."""
        self.check_writable()
        self.branch(branch)
        now = self.clock.now()
        entries = []
        with self.objects.writing() as write:
            for path, data in objects:
                check_path(path)
                entry = _entry(
                    path, data, self._addresses.new_address(now), now, content_type=content_type, metadata={}
                )
                write(entry.address, data)
                entries.append(entry)
        self.stage(branch, entries)
        return len(entries)

    def copy(self, branch: str, path: str, source: str, *, source_ref: str = "", shallow: bool = False) -> Entry:
        """Stage a copy of the entry at the path `source` of a ref, with a new object or, if `shallow`, the same one.

        As on the server, a shallow copy is refused (400) unless its source is on the same branch.
        """
        self.check_writable()
        self.branch(branch)
        check_path(path)
        original = self.stat(source_ref or branch, source)
        if shallow:
            if source_ref not in ("", branch):
                raise bad_request("not on the same branch: cannot clone: invalid")
            first_source = original.metadata.get(SHALLOW_COPY_KEY, source)
            copied = replace(original, metadata={**original.metadata, SHALLOW_COPY_KEY: first_source})
        else:
            copied = replace(original, address=self._addresses.new_address(), address_type=AddressType.RELATIVE)
            self.objects.write(copied.address, self.data_of(original))
        copied = replace(copied, path=path.encode(), last_modified=self.clock.now())
        self.stage(branch, [copied])
        return copied

    # --- objects written by clients ---------------------------------------------------------------------------------

    def new_location(self, branch: str, path: str) -> str:
        """A location for an object that a client may write and link to this path of this branch within 24 hours."""
        check_path(path)
        signed = self._tokens.sign(self._addresses.new_address(), repository=self.id, branch=branch, path=path)
        return self.objects.location(signed)

    def link(
        self, branch: str, path: str, location: str, *, size: int, checksum: str, modified: datetime | None = None,
        content_type: str = "", metadata: Mapping[str, str] | None = None,
    ) -> Entry:  # fmt: skip
        """Stage an object that a client wrote to a location issued to it.

        Raises `Problem` 400 for an address in this namespace that wasn't issued for this path, or was issued too long
        ago.
        """
        address, kind = self._parse_location(location)
        key = self.key_inside(Entry(path=b"", address=address, address_type=kind))
        if key is not None:
            self._tokens.check(key, repository=self.id, branch=branch, path=path, now=self.clock.now())
        if not (unquoted_checksum := checksum.strip(' "')):
            raise bad_request("checksum is required")
        return self.stage_address(
            branch, path, location, size=size, checksum=unquoted_checksum, modified=modified, content_type=content_type,
            metadata=metadata,
        )  # fmt: skip

    def stage_address(
        self, branch: str, path: str, location: str, *, size: int, checksum: str, modified: datetime | None = None,
        content_type: str = "", metadata: Mapping[str, str] | None = None,
    ) -> Entry:  # fmt: skip
        """Stage an object by its full address in the block store, whether or not it exists."""
        check_path(path)
        scheme = self.objects.location("").partition("://")[0] + "://"
        if not location.startswith(scheme):
            raise bad_request(f"physical address is not valid for block adapter: {scheme.removesuffix('://')}")
        address, kind = self._parse_location(location)
        entry = Entry(
            path=path.encode(), address=address, address_type=kind, size=size, checksum=checksum,
            last_modified=modified or self.clock.now(), metadata=metadata or {},
            content_type=content_type or DEFAULT_CONTENT_TYPE,
        )  # fmt: skip
        self.stage(branch, [entry])
        return entry

    def _parse_location(self, location: str) -> tuple[str, AddressType]:
        """A location as an address in an entry: relative only if it begins with the configured namespace.

        On the local adapter, locations that the server reports have another form, so they become full addresses
        (formats §4).
        """
        root = self.objects.storage_namespace + "/"
        if location.startswith(root + "data/"):
            return location[len(root) :], AddressType.RELATIVE
        return location, AddressType.FULL

    # --- staging ----------------------------------------------------------------------------------------------------

    def stage(self, branch: str, entries: Iterable[Entry]) -> None:
        """Stage entries without writing their objects, which need not exist."""
        staged = (
            StagedEntry(entry.path, encode_value(entry_identity(entry), encode_entry(entry))) for entry in entries
        )
        self.stage_values(branch, staged)

    def stage_values(self, branch: str, staged: Iterable[StagedEntry]) -> None:
        """Stage encoded values, as stored in SSTables; None is a tombstone that hides the committed entry."""
        self.check_writable()
        with self._state.write_transaction():
            self.branch(branch)
            self._state.stage(self.id, branch, staged)

    def set_metadata(self, branch: str, path: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of the branch's entry at a path, but not its object."""
        with self._state.write_transaction():
            self.stage(branch, [replace(self.stat(branch, path), metadata=metadata)])

    def delete(self, branch: str, paths: Iterable[str]) -> None:
        """Replace staged and committed entries at these paths with tombstones. A path without an entry is ignored."""
        self.check_writable()
        with self._state.write_transaction():
            metarange = self.commit_of(self.branch(branch).commit_id).metarange_id
            tombstones = [
                StagedEntry(path, None)
                for path in map(_checked_key, paths)
                if self._state.staged_at(self.id, branch, path) or self.committed.value(metarange, path) is not None
            ]
            self._state.stage(self.id, branch, tombstones)

    def reset(self, branch: str) -> None:
        """Discard everything staged on a branch. The objects stay in the store."""
        self.check_writable()
        with self._state.write_transaction():
            self.branch(branch)
            self._state.clear_staged(self.id, branch)

    def reset_path(self, branch: str, path: str) -> None:
        """Discard the entry staged at a path, if there is one."""
        self.check_writable()
        key = _checked_key(path)
        with self._state.write_transaction():
            self.branch(branch)
            staged = self._state.staged_at(self.id, branch, key)
            self._unstage(branch, [staged] if staged else [])

    def reset_prefix(self, branch: str, prefix: str) -> None:
        """Discard the entries staged at all paths with this prefix."""
        self.check_writable()
        start = prefix.encode()
        with self._state.write_transaction():
            self.branch(branch)
            staged = self._state.staged(self.id, branch, at_least=start)
            self._unstage(branch, [entry for entry in staged if entry.path.startswith(start)])

    def _unstage(self, branch: str, staged: Iterable[StagedEntry]) -> None:
        """Unstage entries. As on the server, those with the content that is committed at their path stay staged, even
        if their addresses differ."""
        metarange = self.commit_of(self.branch(branch).commit_id).metarange_id
        for entry in staged:
            if entry.value is None or not same_content(self.committed.value(metarange, entry.path), entry.value):
                self._state.unstage(self.id, branch, entry.path)


def _entry(
    path: str, data: bytes, address: str, now: datetime, *, content_type: str, metadata: Mapping[str, str]
) -> Entry:
    return Entry(
        path=path.encode(), address=address, size=len(data), last_modified=now, metadata=metadata,
        checksum=hashlib.md5(data, usedforsecurity=False).hexdigest(), content_type=content_type,
    )  # fmt: skip


def _checked_key(path: str) -> bytes:
    check_path(path)
    return path.encode()
