"""Streams Cloud Storage objects in pieces, and copies them from bucket to bucket on the server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from spark_resources.errors import NotFound, Transient, Unavailable, WrongUsage, parse_problem
from spark_resources.stores.base import AlreadyExists, Changed, StoredObject
from spark_resources.stores.gcs.client import REQUEST_ERRORS, ErrorResponse, as_lakegc_error, cause_to_show, object_path
from spark_resources.stores.gcs.contents import crc32c_of
from spark_resources.stores.gcs.listing import parse_object
from spark_resources.stores.retry import RetryPolicy, redirect_target, retried
from spark_resources.stores.transfer import (
    PART_SIZE,
    PIECE_SIZE,
    HashingIterator,
    ObjectProperties,
    Streams,
    WrittenObject,
    read_with_resume,
    require_size,
    require_start,
    split_into_parts,
)

if TYPE_CHECKING:
    from requests import Response

    from spark_resources.stores.gcs.store import GCSStore

_FIELDS = {
    "Content-Type": "contentType",
    "Content-Encoding": "contentEncoding",
    "Content-Disposition": "contentDisposition",
    "Content-Language": "contentLanguage",
    "Cache-Control": "cacheControl",
}
_OBJECT = "kind,name,size,updated,crc32c,generation"
_PROPERTY_FIELDS = ",".join([_OBJECT, "metadata", *_FIELDS.values()])
_COPY_FIELDS = f"done,rewriteToken,totalBytesRewritten,resource({_OBJECT})"


class GCSStreams:
    """The streams of one namespace."""

    def __init__(self, store: GCSStore, *, part_size: int = PART_SIZE) -> None:
        self._store, self._client, self._bucket, self._part_size = store, store.client, store.bucket, part_size
        self.where = store.where
        self.retry: RetryPolicy = store.retry

    @property
    def server(self) -> str:
        return f"gcs {self._client.base_url}"

    @retried
    def properties(self, key: str) -> ObjectProperties:
        path = object_path(self._bucket, self._store.full_key(key))
        with self._translated_errors("look up", key), self._store.missing_object_errors(key):
            params = {"fields": _PROPERTY_FIELDS, "prettyPrint": "false"}
            response = self._client.request("GET", path, params=params).json()
        try:
            attributes = parse_object(response)
            headers = {name: str(response[field]) for name, field in _FIELDS.items() if response.get(field)}
            metadata = {str(name): str(value) for name, value in response.get("metadata", {}).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(
                f"could not look up {key!r} in {self.where}: invalid response ({parse_problem(error)}). Check the "
                "endpoint."
            ) from error
        return ObjectProperties(
            attributes.size, attributes.updated, attributes.checksum, attributes.generation, headers, metadata
        )

    def pieces(self, key: str, properties: ObjectProperties) -> Iterator[bytes]:
        pieces = read_with_resume(
            self.retry,
            lambda start: self._open_at(key, properties, start),
            lambda: self._translated_errors("read", key),
            properties.size,
        )
        hashed = HashingIterator(pieces)
        yield from require_size(hashed, properties.size, key, self.where)
        if properties.checksum not in (None, hashed.crc32c):
            raise Transient(
                f"{key!r} in {self.where} was received with a CRC32C that doesn't match the stored one. Try again."
            )

    @contextmanager
    def _open_at(self, key: str, properties: ObjectProperties, start: int) -> Iterator[Callable[[], bytes]]:
        """Yields a function that reads the object's bytes from `start` on, one piece per call."""
        path = object_path(self._bucket, self._store.full_key(key))
        params, headers = {"alt": "media", "generation": properties.tag}, {"Accept-Encoding": "gzip"}
        headers |= {"Range": f"bytes={start}-"} if start else {}
        try:
            response = self._client.request("GET", path, params=params, headers=headers, stream=True)
        except ErrorResponse as error:
            if error.status != 404:
                raise
            self._store.stat(key)  # raises `NotFound` if the object is gone
            raise Changed(f"{key!r} in {self.where} was replaced before lakegc could read it") from error
        with response:
            require_start(response.status_code, start, key, self.where)
            yield lambda: response.raw.read(PIECE_SIZE, decode_content=False)

    # --- writing ----------------------------------------------------------------------------------------------------

    def put(self, key: str, pieces: Iterable[bytes], properties: ObjectProperties) -> WrittenObject:
        full = self._store.full_key(key)
        fields: dict[str, Any] = {_FIELDS[name]: value for name, value in properties.headers.items() if name in _FIELDS}
        fields |= {"metadata": dict(properties.metadata)} if properties.metadata else {}
        all_parts = split_into_parts(pieces, max(self._part_size, 256 * 1024))
        first = list(islice(all_parts, 2))
        if len(first) < 2:
            return self._put_small(key, full, first[0] if first else b"", fields)
        return self._put_parts(key, full, chain(first, all_parts), fields)

    @contextmanager
    def _translated_write_errors(self, key: str) -> Iterator[None]:
        with self._translated_errors("write", key):
            try:
                yield
            except ErrorResponse as error:
                if error.status == 412:
                    raise AlreadyExists(f"{key!r} already exists in {self.where}") from error
                raise

    @retried
    def _put_small(self, key: str, full: str, data: bytes, fields: Mapping[str, Any]) -> WrittenObject:
        crc32c = crc32c_of(data)
        metadata = json.dumps({**fields, "name": full, "crc32c": crc32c}).encode()
        content_type = str(fields.get("contentType", "application/octet-stream")).encode("ascii", "ignore")
        boundary = b"lakegc-" + secrets.token_hex(24).encode()
        body = b"".join(
            (
                b"--%b\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n%b\r\n" % (boundary, metadata),
                b"--%b\r\nContent-Type: %b\r\n\r\n%b\r\n--%b--\r\n" % (boundary, content_type, data, boundary),
            )
        )
        headers = {"Content-Type": f"multipart/related; boundary={boundary.decode()}"}
        params = {"uploadType": "multipart", "fields": _OBJECT, "prettyPrint": "false", "ifGenerationMatch": "0"}
        with self._translated_write_errors(key):
            response = self._client.request("POST", self._upload_path, params=params, headers=headers, data=body)
        return WrittenObject(_generation(response), frozenset({f"crc32c={crc32c}"}))

    def _put_parts(self, key: str, full: str, all_parts: Iterable[bytes], fields: Mapping[str, Any]) -> WrittenObject:
        location = self._start_upload(key, full, fields)
        hashed, start, previous = HashingIterator(all_parts), 0, b""
        for data in hashed:
            if previous:  # a part is sent only once the next one is known, because the last part is sent differently
                self._send(key, location, previous, f"bytes {start}-{start + len(previous) - 1}/*", (308,))
                start += len(previous)
            previous = data
        try:
            self._store.stat(key)
        except NotFound:
            end = start + len(previous)
            response = self._send(key, location, previous, f"bytes {start}-{end - 1}/{end}", (200, 201))
            return WrittenObject(_generation(response), frozenset({hashed.crc32c}))
        raise AlreadyExists(f"{key!r} already exists in {self.where}")

    @retried
    def _start_upload(self, key: str, full: str, fields: Mapping[str, Any]) -> str:
        """Start an upload; returns the URL to which its parts are sent."""
        params = {"uploadType": "resumable", "name": full, "ifGenerationMatch": "0"}
        with self._translated_write_errors(key):
            response = self._client.request("POST", self._upload_path, params=params, json={**fields, "name": full})
        return self._upload_location(str(response.headers.get("Location", "")))

    def _upload_location(self, location: str) -> str:
        """The URL of an upload. Raises `Unavailable` for any other host: requests to it have the account's token."""
        given, own = urlsplit(location), urlsplit(self._client.base_url)
        is_google = given.scheme == "https" and (given.hostname or "").endswith(".googleapis.com")
        if (given.scheme, given.netloc) != (own.scheme, own.netloc) and not is_google:
            raise Unavailable(
                f"{self.where}: the server wants parts of an object to be sent to {redirect_target(location)}, which "
                "isn't Cloud Storage. Nothing was sent there. Check LAKEGC_GCS_ENDPOINT_URL."
            )
        return location

    @retried
    def _send(self, key: str, location: str, data: bytes, byte_range: str, expected: tuple[int, ...]) -> Response:
        """Send a part; if it is sent again, the store skips the bytes it already has."""
        headers = {"Content-Range": byte_range}
        with self._translated_write_errors(key):
            response: Response = self._client._session.put(
                location, data=data, headers=headers, timeout=self._client.timeout, allow_redirects=False
            )
            if response.status_code not in expected:
                raise ErrorResponse(response.status_code, response.content, response.headers)
        return response

    @property
    def _upload_path(self) -> str:
        return f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o"

    # --- from bucket to bucket --------------------------------------------------------------------------------------

    def copy(self, source: Streams, original: StoredObject, key: str) -> WrittenObject:
        if not isinstance(source, GCSStreams) or source.server != self.server:
            raise WrongUsage(f"{source.where} and {self.where} are not on the same server")
        properties, full = source.properties(original.key), self._store.full_key(key)
        if (properties.size, properties.checksum) != (original.size, original.checksum or properties.checksum):
            raise Changed(f"{original.key!r} in {source.where} was replaced before lakegc could copy it")
        path = object_path(source._bucket, source._store.full_key(original.key))
        path += f"/rewriteTo{object_path(self._bucket, full).removeprefix('/storage/v1')}"
        params = {
            "sourceGeneration": properties.tag, "ifGenerationMatch": "0", "fields": _COPY_FIELDS, "prettyPrint": "false"
        }  # fmt: skip
        return self._rewrite_all(path, params, source, original, key)

    def _rewrite_all(
        self, path: str, params: dict[str, str], source: GCSStreams, original: StoredObject, key: str
    ) -> WrittenObject:
        previously_copied = -1
        while True:
            response = self._rewrite(path, params, source, original, key)
            if response.get("done") is True:
                copy = parse_object(response["resource"])
                return WrittenObject(copy.generation, frozenset({copy.checksum} if copy.checksum else ()))
            token, copied = response.get("rewriteToken"), int(response.get("totalBytesRewritten", 0))
            if not token or copied <= previously_copied:
                raise Unavailable(
                    f"the copy of {original.key!r} in {source.where} is stuck at {copied} bytes. Try again."
                )
            params["rewriteToken"], previously_copied = str(token), copied

    @retried
    def _rewrite(
        self, path: str, params: Mapping[str, str], source: GCSStreams, original: StoredObject, key: str
    ) -> dict[str, Any]:
        with self._translated_errors("copy", original.key):
            try:
                response: dict[str, Any] = self._client.request("POST", path, params=params).json()
                return response
            except ErrorResponse as error:
                if error.status == 412:
                    raise AlreadyExists(f"{key!r} already exists in {self.where}") from error
                if error.status == 404:
                    source._store.stat(original.key)
                    raise Changed(
                        f"{original.key!r} in {source.where} was replaced before lakegc could copy it"
                    ) from error
                raise

    @retried
    def remove(self, key: str, tag: str) -> None:
        path = object_path(self._bucket, self._store.full_key(key))
        try:
            if self.properties(key).tag != tag:  # for emulators that ignore the condition of the next request
                raise Changed(f"{key!r} in {self.where} was replaced before lakegc could delete it")
        except NotFound:
            return
        with self._translated_errors("delete", key):
            try:
                self._client.request("DELETE", path, params={"ifGenerationMatch": tag})
            except ErrorResponse as error:
                if error.status == 412:
                    raise Changed(f"{key!r} in {self.where} was replaced before lakegc could delete it") from error
                if error.status != 404:
                    raise

    @contextmanager
    def _translated_errors(self, action: str, key: str) -> Iterator[None]:
        try:
            yield
        except REQUEST_ERRORS as error:
            raise as_lakegc_error(error, self.where, action, key) from cause_to_show(error)


def _generation(response: Response) -> str | None:
    """The generation of the object that a request wrote; None if the response doesn't contain it."""
    try:
        return str(response.json()["generation"])
    except (ValueError, KeyError, TypeError):
        return None
