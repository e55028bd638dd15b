"""The repositories of all servers: all of them, those that match the patterns in the settings, and all except one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from spark_resources.errors import Forbidden, LakegcError, Unavailable, full_stop
from spark_resources.identifiers import matches_repository
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.settings import Settings


def list_repositories(lakefs: LakeFS) -> tuple[list[Repository], dict[str, str]]:
    """The repositories of all servers, and a sentence about each server that could not be read, by its name. If there
    is only one server, its error is raised."""
    listed, failures = list[Repository](), dict[str, str]()
    for server in lakefs.servers:
        try:
            listed += lakefs.repositories_on(server)
        except LakegcError as error:
            if len(lakefs.servers) == 1:
                raise
            failures[server] = f"The repositories of server {server} are skipped: {full_stop(error)}"
    return listed, failures


def repositories_other_than(own: Repository, lakefs: LakeFS) -> Iterator[Repository]:
    """The repositories of all servers, except this one. Leaves out the repositories of a server that doesn't permit
    listing them, and of another server that doesn't respond. Raises `Unavailable` if the repository's own server
    doesn't respond."""
    for server in lakefs.servers:
        try:
            yield from (other for other in lakefs.repositories_on(server) if other.id != own.id)
        except Forbidden:
            pass
        except Unavailable:
            if server == own.server:
                raise


def select_repositories(repositories: Iterable[Repository], settings: Settings) -> list[Repository]:
    """The repositories whose name matches an include pattern and no exclude pattern, sorted by id."""

    def matches(repository: Repository, patterns: Sequence[str]) -> bool:
        return any(matches_repository(repository.id, pattern) for pattern in patterns)

    included = (repository for repository in repositories if matches(repository, settings.repositories_include))
    return sorted(
        (repository for repository in included if not matches(repository, settings.repositories_exclude)),
        key=lambda repository: repository.id,
    )


def no_match_message(lakefs: LakeFS, settings: Settings) -> str:
    excluded = ", ".join(settings.repositories_exclude)
    excluding = f" without matching {excluded}" if excluded else ""
    return (
        f"No repository of {lakefs.where} that these credentials can list matches "
        f"{', '.join(settings.repositories_include)}{excluding}. The patterns are LAKEGC_REPOSITORIES_INCLUDE and "
        "LAKEGC_REPOSITORIES_EXCLUDE."
    )
