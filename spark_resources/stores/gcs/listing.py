"""Parses the listing responses of Cloud Storage's JSON API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spark_resources.errors import Unavailable, parse_problem
from spark_resources.records.json_records import read_json

_OBJECT = "name,size,updated,crc32c,generation"
OBJECT_FIELDS = f"kind,{_OBJECT}"
FIELDS = f"kind,nextPageToken,prefixes,items({_OBJECT})"  # `kind` distinguishes an empty listing from other responses
_LISTING_KIND = "storage#objects"
_NO_KEYS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One listed object; `name` is the full key, and `generation` identifies exactly this content.

    `crc32c` is empty for an object encrypted with a customer-supplied key, because the store hides its checksums.
    """

    name: str
    size: int
    updated: datetime
    crc32c: str
    generation: str

    @property
    def checksum(self) -> str | None:
        return f"crc32c={self.crc32c}" if self.crc32c else None


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a listing. `next_token` is None only on the last page."""

    objects: list[ListedObject]
    prefixes: list[str]
    next_token: str | None
    unreadable_names: int = 0


def listing_of(body: bytes) -> Listing:
    """The listing in a JSON document. Raises `Unavailable` if it is not a complete listing."""
    try:
        document = read_json(body)
        if document["kind"] != _LISTING_KIND:
            raise ValueError(f"it is a {document['kind']}")
        items = document.get("items", ())
        objects = [parse_object(item) for item in items if is_encodable(item["name"])]
        prefixes = [prefix for prefix in document.get("prefixes", ()) if is_encodable(prefix)]
        unreadable = len(items) - len(objects) + len(document.get("prefixes", ())) - len(prefixes)
        return Listing(objects, prefixes, _next_token(document), unreadable)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unavailable(
            f"invalid listing response ({parse_problem(error)}). Check that this is a Cloud Storage endpoint."
        ) from error


def parse_object(item: Mapping[str, Any]) -> ListedObject:
    """One object's metadata. Raises `ValueError`, `KeyError` or `TypeError` for a missing or invalid field."""
    updated = datetime.fromisoformat(item["updated"])
    if updated.tzinfo is None:
        raise ValueError(f"the time {updated} has no time zone")
    size, generation, crc32c = int(item["size"]), item["generation"], item.get("crc32c", "")
    if not isinstance(generation, str) or not generation.isdecimal():
        raise ValueError(f"the generation is {generation!r}")
    if size < 0 or not isinstance(crc32c, str):
        raise ValueError(f"the size is {size}, and the CRC32C {crc32c!r}")
    return ListedObject(item["name"], size, updated.astimezone(UTC), crc32c, generation)


def is_encodable(name: Any) -> bool:
    """Whether a name can be encoded as UTF-8: JSON may contain a lone surrogate, which can't.

    Raises `ValueError` if the name is empty or not a string.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a name is {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _next_token(document: Mapping[str, Any]) -> str | None:
    token = document.get("nextPageToken")
    if token is None:
        return None
    if not isinstance(token, str) or not token:
        raise ValueError(f"the next page's token is {token!r}")
    return token
