"""All that is staged on a branch, or an error.

Where the server can't read a staging record, the uncommitted diff of a branch ends early without an error (formats §2);
the difference between what is committed and what is staged on it doesn't.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_resources.errors import Forbidden, NotThere, Unavailable
from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.responses import Change


def whole_diff(lakefs: LakeFS, repository: str, branch: str) -> Iterator[Change]:
    """Every path that is added, changed or removed on the branch and not committed, by content.

    Raises `Unavailable` where the server can't read all of it.
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
    if last is None:  # a server that didn't know what `$` means would show no changes
        yield from lakefs.uncommitted_diff(repository, branch)
