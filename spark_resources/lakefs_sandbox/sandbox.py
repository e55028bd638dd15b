"""The sandbox's public interface: a server in a thread, with its data in a folder, and a clock that can be set."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pydantic import SecretStr

from spark_resources.errors import LakegcError, Unavailable
from spark_resources.lakefs_sandbox.catalog import Catalog
from spark_resources.lakefs_sandbox.committed import DEFAULT_RANGE_ENTRIES
from spark_resources.lakefs_sandbox.faults import Faults
from spark_resources.lakefs_sandbox.gc_api import ALL_OVERSIGHTS, DEFAULT_UNCOMMITTED_PAGE_SIZE, Oversight
from spark_resources.lakefs_sandbox.http_calls import Options
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.store_objects import SETTING_PREFIXES, StorePlace
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from spark_resources.lakefs_sandbox.server_thread import ServerThread

LOOPBACK = "127.0.0.1"
ACCESS_KEY_ID = "LAKEGCSANDBOX"
SECRET_ACCESS_KEY = "only-good-for-the-sandbox"
_STORE_CREDENTIALS = frozenset({"s3_access_key_id", *StoreSettings.secret_names()})


class Sandbox:
    """A lakeFS-compatible server on loopback. The folder `root` keeps its data from one start to the next.

    `port` 0 chooses a free port. `oversights` are the omissions of a real server in the lists that it prepares for
    garbage collection; all of them by default. `uncommitted_page_size` is the number of addresses per page of the
    uncommitted list, `range_entries` the average number of entries per range. Objects are also in the folder, unless
    `place` names an object store for them. `request_log` is called with one line per request. `faults` are the faults
    of a real server to inject when staged objects are listed; none by default.

    As a context manager, it starts and stops the server. `repository` and `create` use the same data and also work
    without the server.
    """

    access_key_id = ACCESS_KEY_ID
    secret_access_key = SECRET_ACCESS_KEY

    def __init__(
        self, root: Path, *, port: int = 0, oversights: Collection[Oversight] = ALL_OVERSIGHTS,
        uncommitted_page_size: int = DEFAULT_UNCOMMITTED_PAGE_SIZE, range_entries: int = DEFAULT_RANGE_ENTRIES,
        place: StorePlace | None = None, request_log: Callable[[str], None] | None = None,
        faults: Faults | None = None,
    ) -> None:  # fmt: skip
        self.root = root.resolve()
        self._port = port
        self._place = place
        self._failure_statuses: dict[str, int] = {}
        self._options = Options(
            ACCESS_KEY_ID,
            SECRET_ACCESS_KEY,
            frozenset(oversights),
            uncommitted_page_size,
            request_log,
            self._failure_statuses,
        )
        self._catalog = Catalog(
            self.root, range_entries=range_entries, place=place, signing_key=SECRET_ACCESS_KEY, faults=faults
        )
        self._server: ServerThread | None = None

    # --- the server -------------------------------------------------------------------------------------------------

    def start(self) -> Sandbox:
        """Serve until `stop`. Raises `Unavailable` if the port is taken."""
        if self._server is None:
            listener = _listening_socket(self._port)
            from spark_resources.lakefs_sandbox.server import application  # slow to import, like uvicorn
            from spark_resources.lakefs_sandbox.server_thread import ServerThread

            self._server = ServerThread(
                application(self._catalog, self._options), listener, grace_s=5, log_config=None, access_log=False
            )
        return self

    def stop(self) -> None:
        """Stop the server and close the state file. The folder stays."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()
        self._catalog.close()

    def __enter__(self) -> Sandbox:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        """The address without `/api/v1`. Raises `LakegcError` if the server isn't running."""
        if self._server is None:
            raise LakegcError("the sandbox is not running: start it first")
        return f"http://{LOOPBACK}:{self._server.port}"

    @property
    def faults(self) -> Faults:
        """The faults that are injected when staged objects are listed; can be changed while the server runs."""
        return self._catalog.faults

    @property
    def local_path(self) -> Path:
        """The local block adapter's configured path: namespace `local://x` is its folder `x`. Unused if objects are in
        an object store."""
        return self._catalog.local_path

    @property
    def settings(self) -> dict[str, str]:
        """The lakegc settings for this sandbox, by name, including the store's secrets."""
        server = {
            "endpoint_url": self.endpoint_url,
            "access_key_id": self.access_key_id,
            "secret_access_key": self.secret_access_key,
        }
        return server | ({"local_path": str(self.local_path)} if self._place is None else _store_settings(self._place))

    @property
    def environment(self) -> dict[str, str]:
        """The settings as environment variables for another process, without the store's credentials."""
        settings = {name: value for name, value in self.settings.items() if name not in _STORE_CREDENTIALS}
        return {f"LAKEGC_{name.upper()}": value for name, value in settings.items()}

    @property
    def lakectl_configuration(self) -> str:
        """The content of a `~/.lakectl.yaml` for this sandbox."""
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
        """Whether the clock can be set: not if objects are in an object store."""
        return self._place is None

    def now(self) -> datetime:
        return self._catalog.clock.now()

    def set_clock(self, moment: datetime | None) -> None:
        """Set the time of the server, the store and new files to `moment`; the clock continues from there.

        None resets it to the machine's time. Raises `WrongUsage` for a time without a time zone, and if objects
        are in an object store, which has its own clock.
        """
        self._catalog.clock.set(moment)

    # --- repositories without HTTP ----------------------------------------------------------------------------------

    def create(
        self, name: str, *, storage_namespace: str = "", default_branch: str = "main", date: datetime | None = None
    ) -> SandboxRepository:
        """Create a repository, by default in `local://<name>` or, with an object store, in `<place>/<name>`.

        Raises `Problem` with the server's status.
        """
        return self._catalog.create(name, storage_namespace, default_branch=default_branch, date=date)

    def fail(self, name: str, status: int | None) -> None:
        """Fail every request for a repository with this status, until the next call with None. The name "" stands for
        requests that concern no single repository, such as a list of all.

        401 means a missing permission.
        """
        if status is None:
            self._failure_statuses.pop(name, None)
        else:
            self._failure_statuses[name] = status

    def names(self) -> set[str]:
        """The names of all repositories."""
        return {record.id for record in self._catalog.repositories()}

    def delete(self, name: str) -> None:
        """Delete a repository, even a read-only one. Its objects stay. Raises `Problem` 404 if it doesn't exist."""
        self._catalog.delete(name, force=True)

    def repository(self, name: str) -> SandboxRepository:
        """A repository by name. Raises `Problem` 404 if it doesn't exist."""
        return self._catalog.repository(name)


def _store_settings(place: StorePlace) -> dict[str, str]:
    """The store settings that were given, as text."""
    texts: dict[str, str] = {}
    for name in type(place.settings).model_fields:
        value = getattr(place.settings, name)
        if not name.startswith(SETTING_PREFIXES[place.scheme]) or value is None:
            continue
        texts[name] = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
    return texts


def _listening_socket(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise Unavailable(
            f"the sandbox can't listen on {LOOPBACK}:{port}: {error.strerror}. Choose another port with --port, or any "
            "free port with --port 0."
        ) from error
    return listener
