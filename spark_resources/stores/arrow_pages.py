"""Listing pages as Arrow record batches, so that the rows of a large listing never become Python objects.

A store that can build Arrow pages directly has a method `arrow_pages` with the contract of `Store.pages`. For any other
store, this module converts its pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pyarrow as pa

from spark_resources.model import STORED_OBJECTS
from spark_resources.stores.base import Page, Store, StoredObject

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LISTED_OBJECTS = pa.schema([STORED_OBJECTS.field(name) for name in ("address", "size", "modified", "checksum")])


@dataclass(frozen=True, slots=True)
class ArrowPage:
    """A `Page` whose objects are rows of LISTED_OBJECTS, in the store's order."""

    objects: pa.RecordBatch
    prefixes: Sequence[str] = ()
    unreadable_names: int = 0


class ListsArrow(Protocol):
    """A store that builds Arrow pages directly."""

    def arrow_pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[ArrowPage]: ...


def arrow_pages(
    store: Store, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
) -> Iterator[ArrowPage]:
    """The pages of `store.pages` as Arrow; raises the same errors."""
    # looked up on the class, so that a wrapper that overrides `pages` is not bypassed
    native = getattr(type(store), "arrow_pages", None)
    if native is not None:
        yield from native(store, prefix, start_after=start_after, delimiter=delimiter, page_size=page_size)
        return
    for page in store.pages(prefix, start_after=start_after, delimiter=delimiter, page_size=page_size):
        yield ArrowPage(to_record_batch(page.objects), page.prefixes, page.unreadable_names)


def to_record_batch(objects: Iterable[StoredObject]) -> pa.RecordBatch:
    """One row of LISTED_OBJECTS per object."""
    rows = list(objects)
    columns: Sequence[Sequence[object]] = (
        [stored.key for stored in rows],
        [stored.size for stored in rows],
        [stored.modified for stored in rows],
        [stored.checksum for stored in rows],
    )
    arrays = [pa.array(values, type=field.type) for values, field in zip(columns, LISTED_OBJECTS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=LISTED_OBJECTS)


def to_page(page: ArrowPage) -> Page:
    """The page with one `StoredObject` per row; only for small numbers of objects."""
    keys, sizes, modified, checksums = page.objects.columns
    times = [_EPOCH + timedelta(microseconds=microseconds) for microseconds in modified.cast(pa.int64()).to_pylist()]
    rows = zip(keys.to_pylist(), sizes.to_pylist(), times, checksums.to_pylist(), strict=True)
    return Page([StoredObject(*row) for row in rows], page.prefixes, page.unreadable_names)
