"""Streams S3 objects in pieces, and copies them from bucket to bucket on the server."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from spark_resources.errors import NotFound, Transient, Unavailable, WrongUsage, full_stop
from spark_resources.stores.base import PARSE_ERRORS, AlreadyExists, Changed, StoredObject
from spark_resources.stores.retry import RetryPolicy
from spark_resources.stores.s3.client import as_lakegc_error, code_of, is_transient, status_of
from spark_resources.stores.s3.copy import MAX_COPY_BYTES
from spark_resources.stores.transfer import (
    PART_SIZE,
    PIECE_SIZE,
    InArchiveTier,
    ObjectProperties,
    Streams,
    WrittenObject,
    header_metadata,
    read_with_resume,
    require_size,
    require_start,
    split_into_parts,
)

if TYPE_CHECKING:
    from spark_resources.stores.s3.store import S3Store

_BOTO_FIELDS = {
    "Content-Type": "ContentType",
    "Content-Encoding": "ContentEncoding",
    "Content-Disposition": "ContentDisposition",
    "Content-Language": "ContentLanguage",
    "Cache-Control": "CacheControl",
}
_ARCHIVE_TIER_CODES = frozenset({"InvalidObjectState", "ObjectNotInActiveTierError"})
_METADATA_NAME = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")  # metadata names that are valid in a header
_MAX_PARTS = 9_000  # S3's limit is 10,000
_COPY_PART_BYTES = 512 * 1024**2
_Send = Callable[[Callable[[], Any]], Any]  # sends a request with retries, returns the response
_IF_ABSENT: Mapping[str, Any] = {"IfNoneMatch": "*"}


class S3Streams:
    """The streams of one namespace. `max_copy_bytes` is the largest object that is copied with one request."""

    def __init__(self, store: S3Store, *, max_copy_bytes: int = MAX_COPY_BYTES, part_size: int = PART_SIZE) -> None:
        self._store, self._client, self._bucket = store, store.client, store.bucket
        self._max_copy_bytes, self._part_size = max_copy_bytes, part_size
        self._conditions: Mapping[str, Any] = _IF_ABSENT
        self._fast_requests = store.fast_requests
        self.retry: RetryPolicy = store.retry
        self.where = store.where

    @property
    def server(self) -> str:
        return f"s3 {self._client.meta.endpoint_url}"

    def properties(self, key: str) -> ObjectProperties:
        head = self._store.head(key, "look up")
        tag = str(head.get("ETag", ""))
        headers = {name: str(head[field]) for name, field in _BOTO_FIELDS.items() if head.get(field)}
        modified = head["LastModified"].astimezone(UTC)
        return ObjectProperties(
            int(head["ContentLength"]), modified, tag.strip('"') or None, tag, headers, dict(head.get("Metadata", {}))
        )

    def pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        pieces = read_with_resume(
            self.retry,
            lambda start: self._open_at(key, properties, start),
            lambda: self._translated_errors("read", key),
            properties.size,
        )
        return require_size(pieces, properties.size, key, self.where)

    @contextmanager
    def _open_at(self, key: str, properties: ObjectProperties, start: int) -> Iterator[Callable[[], bytes]]:
        """Yields a function that reads the object's bytes from `start` on, one piece per call."""
        byte_range: dict[str, Any] = {"Range": f"bytes={start}-"} if start else {}
        response = self._client.get_object(
            Bucket=self._bucket, Key=self._store.full_key(key), IfMatch=properties.tag, **byte_range
        )
        with closing(response["Body"]) as body:
            if response.get("ETag") != properties.tag:
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could read it")
            require_start(response["ResponseMetadata"]["HTTPStatusCode"], start, key, self.where)
            yield lambda: body.read(PIECE_SIZE)

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> WrittenObject:
        full, arguments = self._store.full_key(key), _boto_arguments(properties)
        size = max(self._part_size, -(-properties.size // _MAX_PARTS))
        all_parts = split_into_parts(pieces, size)
        first = list(islice(all_parts, 2))
        if len(first) < 2:
            data = first[0] if first else b""
            put = self._client.put_object
            response = self._send_write(
                key, lambda: put(Bucket=self._bucket, Key=full, Body=data, **_IF_ABSENT, **arguments)
            )
            md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
            return WrittenObject(_quoted(response.get("ETag", "")), frozenset({md5}))
        return self._put_parts(key, full, chain(first, all_parts), arguments)

    def _send_write(self, key: str, request: Callable[[], Any]) -> Any:
        """Send a write request with retries; returns the response. Raises `AlreadyExists` and the errors of `Store`."""

        def attempt() -> Any:
            with self._translated_errors("write", key):
                return request()

        return self.retry.call(attempt)

    def _put_parts(
        self, key: str, full: str, all_parts: Iterable[bytes], arguments: Mapping[str, Any]
    ) -> WrittenObject:
        md5s: list[bytes] = []

        send = partial(self._send_write, key)

        def send_parts(upload: Mapping[str, Any]) -> Iterator[str]:
            for number, data in enumerate(all_parts, 1):
                md5s.append(hashlib.md5(data, usedforsecurity=False).digest())
                request = partial(self._client.upload_part, **upload, PartNumber=number, Body=data)
                yield send(request)["ETag"]

        tag = self._multipart_upload(key, full, send_parts, arguments, send)
        md5 = hashlib.md5(b"".join(md5s), usedforsecurity=False).hexdigest()
        return WrittenObject(_quoted(tag), frozenset({f"{md5}-{len(md5s)}"}))

    def _multipart_upload(self, key: str, full: str, send_parts: Any, arguments: Mapping[str, Any], send: _Send) -> str:
        """Upload an object in several parts, all or nothing; returns its tag."""
        client, target = self._client, {"Bucket": self._bucket, "Key": full}
        created = send(partial(client.create_multipart_upload, **target, **arguments))  # type: ignore[arg-type]
        upload: dict[str, Any] = {**target, "UploadId": created["UploadId"]}
        try:
            parts: Any = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(send_parts(upload), 1)]
            self._refuse_existing(key)  # for compatible stores that don't support the condition of the next request
            completed = partial(client.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts})
            response = send(partial(completed, **_IF_ABSENT))
            return str(response.get("ETag", "")).strip('"')
        except BaseException:
            with suppress(ClientError, BotoCoreError):  # if this fails, too, lifecycle rules can remove the parts
                client.abort_multipart_upload(**upload)
            raise

    def remove(self, key: str, tag: str) -> None:
        def attempt() -> None:
            if self.properties(key).tag != tag:  # for compatible stores that ignore the condition of the next request
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could delete it")
            with self._translated_errors("delete", key):
                self._client.delete_object(Bucket=self._bucket, Key=self._store.full_key(key), IfMatch=tag)

        with suppress(NotFound):
            self.retry.call(attempt)

    def _refuse_existing(self, key: str) -> None:
        with suppress(NotFound):
            self._store.stat(key)
            raise AlreadyExists(f"{key!r} already exists in {self.where}")

    # --- from bucket to bucket --------------------------------------------------------------------------------------

    def copy(self, source: Streams, original: StoredObject, key: str) -> WrittenObject:
        if not isinstance(source, S3Streams) or source.server != self.server:
            raise WrongUsage(f"{source.where} and {self.where} are not on the same server")
        full, tag = self._store.full_key(key), f'"{original.checksum}"' if original.checksum else None
        copy_source = {"Bucket": source._bucket, "Key": source._store.full_key(original.key)}
        if_unchanged = {"CopySourceIfMatch": tag} if tag else {}

        def send(request: Callable[[], Any]) -> Any:
            return self.retry.call(lambda: self._copy_response(request, source, original, key))

        if original.size > self._max_copy_bytes:
            return _copied_object(self._copy_in_parts(source, original, key, copy_source, if_unchanged, send))
        if self._conditions:
            headers = {"If-None-Match": "*", **({"x-amz-copy-source-if-match": tag} if tag else {})}
            if (etag := self._fast_requests.copy(copy_source, full, headers)) is not None:
                return _copied_object(etag)
        response = send(lambda: self._copy_in_one_request(full, copy_source, if_unchanged))
        return _copied_object(str(response["CopyObjectResult"].get("ETag", "")))

    def _copy_in_one_request(self, full: str, copy_source: Mapping[str, str], if_unchanged: Mapping[str, str]) -> Any:
        while True:
            conditions = {**if_unchanged, **self._conditions}
            try:
                return self._client.copy_object(Bucket=self._bucket, Key=full, CopySource=copy_source, **conditions)  # type: ignore[arg-type]
            except ClientError as error:
                if not self._conditions or status_of(error) != 501:
                    raise
                self._conditions = {}  # this store doesn't support the condition, and refuses the request

    def _copy_in_parts(
        self, source: S3Streams, original: StoredObject, key: str, copy_source: Mapping[str, str],
        if_unchanged: Mapping[str, str], send: _Send,
    ) -> str:  # fmt: skip
        properties, step = (
            source.properties(original.key),
            max(min(_COPY_PART_BYTES, self._max_copy_bytes), 5 * 1024**2),
        )
        starts = range(0, original.size, step)

        def send_parts(upload: Mapping[str, Any]) -> Iterator[str]:
            for number, start in enumerate(starts, 1):
                byte_range = f"bytes={start}-{min(start + step, original.size) - 1}"
                part = partial(self._client.upload_part_copy, **upload, PartNumber=number, CopySource=copy_source)  # type: ignore[arg-type]
                yield send(partial(part, CopySourceRange=byte_range, **if_unchanged))["CopyPartResult"]["ETag"]

        return self._multipart_upload(key, self._store.full_key(key), send_parts, _boto_arguments(properties), send)

    def _copy_response(self, request: Callable[[], Any], source: S3Streams, original: StoredObject, key: str) -> Any:
        """The response to a copy request. If a condition failed, a lookup shows whether it was the target's."""
        try:
            return request()
        except (ClientError, BotoCoreError) as error:
            if _upload_is_gone(error):
                self._refuse_existing(key)
            if isinstance(error, ClientError) and status_of(error) in (409, 412) and not is_transient(error):
                self._refuse_existing(key)
                raise Changed(f"{original.key!r} in {source.where} was replaced before lakegc could copy it") from error
            raise _as_lakegc_error(error, source.where, "copy", original.key) from error

    @contextmanager
    def _translated_errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and (code_of(error) == "PreconditionFailed" or status_of(error) == 412):
                if action == "write":
                    raise AlreadyExists(f"{key!r} already exists in {self.where}") from error
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could {action} it") from error
            if _upload_is_gone(error):
                self._refuse_existing(key)
            raise _as_lakegc_error(error, self.where, action, key) from error
        except HTTPError as error:  # while reading a response's body
            raise Transient(f"could not {action} {key!r} in {self.where}: {full_stop(error)} Try again.") from error
        except (ResponseParserError, *PARSE_ERRORS) as error:
            raise Unavailable(f"could not {action} {key!r} in {self.where}: {full_stop(error)} Try again.") from error


