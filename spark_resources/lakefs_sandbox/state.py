"""The server's state outside the object store: references, commits and staged entries, in one SQLite file.

Each thread has its own connection. Reads in one transaction see one snapshot. Writes are serialized, even across
processes.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from spark_resources.model import Commit

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS repositories (
    id TEXT PRIMARY KEY, storage_namespace TEXT NOT NULL, default_branch TEXT NOT NULL, created_us INTEGER NOT NULL,
    read_only INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS branches (
    repository TEXT, id TEXT, commit_id TEXT NOT NULL, hidden INTEGER NOT NULL,
    PRIMARY KEY (repository, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tags (
    repository TEXT, id TEXT, commit_id TEXT NOT NULL, PRIMARY KEY (repository, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commits (
    repository TEXT, id TEXT, committer TEXT NOT NULL, message TEXT NOT NULL, created_us INTEGER NOT NULL,
    metarange_id TEXT NOT NULL, metadata TEXT NOT NULL, parents TEXT NOT NULL, version INTEGER NOT NULL,
    generation INTEGER NOT NULL, PRIMARY KEY (repository, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS staged (
    repository TEXT, branch TEXT, path BLOB, value BLOB,
    PRIMARY KEY (repository, branch, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tasks (
    repository TEXT, id TEXT, answer TEXT NOT NULL, PRIMARY KEY (repository, id)) WITHOUT ROWID;
"""

_REPOSITORY_TABLES = ("branches", "tags", "commits", "staged", "tasks")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class RepositoryRecord:
    id: str
    storage_namespace: str
    default_branch: str
    created: datetime
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class BranchRecord:
    id: str
    commit_id: str
    hidden: bool = False


class StagedEntry(NamedTuple):
    """An entry staged at a path: a value in the form stored in tables, or None, a tombstone for the committed entry."""

    path: bytes
    value: bytes | None


