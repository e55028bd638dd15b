"""How fast each part of a mark could be: the same bytes, listed, decoded, joined and written without anything else.

Each part is done by as many processes as there are cores.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import urllib3
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from spark_resources import sstable
from spark_resources.spark.datasets import Dataset
from spark_resources.sstable.vectorized_decoder import VectorizedDecoder
from spark_resources.stores.place import Place
from tests.support.s3_servers import S3Server

_TOKEN = re.compile(rb"<NextContinuationToken>([^<]+)</NextContinuationToken>")
_CORES = os.cpu_count() or 1
_Result = TypeVar("_Result")
_work: Callable[[Any], Any]


def by_all_cores(work: Callable[[list[Any]], _Result], items: Sequence[Any]) -> tuple[list[_Result], float]:
    """The result of each process for its share of the items, and the seconds since all processes were ready."""
    shares = [list(items[core::_CORES]) for core in range(_CORES)]
    with multiprocessing.get_context("fork").Pool(_CORES, _take, (work,)) as pool:
        pool.map(_ready, range(_CORES), chunksize=1)
        began = time.monotonic()
        results = pool.map(_do, shares, chunksize=1)
        return results, time.monotonic() - began


def _take(work: Callable[[Any], Any]) -> None:
    global _work  # noqa: PLW0603  # inherited by the process, with all that it refers to
    _work = work


def _ready(_: int) -> None:
    time.sleep(0.05)


def _do(share: list[Any]) -> Any:
    return _work(share)


# --- listing ----------------------------------------------------------------------------------------------------------


def raw(server: S3Server, bucket: str, prefixes: Sequence[str], at_once: int) -> int:
    """List keys by signed requests, and search each response only for the token of the next page."""
    pool = urllib3.PoolManager(maxsize=at_once)
    signer = S3SigV4Auth(Credentials(server.access_key, server.secret_key), "s3", "us-east-1")

    def pages(prefix: str) -> int:
        keys, token = 0, b""
        while True:
            query = f"list-type=2&max-keys=1000&encoding-type=url&prefix={quote(prefix, safe='')}"
            if token:
                query += f"&continuation-token={quote(unquote(token.decode()), safe='')}"
            request = AWSRequest("GET", f"{server.endpoint_url}/{bucket}?{query}")
            signer.add_auth(request)
            body = pool.request("GET", request.url, headers=dict(request.headers.items())).data
            keys += body.count(b"<Contents>")
            match = _TOKEN.search(body)
            if match is None:
                return keys
            token = match[1]

    with ThreadPoolExecutor(at_once) as workers:
        return sum(workers.map(pages, prefixes))


def files(folders: Sequence[Path]) -> int:
    """List folders of files, with a stat of each file for its size and time."""
    count = 0
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)
                count += 1
    return count


def inventory(parts: Sequence[Path]) -> int:
    """Read whole Parquet files."""
    return sum(len(pq.ParquetFile(part).read(use_threads=False)) for part in parts)


# --- ranges -----------------------------------------------------------------------------------------------------------


def fetched(place: Place, ids: Sequence[str]) -> dict[str, bytes]:
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(ids, pool.map(lambda range_id: place.store().read(f"_lakefs/{range_id}"), ids), strict=True))


def decoding(tables: dict[str, bytes], *, proving: bool) -> tuple[int, float]:
    """Decode the addresses of ranges in memory and, with `proving`, verify content hashes. Returns rows and seconds."""
    decoder = VectorizedDecoder()

    def entries(range_id: str) -> int:
        arguments: dict[str, Any] = {"name": range_id, "columns": ("address", "address_type"), "decoder": decoder}
        if proving:
            return sstable.read_verified_entries(tables[range_id], **arguments)[0].num_rows
        return sstable.read_entries(tables[range_id], **arguments).num_rows

    def decoded(ids: list[str]) -> int:
        return sum(map(entries, ids))

    if tables:
        decoded(list(tables)[:1])  # compiles
    decoded_ranges, seconds = by_all_cores(decoded, list(tables))
    return sum(decoded_ranges), seconds


# --- join and writing -------------------------------------------------------------------------------------------------


def anti_join(place: Place, stored: Dataset, live: Sequence[Dataset], cutoff: datetime) -> tuple[int, float]:
    """Write the stored, old objects that aren't live, sorted, with pyarrow alone. Returns their number and the time."""
    began = time.monotonic()
    objects = _read(place, stored, ["address", "size", "modified", "checksum", "slice"])
    known = pa.chunked_array([chunk for part in live for chunk in _read(place, part, ["address"])["address"].chunks])
    old = pc.less_equal(objects["modified"], pa.scalar(cutoff, objects.schema.field("modified").type))
    expired = objects.filter(pc.and_(old, pc.invert(pc.is_in(objects["address"], value_set=known.combine_chunks()))))
    expired = expired.sort_by("address")
    buffer = io.BytesIO()
    pq.write_table(expired, buffer, compression="zstd")
    place.store().write("_lakefs/retention/gc/bench/expired.parquet", buffer.getvalue())
    text = "".join(f"{address}\n" for address in expired["address"].to_pylist())
    place.store().write("_lakefs/retention/gc/bench/expired.txt", text.encode())
    return len(expired), time.monotonic() - began


def _read(place: Place, dataset: Dataset, columns: list[str]) -> pa.Table:
    def read(name: str) -> pa.Table:
        return pq.read_table(pa.BufferReader(place.store().read(dataset.folder + name)), columns=columns)

    if not dataset.files:
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    with ThreadPoolExecutor(4) as pool:
        return pa.concat_tables(pool.map(read, [file.name for file in dataset.files]))
