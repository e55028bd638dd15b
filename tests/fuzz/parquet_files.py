"""Parquet files of a namespace: of marks, foreign marks, sweeps, backups, permits, inventories and the server's lists.

Each is refused, or gives a valid table with the declared schema. A hash in a list or record protects most of them; here
the hash always fits, as if the list were also forged.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakegc_assets.approval.verify_files import address_column
from spark_resources.copying.backup_task import properties_from_json, properties_to_json
from spark_resources.copying.copy_log import LOGGED, CopyStatus, Log
from spark_resources.deleting.permit import _addresses
from spark_resources.deleting.receipts import INTENTS, Receipts
from spark_resources.lakefs.gc_lists import UNCOMMITTED_COLUMNS, read_uncommitted_file
from spark_resources.mark_store.foreign_expired_set import addresses_in
from spark_resources.model import ADDRESSES, RECEIPTS, STORED_OBJECTS
from spark_resources.spark.datasets import Dataset, File, all_batches, parquet_bytes, read_file
from spark_resources.stores.inventory import LISTED, Inventory, InventoryFile, read_inventory
from spark_resources.stores.transfer import ObjectProperties
from tests.fuzz import namespace
from tests.fuzz.mutations import mutate_bytes
from tests.fuzz.records import MARK, NOON
from tests.fuzz.target import Kind, Target, require, value_or_refusal

ROWS = 5
Read = Callable[[bytes], Any]


def _file(data: bytes) -> File:
    return File("0.parquet", ROWS, len(data), hashlib.sha256(data).hexdigest())


def _dataset_file(data: bytes) -> Any:
    namespace.put(f"{MARK}a/0.parquet", data)
    return read_file(namespace.place(), f"{MARK}a/", _file(data), STORED_OBJECTS)


def _dataset_batches(data: bytes) -> Any:
    namespace.put(f"{MARK}a/0.parquet", data)
    batches = list(all_batches(namespace.place(), Dataset(f"{MARK}a/", (_file(data),)), STORED_OBJECTS, rows=2))
    return pa.concat_tables(batches) if batches else None


def _receipts(name: str, data: bytes) -> Any:
    key = f"{MARK}receipts/0001/0-0.{ROWS}.{name}.parquet"
    namespace.put(key, data)
    return Receipts(namespace.place(), f"{MARK}receipts/").read(key)


def _copy_log(data: bytes) -> Any:
    key = f"backup/m1/log/0001/0-0.{ROWS}.15.parquet"
    namespace.put(key, data)
    rows = Log(namespace.place(), "backup/m1/log/").read(key)
    for row in rows.select(["kept", "size", "modified"]).to_pylist():
        read = partial(properties_from_json, row["kept"], row["size"], row["modified"])
        if (properties := value_or_refusal(read, "the backup's log")) is not None:
            texts = [*properties.headers.items(), *properties.metadata.items()]
            require(all(isinstance(text, str) for pair in texts for text in pair), f"headers {properties}")
    return rows


def _permit_addresses(data: bytes) -> None:
    namespace.put(f"{MARK}became-live.parquet", data)
    addresses = _addresses(namespace.place().store(), f"{MARK}became-live.parquet", hashlib.sha256(data).hexdigest())
    require(all(isinstance(address, str) for address in addresses), f"addresses {addresses!r:.300}")


def _inventory(name: str, columns: tuple[str, ...], data: bytes) -> Any:
    namespace.put(f"inventory/{name}", data)
    inventory = Inventory("here", namespace.place(), (), NOON, "", columns=columns, keys_are_encoded=bool(columns))
    tables = list(read_inventory(inventory, InventoryFile(f"inventory/{name}")))
    return pa.concat_tables(tables) if tables else None


def _check(where: str, read: Read, schema: pa.Schema | None, data: bytes) -> None:
    table = value_or_refusal(partial(read, data), where)
    if table is None:
        return
    table.validate(full=True)
    if schema is not None:
        require(table.schema.names == schema.names, f"the columns {table.schema.names}")
        for field in schema:
            column = table.column(field.name)
            require(column.type == field.type, f"{field.name} is of type {column.type}")
            require(field.nullable or column.null_count == 0, f"{field.name} has nulls")


# --- intact files -----------------------------------------------------------------------------------------------------

_VALUES: dict[pa.DataType, Callable[[int], Any]] = {
    pa.string(): lambda n: f"data/slice/{n:04d}",
    pa.int64(): lambda n: n,
    pa.int32(): lambda n: n,
    pa.float64(): float,
    pa.bool_(): bool,
    RECEIPTS.field("at").type: lambda _: NOON,
}
KEPT = properties_to_json(ObjectProperties(1, NOON, None, "", {"ContentType": "text/csv"}, {"a": "b"}))


def rows_of(schema: pa.Schema) -> pa.Table:
    """ROWS rows of a schema."""
    columns = {}
    for field in schema:
        value = _VALUES.get(field.type, lambda _: NOON)
        columns[field.name] = [KEPT if field.name == "kept" else value(n) for n in range(ROWS)]
    if "outcome" in columns:
        columns["outcome"] = [CopyStatus.COPIED.value] * ROWS if "kept" in columns else ["deleted"] * ROWS
    return pa.table(columns, schema=schema)


UNCOMMITTED = pa.schema([pa.field(UNCOMMITTED_COLUMNS[0], pa.string()), pa.field(UNCOMMITTED_COLUMNS[1], pa.int64())])


def _seeds(schema: pa.Schema) -> list[bytes]:
    plain = io.BytesIO()
    pq.write_table(rows_of(schema), plain, compression="none", use_dictionary=False)
    return [parquet_bytes(rows_of(schema)), plain.getvalue()]


def _mutate(schema: pa.Schema, data: bytes, random: Random) -> bytes:
    """Changes to any bytes, or another file with changes to its columns."""
    if random.random() < 0.6:
        return mutate_bytes(data, random)
    table = rows_of(schema)
    for _ in range(random.randint(1, 2)):
        table = _change_table(table, random)
    out = io.BytesIO()
    with suppress(pa.ArrowException):
        pq.write_table(table, out, compression=random.choice(("none", "snappy", "zstd", "gzip")),
                       row_group_size=random.choice((1, 2, 1000)), version=random.choice(("1.0", "2.6")))  # fmt: skip
    return out.getvalue()


def _change_table(table: pa.Table, random: Random) -> pa.Table:
    if not table.num_columns:
        return table
    at = random.randrange(table.num_columns)
    name, column = table.schema.names[at], table.column(at)
    match random.randrange(7):
        case 0:
            return table.remove_column(at)
        case 1:
            return table.append_column(name, column)
        case 2:
            return table.set_column(at, name, pa.nulls(len(table), column.type))
        case 3:
            return table.slice(random.randrange(len(table) + 1))
        case 4:
            texts = [random.choice(("", "\x00", "{", "[[", "{}", '{"headers": 1, "metadata": []}', "x" * 3000))] * len(
                table
            )
            return table.set_column(at, name, pa.array(texts, pa.string()))
        case 5:
            return table.set_column(at, name, pa.array([b"\xff\xfe"] * len(table), pa.binary()))
    other = random.choice(
        (pa.int8(), pa.float64(), pa.bool_(), pa.large_string(), pa.timestamp("ns"), pa.list_(pa.string()))
    )
    return table.set_column(at, name, pa.nulls(len(table), other))


def _kind(name: str, where: str, read: Read, schema: pa.Schema, *, result: pa.Schema | None = None) -> Kind:
    return Kind(name, partial(_seeds, schema), partial(_check, where, read, result), partial(_mutate, schema))


CSV = b'key,size,last_modified,etag\n"data/a",1,2026-11-21T12:00:00Z,x\ndata/b,2,2026-11-21T12:00:00.5+01:00,\n'
COLUMNS = ("Bucket", "Key", "Size", "LastModifiedDate", "ETag", "IsLatest", "IsDeleteMarker")
HEADLESS = b'"b","data%2Fa+b","1","2026-11-21T12:00:00.000Z","x","true","false"\n'


@cache
def _gzipped() -> list[bytes]:
    import gzip

    return [gzip.compress(CSV, mtime=0), gzip.compress(CSV * 1000, mtime=0)]


KINDS = [
    _kind("file of a mark", "0.parquet", _dataset_file, STORED_OBJECTS, result=STORED_OBJECTS),
    _kind("file of a mark, in batches", "0.parquet", _dataset_batches, STORED_OBJECTS, result=STORED_OBJECTS),
    _kind("receipt", "0-0.5.receipt", partial(_receipts, "receipt"), RECEIPTS, result=RECEIPTS),
    _kind("intent", "0-0.5.intent", partial(_receipts, "intent"), INTENTS, result=INTENTS),
    _kind("copy log", "0-0.5.15", _copy_log, LOGGED, result=LOGGED),
    _kind("foreign mark", "here", lambda data: addresses_in(data, "here"), ADDRESSES),
    _kind("approved file", "here", lambda data: address_column(data, "here"), ADDRESSES),
    _kind("permit's addresses", "became-live", _permit_addresses, ADDRESSES),
    _kind("uncommitted", "here", lambda data: read_uncommitted_file(data, where="here"), UNCOMMITTED),
    _kind("inventory", "i.parquet", partial(_inventory, "i.parquet", ()), LISTED, result=LISTED),
    Kind("inventory as CSV", lambda: [CSV], partial(_check, "i.csv", partial(_inventory, "i.csv", ()), LISTED)),
    Kind("inventory without a header", lambda: [HEADLESS],
         partial(_check, "h.csv", partial(_inventory, "h.csv", COLUMNS), LISTED)),
    Kind("compressed inventory", _gzipped, partial(_check, "i.csv.gz", partial(_inventory, "i.csv.gz", ()), LISTED)),
]  # fmt: skip
TARGETS = [Target("parquet", KINDS)]
