"""Run a soak: `python -m tests.soak --minutes 60 --seed 1`. Exit code 0 only if it passed.

Its folder has the log of each command and server, and stays if the soak did not pass.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from spark_resources.lakefs_sandbox.sandbox import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from tests.soak.commands import STRANGE, Commands
from tests.soak.daemon import FLEET, Daemon, DailyOperator
from tests.soak.disturbances import Disturber
from tests.soak.final_check import check_lake, check_no_process_is_left, finish_and_collect
from tests.soak.lake import Client, Lake
from tests.soak.operators import Operator
from tests.soak.store_in_front import SHOWN_OLDER
from tests.soak.world import (
    BUCKET,
    DAILY,
    MANUAL,
    PREFIX,
    Service,
    World,
    base_environment,
    kill_all,
    say,
)  # fmt: skip
from tests.soak.writers import Writer
from tests.support.s3_servers import S3Server, SeaweedFS, free_port, seaweedfs

AGE_S = 86_400 - SHOWN_OLDER.total_seconds() + 10  # until the youngest garbage can be swept
OPERATORS_END_LIMIT_S = 2400


class Soak:
    """All parts of a soak, and its phases."""

    def __init__(self, folder: Path, seed: int, store: SeaweedFS) -> None:
        proxy_port, sandbox_port = free_port(), free_port()
        proxy_url, sandbox_url = f"http://127.0.0.1:{proxy_port}", f"http://127.0.0.1:{sandbox_port}"
        (folder / "lakegc.toml").write_text(FLEET)
        settings = {
            "endpoint_url": sandbox_url, "access_key_id": ACCESS_KEY_ID, "secret_access_key": SECRET_ACCESS_KEY,
            "s3_endpoint_url": proxy_url, "s3_region": "us-east-1", "s3_access_key_id": store.access_key,
            "s3_secret_access_key": store.secret_key, "config": str(folder / "lakegc.toml"), "spark_master": "local[2]",
        }  # fmt: skip
        self.world = World(folder, base_environment(folder, settings))
        self.seed = seed
        self.proxy = Service(
            self.world,
            "proxy",
            [sys.executable, "-m", "tests.soak.store_in_front", str(proxy_port), store.endpoint_url],
            lambda: _responds(proxy_url),
        )
        sandbox_command = [
            sys.executable, "-m", "lakegc_assets.cli", "sandbox", "up", "--folder", str(folder / "sandbox"),
            "--port", str(sandbox_port), "--store", f"s3://{BUCKET}/{PREFIX}",
        ]  # fmt: skip
        self.sandbox = Service(
            self.world, "sandbox", sandbox_command, lambda: _responds(f"{sandbox_url}/api/v1/healthcheck")
        )
        self.lakes = [Lake(Client(sandbox_url), store, name) for name in (*MANUAL, DAILY)]
        self.daemon = Daemon(self.world)
        self.commands = Commands(self.world)
        self.daily_commands = Commands(self.world, self.daemon.environment)
        through_proxy = S3Server(proxy_url, store.access_key, store.secret_key)
        self.writers = [Writer(self.world, lake, through_proxy, f"{seed} {lake.name}") for lake in self.lakes]
        self.operators: list[threading.Thread] = [
            *(Operator(self.world, self.commands, name, f"{seed} {name}") for name in MANUAL),
            DailyOperator(self.world, self.daily_commands, f"{seed} {DAILY}"),
        ]
        self.disturber = Disturber(
            self.world, (self.sandbox, self.proxy), self.daemon, [self.commands, self.daily_commands], f"{seed} kills"
        )

    def start(self) -> None:
        self.proxy.start()
        self.sandbox.start()
        for lake in self.lakes:
            lake.create()
        for writer in self.writers:
            writer.start()
        self.daemon.prepare()
        self.daemon.start()
        for thread in (*self.operators, self.disturber):
            thread.start()

    def watch(self, minutes: float) -> None:
        """Show progress each minute until the time is over."""
        end = time.monotonic() + minutes * 60
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(60, left))
            self._show_progress(left)

    def _show_progress(self, left: float) -> None:
        counts = dict(self.world.record.counts)
        sums = {
            word: sum(number for what, number in counts.items() if what.startswith(word))
            for word in ("operation:", "command:")
        }
        objects = {lake.name: sum(key.startswith("data/") for key in lake.stored()) for lake in self.lakes}
        dead = [thread.name for thread in (*self.writers, *self.operators, self.disturber) if not thread.is_alive()]
        for name in dead:
            self.world.record.problem(f"the {name} has stopped: see its traceback above")
        disturbances = {
            what.partition(": ")[2]: number for what, number in sorted(counts.items()) if "disturbance" in what
        }
        say(
            f"{left / 60:.0f} min left; operations {sums['operation:']}, commands {sums['command:']}, marks "
            f"{counts.get('marks', 0)}, sweeps {counts.get('sweeps', 0)}; {disturbances}; objects {objects}; "
            f"problems {len(self.world.record.problems)}"
        )

    def finish(self) -> None:
        """Stop what disturbs and writes, then the operators and the daemon, then collect and compare."""
        self.world.ending.set()
        say("ending: disturbances and writers first, then the commands and runs in progress")
        for thread in (self.disturber, *self.writers):
            thread.join(OPERATORS_END_LIMIT_S)
        self.proxy.tell("calm")
        written = time.monotonic()
        for operator in self.operators:
            operator.join(OPERATORS_END_LIMIT_S)
            if operator.is_alive():
                self.world.record.problem(f"the {operator.name} did not end")
        self._stop_daemon()
        for lake in self.lakes:
            lake.read_branches()
        time.sleep(max(0.0, written + AGE_S - time.monotonic()))
        for lake in self.lakes:
            commands = self.daily_commands if lake.name == DAILY else self.commands
            commands.is_calm = True
            say(f"{lake.name}: the last mark and sweep")
            finish_and_collect(commands, lake.name)
            check_lake(self.world, lake, commands)
        check_no_process_is_left(self.world, {self.proxy.pid, self.sandbox.pid})

    def _stop_daemon(self) -> None:
        """Stop the daemon like a service manager, once its runs have ended."""
        limit = time.monotonic() + OPERATORS_END_LIMIT_S
        while self.daemon.run_processes() and time.monotonic() < limit:
            time.sleep(2)
        self.daemon.kill(signal.SIGTERM)
        for what, number in self.daemon.run_counts().items():
            self.world.record.count(f"run of the daemon: {what}", number)

    def summary(self, minutes: float, seconds: float) -> dict[str, Any]:
        record = self.world.record
        for service in (self.daemon, self.proxy, self.sandbox):
            text = service.log.read_text(errors="replace") if service.log.exists() else ""
            record.count(f"tracebacks in the log of the {service.name}", text.count(STRANGE[0]))
            if STRANGE[1] in text:
                record.problem(f"the log of the {service.name} mentions a {STRANGE[1]}: see {service.log}")
        return {
            "passed": not record.problems,
            "seed": self.seed,
            "minutes": minutes,
            "seconds in all": round(seconds),
            "counts": dict(sorted(record.counts.items())),
            "messages": dict(record.messages.most_common()),
            "problems": record.problems,
        }


def _responds(url: str) -> bool:
    """Whether anything answers at this address."""
    try:
        return urllib3.request("GET", url, retries=False, timeout=5).status < 500
    except urllib3.exceptions.HTTPError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long to use and disturb; the end comes on top")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder for all files; a new temporary one by default")
    options = parser.parse_args()
    for sent in (signal.SIGINT, signal.SIGTERM):  # also if a script started it with `&`
        signal.signal(sent, signal.default_int_handler)
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="lakegc-soak-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        store = stack.enter_context(seaweedfs())
        store.make_bucket(BUCKET)
        stack.callback(kill_all, folder)
        say(f"seed {options.seed}, files in {folder}")
        began = time.monotonic()
        soak = Soak(folder, options.seed, store)
        try:
            soak.start()
            soak.watch(options.minutes)
            soak.finish()
        except KeyboardInterrupt:
            soak.world.ending.set()
            soak.world.record.problem("interrupted")
        except Exception as error:
            soak.world.record.problem(f"the harness failed: {type(error).__name__}: {error}")
            raise
        finally:
            summary = soak.summary(options.minutes, time.monotonic() - began)
            (folder / "summary.json").write_text(json.dumps(summary, indent=2))
            print(json.dumps(summary, indent=2), flush=True)
    if summary["passed"] and options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
