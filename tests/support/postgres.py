"""A PostgreSQL server for tests, on a free loopback port with its own folder, stopped and removed afterwards.

It needs the machine's own binaries, such as those of Debian's package `postgresql`. PostgreSQL refuses to run as root,
so root starts it as the user `postgres` or `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

START_LIMIT = 30.0  # seconds until the server accepts connections
STARTS = 3  # attempts: another process can take a free port before the server does
UNPRIVILEGED = ("postgres", "nobody")
USER, DATABASE = "dagster", "dagster"
# nothing has to survive the machine
SPEED = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "64MB"}


@dataclass(frozen=True)
class Postgres:
    """A running server. Its only database is `dagster`, and so is the user, without a password."""

    port: int

    def environment(self) -> dict[str, str]:
        """The variables that the example of `dagster.yaml` reads."""
        return {
            "DAGSTER_POSTGRES_HOST": "127.0.0.1",
            "DAGSTER_POSTGRES_PORT": str(self.port),
            "DAGSTER_POSTGRES_DB": DATABASE,
            "DAGSTER_POSTGRES_USER": USER,
            "DAGSTER_POSTGRES_PASSWORD": "not-a-secret-but-a-test",
        }


def binaries() -> Path | None:
    """The folder with PostgreSQL's programs: that of `initdb` on the PATH, or Debian's newest version; None without
    either."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in debian), key=lambda folder: float(folder.parent.name), default=None)


def user() -> Mapping[str, Any]:
    """The user of the server's processes, as arguments of `subprocess`: none unless this one is root."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = next(known[name] for name in UNPRIVILEGED if name in known)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """An empty server. Skips the test, with a warning, if this machine has no PostgreSQL."""
    programs = binaries()
    if programs is None:
        sentence = "no PostgreSQL on this machine: nothing about Dagster's history in Postgres is tested"
        warnings.warn(sentence, stacklevel=1)
        pytest.skip(sentence)
    identity = user()
    with tempfile.TemporaryDirectory(prefix="lakegc-postgres-", dir=_folder_for_all() if identity else None) as name:
        folder = Path(name)
        if identity:
            os.chown(folder, identity["user"], identity["group"])
        log = (folder / "log").open("wb")
        initialize = [programs / "initdb", "--pgdata", folder / "data", "--username", USER, "--auth", "trust"]
        subprocess.run([*initialize, "--no-sync"], check=True, cwd=folder, stdout=log, stderr=log, **identity)
        with log, _started(programs, folder, identity, log) as port:
            subprocess.run(
                [programs / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", USER, DATABASE], check=True
            )
            yield Postgres(port)


def _folder_for_all() -> Path:
    """A folder for temporary files that other users can reach: root's own may be private."""
    candidates = [Path(tempfile.gettempdir()), Path("/dev/shm"), Path("/tmp")]
    return next(
        folder
        for folder in candidates
        if folder.is_dir() and all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))
    )


@contextlib.contextmanager
def _started(programs: Path, folder: Path, identity: Mapping[str, Any], log: IO[bytes]) -> Iterator[int]:
    """Start the server, and yield its port."""
    options = [argument for name, value in SPEED.items() for argument in ("-c", f"{name}={value}")]
    for attempts_left in reversed(range(STARTS)):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [programs / "postgres", "-D", folder / "data", "-p", str(port), "-h", "127.0.0.1", "-k", ""]
        with subprocess.Popen([*command, *options], cwd=folder, stdout=log, stderr=log, **identity) as server:
            try:
                if _is_ready(programs, server, port):
                    yield port
                    return
            finally:
                server.send_signal(signal.SIGINT)  # ends its sessions, too
        if not attempts_left:
            raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}")


def _is_ready(programs: Path, server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the server accepts connections. False if it ended instead."""
    limit = time.monotonic() + START_LIMIT
    ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    while server.poll() is None and time.monotonic() < limit:
        if subprocess.run(ready, check=False).returncode == 0:
            return True
        time.sleep(0.05)
    return False
