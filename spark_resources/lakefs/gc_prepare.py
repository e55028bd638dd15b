"""Requests files that the server writes to the namespace: lists for garbage collection, and dumps (formats §2).

Each call can be repeated: it writes the files of a new run, and leaves those of older runs, which lakegc may read,
unchanged.
"""

from __future__ import annotations

from typing import Any

from spark_resources.errors import DamagedData, Interrupted, Unavailable, full_stop
from spark_resources.lakefs import responses
from spark_resources.lakefs.connection import ApiCall, Connection
from spark_resources.lakefs.pagination import UNSUPPORTED_CALL_STATUSES, Progress, poll_task, repository
from spark_resources.lakefs.responses import Body, RefsDump, UncommittedLists

_COMMITS = "retention:PrepareGarbageCollectionCommits"
_UNCOMMITTED = "retention:PrepareGarbageCollectionUncommitted"
_DUMP = "fs:ListBranches, fs:ListTags and fs:ListCommits"


def prepare_commits(connection: Connection, name: str, progress: Progress | None) -> str | None:
    """Have the server list the retained commits. Returns the location of its CSV; None if there are no rules."""
    what = f"a list of the retained commits of repository '{name}'"
    call = ApiCall("InternalApi", "prepare_garbage_collection_commits_async", what, _COMMITS, slow=True)
    response = connection.request(call, repository=name)
    if response.is_success:
        return _commits_from_task(connection, name, Body.of(response.json, what).nonempty_text("id"), progress)
    if response.status in UNSUPPORTED_CALL_STATUSES and not _has_no_rules(response.status, response.message):
        call = ApiCall("InternalApi", "prepare_garbage_collection_commits", what, _COMMITS, slow=True)
        response = connection.request(call, repository=name)
        if response.is_success:
            return Body.of(response.json, what).nonempty_text("gc_commits_location")
    if _has_no_rules(response.status, response.message):
        return None
    raise connection.error_for(call, response)


def _commits_from_task(connection: Connection, name: str, task_id: str, progress: Progress | None) -> str | None:
    what = f"the state of the list of retained commits of repository '{name}'"
    call = ApiCall("InternalApi", "prepare_garbage_collection_commits_status", what, _COMMITS)
    status = poll_task(connection, call, "completed", progress, repository=name, id=task_id)
    if error := status.maybe_inner("error"):
        message = error.text("message")
        if _has_no_rules(404, message):
            return None
        raise Unavailable(
            f"lakeFS at {connection.where} could not list the retained commits of '{name}': {full_stop(message)} "
            "Check the server's log, then make a new mark."
        )
    return status.inner("result").nonempty_text("gc_commits_location")


def _has_no_rules(status: int, message: str) -> bool:
    """Whether this is the server's error for a repository without rules, from either form of the call (formats §2)."""
    return status == 404 and "get gc rules" in message and "not found" in message


def prepare_uncommitted(connection: Connection, name: str) -> UncommittedLists:
    """Have the server write lists of the staged addresses. Returns the lists' locations and file counts.

    The lists can miss staged objects (formats §2). Raises `Interrupted` if a branch is deleted while the server lists
    its staged objects.
    """
    files: dict[str, int] = {}
    pages, run_id, token = 0, "", ""
    seen: set[str] = set()
    while True:
        body = _uncommitted_page(connection, name, run_id, token)
        pages += 1
        if run_id not in ("", body.nonempty_text("run_id")):
            raise DamagedData(
                f"{body.what}: page {pages} and the first page belong to different runs. Run the same command again.",
                invariant=3,
            )
        run_id = body.nonempty_text("run_id")
        if location := body.text("gc_uncommitted_location"):
            files[location] = files.get(location, 0) + 1
        token = body.maybe_text("continuation_token")
        if not token:
            return UncommittedLists(run_id, files, pages)
        if token in seen:
            raise DamagedData(
                f"{body.what}: the server returned the same continuation token twice, so the list has no end. Check "
                "the proxies in front of the server.",
                invariant=3,
            )
        seen.add(token)


def _uncommitted_page(connection: Connection, name: str, run_id: str, token: str) -> Body:
    what = f"a list of the staged objects of repository '{name}'"
    call = ApiCall("InternalApi", "prepare_garbage_collection_uncommitted", what, _UNCOMMITTED, slow=True)
    response = connection.request(call, repository=name, prepare_gc_uncommitted_request=_page_request(run_id, token))
    if response.is_success:
        return Body.of(response.json, call.what)
    if response.says_not_found and "branch" in response.message.lower():
        raise Interrupted(
            f"could not get {what} from lakeFS at {connection.where} ({response.message}): a branch was deleted while "
            "its objects were being listed. Run the same command again."
        )
    if response.status in UNSUPPORTED_CALL_STATUSES:
        repository(connection, name)  # raises if the repository itself is missing
        reason = f", {response.message}" if response.message else ""
        raise Unavailable(
            f"lakeFS at {connection.where} can't list staged objects ({response.status}{reason}): versions before "
            "0.87 lack this call. Without this list, nothing can be collected. Upgrade the server."
        )
    raise connection.error_for(call, response)


def _page_request(run_id: str, token: str) -> Any:
    """The request body for a page. It includes the `run_id`, which the SDK's model lacks (formats §2)."""
    from lakefs_sdk.models.prepare_gc_uncommitted_request import PrepareGCUncommittedRequest

    class Continuation(PrepareGCUncommittedRequest):
        run_id: str

    return Continuation(continuation_token=token, run_id=run_id) if token else PrepareGCUncommittedRequest()


def dump_refs(connection: Connection, name: str) -> RefsDump | None:
    """Have the server dump the references. Returns the ids of the tables.

    Returns None if these credentials don't allow a dump, or this server doesn't support it.
    """
    what = f"a dump of the references of repository '{name}'"
    call = ApiCall("InternalApi", "dump_refs", what, _DUMP, slow=True)
    response = connection.request(call, repository=name)
    if response.is_success:
        return responses.refs_dump(Body.of(response.json, what))
    if response.status in UNSUPPORTED_CALL_STATUSES:
        call = ApiCall("RepositoriesApi", "dump_submit", what, _DUMP, slow=True)
        response = connection.request(call, repository=name)
        if response.is_success:
            return _dump_from_task(connection, name, Body.of(response.json, what).nonempty_text("id"))
    if response.status in {401, 403, *UNSUPPORTED_CALL_STATUSES}:
        repository(connection, name)  # raises unless the problem is limited to this one call
        return None
    raise connection.error_for(call, response)


def _dump_from_task(connection: Connection, name: str, task_id: str) -> RefsDump:
    what = f"the state of the dump of references of repository '{name}'"
    call = ApiCall("RepositoriesApi", "dump_status", what, _DUMP)
    status = poll_task(connection, call, "done", None, repository=name, task_id=task_id)
    if error := status.maybe_text("error"):
        raise Unavailable(
            f"lakeFS at {connection.where} could not dump the references of '{name}': {full_stop(error)} Check the "
            "server's log."
        )
    return responses.refs_dump(status.inner("refs"))
