"""Routes: the server itself, repositories, branches, tags."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.responses import PlainTextResponse, Response

from spark_resources.lakefs_sandbox.errors import bad_request
from spark_resources.lakefs_sandbox.http_calls import (
    Call,
    Route,
    empty_response,
    json_response,
    page_response,
    select_page,
)
from spark_resources.lakefs_sandbox.state import BranchRecord, RepositoryRecord

_BRANCHES = "/repositories/{repository}/branches"
_TAGS = "/repositories/{repository}/tags"


def _version_fields() -> dict[str, str]:
    try:
        own_version = version("lakegc")
    except PackageNotFoundError:
        own_version = "0"
    return {"version": f"sandbox-{own_version}", "version_context": "lakegc"}


def _storage_fields(call: Call) -> dict[str, Any]:
    store = call.catalog.block_store
    return {
        "blockstore_description": "",
        "blockstore_id": "",
        "blockstore_namespace_ValidityRegex": f"^{store.scheme}",
        "blockstore_namespace_example": f"{store.scheme}example-bucket/",
        "blockstore_type": store.kind,
        "default_namespace_prefix": store.default_prefix,
        "import_support": True,
        "import_validity_regex": f"^{store.scheme}",
        "pre_sign_multipart_upload": False,
        "pre_sign_support": False,
        "pre_sign_support_ui": False,
    }


def config(call: Call) -> Response:
    return json_response(
        {
            "capabilities_config": {},
            "storage_config": _storage_fields(call),
            "storage_config_list": [],
            "ui_config": {},
            "version_config": _version_fields(),
        }
    )


def storage_config(call: Call) -> Response:
    return json_response(_storage_fields(call))


def version_config(call: Call) -> Response:
    return json_response(_version_fields())


def setup_state(call: Call) -> Response:
    return json_response({"state": "initialized", "comm_prefs_missing": False, "login_config": {"RBAC": "none"}})


def health_check(call: Call) -> Response:
    return empty_response()


def current_user(call: Call) -> Response:
    return json_response({"user": {"id": "admin", "creation_date": 0}})


def _repository_fields(record: RepositoryRecord) -> dict[str, Any]:
    return {
        "creation_date": int(record.created.timestamp()),
        "default_branch": record.default_branch,
        "id": record.id,
        "read_only": record.read_only,
        "storage_id": "",
        "storage_namespace": record.storage_namespace,
    }


def list_repositories(call: Call) -> Response:
    page, has_more = select_page(call, call.catalog.repositories(), lambda record: record.id)
    return page_response([_repository_fields(record) for record in page], has_more, "id")


def create_repository(call: Call) -> Response:
    body = call.json()
    repository = call.catalog.create(
        body.text("name"),
        body.text("storage_namespace"),
        default_branch=body.text("default_branch", "main") or "main",
        read_only=body.flag("read_only"),
    )
    return json_response(_repository_fields(repository.record), 201)


def get_repository(call: Call) -> Response:
    return json_response(_repository_fields(call.repository.record))


def delete_repository(call: Call) -> Response:
    call.catalog.delete(call.path["repository"], force=call.flag("force"))
    return empty_response()


# --- branches and tags ----------------------------------------------------------------------------------------------


def _ref_fields(name: str, commit_id: str) -> dict[str, Any]:
    return {"commit_id": commit_id, "id": name}


def _branch_name(branch: BranchRecord) -> str:
    return branch.id


def list_branches(call: Call) -> Response:
    page, has_more = select_page(call, call.repository.branches(include_hidden=call.flag("show_hidden")), _branch_name)
    return page_response([_ref_fields(branch.id, branch.commit_id) for branch in page], has_more, "id")


def create_branch(call: Call) -> Response:
    body = call.json()
    commit_id = call.repository.create_branch(body.text("name"), body.text("source"), hidden=body.flag("hidden"))
    return PlainTextResponse(commit_id, 201)


def get_branch(call: Call) -> Response:
    branch = call.repository.branch(call.path["branch"])
    return json_response(_ref_fields(branch.id, branch.commit_id))


def delete_branch(call: Call) -> Response:
    call.repository.delete_branch(call.path["branch"])
    return empty_response()


def reset_branch(call: Call) -> Response:
    body, repository, branch = call.json(), call.repository, call.path["branch"]
    match body.text("type"):
        case "reset":
            repository.reset(branch)
        case "object":
            repository.reset_path(branch, body.text("path", ""))
        case "common_prefix":
            repository.reset_prefix(branch, body.text("path", ""))
        case _:
            raise bad_request("unknown reset type")
    return empty_response()


def hard_reset_branch(call: Call) -> Response:
    call.repository.hard_reset(call.path["branch"], call.required("ref"))
    return empty_response()


def list_tags(call: Call) -> Response:
    page, has_more = select_page(call, call.repository.tags(), lambda tag: tag[0])
    return page_response([_ref_fields(*tag) for tag in page], has_more, "id")


def create_tag(call: Call) -> Response:
    body = call.json()
    name = body.text("id")
    return json_response(_ref_fields(name, call.repository.create_tag(name, body.text("ref"))), 201)


def get_tag(call: Call) -> Response:
    return json_response(_ref_fields(call.path["tag"], call.repository.tag(call.path["tag"])))


def delete_tag(call: Call) -> Response:
    call.repository.delete_tag(call.path["tag"])
    return empty_response()


ROUTES = (
    Route("GET", "/healthcheck", health_check),
    Route("GET", "/setup_lakefs", setup_state),
    Route("GET", "/user", current_user),
    Route("GET", "/config", config),
    Route("GET", "/config/storage", storage_config),
    Route("GET", "/config/version", version_config),
    Route("GET", "/repositories", list_repositories),
    Route("POST", "/repositories", create_repository),
    Route("GET", "/repositories/{repository}", get_repository),
    Route("DELETE", "/repositories/{repository}", delete_repository),
    Route("GET", _BRANCHES, list_branches),
    Route("POST", _BRANCHES, create_branch),
    Route("GET", _BRANCHES + "/{branch}", get_branch),
    Route("PUT", _BRANCHES + "/{branch}", reset_branch),
    Route("DELETE", _BRANCHES + "/{branch}", delete_branch),
    Route("PUT", _BRANCHES + "/{branch}/hard_reset", hard_reset_branch),
    Route("GET", _TAGS, list_tags),
    Route("POST", _TAGS, create_tag),
    Route("GET", _TAGS + "/{tag}", get_tag),
    Route("DELETE", _TAGS + "/{tag}", delete_tag),
)
