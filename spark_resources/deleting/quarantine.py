"""Quarantine objects instead of deleting them, and restore them: server-side copy, verification, then delete.

A quarantined object keeps its metadata. Its key gets the prefix `_lakefs/retention/gc/quarantine/<mark_id>/`. That
folder is never listed to find keys: an object there without a receipt stays untouched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_resources.deleting.batches import Sender, SendResult
from spark_resources.errors import LakegcError, NotFound
from spark_resources.mark_store.mark import GC_ROOT
from spark_resources.model import check_mark_id
from spark_resources.stores.base import AlreadyExists, Changed, DeleteResult, Deletion, Store, StoredObject
from spark_resources.stores.transfer import HashingIterator

QUARANTINE_ROOT = GC_ROOT + "quarantine/"
CONCURRENT_COPIES = 16


def key_in_quarantine(mark_id: str, address: str) -> str:
    return f"{QUARANTINE_ROOT}{check_mark_id(mark_id)}/{address}"


class Differs(LakegcError):
    """Raised when a copy differs from its source."""


class SendingStopped(LakegcError):
    """Raised between two steps for one key, if no further request may be sent."""


def stat_or_none(store: Store, key: str) -> StoredObject | None:
    try:
        return store.stat(key)
    except NotFound:
        return None


def copy_verified(store: Store, source: str, target: str) -> None:
    """Copy, replacing the target, and check that the copy is identical. Raises `Differs`, or what the store raises."""
    store.copy(source, target)
    if not same_content(store, store.stat(source), store.stat(target)):
        raise _differs(store, source, target)


def _differs(store: Store, source: str, target: str) -> Differs:
    return Differs(f"the copy of {source!r} at {target!r} in {store.where} differs from its source")


def same_content(store: Store, one: StoredObject, other: StoredObject) -> bool:
    """Whether two objects are identical by size and checksum, or by their bytes if checksums can't be compared.

    Raises `Changed` for an object that was replaced while it was being compared.
    """
    if one.size != other.size:
        return False
    if one.checksum is not None and one.checksum == other.checksum:
        return True
    return _sha256(store, one) == _sha256(store, other)


def _sha256(store: Store, original: StoredObject) -> str:
    """The SHA-256 of the object, read in pieces."""
    properties = store.streams.properties(original.key)
    if (properties.size, properties.checksum) != (original.size, original.checksum):
        raise Changed(f"{original.key!r} in {store.where} was replaced while it was being compared")
    return HashingIterator(store.streams.pieces(original.key, properties)).drain().sha256


def process_in_threads(
    sender: Sender, keys: Sequence[str], prefix: str, work: Callable[[str], DeleteResult]
) -> tuple[list[DeleteResult], list[str]]:
    """Call `work` for the keys, several at once. Returns its results, and the keys that were not processed because
    nothing more may be sent.

    Each key waits its turn under the rate limit for copies; whether its request may be sent is checked after that
    wait. An error raised by `work` becomes the key's result, except `SendingStopped`.
    """
    stopped = threading.Event()

    def process(key: str) -> DeleteResult | None:
        if stopped.is_set():
            return None
        sender.sleep(sender.copy_pace.take(prefix, 1))
        try:
            sender.check_may_send()
        except LakegcError:
            stopped.set()
            return None
        try:
            return work(key)
        except SendingStopped:
            stopped.set()
            return None
        except LakegcError as error:
            return DeleteResult(key, Deletion.FAILED, type(error).__name__, str(error))

    with ThreadPoolExecutor(max_workers=CONCURRENT_COPIES, thread_name_prefix="lakegc-copy") as pool:
        results = list(pool.map(process, keys))
    return (
        [result for result in results if result is not None],
        [key for key, result in zip(keys, results, strict=True) if result is None],
    )


# --- quarantine -----------------------------------------------------------------------------------------------------


def quarantine_keys(sender: Sender, store: Store, keys: Sequence[str], prefix: str, mark_id: str) -> list[SendResult]:
    """Copy each key to quarantine, verify the copy, and delete the original. An object that can't be copied stays.

    Right before the delete, the original is looked up again; if it has changed, it stays, and so does its copy, until a
    purge. `store` is the sender's store, but with retries.
    """

    def copy_to_quarantine(key: str) -> DeleteResult:
        target = key_in_quarantine(mark_id, key)
        try:
            copy_verified(store, key, target)
        except Differs:
            try:
                sender.check_may_send()  # once the lease is lost, its next holder may have made the copy
            except LakegcError as error:
                raise SendingStopped(str(error)) from error
            store.delete_many([target])  # so that it isn't mistaken for the object later
            raise
        return DeleteResult(key, Deletion.DELETED)

    results, unprocessed = process_in_threads(sender, keys, prefix, copy_to_quarantine)
    succeeded = [result.key for result in results if result.deletion is Deletion.DELETED]
    failed = [SendResult(result.key, result, 1) for result in results if result.deletion is Deletion.FAILED]
    sent, _ = sender.send(succeeded, prefix)
    return [*sent, *failed, *(SendResult(key, None, 0) for key in unprocessed)]


# --- restore --------------------------------------------------------------------------------------------------------


def restore_keys(sender: Sender, store: Store, sizes: Mapping[str, int | None], mark_id: str) -> list[SendResult]:
    """Copy each key back from quarantine without overwriting anything, verify it, and delete the quarantined copy.

    `sizes` are those of the approved objects by key, in bytes; None if unknown. `store` is the sender's store, but with
    retries.
    """

    def restore(key: str) -> DeleteResult:
        return restore_key(store, key, sizes[key], mark_id)

    results, unprocessed = process_in_threads(sender, list(sizes), "", restore)
    succeeded = {
        key_in_quarantine(mark_id, result.key): result for result in results if result.deletion is Deletion.DELETED
    }
    removed, _ = sender.send(list(succeeded), "")
    # a copy that couldn't be removed is harmless: the object itself is restored
    return [
        *(SendResult(succeeded[result.key].key, succeeded[result.key], max(1, result.attempts)) for result in removed),
        *(SendResult(result.key, result, 1) for result in results if result.deletion is not Deletion.DELETED),
        *(SendResult(key, None, 0) for key in unprocessed),
    ]


def restore_key(store: Store, key: str, size: int | None, mark_id: str) -> DeleteResult:
    """Restore one object to its original key, without deleting its quarantined copy.

    The result is `DELETED` if the object is restored, so that its copy may be deleted; `ALREADY_GONE` if the copy is
    gone and an object of this size is at the key, as after an earlier restore; and `FAILED` if there is no matching
    copy or another object is at the key. Nothing is overwritten if the store supports conditional copies: see
    `Streams.copy`.
    """
    quarantine_key = key_in_quarantine(mark_id, key)
    copy = stat_or_none(store, quarantine_key)
    original = stat_or_none(store, key)  # looked up last, for stores that ignore the condition
    if copy is None:
        if original is None:
            return DeleteResult(key, Deletion.FAILED, "Lost", f"neither {key!r} nor its quarantined copy exists")
        if size not in (None, original.size):
            return DeleteResult(
                key, Deletion.FAILED, "Lost", f"its quarantined copy doesn't exist, and another object is at {key!r}"
            )
        return DeleteResult(key, Deletion.ALREADY_GONE)
    if size not in (None, copy.size):
        return DeleteResult(
            key,
            Deletion.FAILED,
            "Differs",
            f"{quarantine_key!r} has {copy.size} bytes, but the approved object had {size}",
        )
    if original is None:
        try:
            store.streams.copy(store.streams, copy, key)
        except AlreadyExists:  # created just now, or by an earlier request whose response was lost
            original = store.stat(key)
        else:
            if not same_content(store, store.stat(key), copy):
                raise _differs(store, quarantine_key, key)
    if original is not None and not same_content(store, original, copy):
        return DeleteResult(
            key,
            Deletion.FAILED,
            "PlaceTaken",
            f"another object is at {key!r} now; the quarantined one stays at {quarantine_key!r}",
        )
    return DeleteResult(key, Deletion.DELETED)


def purge_keys(sender: Sender, keys: Sequence[str], mark_id: str) -> list[SendResult]:
    """Delete the quarantined copies of these keys for good, except for keys that have become live."""
    originals, became_live = {key_in_quarantine(mark_id, key): key for key in keys}, sender.became_live
    sender.became_live = lambda key: became_live(originals.get(key, key))  # the permit names original keys
    try:
        sent, _ = sender.send(list(originals), "")
    finally:
        sender.became_live = became_live
    return [SendResult(originals[result.key], result.result, result.attempts) for result in sent]
