"""Write a record only if no other process has written it since it was read."""

from __future__ import annotations

from spark_resources.errors import NotFound, Refused
from spark_resources.records.json_records import Records, Version
from spark_resources.stores.base import AlreadyExists, Changed
from spark_resources.stores.place import Place


class WriteConflict(Refused):
    """Raised if another process wrote a record at the same time. That record is kept."""

    advice = "It was not overwritten."


def create_or_replace(
    place: Place, key: str, content: bytes, version: Version | None, *, conflict: type[WriteConflict]
) -> None:
    """Replace the version of a record that was read, or create the record (None).

    Raises `conflict` if that version is no longer the current one, but not if this write succeeded and its response was
    lost.
    """
    records = place.records()
    try:
        if version is None:
            records.create(key, content)
        else:
            records.replace(key, content, version)
    except (AlreadyExists, Changed) as error:
        if not _has_content(records, key, content):
            raise conflict(
                f"{key} in {place.store().where} was written by another process at the same time. {conflict.advice}",
                invariant=7,
            ) from error


def _has_content(records: Records, key: str, content: bytes) -> bool:
    try:
        return records.read_untrusted(key)[0] == content
    except NotFound:
        return False
