"""Live addresses that are missing from the listing, because it is wrong or incomplete, because the store spells them
differently, or because their objects are really lost (invariant 3)."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.rules import garbage
from spark_resources.errors import Refused
from spark_resources.model import ADDRESSES
from spark_resources.spark.tasks import Batches, Rows, as_frame, first_rows, mapped
from spark_resources.stores import keys
from spark_resources.stores.base import Store
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CONCURRENT_LISTINGS = 16
ALWAYS_LOOKED_UP = 1000  # if more are missing, they are only looked up if they are at most half of the live addresses
MAX_NAMED = 10  # lost addresses in the message of a refusal
NORMALIZED_KINDS = frozenset(
    {keys.EMPTY_SEGMENT, keys.LEADING_SLASH, keys.TRAILING_SLASH, keys.DOT_SEGMENT, keys.BACKSLASH}
)


def check_listing(run: MarkRun, notes: StepNotes, missing: Rows) -> None:
    """Raise `Refused` if all live addresses, or more than the limit, are missing from the store, or if the store
    has a missing one under a normalized name.

    `missing` are the live addresses missing from the listing (column address, among others). An object that was
    uploaded and staged after the listing is not lost: the store lists it now, under exactly its key.
    """
    absent, live = notes.facts["live_not_listed"], notes.facts["live_inside"]
    notes.facts |= {"live_lost": 0, "live_lost_accepted": 0}
    if not absent:
        return
    if absent > ALWAYS_LOOKED_UP and absent * 2 > live:
        raise missing_objects_error(
            run, absent, live, first_rows(missing, ["address"], MAX_NAMED)["address"].to_pylist()
        )
    lost = run.persist(not_listed_now(missing, run.place))
    accepted = lost.where(lost["address"].isin(list(run.mark.record.accepted_missing)))
    notes.facts |= {"live_lost": lost.count(), "live_lost_accepted": accepted.count()}
    refuse_normalized(run, run.mark.record.accepted_missing)
    unaccepted = notes.facts["live_lost"] - notes.facts["live_lost_accepted"]
    if unaccepted > run.limits.missing or notes.facts["live_lost"] == live:
        names = lost.transform(garbage.without_addresses_in(accepted)).orderBy("address").limit(MAX_NAMED).collect()
        raise missing_objects_error(run, notes.facts["live_lost"], live, [row["address"] for row in names])
    refuse_normalized(run, [row["address"] for row in lost.collect()], state="is live and not listed")


def missing_objects_error(run: MarkRun, absent: int, live: int, names: list[str]) -> Refused:
    listed = "".join(f"\n  {name!r}" for name in names) + ("\n  …" if absent > len(names) else "")
    inventory = run.mark.record.inventory
    where = run.store.where if inventory is None else f"{inventory['where']}, taken at {inventory['taken']}"
    return Refused(
        f"{where} doesn't have {absent:,} of {live:,} live addresses of {run.partition.repository}:{listed}\n"
        "Either these objects are lost, or the listing is wrong or incomplete (another store, another path, missing "
        "permissions), and then live objects would look like garbage. Check that lakegc reads the store that lakeFS "
        "writes to. To accept known losses, pass --accept-missing FILE with one address per line.",
        invariant=3,
    )


def not_listed_now(rows: Rows, place: Place) -> DataFrame:
    """The addresses of these rows that the store doesn't list now, byte for byte (ADDRESSES).

    Uses a listing instead of HEAD, because a store that normalizes keys accepts a HEAD for a key that it lists under
    another name.
    """

    def read(batches: Batches) -> Batches:
        for batch in batches:
            unlisted_addresses = unlisted(place, batch.column("address"))
            yield pa.RecordBatch.from_arrays([pa.array(unlisted_addresses, pa.string())], schema=ADDRESSES)

    return as_frame(mapped(rows, read, ADDRESSES))


def unlisted(place: Place, addresses: pa.Array) -> list[str]:
    """The addresses that the store doesn't list now under exactly this name.

    Addresses that some stores normalize are included without a lookup: such a store would respond for the normalized
    key, and any other store would already have listed them by name.
    """
    store = place.store()

    def is_listed(address: str) -> bool:
        if keys.kinds_of(address) & (NORMALIZED_KINDS | store.capabilities.unsupported_keys):
            return False
        return first_key(store, address) == address

    wanted = addresses.to_pylist()
    with ThreadPoolExecutor(max_workers=CONCURRENT_LISTINGS) as pool:
        return [
            address for address, is_stored in zip(wanted, pool.map(is_listed, wanted), strict=True) if not is_stored
        ]


def first_key(store: Store, prefix: str) -> str | None:
    """The first key that the store lists under a prefix: the prefix itself if an object has that key; None if no key
    begins with the prefix."""
    return next((listed.key for page in store.pages(prefix, page_size=1) for listed in page.objects), None)


def refuse_normalized(run: MarkRun, absent: Iterable[str], *, state: str = "was accepted as lost") -> None:
    """Raise `Refused` if a missing object is in the store after all, under the normalized form of its address. `state`
    describes the object in the message."""
    for address in absent:
        key = normalized(address)
        if key not in (address, "") and first_key(run.store, key) == key:
            raise Refused(
                f"{address!r} of {run.partition.repository} {state}, but {key!r} is in {run.store.where}. Some "
                "stores normalize keys, so this is most likely the same object. It is live, but would look like "
                "garbage. Copy it to a new path in lakeFS before you collect this repository.",
                invariant=3,
            )


def normalized(address: str) -> str:
    """The form of an address in a store that normalizes keys like a file system."""
    parts: list[str] = []
    for part in address.replace("\\", "/").split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)
