"""A repository that is written event by event, with every name, address and date given, and the oracle's view of it.

Unlike the operations of `RepositoryModel`, events leave nothing to the clock or to generated names, so the same events
always give the same commits. Objects are written as a server or a client would have written them: at any key, with any
time, in any spelling of their address.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.errors import Problem
from spark_resources.lakefs_sandbox.gc_api import delete_rules, set_rules
from spark_resources.model import AddressType, Commit, Rules
from spark_resources.sstable import Entry
from tests.support import oracle
from tests.support.repository_model import RepositoryModel, Seen, micros, seen

RESOLUTION = 10_000
"""The granularity of a folder's times, in microseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Content(NamedTuple):
    """What identifies an object's content for lakeFS."""

    data: bytes
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = {}


class Written(NamedTuple):
    """An object that was written: its key, and its content."""

    key: str
    content: Content


class DrawnRepository(RepositoryModel):
    """A repository, with the objects written into its namespace and all its commits, in order."""

    def __init__(self, sandbox: Sandbox, name: str, *, created: datetime) -> None:
        super().__init__(sandbox, name, created=created)
        self.objects: list[Written] = []
        self.elsewhere: set[Seen] = set()
        """What other repositories refer to."""

    # --- objects ----------------------------------------------------------------------------------------------------

    def write_object(self, key: str, content: Content, modified: int) -> Written:
        """Write a file into the namespace. `modified` is its time, in microseconds."""
        file = self.folder / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.data)
        os.utime(file, ns=(modified * 1000, modified * 1000))
        self.objects.append(Written(key, content))
        return self.objects[-1]

    def forms(self, key: str) -> tuple[tuple[AddressType, str], ...]:
        """The ways to write the address of a key, the usual one first."""
        full = [f"{spelling}/{key}" for spelling in self.spellings]
        return (
            (AddressType.RELATIVE, key),
            *((AddressType.FULL, address) for address in full),
            (AddressType.BY_PREFIX, key),
            *((AddressType.BY_PREFIX, address) for address in full),
        )

    def stage(self, branch: str, path: str, address: tuple[AddressType, str], content: Content, modified: int) -> None:
        entry = self.entry(path, address, content, modified)
        self.repository.stage(branch, [entry])
        self.views[branch][path] = seen(entry)

    def entry(self, path: str, address: tuple[AddressType, str], content: Content, modified: int) -> Entry:
        return Entry(
            path=path.encode(), address=address[1], address_type=address[0], size=len(content.data),
            last_modified=moment(modified), metadata=dict(content.metadata),
            checksum=hashlib.md5(content.data, usedforsecurity=False).hexdigest(), content_type=content.content_type,
        )  # fmt: skip

    def delete_path(self, branch: str, path: str) -> None:
        self.repository.delete(branch, [path])
        self.views[branch].pop(path, None)

    # --- commits ----------------------------------------------------------------------------------------------------

    def commit_staged(self, branch: str, date: datetime, metadata: Mapping[str, str]) -> None:
        """Commit what is staged, even if that is nothing."""
        made = self.repository.commit(
            branch, f"commit {len(self.commits)}", metadata=metadata, date=date, allow_empty=True
        )
        before = self.trees[self.heads[branch]]
        # the same content at another address is no change: the commit keeps the older address
        tree = {
            path: before[path] if path in before and before[path].content == now.content else now
            for path, now in self.views[branch].items()
        }
        self._record_commit(made, tree)
        self._move_branch(branch, made.id)

    def merge_branches(self, source: str, into: str, date: datetime, *, strategy: str, squash: bool) -> None:
        """Merge, if neither branch has staged changes: the server computes what the merge contains."""
        try:
            made = self.repository.merge(
                source, into, strategy=strategy, squash=squash, date=date, allow_empty=True, message=f"{date}"
            )
        except Problem:
            return
        self._record_server_commit(into, made)

    def commit_as_version_0(self, branch: str, other: str | None, date: datetime) -> None:
        """Commit the tree of a branch again as an early server did, whose commits have their main parent last. With
        another commit, it is a merge."""
        head = self.repository.commit_of(self.heads[branch])
        parents = (head.id,) if other is None else (other, head.id)
        made = self.repository._record_commit(branch, Commit(
            id="", parents=parents, created=date, metarange_id=head.metarange_id, version=0,
            generation=head.generation + 1, committer="early", message=f"early {len(self.commits)}",
        ))  # fmt: skip
        self._record_commit(made, self.trees[head.id])
        self.commits[made.id] = self.commits[made.id]._replace(version=0)
        self._move_branch(branch, made.id)

    # --- rules and holds --------------------------------------------------------------------------------------------

    def set_rules(self, rules: tuple[int, dict[str, int]] | None) -> None:
        self.rules = rules
        if rules is None:
            delete_rules(self.repository)
        else:
            set_rules(self.repository, Rules(*rules))

    def set_holds(self, holds: Iterable[oracle.H], *, written: int) -> None:
        """Put these holds in force, and write the first ones into the namespace's file."""
        self.holds = {f"h{number}": hold for number, hold in enumerate(holds)}
        every_hold = self.holds
        try:
            self.holds = dict(list(every_hold.items())[:written])
            self._write_holds()
        finally:
            self.holds = every_hold

    # --- what the oracle says ---------------------------------------------------------------------------------------

    def live_keys(self, now: datetime) -> set[str]:
        """The keys that anything refers to that a mark must keep, except holds."""
        return self.keys([*self._live_entries(now), *self.elsewhere])

    def live_keys_of_its_own(self, now: datetime) -> set[str]:
        """The keys that the repository itself refers to and that a mark must keep, except holds."""
        return self.keys(self._live_entries(now))

    def expired(self, stored: Mapping[str, int], scope: str, *, cutoff: datetime, now: datetime) -> set[str]:
        """The keys that a mark of this scope expires, of those stored with these times. `now` is by the server's
        clock. Raises `oracle.Stop` if it has to be refused."""
        unified = oracle.expired_addresses(
            stored,
            committed=[(entry.kind, entry.address) for entry in [*self._live_entries(now), *self.elsewhere]],
            uncommitted=(),
            served=(),
            on_hold=self.on_hold(now),
            spellings=self.spellings,
            cutoff=micros(cutoff),
            resolution=RESOLUTION,
            local_adapter=True,
        )
        expired_commits = self.commits.keys() - self.retained(now)
        return oracle.in_scope(
            scope,
            unified,
            committed=self._committed(self.trees),
            committed_by_expired=self._committed(expired_commits),
        )

    def _committed(self, commits: Iterable[str]) -> set[str]:
        return self.keys(entry for commit in commits for entry in self.trees[commit].values())

    def objects_now(self) -> dict[str, bytes]:
        """Every file of the namespace, except the server's and lakegc's own."""
        own = ("_lakefs/", ".lakegc-tmp/")
        return {key: (self.folder / key).read_bytes() for key in self.stored() if not key.startswith(own)}


def moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)
