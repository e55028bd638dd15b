"""A connection between lakegc and a server that a test can cut: open requests break, and new ones are refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_RESET = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # SO_LINGER: on, no time: closing resets the connection


class Line:
    """Forwards connections to `upstream`. `refused` counts those that came while it was cut.

    `sent` is called with what was forwarded of requests.
    """

    def __init__(self, upstream: str, sent: Callable[[bytes], None] = lambda _: None) -> None:
        self.sent = sent
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.endpoint = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.refused = 0
        self._whole, self._open, self._lock = True, set[socket.socket](), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._whole = False
            broken = list(self._open)
        for each in broken:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._whole = True

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, here: socket.socket) -> None:
        with self._lock:
            whole = self._whole
            self.refused += not whole
        if not whole:
            here.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            here.close()
            return
        with here, contextlib.suppress(OSError), socket.create_connection(self._upstream) as there:
            with self._lock:
                self._open |= {here, there}
            back = threading.Thread(target=_pump, args=(there, here, lambda _: None), daemon=True)
            back.start()
            _pump(here, there, self.sent)
            back.join()
            with self._lock:
                self._open -= {here, there}


def _pump(source: socket.socket, target: socket.socket, forwarded: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
            forwarded(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def line(upstream: str) -> Iterator[Line]:
    opened = Line(upstream)
    try:
        yield opened
    finally:
        opened.close()
