"""A client for the lakeFS server: repositories, rules, references, commits, served and staged objects (formats §2).

`LakeFS` reads and makes no decisions. A missing page, a truncated response or an unknown name raises an error; no
method returns an empty result for something that it could not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from spark_resources.errors import DamagedData, Unavailable
from spark_resources.lakefs import gc_prepare, pagination, responses
from spark_resources.lakefs.connection import ApiCall, Connection
from spark_resources.lakefs.pagination import MAX_PAGE_SIZE, Progress
from spark_resources.lakefs.responses import (
    Body,
    Change,
    RefsDump,
    Repository,
    ServedObject,
    ServedPage,
    Server,
    UncommittedLists,
)
from spark_resources.lakefs.settings import LakeFSSettings
from spark_resources.model import Commit, Rules


class LakeFS:
    """A client for one lakeFS server. Thread-safe; pickled as its settings, so that Spark executors build their own.

    Every method raises `Forbidden`, `NotFound` or `Unavailable` with a readable message, and `DamagedData` for a
    response that violates the API.
    """

    def __init__(self, settings: LakeFSSettings) -> None:
        self.settings = settings
        self.connection = Connection(settings)

    def __reduce__(self) -> tuple[type[LakeFS], tuple[LakeFSSettings]]:
        return (LakeFS, (self.settings,))

    def __repr__(self) -> str:
        return f"LakeFS({self.settings.endpoint_url!r})"

    @property
    def where(self) -> str:
        """The server's address, for messages."""
        return self.connection.where

    @property
    def last_date(self) -> datetime | None:
        """The server's time in the latest response to any thread, in whole seconds; None before the first response."""
        return self.connection.last_date

    def server_time(self) -> datetime:
        """The server's current time, from the `Date` of the response to a new request, truncated to the second."""
        response = self.connection.request(_CONFIG_CALL)
        if response.status >= 500:  # possibly the response of a proxy, not of the server
            raise self.connection.error_for(_CONFIG_CALL, response)
        if response.date is None:
            raise Unavailable(
                f"lakeFS at {self.where} sent no readable Date header, so the time by its clock, which determines "
                "retention, is unknown. Check the proxies between this machine and the server."
            )
        return response.date

    # --- the server and its repositories ----------------------------------------------------------------------------

    def config(self) -> Server:
        """The block store types by storage id, and the server's version."""
        response = self.connection.request(_CONFIG_CALL)
        if response.status == 404:
            return self._config_of_older_server()
        if not response.is_success:
            raise self.connection.error_for(_CONFIG_CALL, response)
        return responses.server(Body.of(response.json, _CONFIG_CALL.what))

    def _config_of_older_server(self) -> Server:
        """Like `config`, for an older server, which has separate calls for the storage and the version."""
        storage = ApiCall("InternalApi", "get_storage_config", "the server's storage configuration", "fs:ReadConfig")
        version = ApiCall("InternalApi", "get_lake_fs_version", "the server's version", "fs:ReadConfig")
        kind = self.connection.body(storage).nonempty_text("blockstore_type")
        return Server({"": kind}, self.connection.body(version).maybe_text("version"))

    def repository(self, repository: str) -> Repository:
        return pagination.repository(self.connection, repository)

    def repositories(self) -> Iterator[Repository]:
        """Every repository that these credentials may list."""
        call = ApiCall("RepositoriesApi", "list_repositories", "the repositories", "fs:ListRepositories")
        for page in pagination.pages(self.connection, call):
            yield from map(responses.repository, page)

    def rules(self, repository: str) -> Rules | None:
        """The retention rules; None if the repository has none, in which case no committed object ever expires."""
        call = ApiCall(
            "RepositoriesApi",
            "get_gc_rules",
            f"the retention rules of repository '{repository}'",
            "retention:GetGarbageCollectionRules",
        )
        response = self.connection.request(call, repository=repository)
        if response.is_success:
            return responses.rules(Body.of(response.json, call.what))
        if response.says_not_found:
            self.repository(repository)  # raises if the repository itself is missing
            return None
        raise self.connection.error_for(call, response)

    # --- references and commits -------------------------------------------------------------------------------------

    def branches(self, repository: str) -> dict[str, str]:
        """The head commit of every branch, including hidden ones.

        Raises `DamagedData` (invariant 3) if there are none: the default branch can't be deleted.
        """
        call = ApiCall("BranchesApi", "list_branches", f"the branches of repository '{repository}'", "fs:ListBranches")
        heads = self._references(call, repository=repository, show_hidden=True)
        if not heads:
            raise DamagedData(
                f"{call.what}: the server lists none, but every repository has a default branch. Live objects can't "
                "be determined. Check the server, and the permissions of these credentials.",
                invariant=3,
            )
        return heads

    def tags(self, repository: str) -> dict[str, str]:
        """The commit of every tag."""
        call = ApiCall("TagsApi", "list_tags", f"the tags of repository '{repository}'", "fs:ListTags")
        return self._references(call, repository=repository)

    def _references(self, call: ApiCall, **arguments: Any) -> dict[str, str]:
        return {
            reference.nonempty_text("id"): reference.nonempty_text("commit_id")
            for page in pagination.pages(self.connection, call, **arguments)
            for reference in page
        }

    def commit(self, repository: str, commit_id: str) -> Commit:
        call = ApiCall("CommitsApi", "get_commit", f"commit {commit_id} of repository '{repository}'", "fs:ReadCommit")
        return responses.commit(self.connection.body(call, repository=repository, commit_id=commit_id))

    def log(self, repository: str, ref: str) -> Iterator[Commit]:
        """Every commit that is reachable from a branch, tag or commit, through any parent."""
        call = ApiCall(
            "RefsApi", "log_commits", f"the commits of '{ref}' in repository '{repository}'", "fs:ReadBranch"
        )
        for page in pagination.pages(self.connection, call, repository=repository, ref=ref):
            yield from map(responses.commit, page)

    def dump_refs(self, repository: str) -> RefsDump | None:
        """Have the server dump all branches, commits and tags to tables. Returns the tables' ids.

        Returns None if these credentials or this server don't allow a dump.

        Commits are dumped before branches, so the commit of a branch head can be missing if it was created in between
        (formats §2).
        """
        return gc_prepare.dump_refs(self.connection, repository)

    # --- the lists for collectors -----------------------------------------------------------------------------------

    def prepare_commits(self, repository: str, *, progress: Progress | None = None) -> str | None:
        """Have the server list the retained commits. Returns the location of its CSV; None if there are no rules."""
        return gc_prepare.prepare_commits(self.connection, repository, progress)

    def prepare_uncommitted(self, repository: str) -> UncommittedLists:
        """Have the server list every staged address, page by page. Returns the lists' locations and file counts.

        The lists can miss staged objects (formats §2). Raises `Interrupted` if a branch is deleted meanwhile.
        """
        return gc_prepare.prepare_uncommitted(self.connection, repository)

    # --- branches and their objects ---------------------------------------------------------------------------------

    def stat(self, repository: str, branch: str, path: str) -> ServedObject | None:
        """The object that a reader of the branch gets at the path; None if there is none.

        Returns None only if the server reports the path as missing and a listing of the branch confirms this. Raises
        `NotFound` if the branch or repository doesn't exist.
        """
        call = ApiCall(
            "ObjectsApi", "stat_object", f"'{path}' on '{branch}' in repository '{repository}'", "fs:ReadObject"
        )
        response = self.connection.request(
            call, repository=repository, ref=branch, path=path, user_metadata=False, presign=False
        )
        if response.is_success:
            served = responses.served_object(Body.of(response.json, call.what))
            if served.path != path:
                raise DamagedData(
                    f"the server returned '{served.path}' instead of {call.what}. Check the proxies in front of "
                    "the server.",
                    invariant=3,
                )
            return served
        if response.says_not_found:  # a missing branch or a gateway may return the same 404
            return self._stat_by_listing(repository, branch, path)
        raise self.connection.error_for(call, response)

    def _stat_by_listing(self, repository: str, branch: str, path: str) -> ServedObject | None:
        """Like `stat`, but from a listing with the path as its prefix, in which the path itself would come first.

        Raises `Unavailable` if the listing doesn't confirm that there is no object at the path.
        """
        page = self.list_objects(repository, branch, prefix=path, amount=1)
        first = page.objects[0] if page.objects else None
        if not (first.path.startswith(path) if first else page.next_after is None):
            raise Unavailable(
                f"lakeFS at {self.where} reports that '{path}' doesn't exist on '{branch}' in repository "
                f"'{repository}', but a listing of this path doesn't confirm that. Check the proxies between this "
                "machine and the server."
            )
        return first if first and first.path == path else None

    def list_objects(
        self, repository: str, ref: str, *, after: str = "", amount: int = MAX_PAGE_SIZE, prefix: str = ""
    ) -> ServedPage:
        """One page of the objects that a reader of the ref gets, staged or committed, in path order, after `after`."""
        call = ApiCall(
            "ObjectsApi", "list_objects", f"the objects of '{ref}' in repository '{repository}'", "fs:ListObjects"
        )
        page, offset = pagination.page(
            self.connection,
            call,
            after,
            amount,
            repository=repository,
            ref=ref,
            prefix=prefix,
            user_metadata=False,
            presign=False,
        )
        objects = tuple(map(responses.served_object, page))
        previous = after
        for path in filter(responses.is_exact, (served.path for served in objects)):
            # A page out of order can't be trusted to contain every path between its first and last.
            if previous and path.encode() <= previous.encode():
                raise DamagedData(
                    f"{call.what} are out of order: '{path}' after '{previous}'. Check the server's log.",
                    invariant=3,
                )
            previous = path
        return ServedPage(objects, offset)

    def uncommitted_diff(self, repository: str, branch: str, *, after: str = "") -> Iterator[Change]:
        """The uncommitted changes of the branch (path added, changed or removed) after `after`, compared by content.

        Changes can repeat if paths aren't UTF-8 (see `responses.is_exact`). If the server can't read a record, it ends
        the diff early without an error (formats §2): see `staged_diff`.
        """
        what = f"the uncommitted changes of '{branch}' in repository '{repository}'"
        call = ApiCall("BranchesApi", "diff_branch", what, "fs:ListObjects")
        return self._changes(call, after, repository=repository, branch=branch)

    def staged_diff(self, repository: str, branch: str, *, after: str = "") -> Iterator[Change]:
        """Like `uncommitted_diff`, but requested as the diff between the branch's committed data (`@`) and its staged
        data (`$`).

        Raises `Unavailable` if the server can't read a record: unlike the uncommitted diff, this one doesn't end early.
        """
        what = f"the staged changes of '{branch}' in repository '{repository}'"
        call = ApiCall("RefsApi", "diff_refs", what, "fs:ListObjects")
        refs = {"left_ref": f"{branch}@", "right_ref": f"{branch}$", "type": "two_dot"}
        return self._changes(call, after, repository=repository, **refs)

    def _changes(self, call: ApiCall, after: str, **arguments: str) -> Iterator[Change]:
        while True:
            page, offset = pagination.page(self.connection, call, after, MAX_PAGE_SIZE, **arguments)
            changes = list(map(responses.change, page))
            yield from changes
            if offset is None:
                return
            if not responses.is_exact(offset):  # it may sort far after the true path; better to repeat than to skip
                offset = responses.require_last_exact(responses.last_exact(change.path for change in changes), after)
            if offset.encode() <= after.encode():
                raise DamagedData(
                    f"{call.what}: the server returned the offset '{offset}', which is not after the previous one. "
                    "Check the server's log.",
                    invariant=3,
                )
            after = offset


_CONFIG_CALL = ApiCall("ConfigApi", "get_config", "the server's configuration", "fs:ReadConfig")
