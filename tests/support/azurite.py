"""Azurite, the emulator of Azure's blob storage: installed once if it is missing, and run on a free loopback port.

Azurite is an npm package; no other part of the project needs npm. Without Azurite and npm, its tests are skipped with a
warning.
"""

from __future__ import annotations

import os
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from azure.core.exceptions import AzureError, ResourceExistsError
from azure.storage.blob import BlobServiceClient
from pydantic import SecretStr

from spark_resources.stores.settings import StoreSettings
from tests.support.azurite_installation import find_or_install
from tests.support.retry_policies import no_wait_policy
from tests.support.s3_servers import START_LIMIT, STARTS, _folder, free_port

ACCOUNT = "lakegctests"
KEY = "bm90IGEgc2VjcmV0IGJ1dCBhIHRlc3Q="


@dataclass(frozen=True)
class Azurite:
    """A running Azurite with one account."""

    endpoint_url: str
    account: str = ACCOUNT
    account_key: str = KEY

    def settings(self, **changes: object) -> StoreSettings:
        """Settings that open a store on this server. Timeouts are short, because the server is on loopback."""
        known: dict[str, object] = {
            "azure_endpoint_url": self.endpoint_url,
            "azure_account_key": SecretStr(self.account_key),
            "connect_timeout": 5.0,
            "read_timeout": 30.0,
            "retry": no_wait_policy(3),
        }
        return StoreSettings.model_validate(known | changes)

    def make_container(self, name: str) -> None:
        """Create a container if it doesn't exist."""
        with suppress(ResourceExistsError):
            self.client().create_container(name)

    def client(self) -> BlobServiceClient:
        """Azure's own client, for calls that a store doesn't offer."""
        credential = {"account_name": self.account, "account_key": self.account_key}
        return BlobServiceClient(self.endpoint_url, credential=credential, retry_total=0)


@contextmanager
def azurite() -> Iterator[Azurite]:
    """An empty Azurite, removed afterwards with its data."""
    program = find_or_install()
    if program is None:
        sentence = (
            "Azurite is missing, so the Azure store was not tested: run `npm install -g azurite`, "
            "or set LAKEGC_TEST_AZURITE to its path"
        )
        warnings.warn(sentence, stacklevel=1)
        pytest.skip(sentence)
    with ExitStack() as running:
        for attempts_left in reversed(range(STARTS)):
            attempt = running.enter_context(ExitStack())
            folder, port = attempt.enter_context(_folder("azurite-")), free_port()
            process = attempt.enter_context(_running(program, port, folder))
            server = Azurite(f"http://127.0.0.1:{port}/{ACCOUNT}")
            try:
                _until_ready(server, process, folder)
            except RuntimeError:
                attempt.close()
                if not attempts_left:
                    raise
            else:
                break
        yield server


# --- the program ----------------------------------------------------------------------------------------------------


@contextmanager
def _running(program: str, port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a log in its folder and without this user's configuration; stopped afterwards."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}",
    }
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck",
               "--disableTelemetry", "--silent"]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *options], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()  # it has no data to keep
        process.wait()


def _until_ready(server: Azurite, process: subprocess.Popen[bytes], folder: Path) -> None:
    limit = time.monotonic() + START_LIMIT
    last: Exception | None = None
    while time.monotonic() < limit and process.poll() is None:
        try:
            server.make_container("ready-or-not")
            server.client().delete_container("ready-or-not")
        except AzureError as error:
            last = error
            time.sleep(0.05)  # the step of a poll with a limit
        else:
            return
    log = (folder / "log").read_text(errors="replace")[-4000:]
    raise RuntimeError(f"Azurite did not get ready in {START_LIMIT:.0f} s: {last}\n{log}")
