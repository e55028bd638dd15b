"""A webhook's receiver: an HTTP server in a thread, which records requests and responds as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """A receiver on a loopback port. It responds with `statuses` in turn, then with 200. `location` is the target of
    redirects. `hang` is called before each response."""

    url: str
    statuses: list[int] = field(default_factory=list)
    location: str = ""
    hang: Callable[[], object] = lambda: None
    received: list[Received] = field(default_factory=list)


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver that listens while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found.received.append(Received(self.command, self.path, dict(self.headers), body))
            found.hang()
            self.send_response(found.statuses.pop(0) if found.statuses else 200)
            if found.location:
                self.send_header("Location", found.location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_PUT = do_GET = respond  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Receiver(f"http://127.0.0.1:{server.server_port}/hooks/a-token-for-nobodys-eyes")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
