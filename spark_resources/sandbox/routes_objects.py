"""Routes: upload, delete, read, stat, list, and what is uncommitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import Message
from itertools import islice
from typing import Any

from starlette.responses import Response

from spark_resources.sandbox.calls import Call, Route, answer, http_date, nothing, paged
from spark_resources.sandbox.problems import Problem, bad_request, not_found
from spark_resources.sandbox.repository import DEFAULT_CONTENT_TYPE, Change, SandboxRepository
from spark_resources.sstable import Entry

_MOST_DELETES = 1000
_METADATA_HEADER = "x-lakefs-meta-"
_OBJECTS = "/repositories/{repository}/branches/{branch}/objects"
_READ = "/repositories/{repository}/refs/{ref}/objects"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _stats(repository: SandboxRepository, entry: Entry, *, metadata: bool = True) -> dict[str, Any]:
    return {
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "metadata": dict(entry.metadata) if metadata else {},
        "mtime": int((entry.last_modified or _EPOCH).timestamp()),
        "path": entry.path.decode(),
        "path_type": "object",
        "physical_address": repository.physical_address(entry),
        "size_bytes": entry.size,
    }


# --- writing --------------------------------------------------------------------------------------------------------


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
    return answer(_stats(repository, entry), 201)


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
    """The object's type and bytes: the body, or a form's part `content`. Raises `Problem` 500 as the server does."""
    header = _header({"content-type": content_type})
    if header.get_content_type() != "multipart/form-data":
        return content_type, body
    boundary = b"--" + str(header.get_param("boundary", "")).encode()
    for part in (b"\r\n" + body).split(b"\r\n" + boundary)[1:]:
        head, blank, data = part.partition(b"\r\n\r\n")
        lines = (line.partition(":") for line in head.decode("utf-8", "replace").strip().split("\r\n"))
        fields = _header({name.strip(): value.strip() for name, _, value in lines if name.strip()})
        if blank and fields.get_param("name", header="content-disposition") == "content":
            return fields.get("content-type", DEFAULT_CONTENT_TYPE), data
    raise Problem(500, "multipart upload missing key 'content': http: no such file")


def _header(fields: Mapping[str, str]) -> Message:
    message = Message()
    for name, value in fields.items():
        message[name] = value
    return message


def delete_object(call: Call) -> Response:
    call.repository.delete(call.path["branch"], [call.required("path")])
    return nothing()


def delete_objects(call: Call) -> Response:
    paths = call.json().texts("paths")
    if len(paths) > _MOST_DELETES:
        raise bad_request(f"request size exceeded, max paths is set to {_MOST_DELETES}")
    call.repository.delete(call.path["branch"], [path for path in paths if path])
    return answer({"errors": []})


# --- reading --------------------------------------------------------------------------------------------------------


def _headers(entry: Entry) -> dict[str, str]:
    return {
        "ETag": f'"{entry.checksum}"',
        "Last-Modified": http_date(entry.last_modified or _EPOCH),
        "Content-Type": entry.content_type or DEFAULT_CONTENT_TYPE,
        "Accept-Ranges": "bytes",
        "Cache-Control": "no-store, must-revalidate",
    }


def get_object(call: Call) -> Response:
    entry, data = call.repository.read(call.path["ref"], call.required("path"))
    headers = _headers(entry)
    if call.headers.get("if-none-match") == headers["ETag"]:
        return nothing(304)
    if (asked := call.headers.get("range")) is None:
        return Response(data, headers=headers)
    begin, end = _range(asked, len(data))
    headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
    return Response(data[begin : end + 1], 206, headers=headers)


def _range(asked: str, size: int) -> tuple[int, int]:
    """First and last byte, both inside. Raises `Problem` 416."""
    parts = _RANGE.fullmatch(asked)
    if parts is None or parts.groups() == ("", ""):
        raise Problem(416, "Requested Range Not Satisfiable")
    first, last = parts.groups()
    begin = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if begin > end:
        raise Problem(416, "Requested Range Not Satisfiable")
    return begin, end


def head_object(call: Call) -> Response:
    """Answered from the entry alone: also where the object is gone from the store (formats §2)."""
    try:
        entry = call.repository.stat(call.path["ref"], call.required("path"))
    except Problem as problem:
        return nothing(problem.status)
    return Response(headers=_headers(entry) | {"Content-Length": str(entry.size)})


def stat_object(call: Call) -> Response:
    repository = call.repository
    entry = repository.stat(call.path["ref"], call.required("path"))
    return answer(_stats(repository, entry, metadata=call.text("user_metadata", "true") == "true"))


def list_objects(call: Call) -> Response:
    repository = call.repository
    page, more = repository.listing(
        call.path["ref"],
        prefix=call.text("prefix"),
        after=call.text("after"),
        delimiter=call.text("delimiter"),
        amount=call.amount(),
    )
    metadata = call.text("user_metadata", "true") == "true"
    results = [
        _stats(repository, item, metadata=metadata) if isinstance(item, Entry) else _common_prefix(item)
        for item in page
    ]
    return paged(results, more, "path")


def _common_prefix(path: str) -> dict[str, Any]:
    return {"checksum": "", "mtime": 0, "path": path, "path_type": "common_prefix", "physical_address": ""}


def diff_branch(call: Call) -> Response:
    repository, branch, amount = call.repository, call.path["branch"], call.amount()
    if call.text("delimiter"):
        raise Problem(501, "the sandbox lists uncommitted changes without a delimiter only")
    prefix, after = call.text("prefix"), call.text("after")
    changes = (
        change
        for change in repository.uncommitted(branch, since=max(prefix, after))
        if change.entry.path != after.encode()
    )
    page = list(islice(changes, amount + 1))
    inside = [change for change in page if change.entry.path.startswith(prefix.encode())]
    return paged([_change(change) for change in inside[:amount]], len(inside) > amount, "path")


def _change(change: Change) -> dict[str, Any]:
    return {
        "path": change.entry.path.decode(),
        "path_type": "object",
        "size_bytes": change.entry.size,
        "type": change.kind,
    }


def underlying_properties(call: Call) -> Response:
    call.repository.stat(call.path["ref"], call.required("path"))
    return answer({"storage_class": None})


def range_location(call: Call) -> Response:
    """Where a range or metarange lies."""
    repository = call.repository
    key = f"_lakefs/{call.path['id']}"
    if not repository.objects.has(key):
        raise not_found("range")
    location = repository.objects.location(key)
    response = answer({"location": location})
    response.headers["Location"] = location
    return response


ROUTES = (
    Route("POST", _OBJECTS, upload),
    Route("DELETE", _OBJECTS, delete_object),
    Route("POST", _OBJECTS + "/delete", delete_objects),
    Route("GET", _READ, get_object),
    Route("HEAD", _READ, head_object),
    Route("GET", _READ + "/stat", stat_object),
    Route("GET", _READ + "/ls", list_objects),
    Route("GET", _READ + "/underlyingProperties", underlying_properties),
    Route("GET", "/repositories/{repository}/branches/{branch}/diff", diff_branch),
    Route("GET", "/repositories/{repository}/metadata/meta_range/{id}", range_location),
    Route("GET", "/repositories/{repository}/metadata/range/{id}", range_location),
)
