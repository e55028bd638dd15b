"""A client for the lakeFS server: repositories, rules, references, commits, served and staged objects (formats §2).

`LakeFS` makes no decisions, and changes nothing on the server but retention rules. A missing page, a truncated response
or an unknown name raises an error; no method returns an empty result for something that it could not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

from spark_resources.errors import DamagedData, Unavailable, WrongUsage
from spark_resources.identifiers import lakefs_id, repository_on, server_of
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
    ServerConfig,
    UncommittedLists,
)
from spark_resources.lakefs.settings import LakeFSSettings
from spark_resources.model import Commit, Rules


class LakeFS:
    """A client for one or several lakeFS servers. Thread-safe; pickled as its settings, so that Spark executors build
    their own.

    With several servers, a repository's name includes its server, such as `lab/events`, and each method sends its
    requests to that server. With only one server, a repository's name is its id.

    Every method raises `Forbidden`, `NotFound` or `Unavailable` with a readable message, `DamagedData` for a response
    that violates the API, and `WrongUsage` for a repository of an unknown server.
    """

    def __init__(self, *servers: LakeFSSettings) -> None:
        self.settings = servers[0]
        self.connections = {settings.server: Connection(settings) for settings in servers}

    def __reduce__(self) -> tuple[type[LakeFS], tuple[LakeFSSettings, ...]]:
        return (LakeFS, tuple(connection.settings for connection in self.connections.values()))

    def __repr__(self) -> str:
        return f"LakeFS({self.where})"

    @property
    def servers(self) -> tuple[str, ...]:
        """The names of the servers; just "" if there is only one."""
        return tuple(self.connections)

    @property
    def where(self) -> str:
        """The servers' addresses, for messages."""
        return ", ".join(connection.where for connection in self.connections.values())

    def route(self, repository: str) -> tuple[Connection, str]:
        """The connection to a repository's server, and the repository's id there. Raises `WrongUsage` if there is no
        such server, or if several are configured and the name doesn't include one."""
        server = server_of(repository)
        if server in self.connections:
            return self.connections[server], lakefs_id(repository)
        if self.servers == ("",):
            raise WrongUsage(
                f"the repository name '{repository}' includes a server, '{server}', but only {self.where} is "
                f"configured. Leave out '{server}/', or configure several servers {_WHERE_CONFIGURED}."
            )
        names = ", ".join(self.servers)
        raise WrongUsage(
            f"there is no server '{server}' for '{repository}': {names} are configured {_WHERE_CONFIGURED}."
            if server
            else f"'{repository}' doesn't say which server it is on ({names}). Use "
            f"{repository_on(self.servers[0], repository)}, for example."
        )

    def server_time(self, server: str = "") -> datetime:
        """A server's current time, from the `Date` of the response to a new request, truncated to the second."""
        connection = self.connections[server]
        response = connection.request(_CONFIG_CALL)
        if response.status >= 500:  # possibly the response of a proxy, not of the server
            raise connection.error_for(_CONFIG_CALL, response)
        if response.date is None:
            raise Unavailable(
                f"lakeFS at {connection.where} sent no readable Date header, so the time by its clock, which "
                "determines retention, is unknown. Check the proxies between this machine and the server."
            )
        return response.date

    # --- the server and its repositories ----------------------------------------------------------------------------

    def config(self, server: str = "") -> ServerConfig:
        """A server's block store types by storage id, and its version."""
        connection = self.connections[server]
        response = connection.request(_CONFIG_CALL)
        if response.status == 404:
            return _config_of_older_server(connection)
        if not response.is_success:
            raise connection.error_for(_CONFIG_CALL, response)
        return responses.server(Body.of(response.json, _CONFIG_CALL.what))

    def repository(self, repository: str) -> Repository:
        connection, name = self.route(repository)
        return replace(pagination.repository(connection, name), id=repository)

    def repositories(self) -> Iterator[Repository]:
        """Every repository that these credentials may list, on all servers. Raises an error if any server can't be
        read."""
        for server in self.servers:
            yield from self.repositories_on(server)

    def repositories_on(self, server: str) -> Iterator[Repository]:
        """Every repository that these credentials may list on one server."""
        call = ApiCall("RepositoriesApi", "list_repositories", "the repositories", "fs:ListRepositories")
        for page in pagination.pages(self.connections[server], call):
            for listed in map(responses.repository, page):
                yield replace(listed, id=repository_on(server, listed.id))

    def rules(self, repository: str) -> Rules | None:
        """The retention rules; None if the repository has none, in which case no committed object ever expires."""
        call = ApiCall(
            "RepositoriesApi",
            "get_gc_rules",
            f"the retention rules of repository '{repository}'",
            "retention:GetGarbageCollectionRules",
        )
        connection, name = self.route(repository)
        response = connection.request(call, repository=name)
        if response.is_success:
            return responses.rules(Body.of(response.json, call.what))
        if response.says_not_found:
            self.repository(repository)  # raises if the repository itself is missing
            return None
        raise connection.error_for(call, response)

    def set_rules(self, repository: str, rules: Rules) -> None:
        """Replace the retention rules. Raises `DamagedData` if the server has different ones afterwards."""
        from lakefs_sdk.models.garbage_collection_rule import GarbageCollectionRule
        from lakefs_sdk.models.garbage_collection_rules import GarbageCollectionRules

        call = ApiCall(
            "RepositoriesApi",
            "set_gc_rules",
            f"the retention rules of repository '{repository}'",
            "retention:SetGarbageCollectionRules",
            changes=True,
        )
        branches = [
            GarbageCollectionRule(branch_id=branch, retention_days=days)
            for branch, days in sorted(rules.branch_days.items())
        ]
        body = GarbageCollectionRules(default_retention_days=rules.default_days, branches=branches)
        connection, name = self.route(repository)
        response = connection.request(call, repository=name, garbage_collection_rules=body)
        if not response.is_success:
            raise connection.error_for(call, response)
        if (stored := self.rules(repository)) != rules:
            raise DamagedData(
                f"{call.what} were set, but the server now has {'none' if stored is None else 'different ones'}: "
                "somebody else changed them at the same time, or the server can't store these. Check them with 'lakegc "
                "rules', and set them again."
            )

    # --- references and commits -------------------------------------------------------------------------------------

    def branches(self, repository: str) -> dict[str, str]:
        """The head commit of every branch, including hidden ones.

        Raises `DamagedData` (invariant 3) if there are none: the default branch can't be deleted.
        """
        call = ApiCall("BranchesApi", "list_branches", f"the branches of repository '{repository}'", "fs:ListBranches")
        heads = self._references(call, repository, show_hidden=True)
        if not heads:
            raise DamagedData(
                f"the server lists no branches of repository '{repository}', but every repository has a default "
                "branch, so live objects can't be determined. Check the server, and the permissions of these "
                "credentials.",
                invariant=3,
            )
        return heads

    def tags(self, repository: str) -> dict[str, str]:
        """The commit of every tag."""
        call = ApiCall("TagsApi", "list_tags", f"the tags of repository '{repository}'", "fs:ListTags")
        return self._references(call, repository)

    def _references(self, call: ApiCall, repository: str, **arguments: Any) -> dict[str, str]:
        connection, name = self.route(repository)
        return {
            reference.nonempty_text("id"): reference.nonempty_text("commit_id")
            for page in pagination.pages(connection, call, repository=name, **arguments)
            for reference in page
        }

    def commit(self, repository: str, commit_id: str) -> Commit:
        call = ApiCall("CommitsApi", "get_commit", f"commit {commit_id} of repository '{repository}'", "fs:ReadCommit")
        connection, name = self.route(repository)
        return responses.commit(connection.body(call, repository=name, commit_id=commit_id))

    def log(self, repository: str, ref: str) -> Iterator[Commit]:
        """Every commit that is reachable from a branch, tag or commit, through any parent."""
        call = ApiCall(
            "RefsApi", "log_commits", f"the commits of '{ref}' in repository '{repository}'", "fs:ReadBranch"
        )
        connection, name = self.route(repository)
        for page in pagination.pages(connection, call, repository=name, ref=ref):
            yield from map(responses.commit, page)

    def dump_refs(self, repository: str) -> RefsDump | None:
        """Have the server dump all branches, commits and tags to tables. Returns the tables' ids.

        Returns None if these credentials don't allow a dump, or this server doesn't support it.

        Commits are dumped before branches, so the commit of a branch head can be missing if it was created in between
        (formats §2).
        """
        return gc_prepare.dump_refs(*self.route(repository))

    # --- the lists for garbage collection ---------------------------------------------------------------------------

    def prepare_commits(self, repository: str, *, progress: Progress | None = None) -> str | None:
        """Have the server list the retained commits. Returns the location of its CSV; None if there are no rules."""
        return gc_prepare.prepare_commits(*self.route(repository), progress)

    def prepare_uncommitted(self, repository: str) -> UncommittedLists:
        """Have the server write lists of the staged addresses, page by page. Returns the lists' locations and file
        counts.

        The lists can miss staged objects (formats §2). Raises `Interrupted` if a branch is deleted while that happens.
        """
        return gc_prepare.prepare_uncommitted(*self.route(repository))

    # --- branches and their objects ---------------------------------------------------------------------------------

    def stat(self, repository: str, branch: str, path: str) -> ServedObject | None:
        """The object that a reader of the branch gets at the path; None if there is none.

        Returns None only if the server reports the path as missing and a listing of the branch confirms this. Raises
        `NotFound` if the branch or repository doesn't exist.
        """
        call = ApiCall(
            "ObjectsApi", "stat_object", f"'{path}' on '{branch}' in repository '{repository}'", "fs:ReadObject"
        )
        connection, name = self.route(repository)
        response = connection.request(call, repository=name, ref=branch, path=path, user_metadata=False, presign=False)
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
        raise connection.error_for(call, response)

    def _stat_by_listing(self, repository: str, branch: str, path: str) -> ServedObject | None:
        """Like `stat`, but from a listing with the path as its prefix, in which the path itself would come first.

        Raises `Unavailable` if the listing doesn't confirm that there is no object at the path.
        """
        page = self.list_objects(repository, branch, prefix=path, amount=1)
        first = page.objects[0] if page.objects else None
        if not (first.path.startswith(path) if first else page.next_after is None):
            raise Unavailable(
                f"lakeFS at {self.route(repository)[0].where} reports that '{path}' doesn't exist on '{branch}' in "
                f"repository '{repository}', but a listing of this path doesn't confirm that. Check the proxies "
                "between this machine and the server."
            )
        return first if first and first.path == path else None

    def list_objects(
        self, repository: str, ref: str, *, after: str = "", amount: int = MAX_PAGE_SIZE, prefix: str = ""
    ) -> ServedPage:
        """One page of the objects that a reader of the ref gets, staged or committed, in path order, after `after`."""
        call = ApiCall(
            "ObjectsApi", "list_objects", f"the objects of '{ref}' in repository '{repository}'", "fs:ListObjects"
        )
        connection, name = self.route(repository)
        page, offset = pagination.page(
            connection,
            call,
            after,
            amount,
            repository=name,
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
        """The uncommitted changes on the branch (path added, changed or removed) after `after`, compared by content.

        Changes can repeat if paths aren't UTF-8 (see `responses.is_exact`). If the server can't read a record, it ends
        the diff early without an error (formats §2): see `staged_diff`.
        """
        what = f"the uncommitted changes on '{branch}' in repository '{repository}'"
        call = ApiCall("BranchesApi", "diff_branch", what, "fs:ListObjects")
        return self._changes(call, repository, after, branch=branch)

    def staged_diff(self, repository: str, branch: str, *, after: str = "") -> Iterator[Change]:
        """Like `uncommitted_diff`, but requested as the diff between the branch's committed data (`@`) and its staged
        data (`$`).

        Raises `Unavailable` if the server can't read a record: unlike the uncommitted diff, this one doesn't end early.
        """
        what = f"the staged changes on '{branch}' in repository '{repository}'"
        call = ApiCall("RefsApi", "diff_refs", what, "fs:ListObjects")
        refs = {"left_ref": f"{branch}@", "right_ref": f"{branch}$", "type": "two_dot"}
        return self._changes(call, repository, after, **refs)

    def _changes(self, call: ApiCall, repository: str, after: str, **arguments: str) -> Iterator[Change]:
        connection, name = self.route(repository)
        while True:
            page, offset = pagination.page(connection, call, after, MAX_PAGE_SIZE, repository=name, **arguments)
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


def _config_of_older_server(connection: Connection) -> ServerConfig:
    """Like `config`, for an older server, which has separate calls for the storage and the version."""
    storage = ApiCall("InternalApi", "get_storage_config", "the server's storage configuration", "fs:ReadConfig")
    version = ApiCall("InternalApi", "get_lake_fs_version", "the server's version", "fs:ReadConfig")
    blockstore = connection.body(storage).nonempty_text("blockstore_type")
    return ServerConfig({"": blockstore}, connection.body(version).maybe_text("version"))


_WHERE_CONFIGURED = "in sections [servers.NAME] of the fleet file"
_CONFIG_CALL = ApiCall("ConfigApi", "get_config", "the server's configuration", "fs:ReadConfig")
