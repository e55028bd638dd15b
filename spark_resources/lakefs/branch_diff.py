"""All uncommitted changes of a branch, or an error.

If the server can't read a staging record, the uncommitted diff of a branch ends early without an error (formats §2).
The diff between the branch's committed data and its staged data fails instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_resources.errors import Forbidden, NotThere, Unavailable
from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.responses import Change


def whole_diff(lakefs: LakeFS, repository: str, branch: str) -> Iterator[Change]:
    """Every uncommitted change of the branch (path added, changed or removed), compared by content.

    Raises `Unavailable` if the server can't read all of them.
    """
    last: Change | None = None
    try:
        for last in lakefs.staged_diff(repository, branch):
            yield last
    except (NotThere, Forbidden):
        raise
    except Unavailable as error:
        behind = f" behind '{last.path}'" if last is not None else ""
        raise Unavailable(
            f"the uncommitted changes of '{branch}' in repository '{repository}' can't be read{behind}, so what is "
            f"known may not be all that is staged. {error} If it stays so, a staging record is damaged: look at the "
            "server's log."
        ) from error
    if last is None:  # a server that doesn't know the modifier `$` reports no changes
        yield from lakefs.uncommitted_diff(repository, branch)
