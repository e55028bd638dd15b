"""Objects in buckets of S3, Google Cloud Storage or Azure, accessed through the same stores that marks use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from spark_resources.errors import NotFound, WrongUsage
from spark_resources.lakefs_sandbox.errors import bad_request, no_data
from spark_resources.lakefs_sandbox.objects import ExternalObject, Write
from spark_resources.model import Namespace
from spark_resources.stores import Store, open_store
from spark_resources.stores.settings import StoreSettings

BLOCK_STORE_TYPES = {"s3": "s3", "gs": "gs", "https": "azure", "http": "azure"}  # lakeFS's block store type, by scheme
# the prefix of the store's settings, by scheme
SETTING_PREFIXES = {"s3": "s3_", "gs": "gcs_", "https": "azure_", "http": "azure_"}


@dataclass(frozen=True, slots=True)
class StorePlace:
    """An object store, and the URI under which repositories get their default namespaces, such as
    `s3://bucket/prefix`."""

    uri: str
    settings: StoreSettings

    def __post_init__(self) -> None:
        match = re.match(r"(s3|gs)://[^/]|https?://[^/]+/[^/]", self.uri)  # the bucket; the account and container
        if match is None:
            raise WrongUsage(
                f"'{self.uri}' is not a location in an object store: expected s3://bucket/prefix, gs://bucket/prefix "
                "or https://account.blob.core.windows.net/container/prefix"
            )

    @property
    def scheme(self) -> str:
        return self.uri.partition("://")[0]


_UNESCAPED = "/$&+,:;=@"  # unescaped in a URL's path, in addition to letters, digits and -_.~


class StoreBlockStore:
    """Namespaces in the buckets of one store. Times are the store's own."""

    def __init__(self, place: StorePlace) -> None:
        self.kind, self.scheme = BLOCK_STORE_TYPES[place.scheme], f"{place.scheme}://"
        self.default_prefix = place.uri.rstrip("/") + "/"
        self._settings = place.settings

    def objects(self, storage_namespace: str) -> StoreObjects:
        return StoreObjects(storage_namespace, self._settings)


class StoreObjects:
    """The objects of a namespace in an object store."""

    def __init__(self, storage_namespace: str, settings: StoreSettings) -> None:
        self.storage_namespace = storage_namespace.rstrip("/")
        self._settings = settings
        self._store = _open_shared(storage_namespace, settings)

    def location(self, key: str) -> str:
        """The location as the server reports it, which for Azure always begins with https://."""
        return f"{_reported_uri(self.storage_namespace)}/{key}"

    def resolve_address(self, address: str) -> str:
        """The address as the server resolves it. For S3 and GCS, the server parses it as a URL (formats §2).

        The user and the query are dropped, and the path is unescaped if escaping it again yields the original.
        """
        scheme, _, rest = address.partition("://")
        if scheme not in ("s3", "gs"):
            return address
        host, _, path = rest.partition("?")[0].partition("/")
        unescaped = unquote(path)
        return (
            f"{scheme}://{host.rpartition('@')[2]}/{unescaped if quote(unescaped, safe=_UNESCAPED) == path else path}"
        )

    def has(self, key: str) -> bool:
        try:
            self._store.stat(key)
        except NotFound:
            return False
        return True

    def read(self, key: str) -> bytes:
        return _read(self._store, key)

    def read_external(self, address: str) -> bytes:
        return _read(*self._bucket_and_key(address))

    def external_objects(self, address: str) -> Iterator[ExternalObject]:
        bucket, prefix = self._bucket_and_key(address)
        for page in bucket.pages(prefix):
            for listed in page.objects:
                key = listed.key[len(prefix) :]
                yield ExternalObject(address + key, key, listed.size, listed.modified, listed.checksum or "")

    def write(self, key: str, data: bytes) -> None:
        self._store.write(key, data)

    def writing(self) -> AbstractContextManager[Write]:
        return nullcontext(self.write)

    def _bucket_and_key(self, address: str) -> tuple[Store, str]:
        """The whole bucket or container of a full address, as a store, and the key in it."""
        scheme = _reported_uri(self.storage_namespace).partition("://")[0]
        depth = 2 if scheme == "https" else 1  # for Azure, the account and the container
        parts = address.removeprefix(f"{scheme}://").split("/", depth)
        if not address.startswith(f"{scheme}://") or not all(parts[:depth]) or len(parts) < depth:
            raise bad_request(f"{address}: the sandbox supports only {scheme}:// addresses")
        bucket = f"{scheme}://{'/'.join(parts[:depth])}"
        return open_store(Namespace.parse(bucket), self._settings), "".join(parts[depth:])


def _reported_uri(uri: str) -> str:
    return f"https://{uri.removeprefix('http://')}" if uri.startswith("http://") else uri


@lru_cache(maxsize=64)
def _open_shared(storage_namespace: str, settings: StoreSettings) -> Store:
    """A store that all requests share, because opening one takes several times as long as most requests."""
    return open_store(Namespace.parse(storage_namespace), settings)


def _read(store: Store, key: str) -> bytes:
    try:
        return store.read(key)
    except NotFound:
        raise no_data() from None
    except WrongUsage as error:
        raise bad_request(str(error)) from None
