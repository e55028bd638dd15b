"""One repository of the sandbox: creates commits and moves branches by the server's rules.

The HTTP routes call these methods. Tests and the demo may call them directly where many HTTP requests would be slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from spark_resources.lakefs_sandbox.errors import bad_request, conflict, no_changes
from spark_resources.lakefs_sandbox.merging import STRATEGIES, merge_metaranges
from spark_resources.lakefs_sandbox.objects import ExternalObject
from spark_resources.lakefs_sandbox.ref_views import MAX_PATH_BYTES, Change
from spark_resources.lakefs_sandbox.staging import DEFAULT_CONTENT_TYPE, StagingArea
from spark_resources.lakefs_sandbox.state import StagedEntry
from spark_resources.model import AddressType, Commit
from spark_resources.sstable import Entry, commit_id, entry_identity
from spark_resources.sstable.values import encode_entry, encode_value

__all__ = ["DEFAULT_CONTENT_TYPE", "MAX_PATH_BYTES", "Change", "ImportSource", "SandboxRepository", "first_commit"]

COMMITTER = "admin"
FIRST_COMMIT_MESSAGE = "Repository created"
_MERGE_STRATEGY_KEY = ".lakefs.merge.strategy"


@dataclass(frozen=True, slots=True)
class ImportSource:
    """The source of an import (an object, or all objects with an address prefix) and its destination path or prefix."""

    address: str
    destination: str
    is_prefix: bool = True


class SandboxRepository(StagingArea):
    """A repository. Paths are text; every method raises `Problem` with the server's status."""

    def commit(
        self, branch: str, message: str, *, metadata: Mapping[str, str] | None = None, date: datetime | None = None,
        allow_empty: bool = False, committer: str = COMMITTER,
    ) -> Commit:  # fmt: skip
        """Commit the staged changes. Raises `Problem` 400 if there are none, unless an empty commit is allowed."""
        self.check_writable()
        with self._state.write_transaction():
            parent = self.commit_of(self.branch(branch).commit_id)
            staged = self._state.staged(self.id, branch)
            changes = [change for change, _ in self.committed.changes(parent.metarange_id, staged)]
            if not changes and not allow_empty:
                raise no_changes("commit")
            metarange = self.committed.apply_changes(parent.metarange_id, changes)
            return self._record_commit(branch, Commit(
                id="", parents=(parent.id,), created=date or self.clock.now(), metarange_id=metarange,
                generation=parent.generation + 1, committer=committer, message=message, metadata=metadata or {},
            ))  # fmt: skip

    def merge(
        self, source: str, into: str, *, message: str = "", metadata: Mapping[str, str] | None = None,
        strategy: str = "", allow_empty: bool = False, squash: bool = False, committer: str = COMMITTER,
        date: datetime | None = None,
    ) -> Commit:  # fmt: skip
        """Merge a ref into a branch. Raises `Problem` 409 for conflicts, and 400 for a dirty branch or no changes."""
        self.check_writable()
        if strategy not in STRATEGIES:
            raise bad_request("argument strategy: invalid value: validation error")
        chosen = STRATEGIES[strategy]
        with self._state.write_transaction():
            dest = self._clean_head(into)
            source_commit = self.resolve(source).commit
            base = self.merge_base(source_commit, dest)
            if source_commit.metarange_id == base.metarange_id and not allow_empty:
                raise no_changes(f"update branch {into}")
            metarange = merge_metaranges(
                self.committed, source=source_commit.metarange_id, dest=dest.metarange_id, base=base.metarange_id,
                strategy=chosen,
            )  # fmt: skip
            return self._record_commit(into, Commit(
                id="", parents=(dest.id,) if squash else (dest.id, source_commit.id), created=date or self.clock.now(),
                metarange_id=metarange, generation=max(dest.generation, source_commit.generation) + 1,
                committer=committer, message=message or f"Merge '{source}' into '{into}'",
                metadata={**(metadata or {}), _MERGE_STRATEGY_KEY: chosen.name},
            ))  # fmt: skip

    def revert(
        self, branch: str, ref: str, *, parent_number: int = 0, message: str = "",
        metadata: Mapping[str, str] | None = None, allow_empty: bool = False, committer: str = COMMITTER,
    ) -> Commit:  # fmt: skip
        """Undo a commit's changes in a new commit.

        To revert a merge commit, pass the number (starting from 1) of the parent to revert relative to. Raises
        `Problem` 409 if this number is missing or later commits changed the same paths, and 400 if there is nothing to
        undo.
        """
        self.check_writable()
        with self._state.write_transaction():
            undone = self.resolve(ref).commit
            if len(undone.parents) > 1 and parent_number <= 0:
                raise conflict("must specify 1-based parent number for reverting merge commit")
            before = self._parent_metarange(undone, max(parent_number, 1), required=parent_number > 0)
            head = self._clean_head(branch)
            if before == undone.metarange_id and not allow_empty:
                raise no_changes("update branch")
            metarange = merge_metaranges(
                self.committed, source=before, dest=head.metarange_id, base=undone.metarange_id,
                strategy=STRATEGIES[""],
            )  # fmt: skip
            if metarange == head.metarange_id and not allow_empty:
                raise no_changes("update branch")
            return self._record_commit(branch, Commit(
                id="", parents=(head.id,), created=self.clock.now(), metarange_id=metarange,
                generation=head.generation + 1, committer=committer, message=message or f"Revert {ref}",
                metadata=metadata or {},
            ))  # fmt: skip

    def cherry_pick(
        self, branch: str, ref: str, *, parent_number: int | None = None, message: str = "",
        metadata: Mapping[str, str] | None = None, committer: str = COMMITTER,
    ) -> Commit:  # fmt: skip
        """Apply a commit's changes to a branch. Raises `Problem` 400 for a merge commit without a parent number."""
        self.check_writable()
        with self._state.write_transaction():
            picked = self.resolve(ref).commit
            if len(picked.parents) > 1 and parent_number is None:
                raise bad_request("must specify 1-based parent number for cherry-picking merge commit")
            before = self._parent_metarange(picked, 1 if parent_number is None else parent_number, required=True)
            head = self._clean_head(branch)
            if picked.metarange_id == before:
                raise no_changes("update branch")
            metarange = merge_metaranges(
                self.committed, source=picked.metarange_id, dest=head.metarange_id, base=before,
                strategy=STRATEGIES[""],
            )  # fmt: skip
            origin = {"cherry-pick-origin": picked.id, "cherry-pick-committer": picked.committer}
            return self._record_commit(branch, Commit(
                id="", parents=(head.id,), created=self.clock.now(), metarange_id=metarange,
                generation=head.generation + 1, committer=committer, message=message or picked.message,
                metadata={**(picked.metadata if metadata is None else metadata), **origin},
            ))  # fmt: skip

    def hard_reset(self, branch: str, ref: str) -> None:
        """Move a branch to another commit. Commits that are no longer reachable stay as dangling commits."""
        self.check_writable()
        with self._state.write_transaction():
            self._clean_head(branch)
            commit = self.resolve(ref).commit
            self._state.put_branch(self.id, replace(self.branch(branch), commit_id=commit.id))

    def import_objects(
        self, branch: str, sources: Sequence[ImportSource], message: str = "Import objects", *,
        metadata: Mapping[str, str] | None = None, committer: str = COMMITTER,
    ) -> tuple[Commit, int]:  # fmt: skip
        """Commit entries for objects outside the namespace, replacing everything under the destinations.

        Returns the commit and the number of objects. Raises `Problem` 400 for a source inside the namespace, or if no
        source has any objects.
        """
        self.check_writable()
        imported: dict[bytes, bytes] = {}
        for source in sources:
            self.check_source(source)
            for external in self.objects.external_objects(source.address):
                if source.is_prefix or not external.key:
                    entry = _imported_entry(external, source.destination + (external.key if source.is_prefix else ""))
                    imported[entry.path] = encode_value(entry_identity(entry), encode_entry(entry))
        if not imported:
            raise bad_request("error on ingest: there are no objects at the import's sources")
        with self._state.write_transaction():
            head = self._clean_head(branch)
            replaced = {
                record.key: None
                for source in sources
                for record in self.committed.records_with_prefix(head.metarange_id, source.destination.encode())
            }
            changes = [StagedEntry(*item) for item in sorted({**replaced, **imported}.items())]
            commit = self._record_commit(branch, Commit(
                id="", parents=(head.id,), created=self.clock.now(),
                metarange_id=self.committed.apply_changes(head.metarange_id, changes), generation=head.generation + 1,
                committer=committer, message=message or "Import objects",
                metadata={**(metadata or {}), _MERGE_STRATEGY_KEY: "source-wins"},
            ))  # fmt: skip
        return commit, len(imported)

    def check_source(self, source: ImportSource) -> None:
        """Raise `Problem` 400 for a source that is in the namespace, or contains it."""
        for root in (self.objects.storage_namespace, self.objects.location("").rstrip("/")):
            if source.address.startswith(root + "/") or source.address == root:
                raise bad_request(f"import path ({source.address}) in repository namespace ({root}) is prohibited")
            if source.is_prefix and (root + "/").startswith(source.address):
                raise bad_request(f"prefix ({source.address}) contains repository namespace: ({root})")

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _clean_head(self, branch: str) -> Commit:
        """The head commit of a branch. Raises `Problem` 400 if the branch has uncommitted changes."""
        head = self.commit_of(self.branch(branch).commit_id)
        if next(self.uncommitted_changes(branch), None) is not None:
            raise bad_request(f"update branch {branch}: uncommitted changes (dirty branch)")
        return head

    def _parent_metarange(self, commit: Commit, number: int, *, required: bool) -> str:
        """The metarange of a commit's parent by number (from 1); "" if there is none and it isn't required."""
        if 1 <= number <= len(commit.parents):
            return self.commit_of(commit.parents[number - 1]).metarange_id
        if required:
            raise bad_request(f"given commit does not have the given parent number: parent {number}")
        return ""

    def _record_commit(self, branch: str, commit: Commit) -> Commit:
        """Record a commit as the branch's head, and clear all staged entries, including those that weren't changes.

        Returns the commit with its id.
        """
        commit = replace(commit, id=commit_id(commit))
        self._state.put_commit(self.id, commit)
        self._state.put_branch(self.id, replace(self.branch(branch), commit_id=commit.id))
        self._state.clear_staged(self.id, branch)
        return commit


def first_commit(now: datetime) -> Commit:
    """The commit that every repository begins with, without objects or a committer."""
    commit = Commit(id="", parents=(), created=now, metarange_id="", generation=1, message=FIRST_COMMIT_MESSAGE)
    return replace(commit, id=commit_id(commit))


def _imported_entry(external: ExternalObject, path: str) -> Entry:
    """The entry as the server writes it: without a content type, because listings don't include one."""
    return Entry(
        path=path.encode(), address=external.address, address_type=AddressType.FULL, size=external.size,
        checksum=external.checksum, last_modified=external.modified,
    )  # fmt: skip
