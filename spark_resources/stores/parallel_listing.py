"""Fast listing of folders: several are listed in parallel, and idle threads split a long one into ranges of keys.

Each page says where the next one begins, so a single listing is sequential. If a store is known to list in byte order,
a listing can start at any key. For any `b`, `(a, b]` and `(b, c]` together contain exactly the keys of `(a, c]`, so a
split requires no knowledge of the keys and can neither lose nor duplicate one.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import Unavailable, WrongUsage
from spark_resources.stores.arrow_pages import ArrowPage, arrow_pages
from spark_resources.stores.base import Store
from spark_resources.stores.local.store import LocalStore

CONCURRENT_LISTINGS = 8  # requests in flight in one process
PAGES_BEFORE_FIRST_SPLIT = 10  # a lakeFS slice has at most about 50
PAGES_BETWEEN_SPLITS = 2  # a split may cost a request that finds nothing
_LAST = "\U0010fffd"  # practically no name in a folder sorts after it
_PAGE_SIZE = 1000  # the most keys that a store lists in one page
_PROBES_PER_RANGE = 8
_MAX_FOLDERS_PER_PAGE = 10  # listing a flat range costs a request for each subfolder in it
_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E


@dataclass(frozen=True, slots=True)
class Part:
    """A range of a folder's keys: after `after`, up to and including `up_to` (in byte order; None means unbounded).

    With `flat`, it contains only the objects directly in the folder, otherwise everything below it.
    """

    folder: str
    flat: bool = False
    after: str | None = None
    up_to: str | None = None


def can_split_listings(store: Store) -> bool:
    """Whether listing key ranges in parallel is possible and pays off, which it doesn't for a local folder."""
    return store.capabilities.byte_order and not isinstance(store, LocalStore)


def pages_of_parts(
    store: Store,
    parts: Sequence[Part],
    *,
    at_once: int = CONCURRENT_LISTINGS,
    page_size: int = _PAGE_SIZE,
    pages_before_first_split: int = PAGES_BEFORE_FIRST_SPLIT,
) -> Iterator[tuple[str, ArrowPage]]:
    """All pages of these parts, each with its folder, in no particular order. Raises as `Store.pages` does.

    Up to `at_once` ranges are listed in parallel; a range is split after `pages_before_first_split` pages at the
    earliest. If a flat part is split, not all of its subfolders are reported. Unreadable names at a split may be
    counted twice. Raises `Unavailable` if parts were split and the store does not list in byte order after all, and
    `WrongUsage` for a part with bounds on a store that is known not to list in byte order.
    """
    byte_order, may_split = store.capabilities.byte_order, can_split_listings(store)
    if not byte_order and any(part.after is not None or part.up_to is not None for part in parts):
        raise WrongUsage(
            f"{store.where} doesn't list keys in byte order, so key ranges can't be listed. List whole folders."
        )
    if isinstance(store, LocalStore) or at_once == 1 or not parts or (len(parts) == 1 and not may_split):
        for part in parts:
            walk = _Walk(part, byte_order)
            for page in walk.pages(store, page_size, threading.Lock()):
                yield part.folder, page
        return
    yield from _ParallelListing(store, parts, may_split, page_size, pages_before_first_split).pages(at_once)


