"""The proxy in front of the store: `python -m tests.soak.store_in_front PORT UPSTREAM`. Faults are lines on its input.

It shows objects under `data/` as almost a day older than they are, so that a `min_age` of 24 hours is two real minutes.
lakegc's own files, and the store's clock, keep their true times.
"""

from __future__ import annotations

import random
import re
import socket
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime

from starlette.requests import Request

from spark_resources.lakefs_sandbox.server_thread import ServerThread
from tests.soak.world import BUCKET, PREFIX
from tests.support.store_proxy import Fault, StoreProxy

SHOWN_OLDER = timedelta(hours=24) - timedelta(minutes=2)
_OBJECT = re.compile(rf"/{BUCKET}/{PREFIX}/[a-z]+/data/.")
_LISTED = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_LISTED_OBJECT = re.compile(rf"<Key>{PREFIX}/[a-z]+/data/.".encode())
_TIME = re.compile(rb"(?<=<LastModified>)[^<]+(?=</LastModified>)")
FAULTS = {"cut": Fault.CUT, "busy": Fault.BUSY, "broken": Fault.BROKEN, "broken-after": Fault.BROKEN_AFTER}


class StoreInFront(StoreProxy):
    """A proxy that shows objects as older than they are."""

    def _respond(self, request: Request, body: bytes) -> tuple[int, dict[str, str], bytes, bool]:
        status, given, data, cut = super()._respond(request, body)
        headers = {name.lower(): value for name, value in given.items()}
        if "list-type=2" in request.url.query:
            data = _LISTED.sub(lambda listed: _older_if_object(listed[0]), data)
        elif _OBJECT.match(request.url.path):
            if request.method == "PUT":  # a copy
                data = _TIME.sub(_older, data)
            if modified := headers.get("last-modified"):
                shown = parsedate_to_datetime(modified) - SHOWN_OLDER
                headers["last-modified"] = format_datetime(shown, usegmt=True)
        return status, headers, data, cut


def _older_if_object(listed: bytes) -> bytes:
    return _TIME.sub(_older, listed) if _LISTED_OBJECT.search(listed) else listed


def _older(time: re.Match[bytes]) -> bytes:
    shown = datetime.fromisoformat(time[0].decode()) - SHOWN_OLDER
    return shown.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


def plan(fault: Fault, share: float) -> Callable[[str, str, bytes], Fault | None]:
    """A plan that gives this share of all requests this fault."""
    return lambda method, path, _: fault if random.random() < share else None


def main() -> None:
    proxy = StoreInFront(sys.argv[2])
    server = ServerThread(proxy, _listener(int(sys.argv[1])), grace_s=0.1, log_level="critical")
    try:
        for line in sys.stdin:
            match line.split():
                case ["calm"]:
                    proxy.latency_s, proxy.plan = 0.0, lambda *_: None
                case ["slow", seconds]:
                    proxy.latency_s = float(seconds)
                case [name, share]:
                    proxy.plan = plan(FAULTS[name], float(share))
    finally:
        server.stop()


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(256)
    return listener


if __name__ == "__main__":
    main()
