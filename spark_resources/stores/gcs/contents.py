"""Reads and writes whole objects on Cloud Storage in one request each, verified by their CRC32C.

A resumable upload would not be atomic: its condition is checked at the start, and it is completed later.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from urllib.parse import quote

import google_crc32c

from spark_resources.errors import Unavailable, parse_problem
from spark_resources.stores.gcs.client import CorruptContent, GCSClient, object_path
from spark_resources.stores.size_limits import PIECE_SIZE, check_size, joined

_FIELDS = "kind,name,generation,crc32c"
_CONTENT_TYPE = "application/octet-stream"


def read_object(client: GCSClient, bucket: str, name: str, *, key: str, where: str) -> tuple[bytes, str]:
    """The bytes as stored, and their generation. Raises the client's errors, and `DamagedData` for too many bytes.

    `key` is the object's key in the namespace `where`, for its size limit.

    Compressed content is not decompressed, because the size and checksum refer to the compressed bytes.
    """
    with client.request(
        "GET", object_path(bucket, name), params={"alt": "media"}, headers={"Accept-Encoding": "gzip"}, stream=True
    ) as response:
        headers = response.headers
        if "Content-Length" in headers:
            check_size(int(headers["Content-Length"]), key, where)
            data: bytes = response.raw.read(decode_content=False)
        else:
            data = joined(response.raw.stream(PIECE_SIZE, decode_content=False), key, where)
    expected = _crc32c_in_header(headers.get("x-goog-hash", ""))
    if expected is not None and expected != crc32c_of(data):
        raise CorruptContent(f"{len(data)} bytes were received, with a CRC32C other than {expected}")
    return data, _generation(headers.get("x-goog-generation"), name)


def write_object(client: GCSClient, bucket: str, name: str, data: bytes, condition: Mapping[str, str]) -> str:
    """Write or replace an object; returns its new generation.

    Raises the client's errors (a failed condition is a 412), and `Unavailable` for an invalid response.
    """
    crc32c = crc32c_of(data)
    metadata = json.dumps({"name": name, "contentType": _CONTENT_TYPE, "crc32c": crc32c}).encode()
    boundary = b"lakegc-" + hashlib.sha256(data).hexdigest().encode()  # data can't contain its own hash
    body = b"".join(
        (
            b"--%b\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%b\r\n" % (boundary, metadata),
            b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n--%b--\r\n" % (boundary, _CONTENT_TYPE.encode(), data, boundary),
        )
    )
    response = client.request(
        "POST",
        f"/upload/storage/v1/b/{quote(bucket, safe='')}/o",
        params={"uploadType": "multipart", "fields": _FIELDS, "prettyPrint": "false", **condition},
        headers={"Content-Type": f"multipart/related; boundary={boundary.decode()}"},
        data=body,
    )
    try:
        written = response.json()
        if (written["name"], written.get("crc32c", crc32c)) != (name, crc32c):
            raise ValueError(f"it is for {written['name']!r}, with the CRC32C {written.get('crc32c')}")
        return _generation(written["generation"], name)
    except (ValueError, KeyError, TypeError) as error:
        raise Unavailable(
            f"could not write {name!r} to the bucket {bucket}: invalid response ({parse_problem(error)}). Check the "
            "endpoint."
        ) from error


def crc32c_of(data: bytes) -> str:
    """The CRC32C as Cloud Storage formats it: base64 of four big-endian bytes."""
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def _crc32c_in_header(header: str) -> str | None:
    checksums = dict(part.strip().split("=", 1) for part in header.split(",") if "=" in part)
    return checksums.get("crc32c")


def _generation(generation: str | None, name: str) -> str:
    if generation is None or not generation.isdecimal():
        raise Unavailable(
            f"the response for {name!r} lacks the object's generation. Check that this is a Cloud Storage endpoint."
        )
    return generation
