"""Inputs that fuzzing found, as small as possible: each once caused a bug in lakegc, or was read although it is
damaged."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakegc_assets.approval.verify_files import address_column, lines_of_text
from lakegc_assets.rules.rules_file import parse_rules
from spark_resources.copying.backup_task import properties_from_json
from spark_resources.errors import DamagedData, LakegcError, Refused, Unavailable, WrongUsage
from spark_resources.lakefs import responses
from spark_resources.lakefs.connection import Response
from spark_resources.lakefs.gc_lists import UNCOMMITTED_COLUMNS, read_uncommitted_file
from spark_resources.lakefs.responses import Body
from spark_resources.mark_store.foreign_expired_set import addresses_in
from spark_resources.mark_store.mark import OWNER_KEY, refuse_foreign_namespace
from spark_resources.mark_store.record import MarkRecord
from spark_resources.records import parquet_files
from spark_resources.records.parquet_files import parquet_batches, parquet_rows
from spark_resources.records.signing import Signature
from spark_resources.spark.datasets import LIST_NAME, open_dataset
from spark_resources.stores.azure.listing import parse_listing as parse_azure_listing
from spark_resources.stores.gcs.listing import listing_of as gcs_listing
from spark_resources.stores.probe import RECORD_KEY, read_record
from tests.fuzz import namespace
from tests.fuzz.records import MARK, NOON, RECORDED
from tests.fuzz.responses import AZURE_BLOB, AZURE_LISTING, GCS_LISTING, GCS_OBJECT, S3_LISTING, S3_OBJECT, _azure, _s3

LONG = "9" * 5_000
NEGATIVE_ROWS = (
    "UEFSMRUEGRw1ABgGc2NoZW1hFQAAFgAZHBkMFgAWsQAAAAAAGRwYDEFSUk9XOnNjaGVtYRhMLy8vLy96QUFBQUFRQUFBQUFBQUtB"
    "QXdBQmdBRkFBZ0FDZ0FBQUFBQkJBQU1BQUFBQ0FBSUFBQUFCQUFJQUFBQUJBQUFBQUFBQUFBPQAYIHBhcnF1ZXQtY3BwLWFycm93"
    "IHZlcnNpb24gMjYuMC4xGQwApAAAAFBBUjE="
)


# --- listings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "listing"), [(_s3, S3_LISTING % S3_OBJECT), (_azure, AZURE_LISTING % AZURE_BLOB)], ids=["S3", "Azure"]
)
def test_a_listing_in_an_unknown_encoding_or_with_a_negative_size_is_refused(
    read: Callable[[bytes], Any], listing: bytes
) -> None:
    for damaged in (listing.lower().replace(b"utf-8", b"utf-9", 1), listing.replace(b">7<", b">-7<")):
        with pytest.raises(Unavailable, match="invalid listing response"):
            read(damaged)


def test_the_parser_of_azure_listings_raises_a_lookup_error_for_an_unknown_encoding() -> None:
    """The parser's caller reports this error as an invalid listing response."""
    with pytest.raises(LookupError):
        parse_azure_listing(b'<?xml version="1.0" encoding="utf-9"?><a/>')


@pytest.mark.parametrize("date", ["21 Nov 99999999999999999999 12:00:00 GMT", "31 Dec 9999 23:59:59 -0100"])
def test_a_listing_of_azure_with_a_time_out_of_range_is_refused(date: str) -> None:
    listing = AZURE_LISTING % re.sub(rb"(?<=<Last-Modified>)[^<]*", date.encode(), AZURE_BLOB)

    assert date.encode() in listing
    with pytest.raises(Unavailable, match="invalid listing response"):
        _azure(listing)


@pytest.mark.parametrize("field", [{"crc32c": ["AAAAAA=="]}, {"size": "-7"}])
def test_a_listing_of_google_cloud_with_an_invalid_field_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match="invalid listing response"):
        gcs_listing(json.dumps({**GCS_LISTING, "items": [GCS_OBJECT | field]}).encode())


# --- messages -------------------------------------------------------------------------------------------------------


def _message(read: Callable[[], object], error: type[LakegcError]) -> str:
    with pytest.raises(error) as raised:
        read()
    return str(raised.value)


def test_a_message_shows_only_the_beginning_of_a_long_text_from_outside() -> None:
    mark = json.loads((RECORDED / "mark.json").read_bytes())
    signature = {"format": 1, "key": LONG, "written": LONG, "number": 0, "hmac": "a" * 64}
    messages = [
        _message(lambda: MarkRecord.from_json(json.dumps({**mark, LONG: 1}).encode(), "here"), DamagedData),
        _message(lambda: MarkRecord.from_json(json.dumps({**mark, "start": LONG}).encode(), "here"), DamagedData),
        _message(lambda: MarkRecord.from_json(json.dumps({**mark, "format": LONG}).encode(), "here"), DamagedData),
        _message(lambda: Signature.of(signature, "here"), DamagedData),
        _message(lambda: Signature.of({**signature, "format": LONG}, "here"), DamagedData),
        _message(lambda: parse_rules(json.dumps({LONG: 1}).encode(), "here.json"), WrongUsage),
        _message(lambda: responses.change(Body({"type": LONG, "path": ""}, "here")), DamagedData),
    ]

    owner = {"repository": LONG, "created": NOON.isoformat(), "format": 1}
    namespace.put(OWNER_KEY, json.dumps(owner).encode())
    messages.append(_message(lambda: refuse_foreign_namespace(namespace.place(), "here", NOON), Refused))
    messages.append("here" + _message(lambda: gcs_listing(json.dumps({"kind": LONG}).encode()), Unavailable))

    for message in messages:
        assert "here" in message
        assert len(message) < 3_000
    assert len(Response(404, {"message": LONG}, "", None).message) < 1_000


