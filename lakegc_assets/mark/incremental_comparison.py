"""The reference status in an incremental mark: changed addresses are also compared with what earlier marks recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.incremental_listing import FOLDERS
from lakegc_assets.mark.listed_objects import ASSET, COMPARED_PART, FOLDERS_PART
from lakegc_assets.mark.mark_chain import RANGES, MarkChain
from lakegc_assets.rules import garbage
from lakegc_assets.rules.garbage import Rule
from spark_resources.errors import DamagedData
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import ADDRESSES, RANGE_REFS
from spark_resources.spark.arrow_shuffle import GroupedRows, Input
from spark_resources.spark.partitioning import MAX_BROADCAST_ADDRESSES

CONCURRENT_READS = 8  # of files
ROWS_PER_ADDRESS = 4  # the usual maximum: stored, staged at the first read, staged at the second read, in a range


def comparison(run: MarkRun, chain: MarkChain, inputs: Sequence[Input]) -> tuple[list[Input], Rule]:
    """The inputs to co-group (these, the addresses that were looked up, and those that earlier marks recorded), and the
    rule to apply to each group."""
    rows = run.rows(ASSET, FOLDERS, FOLDERS_PART)
    folders = pa.array([row["slice"] for row in rows], pa.string())
    looked_up = run.mark.dataset(ASSET, COMPARED_PART)
    now = [*inputs, Input.of_addresses(garbage.LOOKED_UP, run.place, [looked_up], ADDRESSES)]
    live = chain.refs.keys() & {row["range_id"] for row in run.rows(RANGES[0], RANGE_REFS, RANGES[1])}
    wanted = addresses_of(run, now, chain, live - chain.committed_at_base)
    cutoff, time_resolution = run.mark.record.cutoff, run.store.capabilities.time_resolution

    def rule(rows: GroupedRows) -> tuple[pa.Table, dict[str, int]]:
        if wanted is not None:
            check_all_known(garbage.addresses_now(rows), wanted)
        return garbage.incremental_reference_status(rows, cutoff, time_resolution, folders)

    return [*now, chain.known_addresses(live, wanted)], rule


def addresses_of(
    run: MarkRun, inputs: Sequence[Input], chain: MarkChain, live_again: Collection[str]
) -> pa.Array | None:
    """All addresses in these inputs and in the earlier marks' ranges that are `live_again`; None if there are too
    many to fit into the memory of one task."""
    entries = sum(chain.refs[range_id]["entries"] for range_id in live_again)
    if entries + sum(source.count for source in inputs) > ROWS_PER_ADDRESS * MAX_BROADCAST_ADDRESSES:
        return None
    files = [file for source in inputs for file in source.files]
    with ThreadPoolExecutor(CONCURRENT_READS) as pool:
        columns = list(pool.map(lambda file: file.read()["address"], files))
    if live_again:
        columns.append(chain.addresses(live_again).toArrow()["address"])
    distinct = garbage.distinct(*columns)
    return distinct if len(distinct) <= MAX_BROADCAST_ADDRESSES else None


def check_all_known(addresses: pa.Array, wanted: pa.Array) -> None:
    """Raise `DamagedData` (invariant 3) if an address is not in `wanted`. In that case, what earlier marks recorded
    about it was not read, so it may be live."""
    unknown = addresses.filter(pc.invert(pc.is_in(addresses, value_set=wanted)))
    if len(unknown):
        raise DamagedData(
            f"{plural(len(unknown), 'address')}, such as {unknown[0].as_py()!r}, could not be compared with the "
            "records of earlier marks. This is a bug in lakegc. Nothing was marked. Make a new mark with --full, and "
            "report the bug.",
            invariant=3,
        )


def whole_repository_counts(counts: Mapping[str, int], base: MarkRecord) -> dict[str, int]:
    """The counts for the whole repository: the objects that were compared now, plus those that the base mark counted as
    committed and that are unchanged."""
    base_facts = base.step("expired_set").facts
    objects = max(base_facts["committed"] - counts["again"], 0)
    size = max(base_facts["committed_bytes"] - counts["again_bytes"], 0)
    unchanged = {
        "candidates": objects,
        "candidate_bytes": size,
        "committed": objects,
        "committed_bytes": size,
        "live_inside": objects,
    }
    return {name: value + unchanged.get(name, 0) for name, value in counts.items()} | {"compared": counts["candidates"]}
