"""Injects the faults of a real server when it lists staged objects (formats §2): at random, or as a test sets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

from spark_resources.lakefs_sandbox.errors import Problem

_EARLY_END_LIMIT = 4  # a scan that ends early reads fewer records than this


class Faults:
    """The faults to inject: none by default. All attributes can be changed at any time.

    `deletion_probability` applies to each branch that is scanned for the list of staged objects: it is the probability
    that the next branch was deleted during the scan. The server then discards what it has collected so far, or fails if
    that branch was the last one. `early_end_probability` is the probability that the scan of a branch for a list or
    diff ends early without an error, as after a throttled read.
    """

    def __init__(self, *, deletion_probability: float = 0.0, early_end_probability: float = 0.0, seed: int = 0) -> None:
        self.deletion_probability = deletion_probability
        self.early_end_probability = early_end_probability
        self.branches_before_deleted: Collection[str] = ()
        """Branches that are always followed by a deleted branch when they are scanned."""
        self.unreadable_records: Collection[tuple[str, str]] = ()
        """Staging records (branch and path) that can't be read. The server's lists and diffs end at one without an
        error; listings of objects fail."""
        self.injection_counts: Counter[str] = Counter()
        self._random = Random(seed)

    def is_followed_by_deleted(self, branch: str) -> bool:
        return branch in self.branches_before_deleted or self._random.random() < self.deletion_probability

    def scan_limit(self) -> int | None:
        """Draw the number of records after which a scan ends early; None for a complete scan."""
        return self._random.randrange(_EARLY_END_LIMIT) if self._random.random() < self.early_end_probability else None

    def check_readable(self, branch: str, path: bytes) -> None:
        """Raise `Problem` 500 for a staging record that can't be read."""
        if self.unreadable_records and (branch, path.decode()) in self.unreadable_records:
            self.injection_counts["broken records"] += 1
            raise Problem(500, "internal server error: staging record can't be decoded")
