"""Serving an ASGI application in a thread. Imported only when a server starts, because uvicorn is slow to import."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import uvicorn

from spark_resources.errors import Unavailable

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 30.0


class ServerThread:
    """Serves an application on a listening socket, which `stop` closes. Ready for requests as soon as it is created."""

    def __init__(self, application: Any, listening_socket: socket.socket, *, grace_s: float, **options: Any) -> None:
        """On `stop`, requests in progress get `grace_s` seconds to finish. `options` are uvicorn's, such as a
        certificate. The application writes its own `Date` and `Server` headers, or none.

        Raises `Unavailable` if the server doesn't start.
        """
        self._socket = listening_socket
        self.port: int = listening_socket.getsockname()[1]
        config = uvicorn.Config(
            application, lifespan="off", proxy_headers=False, date_header=False, server_header=False, **options
        )
        self._server = _Server(config, grace_s)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening_socket]}, name=f"server-{self.port}", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.ready.wait(0.05):
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise Unavailable(f"the server did not start on port {self.port}. Check its log.")

    def stop(self) -> None:
        self._server.stop()
        self._thread.join(_STOP_TIMEOUT_S)
        self._socket.close()


class _Server(uvicorn.Server):
    """Stops without delay: uvicorn itself takes up to 0.1 s to notice that it should stop, then waits as long again.

    Tests start hundreds of servers.
    """

    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._grace_s = grace_s
        self._stop_requested = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Make the server stop. Called from another thread."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop_requested.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ready.set()
        if not self.should_exit:
            await self._stop_requested.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()  # once it has sent its response
        deadline = time.monotonic() + self._grace_s
        while (self.server_state.connections or self.server_state.tasks) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
