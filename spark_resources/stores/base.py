"""One protocol for every object store; what a provider can't do is declared, and no surprise.

A store is opened on one namespace and knows keys relative to it only, so no caller can reach outside (invariant 5).
Keys are text whose UTF-8 bytes are exactly the stored key. Times are the store's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from spark_resources.errors import Unavailable

if TYPE_CHECKING:
    from spark_resources.stores.retry import RetryPolicy
    from spark_resources.stores.transfer import Streams


class AlreadyThere(Unavailable):
    """Raised by `write_if_absent` where the key exists."""


class Changed(Unavailable):
    """Raised by `replace_if_unchanged` where the object is no longer the one with that tag (or is gone)."""


MALFORMED = (ValueError, TypeError, RecursionError)
"""What clients raise for an answer that they can't parse, such as a time that is none; stores make it `Unavailable`."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One stored object: `size` in bytes, `modified` by the store's clock, `checksum` its ETag (unquoted) or None."""

    key: str
    size: int
    modified: datetime
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing: objects, common prefixes (only with a delimiter), and how many names could not be keys."""

    objects: Sequence[StoredObject]
    prefixes: Sequence[str] = ()
    unreadable_names: int = 0


class Deleting(StrEnum):
    """What a delete means in a store."""

    FINAL = "a delete frees the space, and can't be undone"
    HIDES = (
        "this bucket keeps versions: a delete hides an object behind a delete marker, and frees its space only when "
        "the bucket's lifecycle removes old versions"
    )
    KEEPS_A_WHILE = (
        "this bucket keeps what is deleted for a while (soft delete): until then it can be restored, and its space is "
        "paid for"
    )
    UNKNOWN = "whether the bucket keeps versions of what is deleted may not be read with these credentials"


class Deletion(StrEnum):
    DELETED = "deleted"  # the store says so; most stores say it of a key that wasn't there, too
    ALREADY_GONE = "already gone"  # only a store that can tell
    FAILED = "failed"


# Who sends a batch has made sure that there is time for one request, and a little more: where it has to go key by key,
# no more is begun so many seconds after it was sent.
ONE_BY_ONE_S = 4.0
NOT_SENT = "NotSent"
"""The code of a key that no request was sent for: its batch was refused, and took too long key by key."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """What became of one key of `delete_many`. `code` and `message` are the store's own words, empty on success.

    `transient` says of a failure that it may pass, or that the key may even be deleted, since the answer got lost.
    """

    key: str
    deletion: Deletion
    code: str = ""
    message: str = ""
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this store can do. Found by a probe or known of the provider; shown by `doctor`.

    `unholdable` names the kinds of key that it folds or refuses, e.g. "double slash"; `byte_order` says whether pages
    come in the order of the keys' bytes; `conditional_writes` whether the two conditional writes are atomic.
    `time_resolution` is the grain of `modified`: the true time is within [modified, modified + grain).
    `md5_etags` says that the ETag of a plain upload is known to be the MD5 of its content, as on AWS; another store
    has to show it first. `ramp` is how many keys a second a bucket takes at first, where it wants to be asked for more
    gradually; None for a store that just says when it is too much.
    """

    byte_order: bool = True
    conditional_writes: bool = True
    reports_missing_deletes: bool = False
    time_resolution: timedelta = timedelta(seconds=1)
    delete_batch: int = 1000
    md5_etags: bool = False
    ramp: float | None = None
    unholdable: frozenset[str] = frozenset()


class Store(Protocol):
    """List, read, write, copy, delete in one namespace.

    Every method raises `NotThere` for a key (or bucket) that does not exist, `Forbidden` where the rights don't
    suffice, `Unavailable` where the store can't be used otherwise; never an empty answer instead. Methods are safe to
    call from several threads. `where` names the place for people, without secrets.
    """

    where: str

    @property
    def retry(self) -> RetryPolicy:
        """By which requests are repeated, all but deletes."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def clock_offset(self) -> timedelta:
        """How far this store's clock was set away from the machine's on purpose, for a sandbox; zero otherwise."""
        ...

    @property
    def streams(self) -> Streams:
        """Its objects in pieces, and copies from other namespaces."""
        ...

    def now(self) -> datetime:
        """The store's clock, to the whole second below or finer."""
        ...

    def pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[Page]:
        """The objects whose key starts with `prefix` and, where given, comes after `start_after` in the store's order.

        With a delimiter, keys that hold it behind the prefix are folded into `prefixes`. A prefix without objects
        gives one empty page or none; a bucket or root folder that isn't there raises `NotThere`, on the first page.
        `WrongUsage` for a prefix that no key here can begin with; for `start_after` together with a delimiter (stores
        disagree on what that means); and for `start_after` on a store whose order is known not to be that of the bytes,
        where it would lose keys.
        """
        ...

    def stat(self, key: str) -> StoredObject: ...

    def read(self, key: str) -> bytes: ...

    def write(self, key: str, data: bytes) -> str:
        """Write or replace; returns the tag that `replace_if_unchanged` takes."""
        ...

    def write_if_absent(self, key: str, data: bytes) -> str:
        """Write, unless the key exists: then `AlreadyThere`. Atomic where `capabilities.conditional_writes`."""
        ...

    def read_with_tag(self, key: str) -> tuple[bytes, str]: ...

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        """Replace the object that still has `tag`, otherwise `Changed`. Atomic where `capabilities.conditional_writes`.

        A tag stands for the content, so bytes that were there before bring their tag back: write something that never
        repeats (a counter, a time, a holder). Where the answer to a conditional write was lost, its repetition reads
        what is there, and takes these very bytes for its own.
        """
        ...

    def etag_is_md5(self, key: str) -> bool:
        """Whether the store shows the object's checksum to be the MD5 of its content, for sure (invariant 2)."""
        ...

    def deleting(self) -> Deleting:
        """What a delete means here, as the store says now."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Copy inside the namespace, on the store's side, with its metadata. Replaces the target."""
        ...

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        """Delete keys in batches; exactly one result a key, in the order given. Never raises for a single key.

        No request is repeated: who deletes users' objects checks each again before that.
        """
        ...


def folders_in(store: Store, folder: str) -> list[str]:
    """The folders right in a folder, each with its whole prefix. Raises as `Store.pages` does."""
    return [prefix for page in store.pages(folder, delimiter="/") for prefix in page.prefixes]


def read_to_verify(store: Store, key: str) -> bytes:
    """As `store.read`, by the quickest way there is: for who proves what it gets by a hash that it knows before."""
    # asked of the class, so that what wraps a store and changes its `read` is not passed by
    own = getattr(type(store), "read_to_verify", None)
    return store.read(key) if own is None else bytes(own(store, key))
