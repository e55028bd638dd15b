"""S3 requests at a fraction of boto3's cost.

With boto3, copies of millions of small objects, and listings of even more keys, spend most of their time in the client.
A request without the expected response falls back to boto3, which sends it again, with retries and error messages.
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
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies

from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.size_limits import MAX_RESPONSE_BYTES, size_limit

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from mypy_boto3_s3.client import S3Client

_ETAG = re.compile(
    rb"<CopyObjectResult[ >].*<ETag>(?:&quot;|&#34;|\")?([^<>&\"]+)(?:&quot;|&#34;|\")?</ETag>", re.DOTALL
)
_LISTING = "s3.ListObjectsV2"  # boto3's name for the operation
_SIGNED = re.compile(r"AWS4-HMAC-SHA256 Credential=[^/,]+/\d{8}/(?P<region>[^/]+)/s3/aws4_request")


class FallBackToBoto3(Exception):
    """Raised if a fast path didn't get the expected response, so that boto3 has to send the request."""


@dataclass(slots=True)
class Failures:
    """How often a fast path succeeded and failed. After too many failures, boto3 sends all requests, with a backoff."""

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


@dataclass(frozen=True, slots=True)
class BucketAddress:
    """Where requests for a bucket are sent: `origin` is scheme, host and port, `path` the bucket's path, which is empty
    if the host names the bucket. They are signed for `region`."""

    origin: str
    path: str
    region: str

    @classmethod
    def of(cls, url: str, authorization: str, bucket: str) -> BucketAddress | None:
        """The address in a request for the bucket itself, such as a listing, by its URL and signature; None if only
        boto3 can sign requests for this bucket."""
        parts, signed = urlsplit(url), _SIGNED.match(authorization)
        path = parts.path.rstrip("/")
        names_bucket = path.endswith(f"/{bucket}") if path else parts.netloc.startswith(f"{bucket}.")
        return cls(f"{parts.scheme}://{parts.netloc}", path, signed["region"]) if signed and names_bucket else None


class FastRequests:
    """Requests for one bucket with a client's credentials. Thread-safe.

    Unless the endpoint is set and the bucket is in the path, boto3 has to find out where the bucket is: no request is
    sent until boto3 has listed it. Then requests go where boto3's did.
    """

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._settings, self._bucket = client, settings, bucket
        self._lock, self._failures, self._sent = threading.Lock(), Failures(), threading.local()
        self._address: BucketAddress | None = None
        self._pool: urllib3.HTTPConnectionPool | None = None
        if settings.s3_endpoint_url is not None and settings.uses_path_style:
            endpoint = urlsplit(client.meta.endpoint_url)
            path = f"{endpoint.path.rstrip('/')}/{bucket}"
            self._open_pool(BucketAddress(f"{endpoint.scheme}://{endpoint.netloc}", path, client.meta.region_name))
        else:
            client.meta.events.register_last(f"before-send.{_LISTING}", self._note_address)
            client.meta.events.register_last(f"after-call.{_LISTING}", self._use_address)

    def _note_address(self, request: AWSPreparedRequest, **_: Any) -> None:
        """Called by boto3 before it sends a listing, in the same thread as `_use_address`."""
        authorization = request.headers.get("Authorization", "")
        text = authorization.decode() if isinstance(authorization, bytes) else str(authorization)
        self._sent.address = BucketAddress.of(request.url, text, self._bucket)

    def _use_address(self, http_response: Any, **_: Any) -> None:
        """Called by boto3 after a listing, even if that failed."""
        address: BucketAddress | None = getattr(self._sent, "address", None)
        if http_response.status_code == 200 and address is not None and self._address is None:
            self._open_pool(address)

    def _open_pool(self, address: BucketAddress) -> None:
        if get_environ_proxies(address.origin):  # only boto3 uses proxies
            return
        verify = ca_bundle_of(self._client) or get_cert_path(True)
        self._pool = urllib3.PoolManager(
            maxsize=self._settings.connections,
            retries=False,
            timeout=urllib3.Timeout(connect=self._settings.connect_timeout, read=self._settings.read_timeout),
            ca_certs=verify,
        ).connection_from_url(address.origin)
        self._address = address

    def copy(self, source: Mapping[str, str], key: str, conditions: Mapping[str, str]) -> str | None:
        """Copy from `source` (`Bucket`, `Key`) with conditions as headers; returns the tag, or None if boto3 must copy
        the object."""
        copy_source = f"{source['Bucket']}/{quote(source['Key'], safe='/~')}"
        headers = {"x-amz-copy-source": copy_source, **conditions}
        try:
            body = self._send("PUT", f"/{quote(key, safe='/~')}", headers)
        except FallBackToBoto3:
            return None
        match = _ETAG.search(body) if body is not None else None
        return None if match is None else match.group(1).decode("ascii", "replace")

    def list(self, parameters: Mapping[str, str]) -> bytes | None:
        """The response to ListObjectsV2 with these parameters; None if no request was sent.

        Raises `FallBackToBoto3` for a failed request.
        """
        query = "&".join(
            f"{name}={quote(value, safe='-_.~')}" for name, value in {"list-type": "2", **parameters}.items()
        )
        return self._send("GET", f"?{query}", {})

    def read(self, key: str) -> bytes | None:
        """A whole object; None if no request was sent. Raises `FallBackToBoto3` for a failed request."""
        return self._send("GET", f"/{quote(key, safe='/~')}", {}, max_bytes=size_limit(key).max_bytes)

    def _send(
        self, method: str, key_or_query: str, headers: Mapping[str, str], *, max_bytes: int = MAX_RESPONSE_BYTES
    ) -> bytes | None:
        """The body of a response with status 200; None if no request was sent. Raises `FallBackToBoto3` otherwise."""
        address, pool = self._address, self._pool
        if address is None or pool is None or self._failures.too_many:
            return None
        path = f"{address.path}{key_or_query}"
        if not address.path:
            path = f"/{key_or_query.removeprefix('/')}"
        if path.startswith("//"):  # could be mistaken for a host
            return None
        try:
            request = AWSRequest(method=method, url=f"{address.origin}{path}", headers=headers)
            with self._lock:  # only one thread renews expiring credentials
                credentials = self._client._request_signer._credentials.get_frozen_credentials()  # type: ignore[attr-defined]
            S3SigV4Auth(credentials, "s3", address.region).add_auth(request)
            request_headers: dict[str, Any] = dict(request.headers.items())
            if method == "PUT":
                request_headers["Content-Length"] = "0"
            response = pool.urlopen(
                method, path, headers=request_headers, redirect=False, decode_content=False, preload_content=False
            )
            if int(response.headers.get("Content-Length", 0)) > max_bytes:
                response.close()  # instead of reading it; boto3 reports it
                raise FallBackToBoto3
            body, is_success = response.read(), response.status == 200
        except FallBackToBoto3:
            raise
        except Exception as error:  # boto3 gets the same error, and reports it
            self._failures.add()
            raise FallBackToBoto3 from error
        if not is_success:
            if response.status >= 500:
                self._failures.add()
            raise FallBackToBoto3
        self._failures.succeeded += 1
        return body
