"""Whole objects read by obstore, whose requests are compiled code: a tenth of the processor time that boto3 takes.

A mark reads every table of a repository by one request each, most of them small. What isn't answered by the object is
left to boto3, which asks again, repeats what passes, and tells what is wrong.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client
    from obstore.store import S3Credential, S3Store

_PLAIN = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]*(/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)*")
"""Keys that no client writes otherwise: obstore would fold `//` and `/./`."""
_AWS = re.compile(r"\.amazonaws\.com(\.cn)?$")
_DIRECTORY_BUCKET = "--x-s3"
_FAILURES = 3  # in a row, after which everything is left to boto3
_HELD_FOR = timedelta(minutes=10)  # boto3 renews credentials that have no longer than that


class QuickReads:
    """Reads with the credentials and the end point of a client. Safe to call from several threads."""

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._settings, self._bucket = client, settings, bucket
        self._failures = 0
        self._opened: S3Store | None = None

    @classmethod
    def of(cls, client: S3Client, settings: StoreSettings, bucket: str) -> QuickReads | None:
        """None where boto3 has to find out where a bucket is, or brings certificates of its own."""
        if settings.s3_ca_bundle is not None or bucket.endswith(_DIRECTORY_BUCKET):
            return None
        host = urlsplit(client.meta.endpoint_url).hostname or ""
        if settings.uses_path_style or (settings.s3_endpoint_url is None and _AWS.search(host)):
            return cls(client, settings, bucket)
        return None

    def read(self, key: str) -> bytes | None:
        """All of an object; None where boto3 should be asked."""
        if self._failures >= _FAILURES or not _PLAIN.fullmatch(key):
            return None
        try:
            import obstore

            found: bytes = obstore.get(self._store(), key).bytes().to_bytes()
        except FileNotFoundError:
            return None
        except Exception:  # whatever it is, boto3 meets it as well, and tells it
            self._failures += 1
            return None
        self._failures = 0
        return found

    def _store(self) -> S3Store:
        """Opened by the first read, so that no process inherits its threads from another one."""
        if self._opened is None:
            from obstore.store import S3Store

            settings = self._settings
            self._opened = S3Store(
                self._bucket,
                region=self._client.meta.region_name,
                endpoint=self._client.meta.endpoint_url if settings.uses_path_style else None,
                virtual_hosted_style_request=not settings.uses_path_style,
                credential_provider=self._credentials,
                client_options={
                    "allow_http": True,
                    "connect_timeout": timedelta(seconds=settings.connect_timeout),
                    "timeout": timedelta(seconds=settings.read_timeout),
                },
                retry_config={"max_retries": 0},
            )
        return self._opened

    def _credentials(self) -> S3Credential:
        """boto3's own, asked for again while those that expire last. Raises where there are none."""
        found = self._client._request_signer._credentials  # type: ignore[attr-defined]
        now = found.get_frozen_credentials()
        renewed = datetime.now(UTC) + _HELD_FOR if hasattr(found, "refresh_needed") else None
        return {
            "access_key_id": now.access_key,
            "secret_access_key": now.secret_key,
            "token": now.token,
            "expires_at": renewed,
        }
