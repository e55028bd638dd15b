"""Reading the answer to ListObjectsV2. boto3 signs, sends and retries; its parser would take most of the time."""

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
from spark_resources.stores.s3.listing_xml import Contents, cut_out

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_FIELD = "LakegcListing"
_ROOT = "ListBucketResult"
# What lakeFS's own keys hold, where a server encodes it. None stands for a percent sign or a plus, so what a key holds
# besides, and the order in which they are put in, don't matter.
_USUAL = (("%2F", "/"), ("%2C", ","), ("%21", "!"), ("%3D", "="))


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer: rows of LISTED with whole keys, how many keys are not UTF-8 (and no rows), prefixes (None for such).

    `next_token` is None exactly where nothing follows.
    """

    objects: pa.RecordBatch
    unreadable: int
    prefixes: list[str | None]
    next_token: str | None


def read_listings_here(client: S3Client) -> None:
    """Make this client leave listings to `parsed`; its other callers would find them empty."""
    # With an asterisk it comes before a handler of botocore's that parses each answer as well, to find errors that come
    # with status 200, and documents that were cut off: both are left to it, for then it asks again.
    client.meta.events.register("before-parse.*.ListObjectsV2", _take_over)


def listing_of(answer: Mapping[str, Any]) -> Listing:
    """The listing in an answer of such a client. Raises `Unavailable` where it is no whole listing."""
    found = answer.get(_FIELD)
    if isinstance(found, Listing):
        return found
    why = f" ({found})" if found else ""
    raise Unavailable(f"the answer to a listing can't be read{why}: is this an S3 end point?")


def _take_over(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
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
    """Raised for a document that is no listing."""


def parsed(body: bytes) -> Listing:
    """The listing in a document. Raises `ValueError` and its like for one that lacks what S3 always says."""
    if b"<!DOCTYPE" in body:
        raise ValueError("it has a document type, and no S3 sends one")
    cut = cut_out(body, _ROOT)
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

    Each column has a text for each element: of its first child of this name; null without one, so that none can shift.
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
    """The objects whose keys are text, and how many others there are."""
    decoded = _keys(keys, is_encoded=is_encoded)
    known = pc.if_else(pc.equal(tags, ""), pa.scalar(None, pa.string()), tags)
    batch = pa.RecordBatch.from_arrays([decoded, _sizes(sizes), _times(times), known], names=LISTED.names)
    if decoded.null_count:
        batch = batch.filter(pc.is_valid(decoded))
    return batch.cast(LISTED), decoded.null_count


def _sizes(texts: pa.StringArray) -> pa.Int64Array:
    _all_there(texts, "Size")
    return texts.cast(pa.int64())


def _times(texts: pa.StringArray) -> pa.TimestampArray:
    """Raises for a time without a zone, as Arrow does."""
    _all_there(texts, "LastModified")
    try:
        return texts.cast(LISTED.field("modified").type)
    except pa.ArrowInvalid:  # finer than a microsecond, or another of ISO's forms
        times = [datetime.fromisoformat(text) for text in texts.to_pylist()]
        if any(time.tzinfo is None for time in times):
            raise
        return pa.array(times, LISTED.field("modified").type)


def _all_there(texts: pa.StringArray, what: str) -> None:
    if texts.null_count:
        raise ValueError(f"{texts.null_count} objects have no {what}")


def _keys(texts: pa.StringArray, *, is_encoded: bool) -> pa.StringArray:
    """The keys, decoded; null for those that are not UTF-8."""
    _all_there(texts, "Key")
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
    """A key, decoded strictly: boto3 would put U+FFFD for what is not UTF-8, which is another key."""
    if text is None:
        raise ValueError("a key is empty")
    if not is_encoded or ("%" not in text and "+" not in text):
        return text
    try:
        return unquote_to_bytes(text.replace("+", " ")).decode()
    except UnicodeDecodeError:
        return None
