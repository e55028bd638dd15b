"""Routes: upload, delete, copy, link and stage, which change a branch before a commit."""

from __future__ import annotations

from collections.abc import Mapping
from email.message import Message

from starlette.responses import Response

from spark_resources.lakefs_sandbox.errors import Problem, bad_request
from spark_resources.lakefs_sandbox.http_calls import Body, Call, Route, empty_response, json_response
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.routes_objects import stats
from spark_resources.lakefs_sandbox.staging import DEFAULT_CONTENT_TYPE

_MAX_DELETES = 1000
_METADATA_HEADER = "x-lakefs-meta-"
_BRANCH = "/repositories/{repository}/branches/{branch}"
_OBJECTS = _BRANCH + "/objects"
_BACKING = _BRANCH + "/staging/backing"


def upload(call: Call) -> Response:
    repository, branch, path = call.repository, call.path["branch"], call.required("path")
    if call.headers.get("if-none-match") == "*":
        _refuse_existing(repository, branch, path)
    content_type, data = _content(call.headers.get("content-type", DEFAULT_CONTENT_TYPE), call.body)
    metadata = {
        name[len(_METADATA_HEADER) :]: value
        for name, value in call.headers.items()
        if name.startswith(_METADATA_HEADER)
    }
    entry = repository.put(branch, path, data, content_type=content_type, metadata=metadata)
    return json_response(stats(repository, entry), 201)


def _refuse_existing(repository: SandboxRepository, branch: str, path: str) -> None:
    repository.branch(branch)
    try:
        repository.stat(branch, path)
    except Problem as problem:
        if problem.status == 404:
            return
        raise
    raise Problem(412, "path already exists")


def _content(content_type: str, body: bytes) -> tuple[str, bytes]:
    """The object's content type and bytes: those of the body, or of the part `content` of a form.

    Raises `Problem` 500, like the server, if a form has no such part.
    """
    header = _header({"content-type": content_type})
    if header.get_content_type() != "multipart/form-data":
        return content_type, body
    boundary = b"--" + str(header.get_param("boundary", "")).encode()
    for part in (b"\r\n" + body).split(b"\r\n" + boundary)[1:]:
        head, separator, data = part.partition(b"\r\n\r\n")
        lines = (line.partition(":") for line in head.decode("utf-8", "replace").strip().split("\r\n"))
        fields = _header({name.strip(): value.strip() for name, _, value in lines if name.strip()})
        if separator and fields.get_param("name", header="content-disposition") == "content":
            return fields.get("content-type", DEFAULT_CONTENT_TYPE), data
    raise Problem(500, "multipart upload missing key 'content': http: no such file")


def _header(fields: Mapping[str, str]) -> Message:
    message = Message()
    for name, value in fields.items():
        message[name] = value
    return message


def delete_object(call: Call) -> Response:
    call.repository.delete(call.path["branch"], [call.required("path")])
    return empty_response()


def delete_objects(call: Call) -> Response:
    paths = call.json().texts("paths")
    if len(paths) > _MAX_DELETES:
        raise bad_request(f"request size exceeded, max paths is set to {_MAX_DELETES}")
    call.repository.delete(call.path["branch"], [path for path in paths if path])
    return json_response({"errors": []})


# --- existing objects -----------------------------------------------------------------------------------------------


def copy_object(call: Call) -> Response:
    repository, body = call.repository, call.json()
    entry = repository.copy(
        call.path["branch"],
        call.required("dest_path"),
        body.text("src_path"),
        source_ref=body.text("src_ref", ""),
        shallow=body.flag("shallow"),
    )
    return json_response(stats(repository, entry), 201)


def get_physical_address(call: Call) -> Response:
    if call.flag("presign"):
        raise bad_request("operation not supported")
    return json_response({"physical_address": call.repository.new_location(call.path["branch"], call.required("path"))})


def link_physical_address(call: Call) -> Response:
    repository, branch, path, body = call.repository, call.path["branch"], call.required("path"), call.json()
    if call.headers.get("if-none-match") == "*":
        _refuse_existing(repository, branch, path)
    location = body.body("staging").text("physical_address")
    entry = repository.link(
        branch,
        path,
        location,
        size=_size(body),
        checksum=body.text("checksum"),
        modified=call.moment(body.number("mtime")) if body.has("mtime") else None,
        content_type=body.text("content_type", ""),
        metadata=body.mapping("user_metadata"),
    )
    return json_response(stats(repository, entry) | {"physical_address": location})


def stage_object(call: Call) -> Response:
    repository, body = call.repository, call.json()
    entry = repository.stage_address(
        call.path["branch"],
        call.required("path"),
        body.text("physical_address"),
        size=_size(body),
        checksum=body.text("checksum"),
        modified=call.moment(body.number("mtime")) if body.has("mtime") else None,
        content_type=body.text("content_type", ""),
        metadata=body.mapping("metadata"),
    )
    return json_response(stats(repository, entry) | {"physical_address": body.text("physical_address")}, 201)


def _size(body: Body) -> int:
    if (size := body.number("size_bytes")) < 0:
        raise bad_request("request body has an error: size_bytes must not be negative")
    return size


def set_user_metadata(call: Call) -> Response:
    call.repository.set_metadata(call.path["branch"], call.required("path"), call.json().mapping("set"))
    return empty_response(201)


ROUTES = (
    Route("POST", _OBJECTS, upload),
    Route("PUT", _OBJECTS, stage_object),
    Route("DELETE", _OBJECTS, delete_object),
    Route("POST", _OBJECTS + "/delete", delete_objects),
    Route("POST", _OBJECTS + "/copy", copy_object),
    Route("PUT", _OBJECTS + "/stat/user_metadata", set_user_metadata),
    Route("GET", _BACKING, get_physical_address),
    Route("PUT", _BACKING, link_physical_address),
)