class State:
    """The file and its connections. Methods use the current transaction of their thread, if there is one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._connection().executescript(_SCHEMA)

    def close(self) -> None:
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()
            self._local = threading.local()  # later calls reopen the file

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = sqlite3.connect(self._file, timeout=60, isolation_level=None, check_same_thread=False)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._local.connection = connection
            with self._lock:
                self._connections.append(connection)
        return connection

    @contextmanager
    def write_transaction(self) -> Iterator[None]:
        """A write transaction: others see all of its changes or none, and other writers wait."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextmanager
    def read_transaction(self) -> Iterator[None]:
        """A read transaction: everything read inside is from one snapshot."""
        with self._transaction("BEGIN"):
            yield

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        connection = self._connection()
        if connection.in_transaction:  # part of the outer one
            yield
            return
        connection.execute(begin)
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        return self._connection().execute(sql, values).fetchall()

    def _row(self, sql: str, *values: Any) -> Any:
        return self._connection().execute(sql, values).fetchone()

    def _execute(self, sql: str, *values: Any) -> int:
        return self._connection().execute(sql, values).rowcount

    def next_number(self, name: str) -> int:
        """The next number of this counter (1, 2, 3, …), which never repeats in this file."""
        sql = "INSERT INTO counters VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1 RETURNING value"
        return int(self._row(sql, name)[0])

    # --- repositories -----------------------------------------------------------------------------------------------

    def repositories(self) -> list[RepositoryRecord]:
        return [_repository(row) for row in self._rows("SELECT * FROM repositories ORDER BY id")]

    def repository(self, repository: str) -> RepositoryRecord | None:
        row = self._row("SELECT * FROM repositories WHERE id = ?", repository)
        return _repository(row) if row else None

    def put_repository(self, record: RepositoryRecord) -> None:
        self._execute(
            "INSERT INTO repositories VALUES (?, ?, ?, ?, ?)",
            record.id,
            record.storage_namespace,
            record.default_branch,
            _microseconds(record.created),
            record.read_only,
        )

    def drop_repository(self, repository: str) -> None:
        with self.write_transaction():
            self._execute("DELETE FROM repositories WHERE id = ?", repository)
            for table in _REPOSITORY_TABLES:
                self._execute(f"DELETE FROM {table} WHERE repository = ?", repository)

    # --- branches and tags ------------------------------------------------------------------------------------------

    def branches(self, repository: str) -> list[BranchRecord]:
        rows = self._rows("SELECT id, commit_id, hidden FROM branches WHERE repository = ? ORDER BY id", repository)
        return [BranchRecord(name, commit, bool(hidden)) for name, commit, hidden in rows]

    def branch(self, repository: str, branch: str) -> BranchRecord | None:
        row = self._row(
            "SELECT id, commit_id, hidden FROM branches WHERE repository = ? AND id = ?", repository, branch
        )
        return BranchRecord(row[0], row[1], bool(row[2])) if row else None

    def put_branch(self, repository: str, record: BranchRecord) -> None:
        values = (repository, record.id, record.commit_id, record.hidden)
        self._execute("INSERT OR REPLACE INTO branches VALUES (?, ?, ?, ?)", *values)

    def drop_branch(self, repository: str, branch: str) -> None:
        with self.write_transaction():
            self._execute("DELETE FROM branches WHERE repository = ? AND id = ?", repository, branch)
            self.clear_staged(repository, branch)

    def tags(self, repository: str) -> list[tuple[str, str]]:
        return self._rows("SELECT id, commit_id FROM tags WHERE repository = ? ORDER BY id", repository)

    def tag(self, repository: str, tag: str) -> str | None:
        row = self._row("SELECT commit_id FROM tags WHERE repository = ? AND id = ?", repository, tag)
        return str(row[0]) if row else None

    def put_tag(self, repository: str, tag: str, commit_id: str) -> None:
        self._execute("INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", repository, tag, commit_id)

    def drop_tag(self, repository: str, tag: str) -> bool:
        """Delete a tag; returns whether it existed."""
        return self._execute("DELETE FROM tags WHERE repository = ? AND id = ?", repository, tag) > 0

    # --- commits ----------------------------------------------------------------------------------------------------

    def commits(self, repository: str) -> list[Commit]:
        """Every commit, sorted by id."""
        return [
            _commit(row) for row in self._rows("SELECT * FROM commits WHERE repository = ? ORDER BY id", repository)
        ]

    def commit(self, repository: str, commit_id: str) -> Commit | None:
        row = self._row("SELECT * FROM commits WHERE repository = ? AND id = ?", repository, commit_id)
        return _commit(row) if row else None

    def commits_with_prefix(self, repository: str, prefix: str) -> list[Commit]:
        """At most two commits with ids that start with a prefix. Two mean that the prefix is ambiguous."""
        sql = "SELECT * FROM commits WHERE repository = ? AND id >= ? AND id < ? ORDER BY id LIMIT 2"
        return [_commit(row) for row in self._rows(sql, repository, prefix, prefix + "g")]

    def put_commit(self, repository: str, commit: Commit) -> None:
        self._execute(
            "INSERT OR IGNORE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            repository,
            commit.id,
            commit.committer,
            commit.message,
            _microseconds(commit.created),
            commit.metarange_id,
            json.dumps(dict(commit.metadata)),
            json.dumps(commit.parents),
            commit.version,
            commit.generation,
        )

    # --- staging ----------------------------------------------------------------------------------------------------

    def staged(self, repository: str, branch: str, *, at_least: bytes = b"", limit: int = -1) -> list[StagedEntry]:
        """The staged entries from the path `at_least` onwards, in byte order."""
        sql = "SELECT path, value FROM staged WHERE repository = ? AND branch = ? AND path >= ? ORDER BY path LIMIT ?"
        return [StagedEntry(*row) for row in self._rows(sql, repository, branch, at_least, limit)]

    def staged_at(self, repository: str, branch: str, path: bytes) -> StagedEntry | None:
        sql = "SELECT path, value FROM staged WHERE repository = ? AND branch = ? AND path = ?"
        row = self._row(sql, repository, branch, path)
        return StagedEntry(*row) if row else None

    def stage(self, repository: str, branch: str, entries: Iterable[StagedEntry]) -> None:
        self._connection().executemany(
            "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)", ((repository, branch, *entry) for entry in entries)
        )

    def clear_staged(self, repository: str, branch: str) -> None:
        self._execute("DELETE FROM staged WHERE repository = ? AND branch = ?", repository, branch)

    def unstage(self, repository: str, branch: str, path: bytes) -> None:
        self._execute("DELETE FROM staged WHERE repository = ? AND branch = ? AND path = ?", repository, branch, path)

    # --- tasks ------------------------------------------------------------------------------------------------------

    def put_task(self, repository: str, task: str, status_fields: dict[str, Any]) -> None:
        self._execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?)", repository, task, json.dumps(status_fields))

    def task(self, repository: str, task: str) -> dict[str, Any] | None:
        row = self._row("SELECT answer FROM tasks WHERE repository = ? AND id = ?", repository, task)
        return dict(json.loads(row[0])) if row else None


def _microseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _repository(row: tuple[Any, ...]) -> RepositoryRecord:
    return RepositoryRecord(row[0], row[1], row[2], _moment(row[3]), bool(row[4]))


def _commit(row: tuple[Any, ...]) -> Commit:
    _, commit_id, committer, message, created_us, metarange_id, metadata, parents, version, generation = row
    return Commit(
        id=commit_id,
        parents=tuple(json.loads(parents)),
        created=_moment(created_us),
        metarange_id=metarange_id,
        version=version,
        generation=generation,
        committer=committer,
        message=message,
        metadata=json.loads(metadata),
    )
