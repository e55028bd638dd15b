"""What a mark and its chain recorded, as inputs of a comparison: listings, attributions, sweeps since then, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import listed_objects
from lakegc_assets.mark.incremental_listing import FOLDERS
from lakegc_assets.mark.mark_chain import NOT_RETAINED_OBJECTS, SIZES
from lakegc_assets.mark.mark_chain import REMOVED as REMOVED_OUTCOMES
from lakegc_assets.mark.metaranges import head_metaranges
from lakegc_assets.queries.history import History
from lakegc_assets.queries.range_groups import Select, range_numbers_of
from lakegc_assets.rules.current_listing import REMOVED, Listing
from lakegc_assets.rules.what_if import ATTRIBUTED, ATTRIBUTED_OBJECTS, EXPIRED
from lakegc_assets.sweep.report import read_report_if_intact
from spark_resources.mark_store.mark import Mark, folder_ids
from spark_resources.model import (
    ADDRESSES,
    EXPIRED_OBJECTS,
    NOT_RETAINED,
    RANGE_SIZES,
    RECEIPTS,
    STORED_OBJECTS,
)
from spark_resources.spark.arrow_shuffle import GroupedRows, Input
from spark_resources.spark.datasets import Dataset, all_batches, open_dataset
from spark_resources.spark.tasks import Rows, Tasks
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

REMOVED_BY_SWEEPS = "removed by sweeps"
EXPIRED_SET = "expired_set"


def parts_of(mark: Mark, parts: Iterable[tuple[str, str]]) -> list[Dataset]:
    """The datasets of these parts (pairs of asset and part), as far as the mark wrote them."""
    return [mark.dataset(asset, part) for asset, part in parts if part in mark.record.step(asset).datasets]


def counted_input(history: History, name: str, rows: Rows, schema: pa.Schema, *, reduce: Select | None = None) -> Input:
    rows = history.run.persist(rows)
    count = len(rows.table) if isinstance(rows, Tasks) else rows.count()
    return Input.of_rows(name, rows, schema, count, reduce=reduce)


def listing_inputs(history: History) -> Iterator[Input]:
    """For each mark of the chain, the objects that it found and the addresses that it looked up."""
    for number, mark in enumerate(history.marks):
        run = history.reading(mark)
        yield Input.whole(f"{listed_objects.ASSET} {number}", run.place, listed_objects.datasets(run), STORED_OBJECTS)
        compared = parts_of(mark, [(listed_objects.ASSET, listed_objects.COMPARED_PART)])
        yield Input.of_addresses(f"{listed_objects.COMPARED_PART} {number}", run.place, compared, ADDRESSES)


def folders_of(mark: Mark) -> pa.Array | None:
    """The folders that an incremental mark listed; None for a full mark, which listed all of them."""
    if not mark.record.is_incremental:
        return None
    folders = mark.dataset(listed_objects.ASSET, listed_objects.FOLDERS_PART)
    tables = [FOLDERS.empty_table(), *all_batches(mark.place, folders, FOLDERS)]
    return pa.concat_tables(tables)["slice"].combine_chunks()


def listings_in(rows: GroupedRows, listings: Sequence[tuple[datetime, pa.Array | None]]) -> list[Listing]:
    return [
        Listing(
            rows[f"{listed_objects.ASSET} {number}"],
            rows[f"{listed_objects.COMPARED_PART} {number}"]["address"],
            folders,
            start,
        )
        for number, (start, folders) in enumerate(listings)
    ]


def attributed_inputs(history: History) -> Iterator[Input]:
    """The mark's expired set, and the commits to which it attributed all objects that no retained commit refers to."""
    place, mark = history.place, history.mark
    expired, others = mark.dataset(EXPIRED_SET), mark.dataset(*NOT_RETAINED_OBJECTS)

    def select(table: pa.Table) -> pa.Table:
        return table.filter(pc.is_valid(table["commit_id"])).select(ATTRIBUTED_OBJECTS.names)

    yield Input.of_addresses(EXPIRED, place, [expired], EXPIRED_OBJECTS)
    for dataset, schema in ((expired, EXPIRED_OBJECTS), (others, NOT_RETAINED)):
        yield Input.selected(ATTRIBUTED, place, [dataset], schema, ATTRIBUTED_OBJECTS, select)


def removed_inputs(place: Place, *, since: datetime) -> Iterator[Input]:
    """The addresses whose objects sweeps removed (REMOVED), according to the reports of the sweeps that ended at or
    after `since`, by the store's clock."""
    outcomes = pa.array([outcome.value for outcome in REMOVED_OUTCOMES])
    yield Input.of_files(REMOVED_BY_SWEEPS, (), REMOVED)
    ids = folder_ids(place.store())
    for report in fetch_in_parallel(ids, lambda mark_id: read_report_if_intact(place, mark_id)):
        if report is None or report.ended < since:
            continue
        if not any(report.objects.get(outcome) for outcome in outcomes.to_pylist()):
            continue
        began = report.began

        def select(table: pa.Table, began: datetime = began) -> pa.Table:
            removed = table.filter(pc.is_in(table["outcome"], value_set=outcomes))
            times = pa.repeat(pa.scalar(began, REMOVED.field("began").type), len(removed))
            return pa.table([removed["address"], times], schema=REMOVED)

        dataset = open_dataset(place, report.dataset["folder"], sha256=report.dataset["sha256"])
        yield Input.selected(REMOVED_BY_SWEEPS, place, [dataset], RECEIPTS, REMOVED, select)


def sizes_at_heads(history: History) -> pa.Array:
    """The distinct sizes of the objects at branch heads (int64)."""
    metaranges = head_metaranges(history.run) & history.recorded_ranges.metaranges
    at_heads = range_numbers_of(pc.unique(history.recorded_ranges.ranges_of(metaranges)["range_id"]))
    sizes = [pa.array([], pa.int64())]
    for dataset in (dataset for mark in history.marks for dataset in parts_of(mark, [SIZES])):
        for table in all_batches(history.place, dataset, RANGE_SIZES):
            sizes.append(pc.unique(table["size"].filter(pc.is_in(table["range"], value_set=at_heads))))
    return pc.unique(pa.concat_arrays(sizes))
