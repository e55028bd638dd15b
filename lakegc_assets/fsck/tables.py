"""Verify metaranges and ranges on the executors. Each table is read once, and a damaged one is reported, not raised.

Findings are returned in a column `note` (JSON) next to the rows, so that one job returns both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.fsck.findings import Finding, Problem, problem_of, reason_of
from spark_resources import sstable
from spark_resources.errors import DamagedData, LakegcError
from spark_resources.lakefs.ranges import (
    ENTRY_BYTES,
    addresses_inside,
    check_range,
    range_tasks,
    table_key,
)
from spark_resources.model import RANGE_REFS, AddressType
from spark_resources.model import Location as Where
from spark_resources.spark.partitioning import tasks_from_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches, task_name
from spark_resources.sstable.blocks import MAGIC
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import prefetch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RANGE_FIELDS = [field.with_nullable(True) for field in RANGE_REFS]
_FLAG = pa.bool_()

#: `live`: a retained commit or a head refers to it; `head`: a head refers to it.
METARANGES = pa.schema([("metarange_id", pa.string()), ("live", _FLAG), ("head", _FLAG)])
#: A row for each range of a metarange, and one with a note for a damaged metarange.
RANGES_FOUND = pa.schema([*METARANGES, *_RANGE_FIELDS, ("bytes", pa.int64()), ("note", pa.string())])
#: A table to verify: a range as its metarange describes it, or an existing but unreferenced table.
RANGES = pa.schema([*_RANGE_FIELDS, ("live", _FLAG)])
#: A live or stored address, or a note: a finding, or the report of a task.
OBSERVED_ADDRESSES = pa.schema(
    [("address", pa.string()), ("listed", _FLAG), ("committed", _FLAG), ("staged", _FLAG), ("note", pa.string())]
)


# --- one table ------------------------------------------------------------------------------------------------------


def read_tables(place: Place, ids: Iterable[str]) -> Iterator[tuple[str, bytes | LakegcError]]:
    """Each id with the bytes of its table, prefetched, or with the error if the table can't be read."""
    errors: dict[str, LakegcError] = {}

    def read(table_id: str) -> bytes:
        try:
            return place.store().read(table_key(table_id))
        except LakegcError as error:
            errors[table_id] = error
            return b""

    for table_id, data in prefetch(ids, read, place.settings.reading_requests):
        yield table_id, errors.pop(table_id, data)


def verified_bytes(table_id: str, data: bytes | LakegcError, decoder: sstable.Decoder | None = None) -> bytes:
    """The bytes of a table that matches its id. Raises a `LakegcError` with the reason if it doesn't."""
    if isinstance(data, LakegcError):
        raise data
    sstable.verify_table(data, name=table_id, decoder=decoder)
    return data


def finding_note(what: str, thing_id: str, error: LakegcError) -> str:
    """A finding, serialized so that an executor can return it to the driver."""
    return json.dumps({"what": what, "id": thing_id, "problem": problem_of(error).value, "why": reason_of(error)})


def report_of(work: str, report: TaskReport) -> pa.RecordBatch:
    """The report of a task as a row of OBSERVED_ADDRESSES. It names the task, because equal notes would be counted
    once."""
    return batch_of(
        OBSERVED_ADDRESSES, note=[json.dumps({"task": f"{work} {task_name()}", "report": report.to_json()})]
    )


def finding_of(note: dict[str, Any]) -> Finding:
    return Finding(note["what"], note["id"], Problem(note["problem"]), note["why"])


