"""Dagster's UI as a user sees it: `lakegc ui` on a sandbox, opened in a headless Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import platformdirs
import pytest
from playwright.sync_api import Browser, sync_playwright

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import quick_environment
from tests.support.s3_servers import free_port
from tests.support.ui_pages import HEIGHT, WIDTH, Ui, polled

FLEET = ("archive", "clicks", "orders")
BROKEN = "archive"
PATHS = ("orders/2026.parquet", "exports/daily.csv")
DAYS_OF_COMMITS = {400: 1, 120: 2, 60: 3, 45: 4}
"""How many days ago each commit was made, by its number. The last one is the newest, so it is retained."""
FLEET_FILE = """\
mark_cron = "* * * * *"              # every minute
max_probes = 0
brake_first_share = 0.2              # more than half of each repository would expire
price_per_gb_month = 0.023
owners = ["data-platform"]

[repositories.orders]
owners = ["shop-team"]
"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync")  # fmt: skip
START_LIMIT_S = 240.0
STILL = """addEventListener("DOMContentLoaded", () => {
    const style = document.createElement("style")
    style.textContent = "* { animation: none !important; transition: none !important }"
    document.head.append(style)
})"""
"""Stops animations, such as those of the spinners, which would be redrawn all the time."""


@pytest.fixture(scope="module")
def chromium() -> str:
    """The system's Chromium. Without it these tests are skipped with a message."""
    path = os.environ.get("LAKEGC_TEST_CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if not path:
        sentence = "NO BROWSER, the UI was not tested: apt-get install chromium, or name one in LAKEGC_TEST_CHROMIUM"
        warnings.warn(sentence, stacklevel=1)
        pytest.skip(sentence)
    return path


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        arguments = [f"--{option}" for option in QUIET]
        launched = playwright.chromium.launch(executable_path=chromium, args=arguments, headless=True)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A fleet of three repositories with the same history, one of them broken: FLEET.

    Each has six expired objects of different ages and paths, and one with the size of a live one that was never
    committed.
    """
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as server:
        now = server.now()
        for name in FLEET:
            server.set_clock(now - timedelta(days=500))
            lake = server.create(name)
            set_rules(lake, Rules(30, {}))
            for days, number in DAYS_OF_COMMITS.items():
                server.set_clock(now - timedelta(days=days))
                for path in PATHS:
                    lake.put("main", path, content(path, number))
                lake.commit("main", f"import {number}")
            lake.put("main", "forgotten", FORGOTTEN)
            lake.reset("main")
        server.set_clock(None)
        cut_short(server.local_path / BROKEN)
        yield server


def content(path: str, number: int) -> bytes:
    """The content of a path in a commit, larger from commit to commit."""
    return f"{path} {number} ".encode() * 1_000 * number


FORGOTTEN = content(PATHS[0], len(DAYS_OF_COMMITS))[::-1]
"""An object of the size of a live one, so that a branch might serve it. It was never committed."""


def cut_short(namespace: Path) -> None:
    """Truncate each of a namespace's tables, as a copy would be that ran out of space."""
    for path in (namespace / "_lakefs").iterdir():
        if len(path.name) == 64:  # ids of ranges and metaranges
            path.write_bytes(path.read_bytes()[:-20])


@pytest.fixture(scope="module")
def dagster_home(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Dagster home in which the command line made the mark `clicks:by-cli`."""
    home = tmp_path_factory.mktemp("dagster")
    outcome = Lakegc(home, on_disk=True)(sandbox.settings, "mark", "clicks", "--mark-id", "by-cli", *NO_AGE)
    assert outcome.code == 0, outcome.err
    return home


@pytest.fixture(scope="module")
def pictures() -> Path | None:
    """The folder for screenshots that LAKEGC_TEST_PICTURES names."""
    named = os.environ.get("LAKEGC_TEST_PICTURES")
    folder = Path(named).resolve() if named else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def log(pictures: Path | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the UI and its runs, written beside the screenshots if a folder for them is set."""
    return (pictures or tmp_path_factory.mktemp("log")) / "ui.log"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def process(
    sandbox: Sandbox, dagster_home: Path, log: Path, port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[subprocess.Popen[bytes]]:
    """`lakegc ui` with FLEET_FILE: its schedule ticks every minute, no path probes are allowed, a brake trips early.

    It ignores Ctrl-C at its start, as a background job of a script does.
    """
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))}
    fleet_file = tmp_path_factory.mktemp("fleet") / "lakegc.toml"
    fleet_file.write_text(FLEET_FILE)
    places = {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "DAGSTER_HOME": str(dagster_home),
        "LAKEGC_CONFIG": str(fleet_file),
        "LAKEGC_SPARK_MASTER": "local[1]",  # for each run, one Python worker less
        "XDG_CACHE_HOME": platformdirs.user_cache_dir(),  # Spark's classes, which take longer to write than a mark
    }
    command = [sys.executable, "-m", "lakegc_assets.cli", "ui", "--port", str(port)]
    with log.open("wb") as logged:
        process = subprocess.Popen(
            ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command],
            env={**cleared, **quick_environment(sandbox.settings), **places},
            cwd=log.parent, stdin=subprocess.DEVNULL, stdout=logged, stderr=logged, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the runs that a failed test left behind
        process.wait(60)


@pytest.fixture(scope="module")
def address(process: subprocess.Popen[bytes], port: int) -> str:
    """The address of the served UI."""
    served = f"http://127.0.0.1:{port}"
    polled(lambda: serves(served, process), "lakegc ui to serve", START_LIMIT_S)
    return served


@pytest.fixture(scope="module")
def ui(chromium: str, address: str, browser: Browser, log: Path, pictures: Path | None) -> Iterator[Ui]:
    """The served UI in a browser window."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
    page.set_default_timeout(60_000)
    page.add_init_script(STILL)
    yield Ui(address, page, log, pictures)
    page.close()


def serves(address: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "lakegc ui ended"
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=5):
            return True
    except OSError:
        return False
