"""Dagster's UI as a user sees it: `lakegc ui` on a sandbox, opened in a headless Chromium."""

from __future__ import annotations

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
from tests.support.ui_pages import Ui, polled

NIGHT = ("night-a", "night-broken")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync")  # fmt: skip
START_LIMIT_S = 240.0


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
    """`lake`, where one object expires and another has the size of a live one, and two repositories for the nightly
    schedule, one of them broken.

    All objects are three days old.
    """
    with Sandbox(tmp_path_factory.mktemp("sandbox")) as server:
        server.set_clock(server.now() - timedelta(days=3))
        for name in ("lake", *NIGHT):
            lake, then = server.create(name), server.now()
            set_rules(lake, Rules(30, {}))
            lake.put("main", "overwritten", b"first")
            lake.commit("main", "first", date=then - timedelta(days=60))
            lake.put("main", "overwritten", b"the second version")
            lake.put("main", "other", b"123456789")
            lake.commit("main", "second", date=then - timedelta(days=50))
            lake.put("main", "forgotten", b"987654321")
            lake.reset("main")
        server.set_clock(None)
        cut_short(server.local_path / "night-broken")
        yield server


def cut_short(namespace: Path) -> None:
    """Truncate each of a namespace's tables, as a copy would be that ran out of space."""
    for path in (namespace / "_lakefs").iterdir():
        if len(path.name) == 64:  # ids of ranges and metaranges
            path.write_bytes(path.read_bytes()[:-20])


@pytest.fixture(scope="module")
def dagster_home(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Dagster home in which the command line made the mark `night-a|by-cli`."""
    home = tmp_path_factory.mktemp("dagster")
    outcome = Lakegc(home, on_disk=True)(sandbox.settings, "mark", "night-a", "--mark-id", "by-cli", *NO_AGE)
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
def address(sandbox: Sandbox, dagster_home: Path, log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `lakegc ui`. The schedule ticks every minute, no path probes are allowed, and a brake trips
    early."""
    port = free_port()
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))}
    known = {
        "max_probes": "0",
        "brake_first_share": "0.2",  # a quarter of the objects of `lake` would expire
        "mark_cron": "* * * * *",
        "repositories_include": "night-*",
    }
    places = {
        "HOME": str(tmp_path_factory.mktemp("home")),
        "DAGSTER_HOME": str(dagster_home),
        "XDG_CACHE_HOME": platformdirs.user_cache_dir(),  # Spark's classes, which take longer to write than a mark
    }
    with log.open("wb") as logged:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakegc_assets.cli", "ui", "--port", str(port)],
            env={**cleared, **quick_environment({**sandbox.settings, **known}), **places},
            cwd=log.parent, stdin=subprocess.DEVNULL, stdout=logged, stderr=logged, start_new_session=True,
        )  # fmt: skip
    try:
        served = f"http://127.0.0.1:{port}"
        polled(lambda: serves(served, process), "lakegc ui to serve", START_LIMIT_S)
        yield served
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # with the runs that a failed test left behind
        process.wait(60)


@pytest.fixture(scope="module")
def ui(chromium: str, address: str, browser: Browser, log: Path, pictures: Path | None) -> Iterator[Ui]:
    """The served UI in a browser window."""
    page = browser.new_page(viewport={"width": 1500, "height": 1000}, reduced_motion="reduce")
    page.set_default_timeout(60_000)
    yield Ui(address, page, log, pictures)
    page.close()


def serves(address: str, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "lakegc ui ended"
    try:
        with urllib.request.urlopen(f"{address}/server_info", timeout=5):
            return True
    except OSError:
        return False
