"""Files that the server writes into the namespace on request: lists for collectors, dumps of references (formats §2).

Each call can be repeated: it writes a new run, and changes no file that lakegc reads from an older one.
"""

from __future__ import annotations

from typing import Any

from spark_resources.errors import DamagedData, Interrupted, Unavailable, full_stop
from spark_resources.lakefs import responses
from spark_resources.lakefs.connection import Connection, Question
from spark_resources.lakefs.pagination import NO_SUCH_CALL, Progress, finished, repository
from spark_resources.lakefs.responses import Body, RefsDump, UncommittedLists

_COMMITS = "retention:PrepareGarbageCollectionCommits"
_UNCOMMITTED = "retention:PrepareGarbageCollectionUncommitted"
_DUMP = "fs:ListBranches, fs:ListTags and fs:ListCommits"


def prepare_commits(connection: Connection, name: str, progress: Progress | None) -> str | None:
    """Have the server list the retained commits. Returns the location of its CSV; None if there are no rules."""
    what = f"a list of the retained commits of repository '{name}'"
    question = Question("InternalApi", "prepare_garbage_collection_commits_async", what, _COMMITS, slow=True)
    answer = connection.ask(question, repository=name)
    if answer.fine:
        return _commits_of_task(connection, name, Body.of(answer.json, what).filled("id"), progress)
    if answer.status in NO_SUCH_CALL and not _says_no_rules(answer.status, answer.message):
        question = Question("InternalApi", "prepare_garbage_collection_commits", what, _COMMITS, slow=True)
        answer = connection.ask(question, repository=name)
        if answer.fine:
            return Body.of(answer.json, what).filled("gc_commits_location")
    if _says_no_rules(answer.status, answer.message):
        return None
    raise connection.refusal(question, answer)


def _commits_of_task(connection: Connection, name: str, task: str, progress: Progress | None) -> str | None:
    what = f"the state of the list of retained commits of repository '{name}'"
    question = Question("InternalApi", "prepare_garbage_collection_commits_status", what, _COMMITS)
    status = finished(connection, question, "completed", progress, repository=name, id=task)
    if error := status.maybe_inner("error"):
        message = error.text("message")
        if _says_no_rules(404, message):
            return None
        raise Unavailable(
            f"lakeFS at {connection.where} could not list the retained commits of '{name}': {full_stop(message)} "
            "Look at the server's log, then mark again."
        )
    return status.inner("result").filled("gc_commits_location")


def _says_no_rules(status: int, message: str) -> bool:
    """Whether this is the server's error for a repository without rules, from either form of the call (formats §2)."""
    return status == 404 and "get gc rules" in message and "not found" in message


def prepare_uncommitted(connection: Connection, name: str) -> UncommittedLists:
    """Have the server list all staged addresses. Returns the lists' locations and file counts, over all pages.

    Raises `Interrupted` if a branch was deleted while the server listed its staged objects.
    """
    files: dict[str, int] = {}
    pages, run_id, token = 0, "", ""
    seen: set[str] = set()
    while True:
        body = _uncommitted_page(connection, name, run_id, token)
        pages += 1
        if run_id not in ("", body.filled("run_id")):
            raise DamagedData(f"{body.what}: page {pages} belongs to another run than the first", invariant=3)
        run_id = body.filled("run_id")
        if location := body.text("gc_uncommitted_location"):
            files[location] = files.get(location, 0) + 1
        token = body.maybe_text("continuation_token")
        if not token:
            return UncommittedLists(run_id, files, pages)
        if token in seen:
            raise DamagedData(f"{body.what}: the server gave the same continuation token twice", invariant=3)
        seen.add(token)


def _uncommitted_page(connection: Connection, name: str, run_id: str, token: str) -> Body:
    what = f"a list of the staged objects of repository '{name}'"
    question = Question("InternalApi", "prepare_garbage_collection_uncommitted", what, _UNCOMMITTED, slow=True)
    answer = connection.ask(question, repository=name, prepare_gc_uncommitted_request=_continuation(run_id, token))
    if answer.fine:
        return Body.of(answer.json, question.what)
    if answer.names_nothing and "branch" in answer.message.lower():
        raise Interrupted(
            f"lakeFS at {connection.where} was asked for {what} and gave up ({answer.message}): a branch was deleted "
            "meanwhile. Run it again."
        )
    if answer.status in NO_SUCH_CALL:
        repository(connection, name)  # raises if the repository itself is missing
        said = f", {answer.message}" if answer.message else ""
        raise Unavailable(
            f"lakeFS at {connection.where} can't list staged objects ({answer.status}{said}): servers before 0.87 "
            "lack the call. Without that list no repository can be collected; upgrade the server."
        )
    raise connection.refusal(question, answer)


def _continuation(run_id: str, token: str) -> Any:
    """The request body for a page. It includes the `run_id`, which the SDK's model lacks (formats §2)."""
    from lakefs_sdk.models.prepare_gc_uncommitted_request import PrepareGCUncommittedRequest

    class Continuation(PrepareGCUncommittedRequest):
        run_id: str

    return Continuation(continuation_token=token, run_id=run_id) if token else PrepareGCUncommittedRequest()


def dump_refs(connection: Connection, name: str) -> RefsDump | None:
    """Dump the references. Returns the ids of the tables; None if these credentials or this server don't allow it."""
    what = f"a dump of the references of repository '{name}'"
    question = Question("InternalApi", "dump_refs", what, _DUMP, slow=True)
    answer = connection.ask(question, repository=name)
    if answer.fine:
        return responses.refs_dump(Body.of(answer.json, what))
    if answer.status in NO_SUCH_CALL:
        question = Question("RepositoriesApi", "dump_submit", what, _DUMP, slow=True)
        answer = connection.ask(question, repository=name)
        if answer.fine:
            return _dump_of_task(connection, name, Body.of(answer.json, what).filled("id"))
    if answer.status in {401, 403, *NO_SUCH_CALL}:
        repository(connection, name)  # raises unless the problem is limited to this one call
        return None
    raise connection.refusal(question, answer)


def _dump_of_task(connection: Connection, name: str, task: str) -> RefsDump:
    what = f"the state of the dump of references of repository '{name}'"
    question = Question("RepositoriesApi", "dump_status", what, _DUMP)
    status = finished(connection, question, "done", None, repository=name, task_id=task)
    if error := status.maybe_text("error"):
        raise Unavailable(f"lakeFS at {connection.where} could not dump the references of '{name}': {error}")
    return responses.refs_dump(status.inner("refs"))
