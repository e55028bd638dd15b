"""Objects in buckets of one S3 endpoint, through the same store that marks are made with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache

from spark_resources.errors import NotThere, WrongUsage
from spark_resources.model import Namespace
from spark_resources.sandbox.objects import Outside, Write
from spark_resources.sandbox.problems import bad_request, no_data
from spark_resources.stores import Store, open_store
from spark_resources.stores.settings import StoreSettings

S3 = "s3://"


@dataclass(frozen=True, slots=True)
class S3Place:
    """An S3 endpoint, and the URI under which repositories are made that name no namespace, `s3://bucket/prefix`."""

    uri: str
    settings: StoreSettings

    def __post_init__(self) -> None:
        if not self.uri.startswith(S3) or not self.uri.removeprefix(S3).strip("/"):
            raise WrongUsage(f"'{self.uri}' is not a place in S3: expected s3://bucket or s3://bucket/prefix")


class S3BlockStore:
    """Namespaces in buckets of one S3 endpoint. Times are the store's own."""

    kind = "s3"
    scheme = S3

    def __init__(self, place: S3Place) -> None:
        self.default = place.uri.rstrip("/") + "/"
        self._settings = place.settings

    def objects(self, storage_namespace: str) -> S3Objects:
        return S3Objects(storage_namespace, self._settings)


class S3Objects:
    """The objects of a namespace in S3."""

    def __init__(self, storage_namespace: str, settings: StoreSettings) -> None:
        self.storage_namespace = storage_namespace.rstrip("/")
        self._settings = settings
        self._store = _opened(storage_namespace, settings)

    def location(self, key: str) -> str:
        return f"{self.storage_namespace}/{key}"

    def has(self, key: str) -> bool:
        try:
            self._store.stat(key)
        except NotThere:
            return False
        return True

    def read(self, key: str) -> bytes:
        return _stored(self._store, key)

    def read_elsewhere(self, address: str) -> bytes:
        return _stored(*self._elsewhere(address))

    def listed_elsewhere(self, address: str) -> Iterator[Outside]:
        bucket, prefix = self._elsewhere(address)
        for page in bucket.pages(prefix):
            for found in page.objects:
                key = found.key[len(prefix) :]
                yield Outside(address + key, key, found.size, found.modified, found.checksum or "")

    def write(self, key: str, data: bytes) -> None:
        self._store.write(key, data)

    def writing(self) -> AbstractContextManager[Write]:
        return nullcontext(self.write)

    def _elsewhere(self, address: str) -> tuple[Store, str]:
        """The whole bucket of a full address, and the key in it."""
        bucket, _, key = address.removeprefix(S3).partition("/")
        if not address.startswith(S3) or not bucket:
            raise bad_request(f"{address}: the sandbox reads addresses in S3 only")
        return open_store(Namespace.parse(S3 + bucket), self._settings), key


@lru_cache(maxsize=64)
def _opened(storage_namespace: str, settings: StoreSettings) -> Store:
    """A store for all requests: making one takes a multiple of what most of them ask."""
    return open_store(Namespace.parse(storage_namespace), settings)


def _stored(store: Store, key: str) -> bytes:
    try:
        return store.read(key)
    except NotThere:
        raise no_data() from None
    except WrongUsage as error:
        raise bad_request(str(error)) from None
