"""The store for S3 and compatible servers. Keys are sent and returned byte for byte, or rejected.

Listings are requested URL-encoded, because XML can't contain every key. Each listed key must start with the requested
prefix, which detects a server that folds keys as a file system does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.compute as pc
from botocore.exceptions import ClientError

from spark_resources.errors import NotFound, Transient, Unavailable, WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import keys
from spark_resources.stores.arrow_pages import ArrowPage, to_page
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
from spark_resources.stores.s3.client import code_of, s3_client, status_of, translated_errors
from spark_resources.stores.s3.copy import copy_object
from spark_resources.stores.s3.delete import delete_keys
from spark_resources.stores.s3.fast_reads import FastReads
from spark_resources.stores.s3.fast_requests import FallBackToBoto3, FastRequests
from spark_resources.stores.s3.listing import Listing, listing_of, parse_listing, replace_listing_parser
from spark_resources.stores.s3.transfer import S3Streams
from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.size_limits import PIECE_SIZE, check_size, joined

AWS = Capabilities(md5_etags=True)
S3_COMPATIBLE = Capabilities()

_PARAMETERS = {
    "Prefix": "prefix",
    "MaxKeys": "max-keys",
    "EncodingType": "encoding-type",
    "StartAfter": "start-after",
    "Delimiter": "delimiter",
    "ContinuationToken": "continuation-token",
}
_MD5 = re.compile(r"^[0-9a-f]{32}\Z")
_DIRECTORY_BUCKET = "--x-s3"  # suffix of a directory bucket's name; its ETags are random


class S3Store:
    """One namespace in an existing bucket."""

    def __init__(self, namespace: Namespace, settings: StoreSettings, capabilities: Capabilities | None = None) -> None:
        """Sends no request yet. `capabilities` are the findings of a probe.

        Without them, the defaults are AWS's if no endpoint is set, otherwise a compatible store's. Raises `WrongUsage`
        if this store can't hold keys with the namespace's path, or if lakeFS would parse the namespace differently.
        """
        if {"%", "?"} & set(namespace.uri) or {"@", ":"} & set(namespace.bucket):
            raise WrongUsage(
                f"{namespace.uri} can't be a namespace in S3: expected s3://<bucket>/<path> without a user, a "
                "port, % or ?, which lakeFS interprets as URL syntax"
            )
        if capabilities is None:
            capabilities = AWS if settings.s3_endpoint_url is None else S3_COMPATIBLE
        self.client = s3_client(settings)
        replace_listing_parser(self.client)
        self.bucket = namespace.bucket
        self._prefix = f"{namespace.path}/" if namespace.path else ""
        self._capabilities = capabilities
        self.retry: RetryPolicy = settings.retry
        self.fast_requests = FastRequests(self.client, settings, self.bucket)
        self._fast_reads = FastReads.of(self.client, settings, self.bucket)
        endpoint = urlsplit(self.client.meta.endpoint_url)
        self.where = f"{namespace.uri} at {endpoint.hostname}" + (f":{endpoint.port}" if endpoint.port else "")
        keys.check_prefix(self._prefix, self.where, capabilities.unsupported_keys)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def clock_offset(self) -> timedelta:
        return timedelta(0)

    @cached_property
    def streams(self) -> S3Streams:
        return S3Streams(self)

    @retried
    def now(self) -> datetime:
        """The `Date` header of a real response: whole seconds, rounded down."""
        with translated_errors(self.where, "get the time of"):
            response = self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._prefix, MaxKeys=1)
            listing_of(response)  # verifies that the store responded, and not a web server in front of it
        date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
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
        pages = self.arrow_pages(prefix, start_after=start_after, delimiter=delimiter, page_size=page_size)
        yield from map(to_page, pages)

    def arrow_pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[ArrowPage]:
        """Like `pages`, but as Arrow."""
        keys.check_prefix(prefix, self.where, self._capabilities.unsupported_keys)
        keys.as_bytes(start_after or "", self.where)
        if start_after is not None:
            keys.check_start_after(self.where, delimiter, byte_order=self._capabilities.byte_order)
        request: dict[str, Any] = {"Prefix": self._prefix + prefix, "MaxKeys": page_size, "EncodingType": "url"}
        if start_after is not None:
            request["StartAfter"] = self._prefix + start_after
        if delimiter is not None:
            request["Delimiter"] = delimiter
        while True:
            listing = self._request_listing(request, prefix)
            yield self._page(listing, self._prefix + prefix)
            if listing.next_token is None:
                return
            if listing.next_token == request.get("ContinuationToken"):
                raise Unavailable(
                    f"{self.where} keeps returning the same page for the listing of {prefix!r}. Check the endpoint."
                )
            request["ContinuationToken"] = listing.next_token

    @retried
    def _request_listing(self, request: Mapping[str, Any], prefix: str) -> Listing:
        with suppress(FallBackToBoto3, ElementTree.ParseError, ValueError, TypeError):
            response = self.fast_requests.list({_PARAMETERS[name]: str(value) for name, value in request.items()})
            if response is not None:
                return parse_listing(response)
        with translated_errors(self.where, "list", prefix):
            return listing_of(self.client.list_objects_v2(Bucket=self.bucket, **request))

    def _page(self, listing: Listing, requested: str) -> ArrowPage:
        skip = len(self._prefix)
        objects, full_keys = listing.objects, listing.objects.column(0)
        has_prefix = pc.starts_with(full_keys, pattern=requested)
        if not pc.all(has_prefix, min_count=0).as_py():
            raise keys.folding_error(self.where, requested, full_keys.filter(pc.invert(has_prefix))[0].as_py())
        if skip:
            relative_keys = pc.utf8_slice_codeunits(full_keys, start=skip)
            objects = pa.RecordBatch.from_arrays([relative_keys, *objects.columns[1:]], schema=objects.schema)
            if not requested[skip:]:  # an object named exactly like the namespace's prefix has no key in the namespace
                objects = objects.filter(pc.not_equal(relative_keys, ""))
        prefixes = []
        for prefix in listing.prefixes:
            if prefix is None:
                continue
            if not prefix.startswith(requested):
                raise keys.folding_error(self.where, requested, prefix)
            prefixes.append(prefix[skip:])
        unreadable = listing.unreadable + len(listing.prefixes) - len(prefixes)
        return ArrowPage(objects, prefixes, unreadable)

    def stat(self, key: str) -> StoredObject:
        head = self.head(key, "look up")
        etag = unquoted(head.get("ETag", "")) or None
        return StoredObject(key, int(head["ContentLength"]), head["LastModified"].astimezone(UTC), etag)

    @retried
    def head(self, key: str, action: str) -> Mapping[str, Any]:
        full = self.full_key(key)
        with translated_errors(self.where, action, key):
            try:
                return self.client.head_object(Bucket=self.bucket, Key=full)
            except ClientError as error:
                if status_of(error) != 404:
                    raise
        # A HEAD response has no body, and a missing bucket and a wrong endpoint also return 404, so a listing decides.
        if any(listed.key == key for page in self.pages(key, page_size=1) for listed in page.objects[:1]):
            raise Transient(f"{key!r} in {self.where} is listed, but its metadata can't be read. Try again.")
        raise NotFound(f"{key!r} does not exist in {self.where}")

    def read(self, key: str) -> bytes:
        return self.read_with_tag(key)[0]

    def read_to_verify(self, key: str) -> bytes:
        """Like `read`, for callers that verify the bytes with a hash (`spark_resources.stores.base.read_to_verify`)."""
        full = self.full_key(key)
        with suppress(FallBackToBoto3):
            for reads in (self._fast_reads, self.fast_requests):
                if reads is not None and (data := reads.read(full)) is not None:
                    return data
        return self.read(key)

    @retried
    def read_with_tag(self, key: str) -> tuple[bytes, str]:
        full = self.full_key(key)
        with translated_errors(self.where, "read", key):
            response = self.client.get_object(Bucket=self.bucket, Key=full)
            body, length = response["Body"], response.get("ContentLength")
            if length is None:
                return joined(body.iter_chunks(PIECE_SIZE), key, self.where), unquoted(response["ETag"])
            check_size(length, key, self.where)
            return body.read(), unquoted(response["ETag"])

    def etag_is_md5(self, key: str) -> bool:
        """True for a plain upload to a store with MD5 ETags; multipart, KMS and SSE-C ETags only look like an MD5."""
        if not self._capabilities.md5_etags or self.bucket.endswith(_DIRECTORY_BUCKET):
            return False
        try:
            head = self.head(key, "look up")
        except Unavailable as error:
            if isinstance(error.__cause__, ClientError) and status_of(error.__cause__) == 400:
                return False  # encrypted with a customer-provided key, which even a HEAD requires
            raise
        return (
            _MD5.match(unquoted(head.get("ETag", ""))) is not None
            and head.get("ServerSideEncryption", "AES256") == "AES256"
            and "SSECustomerAlgorithm" not in head
            and "SSEKMSKeyId" not in head
        )

    def delete_effect(self) -> DeleteEffect:
        try:
            status = self._versioning()
        except Unavailable:
            return DeleteEffect.UNKNOWN  # not all compatible stores support this call
        # with suspended versioning, a delete still leaves a marker on top of earlier versions
        return DeleteEffect.FINAL if status is None else DeleteEffect.VERSIONED

    @retried
    def _versioning(self) -> str | None:
        with translated_errors(self.where, "get the versioning state of"):
            return self.client.get_bucket_versioning(Bucket=self.bucket).get("Status")

    # --- writing ----------------------------------------------------------------------------------------------------

    @retried
    def write(self, key: str, data: bytes) -> str:
        with translated_errors(self.where, "write", key):
            return self._put(key, data, {})

    def write_if_absent(self, key: str, data: bytes) -> str:
        return write_conditionally(self.retry, lambda: self._create(key, data), lambda: self.read_with_tag(key), data)

    def _create(self, key: str, data: bytes) -> str:
        tag = self._put_if(key, data, {"IfNoneMatch": "*"})
        if tag is None:
            raise AlreadyExists(f"{key!r} already exists in {self.where}")
        return tag

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        return write_conditionally(
            self.retry, lambda: self._replace(key, data, tag), lambda: self.read_with_tag(key), data
        )

    def _replace(self, key: str, data: bytes, tag: str) -> str:
        try:
            new_tag = self._put_if(key, data, {"IfMatch": f'"{tag}"'})
        except NotFound as error:
            if error.__cause__ is not None and code_of(error.__cause__) == "NoSuchKey":  # type: ignore[arg-type]
                raise Changed(f"{key!r} in {self.where} no longer exists, so it was not overwritten") from error
            raise
        if new_tag is None:
            next(self.pages(key, page_size=1))  # raises for a missing bucket: some servers return 412 for it
            raise Changed(
                f"{key!r} in {self.where} was replaced or deleted after it was read, so it was not overwritten"
            )
        return new_tag

    def _put_if(self, key: str, data: bytes, condition: Mapping[str, str]) -> str | None:
        """The new tag, or None if the condition failed."""
        with translated_errors(self.where, "write", key):
            try:
                return self._put(key, data, condition)
            except ClientError as error:
                if code_of(error) == "PreconditionFailed" or status_of(error) == 412:
                    return None
                if status_of(error) == 409:
                    raise Transient(
                        f"{key!r} in {self.where} is being written by another client. Try again."
                    ) from error
                raise

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> str:
        response = self.client.put_object(Bucket=self.bucket, Key=self.full_key(key), Body=data, **condition)  # type: ignore[arg-type]
        return unquoted(response["ETag"])

    @retried
    def copy(self, source: str, target: str) -> None:
        if source == target:
            raise WrongUsage(f"{source!r} in {self.where} can't be copied onto itself")
        full_target = self.full_key(target)
        head = self.head(source, "copy")
        with translated_errors(self.where, "copy", source):
            copy_object(self.client, self.bucket, self.full_key(source), full_target, head)

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        """See `Store.delete_many`. If a whole request fails, all its keys fail, although they may have been deleted."""
        batch = self._capabilities.delete_batch
        return delete_keys(
            self.client,
            self.bucket,
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
        if len(full.encode()) > keys.LONGEST_KEY:
            raise WrongUsage(
                f"{key!r} can't be a key in {self.where}: including the namespace's path, it is longer than 1024 bytes"
            )
        return full


def unquoted(etag: str) -> str:
    return etag.removeprefix('"').removesuffix('"')
