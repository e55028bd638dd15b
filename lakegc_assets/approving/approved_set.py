"""What exactly a person approves, byte for byte: the files of a mark, their rows, and that each key may be collected.

A digest names the set; here is proved that the namespace still holds the very set that the digest names (invariants 5
and 7). Files are read one at a time on a few threads, whatever the size of the mark.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakegc_assets.marking.run import Target
from spark_resources.datasets import File, Place
from spark_resources.errors import DamagedData, NotThere, Refused
from spark_resources.mark_files import Part, parts, unrecorded
from spark_resources.marks import MarkRecord
from spark_resources.reference import ReferenceMark
from spark_resources.reference_sets import addresses_in, read_listed

READ_AT_ONCE = 4
NAMED = 3


# --- keys that may be collected -------------------------------------------------------------------------------------


def strange_keys(addresses: pa.Array, *, local_adapter: bool) -> pa.Array:
    """The addresses that are no candidates (see `model.is_candidate`), and those with `.` or `..` between slashes.

    The latter may be candidates on some stores; but whoever else reads a mark may fold them into another key.
    """
    under = pc.and_(pc.starts_with(addresses, "data/"), pc.greater(pc.binary_length(addresses), len("data/")))
    legacy = pc.invert(pc.or_(pc.match_substring(addresses, "/"), pc.is_in(addresses, pa.array(["", "dummy"]))))
    if local_adapter:
        upload = pc.match_substring_regex(addresses, r"^[0-9a-f]+-\p{Nd}{5}\n?$")
        legacy = pc.and_(legacy, pc.invert(upload))
    dots = pc.match_substring_regex(addresses, r"(^|/)\.\.?(/|$)")
    fine = pc.and_(pc.or_(under, legacy), pc.invert(dots))
    return addresses.filter(pc.invert(pc.fill_null(fine, False)), null_selection_behavior="emit_null")


def check_keys(addresses: pa.Array, where: str, *, local_adapter: bool) -> None:
    """Raise `Refused` (invariant 5) where a file of a mark names what may never be collected."""
    strange = strange_keys(addresses, local_adapter=local_adapter)
    if len(strange):
        named = ", ".join(repr(one) for one in strange.slice(0, NAMED).to_pylist())
        raise Refused(
            f"{where} names {len(strange):,} keys that lie outside data/ and are no legacy objects, or lead elsewhere: "
            f"{named}. No mark of lakegc's has them, so this one was altered. Nothing of it may go; make a new mark.",
            invariant=5,
        )


# --- the files of a mark of lakegc's --------------------------------------------------------------------------------


def check_files(target: Target, record: MarkRecord) -> None:
    """Raise `Refused` where a mark's folder doesn't hold exactly the files that were recorded, or one was altered."""
    place, recorded = target.place, list(parts(target.place, record))
    check_no_others(place, record, recorded)
    files = [(part, file) for part in recorded for file in part.dataset.files]
    with ThreadPoolExecutor(max_workers=READ_AT_ONCE) as pool:
        for _ in pool.map(lambda one: check_file(target, *one), files):
            pass


def check_no_others(place: Place, record: MarkRecord, recorded: list[Part]) -> None:
    """Raise `Refused` for a file in the mark's folders that no list names: another collector would take it for ours."""
    if added := unrecorded(place, record, recorded):
        more = f" and {len(added) - NAMED:,} more" if len(added) > NAMED else ""
        raise Refused(
            f"{', '.join(added[:NAMED])}{more} in {place.store().where} "
            f"{'was' if len(added) == 1 else 'were'} added to mark {record.mark_id} after it was made. "
            "Find out by whom; remove it, or make a new mark.",
            invariant=7,
        )


def check_file(target: Target, part: Part, file: File) -> None:
    """Raise `Refused` unless this file is byte for byte the recorded one, and names only what may be collected."""
    store, key = target.place.store(), part.dataset.folder + file.name
    where = f"{store.where}/{key}"
    try:
        data = store.read(key)
    except NotThere as error:
        raise Refused(f"{where} was dropped from the mark after it was made. Make a new mark.", invariant=7) from error
    if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise Refused(f"{where} was altered after the mark was made. Make a new mark.", invariant=7)
    if part.keys:
        local = target.blockstore == "local"
        check_keys(lines_in(data) if file.name.endswith(".txt") else column_of(data, where), where, local_adapter=local)


def lines_in(data: bytes) -> pa.Array:
    return pa.array(data.decode().removesuffix("\n").split("\n") if data else [], pa.string())


def column_of(data: bytes, where: str) -> pa.Array:
    try:
        table = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(columns=["address"], use_threads=False)
        return table.column("address").combine_chunks().cast(pa.string())
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DamagedData(f"{where} is not Parquet with a column 'address' ({error}). Make a new mark.") from error


# --- the files of a mark of the reference's -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TheirFiles:
    """A mark of the reference collector as it lies there: a digest over its files, and its addresses."""

    digest: str
    addresses: pa.ChunkedArray


def their_files(target: Target, found: ReferenceMark) -> TheirFiles:
    """Read a mark of the reference's. Raises `DamagedData` for a file that isn't whole, `Refused` for a strange key.

    The digest is a SHA-256 over repository, namespace, layout, id, and each file's key, size and SHA-256.
    """
    place, repository, files, chunks = target.place, target.repository, [], []
    for key in found.files:
        data, where = read_listed(place, key), f"{place.store().where}/{key}"
        addresses = addresses_in(data, where)
        check_keys(addresses, where, local_adapter=target.blockstore == "local")
        files.append([key, len(data), hashlib.sha256(data).hexdigest()])
        chunks.append(addresses)
    named = {
        "repository": [repository.id, repository.created.isoformat()],
        "namespace": place.namespace.uri,
        "layout": found.layout,
        "mark_id": found.mark_id,
        "files": files,
    }
    digest = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
    return TheirFiles(digest, pa.chunked_array(chunks, pa.string()))
