"""Which repositories of a server the schedule and the sensor mark: those that match the patterns in the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from spark_resources.lakefs import LakeFS, Repository
from spark_resources.settings import Settings


def select_repositories(repositories: Iterable[Repository], settings: Settings) -> list[Repository]:
    """The repositories whose id matches an include pattern and no exclude pattern, sorted by id."""

    def matches(repository: Repository, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(repository.id, pattern) for pattern in patterns)

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
