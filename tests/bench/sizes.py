"""The sizes of synthetic repositories, and the numbers that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Size:
    """A repository in numbers.

    `trunks` branches have their own content: each has `ranges` ranges of `entries` entries, and a line of `commits`,
    the first `expired` of which are older than the rule's days. Every `every`th of these commits rewrites `rewrites`
    ranges with `changed` new objects each; all other ranges are its parent's. If `tail` isn't 0, each commit also has a
    small range of `tail` new objects. `forks` branches start at one of the first trunk's retained commits and add
    `fork_commits` each, which rewrite only the small range. `staged` objects are uncommitted, evenly over all branches;
    `garbage` objects were never committed. `markers` paths of each trunk have the size of garbage, so that branches
    must be probed for them.
    """

    name: str
    trunks: int
    ranges: int
    entries: int
    commits: int
    expired: int
    every: int = 1
    rewrites: int = 1
    changed: int = 100
    tail: int = 0
    forks: int = 0
    fork_commits: int = 0
    staged: int = 0
    garbage: int = 0
    markers: int = 0
    slices: int = 100

    @property
    def branches(self) -> int:
        return self.trunks + self.forks

    @property
    def all_commits(self) -> int:
        """The number of commits, without the empty one with which each repository begins."""
        return self.trunks * self.commits + self.forks * self.fork_commits

    @property
    def rewritten(self) -> int:
        """The total number of ranges that one trunk's commits rewrite."""
        return len(self.rewriting()) * self.rewrites

    def rewriting(self) -> range:
        """The commits of a trunk that rewrite ranges."""
        return range(self.every, self.commits, self.every)

    @property
    def base(self) -> int:
        """The number of objects with which the trunks begin, which is also the number of live ones at their heads."""
        return self.trunks * self.ranges * self.entries

    @property
    def replaced(self) -> int:
        return self.trunks * self.rewritten * self.changed

    @property
    def tails(self) -> int:
        return self.all_commits * self.tail

    @property
    def objects(self) -> int:
        return self.base + self.replaced + self.tails + self.staged + self.garbage

    def scaled(self, factor: float) -> Size:
        """The size with a multiple of its branches, staged objects, garbage and slices; each branch is unchanged."""
        if factor == 1:
            return self
        counts = {name: max(round(getattr(self, name) * factor), 1) for name in ("trunks", "slices")}
        counts |= {name: round(getattr(self, name) * factor) for name in ("forks", "staged", "garbage")}
        return replace(self, name=f"{self.name}-{factor:g}", **counts)


SIZES = {
    size.name: size
    for size in (
        # a mark of a few seconds, for trying things out
        Size("XS", 1, 4, 1_000, 40, 20, changed=20, tail=3, forks=5, fork_commits=4, staged=200, garbage=500,
             markers=5, slices=10),
        # the documented test of the reference: 103,000 objects, 15,000 to delete
        Size("S", 1, 5, 11_000, 1_001, 500, every=10, changed=100, tail=2, forks=999, fork_commits=1, staged=25_000,
             garbage=9_000, markers=3, slices=100),
        # 270,000 stored objects, 50,100 expired; 200 retained commits with 219 ranges and 2.19 M entries
        Size("M", 1, 20, 10_000, 400, 200, changed=100, garbage=30_100, slices=200),
        # a million live objects in ranges of the server's own size; 5 M entries in the ranges of retained commits
        Size("L", 1, 20, 50_000, 4_005, 2_100, every=24, changed=1_000, tail=20, forks=199, fork_commits=5,
             staged=10_000, garbage=50_000, markers=20, slices=500),
        # 10,000 branches and 100,000 commits, with few objects
        Size("B", 1, 2, 1_000, 80_002, 40_000, every=800, changed=20, forks=9_999, fork_commits=2, staged=10_000,
             garbage=5_000, markers=1, slices=50),
        # 30,000 commits, 120,000 ranges with 50 M entries, 20 M objects, 5 M of them staged on 1,000 branches
        Size("XL", 1_000, 30, 417, 31, 15, rewrites=3, changed=20, staged=5_000_000, garbage=690_000, slices=2_000),
    )
}  # fmt: skip