# --- records --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field",
    [{"byte_order": [False]}, {"ramp": "/"}, {"md5_etags": 1}, {"delete_batch": 1.5}, {"unholdable": [1]},
     {"time_resolution": 1e308}],
    ids=str,
)  # fmt: skip
def test_recorded_capabilities_of_the_wrong_type_or_size_are_not_used(field: dict[str, Any]) -> None:
    """If [False] counted as true, lakegc would assume that the store lists in byte order."""
    record = json.loads((RECORDED / "store.json").read_bytes())
    record["capabilities"] |= field
    namespace.put(RECORD_KEY, json.dumps(record).encode())

    assert read_record(namespace.place().store(), "https://here", NOON) is None


@pytest.mark.parametrize("field", [{"rows": [0]}, {"rows": -1}, {"size": "3"}, {"name": "../m2/a/0.parquet"}], ids=str)
def test_a_list_of_files_with_an_invalid_entry_is_refused(field: dict[str, Any]) -> None:
    listed = json.loads((RECORDED / "files.json").read_bytes())
    listed["files"][0] |= field
    namespace.put(f"{MARK}a/{LIST_NAME}", json.dumps(listed).encode())

    with pytest.raises(DamagedData, match="not a valid list of files"):
        open_dataset(namespace.place(), f"{MARK}a/")


@pytest.mark.parametrize("text", ["{", "[]", '{"headers": 1, "metadata": {}}', '{"headers": {}, "metadata": {"a": 1}}'])
def test_invalid_headers_in_a_copy_log_are_refused(text: str) -> None:
    with pytest.raises(DamagedData, match="invalid headers"):
        properties_from_json(text, 1, NOON)


# --- Parquet files --------------------------------------------------------------------------------------------------


def _parquet(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def test_text_in_parquet_that_is_not_utf8_is_refused() -> None:
    """Arrow's reader doesn't check it, so it would cause an error later, where the text is first used."""
    text = pa.array([b"data/\x80"], pa.binary()).view(pa.string())
    marked, listed = ({"address": text}, {UNCOMMITTED_COLUMNS[0]: text, UNCOMMITTED_COLUMNS[1]: [1]})

    with pytest.raises(DamagedData, match="here"):
        address_column(_parquet(pa.table(marked)), "here")
    with pytest.raises(DamagedData, match="here"):
        addresses_in(_parquet(pa.table(marked)), "here")
    with pytest.raises(DamagedData, match="here"):
        read_uncommitted_file(_parquet(pa.table(listed)), where="here")
    with pytest.raises(DamagedData, match="here"):
        lines_of_text(b"data/\x80\n", "here")


def test_a_parquet_file_with_a_negative_number_of_rows_is_refused() -> None:
    """Taking the length of what Arrow reads from it raises a SystemError in Python."""
    data = base64.b64decode(NEGATIVE_ROWS)

    for read in (lambda: addresses_in(data, "here"), lambda: address_column(data, "here")):
        with pytest.raises(DamagedData, match="here"):
            read()


@pytest.mark.parametrize("stays_encoded", [False, True])
def test_a_small_parquet_file_whose_rows_would_fill_the_memory_is_refused(
    stays_encoded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of a few kilobytes repeats one long text, so its rows would take 200 MB. The limit is smaller here."""
    monkeypatch.setattr(parquet_files, "MAX_BYTES", 20_000_000)
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 10_000]))
    bomb = _parquet(pa.table({"address": texts}), store_schema=stays_encoded)
    assert len(bomb) < 10_000
    before = pa.total_allocated_bytes()

    with pytest.raises(ValueError, match="more than 20,000,000 bytes of memory"):
        parquet_rows(bomb)
    with pytest.raises(ValueError, match="more than 20,000,000 bytes of memory"):
        list(parquet_batches(bomb, rows=5_000))
    with pytest.raises(DamagedData, match="more than 20,000,000 bytes of memory"):
        addresses_in(bomb, "here")
    assert sum(len(batch) for batch in parquet_batches(bomb, rows=1_000)) == 20_000, "batches that fit are read"
    assert pa.total_allocated_bytes() - before < 30_000_000


@pytest.mark.parametrize("rows", [0, 1, 511, 512, 513, 5_000])
def test_batches_of_a_parquet_file_have_all_its_rows_in_order(rows: int) -> None:
    table = pa.table({"address": [f"{n:05d}" for n in range(rows)], "size": list(range(rows))})
    data = _parquet(table)

    assert parquet_rows(data) == table
    assert parquet_rows(data, ["size"]) == table.select(["size"])
    for size in (1, 100, 1_000, 100_000):
        batches = list(parquet_batches(data, rows=size))
        assert [value for batch in batches for value in batch["size"].to_pylist()] == list(range(rows))
        assert all(size <= len(batch) < size + 512 for batch in batches[:-1])
