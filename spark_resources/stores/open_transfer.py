"""The transfers of a store, by its kind."""

from __future__ import annotations

import functools

from spark_resources.errors import WrongUsage
from spark_resources.stores.base import Store
from spark_resources.stores.transfer import Streams


def open_streams(store: Store) -> Streams:
    """The streams of an opened store."""
    kind = type(store).__name__
    if kind == "S3Store":
        from spark_resources.stores.s3.transfer import S3Streams

        return S3Streams(store)  # type: ignore[arg-type]
    if kind == "AzureStore":
        from spark_resources.stores.azure.transfer import AzureStreams

        return AzureStreams(store)  # type: ignore[arg-type]
    if kind == "GCSStore":
        from spark_resources.stores.gcs.transfer import GCSStreams

        return GCSStreams(store)  # type: ignore[arg-type]
    if kind == "LocalStore":
        from spark_resources.stores.local.transfer import LocalStreams

        return LocalStreams(store)  # type: ignore[arg-type]
    raise WrongUsage(f"lakegc can't copy from or to {store.where}: there is no streaming for {kind}")


@functools.lru_cache(maxsize=64)
def _known(store: Store) -> Streams:
    return open_streams(store)


def streams_of(store: Store) -> Streams:
    """As `open_streams`, once for each store of a process."""
    return _known(store)  # type: ignore[arg-type]
