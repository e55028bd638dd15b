"""Candidates from an inventory (a past listing of the namespace), instead of from a new listing.

The mark starts at the time of the inventory, so objects written since then are young and aren't candidates. Objects
that were deleted or replaced since then are detected by the sweep, which checks each key again before it deletes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes, Target
from lakegc_assets.rules.addresses import are_candidates, slices_of
from spark_resources.errors import Refused, WrongUsage
from spark_resources.model import STORED_OBJECTS
from spark_resources.spark.datasets import write_produced
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.inventory import MANIFEST, Inventory, open_inventory, read_inventory
from spark_resources.stores.keys import KINDS

EARLIEST_YEAR = 2000  # an inventory can't be older


def inventory_for_mark(
    location: str, taken: datetime | None, target: Target, *, now: datetime, skew: timedelta
) -> Inventory:
    """Open the inventory for a new mark. Raises `WrongUsage` for an inventory of another bucket or with an impossible
    time, `Refused` for one that is dated in the future."""
    namespace = target.place.namespace
    inventory = open_inventory(location, target.place.settings, taken=taken)
    if inventory.bucket and inventory.bucket != namespace.bucket:
        raise WrongUsage(
            f"{location} is an inventory of the bucket {inventory.bucket}, but {namespace.uri} is in another bucket. "
            "Pass an inventory of the namespace's bucket."
        )
    if inventory.taken.year < EARLIEST_YEAR:
        raise WrongUsage(
            f"the inventory {location} can't have been taken on {inventory.taken:%Y-%m-%d}. Check the time of "
            "the inventory."
        )
    if inventory.taken > now + skew:
        raise Refused(
            f"the inventory {location} is dated {inventory.taken:%Y-%m-%d %H:%M:%S} UTC, which is in the future: the "
            f"store's clock says {now:%Y-%m-%d %H:%M:%S}. Ages of objects can't be determined. Check the time of the "
            "inventory, and the clocks.",
            invariant=6,
        )
    return inventory


def recorded_inventory(run: MarkRun, record_fields: Mapping[str, Any]) -> Inventory:
    """Open the inventory that a mark recorded when it began. Raises `Refused` if it has changed since
    (invariant 3)."""
    location, taken = str(record_fields["where"]), datetime.fromisoformat(str(record_fields["taken"]))
    inventory = open_inventory(location, run.place.settings, taken=None if location.endswith(MANIFEST) else taken)
    if inventory.record_fields() != dict(record_fields):
        raise Refused(
            f"the inventory {location} has changed since mark {run.mark.record.mark_id} began. Make a new mark.",
            invariant=3,
        )
    return inventory


def write_candidates(run: MarkRun, notes: StepNotes, record_fields: Mapping[str, Any]) -> None:
    """Write the candidates among the objects in an inventory (STORED_OBJECTS), one task per file of the inventory."""
    inventory = recorded_inventory(run, record_fields)
    run.log_message(f"reading {plural(len(inventory.files), 'file')} of {inventory.where}")
    prefix = f"{run.place.namespace.path}/" if run.place.namespace.path else ""
    files, local_adapter = {file.key: file for file in inventory.files}, run.local_adapter
    unsupported_keys = run.store.capabilities.unsupported_keys

    def produce(batches: Batches, report: TaskReport) -> Batches:
        for key in (key for batch in batches for key in batch.column(0).to_pylist()):
            for table in read_inventory(inventory, files[key]):
                objects = inventory_candidates(
                    table, prefix, local_adapter=local_adapter, unsupported_keys=unsupported_keys
                )
                report.count(listed=len(table), bytes=pc.sum(objects["size"], min_count=0).as_py())
                yield from objects.to_batches()

    tasks = tasks_from_ids(run.spark, "file", list(files), batch_size=1, max_on_driver=0)
    dataset, report = write_produced(tasks, produce, run.place, run.mark.folder("namespace_slices"), STORED_OBJECTS)
    notes.add_dataset(dataset)
    listed = report.counters["listed"]
    notes.facts |= {
        "objects": dataset.rows,
        "bytes": report.counters["bytes"],
        "inventory_objects": listed,
        "not_candidates": listed - dataset.rows,
        "unreadable_names": 0,
    }
    run.log_message(f"{plural(dataset.rows, 'candidate')} among {plural(listed, 'object')} in the inventory")


def inventory_candidates(
    table: pa.Table, prefix: str, *, local_adapter: bool, unsupported_keys: Collection[str] = frozenset()
) -> pa.Table:
    """The objects of an inventory that are inside the namespace and may be collected (`rules.addresses`):
    STORED_OBJECTS.

    Excludes keys of the kinds (`stores.keys`) that the store doesn't support: it would list such objects under another
    name. If such an object is live, its address is missing here and stops the mark, as with a listing (invariant 3).
    """
    table = table.filter(pc.starts_with(table["key"], prefix))
    addresses = pc.utf8_slice_codeunits(table["key"], len(prefix))
    wanted = are_candidates(addresses, local_adapter=local_adapter)
    columns = [addresses, table["size"], table["modified"], table["checksum"], slices_of(addresses)]
    objects = pa.table(columns, schema=STORED_OBJECTS).filter(wanted)
    kinds = [KINDS[kind] for kind in unsupported_keys if kind in KINDS]
    if not kinds:
        return objects
    supported = [not any(is_of(address) for is_of in kinds) for address in objects["address"].to_pylist()]
    return objects.filter(pa.array(supported, pa.bool_()))
