"""Checks of a repository: it exists, it is writable, and its namespace is its own."""

from __future__ import annotations

from contextlib import suppress

from lakegc_assets.doctor.findings import Result, ok, warning
from lakegc_assets.mark.context import SCHEMES, Target, check_scheme
from lakegc_assets.mark.preconditions import refuse_overlap, refuse_read_only
from spark_resources.errors import LakegcError, NotFound, did_you_mean
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.lakefs.responses import ServerConfig

GROUP = "repository"


def find_repository(lakefs: LakeFS, name: str) -> Repository:
    """The repository. If it doesn't exist, raises `NotFound`, with the most similar name if there is one."""
    try:
        return lakefs.repository(name)
    except NotFound as error:
        suggestion = ""
        with suppress(LakegcError):  # the list is only for the suggestion
            suggestion = did_you_mean(name, [other.id for other in lakefs.repositories()])
        raise NotFound(f"{error} {suggestion}".rstrip()) from None


def exists(repository: Repository) -> Result:
    return ok(f"{repository.id}, created {repository.created:%Y-%m-%d %H:%M:%S} UTC in {repository.storage_namespace}")


def writable(repository: Repository) -> Result:
    """Raises `LakegcError` if the repository is read-only."""
    refuse_read_only(repository)
    return ok("not read-only")


def block_store(repository: Repository, server: ServerConfig) -> Result:
    """Whether lakegc reads the location that lakeFS writes to. Raises `WrongUsage` if it doesn't."""
    blockstore = server.blockstore(repository.storage_id)
    check_scheme(repository, blockstore)
    if blockstore not in SCHEMES:
        return warning(f"the server's block store is of type '{blockstore}', which lakegc doesn't know.")
    return ok(f"{blockstore}, which matches {repository.storage_namespace}")


def namespace(target: Target, lakefs: LakeFS) -> Result:
    """Whether the namespace overlaps that of another repository. Raises `Refused` if it does."""
    refuse_overlap(target, lakefs)
    return ok(f"{target.place.namespace.uri} overlaps no namespace of a repository that these credentials can list")
