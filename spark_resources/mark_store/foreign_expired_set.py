"""The expired set of a foreign mark (of the reference collector), in any of its layouts (formats §5).

A foreign mark records only addresses, so the objects' sizes and times come from a new listing of their folders. Only
the Parquet files are read, never the text files next to them, in which a key with a newline looks like two keys.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_resources.errors import DamagedData, NotFound, WrongUsage, plural
from spark_resources.mark_store.foreign_layouts import ReferenceMark, reference_marks
from spark_resources.mark_store.mark import GC_ROOT
from spark_resources.model import EXPIRED_OBJECTS
from spark_resources.records.parquet_files import parquet_rows
from spark_resources.stores.base import StoredObject
from spark_resources.stores.place import Place

NOT_RECORDED = "not recorded by the collector that made the mark"
# what remains of a mark whose Parquet files are missing
LEFTOVERS = ("unified/{}/", "uncommitted/{}/deleted", "uncommitted/{}/summary.json", "addresses.text/mark_id={}/")

# Like EXPIRED_OBJECTS, but size and modified are null for objects that are no longer in the store.
REFERENCE_OBJECTS = pa.schema([field.with_nullable(field.name != "address") for field in EXPIRED_OBJECTS])


def reference_mark(place: Place, name: str, *, own_ids: frozenset[str]) -> ReferenceMark | None:
    """The foreign mark with this name, which is an id or `layout/id`; None if there is none.

    `own_ids` are the ids of lakegc's own marks, which are left out. Raises `WrongUsage` if several layouts have a mark
    of this name, and `DamagedData` if the mark's Parquet files are missing.
    """
    matches = [
        mark
        for mark in reference_marks(place, own_ids=own_ids)
        if name in (mark.mark_id, f"{mark.layout}/{mark.mark_id}")
    ]
    if len(matches) > 1:
        names = ", ".join(f"'{mark.layout}/{mark.mark_id}'" for mark in matches)
        raise WrongUsage(f"the reference collector has {len(matches)} marks named {name}. Choose one of {names}")
    if matches or name in own_ids or "/" in name:
        return matches[0] if matches else None
    for folder in LEFTOVERS:
        prefix = GC_ROOT + folder.format(name)
        if any(page.objects for page in place.store().pages(prefix)):
            raise DamagedData(
                f"{prefix} in {place.store().where} belongs to a mark of the reference collector whose Parquet "
                "files with the addresses are missing, so what it would delete is unknown. Make a new mark.",
                invariant=3,
            )
    return None


def addresses_of(place: Place, mark: ReferenceMark) -> pa.ChunkedArray:
    """All addresses of the mark, in memory. Raises `DamagedData` for a missing or damaged file."""
    return pa.chunked_array([read_addresses(place, key) for key in mark.files], pa.string())


def read_addresses(place: Place, key: str) -> pa.Array:
    return addresses_in(read_mark_file(place, key), f"{place.store().where}/{key}")


def read_mark_file(place: Place, key: str) -> bytes:
    """The bytes of a foreign mark's file. Raises `DamagedData` if the file has disappeared since it was listed."""
    try:
        return place.store().read(key)
    except NotFound as error:
        where = f"{place.store().where}/{key}"
        raise DamagedData(
            f"{where} was listed a moment ago, but no longer exists. The mark may have been deleted. Make a new mark."
        ) from error


def addresses_in(data: bytes, where: str) -> pa.Array:
    """The addresses in a Parquet file of a foreign mark. Raises `DamagedData` if it isn't such a file."""
    try:
        column = parquet_rows(data, ["address"]).column("address")
        texts = column.combine_chunks().cast(pa.string())
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise DamagedData(
            f"{where} is not a Parquet file with a text column 'address' ({str(error).splitlines()[0]}), so what "
            "this mark would delete is unknown. Make a new mark."
        ) from error
    if texts.null_count:
        raise DamagedData(f"{where} has {plural(texts.null_count, 'row')} without an address. Make a new mark.")
    return texts


def objects_of(place: Place, mark: ReferenceMark) -> Iterator[pa.Table]:
    """The mark's objects (REFERENCE_OBJECTS), folder by folder. Each folder is listed once."""
    by_folder: dict[str, list[str]] = {}
    for chunk in addresses_of(place, mark).chunks:
        for address in chunk.to_pylist():
            by_folder.setdefault(folder_of(address), []).append(address)
    for folder, wanted in sorted(by_folder.items()):
        stored = {listed.key: listed for listed in stored_objects(place, folder, frozenset(wanted))}
        rows = [
            {
                "address": address,
                "size": stored[address].size if address in stored else None,
                "modified": stored[address].modified if address in stored else None,
                "checksum": stored[address].checksum if address in stored else None,
                "slice": folder,
                "reason": NOT_RECORDED,
            }
            for address in sorted(wanted)
        ]
        yield pa.Table.from_pylist(rows, schema=REFERENCE_OBJECTS)


def folder_of(address: str) -> str:
    """The folder to list for an address: its slice, the top folder for an object directly in it, or "" (the root)."""
    parts = address.split("/")
    if len(parts) == 1:
        return ""
    return f"{parts[0]}/{parts[1]}/" if len(parts) > 2 else f"{parts[0]}/"


def stored_objects(place: Place, folder: str, wanted: frozenset[str]) -> Iterator[StoredObject]:
    """The objects with wanted keys in a folder. Yields nothing if the store can't have a folder of this name."""
    delimiter = "/" if folder.count("/") < 2 else None  # deeper objects are in other folders
    try:
        for page in place.store().pages(folder, delimiter=delimiter):
            yield from (listed for listed in page.objects if listed.key in wanted)
    except WrongUsage:
        return
