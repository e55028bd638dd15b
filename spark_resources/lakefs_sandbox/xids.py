"""lakeFS's names for objects, slices and runs: xids. Those of slices and runs sort newest first (formats §1)."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable
from datetime import UTC, datetime

# 4000-01-01 in Unix seconds. lakeFS counts back from it, so that later slices sort first.
_YEAR_4000 = 64_060_588_800
_WRAP = 1 << 32

SLICE_OBJECTS = 50_000
SLICE_SECONDS = 3600


class Xids:
    """Generates ids that are unique among all calls, and among generators with different `generator` numbers.

    An xid has four bytes for the time, five for the generator and three for a counter, in lower-case base32hex.
    """

    def __init__(self, generator: int, now: Callable[[], datetime]) -> None:
        self._generator = b"lgc" + (generator % (1 << 16)).to_bytes(2, "big")
        self._now = now
        self._count = 0
        self._lock = threading.Lock()

    def ascending_id(self, moment: datetime | None = None) -> str:
        """An id that sorts after those of earlier seconds, for objects and files."""
        return self._generate(int((moment or self._now()).timestamp()))

    def descending_id(self, moment: datetime | None = None) -> str:
        """An id that sorts before those of earlier seconds, for slices and runs."""
        return self._generate(_YEAR_4000 - int((moment or self._now()).timestamp()))

    def _generate(self, seconds: int) -> str:
        with self._lock:
            self._count = (self._count + 1) % (1 << 24)
            count = self._count
        raw = (seconds % _WRAP).to_bytes(4, "big") + self._generator + count.to_bytes(3, "big")
        return base64.b32hexencode(raw).decode("ascii").rstrip("=").lower()


class AddressGenerator:
    """Generates `data/<slice>/<id>`. All repositories share one slice for an hour or 50,000 objects."""

    def __init__(self, xids: Xids, now: Callable[[], datetime]) -> None:
        self._xids = xids
        self._now = now
        self._lock = threading.Lock()
        self._slice = ""
        self._opened = now()
        self._issued = 0

    def new_address(self, moment: datetime | None = None) -> str:
        moment = moment or self._now()
        with self._lock:
            # This clock, unlike a real server's, can be set back, which also starts a new slice.
            age = abs((moment - self._opened).total_seconds())
            if not self._slice or self._issued >= SLICE_OBJECTS or age > SLICE_SECONDS:
                self._slice, self._opened, self._issued = self._xids.descending_id(moment), moment, 0
            self._issued += 1
            return f"data/{self._slice}/{self._xids.ascending_id(moment)}"


def generated_at(address: str) -> datetime:
    """The second in which an address was generated, from the xid at its end. Raises `ValueError` if there is none."""
    name = address.rsplit("/", 1)[-1].upper()
    raw = base64.b32hexdecode(name + "=" * (-len(name) % 8))
    return datetime.fromtimestamp(int.from_bytes(raw[:4], "big"), UTC)
