"""Creates, looks up, lists and deletes the sandbox's repositories."""

from __future__ import annotations

import re
import threading
from datetime import datetime
from pathlib import Path

from spark_resources.errors import LakegcError
from spark_resources.lakefs_sandbox.clock import Clock, MachineClock, SandboxClock
from spark_resources.lakefs_sandbox.committed import DEFAULT_RANGE_ENTRIES, Committed
from spark_resources.lakefs_sandbox.errors import Problem, bad_request, conflict, not_found, read_only
from spark_resources.lakefs_sandbox.faults import Faults
from spark_resources.lakefs_sandbox.local_objects import LocalBlockStore
from spark_resources.lakefs_sandbox.objects import BlockStore, Objects
from spark_resources.lakefs_sandbox.repository import SandboxRepository, first_commit
from spark_resources.lakefs_sandbox.state import BranchRecord, RepositoryRecord, State
from spark_resources.lakefs_sandbox.store_objects import StoreBlockStore, StorePlace
from spark_resources.lakefs_sandbox.xids import AddressGenerator, Xids

_ID = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")
_DUMMY_KEY = "_lakefs/dummy"
_DUMMY = b"this is dummy data - created by lakeFS to check accessibility"


class Catalog:
    """Everything behind the sandbox's routes: one state file, one block store, one clock.

    Objects are in a folder next to the state file or, if `place` is given, in an object store.
    """

    def __init__(
        self,
        root: Path,
        *,
        range_entries: int = DEFAULT_RANGE_ENTRIES,
        place: StorePlace | None = None,
        signing_key: str = "",
        faults: Faults | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self.local_path = root / "objects"
        self.local_path.mkdir(parents=True, exist_ok=True)
        self.clock: Clock = SandboxClock(self.local_path) if place is None else MachineClock()
        self.block_store: BlockStore = (
            LocalBlockStore(self.local_path, self.clock) if place is None else StoreBlockStore(place)
        )
        self._signing_key = signing_key
        self.state = State(root / "server.sqlite")
        self.xids = Xids(self.state.next_number("starts"), self.clock.now)
        self._addresses = AddressGenerator(self.xids, self.clock.now)
        self._range_entries = range_entries
        self._lock = threading.Lock()
        self._committed: dict[str, Committed] = {}

    def close(self) -> None:
        self.state.close()

    def repositories(self) -> list[RepositoryRecord]:
        """All repositories, sorted by id."""
        return self.state.repositories()

    def repository(self, repository: str) -> SandboxRepository:
        """The repository with this id. Raises `Problem` 404 if it doesn't exist."""
        record = self.state.repository(repository)
        if record is None:
            raise not_found("repository")
        objects = self._objects(record.storage_namespace)
        return SandboxRepository(
            self.state,
            record,
            objects=objects,
            committed=self._committed_data(record.storage_namespace, objects),
            addresses=self._addresses,
            clock=self.clock,
            signing_key=self._signing_key,
            faults=self.faults,
        )

    def _objects(self, storage_namespace: str) -> Objects:
        """The objects of a namespace. Raises `Problem` 400 if it isn't in the sandbox's block store."""
        scheme = self.block_store.scheme
        if not storage_namespace.startswith(scheme) or not storage_namespace.removeprefix(scheme).strip("/"):
            raise bad_request(f"failed to create repository: invalid address, must match: {scheme}")
        return self.block_store.objects(storage_namespace)

    def _committed_data(self, storage_namespace: str, objects: Objects) -> Committed:
        with self._lock:
            if storage_namespace not in self._committed:
                self._committed[storage_namespace] = Committed(objects, range_entries=self._range_entries)
            return self._committed[storage_namespace]

    def create(
        self,
        repository: str,
        storage_namespace: str = "",
        *,
        default_branch: str = "main",
        read_only: bool = False,
        date: datetime | None = None,
    ) -> SandboxRepository:
        """Create a repository and its first commit, dated `date` (default: now).

        The default namespace is the block store's default prefix followed by the repository's name.

        Raises `Problem` 409 if the repository exists, and 400 if the name or namespace is invalid or the namespace is
        in use.
        """
        storage_namespace = storage_namespace or self.block_store.default_prefix + repository
        if self.state.repository(repository) is not None:
            raise conflict("error creating repository: not unique")
        if not _ID.fullmatch(repository):
            raise bad_request(
                "error creating repository: argument name: repository id: invalid value: validation error"
            )
        objects = self._objects(storage_namespace)
        if not read_only:
            _claim(objects)
        now = date or self.clock.now()
        commit = first_commit(now)
        with self.state.write_transaction():
            if self.state.repository(repository) is not None:
                raise conflict("error creating repository: not unique")
            self.state.put_repository(
                RepositoryRecord(repository, storage_namespace, default_branch, now, read_only=read_only)
            )
            self.state.put_commit(repository, commit)
            self.state.put_branch(repository, BranchRecord(default_branch, commit.id))
        return self.repository(repository)

    def delete(self, repository: str, *, force: bool = False) -> None:
        """Delete a repository. Its objects stay, and so does the claim on its namespace."""
        if self.repository(repository).record.read_only and not force:
            raise read_only()
        self.state.drop_repository(repository)


def _claim(objects: Objects) -> None:
    """Claim the namespace with the file that a server writes into each one.

    Raises `Problem` 400 if that fails, or if the namespace is already claimed.
    """
    try:
        is_claimed = objects.has(_DUMMY_KEY)
        if not is_claimed:
            objects.write(_DUMMY_KEY, _DUMMY)
    except Problem:
        raise
    except LakegcError as error:
        raise bad_request(f"failed to create repository: failed to access storage: {error}") from error
    if is_claimed:
        raise bad_request(
            f"failed to create repository: found lakeFS objects in the storage namespace(:{objects.storage_namespace}) "
            f"key({_DUMMY_KEY}): storage namespace already in use"
        )