# --- one range --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    """The listing of one range, page by page. `cursor` and `up_to` change only under the lock passed to `pages`."""

    part: Part
    byte_order: bool  # whether the store is known to list in byte order
    cursor: str | None = field(default=None)  # the last key of the latest page
    up_to: str | None = field(default=None)
    split_from: _Walk | None = field(default=None)
    pages_with_keys: int = 0
    pages_since_split: int = 0  # pages with keys since the last split
    prefixes_seen: int = 0

    def __post_init__(self) -> None:
        self.cursor, self.up_to = self.part.after, self.part.up_to

    def pages(self, store: Store, page_size: int, lock: threading.Lock | threading.Condition) -> Iterator[ArrowPage]:
        start: str | None = self.part.after
        # a range is listed without a delimiter, because not every store's order with a delimiter is known; the loop
        # skips subfolders instead
        uses_delimiter = self.part.flat and start is None and self.part.up_to is None
        while True:
            for page in arrow_pages(
                store,
                self.part.folder,
                start_after=start,
                delimiter="/" if uses_delimiter else None,
                page_size=page_size,
            ):
                with lock:
                    page_in_range, ended = self._advance(page)
                yield page_in_range
                if ended:
                    return
                resume_after = None if uses_delimiter else self._end_of_current_subfolder(page)
                if resume_after is not None:
                    if self.up_to is not None and not _is_after(self.up_to, resume_after):
                        return
                    break
            else:
                return
            start = resume_after

    def _advance(self, page: ArrowPage) -> tuple[ArrowPage, bool]:
        """Advance by one page. Returns the page's rows within the range, and whether the range ends on this page."""
        objects = page.objects
        if not self.byte_order:
            return page, False
        keys = objects.column(0)
        if not self._is_in_order(keys):
            if self.up_to is not None or self.part.after is not None:
                raise _out_of_order(self.part.folder)
            self.byte_order, self.cursor = False, None  # a single listing from start to end needs no order
            return page, False
        if len(keys):  # the order of common prefixes is not known
            self.cursor = keys[-1].as_py()
            self.pages_with_keys, self.pages_since_split = self.pages_with_keys + 1, self.pages_since_split + 1
        ended = self.cursor is not None and self.up_to is not None and _is_after(self.cursor, self.up_to)
        if ended:
            objects = objects.filter(pc.less_equal(keys, pa.scalar(self.up_to)))
        if self.part.flat:
            name = pc.utf8_slice_codeunits(objects.column(0), start=len(self.part.folder))
            objects = objects.filter(pc.invert(pc.match_substring(name, "/")))
        self.prefixes_seen += len(page.prefixes)
        return ArrowPage(objects, page.prefixes, page.unreadable_names), ended

    def _is_in_order(self, keys: pa.StringArray) -> bool:
        """Whether a page's keys are in byte order and follow those of the previous page."""
        if not pc.all(pc.less(keys[:-1], keys[1:]), min_count=0).as_py():
            return False
        return not len(keys) or self.cursor is None or _is_after(keys[0].as_py(), self.cursor)

    def _end_of_current_subfolder(self, page: ArrowPage) -> str | None:
        """The end of the subfolder with the page's last key, where a flat listing resumes.

        None if the listing isn't flat or that key is in no subfolder.
        """
        if not self.part.flat or not len(page.objects):
            return None
        last: str = page.objects.column(0)[-1].as_py()
        resume_after = _end_of_subfolder(last, self.part.folder)
        return resume_after if resume_after is not None and _is_after(resume_after, last) else None

    def split(self) -> _Walk | None:
        """Move the second half of the remaining range to a new walk, and return that walk.

        None if the remaining range is too short or has no known start yet.
        """
        if self.cursor is None:
            return None
        middle = key_between(self.cursor, self.up_to, len(self.part.folder))
        if middle is None:
            return None
        other = _Walk(replace(self.part, after=middle, up_to=self.up_to), self.byte_order, split_from=self)
        self.up_to, self.pages_since_split = middle, 0
        return other


def _out_of_order(folder: str) -> Unavailable:
    return Unavailable(
        f"the listing of {folder!r} doesn't return keys in byte order, unlike this store's earlier listings, so keys "
        "may be missing. Try again. If the error persists, the store's behavior has changed since lakegc probed it."
    )


def _is_after(key: str, other: str) -> bool:
    return key.encode() > other.encode()


