"""The stores that the test suite runs over, each with its capabilities, and the reason for each capability that it
lacks."""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from spark_resources.model import Namespace
from spark_resources.settings import Settings
from spark_resources.stores import Capabilities, Store, StoreSettings, keys, open_store
from spark_resources.stores.retry import NO_RETRIES
from tests.support.azurite import Azurite
from tests.support.fake_gcs import FakeGCS
from tests.support.s3_servers import S3Server

_serial = itertools.count()


@dataclass(frozen=True)
class Provider:
    """One kind of store: how to reach it, where it differs from an ideal store, and why.

    `reasons` has a sentence for each capability that the store lacks. `root` is the beginning of its namespaces, before
    the bucket. `wrong_credentials` are settings that it refuses, and `credentials` is the name of the settings to
    check. `missing` is a namespace without a bucket, for a store whose `root` contains one.
    """

    name: str
    root: str
    settings: StoreSettings
    capabilities: Capabilities
    reasons: dict[str, str]
    make_place: Callable[[str], None]
    wrong_credentials: tuple[dict[str, str], ...] = ()
    credentials: str = ""
    missing: str = ""

    def uri(self, path: str = "ns") -> str:
        """A new namespace, in a bucket (or folder) shared with others."""
        return self._place(f"shared-bucket/{next(_serial)}/{path}")

    def bucket_uri(self) -> str:
        """A namespace with its own bucket (or folder)."""
        return self._place(f"bucket-{next(_serial)}")

    def _place(self, place: str) -> str:
        self.make_place(place)
        return self.root + place

    def nowhere(self) -> str:
        """A namespace whose bucket (or folder) doesn't exist."""
        return self.missing or f"{self.root}no-such-place/ns"

    def open(self, uri: str, *, capabilities: Capabilities | None = None) -> Store:
        """The store of a namespace, with the declared capabilities unless others are given."""
        return open_store(
            Namespace.parse(uri),
            self.settings,
            capabilities=self.capabilities if capabilities is None else capabilities,
        )

    def needs(self, capability: str, *, has: bool) -> None:
        """Skip the test, with the declared reason, if the store lacks a required capability."""
        if not has:
            pytest.skip(f"{self.name}: {self.reasons[capability]}")


def local(folder: Path) -> Provider:
    def make_place(path: str) -> None:
        (folder / path).mkdir(parents=True)

    return Provider(
        name="local",
        root="local://",
        settings=StoreSettings(local_path=str(folder)),
        capabilities=Capabilities(
            reports_missing_deletes=True,
            time_resolution=timedelta(milliseconds=10),
            unsupported_keys=frozenset(
                {
                    keys.EMPTY_SEGMENT,
                    keys.LEADING_SLASH,
                    keys.TRAILING_SLASH,
                    keys.DOT_SEGMENT,
                    keys.NUL,
                    keys.LONG_SEGMENT,
                    keys.OBJECT_AND_FOLDER,
                }
            ),
        ),
        reasons={
            "unsupported_keys": "a path has no empty and no dot segments, no NUL, and at most 255 bytes a segment",
            "md5_etags": "a file has no ETag",
            keys.OBJECT_AND_FOLDER: "one name is a file or a folder",
            "credentials": "a folder has no credentials; test_local has its rights",
        },
        make_place=make_place,
    )


SEAWEEDFS_UNSUPPORTED_KEYS = frozenset(
    {
        keys.EMPTY_SEGMENT,
        keys.LEADING_SLASH,
        keys.TRAILING_SLASH,
        keys.DOT_SEGMENT,
        keys.NUL,
        keys.LONG_SEGMENT,
        keys.BACKSLASH,
    }
)


def seaweedfs(server: S3Server) -> Provider:
    return Provider(
        name="seaweedfs",
        root="s3://",
        settings=server.settings(),
        capabilities=Capabilities(
            byte_order=False,
            md5_etags=True,
            unsupported_keys=SEAWEEDFS_UNSUPPORTED_KEYS,
        ),
        reasons={
            "byte_order": "it lists a/b before a-b, as it walks folders; and start_after=a loses a/b",
            "unsupported_keys": (
                "it cleans keys as paths: a//b and a\\b are written as a/b, and deleting a//b deletes a/b"
            ),
        },
        make_place=lambda path: server.make_bucket(path.split("/")[0]),
        wrong_credentials=({"s3_access_key_id": "AKIANOBODY"}, {"s3_secret_access_key": "wrong"}),
        credentials="LAKEGC_S3_",
    )


def moto(server: S3Server) -> Provider:
    return Provider(
        name="moto",
        root="s3://",
        settings=server.settings(),
        capabilities=Capabilities(md5_etags=True, unsupported_keys=frozenset({keys.NEWLINE})),
        reasons={
            "unsupported_keys": "its web framework has no route for a path with a newline",
            "credentials": "it takes any credentials",
        },
        make_place=lambda path: server.make_bucket(path.split("/")[0]),
    )


def gcs(server: FakeGCS) -> Provider:
    return Provider(
        name="gcs",
        root="gs://",
        settings=server.settings(),
        capabilities=Capabilities(reports_missing_deletes=True, delete_batch=100),
        reasons={
            "md5_etags": "the checksum of an object is its CRC32C",
            "unsupported_keys": "it holds every kind of key",
            "credentials": "it takes any credentials",
        },
        make_place=lambda path: server.make_bucket(path.split("/")[0]),
    )


