"""Requests to S3 at a fraction of what boto3 takes for them, where an end point is set and the bucket is in the path.

Millions of small objects are copied, and many more keys listed, by requests whose most time is the client's own. What
isn't answered as it should be is left to boto3, which asks again, repeats what passes, and tells what is wrong.
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

_TAG = re.compile(
    rb"<CopyObjectResult[ >].*<ETag>(?:&quot;|&#34;|\")?([^<>&\"]+)(?:&quot;|&#34;|\")?</ETag>", re.DOTALL
)


class LeftToBoto3(Exception):
    """Raised where a request was sent and wasn't answered as it should be."""


@dataclass(slots=True)
class Failures:
    """How often a quick way failed: where that is too often, everything is left to boto3, which knows how to wait."""

    passed: int = 0
    failed: int = 0

    @property
    def too_many(self) -> bool:
        return self.failed >= 3 + self.passed // 1000

    def add(self) -> None:
        self.failed += 1

    def give_up(self) -> None:
        self.failed = 1 << 60


def certificates(client: S3Client) -> str | None:
    """The authorities that a client trusts, as a file; None for those that are usual."""
    session = getattr(getattr(client, "_endpoint", None), "http_session", None)
    verify = getattr(session, "_verify", None)
    return verify if isinstance(verify, str) else None


class QuickRequests:
    """Requests for one bucket with the credentials and the end point of a client. Safe to call from several threads."""

    def __init__(self, client: S3Client, settings: StoreSettings, bucket: str) -> None:
        self._client, self._region = client, client.meta.region_name
        self._base = urlsplit(client.meta.endpoint_url)
        self._path = f"{self._base.path.rstrip('/')}/{bucket}"
        self._pool = urllib3.PoolManager(
            maxsize=settings.connections,
            retries=False,
            timeout=urllib3.Timeout(settings.connect_timeout, settings.read_timeout),
            ca_certs=certificates(client),
        ).connection_from_url(client.meta.endpoint_url)
        self._lock, self._failures = threading.Lock(), Failures()

    @classmethod
    def of(cls, client: S3Client, settings: StoreSettings, bucket: str) -> QuickRequests | None:
        """None where boto3 has to find out where a bucket is."""
        if settings.s3_endpoint_url is None or not settings.uses_path_style:
            return None
        return cls(client, settings, bucket)

    def copy(self, place: Mapping[str, str], key: str, conditions: Mapping[str, str]) -> str | None:
        """Copy from a place (`Bucket`, `Key`) under conditions as headers; the copy's tag, None where it isn't told."""
        source = f"{place['Bucket']}/{quote(place['Key'], safe='/~')}"
        headers = {"x-amz-copy-source": source, **conditions}
        try:
            body = self._answered("PUT", f"{self._path}/{quote(key, safe='/~')}", headers)
        except LeftToBoto3:
            return None
        found = _TAG.search(body) if body is not None else None
        return None if found is None else found.group(1).decode("ascii", "replace")

    def list(self, asked: Mapping[str, str]) -> bytes | None:
        """The answer to ListObjectsV2 with these parameters; None where nothing was sent.

        Raises `LeftToBoto3`.
        """
        query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in {"list-type": "2", **asked}.items())
        return self._answered("GET", f"{self._path}?{query}", {})

    def _answered(self, method: str, path: str, headers: Mapping[str, str]) -> bytes | None:
        """The body of a good answer; None where nothing was sent."""
        if self._failures.too_many:
            return None
        try:
            request = AWSRequest(method=method, url=f"{self._base.scheme}://{self._base.netloc}{path}", headers=headers)
            with self._lock:  # credentials that expire are renewed by one
                credentials = self._client._request_signer._credentials.get_frozen_credentials()  # type: ignore[attr-defined]
            S3SigV4Auth(credentials, "s3", self._region).add_auth(request)
            sent: dict[str, Any] = dict(request.headers.items())
            if method == "PUT":
                sent["Content-Length"] = "0"
            answer = self._pool.urlopen(method, path, headers=sent, redirect=False)
            body, good = answer.data, answer.status == 200
        except Exception as error:  # whatever it is, boto3 meets it as well, and tells it
            self._failures.add()
            raise LeftToBoto3 from error
        if not good:
            if answer.status >= 500:
                self._failures.add()
            raise LeftToBoto3
        self._failures.passed += 1
        return body
