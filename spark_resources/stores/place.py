"""A namespace and how to reach its store, as a value that is sent to executors."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from spark_resources.model import Namespace
from spark_resources.records.json_records import Records
from spark_resources.records.signing import Seal
from spark_resources.stores import open_store
from spark_resources.stores.base import Capabilities, Store
from spark_resources.stores.settings import StoreSettings


@functools.lru_cache(maxsize=64)
def _cached_store(namespace: Namespace, settings: StoreSettings, capabilities: Capabilities | None) -> Store:
    return open_store(namespace, settings, capabilities=capabilities)


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace and how to reach its store: small, picklable, opened once in each process.

    `capabilities` are the findings of a probe; None means the provider's defaults. `seal` signs the namespace's
    records; None if no signing key is set. `server` is the name of the repository's lakeFS server, "" if it is the only
    one: records in the namespace don't contain it.
    """

    namespace: Namespace
    settings: StoreSettings
    capabilities: Capabilities | None = None
    seal: Seal | None = field(default=None, repr=False, compare=False)
    server: str = field(default="", compare=False)

    def store(self) -> Store:
        return _cached_store(self.namespace, self.settings, self.capabilities)

    def records(self) -> Records:
        return Records(self.store(), self.seal)
