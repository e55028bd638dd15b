"""A user's actions on the pages of Dagster's UI, and the runs that its GraphQL API reports."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml
from playwright.sync_api import Locator, Page, expect
from playwright.sync_api import TimeoutError as TimedOut

from lakegc_assets.cli.dagster_runs import LOCATION

JOB = f"/locations/{LOCATION}/jobs/mark"
SCHEDULE = f"/locations/{LOCATION}/schedules/mark_repositories"
SENSOR = f"/locations/{LOCATION}/sensors/approved_sweeps"
WIDTH, HEIGHT = 1500, 1000
"""The size of the browser's window."""
RUN_LIMIT_S = 600.0  # two runs execute at a time, and others may be queued before this one

expect.set_options(timeout=60_000)
_RUNS = """{ runsOrError(limit: 50) { ... on Runs { results { runId jobName status tags { key value } } } } }"""
_EVENTS = """{ assetOrError(assetKey: {path: ["%s"]}) { ... on Asset {
    assetMaterializations(partitions: ["%s"]) { runId } assetObservations(partitions: ["%s"]) { runId } } } }"""
_SWITCH = """{ instigationStateOrError(instigationSelector: {name: "%s", repositoryName: "__repository__",
    repositoryLocationName: "%s"}) { ... on InstigationState { status } } }"""
_FOLLOW = "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')) }"
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
T = TypeVar("T")


def polled(look: Callable[[], T | None], what: str, limit_s: float, otherwise: Callable[[], str] = str) -> T:
    """Call `look` until it returns a value, and return that value. Fails after the limit with the result of
    `otherwise`."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if value := look():
            return value
        time.sleep(1)  # the step of a poll with a limit; each step queries the web server
    pytest.fail(f"waited {limit_s:.0f} s in vain for {what} {otherwise()}")


@dataclass(frozen=True)
class Run:
    """A run as Dagster's GraphQL API reports it."""

    id: str
    status: str
    tags: Mapping[str, str]

    @property
    def partition(self) -> str:
        return self.tags.get("dagster/partition", "")


