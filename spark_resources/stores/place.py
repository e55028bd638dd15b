"""A namespace and how to reach its store, as a value that travels to executors."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from spark_resources.model import Namespace
from spark_resources.records.json_records import Records
from spark_resources.records.signing import Seal
from spark_resources.stores import open_store
from spark_resources.stores.base import Quirks, Store
from spark_resources.stores.settings import StoreSettings


@functools.lru_cache(maxsize=64)
def _opened(namespace: Namespace, settings: StoreSettings, quirks: Quirks | None) -> Store:
    return open_store(namespace, settings, quirks=quirks)


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace and how to reach its store: small, picklable, opened once in each process.

    `quirks` are what a probe found of the store; None where the provider's own are relied on. `seal` signs the records
    of a namespace; None where no signing key is set.
    """

    namespace: Namespace
    settings: StoreSettings
    quirks: Quirks | None = None
    seal: Seal | None = field(default=None, repr=False, compare=False)

    def store(self) -> Store:
        return _opened(self.namespace, self.settings, self.quirks)

    def records(self) -> Records:
        return Records(self.store(), self.seal)
