"""The settings limit how many requests a task sends concurrently, for pages, tables and path probes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from lakegc_assets.mark.full_listing import candidates_in
from lakegc_assets.mark.uncommitted_readings import staged_addresses
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs.ranges import prefetched_tables
from spark_resources.model import Namespace
from spark_resources.settings import Settings
from spark_resources.spark.task_report import TaskReport
from spark_resources.stores.parallel_listing import Part
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import ALWAYS_AHEAD

CONCURRENT_REQUESTS, ALL = 6, 20
LIMIT_S, A_MOMENT_S = 30.0, 0.2
NOTHING_LISTED = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
CHANGES = [{"type": "added", "path": f"p{number}", "path_type": "object"} for number in range(ALL)]
DIFF = {"pagination": {"has_more": False, "next_offset": "", "results": ALL, "max_per_page": 1000}, "results": CHANGES}
STAT = {"path_type": "object", "physical_address": "s3://b/l/data/x", "size_bytes": 1, "checksum": "c"}


@dataclass
class Crowd:
    """A store and a lakeFS server that hold requests until the expected number has arrived, except requests for these
    tables."""

    endpoint: str = ""
    not_held: tuple[str, ...] = ()
    now: int = 0
    most: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def hold_request(self) -> None:
        with self.changed:
            self.now += 1
            self.most = max(self.most, self.now)
            self.changed.notify_all()
            if self.changed.wait_for(lambda: self.most >= CONCURRENT_REQUESTS, LIMIT_S) and self.now == self.most:
                # wait for a request too many
                self.changed.wait_for(lambda: self.most > CONCURRENT_REQUESTS, A_MOMENT_S)
            self.now -= 1

    def settings(self, **more: str) -> Settings:
        environ = {
            "ENDPOINT_URL": self.endpoint, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "s",
            "S3_ENDPOINT_URL": self.endpoint, "S3_ACCESS_KEY_ID": "a", "S3_SECRET_ACCESS_KEY": "s",
        }  # fmt: skip
        return Settings.load({f"LAKEGC_{name}": value for name, value in (environ | more).items()}, Path("/nowhere"))

    def place(self, **more: str) -> Place:
        return Place(Namespace.parse("s3://b/l"), self.settings(**more).store_settings())


def response_to(url: str) -> object:
    """A page of a listing is empty and has a next one, so that paths are probed one by one."""
    query = parse_qs(urlsplit(url).query)
    if "/diff" in url:
        return DIFF
    if "/ls" in url:
        return {"pagination": {"has_more": True, "next_offset": "z", "results": 0, "max_per_page": 1000}, "results": []}
    return STAT | {"path": query["path"][0]}


@contextmanager
def crowd() -> Iterator[Crowd]:
    started = Crowd()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if "/diff" not in self.path and "/ls" not in self.path and not self.path.endswith(started.not_held):
                started.hold_request()
            body = NOTHING_LISTED if "list-type=2" in self.path else b"content"
            if "/api/v1/" in self.path:
                body = json.dumps(response_to(self.path)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json" if "/api/v1/" in self.path else "application/xml")
            self.send_header("ETag", '"tag"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        started.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield started
        finally:
            server.shutdown()
            thread.join()


def test_a_task_requests_as_many_pages_concurrently_as_the_setting_allows() -> None:
    """LAKEGC_LISTING_REQUESTS limits how many pages a task requests from a store concurrently."""
    with crowd() as server:
        place = server.place(LISTING_REQUESTS=str(CONCURRENT_REQUESTS))
        assert not list(
            candidates_in(place, [Part(f"data/{n}/") for n in range(ALL)], TaskReport(), local_adapter=False)
        )

    assert server.most == CONCURRENT_REQUESTS


def test_a_task_fetches_as_many_tables_concurrently_as_the_setting_allows() -> None:
    """LAKEGC_READING_REQUESTS limits how many tables a task fetches ahead."""
    with crowd() as server:
        place = server.place(READING_REQUESTS=str(CONCURRENT_REQUESTS))
        ids = [f"{number:064x}" for number in range(ALL)]
        server.not_held = tuple(ids[:ALWAYS_AHEAD])  # until these have arrived, the size of tables is unknown
        assert [(range_id, data) for range_id, data in prefetched_tables(place, ids, referrer="a test")] == [
            (range_id, b"content") for range_id in ids
        ]

    assert server.most == CONCURRENT_REQUESTS


def test_a_task_sends_as_many_path_probes_concurrently_as_the_setting_allows() -> None:
    """LAKEGC_PROBE_REQUESTS limits how many path probes a task sends to the lakeFS server concurrently."""
    with crowd() as server:
        lakefs = LakeFS(*LakeFSSettings.of(server.settings(PROBE_REQUESTS=str(CONCURRENT_REQUESTS))))
        assert list(staged_addresses(lakefs, "lake", "main")) == [STAT["physical_address"]] * ALL

    assert server.most == CONCURRENT_REQUESTS
