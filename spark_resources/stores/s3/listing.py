"""Parses the responses to ListObjectsV2, because boto3's own parser would take most of a listing's time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import Unavailable, plural
from spark_resources.stores.arrow_pages import LISTED_OBJECTS
from spark_resources.stores.s3.listing_xml import Contents, extract_objects

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_FIELD = "LakegcListing"
_ROOT = "ListBucketResult"
# Characters in lakeFS's own keys that a server may encode. None of them is a percent sign or a plus, so they can be
# replaced in any order without affecting the rest of a key.
_COMMON_ESCAPES = (("%2F", "/"), ("%2C", ","), ("%21", "!"), ("%3D", "="))


@dataclass(frozen=True, slots=True)
class Listing:
    """One page: rows of LISTED_OBJECTS with full keys, and common prefixes. `next_token` is None only on the last page.

    Keys that are not UTF-8 are left out and counted in `unreadable`; a prefix that is not UTF-8 is None.
    """

    objects: pa.RecordBatch
    unreadable: int
    prefixes: list[str | None]
    next_token: str | None


def replace_listing_parser(client: S3Client) -> None:
    """Make this client parse listings with `parse_listing`. The client's own result for them is then empty."""
    # With the asterisk, this handler runs before botocore's own, which also parses each response, to detect errors with
    # status 200 and truncated documents. Those two cases are left to botocore, which treats them as failed requests.
    client.meta.events.register("before-parse.*.ListObjectsV2", _parse_response)


def listing_of(response: Mapping[str, Any]) -> Listing:
    """The listing in a response of a client prepared by `replace_listing_parser`. Raises `Unavailable` if it is not a
    complete listing."""
    listing = response.get(_FIELD)
    if isinstance(listing, Listing):
        return listing
    why = f" ({listing})" if listing else ""
    raise Unavailable(f"invalid listing response{why}. Check that this is an S3 endpoint.")


