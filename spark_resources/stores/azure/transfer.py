"""Streams Azure blobs in pieces, and copies them on the server between containers of one account."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.storage.blob import BlobBlock, ContentSettings

from spark_resources.errors import NotFound, Unavailable, WrongUsage
from spark_resources.stores.azure.client import ALREADY_EXISTS_CODES, CONDITION_FAILED_CODES, as_lakegc_error, code_of
from spark_resources.stores.azure.copy import copy_blob
from spark_resources.stores.azure.listing import checksum
from spark_resources.stores.base import PARSE_ERRORS, AlreadyExists, Changed, StoredObject
from spark_resources.stores.retry import RetryPolicy, retried
from spark_resources.stores.transfer import (
    PART_SIZE,
    InArchiveTier,
    ObjectProperties,
    Streams,
    WrittenObject,
    header_metadata,
    require_size,
    split_into_parts,
)

if TYPE_CHECKING:
    from spark_resources.stores.azure.store import AzureStore

_FIELDS = {
    "Content-Type": "content_type",
    "Content-Encoding": "content_encoding",
    "Content-Disposition": "content_disposition",
    "Content-Language": "content_language",
    "Cache-Control": "cache_control",
}
_ARCHIVE_TIER_CODES = frozenset({"BlobArchived", "BlobBeingRehydrated"})
_METADATA_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")  # a valid metadata name
_MAX_BLOCKS = 40_000  # Azure's limit is 50,000
_IF_ABSENT = MatchConditions.IfMissing


class AzureStreams:
    """The streams of one namespace."""

    def __init__(self, store: AzureStore, *, part_size: int = PART_SIZE) -> None:
        self._store, self._client, self._part_size = store, store.client, part_size
        self.where = store.where
        self.retry: RetryPolicy = store.retry

    @property
    def server(self) -> str:
        return f"azure {self._store.container.endpoint.lower()}"

    @retried
    def properties(self, key: str) -> ObjectProperties:
        with self._translated_errors("look up", key):
            properties = self._client.get_blob_client(self._store.full_key(key)).get_blob_properties()
        self._store.check_object(key, properties)
        settings = properties.content_settings
        headers = {name: value for name, field in _FIELDS.items() if (value := getattr(settings, field))}
        if properties.size is None or properties.last_modified is None or not properties.etag:
            raise Unavailable(
                f"the response for {key!r} in {self.where} lacks the size, modification time or "
                "ETag. Check that the endpoint is Azure Blob Storage."
            )
        listed_checksum = checksum(settings.content_md5, properties.etag)
        return ObjectProperties(
            properties.size,
            properties.last_modified,
            listed_checksum,
            properties.etag,
            headers,
            dict(properties.metadata or {}),
        )

    def pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        return require_size(self._pieces(key, properties), properties.size, key, self.where)

    def _pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        # explicit ranges, because the library's own download begins with a piece of 32 MiB
        for start in range(0, properties.size, self._part_size):
            yield self._piece(key, properties, start, min(self._part_size, properties.size - start))

    @retried
    def _piece(self, key: str, properties: ObjectProperties, start: int, length: int) -> bytes:
        blob = self._client.get_blob_client(self._store.full_key(key))
        with self._translated_errors("read", key):
            download = blob.download_blob(
                offset=start, length=length, etag=properties.tag, match_condition=MatchConditions.IfNotModified
            )
            data: bytes = download.readall()
        return data

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> WrittenObject:
        blob = self._client.get_blob_client(self._store.full_key(key))
        arguments: dict[str, Any] = {
            _FIELDS[name]: value for name, value in properties.headers.items() if name in _FIELDS and value.isascii()
        }
        metadata = header_metadata(properties.metadata, _METADATA_NAME)
        all_parts = split_into_parts(pieces, max(self._part_size, -(-properties.size // _MAX_BLOCKS)))
        first = list(islice(all_parts, 2))
        if len(first) < 2:
            data = first[0] if first else b""
            settings = ContentSettings(**arguments)
            tag = self._send_write(
                key, partial(blob.upload_blob, data, overwrite=False, metadata=metadata, content_settings=settings)
            )
            return WrittenObject(tag, frozenset({hashlib.md5(data, usedforsecurity=False).hexdigest()}))
        md5, blocks = hashlib.md5(usedforsecurity=False), []
        for number, data in enumerate(chain(first, all_parts)):
            md5.update(data)
            blocks.append(BlobBlock(block_id=base64.b64encode(b"%08d" % number).decode()))
            self._send_write(key, partial(blob.stage_block, blocks[-1].id, data, length=len(data)))
        # without an MD5, the blob and its copies would have no common checksum
        settings = ContentSettings(**arguments, content_md5=bytearray(md5.digest()))
        options: dict[str, Any] = {"content_settings": settings, "metadata": metadata}
        tag = self._send_write(key, partial(blob.commit_block_list, blocks, **options, match_condition=_IF_ABSENT))
        return WrittenObject(tag)  # Azure stores that MD5 without verifying it

    @retried
    def _send_write(self, key: str, request: Callable[[], Any]) -> str | None:
        """Send a write request with retries; returns the ETag from the response, if any."""
        with self._translated_errors("write", key):
            return request().get("etag") or None

    @retried
    def copy(self, source: Streams, original: StoredObject, key: str) -> WrittenObject:
        if not isinstance(source, AzureStreams) or source.server != self.server:
            raise WrongUsage(f"{source.where} and {self.where} are not in the same account")
        properties = source.properties(original.key)
        if (properties.size, properties.checksum) != (original.size, original.checksum or properties.checksum):
            raise Changed(f"{original.key!r} in {source.where} was replaced before lakegc could copy it")
        blob = source._client.get_blob_client(source._store.full_key(original.key))
        target = self._client.get_blob_client(self._store.full_key(key))
        with self._translated_errors("copy", original.key, target=key):
            tag = copy_blob(
                blob, _AbsentTarget(target), properties.tag, token=source._store.token(), where=self.where  # type: ignore[arg-type]
            )  # fmt: skip
        return WrittenObject(tag)

    @retried
    def remove(self, key: str, tag: str) -> None:
        blob = self._client.get_blob_client(self._store.full_key(key))
        with suppress(NotFound), self._translated_errors("delete", key):
            blob.delete_blob("include", etag=tag, match_condition=MatchConditions.IfNotModified)

    @contextmanager
    def _translated_errors(self, action: str, key: str, target: str = "") -> Iterator[None]:
        try:
            yield
        except AzureError as error:
            code = code_of(error)
            if code in _ARCHIVE_TIER_CODES:
                raise InArchiveTier(f"{key!r} in {self.where} is in the archive tier. Rehydrate it first.") from None
            if action == "write" and code in ALREADY_EXISTS_CODES:
                raise AlreadyExists(f"{key!r} already exists in {self.where}") from None
            if action == "copy" and code in ALREADY_EXISTS_CODES | {"SourceConditionNotMet"}:
                try:
                    self._store.stat(target)
                except NotFound:
                    raise Changed(f"{key!r} was replaced before lakegc could copy it") from None
                raise AlreadyExists(f"{target!r} already exists in {self.where}") from None
            if action in ("read", "delete") and code in CONDITION_FAILED_CODES:
                self._store.stat(key)  # raises `NotFound` if the object is gone
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could {action} it") from None
            raise as_lakegc_error(error, self.where, action, key) from None
        except PARSE_ERRORS as error:
            raise Unavailable(f"could not {action} {key!r} in {self.where}: invalid response ({error})") from None


class _AbsentTarget:
    """A copy target that must not exist yet."""

    def __init__(self, blob: object) -> None:
        self._blob = blob

    def __getattr__(self, name: str) -> object:
        return getattr(self._blob, name)

    def start_copy_from_url(self, url: str, **options: object) -> object:
        start = self._blob.start_copy_from_url  # type: ignore[attr-defined]
        return start(url, match_condition=_IF_ABSENT, **options)
