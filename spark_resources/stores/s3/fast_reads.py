"""Reading whole objects with obstore, whose requests are compiled code: a tenth of the CPU time that boto3 takes.

A mark reads every table of a repository with one request each, and most tables are small. Only objects that the reader
verifies with a hash are read this way; mutable objects, and those that a decision depends on directly, are read with
boto3. Requests that don't return the object also fall back to boto3, which sends them again, with retries and error
messages.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spark_resources.stores.s3.fast_requests import Failures, FallBackToBoto3, certificates
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from obstore.store import S3Credential, S3Store

_PLAIN = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
"""Keys that every client sends unchanged: obstore would fold `//` and `/./`."""
_CREDENTIALS_VALID_FOR = timedelta(minutes=10)  # boto3 renews credentials that expire sooner than that
_SLOWEST = 30  # times the read timeout (which is per piece): the timeout for a whole object
_thread_owner: list[int] = []  # the id of the process that has obstore's threads, once they are started


class FastReads:
    """Reads with a client's credentials and endpoint. Thread-safe."""

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._settings, self._bucket = client, settings, bucket
        self._failures = Failures()
        self._opened: S3Store | None = None

    @classmethod
    def of(cls, client: S3Client, settings: StoreSettings, bucket: str) -> FastReads | None:
        """None if boto3 has to locate the bucket, or has a CA bundle of its own."""
        if settings.s3_endpoint_url is None or not settings.uses_path_style:
            return None
        if client.meta.endpoint_url.startswith("https:") and certificates(client) is not None:
            return None
        return cls(client, settings, bucket)

    def read(self, key: str) -> bytes | None:
        """A whole object; None if no request was sent. Raises `FallBackToBoto3`."""
        if self._failures.too_many or not _PLAIN.fullmatch(key) or _thread_owner not in ([], [os.getpid()]):
            return None
        if self._signed_by is None or self._signed_by.get_frozen_credentials().token is not None:
            return None  # obstore follows redirects, and sends the token along wherever they lead
        try:
            import obstore

            found: bytes = obstore.get(self._store(), key).bytes().to_bytes()
        except FileNotFoundError as error:
            raise FallBackToBoto3 from error
        except Exception as error:  # whatever it is, boto3 gets the error as well, and reports it
            self._failures.add()
            raise FallBackToBoto3 from error
        self._failures.succeeded += 1
        return found

    def _store(self) -> S3Store:
        """Opened by the first read, because a forked process doesn't inherit the threads."""
        if self._opened is None:
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
                    "timeout": timedelta(seconds=_SLOWEST * settings.read_timeout),
                },
                retry_config={"max_retries": 0},
            )
            # environment variables such as AWS_ENDPOINT_URL_S3 override the arguments
            signed_url = urlsplit(obstore.sign(opened, "GET", "key", timedelta(minutes=1)))
            if f"{signed_url.scheme}://{signed_url.netloc}{signed_url.path}" != f"{endpoint}/{self._bucket}/key":
                self._failures.give_up()
                raise FallBackToBoto3
            self._opened = opened
        return self._opened

    @property
    def _signed_by(self) -> Any:
        return self._client._request_signer._credentials  # type: ignore[attr-defined]

    def _credentials(self) -> S3Credential:
        """boto3's own credentials; those that expire are requested again before they do. Raises if there are none."""
        found = self._signed_by
        now = found.get_frozen_credentials()
        renewed = datetime.now(UTC) + _CREDENTIALS_VALID_FOR if hasattr(found, "refresh_needed") else None
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": renewed,
        }
