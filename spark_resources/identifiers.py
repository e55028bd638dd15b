"""Identifiers of marks, partitions, scopes and events: the part of the model that commands need.

Pure like `model`, which re-exports these names. It is a separate module so that `lakegc --help` starts quickly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase

from spark_resources.errors import NotAPartition, WrongUsage

_MARK_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._=+@-]{0,127}\Z")
_REPOSITORY = re.compile(r"^([a-z][a-z0-9-]{0,31}/)?[a-z0-9][a-z0-9-]{2,62}\Z")


class Scope(StrEnum):
    """Which stored objects are candidates."""

    UNIFIED = "unified"  # every stored object
    COMMITTED = "committed"  # addresses that expired commits refer to
    UNCOMMITTED = "uncommitted"  # stored objects that no commit refers to


class Event(StrEnum):
    """The events that people are notified of."""

    APPROVAL_WAITING = "approval_waiting"  # a mark was finished, and has expired objects
    BRAKES_TRIPPED = "brakes_tripped"  # a finished mark trips brakes
    RUN_FAILED = "run_failed"  # a mark, backup or sweep failed, or was refused
    SWEPT = "swept"  # a sweep ended, with or without failures


def default_mark_id(start: datetime) -> str:
    """The mark id for a start time, e.g. `20261121T085000Z`. Such ids sort by age."""
    return start.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")


def is_mark_id(text: str) -> bool:
    """Whether a text is a single printable path segment that can be a mark's id."""
    return _MARK_ID.match(text) is not None


def check_mark_id(mark_id: str) -> str:
    """The id itself if it can be one. Raises `WrongUsage` otherwise."""
    if not is_mark_id(mark_id):
        raise WrongUsage(
            f"'{mark_id}' can't be a mark id: expected at most 128 letters, digits and ._=+@-, starting with a "
            "letter or digit, for example 20261121T085000Z"
        )
    return mark_id


# --- repositories of several servers --------------------------------------------------------------------------------


def repository_on(server: str, lakefs_id: str) -> str:
    """The name of a repository: its id, after the name of its server and a slash if several servers are configured,
    such as `lab/events`. `server` is "" if there is only one."""
    return f"{server}/{lakefs_id}" if server else lakefs_id


def lakefs_id(repository: str) -> str:
    """A repository's id on its own server. Records in the namespace contain this id, because another deployment may
    know the server by another name."""
    return repository.rpartition("/")[2]


def server_of(repository: str) -> str:
    """The name of a repository's server; "" if only one is configured."""
    return repository.rpartition("/")[0]


def all_repositories_on(server: str) -> str:
    """The name for all repositories of a server if they can't be listed: `lab/*`, or `*` if it is the only one."""
    return repository_on(server, "*")


SERVER_VARIABLES = "LAKEGC_SERVERS_"
"""The prefix of the environment variables with settings for one of several servers."""


def server_variable(server: str, setting: str) -> str:
    """The environment variable with a server's setting, such as LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY."""
    return f"{SERVER_VARIABLES}{server.replace('-', '_')}_{setting}".upper()


def matches_repository(repository: str, pattern: str) -> bool:
    """Whether a shell pattern matches a repository. A pattern without a slash matches its id, on any server."""
    return fnmatchcase(repository if "/" in pattern else lakefs_id(repository), pattern)


_SEPARATOR = ":"
_EARLIER_SEPARATOR = "|"
"""The separator in partition keys of earlier versions. Dagster's UI mistakes it for the separator between partition
dimensions, so its dialogs select a partition that doesn't exist."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One repository and one mark: the key of every asset's partition, `repository:mark_id`."""

    repository: str
    mark_id: str

    @classmethod
    def of(cls, repository: str, mark_id: str) -> Partition:
        """The partition of a mark. Raises `WrongUsage` if the repository id or the mark id is invalid."""
        if not _REPOSITORY.match(repository):
            raise WrongUsage(
                f"'{repository}' can't be a repository: expected an id of 3 to 63 lower-case letters, digits and -, "
                "preceded by the name of its server and a slash if several servers are configured"
            )
        return cls(repository, check_mark_id(mark_id))

    @classmethod
    def parse(cls, key: str) -> Partition:
        """The partition with this key, which may have the format of an earlier version. Raises `NotAPartition` if the
        key is invalid."""
        separator = _SEPARATOR if _SEPARATOR in key else _EARLIER_SEPARATOR
        repository, separated, mark_id = key.partition(separator)
        if not separated or not _REPOSITORY.match(repository):
            raise NotAPartition(
                f"partition '{key}' is not of the form repository:mark_id, for example lake:20261121T085000Z"
            )
        try:
            return cls(repository, check_mark_id(mark_id))
        except WrongUsage as error:
            raise NotAPartition(str(error)) from None

    def __str__(self) -> str:
        return f"{self.repository}{_SEPARATOR}{self.mark_id}"

    @property
    def keys(self) -> tuple[str, str]:
        """All keys under which Dagster may have this partition: the present one, and that of earlier versions."""
        return str(self), f"{self.repository}{_EARLIER_SEPARATOR}{self.mark_id}"
