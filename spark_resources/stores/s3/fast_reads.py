"""Whole objects read by obstore, whose requests are compiled code: a tenth of the processor time that boto3 takes.

A mark reads every table of a repository by one request each, most of them small. Only what its reader proves by a hash
is read so: what changes, and what a decision hangs on by itself, is boto3's. So is what isn't answered by the object:
it asks again, repeats what passes, and tells what is wrong.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spark_resources.stores.s3.fast_requests import Failures, LeftToBoto3, certificates
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from obstore.store import S3Credential, S3Store

_PLAIN = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
"""Keys that no client writes otherwise: obstore would fold `//` and `/./`."""
_HELD_FOR = timedelta(minutes=10)  # boto3 renews credentials that have no longer than that
_SLOWEST = 30  # times the read time-out, which is for each piece: all of an object
_threads_of: list[int] = []  # the process that obstore's threads are in, once they are


class QuickReads:
    """Reads with the credentials and the end point of a client. Safe to call from several threads."""

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._settings, self._bucket = client, settings, bucket
        self._failures = Failures()
        self._opened: S3Store | None = None

    @classmethod
    def of(cls, client: S3Client, settings: StoreSettings, bucket: str) -> QuickReads | None:
        """None where boto3 has to find out where a bucket is, or brings certificates of its own."""
        if settings.s3_endpoint_url is None or not settings.uses_path_style:
            return None
        if client.meta.endpoint_url.startswith("https:") and certificates(client) is not None:
            return None
        return cls(client, settings, bucket)

    def read(self, key: str) -> bytes | None:
        """All of an object; None where nothing was asked. Raises `LeftToBoto3`."""
        if self._failures.too_many or not _PLAIN.fullmatch(key) or _threads_of not in ([], [os.getpid()]):
            return None
        if self._signed_by is None or self._signed_by.get_frozen_credentials().token is not None:
            return None  # obstore follows redirects, and takes the token along to wherever they lead
        try:
            import obstore

            found: bytes = obstore.get(self._store(), key).bytes().to_bytes()
        except FileNotFoundError as error:
            raise LeftToBoto3 from error
        except Exception as error:  # whatever it is, boto3 meets it as well, and tells it
            self._failures.add()
            raise LeftToBoto3 from error
        self._failures.passed += 1
        return found

    def _store(self) -> S3Store:
        """Opened by the first read, since a process that is forked doesn't inherit the threads."""
        if self._opened is None:
            import obstore
            from obstore.store import S3Store

            settings, endpoint = self._settings, self._client.meta.endpoint_url.rstrip("/")
            _threads_of[:] = [os.getpid()]
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
            # variables such as AWS_ENDPOINT_URL_S3 win over what it is told
            asked = urlsplit(obstore.sign(opened, "GET", "key", timedelta(minutes=1)))
            if f"{asked.scheme}://{asked.netloc}{asked.path}" != f"{endpoint}/{self._bucket}/key":
                self._failures.give_up()
                raise LeftToBoto3
            self._opened = opened
        return self._opened

    @property
    def _signed_by(self) -> Any:
        return self._client._request_signer._credentials  # type: ignore[attr-defined]

    def _credentials(self) -> S3Credential:
        """boto3's own, asked for again while those that expire last. Raises where there are none."""
        found = self._signed_by
        now = found.get_frozen_credentials()
        renewed = datetime.now(UTC) + _HELD_FOR if hasattr(found, "refresh_needed") else None
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": renewed,
        }
