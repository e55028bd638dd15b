"""A branch's uncommitted diff up to its real end.

Where the server can't read a staging record, its diff ends early without an error (formats §2). A listing of the branch
reads the same record and fails. So the end of a diff is believed once the branch was listed behind it.
"""

from __future__ import annotations

from collections.abc import Iterator

from spark_resources.errors import NotThere, Unavailable
from spark_resources.lakefs.answers import Change, is_exact
from spark_resources.lakefs.client import LakeFS

LISTED_BEHIND = 100  # objects: a record that a diff leaves out, and that a listing shows, can lie before a broken one


def whole_diff(lakefs: LakeFS, repository: str, branch: str) -> Iterator[Change]:
    """Every path that is added, changed or removed on the branch and not committed.

    Raises `Unavailable` at the end where the server can't read what lies behind it.
    """
    last, asked_again = "", False
    while True:
        ended_at = last
        for change in lakefs.uncommitted_diff(repository, branch, after=last):
            yield change
            last = change.path if is_exact(change.path) else last
        if asked_again and last == ended_at:
            return
        if not has_objects_behind(lakefs, repository, branch, last):
            return
        asked_again = True  # what is behind can be committed, or a change that the server could not read just now


def has_objects_behind(lakefs: LakeFS, repository: str, branch: str, path: str) -> bool:
    """Whether the branch serves anything behind a path. Raises `Unavailable` where the server can't read it."""
    try:
        page = lakefs.list_objects(repository, branch, after=path, amount=LISTED_BEHIND)
    except NotThere:
        raise
    except Unavailable as error:
        raise Unavailable(
            f"the uncommitted changes of '{branch}' in repository '{repository}' end behind '{path}', and the server "
            f"can't list what follows, so that may not be all that is staged. {error} If it stays so, a staging record "
            "is damaged: look at the server's log."
        ) from error
    return bool(page.objects) or page.next_after is not None
