"""The stored objects according to several listings: those of a full mark and of the incremental marks after it. Pure.

An incremental mark lists only some folders and looks up some addresses. For every other address, an earlier listing
decides. Objects that sweeps removed after a listing are no longer there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.addresses import slices_of
from lakegc_assets.rules.garbage import distinct
from spark_resources.model import STORED_OBJECTS

REMOVED = pa.schema([STORED_OBJECTS.field("address"), pa.field("began", pa.timestamp("us", tz="UTC"), nullable=False)])
"""Addresses whose objects a sweep removed, and when that sweep began, by the store's clock."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What one mark listed among some addresses: the objects that it found (STORED_OBJECTS), the addresses that it
    looked up, the folders that it listed (None: all of them), and when it started, by the store's clock."""

    stored: pa.Table
    looked_up: pa.ChunkedArray
    folders: pa.Array | None
    start: datetime


def current_listing(listings: Sequence[Listing], removed: pa.Table) -> pa.Table:
    """The objects that are stored (STORED_OBJECTS), according to the newest listing that covers each address.

    `listings` are sorted, the newest first; `removed` are rows of REMOVED.
    """
    undecided, found = distinct(*(listing.stored["address"] for listing in listings)), [STORED_OBJECTS.empty_table()]
    for listing in listings:
        is_newest = pc.is_in(listing.stored["address"], value_set=undecided)
        since = pc.greater_equal(removed["began"], pa.scalar(listing.start, REMOVED.field("began").type))
        is_gone = pc.is_in(listing.stored["address"], value_set=removed["address"].filter(since))
        found.append(listing.stored.filter(pc.and_not(is_newest, is_gone)))
        if listing.folders is None:
            break
        covered = pc.is_in(undecided, value_set=distinct(listing.stored["address"], listing.looked_up))
        covered = pc.or_(covered, pc.is_in(slices_of(undecided), value_set=listing.folders))
        undecided = undecided.filter(pc.invert(covered))
    return pa.concat_tables(found)
