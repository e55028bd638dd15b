"""The limits of what is read into memory. Each store has a test for objects that are too large, in `tests/stores`."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from spark_resources.errors import DamagedData, Unavailable
from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.settings import LakeFSSettings
from spark_resources.stores import size_limits
from spark_resources.stores.size_limits import check_size, joined, size_limit

BOMB = gzip.compress(b'{"message": "' + b"x" * 5_000_000 + b'"}')


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("_lakefs/retention/gc/lakegc/m1/mark.json", "a record"),
        ("_lakefs/retention/gc/lakegc/holds.yaml", "a record"),
        ("_lakefs/" + "a" * 64, "a table"),
        ("_lakefs/retention/gc/lakegc/m1/receipts/0001/0-0.1.receipt.parquet", "a Parquet file"),
        ("_lakefs/retention/gc/commits/run_id=1/commits.csv", "any other file"),
        ("inventory/mark.json.csv.gz", "any other file"),
        ("a.json\n", "any other file"),
    ],
)
def test_the_limit_of_an_object_depends_on_its_key(key: str, kind: str) -> None:
    assert size_limit(key).kind == kind


def test_the_error_about_a_file_that_is_too_large_states_its_size_the_limit_and_what_to_do() -> None:
    check_size(32 << 20, "m1/mark.json", "s3://lake")

    with pytest.raises(DamagedData) as raised:
        check_size((32 << 20) + 1, "m1/mark.json", "s3://lake")
    assert str(raised.value) == (
        "m1/mark.json in s3://lake has 33,554,433 bytes or more, but a record has at most 33,554,432, so it was not "
        "read. Find out who wrote it, and move it elsewhere."
    )


def test_an_object_of_unknown_size_is_read_only_up_to_its_limit() -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield bytes(1 << 20)

    with pytest.raises(DamagedData, match=r"m1/mark\.json in s3://lake"):
        joined(endless(), "m1/mark.json", "s3://lake")
    assert read == 33
    assert joined(iter([b"a", b"b"]), "m1/mark.json", "s3://lake") == b"ab"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(BOMB)))
        self.end_headers()
        self.wfile.write(BOMB)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_response_of_the_server_that_decompresses_to_too_much_is_refused(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(size_limits, "MAX_RESPONSE_BYTES", 2_000_000)
    lakefs = LakeFS(LakeFSSettings(endpoint_url=server, access_key_id="a", secret_access_key="b"))
    assert len(BOMB) < 10_000

    with pytest.raises(Unavailable, match="a response of more than 2,000,000 bytes, so it is not the lakeFS API"):
        lakefs.repository("lake")
