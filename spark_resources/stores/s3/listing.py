"""Parsing the response to ListObjectsV2. boto3 signs and sends the request; its parser would take most of the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import Unavailable
from spark_resources.stores.arrow_pages import LISTED
from spark_resources.stores.s3.listing_xml import Contents, extract_objects

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_FIELD = "LakegcListing"
_ROOT = "ListBucketResult"
# Characters in lakeFS's own keys that a server may encode. None of them is a percent sign or a plus, so neither the
# rest of a key nor the order of the replacements matters.
_USUAL = (("%2F", "/"), ("%2C", ","), ("%21", "!"), ("%3D", "="))


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: rows of LISTED with full keys, the number of keys that are not UTF-8 (and left out), and prefixes.

    A prefix that is not UTF-8 is None. `next_token` is None only on the last page.
    """

    objects: pa.RecordBatch
    unreadable: int
    prefixes: list[str | None]
    next_token: str | None


def parse_listings_here(client: S3Client) -> None:
    """Make this client leave listings to `parsed`; other users of the client would get empty listings."""
    # The asterisk makes it run before a handler of botocore's that also parses each response, in order to find errors
    # with status 200 and truncated documents: both are left to that handler, because then the request is retried.
    client.meta.events.register("before-parse.*.ListObjectsV2", _parse_here)


def listing_of(response: Mapping[str, Any]) -> Listing:
    """The listing in a response of such a client. Raises `Unavailable` if it is not a complete listing."""
    found = response.get(_FIELD)
    if isinstance(found, Listing):
        return found
    why = f" ({found})" if found else ""
    raise Unavailable(f"invalid listing response{why}. Check that this is an S3 endpoint.")


def _parse_here(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict[_FIELD] = parsed(response_dict["body"])
    except (ElementTree.ParseError, _AnotherDocument) as error:
        customized_response_dict[_FIELD] = str(error)
        return
    except (ValueError, TypeError) as error:
        customized_response_dict[_FIELD] = str(error)
    response_dict["body"] = b"<ListBucketResult/>"


class _AnotherDocument(ValueError):
    """Raised for a document that is not a listing."""


def parsed(body: bytes) -> Listing:
    """The listing in an XML document. Raises `ParseError`, `ValueError` or `TypeError` for an invalid document."""
    if b"<!DOCTYPE" in body:
        raise ValueError("it has a document type declaration, which S3 never sends")
    cut = extract_objects(body, _ROOT)
    root = ElementTree.fromstring(body) if cut is None else cut.rest
    space, name = root.tag[: -len(_ROOT)], root.tag[-len(_ROOT) :]
    if name != _ROOT:
        raise _AnotherDocument(f"it is a {root.tag}")
    columns = _columns(root.findall(f"{space}Contents"), space) if cut is None else _columns_of(cut)
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    objects, unreadable = _objects(*columns, is_encoded=is_encoded)
    prefixes = [
        _key(found.findtext(f"{space}Prefix"), is_encoded=is_encoded)
        for found in root.iterfind(f"{space}CommonPrefixes")
    ]
    return Listing(objects, unreadable, prefixes, _next_token(root, space))


def _next_token(root: ElementTree.Element, space: str) -> str | None:
    truncated = (root.findtext(f"{space}IsTruncated") or "").strip()
    if truncated == "false":
        return None
    token = root.findtext(f"{space}NextContinuationToken")
    if truncated != "true" or not token:
        raise ValueError(f"IsTruncated is {truncated!r}, with the token {token!r}")
    return token


_Columns: TypeAlias = tuple[pa.StringArray, pa.StringArray, pa.StringArray, pa.StringArray]


def _columns(found: Sequence[ElementTree.Element], space: str) -> _Columns:
    """Key, size, time and tag of parsed objects.

    Each column has one text per element, from its first child of that name; null if there is none, so that no row can
    shift.
    """
    key, size, time, tag = (
        pa.array([each.findtext(f"{space}{name}") for each in found], pa.string())
        for name in ("Key", "Size", "LastModified", "ETag")
    )
    return key, size, time, pc.replace_substring_regex(tag, pattern='^"|"$', replacement="")


def _columns_of(cut: Contents) -> _Columns:
    key, size, time, tag = (pa.array(texts, pa.string()) for texts in (cut.keys, cut.sizes, cut.times, cut.etags))
    return key, size, time, tag


def _objects(
    keys: pa.StringArray, sizes: pa.StringArray, times: pa.StringArray, tags: pa.StringArray, *, is_encoded: bool
) -> tuple[pa.RecordBatch, int]:
    """The objects whose keys are text, and the number of the others."""
    decoded = _keys(keys, is_encoded=is_encoded)
    known = pc.if_else(pc.equal(tags, ""), pa.scalar(None, pa.string()), tags)
    batch = pa.RecordBatch.from_arrays([decoded, _sizes(sizes), _times(times), known], names=LISTED.names)
    if decoded.null_count:
        batch = batch.filter(pc.is_valid(decoded))
    return batch.cast(LISTED), decoded.null_count


def _sizes(texts: pa.StringArray) -> pa.Int64Array:
    _refuse_missing(texts, "Size")
    return texts.cast(pa.int64())


def _times(texts: pa.StringArray) -> pa.TimestampArray:
    """The times in UTC. Raises `ArrowInvalid` for a time without a zone."""
    _refuse_missing(texts, "LastModified")
    try:
        return texts.cast(LISTED.field("modified").type)
    except pa.ArrowInvalid:  # finer than a microsecond, or another ISO 8601 format
        times = [datetime.fromisoformat(text) for text in texts.to_pylist()]
        if any(time.tzinfo is None for time in times):
            raise
        return pa.array(times, LISTED.field("modified").type)


def _refuse_missing(texts: pa.StringArray, what: str) -> None:
    if texts.null_count:
        raise ValueError(f"{texts.null_count} objects have no {what}")


def _keys(texts: pa.StringArray, *, is_encoded: bool) -> pa.StringArray:
    """The keys, decoded; null for those that are not UTF-8."""
    _refuse_missing(texts, "Key")
    if pc.any(pc.equal(texts, ""), min_count=0).as_py():
        raise ValueError("a key is empty")
    if not is_encoded:
        return texts
    plain = pc.replace_substring(texts, pattern="+", replacement=" ")
    for code, character in _USUAL:
        plain = pc.replace_substring(plain, pattern=code, replacement=character)
    left = pc.match_substring(plain, "%")
    if not pc.any(left, min_count=0).as_py():
        return plain
    decoded = [_key(text, is_encoded=True) for text in texts.filter(left).to_pylist()]
    return pc.replace_with_mask(plain, left, pa.array(decoded, pa.string()))


def _key(text: str | None, *, is_encoded: bool) -> str | None:
    """A key, decoded strictly: boto3 would replace invalid UTF-8 by U+FFFD, which makes another key."""
    if text is None:
        raise ValueError("a key is empty")
    if not is_encoded or ("%" not in text and "+" not in text):
        return text
    try:
        return unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeDecodeError:
        return None