REAL_GCS = "LAKEGC_TEST_GCS"  # a namespace in a real bucket, such as gs://bucket/tests, to run the suite in


def real_gcs(uri: str) -> Provider:
    """A real account, with the settings and credentials that lakegc itself finds."""
    return Provider(
        name="gcs",
        root=f"{uri.rstrip('/')}/{uuid.uuid4().hex}/",
        settings=Settings.load(os.environ, Path.home()).store_settings(),
        capabilities=Capabilities(
            reports_missing_deletes=True,
            delete_batch=100,
            ramp=1_000.0,
            unsupported_keys=frozenset({keys.NEWLINE, keys.CARRIAGE_RETURN}),
        ),
        reasons={
            "md5_etags": "the checksum of an object is its CRC32C",
            "unsupported_keys": "names have no line ends",
            "credentials": "there is one way only to have none",
        },
        make_place=lambda path: None,
        wrong_credentials=({"gcs_anonymous": "true"},),
        credentials="LAKEGC_GCS_",
        missing=f"gs://no-such-place-{uuid.uuid4().hex}/ns",
    )


AZURE_UNSUPPORTED_KEYS = frozenset(
    {
        keys.DOT_SEGMENT,
        keys.DOT_AT_END,
        keys.BACKSLASH,
        keys.NUL,
        keys.NEWLINE,
        keys.CARRIAGE_RETURN,
        keys.CONTROL,
        keys.NOT_XML,
    }
)
AZURE_CAPABILITIES = Capabilities(
    byte_order=False,
    reports_missing_deletes=True,
    delete_batch=256,
    md5_etags=True,
    unsupported_keys=AZURE_UNSUPPORTED_KEYS,
)
AZURE_REASONS = {
    "byte_order": "it can't begin in the middle, and hierarchical accounts list as they walk (Azurite as UTF-16 sorts)",
    "unsupported_keys": "Azure takes no control characters, a backslash for a slash, and no dot at the end of a name",
    "credentials": "the account is in the namespace, so that only its key can be wrong",
}


def azure(server: Azurite) -> Provider:
    return Provider(
        name="azure",
        root=f"https://{server.account}.blob.core.windows.net/",
        settings=server.settings(),
        capabilities=AZURE_CAPABILITIES,
        reasons=AZURE_REASONS,
        make_place=lambda path: server.make_container(path.split("/")[0]),
        wrong_credentials=({"azure_account_key": "bm90IHRoaXMgb25l"},),
        credentials="LAKEGC_AZURE_",
    )


REAL_AZURE = "LAKEGC_TEST_AZURE"  # a namespace in a real account, such as https://a.blob.core.windows.net/c/tests


def real_azure(uri: str) -> Provider:
    """A real account, with the settings and credentials that lakegc itself finds. If its capabilities differ, the tests
    fail."""
    return Provider(
        name="azure",
        root=f"{uri.rstrip('/')}/{uuid.uuid4().hex}/",
        settings=Settings.load(os.environ, Path.home()).store_settings(),
        capabilities=AZURE_CAPABILITIES,
        reasons=AZURE_REASONS,
        make_place=lambda path: None,
        wrong_credentials=({"azure_account_key": "bm90IHRoaXMgb25l"},),
        credentials="LAKEGC_AZURE_",
        missing=f"{'/'.join(uri.split('/')[:3])}/no-such-place-{uuid.uuid4().hex}/ns",
    )


def all_keys(store: Store, prefix: str = "", **options: object) -> list[str]:
    """Every key under a prefix, in the store's order."""
    return [entry.key for page in store.pages(prefix, **options) for entry in page.objects]  # type: ignore[arg-type]


def write_all(store: Store, wanted: list[str]) -> None:
    """Write an object for each key, with the key as its content."""
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda key: store.write(key, key.encode()), wanted))


@dataclass
class FixedServer:
    """A server that gives the same response to every request, to test responses that no working store sends."""

    url: str
    seen: list[tuple[str, str]]

    def settings(self, **changes: object) -> StoreSettings:
        known: dict[str, object] = {
            "azure_endpoint_url": f"{self.url}/account",
            "azure_account_key": "YW55",
            "gcs_endpoint_url": self.url,
            "gcs_anonymous": True,
            "s3_endpoint_url": self.url,
            "s3_access_key_id": "any",
            "s3_secret_access_key": "any",
            "connect_timeout": 2.0,
            "read_timeout": 0.5,
            "retry": NO_RETRIES,
        }
        return StoreSettings.model_validate(known | changes)


@contextmanager
def replying(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[FixedServer]:
    """A server on a free loopback port that sends this response to every request. It records method and path."""
    requests: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"

        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append((self.command, self.path))
            self.send_response_only(status)
            fields = {"Content-Length": str(len(body)), "Date": self.date_time_string(), **(headers or {})}
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = respond  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield FixedServer(f"http://127.0.0.1:{server.server_port}", requests)
        finally:
            server.shutdown()
            thread.join()
