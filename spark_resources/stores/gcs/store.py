"""The store for Google Cloud Storage, over its JSON API. Keys are sent and returned byte for byte, or rejected.

An object's tag is its generation, which identifies exactly this content: the store assigns a new one whenever the key
is written. An object's checksum is its CRC32C: even composite objects have one, and a copy has the same one. ETags
change with the metadata, and composite objects have no MD5. An object's time is the time of its last change, including
changes to the metadata, so it is never earlier than the time at which its content was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlsplit

import requests

from spark_resources.errors import NotFound, Transient, Unavailable, WrongUsage, parse_problem
from spark_resources.model import Namespace
from spark_resources.stores import keys
from spark_resources.stores.base import (
    AlreadyExists,
    Capabilities,
    Changed,
    DeleteEffect,
    DeleteResult,
    Page,
    StoredObject,
)
from spark_resources.stores.gcs.client import ErrorResponse, GCSClient, object_path, translated_errors
from spark_resources.stores.gcs.contents import read_object, write_object
from spark_resources.stores.gcs.copy import copy_object
from spark_resources.stores.gcs.delete import MAX_BATCH, delete_keys
from spark_resources.stores.gcs.listing import (
    FIELDS,
    OBJECT_FIELDS,
    ListedObject,
    Listing,
    is_encodable,
    listing_of,
    parse_object,
)
from spark_resources.stores.gcs.transfer import GCSStreams
from spark_resources.stores.http_dates import http_time
from spark_resources.stores.retry import RetryPolicy, retried, write_conditionally
from spark_resources.stores.settings import StoreSettings

# The documentation forbids line breaks in names; anything else is allowed.
GCS = Capabilities(
    reports_missing_deletes=True,
    delete_batch=MAX_BATCH,
    ramp=1_000.0,  # writes per second, including deletes, that a bucket accepts before it is spread over more servers
    unsupported_keys=frozenset({keys.NEWLINE, keys.CARRIAGE_RETURN}),
)

_MAX_PAGE_SIZE = 1000
_RESERVED_PREFIX = ".well-known/acme-challenge/"  # the store allows no names with this prefix
_BUCKET_FIELDS = "kind,versioning/enabled,softDeletePolicy/retentionDurationSeconds"


class GCSStore:
    """One namespace in an existing bucket."""

    def __init__(self, namespace: Namespace, settings: StoreSettings, capabilities: Capabilities | None = None) -> None:
        """Sends no request yet. `capabilities` are the findings of a probe; None means the provider's defaults.

        Raises `WrongUsage` for unusable credentials, or for a path that no key can begin with.
        """
        # the API behaves the same everywhere; accepted keys and listing order depend on the server
        self._capabilities = (
            GCS if capabilities is None else replace(capabilities, reports_missing_deletes=True, delete_batch=MAX_BATCH)
        )
        self.client = GCSClient(settings)
        self.retry: RetryPolicy = settings.retry
        self.bucket = namespace.bucket
        self._objects_path = f"/storage/v1/b/{quote(self.bucket, safe='')}/o"
        self._prefix = f"{namespace.path}/" if namespace.path else ""
        endpoint = urlsplit(self.client.base_url)
        self.where = f"{namespace.uri} at {endpoint.hostname}" + (f":{endpoint.port}" if endpoint.port else "")
        if self.bucket in (".", "..") or {"%", "?"} & set(namespace.uri):
            raise WrongUsage(
                f"{namespace.uri} can't be a namespace in Cloud Storage: expected gs://<bucket>/<path> without % "
                "or ?, which lakeFS interprets as URL syntax"
            )
        keys.check_prefix(self._prefix, self.where, self._capabilities.unsupported_keys)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def clock_offset(self) -> timedelta:
        return timedelta(0)

    @cached_property
    def streams(self) -> GCSStreams:
        return GCSStreams(self)

    @retried
    def now(self) -> datetime:
        """The `Date` header of a real response: whole seconds, rounded down."""
        with translated_errors(self.where, "get the time of"):
            response = self._list({"prefix": self._prefix, "maxResults": "1"})
        listing_of(response.content)  # verifies that the store responded, and not a web server in front of it
        date = response.headers.get("Date")
        try:
            return http_time(str(date))
        except ValueError as error:
            raise Unavailable(
                f"{self.where} sent no valid Date header ({date!r}), so the ages of objects can't be determined. "
                "Check the endpoint."
            ) from error

    # --- reading ----------------------------------------------------------------------------------------------------

    def pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[Page]:
        keys.check_prefix(prefix, self.where, self._capabilities.unsupported_keys)
        keys.as_bytes(start_after or "", self.where)
        if start_after is not None:
            keys.check_start_after(self.where, delimiter, byte_order=self._capabilities.byte_order)
        params = {"prefix": self._prefix + prefix, "maxResults": str(min(page_size, _MAX_PAGE_SIZE))}
        if start_after is not None:
            params["startOffset"] = self._prefix + start_after  # inclusive, so `_page` drops that key
        if delimiter is not None:
            params["delimiter"] = delimiter
        seen_prefixes: set[str] = set()
        while True:
            listing = self._request_listing(params, prefix)
            yield self._page(listing, self._prefix + prefix, start_after, seen_prefixes)
            if listing.next_token is None:
                return
            if listing.next_token == params.get("pageToken"):
                raise Unavailable(
                    f"{self.where} keeps returning the same page for the listing of {prefix!r}. Check the endpoint."
                )
            params["pageToken"] = listing.next_token

    @retried
    def _request_listing(self, params: Mapping[str, str], prefix: str) -> Listing:
        with translated_errors(self.where, "list", prefix):
            return listing_of(self._list(params).content)

    def _list(self, params: Mapping[str, str]) -> requests.Response:
        params = {**params, "fields": FIELDS, "prettyPrint": "false"}
        return self.client.request("GET", self._objects_path, params=params)

    def _page(self, listing: Listing, requested: str, start_after: str | None, seen_prefixes: set[str]) -> Page:
        """One page; `seen_prefixes` contains the prefixes of the previous pages, and this page's are added to it."""
        for name in (*(listed.name for listed in listing.objects), *listing.prefixes):
            if not name.startswith(requested):
                raise keys.folding_error(self.where, requested, name)
        objects = [
            self._to_stored_object(listed)
            for listed in listing.objects
            # an object named exactly like the namespace's prefix has no key in the namespace
            if len(listed.name) > len(self._prefix) and listed.name[len(self._prefix) :] != start_after
        ]
        prefixes = [prefix for prefix in listing.prefixes if prefix not in seen_prefixes]
        seen_prefixes.update(prefixes)
        return Page(objects, [prefix[len(self._prefix) :] for prefix in prefixes], listing.unreadable_names)

    def _to_stored_object(self, listed: ListedObject) -> StoredObject:
        return StoredObject(listed.name[len(self._prefix) :], listed.size, listed.updated, listed.checksum)

    def stat(self, key: str) -> StoredObject:
        return self._to_stored_object(self._head(key, "look up"))

    @retried
    def _head(self, key: str, action: str) -> ListedObject:
        full = self.full_key(key)
        params = {"fields": OBJECT_FIELDS, "prettyPrint": "false"}
        with translated_errors(self.where, action, key), self.missing_object_errors(key):
            path = object_path(self.bucket, full)
            response = self.client.request("GET", path, params=params)
        try:
            document = response.json()
            if document["kind"] != "storage#object" or not is_encodable(document["name"]):
                raise ValueError(f"it is a {document['kind']}")
            listed = parse_object(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(
                f"could not {action} {key!r} in {self.where}: invalid response ({parse_problem(error)}). Check the "
                "endpoint."
            ) from error
        if listed.name != full:
            raise keys.folding_error(self.where, full, listed.name)
        return listed

    @contextmanager
    def missing_object_errors(self, key: str) -> Iterator[None]:
        """Translates a 404, which may mean a missing object, a missing bucket, or a server that isn't Cloud Storage."""
        try:
            yield
            return
        except ErrorResponse as error:
            if error.status != 404:
                raise
            missing = error
        first_page = next(self.pages(key, page_size=1))  # in byte order, the key itself comes first
        if any(listed.key == key for listed in first_page.objects):
            raise Transient(
                f"{key!r} in {self.where} is listed, but its metadata can't be read. Try again."
            ) from missing
        raise NotFound(f"{key!r} does not exist in {self.where}") from missing

    def read(self, key: str) -> bytes:
        return self.read_with_tag(key)[0]

    @retried
    def read_with_tag(self, key: str) -> tuple[bytes, str]:
        full = self.full_key(key)
        with translated_errors(self.where, "read", key), self.missing_object_errors(key):
            return read_object(self.client, self.bucket, full, key=key, where=self.where)

    def etag_is_md5(self, key: str) -> bool:
        return False  # the listed checksum is a CRC32C

    def delete_effect(self) -> DeleteEffect:
        """See `Store.delete_effect`. Reading the bucket requires a separate permission (storage.buckets.get)."""
        try:
            return _delete_effect_of(self._bucket_metadata().json())
        except (Unavailable, ValueError, KeyError, TypeError, AttributeError):
            return DeleteEffect.UNKNOWN

    @retried
    def _bucket_metadata(self) -> requests.Response:
        params = {"fields": _BUCKET_FIELDS, "prettyPrint": "false"}
        with translated_errors(self.where, "get the versioning state of"):
            return self.client.request("GET", self._objects_path.removesuffix("/o"), params=params)

    # --- writing ----------------------------------------------------------------------------------------------------

    @retried
    def write(self, key: str, data: bytes) -> str:
        with translated_errors(self.where, "write", key):
            return self._put(key, data)

    def write_if_absent(self, key: str, data: bytes) -> str:
        return write_conditionally(self.retry, lambda: self._create(key, data), lambda: self.read_with_tag(key), data)

    def _create(self, key: str, data: bytes) -> str:
        with translated_errors(self.where, "write", key):
            try:
                return self._put(key, data, ifGenerationMatch="0")
            except ErrorResponse as error:
                if error.status != 412:
                    raise
        raise AlreadyExists(f"{key!r} already exists in {self.where}")

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        return write_conditionally(
            self.retry, lambda: self._replace(key, data, tag), lambda: self.read_with_tag(key), data
        )

    def _replace(self, key: str, data: bytes, tag: str) -> str:
        self.full_key(key)
        # 0 would require that no object exists, and a tag that isn't a generation matches no object
        if tag.isdecimal() and int(tag):
            with translated_errors(self.where, "write", key):
                try:
                    return self._put(key, data, ifGenerationMatch=tag)
                except ErrorResponse as error:
                    if error.status not in (404, 412):
                        raise
        self._check_bucket()
        raise Changed(f"{key!r} in {self.where} was replaced or deleted after it was read, so it was not overwritten")

    def _put(self, key: str, data: bytes, **condition: str) -> str:
        full = self.full_key(key)
        return write_object(self.client, self.bucket, full, data, condition)

    @retried
    def copy(self, source: str, target: str) -> None:
        if source == target:
            raise WrongUsage(f"{source!r} in {self.where} can't be copied onto itself")
        full_target = self.full_key(target)
        original = self._head(source, "copy")
        with translated_errors(self.where, "copy", source), self.missing_object_errors(source):
            copy_object(self.client, self.bucket, original, full_target, self.where)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        """See `Store.delete_many`. If a whole request fails, all its keys fail, although they may have been deleted."""
        return delete_keys(
            self.client,
            self.bucket,
            list(keys),
            to_full_key=self.full_key,
            batch_size=self._capabilities.delete_batch,
            check_bucket=self._check_bucket,
        )

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _check_bucket(self) -> None:
        """Raise `NotFound` if the bucket does not exist."""
        self._request_listing({"prefix": self._prefix, "maxResults": "1"}, "")

    def full_key(self, key: str) -> str:
        keys.check_key(key, self.where, self._capabilities.unsupported_keys)
        full = self._prefix + key
        if len(full.encode()) > keys.LONGEST_KEY:
            raise WrongUsage(
                f"{key!r} can't be a key in {self.where}: including the namespace's path, it is longer than 1024 bytes"
            )
        # clients resolve `.` and `..` in a URL: deleting `..` would send a request to delete the bucket
        if full in (".", "..") or full.startswith(_RESERVED_PREFIX):
            raise WrongUsage(f"{key!r} can't be a key in {self.where}: Cloud Storage doesn't allow such names")
        return full


def _delete_effect_of(bucket: Mapping[str, Any]) -> DeleteEffect:
    """The effect of deletes according to a bucket's metadata. Raises `ValueError`, `KeyError` etc. if it is invalid."""
    if bucket["kind"] != "storage#bucket":
        raise ValueError(f"it is a {bucket['kind']}")
    if bucket.get("versioning", {}).get("enabled", False):
        return DeleteEffect.VERSIONED
    if int(bucket.get("softDeletePolicy", {}).get("retentionDurationSeconds", 0)):
        return DeleteEffect.SOFT_DELETED
    return DeleteEffect.FINAL
