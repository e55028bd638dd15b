"""Which paths to probe on branches. Only probes find identical content that was re-staged: no list contains it (formats
§2; invariant 2).

Pure: Arrow tables in, Arrow tables out. `keep_reasons` decides on the probe results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.model import PATHS_TO_PROBE, SERVED

PROBES_BY_SIZE = pa.schema([PATHS_TO_PROBE.field("size"), pa.field("probes", pa.int64(), nullable=False)])
BATCH_ROWS = 100_000


class SizeSet:
    """Distinct sizes of objects, sorted: building a hash table of millions of sizes would take longer than reading a
    range."""

    def __init__(self, sizes: pa.Array) -> None:
        self._sorted = np.unique(sizes.cast(pa.int64()).to_numpy(zero_copy_only=False))

    def __len__(self) -> int:
        return len(self._sorted)

    def contains(self, sizes: pa.Array) -> pa.Array:
        """Whether each of these sizes (int64, none null) is in the set."""
        if not len(self):
            return pa.repeat(False, len(sizes))
        values = sizes.to_numpy(zero_copy_only=False)
        positions = np.minimum(np.searchsorted(self._sorted, values), len(self) - 1)
        return pa.array(self._sorted[positions] == values)

    def as_array(self) -> pa.Array:
        return pa.array(self._sorted)


def paths_to_probe(
    paths: pa.Array, entry_sizes: pa.Array, repository: str, branches: Sequence[str], sizes: SizeSet
) -> Iterator[pa.RecordBatch]:
    """The paths to probe on these branches (PATHS_TO_PROBE), given the entries of a range that their heads contain.

    An object with the size of an entry may be the one that the branch serves at the entry's path, even if no list
    contains it. `paths` has the entries' paths, null for each that is not UTF-8; `sizes` are those of all unreferenced
    objects.
    """
    has_size = sizes.contains(entry_sizes)
    matching = pa.table([paths.filter(has_size), entry_sizes.filter(has_size)], ["path", "size"])
    if not len(matching):
        return
    branches_per_batch = max(BATCH_ROWS // len(matching), 1)
    for start in range(0, len(branches), branches_per_batch):
        some_branches = pa.array(branches[start : start + branches_per_batch], pa.string())
        on_each = matching.take(pa.array(np.tile(np.arange(len(matching)), len(some_branches))))
        columns = {
            "repository": pa.repeat(pa.scalar(repository), len(on_each)),
            "branch": some_branches.take(pa.array(np.repeat(np.arange(len(some_branches)), len(matching)))),
            "path": on_each["path"],
            "size": on_each["size"],
        }
        yield from pa.table([columns[name] for name in PATHS_TO_PROBE.names], schema=PATHS_TO_PROBE).to_batches()


def count_by_size(paths: pa.Table) -> pa.Table:
    """How many of these paths (PATHS_TO_PROBE) have each size (PROBES_BY_SIZE)."""
    ones = pa.table([paths["size"], pa.repeat(1, len(paths))], schema=PROBES_BY_SIZE)
    return sum_by_size(ones)


def sum_by_size(counts: pa.Table) -> pa.Table:
    """The sums of counts, by size (PROBES_BY_SIZE)."""
    sums = counts.group_by("size", use_threads=False).aggregate([("probes", "sum")])
    return sums.select(["size", "probes_sum"]).rename_columns(PROBES_BY_SIZE.names).cast(PROBES_BY_SIZE)


def beyond_limit(counts: pa.Table, limit: int) -> pa.Array:
    """The sizes whose probes don't fit within the limit if the sizes with the fewest probes come first. `counts` has
    the number of probes of every size (PROBES_BY_SIZE)."""
    in_order = counts.sort_by([("probes", "ascending"), ("size", "ascending")])
    running = pc.cumulative_sum(in_order["probes"])
    return in_order["size"].filter(pc.greater(running, limit)).combine_chunks()


def unsent_probes(paths: pa.RecordBatch, why: str) -> pa.RecordBatch:
    """Probes (PATHS_TO_PROBE) that are never sent, as SERVED: every object of their size is kept."""
    columns = {name: paths.column(name) for name in PATHS_TO_PROBE.names}
    columns |= {
        "address": pa.nulls(len(paths), pa.string()),
        "unclear": pa.repeat(pa.scalar(why), len(paths)),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SERVED.names], schema=SERVED)
