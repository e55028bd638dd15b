"""Routes: retention rules, lists prepared for garbage collection, refs dumps (formats §2)."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from starlette.responses import Response

from spark_resources.lakefs_sandbox import gc_api
from spark_resources.lakefs_sandbox.errors import Problem, bad_request, not_found
from spark_resources.lakefs_sandbox.http_calls import Call, Route, empty_response, json_response
from spark_resources.model import Rules

_REPOSITORY = "/repositories/{repository}"


def get_rules(call: Call) -> Response:
    rules = gc_api.rules(call.repository)
    branches = [{"branch_id": branch, "retention_days": days} for branch, days in rules.branch_days.items()]
    # If no branch has a rule, the server sends null here, not an empty list.
    return json_response({"branches": branches or None, "default_retention_days": rules.default_days})


def set_rules(call: Call) -> Response:
    body = call.json()
    days = {rule.text("branch_id"): rule.number("retention_days") for rule in body.bodies("branches")}
    default = body.number("default_retention_days")
    if default < 0 or any(count < 0 for count in days.values()):
        raise bad_request("request body has an error: retention days must not be negative")
    gc_api.set_rules(call.repository, Rules(default, days))
    return empty_response()


def delete_rules(call: Call) -> Response:
    gc_api.delete_rules(call.repository)
    return empty_response()


def check_rules_allowed(call: Call) -> Response:
    call.repository.check_writable()
    return empty_response()


def gc_config(call: Call) -> Response:
    return json_response({"grace_period": 24 * 3600})


# --- prepared lists -------------------------------------------------------------------------------------------------


def _run_prepare_commits(call: Call) -> dict[str, Any]:
    prepared = gc_api.prepare_commits(call.repository, call.catalog.xids, call.options.oversights)
    return {
        "gc_addresses_location": prepared.addresses_location,
        "gc_commits_location": prepared.commits_location,
        "run_id": prepared.run_id,
    }


def prepare_commits(call: Call) -> Response:
    return json_response(_run_prepare_commits(call), 201)


def prepare_commits_async(call: Call) -> Response:
    call.repository.check_writable()
    return json_response({"id": _run_as_task(call, "GCPC", "result", lambda: _run_prepare_commits(call))}, 202)


def prepare_commits_status(call: Call) -> Response:
    status = _task_status(call, call.required("id"))
    fields = {"completed": status.pop("done"), "task_id": status.pop("id"), **status}
    if "error" in fields:
        fields["error"] = {"message": fields["error"]}
    return json_response(fields)


def prepare_uncommitted(call: Call) -> Response:
    body = call.json()
    page = gc_api.prepare_uncommitted(
        call.repository,
        call.catalog.xids,
        body.text("continuation_token", "") or None,
        page_size=call.options.uncommitted_page_size,
        oversights=call.options.oversights,
    )
    fields = {"gc_uncommitted_location": page.location, "run_id": page.run_id}
    return json_response(fields | ({"continuation_token": page.token} if page.token else {}), 201)


# --- refs dump ------------------------------------------------------------------------------------------------------


def dump_refs(call: Call) -> Response:
    return json_response(gc_api.dump_refs(call.repository), 201)


def dump_submit(call: Call) -> Response:
    repository = call.repository
    return json_response({"id": _run_as_task(call, "DR", "refs", lambda: gc_api.dump_refs(repository))}, 202)


def dump_status(call: Call) -> Response:
    return json_response(_task_status(call, call.required("task_id")))


# --- tasks ----------------------------------------------------------------------------------------------------------


def _run_as_task(call: Call, id_prefix: str, result_field: str, work: Callable[[], dict[str, Any]]) -> str:
    """Do the work immediately, and store its result or error for later status requests. Returns the task id."""
    now = call.catalog.clock.now()
    number = f"{call.catalog.xids.ascending_id(now)}".encode()
    task_id = id_prefix + base64.urlsafe_b64encode(number).decode().rstrip("=")
    status: dict[str, Any] = {"id": task_id, "done": True, "update_time": now.isoformat().replace("+00:00", "Z")}
    try:
        status[result_field] = work()
    except Problem as problem:
        status["error"] = problem.message
    call.catalog.state.put_task(call.path["repository"], task_id, status)
    return task_id


def _task_status(call: Call, task_id: str) -> dict[str, Any]:
    status = call.catalog.state.task(call.repository.id, task_id)
    if status is None:
        raise not_found()
    return status


ROUTES = (
    Route("GET", "/config/garbage-collection", gc_config),
    Route("GET", _REPOSITORY + "/settings/gc_rules", get_rules),
    Route("PUT", _REPOSITORY + "/settings/gc_rules", set_rules),
    Route("DELETE", _REPOSITORY + "/settings/gc_rules", delete_rules),
    Route("GET", _REPOSITORY + "/gc/rules", get_rules),
    Route("POST", _REPOSITORY + "/gc/rules", set_rules),
    Route("DELETE", _REPOSITORY + "/gc/rules", delete_rules),
    Route("GET", _REPOSITORY + "/gc/rules/set_allowed", check_rules_allowed),
    Route("POST", _REPOSITORY + "/gc/prepare_commits", prepare_commits),
    Route("POST", _REPOSITORY + "/gc/prepare_commits/async", prepare_commits_async),
    Route("GET", _REPOSITORY + "/gc/prepare_commits/status", prepare_commits_status),
    Route("POST", _REPOSITORY + "/gc/prepare_uncommited", prepare_uncommitted),
    Route("PUT", _REPOSITORY + "/refs/dump", dump_refs),
    Route("POST", _REPOSITORY + "/dump", dump_submit),
    Route("GET", _REPOSITORY + "/dump", dump_status),
)
