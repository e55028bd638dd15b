"""Requests to a bucket in the host name, as on AWS: boto3 finds out where the bucket is, and faster requests then go
there."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response

from spark_resources.errors import Unavailable
from spark_resources.model import Namespace
from spark_resources.stores import Store
from spark_resources.stores.base import read_to_verify
from spark_resources.stores.s3.fast_requests import BucketAddress
from spark_resources.stores.s3.store import S3Store
from spark_resources.stores.settings import StoreSettings
from tests.support.certificates import Certificate, write_certificate
from tests.support.replay_server import serving
from tests.support.retry_policies import no_wait_policy

DOMAIN = "s3.lakegc.test"
LISTING = (
    "<?xml version='1.0'?><ListBucketResult><IsTruncated>false</IsTruncated><EncodingType>url</EncodingType><Contents>"
    "<Key>ns/data/x</Key><LastModified>2026-03-31T10:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>"
    "<Size>4</Size></Contents></ListBucketResult>"
)
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIA/20261127/{}/{}/aws4_request, SignedHeaders=host, Signature=0"


@dataclass
class Bucket:
    """A store that has `ns/data/x` in the bucket of its host name, and keeps the headers of all requests."""

    received: list[dict[str, str]] = field(default_factory=list)
    redirect: str = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.received.append({**request.headers, "path": request.url.path})
        response = Response(LISTING, media_type="application/xml")
        if self.redirect and request.url.path == "/ns/data/x":
            response = Response(status_code=307, headers={"Location": self.redirect})
        elif request.url.path == "/ns/data/x":
            response = Response(b"data", headers={"ETag": '"e"'})
        await response(scope, receive, send)

    def by_boto3(self) -> list[bool]:
        return ["Boto3" in headers["user-agent"] for headers in self.received]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("tls"), [DOMAIN, f"*.{DOMAIN}"])


@pytest.fixture
def bucket(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bucket, S3Store]]:
    """The bucket, and a store on it with temporary credentials. Names of this domain resolve to loopback."""
    real = socket.getaddrinfo

    def resolve(host: Any, *rest: Any, **named: Any) -> Any:
        is_test = str(host).endswith(DOMAIN)
        return real("127.0.0.1" if is_test else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    app = Bucket()
    with serving(app, ssl_certfile=str(certificate.certificate), ssl_keyfile=str(certificate.key)) as endpoint:
        settings = StoreSettings(
            s3_endpoint_url=endpoint.replace("127.0.0.1", DOMAIN),
            s3_path_style=False,
            s3_region="eu-north-7",
            s3_access_key_id="AKIA",
            s3_secret_access_key=SecretStr("secret"),
            s3_session_token=SecretStr("token"),
            s3_ca_bundle=str(certificate.certificate),
            connect_timeout=5,
            read_timeout=5,
            retry=no_wait_policy(2),
        )
        yield app, S3Store(Namespace.parse("s3://bucket/ns"), settings)


def keys(store: Store) -> list[str]:
    return [listed.key for page in store.pages("data/") for listed in page.objects]


def test_once_boto3_has_listed_the_bucket_the_fast_client_lists_and_reads(bucket: tuple[Bucket, S3Store]) -> None:
    """The other requests go to the same host, signed for the same region, and with the session token."""
    app, store = bucket

    assert read_to_verify(store, "data/x") == b"data"
    assert keys(store) == ["data/x"]
    assert app.by_boto3() == [True, True]
    app.received.clear()
    assert keys(store) == ["data/x"]
    assert read_to_verify(store, "data/x") == b"data"

    assert app.by_boto3() == [False, False]
    for headers in app.received:
        assert headers["host"].startswith(f"bucket.{DOMAIN}:")
        assert "/eu-north-7/s3/aws4_request" in headers["authorization"]
        assert headers["x-amz-security-token"] == "token"


def test_a_key_that_begins_with_a_slash_is_left_to_boto3(bucket: tuple[Bucket, S3Store]) -> None:
    """In a URL, it would look like another host."""
    app, store = bucket
    keys(store)
    app.received.clear()
    assert store.fast_requests.read("/elsewhere.test/x") is None
    assert app.received == []


def test_a_redirect_is_not_followed(bucket: tuple[Bucket, S3Store]) -> None:
    """No other host gets the session token."""
    app, store = bucket
    keys(store)
    elsewhere = Bucket()
    with serving(elsewhere) as endpoint:
        app.redirect = f"{endpoint}/ns/data/x"
        with pytest.raises(Unavailable):
            read_to_verify(store, "data/x")
    assert elsewhere.received == []


def test_with_a_proxy_boto3_sends_all_requests(bucket: tuple[Bucket, S3Store], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only boto3 knows how to use the proxy. Here, boto3's own connection is exempt from it."""
    app, store = bucket
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    for _ in range(2):
        keys(store)
    assert app.by_boto3() == [True, True]


@pytest.mark.parametrize(
    ("url", "service", "expected"),
    [
        ("https://lake.s3.eu-west-1.amazonaws.com/?list-type=2", "s3", ("https://lake.s3.eu-west-1.amazonaws.com", "")),
        ("https://s3.eu-west-1.amazonaws.com/lake?list-type=2", "s3", ("https://s3.eu-west-1.amazonaws.com", "/lake")),
        ("http://minio:9000/storage/lake?x", "s3", ("http://minio:9000", "/storage/lake")),
        ("https://lake--az1--x-s3.s3express-az1.amazonaws.com/?list-type=2", "s3express", None),
        ("https://other.s3.eu-west-1.amazonaws.com/?list-type=2", "s3", None),
        ("https://lakes.s3.eu-west-1.amazonaws.com/?list-type=2", "s3", None),
        ("https://s3.eu-west-1.amazonaws.com/other/lakes?list-type=2", "s3", None),
    ],
)
def test_only_a_plainly_signed_request_to_the_bucket_reveals_the_address_of_the_bucket(
    url: str, service: str, expected: tuple[str, str] | None
) -> None:
    address = BucketAddress.of(url, SIGNED.format("eu-west-1", service), "lake")
    assert address == (None if expected is None else BucketAddress(*expected, "eu-west-1"))


def test_a_request_without_a_signature_reveals_no_address() -> None:
    """A request with a signature for several regions doesn't show one either."""
    url = "https://lake.s3.eu-west-1.amazonaws.com/?list-type=2"
    for authorization in ("", SIGNED.format("eu-west-1", "s3").replace("HMAC", "ECDSA-P256")):
        assert BucketAddress.of(url, authorization, "lake") is None