def batch_of(schema: pa.Schema, **columns: Any) -> pa.RecordBatch:
    """A batch with these columns, the others null; a scalar applies to all rows."""
    rows = next(len(values) for values in columns.values() if isinstance(values, list | pa.Array))
    arrays = []
    for field in schema:
        values = columns.get(field.name)
        if isinstance(values, pa.Array):
            arrays.append(values)
        else:
            arrays.append(pa.array(values if isinstance(values, list) else [values] * rows, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- metaranges -----------------------------------------------------------------------------------------------------


def ranges_of_metaranges(spark: SparkSession, place: Place, metaranges: pa.Table) -> DataFrame:
    """Verify these metaranges (rows of METARANGES) against their ids, and return their ranges (RANGES_FOUND)."""

    def read(batches: Batches) -> Batches:
        rows = {str(row["metarange_id"]): row for batch in batches for row in batch.to_pylist()}
        for metarange, data in read_tables(place, rows):
            try:
                refs = sstable.read_ranges(verified_bytes(metarange, data), name=metarange)
            except LakegcError as error:
                yield batch_of(RANGES_FOUND, **rows[metarange], note=[finding_note("metarange", metarange, error)])
                continue
            size = len(data) if isinstance(data, bytes) else 0
            yield batch_of(RANGES_FOUND, **rows[metarange], bytes=[size])  # of the metarange itself
            if refs:
                yield batch_of(
                    RANGES_FOUND,
                    **rows[metarange],
                    range_id=[ref.id for ref in refs],
                    entries=[ref.count for ref in refs],
                    min_key=[ref.min_key for ref in refs],
                    max_key=[ref.max_key for ref in refs],
                )

    return tasks_from_rows(lambda: spark, metaranges, batch_size=16).mapped(read, RANGES_FOUND)


# --- ranges ---------------------------------------------------------------------------------------------------------


def verified_table_addresses(spark: SparkSession, place: Place, ranges: pa.Table, *, total_entries: int) -> DataFrame:
    """Verify these tables (rows of RANGES). The result (OBSERVED_ADDRESSES) has the addresses inside the namespace from
    live ranges, a note for each table that is damaged or can't be read, and a note with the report of each task."""

    def read(batches: Batches) -> Batches:
        report = TaskReport()
        rows = [row for batch in batches for row in batch.to_pylist()]
        decoder = sstable.default_decoder(total_entries * ENTRY_BYTES)
        refs_by_id = {str(row["range_id"]): row for row in rows if row["entries"] is not None}
        for range_id, data in read_tables(place, refs_by_id):
            try:
                yield from addresses_of_range(place, refs_by_id[range_id], data, decoder, report)
            except LakegcError as error:
                yield batch_of(OBSERVED_ADDRESSES, note=[finding_note("range", range_id, error)])
        for table_id, data in read_tables(place, [str(row["range_id"]) for row in rows if row["entries"] is None]):
            try:
                report.count(other_tables=1, bytes=len(verified_bytes(table_id, data)))
            except LakegcError as error:
                yield batch_of(OBSERVED_ADDRESSES, note=[finding_note(damaged_table_kind(data), table_id, error)])
        yield report_of("verifying", report)

    return range_tasks(lambda: spark, ranges).mapped(read, OBSERVED_ADDRESSES)


UNREFERENCED_TABLE, NOT_A_TABLE = "table", "file"


def damaged_table_kind(data: bytes | LakegcError) -> str:
    """The kind of a damaged, unreferenced table: it may just be a user's file that is named like a table."""
    return UNREFERENCED_TABLE if isinstance(data, LakegcError) or data.endswith(MAGIC) else NOT_A_TABLE


def addresses_of_range(
    place: Place, ref: dict[str, Any], data: bytes | LakegcError, decoder: sstable.Decoder, report: TaskReport
) -> Batches:
    """The addresses of one range inside the namespace, if the range is live. Decodes every entry in either case."""
    range_id = str(ref["range_id"])
    verified_data = verified_bytes(range_id, data, decoder)
    check_range(sstable.read_properties(verified_data, name=range_id), ref)
    batch = sstable.read_entries(verified_data, name=range_id, columns=("address", "address_type"), decoder=decoder)
    keys, outside = addresses_inside(batch.column(0), batch.column(1), place.namespace)
    report.count(ranges=1, bytes=len(verified_data), entries=batch.num_rows)
    if ref["live"]:
        report.count(outside=outside)
        yield batch_of(OBSERVED_ADDRESSES, address=keys, committed=True)


# --- paths of an address --------------------------------------------------------------------------------------------

REFERENCES = pa.schema([("address", pa.string()), ("range_id", pa.string()), ("path", pa.string())])


def references_to(spark: SparkSession, place: Place, ranges: pa.Table, addresses: Sequence[str]) -> DataFrame:
    """Which of these ranges (rows of RANGES) have one of the addresses, and at which path (columns of REFERENCES)."""
    wanted, wanted_array = frozenset(addresses), pa.array(addresses, pa.string())

    def read(batches: Batches) -> Batches:
        refs = {str(row["range_id"]): row for batch in batches for row in batch.to_pylist()}
        decoder = sstable.default_decoder(sum(ref["entries"] for ref in refs.values()) * ENTRY_BYTES)
        for range_id, data in read_tables(place, refs):
            if isinstance(data, LakegcError):
                continue  # it is already a finding
            try:
                batch = sstable.read_entries(
                    data, name=range_id, columns=("path", "address", "address_type"), decoder=decoder
                )
            except DamagedData:
                continue  # it is already a finding, too
            matching = [
                (path, key) for path, key in inside_paths(possible_matches(batch, wanted_array), place) if key in wanted
            ]
            if matching:
                paths = [path.decode(errors="backslashreplace") for path, _ in matching]
                yield batch_of(REFERENCES, address=[key for _, key in matching], range_id=range_id, path=paths)

    return range_tasks(lambda: spark, ranges).mapped(read, REFERENCES)


def possible_matches(batch: pa.RecordBatch, addresses: pa.Array) -> pa.RecordBatch:
    """The rows that may have one of the addresses: equal ones, and those with an address in another form."""
    other_form = pc.not_equal(batch.column("address_type"), pa.scalar(int(AddressType.RELATIVE), pa.int8()))
    return batch.filter(pc.or_(other_form, pc.is_in(batch.column("address"), value_set=addresses)))


def inside_paths(batch: pa.RecordBatch, place: Place) -> Iterator[tuple[bytes, str]]:
    """Paths with their addresses as keys in the namespace, without addresses outside it."""
    for path, address, kind in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        where, key = place.namespace.locate(address, AddressType(kind))
        if where is Where.INSIDE:
            yield path, key