def key_between(low: str, high: str | None, prefix_length: int) -> str | None:
    """A string about half-way between `low` and `high`; None if they are too close for a split to pay off.

    Both begin with the same `prefix_length` characters, and so does the result. Without `high`, the range ends with the
    last string that begins with those characters.
    """
    at = prefix_length
    if high is not None:
        while at < min(len(low), len(high)) and low[at] == high[at]:
            at += 1
    upper = ord(high[at]) if high is not None and at < len(high) else None
    while at < len(low):
        lower = ord(low[at])
        if upper is None:
            upper = _LAST_PRINTABLE + 1 if lower <= _LAST_PRINTABLE else ord(_LAST)
        middle = _printable((lower + upper) // 2, lower)
        if lower < middle < upper:
            between = low[:at] + chr(middle)
            return between if _is_after(between, low) and (high is None or _is_after(high, between)) else None
        at, upper = at + 1, None
    return None


def _printable(code: int, above: int) -> int:
    """A code point near `code`, greater than `above` if possible, but no control character or surrogate."""
    if code < _FIRST_PRINTABLE:
        return _FIRST_PRINTABLE
    if _LAST_PRINTABLE < code < 0xA0:
        return _LAST_PRINTABLE if above < _LAST_PRINTABLE else 0xA0
    return 0xD7FF if 0xD800 <= code < 0xE000 and above < 0xD7FF else 0xE000 if 0xD800 <= code < 0xE000 else code


def split_part(store: Store, part: Part, *, count: int, page_size: int = _PAGE_SIZE) -> list[Part]:
    """Up to `count` ranges that contain keys and together cover the part.

    Only the part itself if it is short or `can_split_listings` is False. Takes a few small requests per range.
    Raises as `Store.pages` does.
    """
    if not can_split_listings(store) or (last_key := _last_key_of_full_page(store, part, page_size)) is None:
        return [part]
    boundaries: list[str] = []
    gaps: deque[tuple[str, str | None]] = deque([(last_key, part.up_to)])
    for _ in range(_PROBES_PER_RANGE * count):
        if not gaps or len(boundaries) + 1 >= count:
            break
        low, high = gaps.popleft()
        middle = key_between(low, high, len(part.folder))
        if middle is None:
            continue
        next_key = _first_after(store, part, middle)
        if next_key is None or (high is not None and not _is_after(high, next_key)):
            gaps.appendleft((low, middle))
        else:
            boundaries.append(middle)
            gaps += [(low, middle), (next_key, high)]
    bounds = [part.after, *sorted(boundaries, key=str.encode), part.up_to]
    return [replace(part, after=after, up_to=up_to) for after, up_to in pairwise(bounds)]


def all_fit_in_one_page(store: Store, parts: Sequence[Part]) -> bool:
    """Whether each part, ignoring its bounds, has at most one page. Lists in parallel; raises as `Store.pages` does."""

    def fits_in_one_page(part: Part) -> bool:
        pages = arrow_pages(store, part.folder, delimiter="/" if part.flat else None, page_size=_PAGE_SIZE)
        return next(pages, None) is None or next(pages, None) is None

    with ThreadPoolExecutor(CONCURRENT_LISTINGS) as pool:
        return all(pool.map(fits_in_one_page, parts))


def _last_key_of_full_page(store: Store, part: Part, size: int) -> str | None:
    """The last key of the part's first page, or None if that page isn't full or has too many subfolders."""
    page = next(arrow_pages(store, part.folder, delimiter="/" if part.flat else None, page_size=size), None)
    if page is None or not len(page.objects) or len(page.objects) + len(page.prefixes) < size:
        return None
    if len(page.prefixes) > _MAX_FOLDERS_PER_PAGE:
        return None
    last: str = page.objects.column(0)[-1].as_py()
    return last


def _first_after(store: Store, part: Part, key: str) -> str | None:
    """The first key after `key` in the part's folder; if it is in a subfolder of a flat part, the subfolder's end."""
    pages = arrow_pages(store, part.folder, start_after=key, page_size=1)
    first: str | None = next((page.objects.column(0)[0].as_py() for page in pages if len(page.objects)), None)
    return first if first is None or not part.flat else _end_of_subfolder(first, part.folder) or first


def _end_of_subfolder(key: str, folder: str) -> str | None:
    """A string after all keys of the direct subfolder that contains this key; None if it is in no subfolder."""
    slash = key.find("/", len(folder))
    return None if slash < 0 else key[: slash + 1] + _LAST


# --- in parallel ------------------------------------------------------------------------------------------------------


class _ParallelListing:
    """Threads that list parts. An idle thread takes over half of another's range; an error in any of them stops all."""

    def __init__(
        self, store: Store, parts: Sequence[Part], may_split: bool, page_size: int, pages_before_first_split: int
    ) -> None:
        self._store, self._may_split, self._page_size, self._pages_before_first_split = (
            store,
            may_split,
            page_size,
            pages_before_first_split,
        )
        self._pending_walks = deque(_Walk(part, store.capabilities.byte_order) for part in parts)
        self._active_walks: list[_Walk] = []
        self._changed = threading.Condition()  # guards the two fields above, and every walk's cursor and end
        self._results: queue.Queue[tuple[str, ArrowPage] | BaseException | None] = queue.Queue()
        self._free_slots = threading.Semaphore(0)
        self._stopped = False

    def pages(self, at_once: int) -> Iterator[tuple[str, ArrowPage]]:
        self._free_slots = threading.Semaphore(2 * at_once)  # for pages waiting to be consumed
        with ThreadPoolExecutor(at_once, thread_name_prefix="listing") as pool:
            for _ in range(at_once):
                pool.submit(self._work)
            try:
                running = at_once
                while running:
                    result = self._results.get()
                    if isinstance(result, BaseException):
                        raise result
                    if result is None:
                        running -= 1
                    else:
                        self._free_slots.release()
                        yield result
            finally:
                with self._changed:
                    self._stopped = True
                    self._changed.notify_all()
                self._free_slots.release(at_once)

    def _work(self) -> None:
        try:
            while (walk := self._next()) is not None:
                self._list(walk)
        except BaseException as error:
            self._results.put(error)
        else:
            self._results.put(None)

    def _list(self, walk: _Walk) -> None:
        pages = walk.pages(self._store, self._page_size, self._changed)
        try:
            for page in pages:
                with self._changed:
                    self._changed.notify_all()
                self._free_slots.acquire()
                if self._stopped:
                    return
                self._results.put((walk.part.folder, page))
        finally:
            with suppress(Exception):
                pages.close()  # type: ignore[attr-defined]
            with self._changed:
                self._active_walks.remove(walk)
                if walk.split_from is not None and not walk.pages_with_keys:
                    # this half was empty, so split the other one again soon
                    walk.split_from.pages_since_split = PAGES_BETWEEN_SPLITS
                self._changed.notify_all()

    def _next(self) -> _Walk | None:
        """The next walk to list: a waiting one, or half of another thread's; None if nothing is left."""
        with self._changed:
            while not self._stopped:
                walk = self._pending_walks.popleft() if self._pending_walks else self._half_of_another_walk()
                if walk is not None:
                    self._active_walks.append(walk)
                    return walk
                if not self._active_walks:
                    break
                self._changed.wait()
            return None

    def _half_of_another_walk(self) -> _Walk | None:
        for walk in sorted(self._active_walks, key=lambda walk: -walk.pages_since_split):
            if self._can_split(walk) and (half := walk.split()) is not None:
                return half
        return None

    def _can_split(self, walk: _Walk) -> bool:
        pages = walk.pages_with_keys
        # without a delimiter, a flat listing costs a request for each subfolder that it passes
        return (
            pages >= self._pages_before_first_split
            and walk.pages_since_split >= PAGES_BETWEEN_SPLITS
            and walk.prefixes_seen <= pages
        )
