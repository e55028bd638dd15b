"""Probe which objects branches serve at given paths, in one Spark task (invariant 2).

Candidates are kept if a probe for their size has no clear result. A deleted branch serves nothing, but it only
counts as deleted if a second listing of the branches confirms it. If a repository doesn't respond, the task doesn't try
it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, islice, takewhile
from operator import itemgetter
from typing import Any

import pyarrow as pa

from spark_resources.errors import LakegcError, NotFound, Refused
from spark_resources.identifiers import server_of
from spark_resources.lakefs import LakeFS, ServedPage
from spark_resources.lakefs.responses import REPLACEMENT_CHARACTER, is_exact
from spark_resources.model import SERVED, Namespace
from spark_resources.model import Location as Where

PROBED_PARTS = ("served", "served_again")  # of `expired_set`: the results of each pass of probes (SERVED)
PATHS_PER_BATCH = 1000  # paths that a task probes together, and the page size of `ls`
MIN_PATHS_TO_LIST = 4  # if fewer paths than this remain, they are probed one by one
ENTRIES_PER_PATH = 8  # in a page of `ls` for a few paths

Row = dict[str, Any]


def probe_batches(rows: Iterable[Row], lakefs: LakeFS, namespace: Namespace) -> Iterator[pa.RecordBatch]:
    """Probe rows of repository, branch, path and size, sorted in that order, and add the address that the branch serves
    at the path (SERVED).

    Raises `Refused` if an address differs from the namespace only in its spelling, `DamagedData` if a response violates
    the API.
    """
    prober = Prober(lakefs)
    for (repository, branch), group in groupby(rows, key=itemgetter("repository", "branch")):
        while window := list(islice(group, PATHS_PER_BATCH)):
            paths = list(dict.fromkeys(row["path"] for row in window if row["path"] is not None))
            served, unclear = prober.probe(repository, branch, paths) if paths else ({}, None)
            yield served_batch(window, served, unclear, namespace)


@dataclass(slots=True)
class Prober:
    """Probes paths, and remembers what needn't be requested again: repositories that didn't respond, each with the
    reason, and branches that are gone (None) or about which the server contradicts itself (the reason)."""

    lakefs: LakeFS
    unreachable: dict[str, str] = field(default_factory=dict)
    branches: dict[tuple[str, str], str | None] = field(default_factory=dict)

    def probe(self, repository: str, branch: str, paths: Sequence[str]) -> tuple[dict[str, str | None], str | None]:
        """The address that the branch serves at each path (None if it serves nothing), or why the result is unclear."""
        if why := self.unreachable.get(repository):
            return {}, why
        for last in (False, True):
            if (repository, branch) in self.branches:
                why = self.branches[repository, branch]
                return (dict.fromkeys(paths), None) if why is None else ({}, why)
            try:
                return served_addresses(self.lakefs, repository, branch, paths), None
            except NotFound:  # the branch was deleted, or deleted and created again
                if why := self._note_gone(repository, branch, last=last):
                    return {}, why
            except Refused:
                raise
            except LakegcError as error:
                self.unreachable[repository] = str(error)
                return {}, str(error)
        return dict.fromkeys(paths), None

    def _note_gone(self, repository: str, branch: str, *, last: bool) -> str | None:
        """List the branches again. Records the branch if it is gone or, on the `last` try, if the server contradicts
        itself about it. Returns why the result is unclear, if it is."""
        try:
            listed = is_branch(self.lakefs, repository, branch)
        except Refused:
            raise
        except LakegcError as error:
            self.unreachable[repository] = str(error)
            return str(error)
        if not listed:
            self.branches[repository, branch] = None
        elif last:
            self.branches[repository, branch] = (
                f"the server lists branch {branch} of repository {repository}, but says that it doesn't exist"
            )
        return self.branches.get((repository, branch))


@contextmanager
def ignoring_deleted(lakefs: LakeFS, repository: str) -> Iterator[None]:
    """Ignore `NotFound` if a second listing confirms that the repository was deleted, and so refers to nothing."""
    try:
        yield
    except NotFound:
        if any(listed.id == repository for listed in lakefs.repositories_on(server_of(repository))):
            raise


def is_branch(lakefs: LakeFS, repository: str, branch: str) -> bool:
    with ignoring_deleted(lakefs, repository):
        return branch in lakefs.branches(repository)
    return False


def served_addresses(lakefs: LakeFS, repository: str, branch: str, paths: Sequence[str]) -> dict[str, str | None]:
    """The physical address that a branch serves at each path, or None if nothing is served.

    Dense paths are probed by pages of `ls`, scattered ones by `stat`.
    """
    addresses: dict[str, str | None] = {}
    concurrent = lakefs.settings.probe_requests

    def stat(scattered: Sequence[str]) -> None:
        with ThreadPoolExecutor(max_workers=concurrent) as pool:
            for path, entry in zip(
                scattered, pool.map(lambda p: lakefs.stat(repository, branch, p), scattered), strict=True
            ):
                addresses[path] = entry.physical_address if entry is not None else None

    waiting = sorted(paths, key=str.encode)  # sorted like a page, so that the paths that a page covers come first
    while waiting:
        covered = 0
        if len(waiting) >= MIN_PATHS_TO_LIST:
            page = page_from_first(lakefs, repository, branch, waiting)
            listed = {entry.path: entry.physical_address for entry in page.objects}
            covered = len(list(takewhile(partial(covers, page), waiting)))
            addresses |= {path: listed.get(path) for path in waiting[:covered]}
        waiting = waiting[covered:]
        if covered < MIN_PATHS_TO_LIST:
            stat(waiting[: 2 * concurrent])
            waiting = waiting[2 * concurrent :]
    return addresses


def page_from_first(lakefs: LakeFS, repository: str, branch: str, paths: Sequence[str]) -> ServedPage:
    """A page that begins before the first of these sorted paths: a small one if that covers all of them, otherwise a
    whole one.

    For a few neighboring paths, a whole page costs the server and this process ten times as much. A small page that
    covers only some paths is not used: an object that is moved before the next request could be on neither page.
    """
    after, small = just_before(paths[0]), ENTRIES_PER_PATH * len(paths)
    if small < PATHS_PER_BATCH:
        page = lakefs.list_objects(repository, branch, after=after, amount=small)
        if covers(page, paths[-1]):
            return page
    return lakefs.list_objects(repository, branch, after=after, amount=PATHS_PER_BATCH)


def covers(page: ServedPage, path: str) -> bool:
    """Whether a page that begins before a path also covers the path. A page covers everything up to its last path, and
    the last page covers everything after it, too.

    An empty page that isn't the last one covers nothing, and no page covers a path that it might show inexactly.
    """
    if not is_exact(path):
        return False
    last = page.last_exact
    return page.next_after is None or (last is not None and path.encode() <= last.encode())


def addresses_at_inexact_paths(lakefs: LakeFS, repository: str, branch: str, paths: Iterable[str]) -> Iterator[str]:
    """For each of these paths that the server can't show exactly (see `responses.is_exact`), the physical addresses at
    all paths of the branch that may be this path. Such paths can't be probed, but a listing has the address of each.

    Raises `Unavailable` if the listing can't be continued.
    """
    for start in sorted({path[: path.index(REPLACEMENT_CHARACTER)] for path in paths if not is_exact(path)}):
        after: str | None = start + "\x7f"  # replaced bytes sort after all of ASCII
        while after is not None:
            page = lakefs.list_objects(repository, branch, prefix=start, after=after, amount=PATHS_PER_BATCH)
            yield from (entry.physical_address for entry in page.objects if not is_exact(entry.path))
            after = None if page.next_after is None else page.next_start(after)


def just_before(path: str) -> str:
    """A path that sorts shortly before the given one, for a listing to start after."""
    return path[:-1]


def served_batch(
    window: Sequence[Row], served: dict[str, str | None], unclear: str | None, namespace: Namespace
) -> pa.RecordBatch:
    """The rows as SERVED: with the address that is served at each path, null if it isn't inside the namespace, and with
    the reason why the result is unclear, null if it is clear."""
    rows = []
    for row in window:
        unclear_reason = None if row["path"] in served else unclear or "the server returned no result"
        unclear_reason = not_utf8_message(row["repository"], row["branch"]) if row["path"] is None else unclear_reason
        rows.append({**row, "address": key_inside(served.get(row["path"]), namespace), "unclear": unclear_reason})
    return pa.RecordBatch.from_pylist(rows, schema=SERVED)


def not_utf8_message(repository: str, branch: str) -> str:
    return f"the path of an entry on branch '{branch}' of repository '{repository}' is not UTF-8, so it can't be probed"


def key_inside(address: str | None, namespace: Namespace) -> str | None:
    """The key of a reported address if it is inside the namespace, otherwise None. Raises `Refused` if it is
    unclear whether it is inside."""
    if address is None:
        return None
    where, key = namespace.locate_reported(address)
    if where is Where.CONFLICT:
        namespace.check_outside(address)
    return key if where is Where.INSIDE else None
