"""S3 requests at a fraction of boto3's cost, for stores with a configured endpoint and the bucket in the path.

With boto3, copying millions of small objects and listing many more keys spend most of their time in the client. A
request without the expected response falls back to boto3, which sends it again, with retries and error messages.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest

from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_ETAG = re.compile(
    rb"<CopyObjectResult[ >].*<ETag>(?:&quot;|&#34;|\")?([^<>&\"]+)(?:&quot;|&#34;|\")?</ETag>", re.DOTALL
)


class FallBackToBoto3(Exception):
    """Raised if a fast path didn't get the expected response, so that boto3 has to send the request."""


@dataclass(slots=True)
class Failures:
    """How often a fast path failed. After too many failures, boto3 sends all requests, and backs off."""

    succeeded: int = 0
    failed: int = 0

    @property
    def too_many(self) -> bool:
        return self.failed >= 3 + self.succeeded // 1000

    def add(self) -> None:
        self.failed += 1

    def give_up(self) -> None:
        self.failed = 1 << 60


def ca_bundle_of(client: S3Client) -> str | None:
    """The path of a client's CA bundle; None for the default authorities."""
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    return verify if isinstance(verify, str) else None


class FastRequests:
    """Requests for one bucket with a client's credentials and endpoint. Thread-safe."""

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._region = client, client.meta.region_name
        self._base = urlsplit(client.meta.endpoint_url)
        self._path = f"{self._base.path.rstrip('/')}/{bucket}"
        self._pool = urllib3.PoolManager(
            maxsize=settings.connections,
            retries=False,
            timeout=urllib3.Timeout(settings.connect_timeout, settings.read_timeout),
            ca_certs=ca_bundle_of(client),
        ).connection_from_url(client.meta.endpoint_url)
        self._lock, self._failures = threading.Lock(), Failures()

    @classmethod
    def of(cls, client: S3Client, settings: StoreSettings, bucket: str) -> FastRequests | None:
        """Fast requests for this bucket; None if boto3 has to locate it."""
        if settings.s3_endpoint_url is None or not settings.uses_path_style:
            return None
        return cls(client, settings, bucket)

    def copy(self, source: Mapping[str, str], key: str, conditions: Mapping[str, str]) -> str | None:
        """Copy from `source` (`Bucket`, `Key`) with conditions as headers; returns the tag, or None to use boto3."""
        copy_source = f"{source['Bucket']}/{quote(source['Key'], safe='/~')}"
        headers = {"x-amz-copy-source": copy_source, **conditions}
        try:
            body = self._send("PUT", f"{self._path}/{quote(key, safe='/~')}", headers)
        except FallBackToBoto3:
            return None
        match = _ETAG.search(body) if body is not None else None
        return None if match is None else match.group(1).decode("ascii", "replace")

    def list(self, parameters: Mapping[str, str]) -> bytes | None:
        """The response to ListObjectsV2 with these parameters; None if no request was sent.

        Raises `FallBackToBoto3`.
        """
        query = "&".join(
            f"{name}={quote(value, safe='-_.~')}" for name, value in {"list-type": "2", **parameters}.items()
        )
        return self._send("GET", f"{self._path}?{query}", {})

    def _send(self, method: str, path: str, headers: Mapping[str, str]) -> bytes | None:
        """The body of a successful response; None if no request was sent."""
        if self._failures.too_many:
            return None
        try:
            request = AWSRequest(method=method, url=f"{self._base.scheme}://{self._base.netloc}{path}", headers=headers)
            with self._lock:  # only one thread renews expiring credentials
                credentials = self._client._request_signer._credentials.get_frozen_credentials()  # type: ignore[attr-defined]
            S3SigV4Auth(credentials, "s3", self._region).add_auth(request)
            request_headers: dict[str, Any] = dict(request.headers.items())
            if method == "PUT":
                request_headers["Content-Length"] = "0"
            response = self._pool.urlopen(method, path, headers=request_headers, redirect=False)
            body, is_success = response.data, response.status == 200
        except Exception as error:  # boto3 gets the same error, and reports it
            self._failures.add()
            raise FallBackToBoto3 from error
        if not is_success:
            if response.status >= 500:
                self._failures.add()
            raise FallBackToBoto3
        self._failures.succeeded += 1
        return body
