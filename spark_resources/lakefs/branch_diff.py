"""Reads all uncommitted changes on a branch, or raises an error.

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
    """Every uncommitted change on the branch (path added, changed or removed), compared by content.

    Raises `Unavailable` if the server can't read all of them, or if only the uncommitted diff has changes. In that case
    the server doesn't support the modifier `$`, and the uncommitted diff alone could end early.
    """
    for _ in range(TRIES):  # a change may be staged between the two diffs
        last: Change | None = None
        try:
            for last in lakefs.staged_diff(repository, branch):
                yield last
        except (NotFound, Forbidden):
            raise
        except Unavailable as error:
            position = f" after '{last.path}'" if last is not None else ""
            raise Unavailable(
                f"the uncommitted changes on '{branch}' in repository '{repository}' can't be read{position}, so some "
                "staged objects are unknown. If the error persists, a staging record is damaged: check the server's "
                f"log. Cause: {error}"
            ) from error
        if last is not None or next(lakefs.uncommitted_diff(repository, branch), None) is None:
            return
    raise Unavailable(
        f"lakeFS at {lakefs.where} shows uncommitted changes on '{branch}' in repository "
        f"'{repository}', but none in the diff between '{branch}@' and '{branch}$'. Only that diff reports unreadable "
        "staging records, so some staged objects may be unknown. Upgrade the server to a version that supports these "
        "references."
    )
