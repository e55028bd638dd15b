"""The store for Azure Blob Storage. Names are sent and returned byte for byte, or rejected.

Directories of hierarchical accounts, which Azure returns as empty blobs, are not objects here: listings and lookups
ignore them. The tests run against an emulator and do not cover what differs in real accounts; see docs/stores.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError, HttpResponseError

from spark_resources.errors import NotFound, Unavailable, WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import keys
from spark_resources.stores.azure.client import (
    ALREADY_EXISTS_CODES,
    CONDITION_FAILED_CODES,
    code_of,
    container_client,
    container_of,
    service_client,
    translated_errors,
)
from spark_resources.stores.azure.copy import copy_blob
from spark_resources.stores.azure.delete import BATCH, delete_keys
from spark_resources.stores.azure.listing import Listing, checksum, is_folder, list_blobs, unquoted
from spark_resources.stores.azure.transfer import AzureStreams
from spark_resources.stores.base import (
    AlreadyExists,
    Capabilities,
    Changed,
    DeleteEffect,
    DeleteResult,
    Page,
    StoredObject,
)
from spark_resources.stores.http_dates import http_time
from spark_resources.stores.retry import RetryPolicy, retried, write_conditionally
from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.size_limits import check_size

# Keys that Azure refuses or folds (a backslash becomes a slash, a final dot is dropped), or that a URL can't contain.
UNSUPPORTED_KEYS = frozenset(
    {
        keys.DOT_SEGMENT, keys.DOT_AT_END, keys.BACKSLASH, keys.NUL, keys.NEWLINE, keys.CARRIAGE_RETURN, keys.CONTROL,
        keys.NOT_XML,
    }
)  # fmt: skip
# Hierarchical accounts list in the order of a directory walk, so byte order can't be assumed.
AZURE = Capabilities(
    byte_order=False,
    reports_missing_deletes=True,
    delete_batch=BATCH,
    md5_etags=True,
    unsupported_keys=UNSUPPORTED_KEYS,
)

LAKEGC_PREFIX = "_lakefs/retention/gc/lakegc/"


class AzureStore:
    """One namespace in an existing container."""

    def __init__(self, namespace: Namespace, settings: StoreSettings, capabilities: Capabilities | None = None) -> None:
        """Sends no request yet. `capabilities` are the findings of a probe; None means the provider's defaults.

        Raises `WrongUsage` for a namespace that can't exist in Azure.
        """
        capabilities = AZURE if capabilities is None else capabilities
        self.container = container_of(namespace, settings.azure_endpoint_url)
        self.client = container_client(self.container, settings)
        self._settings = settings
        self.retry: RetryPolicy = settings.retry
        self._prefix = self.container.prefix
        self._capabilities = replace(
            capabilities,
            reports_missing_deletes=True,
            delete_batch=min(capabilities.delete_batch, BATCH),
            unsupported_keys=capabilities.unsupported_keys | UNSUPPORTED_KEYS,
        )
        self.where = f"{namespace.uri} at {self.container.endpoint}" if settings.azure_endpoint_url else namespace.uri
        keys.check_prefix(self._prefix, self.where, self._capabilities.unsupported_keys)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def clock_offset(self) -> timedelta:
        return timedelta(0)

    @cached_property
    def streams(self) -> AzureStreams:
        return AzureStreams(self)

    @retried
    def now(self) -> datetime:
        """The `Date` header of a real response: whole seconds, rounded down."""
        with translated_errors(self.where, "get the time of"):
            date = list_blobs(self.client, self._prefix, page_size=1).date
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
        """See `Store.pages`. Azure has no `start_after`: all keys are requested, and keys up to it are dropped."""
        keys.check_prefix(prefix, self.where, self._capabilities.unsupported_keys)
        after = None if start_after is None else keys.as_bytes(start_after, self.where)
        if after is not None:
            keys.check_start_after(self.where, delimiter, byte_order=self._capabilities.byte_order)
        marker: str | None = None
        while True:
            listing = self._request_listing(prefix, page_size, delimiter, marker)
            yield self._page(listing, self._prefix + prefix, after)
            if listing.marker is None:
                return
            if listing.marker == marker:
                raise Unavailable(
                    f"{self.where} keeps returning the same page for the listing of {prefix!r}. Check the endpoint."
                )
            marker = listing.marker

    @retried
    def _request_listing(self, prefix: str, page_size: int, delimiter: str | None, marker: str | None) -> Listing:
        with translated_errors(self.where, "list", prefix):
            return list_blobs(
                self.client, self._prefix + prefix, page_size=page_size, delimiter=delimiter, marker=marker
            )

    def _page(self, listing: Listing, requested_prefix: str, after: bytes | None) -> Page:
        prefix_length = len(self._prefix)
        objects = []
        unreadable = 0
        for blob in listing.objects:
            name = blob.name
            if name is None:
                unreadable += 1
            elif not name.startswith(requested_prefix):
                raise keys.folding_error(self.where, requested_prefix, name)
            elif len(name) > prefix_length and (after is None or name[prefix_length:].encode() > after):
                objects.append(StoredObject(name[prefix_length:], blob.size, blob.modified, blob.checksum))
        prefixes = []
        for prefix in listing.prefixes:
            if prefix is None:
                unreadable += 1
            elif not prefix.startswith(requested_prefix):
                raise keys.folding_error(self.where, requested_prefix, prefix)
            else:
                prefixes.append(prefix[prefix_length:])
        return Page(objects, prefixes, unreadable)

    def stat(self, key: str) -> StoredObject:
        return self._head(key, "look up")[0]

    @retried
    def _head(self, key: str, action: str) -> tuple[StoredObject, str]:
        """The object, and its ETag exactly as Azure sends it."""
        client = self.client.get_blob_client(self.full_key(key))
        with translated_errors(self.where, action, key):
            properties = client.get_blob_properties()
        if properties.size is None or properties.last_modified is None or not properties.etag:
            raise Unavailable(
                f"the response for {key!r} in {self.where} lacks the size, modification time or "
                "ETag. Check that the endpoint is Azure Blob Storage."
            )
        self.check_object(key, properties)
        stored = StoredObject(
            key,
            properties.size,
            properties.last_modified,
            checksum(properties.content_settings.content_md5, properties.etag),
        )
        return stored, str(properties.etag)

    def check_object(self, key: str, properties: Any) -> None:
        """Raise `NotFound` if the blob with these properties is a directory, not an object."""
        if is_folder(properties.metadata or {}, properties.size):
            raise NotFound(f"{key!r} does not exist in {self.where}: it is a directory")

    def read(self, key: str) -> bytes:
        return self.read_with_tag(key)[0]

    @retried
    def read_with_tag(self, key: str) -> tuple[bytes, str]:
        client = self.client.get_blob_client(self.full_key(key))
        with translated_errors(self.where, "read", key):
            download = client.download_blob()
            check_size(download.size, key, self.where)
            data: bytes = download.readall()
        if not download.properties.etag:
            raise Unavailable(
                f"the response for {key!r} in {self.where} lacks an ETag. Check that the endpoint is Azure Blob "
                "Storage."
            )
        self.check_object(key, download.properties)
        return data, unquoted(download.properties.etag)

    def etag_is_md5(self, key: str) -> bool:
        """False for every object: block uploads, whose MD5 Azure doesn't verify, look like plain uploads."""
        self.stat(key)
        return False

    def delete_effect(self) -> DeleteEffect:
        """Soft delete is read from the account's properties; versioning is visible only in the properties of a blob."""
        soft_deletes = self._has_soft_delete()
        keeps_versions = self._keeps_versions()
        if keeps_versions:
            return DeleteEffect.VERSIONED
        if soft_deletes:
            return DeleteEffect.SOFT_DELETED
        return DeleteEffect.UNKNOWN if soft_deletes is None or keeps_versions is None else DeleteEffect.FINAL

    def _has_soft_delete(self) -> bool | None:
        """Whether soft delete is enabled for the account; None if its properties can't be read."""
        try:
            policy = self._service_properties().get("delete_retention_policy")
        except Unavailable:
            return None  # a token for one container doesn't permit reading the account's properties
        return bool(policy is not None and policy.enabled)

    @retried
    def _service_properties(self) -> dict[str, Any]:
        with translated_errors(self.where, "get the properties of"):
            return service_client(self.container, self._settings).get_service_properties()

    def _keeps_versions(self) -> bool | None:
        """Whether the newest of lakegc's own files has a version id; None if there is no file or it can't be read."""
        try:
            own_files = (listed for page in self.pages(LAKEGC_PREFIX) for listed in page.objects)
            newest = max(own_files, key=lambda listed: listed.modified, default=None)
            if newest is None:
                return None
            return self.client.get_blob_client(self.full_key(newest.key)).get_blob_properties().version_id is not None
        except (AzureError, Unavailable):
            return None

    # --- writing ----------------------------------------------------------------------------------------------------

    @retried
    def write(self, key: str, data: bytes) -> str:
        with translated_errors(self.where, "write", key):
            return self._put(key, data, overwrite=True)

    def write_if_absent(self, key: str, data: bytes) -> str:
        return write_conditionally(self.retry, lambda: self._create(key, data), lambda: self.read_with_tag(key), data)

    def _create(self, key: str, data: bytes) -> str:
        with translated_errors(self.where, "write", key):
            try:
                return self._put(key, data, overwrite=False)
            except HttpResponseError as error:
                if code_of(error) not in ALREADY_EXISTS_CODES:
                    raise
        raise AlreadyExists(f"{key!r} already exists in {self.where}")

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        return write_conditionally(
            self.retry, lambda: self._replace(key, data, tag), lambda: self.read_with_tag(key), data
        )

    def _replace(self, key: str, data: bytes, tag: str) -> str:
        with translated_errors(self.where, "write", key):
            try:
                condition = MatchConditions.IfNotModified
                return self._put(key, data, overwrite=True, etag=f'"{tag}"', match_condition=condition)
            except HttpResponseError as error:
                if code_of(error) not in CONDITION_FAILED_CODES | {"BlobNotFound"}:
                    raise
        raise Changed(f"{key!r} in {self.where} was replaced or deleted after it was read, so it was not overwritten")

    def _put(self, key: str, data: bytes, **condition: Any) -> str:
        response = self.client.get_blob_client(self.full_key(key)).upload_blob(data, **condition)
        return unquoted(str(response["etag"]))

    @retried
    def copy(self, source: str, target: str) -> None:
        if source == target:
            raise WrongUsage(f"{source!r} in {self.where} can't be copied onto itself")
        target_client = self.client.get_blob_client(self.full_key(target))
        _, tag = self._head(source, "copy")
        with translated_errors(self.where, "copy", source):
            copy_blob(
                self.client.get_blob_client(self.full_key(source)),
                target_client,
                tag,
                token=self.token(),
                where=self.where,
            )

    def token(self) -> str:
        """The SAS token that authorizes requests; "" if there is none."""
        return getattr(self.client.credential, "signature", "")

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        """See `Store.delete_many`. If a whole request fails, all its keys fail, although they may have been deleted."""
        batch = self._capabilities.delete_batch
        return delete_keys(
            self.client,
            list(keys),
            to_full_key=self.full_key,
            batch_size=batch,
            on_batches_unsupported=self._disable_batches,
        )

    def _disable_batches(self) -> None:
        self._capabilities = replace(self._capabilities, delete_batch=1)

    def full_key(self, key: str) -> str:
        keys.check_key(key, self.where, self._capabilities.unsupported_keys)
        full = self._prefix + key
        if len(full.encode("utf-16-le")) > 2 * keys.LONGEST_KEY:
            raise WrongUsage(
                f"{key!r} can't be a key in {self.where}: including the namespace's path, it is longer than 1024 "
                "characters"
            )
        return full
