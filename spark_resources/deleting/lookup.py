"""Look up the current objects at keys that are about to be deleted, as cheaply as the store allows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import NotFound, WrongUsage
from spark_resources.mark_store.lease import boottime_s
from spark_resources.model import DATA, ROOT
from spark_resources.stores.arrow_pages import LISTED_OBJECTS, ArrowPage, arrow_pages, to_record_batch
from spark_resources.stores.base import Store, StoredObject
from spark_resources.stores.keys import xml_safe_prefix
from spark_resources.stores.parallel_listing import Part, pages_of_parts

FOUND = LISTED_OBJECTS
MAX_SINGLE_LOOKUPS = 8  # keys of one slice: up to this number are looked up one by one instead of by listing
CONCURRENT_SLICES = 8
CONCURRENT_LISTINGS_PER_SLICE = 4
CONCURRENT_STATS = 16
PAGE = 1_000  # keys in a page of a listing
IDLE_PAGES = 2  # pages without a wanted key after which a listing jumps
FLAT = (ROOT, DATA)  # slices that contain only the objects directly in the folder


@dataclass(slots=True)
class Lookup:
    """Looks up keys slice by slice. A slice that has to be listed completely is listed once for all of its keys.

    `started` is a time by `clock`, in seconds; everything that the last `look_up` returned was read after that.
    """

    store: Store
    clock: Callable[[], float] = boottime_s
    started: float = -float("inf")
    _slice_started: float = -float("inf")
    _slice: str | None = None
    _listed: pa.Table | None = field(default=None)
    _object_counts: dict[str, int] = field(default_factory=dict)  # by slice, from its last complete listing

    def look_up(self, wanted: pa.Table) -> pa.Table:
        """The objects (FOUND) that exist now at the wanted keys, and possibly others of the same slices.

        `wanted` has columns address and slice, and its rows are sorted by slice and address. Raises what the store
        raises: a failed page is never read as an absence (invariant 3).
        """
        self.started = self.clock()
        slices = pc.unique(wanted["slice"]).to_pylist()
        by_slice = [(name, wanted.filter(pc.equal(wanted["slice"], name))["address"].to_pylist()) for name in slices]
        jobs = by_slice
        parts: list[pa.Table] = []
        if jobs and self._must_list_slice(*jobs[-1]):
            *jobs, (last, _) = jobs
            parts.append(self._cached_slice(last))
        with ThreadPoolExecutor(max_workers=CONCURRENT_SLICES) as pool:
            parts += pool.map(lambda job: self._look_up_slice(*job), jobs)
        return pa.concat_tables(parts) if parts else FOUND.empty_table()

    def look_up_again(self, wanted: pa.Table) -> pa.Table:
        """Like `look_up`, but fast, for a few keys: nothing listed earlier is reused, and a slice is listed completely
        only if its last listing was short."""
        slices = pc.unique(wanted["slice"]).to_pylist()
        if not any(folder in FLAT for folder in slices) and self.store.capabilities.byte_order:
            return Lookup(self.store, self.clock).look_up(wanted)
        counts = zip(slices, (pc.sum(pc.equal(wanted["slice"], name)).as_py() for name in slices), strict=True)
        to_list = [name for name, keys in counts if self._is_faster_to_list(name, keys)]
        one_by_one = wanted.filter(pc.invert(pc.is_in(wanted["slice"], pa.array(to_list, pa.string()))))
        with ThreadPoolExecutor(max_workers=CONCURRENT_STATS) as pool:
            listed = list(pool.map(self._list_slice, to_list))
            found = pool.map(self._stat, one_by_one["address"].to_pylist())
            return pa.concat_tables([*listed, as_table(stored for stored in found if stored is not None)])

    def _is_faster_to_list(self, folder: str, keys: int) -> bool:
        """Whether listing the slice, page by page, should take less time than looking up this many of its keys."""
        return folder in self._object_counts and (self._object_counts[folder] // PAGE + 1) * CONCURRENT_STATS <= keys

    def _must_list_slice(self, folder: str, keys: list[str]) -> bool:
        return folder == self._slice or (
            len(keys) > MAX_SINGLE_LOOKUPS and (folder in FLAT or not self.store.capabilities.byte_order)
        )

    def _cached_slice(self, folder: str) -> pa.Table:
        if folder != self._slice or self._listed is None:
            self._slice_started = self.clock()
            self._listed, self._slice = self._list_slice(folder), folder
        self.started = min(self.started, self._slice_started)
        return self._listed

    def _look_up_slice(self, folder: str, keys: list[str]) -> pa.Table:
        if self._must_list_slice(folder, keys):
            return self._list_slice(folder)
        if len(keys) <= MAX_SINGLE_LOOKUPS:
            return as_table(stored for stored in map(self._stat, keys) if stored is not None)
        return pa.Table.from_batches(_list_by_jumps(self.store, folder, sorted(keys, key=str.encode)), schema=FOUND)

    def _list_slice(self, folder: str) -> pa.Table:
        part = Part(folder, flat=folder in FLAT)
        listed = pa.Table.from_batches(
            [page.objects for _, page in pages_of_parts(self.store, [part], at_once=CONCURRENT_LISTINGS_PER_SLICE)],
            schema=FOUND,
        )
        self._object_counts[folder] = len(listed)
        return listed

    def _stat(self, key: str) -> StoredObject | None:
        try:
            return self.store.stat(key)
        except (NotFound, WrongUsage):  # WrongUsage: this store can't hold such a key, so it doesn't exist
            return None


def _list_by_jumps(store: Store, folder: str, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Look up keys in byte order: list from just before the next key, and jump ahead when no wanted key is near."""
    wanted, position = pa.array(keys, pa.string()), 0
    while position < len(keys):
        first_position, idle = position, 0
        first = pa.scalar(keys[first_position], pa.string())
        for page in arrow_pages(store, folder, start_after=_just_before(keys[position])):
            addresses = page.objects.column("address")
            is_hit = pc.and_(pc.is_in(addresses, value_set=wanted), pc.greater_equal(addresses, first))
            hits = page.objects.filter(is_hit)
            yield hits
            idle = 0 if len(hits) else idle + 1
            if len(addresses):
                position = _position_after(keys, position, addresses[-1].as_py())
            if position == len(keys) or (
                position > first_position and idle >= IDLE_PAGES and _is_ahead(page, keys[position])
            ):
                break
        else:
            return  # the listing reached the end of the folder


def _position_after(keys: Sequence[str], position: int, last: str) -> int:
    """The position of the first key, from this one on, that sorts after the last key of a page."""
    return bisect_right(keys, last.encode(), lo=position, key=str.encode)


def _just_before(key: str) -> str:
    """A key that sorts shortly before the given one, for a listing to start after.

    It ends before the first character that XML can't carry: stores echo the key in their responses, and some don't
    escape such a character.
    """
    return xml_safe_prefix(key[:-1])


def _is_ahead(page: ArrowPage, key: str) -> bool:
    """Whether a listing that starts just before a key would start after the end of this page."""
    addresses = page.objects.column("address")
    return not len(addresses) or _just_before(key).encode() > addresses[-1].as_py().encode()


def as_table(objects: Iterable[StoredObject]) -> pa.Table:
    return pa.Table.from_batches([to_record_batch(objects)])
