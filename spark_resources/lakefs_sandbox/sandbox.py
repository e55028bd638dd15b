"""The sandbox as its users hold it: a folder, a port, a clock, a server in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from types import TracebackType

from pydantic import SecretStr

from spark_resources.errors import LakegcError, Unavailable
from spark_resources.lakefs_sandbox.catalog import Catalog
from spark_resources.lakefs_sandbox.committed import DEFAULT_RANGE_ENTRIES
from spark_resources.lakefs_sandbox.faults import Faults
from spark_resources.lakefs_sandbox.gc_api import ALL_OVERSIGHTS, DEFAULT_UNCOMMITTED_PAGE, Oversight
from spark_resources.lakefs_sandbox.http_calls import Options
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.store_objects import SETTINGS, StorePlace

LOOPBACK = "127.0.0.1"
ACCESS_KEY_ID = "LAKEGCSANDBOX"
SECRET_ACCESS_KEY = "only-good-for-the-sandbox"
_STORE_CREDENTIALS = frozenset(
    {"s3_access_key_id", "s3_secret_access_key", "s3_session_token", "azure_account_key", "azure_sas_token"}
)
_START_LIMIT_S = 30.0
_STOP_LIMIT_S = 30.0


class Sandbox:
    """A lakeFS-compatible server on loopback over the folder `root`; what it holds is there again at the next start.

    `port` 0 takes a free one. `oversights` are the things that a real server overlooks in what it prepares for
    collectors: all of them, unless told otherwise. `uncommitted_page` is the number of addresses on a page of the
    uncommitted list, `range_entries` the number of entries that a range has on average. Objects are in the folder
    too, unless `place` says where else. `request_log` is called with one line a request. `faults` are what goes wrong
    at times when a real server lists what is staged; nothing does unless told so.

    As a context manager it is started and stopped; `repository` and `create` work without the server, too, and on
    the same data.
    """

    access_key_id = ACCESS_KEY_ID
    secret_access_key = SECRET_ACCESS_KEY

    def __init__(
        self, root: Path, *, port: int = 0, oversights: Collection[Oversight] = ALL_OVERSIGHTS,
        uncommitted_page: int = DEFAULT_UNCOMMITTED_PAGE, range_entries: int = DEFAULT_RANGE_ENTRIES,
        place: StorePlace | None = None, request_log: Callable[[str], None] | None = None,
        faults: Faults | None = None,
    ) -> None:  # fmt: skip
        self.root = root.resolve()
        self._port = port
        self._place = place
        self._failing: dict[str, int] = {}
        self._options = Options(
            ACCESS_KEY_ID, SECRET_ACCESS_KEY, frozenset(oversights), uncommitted_page, request_log, self._failing
        )
        self._catalog = Catalog(
            self.root, range_entries=range_entries, place=place, signing_key=SECRET_ACCESS_KEY, faults=faults
        )
        self._running: _Running | None = None

    # --- the server -------------------------------------------------------------------------------------------------

    def start(self) -> Sandbox:
        """Serves until `stop`. Raises `Unavailable` where the port is taken."""
        if self._running is None:
            self._running = _Running(self._catalog, self._options, self._port)
        return self

    def stop(self) -> None:
        """Ends the server and closes the state file. The folder stays."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()
        self._catalog.close()

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The address without `/api/v1`. Raises `LakegcError` while it isn't serving."""
        if self._running is None:
            raise LakegcError("the sandbox is not running: start it first")
        return f"http://{LOOPBACK}:{self._running.port}"

    @property
    def faults(self) -> Faults:
        """What goes wrong when staged objects are listed; may be changed while it serves."""
        return self._catalog.faults

    @property
    def local_path(self) -> Path:
        """The local block adapter's configured path: namespace `local://x` is its folder `x`. Empty over a store."""
        return self._catalog.local_path

    @property
    def settings(self) -> dict[str, str]:
        """What lakegc's settings need to work on this sandbox, by their names there; the store's secrets among them."""
        server = {
            "endpoint_url": self.endpoint_url,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }
        return server | ({"local_path": str(self.local_path)} if self._place is None else _store_settings(self._place))

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables, for another process; without the store's credentials, which it has from elsewhere."""
        shown = {name: value for name, value in self.settings.items() if name not in _STORE_CREDENTIALS}
        return {f"LAKEGC_{name.upper()}": value for name, value in shown.items()}

    @property
    def lakectl_configuration(self) -> str:
        """What `~/.lakectl.yaml` would hold for this sandbox."""
        return (
            "credentials:\n"
            f"  access_key_id: {self.access_key_id}\n"
            f"  secret_access_key: {self.secret_access_key}\n"
            "server:\n"
            f"  endpoint_url: {self.endpoint_url}/api/v1\n"
        )

    # --- the clock --------------------------------------------------------------------------------------------------

    @property
    def clock_can_be_set(self) -> bool:
        """Whether the sandbox's time is its own: over a folder."""
        return self._place is None

    def now(self) -> datetime:
        return self._catalog.clock.now()

    def set_clock(self, moment: datetime | None) -> None:
        """Let it be `moment` for the server, the store and new files, and let time go on from there.

        None gives the machine's time back. Raises `WrongUsage` for a time without a zone, and over a store, which
        has a clock of its own.
        """
        self._catalog.clock.set(moment)

    # --- repositories without HTTP ----------------------------------------------------------------------------------

    def create(
        self, name: str, *, storage_namespace: str = "", default_branch: str = "main", date: datetime | None = None
    ) -> SandboxRepository:
        """A new repository; unless told otherwise in `local://<name>`, over a store in `<place>/<name>`.

        Raises `Problem`, as the server answers.
        """
        return self._catalog.create(name, storage_namespace, default_branch=default_branch, date=date)

    def fail(self, name: str, status: int | None) -> None:
        """Answer every request about a repository with this status, such as 503, or 401 for a lack of rights; None
        ends that."""
        if status is None:
            self._failing.pop(name, None)
        else:
            self._failing[name] = status

    def repository(self, name: str) -> SandboxRepository:
        """A repository by name. Raises `Problem` 404 where it isn't there."""
        return self._catalog.repository(name)


def _store_settings(place: StorePlace) -> dict[str, str]:
    """The settings of a place in a store that were given, as texts."""
    texts: dict[str, str] = {}
    for name in type(place.settings).model_fields:
        value = getattr(place.settings, name)
        if not name.startswith(SETTINGS[place.scheme]) or value is None:
            continue
        texts[name] = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    return texts


class _Running:
    """A server in a thread, from the moment that it answers."""

    def __init__(self, catalog: Catalog, options: Options, port: int) -> None:
        import uvicorn  # with the application it takes a noticeable part of a second, so only who serves pays for it

        from spark_resources.lakefs_sandbox.server import application

        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(catalog, options), log_config=None, access_log=False, lifespan="off",
                date_header=False, server_header=False, timeout_graceful_shutdown=5,
            )
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name=f"sandbox-{self.port}", daemon=True
        )
        self._thread.start()
        limit = time.monotonic() + _START_LIMIT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > limit:
                self.stop()
                raise Unavailable(f"the sandbox's server did not start on port {self.port}; its log says why")
            self._thread.join(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(_STOP_LIMIT_S)
        self._socket.close()


def _listening(port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise Unavailable(
            f"the sandbox can't listen on {LOOPBACK}:{port}: {error.strerror}. Choose another port, or 0 for any."
        ) from error
    return listening
