"""Requesting a page of blobs from Azure, and parsing the response.

The library authorises and sends the request. Its own parser is not used: it would take most of the time, and it treats
a response that doesn't say whether more pages follow as the last page.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes, urlencode
from xml.etree import ElementTree

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

from spark_resources.errors import Unavailable

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

FOLDER = "hdi_isfolder"  # metadata that marks a directory in a hierarchical account; lakeFS checks it, too


@dataclass(frozen=True, slots=True)
class Listed:
    """One blob as listed in the response; `name` is the full name, or None if its bytes are not UTF-8."""

    name: str | None
    size: int
    modified: datetime
    checksum: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page. `marker` is where the next page begins, None only on the last page; `date` is the store's `Date`."""

    objects: list[Listed]
    prefixes: list[str | None]
    marker: str | None
    date: str | None = None


def list_blobs(
    client: ContainerClient, prefix: str, *, page_size: int, delimiter: str | None = None, marker: str | None = None
) -> Listing:
    """One page. Raises the library's errors, and `Unavailable` if the response is not a complete listing."""
    query = {"restype": "container", "comp": "list", "prefix": prefix, "include": "metadata", "maxresults": page_size}
    query |= {name: value for name, value in (("delimiter", delimiter), ("marker", marker)) if value}
    request = HttpRequest(
        "GET",
        f"{client.url}?{urlencode(query, quote_via=quote, safe='')}",
        headers={"x-ms-version": client.api_version, "Accept": "application/xml"},
    )
    response = client._pipeline.run(request).http_response
    if response.status_code != 200:
        raise HttpResponseError(response=response)
    try:
        return parsed(response.content, response.headers.get("Date"))
    except (ElementTree.ParseError, KeyError, ValueError, TypeError) as error:
        raise Unavailable(
            f"invalid listing response ({error}). Check that this is an Azure Blob Storage endpoint."
        ) from error


def parsed(body: bytes, date: str | None = None) -> Listing:
    """The listing in an XML document.

    Raises `ParseError`, `KeyError`, `ValueError` or `TypeError` if a field that Azure always sends is missing or
    invalid.
    """
    root = ElementTree.fromstring(body)
    blobs, following = root.find("Blobs"), root.find("NextMarker")
    if root.tag != "EnumerationResults" or blobs is None or following is None:
        raise ValueError(f"a {root.tag} without blobs or continuation marker")
    objects = [listed for found in blobs.iterfind("Blob") if (listed := _listed(found)) is not None]
    prefixes = [_name(found.find("Name")) for found in blobs.iterfind("BlobPrefix")]
    return Listing(objects, prefixes, following.text or None, date)


def _listed(found: ElementTree.Element) -> Listed | None:
    """A blob, or None for a directory."""
    fields = {field.tag: field for field in found}
    properties = {field.tag: field.text for field in fields["Properties"]}
    size = int(properties["Content-Length"] or "")
    if properties.get("ResourceType") == "directory":
        return None
    if size == 0 and is_folder({field.tag: field.text for field in fields.get("Metadata", ())}, size):
        return None
    md5 = binascii.a2b_base64(properties.get("Content-MD5") or "", strict_mode=True)
    modified = http_time(properties["Last-Modified"] or "")
    return Listed(_name(fields.get("Name")), size, modified, checksum(md5, properties.get("Etag") or ""))


def is_folder(metadata: Mapping[str, str | None], size: int) -> bool:
    """Whether a blob stands for a directory in a hierarchical account: it is empty, and its metadata says so."""
    return size == 0 and any(name.lower() == FOLDER and value == "true" for name, value in metadata.items())


def checksum(md5: bytes | bytearray | None, tag: str) -> str | None:
    """A value that identifies the content: the MD5 if Azure has one, which lakeFS uses as well, otherwise the ETag.

    An ETag changes with every write and is not preserved by a copy; the dash marks it as comparable only with itself.
    """
    if md5:
        return bytes(md5).hex()
    return f"etag-{unquoted(tag)}" if tag else None


def unquoted(tag: str) -> str:
    return tag.removeprefix('"').removesuffix('"')


@lru_cache(maxsize=8192)
def http_time(text: str) -> datetime:
    """An HTTP date as a UTC time, in whole seconds. Raises `ValueError` if it is invalid or has no time zone."""
    time = parsedate_to_datetime(text)
    if time.tzinfo is None:
        raise ValueError(f"the time {text} has no time zone")
    return time.astimezone(UTC)


def _name(field: ElementTree.Element | None) -> str | None:
    if field is None or not field.text:
        raise ValueError("a blob has no name")
    if field.get("Encoded") != "true":
        return field.text
    try:
        return unquote_to_bytes(field.text).decode()
    except UnicodeDecodeError:
        return None
