"""Verify a mark's files, byte for byte: their content, their rows, and that each key may be collected.

The digest of an approval names the set of objects. This module verifies that the namespace still contains exactly that
set (invariants 5 and 7). A few threads each read one file at a time, so memory doesn't grow with the mark.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import Target
from lakegc_assets.rules.addresses import may_be_deleted
from spark_resources.errors import DamagedData, NotFound, Refused
from spark_resources.mark_store.files import Part, recorded_parts, unrecorded_files
from spark_resources.mark_store.foreign_expired_set import addresses_in, read_mark_file
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.record import MarkRecord
from spark_resources.records.parquet_files import parquet_rows
from spark_resources.spark.datasets import File
from spark_resources.stores.place import Place

CONCURRENT_READS = 4
MAX_NAMED = 3
ALTERED_ADVICE = (
    "lakegc never writes such keys to a mark, so the mark was altered. None of its objects may be deleted. Make "
    "a new mark."
)
FOREIGN_ADVICE = (
    "A tool that normalizes paths could turn such a key into the key of another object. None of this mark's objects "
    "may be deleted. Make a mark with 'lakegc mark' instead: it keeps such objects, and the others can be deleted."
)


# --- keys that may be collected -------------------------------------------------------------------------------------


def forbidden_keys(addresses: pa.Array, *, local_adapter: bool) -> pa.Array:
    """The addresses that must not be deleted (see `rules.addresses.may_be_deleted`)."""
    return addresses.filter(pc.invert(may_be_deleted(addresses, local_adapter=local_adapter)))


def check_keys(addresses: pa.Array, where: str, *, local_adapter: bool, advice: str = ALTERED_ADVICE) -> None:
    """Raise `Refused` (invariant 5) if one of these addresses must never be deleted. `where` names their file, and
    `advice` ends the message."""
    forbidden = forbidden_keys(addresses, local_adapter=local_adapter)
    if len(forbidden):
        named = ", ".join(repr(key) for key in forbidden.slice(0, MAX_NAMED).to_pylist())
        raise Refused(
            f"{where} names {plural(len(forbidden), 'key')} that no sweep may delete (outside data/ and not a "
            f"legacy object, or with '.' or '..' as a path segment): {named}. {advice}",
            invariant=5,
        )


# --- the files of lakegc's own marks --------------------------------------------------------------------------------


def check_files(target: Target, record: MarkRecord) -> None:
    """Raise `Refused` unless a mark's folders contain exactly the recorded files, unaltered."""
    place, recorded = target.place, list(recorded_parts(target.place, record))
    refuse_unrecorded_files(place, record, recorded)
    files = [(part, file) for part in recorded for file in part.dataset.files]
    with ThreadPoolExecutor(max_workers=CONCURRENT_READS) as pool:
        for _ in pool.map(lambda part_and_file: check_file(target, *part_and_file), files):
            pass


def refuse_unrecorded_files(place: Place, record: MarkRecord, recorded: list[Part]) -> None:
    """Raise `Refused` for an unrecorded file in a mark's folders, which the reference collector would treat as part of
    the mark."""
    if added := unrecorded_files(place, record, recorded):
        more = f" and {len(added) - MAX_NAMED:,} more" if len(added) > MAX_NAMED else ""
        raise Refused(
            f"{', '.join(added[:MAX_NAMED])}{more} in {place.store().where} {'was' if len(added) == 1 else 'were'} "
            f"added to mark {record.mark_id} after it was made. Find out who did this. Remove what was added, or make "
            "a new mark.",
            invariant=7,
        )


def check_file(target: Target, part: Part, file: File) -> None:
    """Raise `Refused` unless this file is byte for byte the recorded one, and names only keys that may be collected."""
    store, key = target.place.store(), part.dataset.folder + file.name
    where = f"{store.where}/{key}"
    try:
        data = store.read(key)
    except NotFound as error:
        raise Refused(f"{where} was removed from the mark after it was made. Make a new mark.", invariant=7) from error
    if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise Refused(f"{where} was altered after the mark was made. Make a new mark.", invariant=7)
    if part.has_keys:
        local = target.blockstore == "local"
        check_keys(
            lines_of_text(data, where) if file.name.endswith(".txt") else address_column(data, where),
            where,
            local_adapter=local,
        )


def lines_of_text(data: bytes, where: str) -> pa.Array:
    try:
        return pa.array(data.decode().removesuffix("\n").split("\n") if data else [], pa.string())
    except UnicodeDecodeError as error:
        raise DamagedData(f"{where} is not UTF-8 text ({error}). Make a new mark.") from error


def address_column(data: bytes, where: str) -> pa.Array:
    try:
        return parquet_rows(data, ["address"]).column("address").combine_chunks().cast(pa.string())
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise DamagedData(f"{where} is not Parquet with a column 'address' ({error}). Make a new mark.") from error


# --- the files of a foreign mark ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForeignFiles:
    """The content of a foreign mark: its addresses, and a digest over its files."""

    digest: str
    addresses: pa.ChunkedArray


def foreign_files(target: Target, foreign: ReferenceMark) -> ForeignFiles:
    """Read a foreign mark. Raises `DamagedData` for a damaged file, `Refused` for a key that must not be deleted.

    The digest is a SHA-256 over repository, namespace, layout, id, and each file's key, size and SHA-256.
    """
    place, repository, files, chunks = target.place, target.repository, [], []
    for key in foreign.files:
        data, where = read_mark_file(place, key), f"{place.store().where}/{key}"
        addresses = addresses_in(data, where)
        check_keys(addresses, where, local_adapter=target.blockstore == "local", advice=FOREIGN_ADVICE)
        files.append([key, len(data), hashlib.sha256(data).hexdigest()])
        chunks.append(addresses)
    content = {
        "repository": [repository.lakefs_id, repository.created.isoformat()],
        "namespace": place.namespace.uri,
        "layout": foreign.layout,
        "mark_id": foreign.mark_id,
        "files": files,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return ForeignFiles(digest, pa.chunked_array(chunks, pa.string()))