def _parse_response(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return
    try:
        customized_response_dict[_FIELD] = parse_listing(response_dict["body"])
    except (ElementTree.ParseError, LookupError, _NotAListing) as error:  # LookupError: an unknown encoding
        customized_response_dict[_FIELD] = str(error)
        return
    except (ValueError, TypeError) as error:
        customized_response_dict[_FIELD] = str(error)
    response_dict["body"] = b"<ListBucketResult/>"


class _NotAListing(ValueError):
    """Raised for a document that is not a listing."""


def parse_listing(body: bytes) -> Listing:
    """The listing in an XML document. Raises `ParseError`, `ValueError` or `TypeError` for an invalid document."""
    if b"<!DOCTYPE" in body:
        raise ValueError("it has a DOCTYPE, which S3 never sends")
    extracted = extract_objects(body, _ROOT)
    root = ElementTree.fromstring(body) if extracted is None else extracted.rest
    namespace, name = root.tag[: -len(_ROOT)], root.tag[-len(_ROOT) :]
    if name != _ROOT:
        raise _NotAListing(f"its root element is {root.tag}")
    columns = (
        _parsed_columns(root.findall(f"{namespace}Contents"), namespace)
        if extracted is None
        else _extracted_columns(extracted)
    )
    is_encoded = root.findtext(f"{namespace}EncodingType") == "url"
    objects, unreadable = _build_objects(*columns, is_encoded=is_encoded)
    prefixes = [
        _decode_key(element.findtext(f"{namespace}Prefix"), is_encoded=is_encoded)
        for element in root.iterfind(f"{namespace}CommonPrefixes")
    ]
    return Listing(objects, unreadable, prefixes, _next_token(root, namespace))


def _next_token(root: ElementTree.Element, namespace: str) -> str | None:
    truncated = (root.findtext(f"{namespace}IsTruncated") or "").strip()
    if truncated == "false":
        return None
    token = root.findtext(f"{namespace}NextContinuationToken")
    if truncated != "true" or not token:
        raise ValueError(f"IsTruncated is {truncated!r}, with the token {token!r}")
    return token


_Columns: TypeAlias = tuple[pa.StringArray, pa.StringArray, pa.StringArray, pa.StringArray]


def _parsed_columns(elements: Sequence[ElementTree.Element], namespace: str) -> _Columns:
    """Key, size, time and tag of parsed objects.

    Each column has one value per element: the text of its first child with the column's name, or null if there is none.
    So all columns have the same length, and no value can move to another object's row.
    """
    key, size, time, tag = (
        pa.array([element.findtext(f"{namespace}{name}") for element in elements], pa.string())
        for name in ("Key", "Size", "LastModified", "ETag")
    )
    return key, size, time, pc.replace_substring_regex(tag, pattern='^"|"$', replacement="")


def _extracted_columns(extracted: Contents) -> _Columns:
    key, size, time, tag = (
        pa.array(texts, pa.string()) for texts in (extracted.keys, extracted.sizes, extracted.times, extracted.etags)
    )
    return key, size, time, tag


def _build_objects(
    keys: pa.StringArray, sizes: pa.StringArray, times: pa.StringArray, tags: pa.StringArray, *, is_encoded: bool
) -> tuple[pa.RecordBatch, int]:
    """The objects whose keys are valid text, and the number of other objects."""
    decoded = _decode_keys(keys, is_encoded=is_encoded)
    etags = pc.if_else(pc.equal(tags, ""), pa.scalar(None, pa.string()), tags)
    batch = pa.RecordBatch.from_arrays(
        [decoded, _parse_sizes(sizes), _parse_times(times), etags], names=LISTED_OBJECTS.names
    )
    if decoded.null_count:
        batch = batch.filter(pc.is_valid(decoded))
    return batch.cast(LISTED_OBJECTS), decoded.null_count


def _parse_sizes(texts: pa.StringArray) -> pa.Int64Array:
    _refuse_missing(texts, "Size")
    sizes = texts.cast(pa.int64())
    if len(sizes) and pc.min(sizes).as_py() < 0:
        raise ValueError("a size is negative")
    return sizes


def _parse_times(texts: pa.StringArray) -> pa.TimestampArray:
    """The times in UTC. Raises `ArrowInvalid` for a time without a time zone."""
    _refuse_missing(texts, "LastModified")
    try:
        return texts.cast(LISTED_OBJECTS.field("modified").type)
    except pa.ArrowInvalid:  # finer than a microsecond, or another ISO 8601 format
        times = [datetime.fromisoformat(text) for text in texts.to_pylist()]
        if any(time.tzinfo is None for time in times):
            raise
        return pa.array(times, LISTED_OBJECTS.field("modified").type)


def _refuse_missing(texts: pa.StringArray, what: str) -> None:
    if texts.null_count:
        raise ValueError(f"{plural(texts.null_count, 'object')} without {what}")


def _decode_keys(texts: pa.StringArray, *, is_encoded: bool) -> pa.StringArray:
    """The keys, decoded; null for those that are not UTF-8."""
    _refuse_missing(texts, "Key")
    if pc.any(pc.equal(texts, ""), min_count=0).as_py():
        raise ValueError("a key is empty")
    if not is_encoded:
        return texts
    decoded_keys = pc.replace_substring(texts, pattern="+", replacement=" ")
    for code, character in _COMMON_ESCAPES:
        decoded_keys = pc.replace_substring(decoded_keys, pattern=code, replacement=character)
    still_encoded = pc.match_substring(decoded_keys, "%")
    if not pc.any(still_encoded, min_count=0).as_py():
        return decoded_keys
    decoded = [_decode_key(text, is_encoded=True) for text in texts.filter(still_encoded).to_pylist()]
    return pc.replace_with_mask(decoded_keys, still_encoded, pa.array(decoded, pa.string()))


def _decode_key(text: str | None, *, is_encoded: bool) -> str | None:
    """A decoded key, or None if it isn't UTF-8, in which case boto3 would return a different key, with U+FFFD."""
    if text is None:
        raise ValueError("a key is empty")
    if not is_encoded or ("%" not in text and "+" not in text):
        return text
    try:
        return unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeDecodeError:
        return None
