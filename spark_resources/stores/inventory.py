"""Inventories: existing lists of a bucket's objects, read instead of listing the bucket.

S3 Inventory writes a `manifest.json` (bucket, time, schema, files with their MD5), a `manifest.checksum` next to it,
and Parquet or gzipped CSV files; keys in CSV files are URL-encoded. Any other Parquet or CSV file works, too, if it has
columns with recognized names for key, size, time and, optionally, checksum. Keys are full keys in the bucket.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from spark_resources.errors import DamagedData, WrongUsage, parse_problem, plural
from spark_resources.model import Namespace
from spark_resources.records.json_records import read_json
from spark_resources.records.parquet_files import open_parquet, parquet_batches
from spark_resources.stores.base import Store
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings

BATCH_ROWS = 50_000
MAX_EXPANSION = 400  # gzip can reach 1,000; keys of 800 bytes that differ only in a number reach 156
ALWAYS_ALLOWED_BYTES = 64 << 20
MAX_HEADER_BYTES = 1 << 20
EXTENSIONS = (".parquet", ".csv", ".csv.gz")
MANIFEST, CHECKSUM = "manifest.json", "manifest.checksum"
LISTED = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("checksum", pa.string()),
    ]
)
"""The current objects of a bucket, with full keys; `size` in bytes, `modified` by the store's clock."""

# accepted column names, ignoring case, spaces, dashes and underscores
_ACCEPTED_NAMES: Mapping[str, frozenset[str]] = {
    "key": frozenset({"key", "name", "path"}),
    "size": frozenset({"size", "bytes", "contentlength"}),
    "modified": frozenset({"modified", "lastmodified", "lastmodifieddate", "mtime", "time"}),
    "checksum": frozenset({"checksum", "etag", "md5"}),
    "latest": frozenset({"islatest"}),
    "deleted": frozenset({"isdeletemarker"}),
}
_REQUIRED = ("key", "size", "modified")


@dataclass(frozen=True, slots=True)
class InventoryFile:
    """One file of an inventory: its key in the inventory's location, and its MD5 in hex if a manifest gives one."""

    key: str
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The files of an inventory, and when it was taken.

    `taken` is a time by the store's clock before the first object was listed. `bucket` is the bucket of the keys, "" if
    unknown. `columns` are the column names of CSV files without a header row, and `keys_are_encoded` says whether their
    keys are URL-encoded. `sha256` identifies the list of files.
    """

    where: str
    place: Place
    files: tuple[InventoryFile, ...]
    taken: datetime
    sha256: str
    bucket: str = ""
    columns: tuple[str, ...] = ()
    keys_are_encoded: bool = False

    def record_fields(self) -> dict[str, Any]:
        """The fields that a mark records."""
        return {"where": self.where, "taken": self.taken.isoformat(), "files": len(self.files), "sha256": self.sha256}


# --- finding it -----------------------------------------------------------------------------------------------------


def open_inventory(location: str, settings: StoreSettings, *, taken: datetime | None) -> Inventory:
    """The inventory at a URI or a local path: a manifest of S3 Inventory, a file, or a folder of files.

    `taken` is required without a manifest, and refused with one. Raises `WrongUsage` if lakegc can't read the location
    as an inventory, `DamagedData` for an invalid manifest, and `NotFound` if the manifest or the bucket doesn't exist.
    """
    if "://" not in location:
        location = str(Path(location).expanduser().absolute())  # recorded by a mark, which may resume elsewhere
    place, key = _resolve_location(location, settings)
    if key.rpartition("/")[2] == MANIFEST:
        if taken is not None:
            raise WrongUsage(
                f"{location} is a manifest, which contains the inventory's start time. Omit --inventory-taken."
            )
        return _inventory_of_manifest(place, key, location)
    if taken is None:
        raise WrongUsage(
            f"{location} is not a {MANIFEST}, so the inventory's start time is unknown. Pass --inventory-taken with a "
            "time before its first key was listed, such as 2026-11-21T00:00:00Z."
        )
    if taken.tzinfo is None:
        raise WrongUsage(f"the time {taken.isoformat()} has no time zone: expected a time such as 2026-11-21T00:00:00Z")
    files = _inventory_files(place.store(), key)
    if not files:
        raise WrongUsage(f"there are no .parquet, .csv or .csv.gz files at {location}. Check the inventory's location.")
    listing = json.dumps([[file.key, size, tag] for file, size, tag in files]).encode()
    return Inventory(
        location,
        place,
        tuple(file for file, _, _ in files),
        taken.astimezone(UTC),
        hashlib.sha256(listing).hexdigest(),
    )


def _resolve_location(location: str, settings: StoreSettings) -> tuple[Place, str]:
    """The location of an inventory's files, and the key within it."""
    if "://" in location:
        scheme, _, rest = location.partition("://")
        bucket, _, key = rest.partition("/")
        if scheme.lower() != "s3" or not bucket:
            raise WrongUsage(
                f"{location} can't be an inventory's location: expected s3://<bucket>/<key> or a path on this machine"
            )
        return Place(Namespace.parse(f"s3://{bucket}"), settings), key
    path = Path(location)
    if not path.exists():
        raise WrongUsage(f"{path} does not exist. Check the inventory's location.")
    local_settings = settings.model_copy(update={"local_path": str(path.parent.parent)})
    key = path.name + ("/" if path.is_dir() else "")
    return Place(Namespace.parse(f"local://{path.parent.name}"), local_settings), key


