"""A connection between lakegc and a server that a test can cut: open requests fail, and new ones are refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

_RESET = (
    b"\x01\x00\x00\x00\x00\x00\x00\x00"  # SO_LINGER: on, with a timeout of 0, so that closing resets the connection
)


class BreakableConnection:
    """Forwards connections to `upstream`. `refused` counts the connections that were attempted while it was cut.

    `on_sent` is called with the bytes of each request after they are forwarded.
    """

    def __init__(self, upstream: str, on_sent: Callable[[bytes], None] = lambda _: None) -> None:
        self.on_sent = on_sent
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.endpoint = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.refused = 0
        self._connected, self._open, self._lock = True, set[socket.socket](), threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._connected = False
            broken = list(self._open)
        for connection in broken:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        with self._lock:
            self._connected = True

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            connected = self._connected
            self.refused += not connected
        if not connected:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            client.close()
            return
        with client, contextlib.suppress(OSError), socket.create_connection(self._upstream) as server:
            with self._lock:
                self._open |= {client, server}
            back = threading.Thread(target=_pump, args=(server, client, lambda _: None), daemon=True)
            back.start()
            _pump(client, server, self.on_sent)
            back.join()
            with self._lock:
                self._open -= {client, server}


def _pump(source: socket.socket, target: socket.socket, forwarded: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
            forwarded(data)
    for connection in (source, target):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def breakable_connection(upstream: str) -> Iterator[BreakableConnection]:
    opened = BreakableConnection(upstream)
    try:
        yield opened
    finally:
        opened.close()
