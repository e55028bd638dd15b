"""Reading the answer to ListObjectsV2. boto3 signs, sends and retries; its parser would take most of the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes
from xml.etree import ElementTree

from spark_resources.errors import Unavailable

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_FIELD = "LakegcListing"
_ROOT = "ListBucketResult"


@dataclass(frozen=True, slots=True)
class Listed:
    """One object as the answer has it; `key` is the whole key, or None where its bytes are not UTF-8."""

    key: str | None
    size: int
    modified: datetime
    etag: str


@dataclass(frozen=True, slots=True)
class Listing:
    """One answer. `next_token` is None exactly where nothing follows."""

    objects: list[Listed]
    prefixes: list[str | None]
    next_token: str | None


def read_listings_here(client: S3Client) -> None:
    """Make this client leave listings to `listing_of`; its other callers would find them empty."""
    client.meta.events.register("before-parse.s3.ListObjectsV2", _take_over)


def listing_of(answer: Mapping[str, Any]) -> Listing:
    """The listing in an answer of such a client. Raises `Unavailable` where it is no whole listing."""
    try:
        return parsed(answer[_FIELD])
    except (ElementTree.ParseError, KeyError, ValueError, TypeError) as error:
        raise Unavailable(f"the answer to a listing can't be read ({error}): is this an S3 end point?") from error


def _take_over(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] == 200:
        customized_response_dict[_FIELD] = response_dict["body"]
        response_dict["body"] = b"<ListBucketResult/>"


def parsed(body: bytes) -> Listing:
    """The listing in a document. Raises `ValueError` and its like for one that lacks what S3 always says."""
    root = ElementTree.fromstring(body)
    space, name = root.tag[: -len(_ROOT)], root.tag[-len(_ROOT) :]
    if name != _ROOT:
        raise ValueError(f"it is a {root.tag}")
    is_encoded = root.findtext(f"{space}EncodingType") == "url"
    objects = [_listed(found, space, is_encoded=is_encoded) for found in root.iterfind(f"{space}Contents")]
    prefixes = [
        _key(found.findtext(f"{space}Prefix"), is_encoded=is_encoded)
        for found in root.iterfind(f"{space}CommonPrefixes")
    ]
    return Listing(objects, prefixes, _next_token(root, space))


def _next_token(root: ElementTree.Element, space: str) -> str | None:
    truncated = (root.findtext(f"{space}IsTruncated") or "").strip()
    if truncated == "false":
        return None
    token = root.findtext(f"{space}NextContinuationToken")
    if truncated != "true" or not token:
        raise ValueError(f"IsTruncated is {truncated!r}, with the token {token!r}")
    return token


def _listed(found: ElementTree.Element, space: str, *, is_encoded: bool) -> Listed:
    fields = {field.tag: field.text for field in found}
    modified = datetime.fromisoformat(fields[f"{space}LastModified"] or "")
    if modified.tzinfo is None:
        raise ValueError(f"LastModified {modified} names no time zone")
    etag = (fields.get(f"{space}ETag") or "").removeprefix('"').removesuffix('"')
    size = int(fields[f"{space}Size"] or "")
    return Listed(_key(fields[f"{space}Key"], is_encoded=is_encoded), size, modified.astimezone(UTC), etag)


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
