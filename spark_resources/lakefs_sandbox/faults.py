"""What a real server gets wrong when it lists what is staged (formats §2): by chance, or where a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random

from spark_resources.lakefs_sandbox.errors import Problem

_LONGEST_PART = 4  # records that a scan reads before it ends early


class Faults:
    """None unless chances are given, or what is named in the attributes; both may be changed at any time.

    `branch_deleted` is the chance, at each branch that the list of staged objects passes, that one behind it was
    deleted meanwhile: the server then forgets what it wrote so far, or fails where that was the last one. `scan_ends`
    is the chance that a list's or diff's scan of a branch ends early without an error, as by a throttled read.
    """

    def __init__(self, *, branch_deleted: float = 0.0, scan_ends: float = 0.0, seed: int = 0) -> None:
        self.branch_deleted = branch_deleted
        self.scan_ends = scan_ends
        self.deleted_behind: Collection[str] = ()
        """Branches behind which one was deleted whenever they are passed."""
        self.broken: Collection[tuple[str, str]] = ()
        """Branch and path of staging records that can't be read: lists and diffs end there, listings fail."""
        self.happened: Counter[str] = Counter()
        self._random = Random(seed)

    def is_deleted_behind(self, branch: str) -> bool:
        return branch in self.deleted_behind or self._random.random() < self.branch_deleted

    def records_read(self) -> int | None:
        """After how many records a scan ends early; None for one that doesn't."""
        return self._random.randrange(_LONGEST_PART) if self._random.random() < self.scan_ends else None

    def check_readable(self, branch: str, path: bytes) -> None:
        """Raise `Problem` 500 for a staging record that can't be read."""
        if self.broken and (branch, path.decode()) in self.broken:
            self.happened["broken records"] += 1
            raise Problem(500, "internal server error: staging record can't be decoded")
