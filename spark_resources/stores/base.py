"""One protocol for all object stores; a provider's limitations are declared as `Capabilities`.

A store is opened on one namespace and takes only keys relative to it, so callers can't reach any other (invariant 5).
Keys are text whose UTF-8 encoding is exactly the stored key. Times come from the store's clock.
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


class AlreadyExists(Unavailable):
    """Raised by a write or copy that must not replace anything, if the key exists."""


class Changed(Unavailable):
    """Raised if an object is no longer the expected one; by `replace_if_unchanged` also if it is gone."""


PARSE_ERRORS = (ValueError, TypeError, RecursionError)
"""Errors that clients raise for a response they can't parse, e.g. an invalid time; stores then raise `Unavailable`."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One stored object: `size` in bytes, `modified` by the store's clock, `checksum` as listed, such as an ETag."""

    key: str
    size: int
    modified: datetime
    checksum: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing: objects, common prefixes (only with a delimiter), and the number of unreadable names."""

    objects: Sequence[StoredObject]
    prefixes: Sequence[str] = ()
    unreadable_names: int = 0


class DeleteEffect(StrEnum):
    """The effect of a delete in a store, as text for operators."""

    FINAL = "a delete frees the space and can't be undone"
    VERSIONED = (
        "this bucket is versioned: a delete hides an object behind a delete marker, and its space is freed only "
        "when the bucket's lifecycle rules remove old versions"
    )
    SOFT_DELETED = (
        "this bucket has soft delete enabled: deleted objects can be restored, and their space is billed, until the "
        "retention period ends"
    )
    UNKNOWN = (
        "unknown: lakegc could not determine whether the bucket keeps deleted objects; these credentials may lack "
        "permission to read its versioning or soft-delete settings"
    )


class Deletion(StrEnum):
    DELETED = "deleted"  # as reported by the store; most stores report it for a missing key, too
    ALREADY_GONE = "already gone"  # only from a store that can tell the difference
    FAILED = "failed"


# The caller of a batch delete allows time for little more than one request. So if the batch has to be deleted key by
# key, no request is started later than this many seconds after the batch was sent.
ONE_BY_ONE_TIMEOUT_S = 4.0
NOT_SENT = "NotSent"
"""The code of a key for which no request was sent: its batch was refused, and deleting key by key took too long."""


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """The outcome for one key of `delete_many`. `code` and `message` are the store's own, empty on success.

    `transient` marks a failure that a retry may resolve; if the response was lost, the key may already be deleted.
    """

    key: str
    deletion: Deletion
    code: str = ""
    message: str = ""
    transient: bool = False


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a store, as found by a probe or known for the provider.

    `unsupported_keys` names the kinds of keys that the store folds or refuses, e.g. "empty segment". `byte_order` says
    whether pages list keys in byte order, and `conditional_writes` whether `write_if_absent` and `replace_if_unchanged`
    are atomic. `reports_missing_deletes` says whether deletes of missing keys are reported as `ALREADY_GONE`.
    `delete_batch` is the maximum number of keys in one request. `time_resolution` is the granularity of `modified`: the
    true time is within [modified, modified + granularity). `md5_etags` says whether the ETag of a plain upload is known
    to be the MD5 of its content, as on AWS or according to a probe. `ramp` is the initial rate in keys per second if
    the load on a bucket has to be increased gradually; None for a store that simply throttles.
    """

    byte_order: bool = True
    conditional_writes: bool = True
    reports_missing_deletes: bool = False
    time_resolution: timedelta = timedelta(seconds=1)
    delete_batch: int = 1000
    md5_etags: bool = False
    ramp: float | None = None
    unsupported_keys: frozenset[str] = frozenset()


class Store(Protocol):
    """List, read, write, copy and delete in one namespace.

    Unless stated otherwise, methods raise `NotFound` if the bucket or the key to read does not exist, `Forbidden` if
    permissions are missing, and `Unavailable` if the store can't be used for any other reason; they never return an
    empty result instead. Methods are thread-safe. `where` is the location in human-readable form, without secrets.
    """

    where: str

    @property
    def retry(self) -> RetryPolicy:
        """The policy for retrying requests, except for deletes."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def clock_offset(self) -> timedelta:
        """The deliberate offset of this store's clock from the machine's, for a sandbox; zero otherwise."""
        ...

    @property
    def streams(self) -> Streams:
        """This namespace's objects as streams, and copies from other namespaces."""
        ...

    def now(self) -> datetime:
        """The current time by the store's clock, rounded down to its resolution of a second or finer."""
        ...

    def pages(
        self, prefix: str, *, start_after: str | None = None, delimiter: str | None = None, page_size: int = 1000
    ) -> Iterator[Page]:
        """The objects with keys that start with `prefix` and sort after `start_after`, if given, in the store's order.

        With a delimiter, keys that contain it after the prefix are grouped into `prefixes`. A prefix without objects
        yields one empty page or none; a missing bucket or root folder raises `NotFound` on the first page. Raises
        `WrongUsage` for a prefix that no key of this store can begin with, for `start_after` together with a delimiter
        (stores disagree on the meaning), and for `start_after` on a store that is known not to list in byte order
        (keys would be lost).
        """
        ...

    def stat(self, key: str) -> StoredObject: ...

    def read(self, key: str) -> bytes:
        """The whole object. Raises `DamagedData`, and reads nothing, if it is larger than its `size_limit`."""
        ...

    def write(self, key: str, data: bytes) -> str:
        """Write or replace; returns the tag that `replace_if_unchanged` takes."""
        ...

    def write_if_absent(self, key: str, data: bytes) -> str:
        """Like `write`, but raises `AlreadyExists` if the key exists. Atomic if `capabilities.conditional_writes`."""
        ...

    def read_with_tag(self, key: str) -> tuple[bytes, str]:
        """Like `read`, with the tag that `replace_if_unchanged` takes."""
        ...

    def replace_if_unchanged(self, key: str, data: bytes, tag: str) -> str:
        """Replace the object; returns its new tag. Raises `Changed` if `tag` doesn't match or the object is gone.

        Atomic if `capabilities.conditional_writes`.
        A tag may depend on the content alone, so include something in `data` that never repeats (a counter, a time, a
        holder): otherwise writing earlier bytes again restores their tag. If the response to a conditional write is
        lost, the retry reads the object and treats identical bytes as its own write.
        """
        ...

    def etag_is_md5(self, key: str) -> bool:
        """Whether the object's checksum is certain to be the MD5 of its content (invariant 2)."""
        ...

    def delete_effect(self) -> DeleteEffect:
        """The effect of a delete here, as currently reported by the store; `UNKNOWN` if that can't be read."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Server-side copy within the namespace, including metadata. Replaces the target."""
        ...

    def delete_many(self, keys: Iterable[str]) -> list[DeleteResult]:
        """Delete keys in batches; exactly one result per key, in the given order, with its failure, if any.

        Requests are not retried: before a retry, a caller that deletes users' objects has to check each object again.
        """
        ...


def folders_in(store: Store, folder: str) -> list[str]:
    """The direct subfolders of a folder, each as a full prefix. Raises as `Store.pages` does."""
    return [prefix for page in store.pages(folder, delimiter="/") for prefix in page.prefixes]


def read_to_verify(store: Store, key: str) -> bytes:
    """Like `store.read`, by the fastest path available; only for bytes that the caller verifies with a known hash."""
    # looked up on the class, so that a wrapper that overrides `read` is not bypassed
    native = getattr(type(store), "read_to_verify", None)
    return store.read(key) if native is None else bytes(native(store, key))
