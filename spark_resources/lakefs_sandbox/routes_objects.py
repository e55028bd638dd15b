"""Routes: read, stat, list, diff."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from starlette.responses import Response

from spark_resources.lakefs_sandbox.errors import Problem, bad_request, not_found
from spark_resources.lakefs_sandbox.http_calls import (
    Call,
    Route,
    empty_response,
    http_date,
    json_response,
    page_response,
)
from spark_resources.lakefs_sandbox.ref_views import Change, PrefixChange, as_text, group_by_prefix
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.staging import DEFAULT_CONTENT_TYPE
from spark_resources.sstable import Entry

_READ = "/repositories/{repository}/refs/{ref}/objects"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def mtime(entry: Entry) -> int:
    """The entry's modification time in whole seconds since 1970; 0 if it has none."""
    return int((entry.last_modified or _EPOCH).timestamp())


def stats(repository: SandboxRepository, entry: Entry, *, include_metadata: bool = True) -> dict[str, Any]:
    """An entry's fields in a response."""
    return {
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "metadata": dict(entry.metadata) if include_metadata else {},
        "mtime": mtime(entry),
        "path": as_text(entry.path),
        "path_type": "object",
        "physical_address": repository.physical_address(entry),
        "size_bytes": entry.size,
    }


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
        return empty_response(304)
    if (requested := call.headers.get("range")) is None:
        return Response(data, headers=headers)
    begin, end = _byte_range(requested, len(data))
    headers["Content-Range"] = f"bytes {begin}-{end}/{len(data)}"
    return Response(data[begin : end + 1], 206, headers=headers)


def _byte_range(requested: str, size: int) -> tuple[int, int]:
    """The first and last byte of a range request, both inclusive. Raises `Problem` 416 if it can't be satisfied."""
    parts = _RANGE.fullmatch(requested)
    if parts is None or parts.groups() == ("", ""):
        raise Problem(416, "Requested Range Not Satisfiable")
    first, last = parts.groups()
    begin = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if begin > end:
        raise Problem(416, "Requested Range Not Satisfiable")
    return begin, end


def head_object(call: Call) -> Response:
    """Respond from the entry alone, even if the object is gone from the store (formats §2)."""
    try:
        entry = call.repository.stat(call.path["ref"], call.required("path"))
    except Problem as problem:
        return empty_response(problem.status)
    return Response(headers=_headers(entry) | {"Content-Length": str(entry.size)})


def stat_object(call: Call) -> Response:
    repository = call.repository
    entry = repository.stat(call.path["ref"], call.required("path"))
    return json_response(stats(repository, entry, include_metadata=call.text("user_metadata", "true") == "true"))


def list_objects(call: Call) -> Response:
    repository = call.repository
    page, has_more = repository.listing(
        call.path["ref"],
        prefix=call.text("prefix"),
        after=call.text("after"),
        delimiter=call.text("delimiter"),
        amount=call.amount(),
    )
    include_metadata = call.text("user_metadata", "true") == "true"
    results = [
        stats(repository, item, include_metadata=include_metadata) if isinstance(item, Entry) else _common_prefix(item)
        for item in page
    ]
    return page_response(results, has_more, "path")


def _common_prefix(path: str) -> dict[str, Any]:
    return {"checksum": "", "mtime": 0, "path": path, "path_type": "common_prefix", "physical_address": ""}


# --- differences ----------------------------------------------------------------------------------------------------


def diff_branch(call: Call) -> Response:
    return _diff(
        call, call.repository.uncommitted_changes_until_unreadable(call.path["branch"], start=_start_path(call))
    )


def diff_refs(call: Call) -> Response:
    kind = call.text("type", "three_dot")
    if kind not in ("three_dot", "two_dot"):
        raise bad_request("Invalid format for parameter type")
    return _diff(
        call,
        call.repository.differences(
            call.path["left"], call.path["right"], since_base=kind == "three_dot", start=_start_path(call)
        ),
        include_right_stats=call.flag("include_right_stats"),
    )


def _start_path(call: Call) -> str:
    return max(call.text("prefix"), call.text("after"), key=str.encode)


def _diff(call: Call, changes: Iterator[Change], *, include_right_stats: bool = False) -> Response:
    amount = call.amount()
    grouped_changes = group_by_prefix(
        changes, prefix=call.text("prefix"), after=call.text("after"), delimiter=call.text("delimiter")
    )
    page = list(islice(grouped_changes, amount + 1))
    return page_response(
        [_change_fields(change, include_right_stats) for change in page[:amount]], len(page) > amount, "path"
    )


def _change_fields(change: Change | PrefixChange, include_right_stats: bool) -> dict[str, Any]:
    if isinstance(change, PrefixChange):
        return {"path": change.path, "path_type": "common_prefix", "type": "prefix_changed"}
    entry = change.entry
    fields = {"path": as_text(entry.path), "path_type": "object", "size_bytes": entry.size, "type": change.kind}
    if include_right_stats:
        fields["right"] = {
            "checksum": entry.checksum,
            "content_type": entry.content_type,
            "metadata": dict(entry.metadata),
            "mtime": mtime(entry),
        }
    return fields


# --- tables and addresses -------------------------------------------------------------------------------------------


def underlying_properties(call: Call) -> Response:
    call.repository.stat(call.path["ref"], call.required("path"))
    return json_response({"storage_class": None})


def range_location(call: Call) -> Response:
    """The location of a range or metarange."""
    repository = call.repository
    key = f"_lakefs/{call.path['id']}"
    if not repository.objects.has(key):
        raise not_found("range")
    location = repository.objects.location(key)
    response = json_response({"location": location})
    response.headers["Location"] = location
    return response


ROUTES = (
    Route("GET", _READ, get_object),
    Route("HEAD", _READ, head_object),
    Route("GET", _READ + "/stat", stat_object),
    Route("GET", _READ + "/ls", list_objects),
    Route("GET", _READ + "/underlyingProperties", underlying_properties),
    Route("GET", "/repositories/{repository}/branches/{branch}/diff", diff_branch),
    Route("GET", "/repositories/{repository}/refs/{left}/diff/{right}", diff_refs),
    Route("GET", "/repositories/{repository}/metadata/meta_range/{id}", range_location),
    Route("GET", "/repositories/{repository}/metadata/range/{id}", range_location),
)