@dataclass(frozen=True)
class Ui:
    """The served UI: its address, a browser page, and the folder for screenshots."""

    address: str
    page: Page
    log: Path
    pictures: Path | None

    def open(self, path: str) -> Page:
        """Go to a page as a click on a link does. Loading the whole UI would take a second of CPU time."""
        if not self.page.url.startswith(self.address):
            return self.load(path)
        self.page.evaluate(_FOLLOW, path)
        return self.page

    def load(self, path: str) -> Page:
        """Load a page from scratch, without the state that it showed before."""
        self.page.goto(self.address + path)
        return self.page

    def waited(self, look: Callable[[], T | None], what: str, limit_s: float, otherwise: Callable[[], str] = str) -> T:
        """What `look` returns, now or later. Leaves the UI meanwhile, since an open page polls its server and
        redraws."""
        if value := look():
            return value
        self.page.goto("about:blank")
        return polled(look, what, limit_s, otherwise)

    def picture(self, name: str, *, height: int = HEIGHT) -> None:
        """Save a screenshot if a folder for screenshots is set, with the window as high as the page's content."""
        if self.pictures:
            self.page.set_viewport_size({"width": WIDTH, "height": height})
            self.page.wait_for_timeout(500)  # charts are animated
            self.page.screenshot(path=self.pictures / f"{name}.png")
            self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})

    def events(self, asset: str, partition: str, count: int) -> Locator:
        """The events of an asset's partition, newest first, once there are `count`."""
        self.wait_for_events(asset, partition, count)
        listed = self.load(f"/assets/{asset}?view=events").locator(f"span:text-is('{partition}')")
        expect(listed).to_have_count(count)
        return listed

    def wait_for_events(self, asset: str, partition: str, count: int) -> None:
        """Wait until an asset's partition has `count` events. Reloading its page would take two seconds of CPU time."""

        def recorded() -> bool:
            events = self.graphql(_EVENTS % (asset, partition, partition))["assetOrError"]
            return sum(map(len, events.values())) == count

        self.waited(recorded, f"{count} events of {partition} in {asset}", 120)

    # --- what is done -----------------------------------------------------------------------------------------------

    def launch(self, partition: str) -> None:
        """Materialize all assets of the job for a partition that is added in the dialog."""
        page = self.open(JOB)
        page.get_by_role("button", name="Materialize all").click()
        page.get_by_text("Add a partition", exact=True).click()
        page.get_by_placeholder("name", exact=True).fill(partition)
        page.get_by_role("button", name="Save").click()
        launch = page.get_by_role("button", name="Launch 1 run")
        try:
            expect(launch).to_be_enabled(timeout=15_000)
        except AssertionError:  # the dialog reloaded its list and lost the selection; the new partition is on the list
            self.select(partition, "Launch runs to materialize")
        expect(launch).to_be_enabled()
        self.picture(f"dialog-{partition.partition(':')[0]}")
        launch.click()
        expect(page.get_by_text("Launched run")).to_be_visible()

    def materialize(self) -> None:
        """Open the dialog that materializes the asset of this page, although an asset before it isn't materialized."""
        self.page.get_by_role("button", name="Materialize…").click()
        self.page.get_by_role("button", name="Confirm").click()

    def approve(self, partition: str, **config: Any) -> None:
        """Launch the job `approve` for a partition, with this configuration typed on the launchpad."""
        page = self.open(f"/locations/{LOCATION}/jobs/approve/playground")
        self.choose_on_launchpad(partition)
        editor = page.locator(".CodeMirror").first
        expect(editor).to_contain_text("digest")  # only the partition's template has this field
        editor.click()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.insert_text(yaml.safe_dump({"ops": {"give_approval": {"config": config}}}, sort_keys=False))
        self.picture("launchpad-approve")
        launch = page.get_by_role("button", name="Launch Run")
        expect(launch).to_be_enabled()
        launch.click()
        expect(page).to_have_url(re.compile("/runs/"))

    def choose_on_launchpad(self, partition: str) -> None:
        """Choose a partition on the launchpad. Retries, because the list closes when the page is rendered again."""
        offered = self.page.get_by_text(partition, exact=True).filter(visible=True)

        def opened() -> bool:
            self.page.get_by_placeholder("Partition").click()
            with suppress(TimedOut):
                offered.first.click(timeout=5_000)
                return True
            self.page.keyboard.press("Escape")
            return False

        polled(opened, f"the launchpad to offer {partition}", 120)

    def report_by_hand(self, partition: str, text: str) -> None:
        """Report a materialization of the approval's asset for a partition, with a description."""
        page = self.open("/assets/sweep_approval")
        beside = page.get_by_role("button", name="Materialize")  # the button is disabled, but the menu next to it isn't
        beside.locator("xpath=following::*[@role='button'][1]").click()
        page.get_by_role("menuitem", name="Report materialization events").click()
        self.select(partition, "Let Dagster know about a materialization")
        page.get_by_placeholder("Add a description").fill(text)
        expect(page.get_by_text("1 partition", exact=True)).to_be_visible()
        page.get_by_role("button", name="Report event").click()
        expect(page.get_by_text("Your event has been reported.")).to_be_visible()

    def select(self, partition: str, heading: str) -> None:
        """Select a partition in the list of a dialog. Clicking the dialog's heading closes the list."""
        self.page.get_by_text("Select a partition or create one").click()
        self.page.get_by_role("menuitem", name=partition).click()
        self.page.get_by_text(heading).click()

    def turn(self, path: str, *, on: bool) -> None:
        """Turn a schedule or sensor on or off with the switch on its own page."""
        page = self.open(path)
        row = page.locator("tr", has_text="Running")
        expect(row.get_by_role("checkbox")).to_be_enabled()
        expect(row.get_by_role("checkbox")).to_be_checked(checked=not on)
        row.locator("label").click()
        polled(lambda: self.is_on(path) == on, "the switch to take effect", 60)

    # --- what became of it ------------------------------------------------------------------------------------------

    def graphql(self, query: str) -> Any:
        body = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["data"]

    def is_on(self, path: str) -> bool:
        state = self.graphql(_SWITCH % (path.rpartition("/")[2], LOCATION))["instigationStateOrError"]
        return bool(state["status"] == "RUNNING")

    def runs(self, job: str) -> list[Run]:
        """All runs of a job, newest first."""
        results: list[dict[str, Any]] = self.graphql(_RUNS)["runsOrError"]["results"]
        return [
            Run(run["runId"], run["status"], {tag["key"]: tag["value"] for tag in run["tags"]})
            for run in results
            if run["jobName"] == job
        ]

    def ended_run(self, partition: str, *, job: str = "mark") -> Run:
        """The newest run of a job for a partition, once it has ended."""

        def ended() -> Run | None:
            of_partition = [run for run in self.runs(job) if run.partition == partition]
            return of_partition[0] if of_partition and of_partition[0].status in _ENDED else None

        return self.waited(ended, f"a run of {job} for {partition} to end", RUN_LIMIT_S, self.status_report)

    def status_report(self) -> str:
        """The status of all runs, newest first, and the last lines of the log of the UI and its runs."""
        runs = self.graphql(_RUNS)["runsOrError"]["results"]
        statuses = [f"{run['jobName']} {run['runId']}: {run['status']}" for run in runs]
        logged = self.log.read_text(errors="replace").splitlines()
        return "\n".join(["", *statuses, *logged[-150:]])
