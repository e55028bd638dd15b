"""Probing a store's capabilities on scratch keys, in lakegc's own part of the namespace.

lakegc doesn't rely on the claims of an S3-compatible store where an error could lose an object: a server that ignores
the condition of a conditional write returns 200, and one that folds keys deletes another object.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from spark_resources.errors import LakegcError, NotFound, Refused, Unavailable, Untrusted, WrongUsage
from spark_resources.records.json_records import Records, read_json
from spark_resources.records.signing import Seal
from spark_resources.stores.base import AlreadyExists, Capabilities, Changed, Store
from spark_resources.stores.keys import OBJECT_AND_FOLDER, SAMPLES
from spark_resources.stores.retry import delete_own_files

SCRATCH = "_lakefs/retention/gc/lakegc/.probe/"  # every probe's scratch prefix starts with it

_WRITERS = 8  # in parallel
_ROUNDS = 5
_LARGE_BYTES = 6 * 1024 * 1024  # more than compatible stores store as a single chunk
_NAMES_IN_BYTE_ORDER = ("A", "a-b", "a/b", "a0", "b", "\u00e9", "\uffee", "\U0001f600")


def probe(store: Store, scratch_prefix: str) -> Capabilities:
    """The store's capabilities, tested under `scratch_prefix`, which is emptied before and after.

    The prefix must be the caller's own: `SCRATCH`, then a unique name, then a slash. Raises `WrongUsage` for any other
    prefix, and the store's errors if it can't be used at all.
    """
    if not scratch_prefix.startswith(SCRATCH) or not scratch_prefix.endswith("/") or scratch_prefix == SCRATCH:
        raise WrongUsage(f"a probe writes and deletes under {SCRATCH}<name>/ only, not under '{scratch_prefix}'")
    _clear(store, scratch_prefix)
    try:
        conditional_writes = _writes_conditionally(store, scratch_prefix + "conditional/")
        byte_order = _lists_in_byte_order(store, scratch_prefix + "order/")
        md5_etags = _etags_are_md5(store, scratch_prefix + "tags/")
        unsupported_keys = _unsupported_keys(store, scratch_prefix + "keys/")
    finally:
        _clear(store, scratch_prefix)
    return replace(
        store.capabilities,  # read last, because the clean-up may reveal that the store doesn't support batch deletes
        conditional_writes=conditional_writes,
        byte_order=byte_order,
        md5_etags=md5_etags,
        unsupported_keys=store.capabilities.unsupported_keys | unsupported_keys,
    )


# --- recorded -------------------------------------------------------------------------------------------------------

FORMAT = 1
RECORD_KEY = "_lakefs/retention/gc/lakegc/store.json"
RECORD_VALID_FOR = timedelta(days=30)


def recorded_capabilities(store: Store, endpoint: str, *, token: str, seal: Seal | None = None) -> Capabilities:
    """The capabilities that an earlier probe recorded in this namespace, or those that a new probe finds and records.

    A record is valid for 30 days by the store's clock, and only for the endpoint that was probed. With a seal it is
    signed, and any other record is replaced: a forged one could claim MD5 ETags, which make path probes unnecessary.
    `token` must be unique to this call.
    """
    now = store.now()
    recorded = read_record(store, endpoint, now, seal)
    if recorded is not None:
        return recorded
    capabilities = probe(store, f"{SCRATCH}{token}/")
    written = {
        "format": FORMAT,
        "endpoint": endpoint,
        "probed": now.isoformat(),
        "capabilities": _capabilities_to_json(capabilities),
    }
    Records(store, seal).write(RECORD_KEY, json.dumps(written, indent=1, sort_keys=True).encode())
    return capabilities


def read_record(store: Store, endpoint: str, now: datetime, seal: Seal | None = None) -> Capabilities | None:
    """The capabilities that an earlier probe of this endpoint recorded; None if there is no valid record at `now`, or,
    with a seal, none that is signed with it."""
    with suppress(NotFound, Untrusted, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        record = read_json(Records(store, seal).read(RECORD_KEY))
        is_valid = record["endpoint"] == endpoint and record.get("format", FORMAT) == FORMAT
        if is_valid and now - datetime.fromisoformat(record["probed"]) < RECORD_VALID_FOR:
            return _capabilities_from_json(record["capabilities"])
    return None


def _capabilities_to_json(capabilities: Capabilities) -> dict[str, object]:
    fields = asdict(capabilities)
    return {name: value for name, value in fields.items() if name != "unsupported_keys"} | {
        "time_resolution": capabilities.time_resolution.total_seconds(),
        "unholdable": sorted(capabilities.unsupported_keys),  # its name in earlier versions
    }


def _capabilities_from_json(fields: dict[str, Any]) -> Capabilities:
    changed = {
        "time_resolution": timedelta(seconds=fields["time_resolution"]),
        "unsupported_keys": frozenset(fields["unholdable"]),
    }
    unchanged = {name: value for name, value in fields.items() if name != "unholdable"}
    capabilities = Capabilities(**{**unchanged, **changed})
    if not _is_possible(capabilities):
        raise ValueError("no store has such capabilities")
    return capabilities


def _is_possible(found: Capabilities) -> bool:
    """Whether recorded values have the declared types, and make sense."""
    flags = (found.byte_order, found.conditional_writes, found.reports_missing_deletes, found.md5_etags)
    return (
        all(isinstance(flag, bool) for flag in flags)
        and found.time_resolution >= timedelta(0)
        and type(found.delete_batch) is int
        and found.delete_batch >= 1
        and (found.ramp is None or (type(found.ramp) in (int, float) and found.ramp > 0))
        and all(isinstance(kind, str) for kind in found.unsupported_keys)
    )


# --- single probes ---------------------------------------------------------------------------------------------------


def _writes_conditionally(store: Store, prefix: str) -> bool:
    """Whether exactly one of several concurrent writers wins each time, and a stale tag never does."""
    for round_number in range(_ROUNDS):
        key = f"{prefix}{round_number}"
        try:
            if _count_winners("first", partial(store.write_if_absent, key)) != 1:
                return False
            tag = store.read_with_tag(key)[1]
            if _count_winners("second", partial(_replace, store, key, tag)) != 1:
                return False
        except Unavailable:  # the store doesn't support the request at all
            return False
    return True


def _replace(store: Store, key: str, tag: str, data: bytes) -> str:
    return store.replace_if_unchanged(key, data, tag)


def _count_winners(kind: str, write: Callable[[bytes], str]) -> int:
    """How many of several writers succeed. Each writes different bytes, because a tag may depend on content alone."""

    def wins(number: int) -> bool:
        try:
            write(f"{kind} {number}".encode())
        except (AlreadyExists, Changed):
            return False
        return True

    with ThreadPoolExecutor(_WRITERS) as writers:
        return sum(writers.map(wins, range(_WRITERS)))


def _lists_in_byte_order(store: Store, prefix: str) -> bool:
    """Whether pages list keys in byte order, and a listing with `start_after` begins right after that key."""
    expected = [prefix + name for name in _NAMES_IN_BYTE_ORDER]
    for key in expected:
        store.write(key, b"")
    listed = [stored.key for page in store.pages(prefix, page_size=2) for stored in page.objects]
    if listed != expected:
        return False

    def keys_after(after: str) -> list[str]:
        return [stored.key for page in store.pages(prefix, start_after=after) for stored in page.objects]

    with suppress(WrongUsage):  # the store can't start a listing in the middle
        return all(keys_after(after) == expected[index + 1 :] for index, after in enumerate(expected))
    return False


def _etags_are_md5(store: Store, prefix: str) -> bool:
    for name, data in (("small", b"lakegc"), ("large", b"lakegc" * (_LARGE_BYTES // 6))):
        store.write(prefix + name, data)
        if store.stat(prefix + name).checksum != hashlib.md5(data, usedforsecurity=False).hexdigest():
            return False
    return True


def _unsupported_keys(store: Store, prefix: str) -> frozenset[str]:
    samples = {kind: [sample] for kind, sample in SAMPLES.items()} | {OBJECT_AND_FOLDER: ["both", "both/inside"]}
    return frozenset(
        kind for kind, keys_of_kind in samples.items() if not _supports_keys(store, f"{prefix}{kind}/", keys_of_kind)
    )


def _supports_keys(store: Store, prefix: str, samples: Sequence[str]) -> bool:
    """Whether keys can be written, listed, read and deleted under exactly these names."""
    contents = {prefix + sample: f"the content of {sample!r}".encode() for sample in samples}
    try:
        for key, content in contents.items():
            store.write(key, content)
        if {stored.key for page in store.pages(prefix) for stored in page.objects} != set(contents):
            return False
        if any(store.read(key) != content for key, content in contents.items()):
            return False
        if delete_own_files(store, contents):
            return False
        return not any(page.objects for page in store.pages(prefix))
    except (WrongUsage, Unavailable, Refused):
        return False


def _clear(store: Store, prefix: str) -> None:
    """Delete all files under a prefix. Files that can't be deleted stay; they are lakegc's own and never candidates."""
    with suppress(LakegcError):
        delete_own_files(store, [listed.key for page in store.pages(prefix) for listed in page.objects])