def _upload_is_gone(error: ClientError | BotoCoreError) -> bool:
    """Whether the upload no longer exists, e.g. because it was completed by a request whose response was lost."""
    return isinstance(error, ClientError) and code_of(error) == "NoSuchUpload"


def _as_lakegc_error(error: ClientError | BotoCoreError, where: str, action: str, key: str) -> Exception:
    if isinstance(error, ClientError) and code_of(error) in _ARCHIVE_TIER_CODES:
        return InArchiveTier(
            f"{key!r} in {where} is in an archive tier ({code_of(error)}). Restore it in the store first."
        )
    return as_lakegc_error(error, where, action, key)


def _quoted(tag: str) -> str | None:
    """An ETag in quotes, as in `ObjectProperties`; None if it is empty."""
    bare = tag.strip('"')
    return f'"{bare}"' if bare else None


def _copied_object(tag: str) -> WrittenObject:
    bare = tag.strip('"')
    return WrittenObject(_quoted(tag), frozenset({bare} if bare else ()))


def _boto_arguments(properties: ObjectProperties) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        _BOTO_FIELDS[name]: value
        for name, value in properties.headers.items()
        if value.isascii() and name in _BOTO_FIELDS
    }
    if metadata := header_metadata(properties.metadata, _METADATA_NAME):
        arguments["Metadata"] = metadata
    return arguments
