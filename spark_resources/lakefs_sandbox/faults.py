"""Injects the faults of a real server when it lists staged objects (formats §2): at random, or as a test sets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

from spark_resources.lakefs_sandbox.errors import Problem

_MAX_RECORDS_READ = 4  # a scan that ends early reads fewer records than this


class Faults:
    """The faults to inject: none by default. All attributes can be changed at any time.

    `branch_deleted` is the probability, for each branch that is scanned for the list of staged objects, that the next
    branch was deleted during the scan: the server then discards what it has written so far, or fails if that branch was
    the last one. `scan_ends` is the probability that the scan of a branch for a list or diff ends early without an
    error, as after a throttled read.
    """

    def __init__(self, *, branch_deleted: float = 0.0, scan_ends: float = 0.0, seed: int = 0) -> None:
        self.branch_deleted = branch_deleted
        self.scan_ends = scan_ends
        self.followed_by_deleted: Collection[str] = ()
        """Branches that are always followed by a deleted one when they are scanned."""
        self.broken: Collection[tuple[str, str]] = ()
        """Staging records (branch and path) that can't be read. The server's lists and diffs end at one without an
        error; listings of objects fail."""
        self.injected: Counter[str] = Counter()
        self._random = Random(seed)

    def is_followed_by_deleted(self, branch: str) -> bool:
        return branch in self.followed_by_deleted or self._random.random() < self.branch_deleted

    def scan_limit(self) -> int | None:
        """Draw the number of records after which a scan ends early; None if it doesn't."""
        return self._random.randrange(_MAX_RECORDS_READ) if self._random.random() < self.scan_ends else None

    def check_readable(self, branch: str, path: bytes) -> None:
        """Raise `Problem` 500 for a staging record that can't be read."""
        if self.broken and (branch, path.decode()) in self.broken:
            self.injected["broken records"] += 1
            raise Problem(500, "internal server error: staging record can't be decoded")
