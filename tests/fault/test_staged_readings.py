"""Staged objects are read twice in full, as lists and by path: an address in either reading is live (invariant 2)."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from lakegc_assets.progress import listening
from spark_resources.model import AddressType
from spark_resources.sstable import Entry
from tests.fault.conftest import Lake
from tests.support.mark_runs import ANY_AGE, Marker


def unstaged(lake: Lake, path: str) -> Entry:
    """An object that is stored, but staged nowhere."""
    lake.repository.put("main", path, f"only ever at {path}".encode())
    entry = lake.repository.stat("main", path)
    lake.repository.reset_path("main", path)
    return entry


@dataclass
class StagedDuringOneScan:
    """Stages one entry per reading behind the scan's cursor, and resets it once the scan has passed it."""

    lake: Lake
    entries: list[Entry]
    readings: int = 0
    pages: int = 0

    def page(self, response: dict[str, Any]) -> None:
        entry = self.entries[self.readings] if self.readings < len(self.entries) else None
        if self.pages == 0 and entry is not None:
            assert response.get("continuation_token"), "the entry must come behind the first page"
            self.lake.repository.stage("main", [entry])
        self.pages += 1
        if not response.get("continuation_token"):
            if entry is not None:
                self.lake.repository.reset_path("main", entry.path.decode())
            self.readings, self.pages = self.readings + 1, 0


@dataclass
class ShownOnce:
    """Gives the staged address of a path in one response, and another address in all others."""

    path: str
    truthful: int
    other: str
    responses: int = 0
    shown: list[str] = field(default_factory=list)

    def stat(self, response: dict[str, Any]) -> None:
        for entry in response.get("results", [response]):
            if entry.get("path") == self.path:
                if self.responses != self.truthful:
                    entry["physical_address"] = self.other
                self.responses += 1


def test_objects_that_only_one_reading_finds_staged_are_live(lake: Lake) -> None:
    """A rename hides an address from one scan of the lists, or from one pass over the changed paths, but not from the
    other."""
    for path in ("front1", "front2", "front3"):
        lake.repository.put("main", path, path.encode())
    during = [unstaged(lake, "moved1"), unstaged(lake, "moved2")]
    scans = StagedDuringOneScan(lake, during)
    full, watched = [], []
    served = lake.repository.stat("main", "b").address
    for number in (0, 1):
        entry = unstaged(lake, f"linked{number}")
        address = f"local://{lake.folder}/{entry.address}"
        lake.repository.stage("main", [replace(entry, address=address, address_type=AddressType.FULL)])
        watched.append(ShownOnce(f"linked{number}", number, f"local://{lake.name}/{served}"))
        full.append(entry)
    garbage = unstaged(lake, "garbage")
    lake.server.after("/gc/prepare_uncommited", scans.page)
    for reading in watched:
        lake.server.after("/objects/stat", reading.stat)
        lake.server.after("/objects/ls", reading.stat)

    expired = Marker().mark(lake.settings, lake.name, "m1", ANY_AGE).expired

    assert scans.readings >= 2
    assert all(reading.responses >= 2 for reading in watched)
    assert garbage.address in expired
    assert not expired & {entry.address for entry in (*during, *full)}


def test_objects_that_a_coarse_clock_may_date_too_early_are_kept(lake: Lake) -> None:
    """A listed time is rounded down by up to the store's resolution, so an object may be that much younger."""
    entries = [unstaged(lake, f"garbage{number}") for number in range(3)]
    time_resolution = lake.target.place.store().capabilities.time_resolution
    assert time_resolution > timedelta(milliseconds=1)
    short_of = [time_resolution, time_resolution - timedelta(milliseconds=1), timedelta(0)]
    dated: list[datetime] = []

    def date(_: object) -> None:
        for record in [] if dated else lake.records():  # the mark has begun but hasn't listed yet
            for entry, before in zip(entries, short_of, strict=True):
                at = record.cutoff - before
                os.utime(lake.folder / entry.address, ns=(0, round(at.timestamp() * 1_000_000) * 1000))
                dated.append(at)

    with listening(date):
        expired = Marker().mark(lake.settings, lake.name, "m1", ANY_AGE).expired

    assert len(dated) == len(entries)
    assert expired & {entry.address for entry in entries} == {entries[0].address}