def _inventory_of_manifest(place: Place, key: str, location: str) -> Inventory:
    store = place.store()
    data = store.read(key)
    expected_md5 = store.read(key.removesuffix(MANIFEST) + CHECKSUM).decode(errors="replace").strip().strip('"')
    if hashlib.md5(data, usedforsecurity=False).hexdigest() != expected_md5.lower():
        raise DamagedData(f"{location} doesn't match its {CHECKSUM}. Wait until the inventory is complete.")
    try:
        manifest = read_json(data)
        file_format, schema = str(manifest["fileFormat"]).upper(), str(manifest.get("fileSchema", ""))
        taken = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(manifest["creationTimestamp"]))
        files = tuple(InventoryFile(str(file["key"]), str(file["MD5checksum"]).lower()) for file in manifest["files"])
        bucket = str(manifest["sourceBucket"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise DamagedData(
            f"{location} is not a valid S3 Inventory manifest ({parse_problem(error)}). Use another inventory."
        ) from error
    if file_format not in ("CSV", "PARQUET"):
        raise WrongUsage(f"{location} is an inventory in {file_format} format. lakegc supports Parquet and CSV.")
    columns = tuple(name.strip() for name in schema.split(",")) if file_format == "CSV" else ()
    sha256 = hashlib.sha256(data).hexdigest()
    return Inventory(location, place, files, taken, sha256, bucket, columns, keys_are_encoded=file_format == "CSV")


def _inventory_files(store: Store, key: str) -> list[tuple[InventoryFile, int, str]]:
    """The inventory file at this key, or else those in the folder of that name.

    Each comes with its size and its checksum, or its time if it has none. Files without one of the EXTENSIONS are left
    out.
    """
    prefix = key if key.endswith("/") or not key else f"{key}/"
    exact = [listed for page in store.pages(key) for listed in page.objects if listed.key == key]
    objects = exact or [listed for page in store.pages(prefix) for listed in page.objects]
    wanted = sorted((listed for listed in objects if listed.key.endswith(EXTENSIONS)), key=lambda listed: listed.key)
    return [(InventoryFile(listed.key), listed.size, listed.checksum or str(listed.modified)) for listed in wanted]


# --- reading it -----------------------------------------------------------------------------------------------------


def read_inventory(inventory: Inventory, file: InventoryFile) -> Iterator[pa.Table]:
    """The current objects in one file, as tables of LISTED. Raises `DamagedData` for an invalid inventory file."""
    where = f"{inventory.place.store().where}/{file.key}"
    data = inventory.place.store().read(file.key)
    if file.md5 is not None and hashlib.md5(data, usedforsecurity=False).hexdigest() != file.md5:
        raise DamagedData(
            f"{where} doesn't match its MD5 in the manifest: it was altered or is incomplete. Use another inventory."
        )
    try:
        for table in _tables(data, file.key, inventory.columns):
            yield _current_objects(table, keys_are_encoded=inventory.keys_are_encoded)
    except (pa.ArrowException, csv.Error, OSError, EOFError, ValueError, zlib.error) as error:
        raise DamagedData(
            f"{where} is not a valid inventory ({error}). Correct the file, or use another inventory."
        ) from error


def _tables(data: bytes, name: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    if name.endswith(".parquet"):
        with open_parquet(data) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        wanted = [column for column in schema.names if _meaning_of(column) is not None]
        for batch in parquet_batches(data, rows=BATCH_ROWS, columns=wanted):
            yield _select_known_columns(batch)
        if not rows:
            yield _select_known_columns(schema.empty_table())
        return

    def open_data() -> io.BufferedIOBase:
        return io.BufferedReader(_Decompressed(data)) if name.endswith(".gz") else io.BytesIO(data)

    names = list(columns) or _header_row(open_data().readline(MAX_HEADER_BYTES))
    read_options = pa_csv.ReadOptions(column_names=columns or None, block_size=8 << 20)
    convert_options = pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    parse_options = pa_csv.ParseOptions(newlines_in_values=True)
    with pa_csv.open_csv(open_data(), read_options, parse_options, convert_options) as reader:
        for batch in reader:
            table = _select_known_columns(pa.Table.from_batches([batch]))
            if guessed := [field.name for field in table.schema if field.type != pa.string()]:
                raise ValueError(f"its first row is not a valid header for {', '.join(guessed)}")
            yield table


class _Decompressed(io.RawIOBase):
    """Gzipped data, decompressed as it is read and never as a whole.

    Raises `ValueError` if it expands more than any list of keys would: a file of a few MB of compressed zeros would
    keep a task busy for hours.
    """

    def __init__(self, data: bytes) -> None:
        self._stream = gzip.GzipFile(fileobj=io.BytesIO(data))
        self._limit = self._remaining = max(MAX_EXPANSION * len(data), ALWAYS_ALLOWED_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        self._remaining -= count
        if self._remaining < 0:
            raise ValueError(
                f"it decompresses to more than {self._limit:,} bytes, over {MAX_EXPANSION} times its size, which is "
                "unlikely for a list of keys; decompress it and use the .csv file if it is one"
            )
        return count


def _header_row(first_line: bytes) -> list[str]:
    """The column names exactly as written, with spaces, because Arrow guesses a column's type if its name differs."""
    return next(csv.reader([first_line.partition(b"\n")[0].decode("utf-8-sig").rstrip("\r")]), [])


def _meaning_of(name: str) -> str | None:
    normalized = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    return next((meaning for meaning, names in _ACCEPTED_NAMES.items() if normalized in names), None)


def _select_known_columns(table: pa.Table) -> pa.Table:
    """The known columns under lakegc's names. Raises `ValueError` if a required one is missing or ambiguous."""
    known = [
        (index, meaning) for index, name in enumerate(table.column_names) if (meaning := _meaning_of(name)) is not None
    ]
    indices, meanings = [index for index, _ in known], [meaning for _, meaning in known]
    if missing := [name for name in _REQUIRED if name not in meanings]:
        raise ValueError(f"it has no column for {', '.join(missing)}; its columns are {', '.join(table.column_names)}")
    if len(set(meanings)) < len(meanings):
        names = ", ".join(table.column_names[index] for index in indices)
        raise ValueError(f"several of these columns have the same meaning: {names}")
    return table.select(indices).rename_columns(meanings)


def _current_objects(table: pa.Table, *, keys_are_encoded: bool) -> pa.Table:
    """The current objects as rows of LISTED, without old versions or delete markers."""
    current = pc.and_(
        _flag_column(table, "latest", default=True), pc.invert(_flag_column(table, "deleted", default=False))
    )
    table = table.filter(current)
    keys = table["key"].cast(pa.string())
    if keys_are_encoded:
        keys = _url_decode(keys)
    no_checksums = pa.nulls(len(table), pa.string())
    checksums = table["checksum"].cast(pa.string()) if "checksum" in table.column_names else no_checksums
    checksums = pc.replace_substring(checksums, '"', "")
    columns = [
        keys,
        table["size"].cast(pa.int64()),
        _to_utc(table["modified"]),
        pc.if_else(pc.equal(checksums, ""), None, checksums),
    ]
    for name, column in zip(_REQUIRED, columns, strict=False):
        if column.null_count:
            raise ValueError(f"{plural(column.null_count, 'object')} without {name}")
    objects = pa.table(columns, schema=LISTED)
    objects.validate(full=True)
    return objects


def _flag_column(table: pa.Table, name: str, *, default: bool) -> pa.ChunkedArray | pa.Array:
    if name not in table.column_names:
        return pa.repeat(pa.scalar(default), len(table))
    column = table[name]
    if not pa.types.is_boolean(column.type):
        column = pc.utf8_lower(column).cast(pa.bool_())
    return pc.fill_null(column, default)


def _to_utc(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The store's times in UTC. A timestamp without a time zone is taken as UTC; text without one is an error.

    A number is also an error, because its unit is unknown: with too small a unit, every object would seem old.
    """
    target_type = LISTED.field("modified").type
    if not pa.types.is_timestamp(column.type):
        if column.type not in (pa.string(), pa.large_string()):
            raise ValueError(f"its times have the type {column.type}; expected timestamps or text")
        return column.cast(target_type)
    if column.type.tz is None:
        column = pc.assume_timezone(column, "UTC")
    return column.cast(target_type, safe=column.type.unit != "ns")


def _url_decode(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """URL-decoded keys; only keys with encoded characters are decoded one by one."""
    is_encoded = pc.or_(pc.match_substring(keys, "%"), pc.match_substring(keys, "+"))
    if not pc.any(is_encoded).as_py():
        return keys
    decoded = [unquote_plus(key, errors="strict") for key in keys.filter(is_encoded).to_pylist()]
    return pc.replace_with_mask(keys.combine_chunks(), is_encoded.combine_chunks(), pa.array(decoded, pa.string()))
