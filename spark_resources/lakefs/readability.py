"""Checks that lakeFS can read an object, by requesting a byte: `stat` succeeds even for a lost object (formats §2)."""

from __future__ import annotations

from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.connection import ApiCall, Response

_GONE, _EMPTY = 410, 416


def is_readable(lakefs: LakeFS, repository: str, ref: str, path: str) -> bool:
    """Whether a reader of the ref gets the bytes at the path; False only if lakeFS reports that they are gone.

    Raises `NotFound` for an unknown ref or path, and otherwise the same errors as any other request.
    """
    call = ApiCall("ObjectsApi", "get_object", f"'{path}' on '{ref}' in repository '{repository}'", "fs:ReadObject")
    connection, name = lakefs.route(repository)
    arguments = {"repository": name, "ref": ref, "path": path, "range": "bytes=0-0"}
    status, _, body = connection.raw_response(call, arguments)
    if status in (200, 206, _EMPTY):
        return True
    if status == _GONE:
        return False
    body_text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    raise connection.error_for(call, Response(status, None, body_text[:300], None))
