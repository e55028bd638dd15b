"""All uncommitted changes of a branch, or an error.

If the server can't read a staging record, the uncommitted diff of a branch ends early without an error (formats §2).
The diff between the branch's committed data and its staged data fails instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_resources.errors import Forbidden, NotFound, Unavailable
from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.responses import Change

TRIES = 3


def whole_diff(lakefs: LakeFS, repository: str, branch: str) -> Iterator[Change]:
    """Every uncommitted change of the branch (path added, changed or removed), compared by content.

    Raises `Unavailable` if the server can't read all of them, or if it shows changes in the uncommitted diff only: it
    then doesn't know the modifier `$`, and the uncommitted diff alone could end early.
    """
    for _ in range(TRIES):  # a change may be staged between the two diffs
        last: Change | None = None
        try:
            for last in lakefs.staged_diff(repository, branch):
                yield last
        except (NotFound, Forbidden):
            raise
        except Unavailable as error:
            behind = f" behind '{last.path}'" if last is not None else ""
            raise Unavailable(
                f"the uncommitted changes of '{branch}' in repository '{repository}' can't be read{behind}, so what is "
                f"known may not be all that is staged. {error} If it stays so, a staging record is damaged: look at "
                "the server's log."
            ) from error
        if last is not None or next(lakefs.uncommitted_diff(repository, branch), None) is None:
            return
    raise Unavailable(
        f"lakeFS at {lakefs.where} shows uncommitted changes of '{branch}' in repository '{repository}', but none in "
        f"the diff between '{branch}@' and '{branch}$', which alone fails where a staging record can't be read. So "
        "what is staged is not known for certain. Upgrade the server to a version that knows these references."
    )
