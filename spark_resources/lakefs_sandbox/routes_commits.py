"""Routes: commits, logs, merges, reverts, cherry-picks, imports."""

from __future__ import annotations

from itertools import islice
from typing import Any

from starlette.responses import Response

from spark_resources.errors import LakegcError
from spark_resources.lakefs_sandbox.errors import Problem, bad_request, conflict, not_found
from spark_resources.lakefs_sandbox.http_calls import Body, Call, Route, empty_response, json_response, page_response
from spark_resources.lakefs_sandbox.repository import ImportSource
from spark_resources.model import Commit


def _commit_fields(commit: Commit) -> dict[str, Any]:
    return {
        "committer": commit.committer,
        "creation_date": int(commit.created.timestamp()),
        "generation": commit.generation,
        "id": commit.id,
        "message": commit.message,
        "meta_range_id": commit.metarange_id,
        "metadata": dict(commit.metadata),
        "parents": list(commit.parents),
        "version": commit.version,
    }


def commit(call: Call) -> Response:
    body = call.json()
    new_commit = call.repository.commit(
        call.path["branch"],
        body.text("message"),
        metadata=body.mapping("metadata"),
        date=call.moment(body.number("date")) if body.has("date") else None,
        allow_empty=body.flag("allow_empty"),
    )
    return json_response(_commit_fields(new_commit), 201)


def get_commit(call: Call) -> Response:
    return json_response(_commit_fields(call.repository.commit_of(call.path["commit"])))


def log_commits(call: Call) -> Response:
    repository, amount = call.repository, call.amount()
    if unsupported := [name for name in ("objects", "prefixes", "since", "stop_at") if call.text(name)]:
        raise Problem(501, f"the sandbox doesn't support the log parameter {unsupported[0]}")
    commits = repository.log(call.path["ref"], first_parent=call.flag("first_parent"))
    if after := call.text("after"):
        after_id = repository.resolve(after).commit.id
        for commit in commits:
            if commit.id == after_id:
                break
    page = list(islice(commits, amount + 1))
    has_more = len(page) > amount and not call.flag("limit")
    return page_response([_commit_fields(commit) for commit in page[:amount]], has_more, "id")


def merge(call: Call) -> Response:
    body = call.json()
    new_commit = call.repository.merge(
        call.path["source"],
        call.path["destination"],
        message=body.text("message", ""),
        metadata=body.mapping("metadata"),
        strategy=body.text("strategy", ""),
        allow_empty=body.flag("allow_empty") or body.flag("force"),
        squash=body.flag("squash_merge"),
    )
    return json_response({"reference": new_commit.id})


def merge_base(call: Call) -> Response:
    repository = call.repository
    source, destination = (repository.resolve(call.path[name]).commit for name in ("source", "destination"))
    base = repository.merge_base(source, destination)
    return json_response(
        {"base_commit_id": base.id, "destination_commit_id": destination.id, "source_commit_id": source.id}
    )


def revert(call: Call) -> Response:
    body = call.json()
    overrides = body.body("commit_overrides")
    call.repository.revert(
        call.path["branch"],
        body.text("ref"),
        parent_number=body.number("parent_number", 0),
        message=overrides.text("message", ""),
        metadata=overrides.mapping("metadata"),
        allow_empty=body.flag("allow_empty"),
    )
    return empty_response()


def cherry_pick(call: Call) -> Response:
    body = call.json()
    overrides = body.body("commit_overrides")
    new_commit = call.repository.cherry_pick(
        call.path["branch"],
        body.text("ref"),
        parent_number=body.number("parent_number") if body.has("parent_number") else None,
        message=overrides.text("message", ""),
        metadata=overrides.mapping("metadata") if overrides.has("metadata") else None,
    )
    return json_response(_commit_fields(new_commit), 201)


# --- imports --------------------------------------------------------------------------------------------------------


def start_import(call: Call) -> Response:
    """Run the import immediately. Later requests for the status return its outcome."""
    repository, branch, body = call.repository, call.path["branch"], call.json()
    commit = body.body("commit")
    if not (sources := [_source(path) for path in body.bodies("paths")]):
        raise bad_request("request body has an error: paths is empty")
    repository.check_writable()
    repository.branch(branch)
    for source in sources:
        repository.check_source(source)
    now = call.catalog.clock.now()
    status: dict[str, Any] = {"completed": True, "update_time": now.isoformat().replace("+00:00", "Z")}
    try:
        new_commit, object_count = repository.import_objects(
            branch, sources, commit.text("message", ""), metadata=commit.mapping("metadata")
        )
        status |= {
            "commit": _commit_fields(new_commit),
            "ingested_objects": object_count,
            "metarange_id": new_commit.metarange_id,
        }
    except LakegcError as problem:
        status |= {"completed": False, "error": {"message": str(problem)}}
    task_id = call.catalog.xids.ascending_id(now)
    call.catalog.state.put_task(repository.id, task_id, status)
    return json_response({"id": task_id}, 202)


def _source(body: Body) -> ImportSource:
    kind = body.text("type")
    if kind not in ("common_prefix", "object"):
        raise bad_request(f"invalid import type: {kind}")
    return ImportSource(body.text("path"), body.text("destination"), is_prefix=kind == "common_prefix")


def _import_status(call: Call) -> dict[str, Any]:
    status = call.catalog.state.task(call.repository.id, call.required("id"))
    if status is None or "completed" not in status:
        raise not_found("import")
    return status


def import_status(call: Call) -> Response:
    return json_response(_import_status(call))


def cancel_import(call: Call) -> Response:
    if _import_status(call)["completed"]:
        raise conflict("conflict found")
    return empty_response()


_COMMITS = "/repositories/{repository}/commits"
_BRANCH = "/repositories/{repository}/branches/{branch}"
_MERGE = "/repositories/{repository}/refs/{source}/merge/{destination}"

ROUTES = (
    Route("POST", _BRANCH + "/commits", commit),
    Route("GET", _COMMITS + "/{commit}", get_commit),
    Route("GET", "/repositories/{repository}/refs/{ref}/commits", log_commits),
    Route("GET", _MERGE, merge_base),
    Route("POST", _MERGE, merge),
    Route("POST", _BRANCH + "/revert", revert),
    Route("POST", _BRANCH + "/cherry-pick", cherry_pick),
    Route("POST", _BRANCH + "/import", start_import),
    Route("GET", _BRANCH + "/import", import_status),
    Route("DELETE", _BRANCH + "/import", cancel_import),
)
