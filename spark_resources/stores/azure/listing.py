"""Requests a page of blobs from Azure and parses the response.

The library authorizes and sends the request. Its own parser is not used, because it would take most of the time, and
because it mistakes a response that doesn't say whether more pages follow for the last page.
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes, urlencode
from xml.etree import ElementTree

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest

from spark_resources.errors import Unavailable
from spark_resources.stores.http_dates import http_time

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

FOLDER_METADATA = "hdi_isfolder"  # metadata that marks a directory in a hierarchical account; lakeFS checks it, too


@dataclass(frozen=True, slots=True)
class ListedBlob:
    """One listed blob; `name` is its full name, or None if the name is not UTF-8."""

    name: str | None
    size: int
    modified: datetime
    checksum: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page. `marker` requests the next page and is None only on the last page; `date` is the `Date` header."""

    objects: list[ListedBlob]
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
        return parse_listing(response.content, response.headers.get("Date"))
    except (ElementTree.ParseError, LookupError, ValueError, TypeError) as error:
        raise Unavailable(
            f"invalid listing response ({error}). Check that this is an Azure Blob Storage endpoint."
        ) from error


def parse_listing(body: bytes, date: str | None = None) -> Listing:
    """The listing in an XML document.

    Raises `ParseError`, `LookupError`, `ValueError` or `TypeError` if a field that Azure always sends is missing or
    invalid, or the encoding is unknown.
    """
    if b"<!DOCTYPE" in body:
        raise ValueError("it has a DOCTYPE, which Azure never sends")
    root = ElementTree.fromstring(body)
    blobs, next_marker = root.find("Blobs"), root.find("NextMarker")
    if root.tag != "EnumerationResults" or blobs is None or next_marker is None:
        raise ValueError(f"{root.tag} without blobs or continuation marker")
    objects = [blob for element in blobs.iterfind("Blob") if (blob := _parse_blob(element)) is not None]
    prefixes = [_name(element.find("Name")) for element in blobs.iterfind("BlobPrefix")]
    return Listing(objects, prefixes, next_marker.text or None, date)


def _parse_blob(element: ElementTree.Element) -> ListedBlob | None:
    """A blob, or None for a directory."""
    fields = {field.tag: field for field in element}
    properties = {field.tag: field.text for field in fields["Properties"]}
    if (size := int(properties["Content-Length"] or "")) < 0:
        raise ValueError(f"the size is {size}")
    if properties.get("ResourceType") == "directory":
        return None
    if size == 0 and is_folder({field.tag: field.text for field in fields.get("Metadata", ())}, size):
        return None
    md5 = binascii.a2b_base64(properties.get("Content-MD5") or "", strict_mode=True)
    modified = http_time(properties["Last-Modified"] or "")
    return ListedBlob(_name(fields.get("Name")), size, modified, checksum(md5, properties.get("Etag") or ""))


def is_folder(metadata: Mapping[str, str | None], size: int) -> bool:
    """Whether a blob represents a directory of a hierarchical account: it is empty, and its metadata says so."""
    return size == 0 and any(name.lower() == FOLDER_METADATA and value == "true" for name, value in metadata.items())


def checksum(md5: bytes | bytearray | None, tag: str) -> str | None:
    """A value that identifies the content: the MD5 if Azure has one, which lakeFS uses as well, otherwise the ETag.

    An ETag changes with every write, and a copy has a different one. The prefix `etag-` marks ETags, so that none is
    mistaken for an MD5.
    """
    if md5:
        return bytes(md5).hex()
    return f"etag-{unquoted(tag)}" if tag else None


def unquoted(tag: str) -> str:
    return tag.removeprefix('"').removesuffix('"')


def _name(field: ElementTree.Element | None) -> str | None:
    if field is None or not field.text:
        raise ValueError("a blob has no name")
    if field.get("Encoded") != "true":
        return field.text
    try:
        return unquote_to_bytes(field.text).decode()
    except UnicodeDecodeError:
        return None
