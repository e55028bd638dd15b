"""Reads whole objects with obstore, which is compiled and takes a tenth of boto3's CPU time.

A mark reads every table of a repository with one request each, and most tables are small. Only objects that the reader
verifies with a hash are read this way. Mutable objects, and objects that a decision directly depends on, are read with
boto3. A request that doesn't return the object also falls back to boto3, which sends it again, with retries and error
messages.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spark_resources.stores.s3.fast_requests import Failures, FallBackToBoto3, ca_bundle_of
from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.size_limits import size_limit

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from obstore.store import S3Credential, S3Store

_UNCHANGED_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
"""Keys that every client sends unchanged: obstore would fold `//` and `/./`."""
_CREDENTIALS_VALID_FOR = timedelta(minutes=10)  # boto3 renews credentials that expire sooner
_OBJECT_TIMEOUT_FACTOR = 30  # the timeout for a whole object, as a multiple of the read timeout, which is per piece
_thread_owner: list[int] = []  # the id of the process that started obstore's threads; empty before that


class FastReads:
    """Reads with a client's credentials and endpoint. Thread-safe."""

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._settings, self._bucket = client, settings, bucket
        self._failures = Failures()
        self._opened_store: S3Store | None = None

    @classmethod
    def of(cls, client: S3Client, settings: StoreSettings, bucket: str) -> FastReads | None:
        """Fast reads for this bucket; None if they aren't possible.

        They require a configured endpoint with path-style addressing, because otherwise boto3 has to locate the bucket.
        An https:// endpoint must not have a custom CA bundle.
        """
        if settings.s3_endpoint_url is None or not settings.uses_path_style:
            return None
        if client.meta.endpoint_url.startswith("https:") and ca_bundle_of(client) is not None:
            return None
        return cls(client, settings, bucket)

    def read(self, key: str) -> bytes | None:
        """A whole object; None if no request was sent. Raises `FallBackToBoto3` if reading failed."""
        if self._failures.too_many or not _UNCHANGED_KEY.fullmatch(key) or _thread_owner not in ([], [os.getpid()]):
            return None
        if self._signer_credentials is None or self._signer_credentials.get_frozen_credentials().token is not None:
            return None  # obstore follows redirects and would send the token to any server they lead to
        try:
            import obstore

            found = obstore.get(self._store(), key)
            if found.meta["size"] > size_limit(key).max_bytes:
                raise FallBackToBoto3
            data: bytes = found.bytes().to_bytes()
        except FallBackToBoto3:
            raise
        except FileNotFoundError as error:
            raise FallBackToBoto3 from error
        except Exception as error:  # boto3 gets the same error, and reports it
            self._failures.add()
            raise FallBackToBoto3 from error
        self._failures.succeeded += 1
        return data

    def _store(self) -> S3Store:
        """obstore's store, opened by the first read, because a forked process doesn't inherit obstore's threads.

        Raises `FallBackToBoto3` if environment variables make obstore send requests to another server.
        """
        if self._opened_store is None:
            import obstore
            from obstore.store import S3Store

            settings, endpoint = self._settings, self._client.meta.endpoint_url.rstrip("/")
            _thread_owner[:] = [os.getpid()]
            opened = S3Store(
                self._bucket,
                region=self._client.meta.region_name,
                endpoint=endpoint,
                virtual_hosted_style_request=False,
                credential_provider=self._credentials,
                client_options={
                    "allow_http": endpoint.startswith("http:"),
                    "connect_timeout": timedelta(seconds=settings.connect_timeout),
                    "read_timeout": timedelta(seconds=settings.read_timeout),
                    "timeout": timedelta(seconds=_OBJECT_TIMEOUT_FACTOR * settings.read_timeout),
                },
                retry_config={"max_retries": 0},
            )
            # environment variables such as AWS_ENDPOINT_URL_S3 override the arguments
            signed_url = urlsplit(obstore.sign(opened, "GET", "key", timedelta(minutes=1)))
            if f"{signed_url.scheme}://{signed_url.netloc}{signed_url.path}" != f"{endpoint}/{self._bucket}/key":
                self._failures.give_up()
                raise FallBackToBoto3
            self._opened_store = opened
        return self._opened_store

    @property
    def _signer_credentials(self) -> Any:
        return self._client._request_signer._credentials  # type: ignore[attr-defined]

    def _credentials(self) -> S3Credential:
        """boto3's own credentials. If they are temporary, obstore calls this again before they expire. Raises if there
        are none."""
        credentials = self._signer_credentials
        current = credentials.get_frozen_credentials()
        is_temporary = hasattr(credentials, "refresh_needed")
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_VALID_FOR if is_temporary else None,
        }
