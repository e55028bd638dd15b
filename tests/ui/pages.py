"""What a person does on the pages of Dagster's UI, and what its own API tells of runs."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Page, expect

JOB = "/locations/lakegc_assets.definitions/jobs/mark"
SCHEDULE = "/locations/lakegc_assets.definitions/schedules/mark_repositories"
RUN_LIMIT_S = 240.0

expect.set_options(timeout=60_000)
_RUNS = """{ runsOrError(limit: 50) { ... on Runs { results { runId status tags { key value } } } } }"""
_SCHEDULE = """{ scheduleOrError(scheduleSelector: {scheduleName: "mark_repositories", repositoryName: "__repository__",
    repositoryLocationName: "lakegc_assets.definitions"}) { ... on Schedule { scheduleState { status } } } }"""
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
T = TypeVar("T")


def polled(look: Callable[[], T | None], what: str, limit_s: float) -> T:
    """What a look finds, as soon as it finds something; fails where it doesn't within the limit."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(0.25)  # the step of a poll with a limit
    pytest.fail(f"waited {limit_s:.0f} s in vain for {what}")


@dataclass(frozen=True)
class Run:
    """A run as the UI's own API tells it."""

    id: str
    status: str
    tags: Mapping[str, str]

    @property
    def partition(self) -> str:
        return self.tags.get("dagster/partition", "")


@dataclass(frozen=True)
class Ui:
    """The served UI: where it is, a browser's page on it, and the folder for screenshots."""

    address: str
    page: Page
    pictures: Path

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page

    def picture(self, name: str) -> None:
        """Keep what is seen now, for people who look."""
        self.page.screenshot(path=self.pictures / f"{name}.png")

    # --- what is done -----------------------------------------------------------------------------------------------

    def launch(self, partition: str) -> None:
        """Materialize the job for a partition, which is added in the dialog."""
        page = self.open(JOB)
        page.get_by_role("button", name="Materialize all").click()
        page.get_by_text("Add a partition", exact=True).click()
        page.get_by_placeholder("name", exact=True).fill(partition)
        page.get_by_role("button", name="Save").click()
        launch = page.get_by_role("button", name="Launch 1 run")
        try:
            expect(launch).to_be_enabled(timeout=15_000)
        except AssertionError:  # the dialog's own list came later, and it forgot what was added: it's on that list
            page.get_by_text("Select a partition or create one").click()
            page.get_by_role("menuitem", name=partition).click()
            page.get_by_text("Launch runs to materialize").click()
        expect(launch).to_be_enabled()
        self.picture(f"dialog-{partition.partition('|')[0]}")
        launch.click()
        expect(page.get_by_text("Launched run")).to_be_visible()

    def turn_schedule(self, *, on: bool) -> None:
        """Turn the schedule on or off with the switch on its own page."""
        page = self.open(SCHEDULE)
        row = page.locator("tr", has_text="Running")
        expect(row.get_by_role("checkbox")).to_be_enabled()
        expect(row.get_by_role("checkbox")).to_be_checked(checked=not on)
        row.locator("label").click()
        polled(lambda: self.schedule_is_on() == on, "the schedule's switch to be heard", 60)

    # --- what became of it ------------------------------------------------------------------------------------------

    def asked(self, query: str) -> Any:
        question = json.dumps({"query": query}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", question, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def schedule_is_on(self) -> bool:
        return bool(self.asked(_SCHEDULE)["scheduleOrError"]["scheduleState"]["status"] == "RUNNING")

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        found: list[dict[str, Any]] = self.asked(_RUNS)["runsOrError"]["results"]
        return [
            Run(each["runId"], each["status"], {tag["key"]: tag["value"] for tag in each["tags"]}) for each in found
        ]

    def ended_run(self, partition: str) -> Run:
        """The newest run of a partition, once it has ended."""

        def ended() -> Run | None:
            found = [run for run in self.runs() if run.partition == partition]
            return found[0] if found and found[0].status in _ENDED else None

        return polled(ended, f"a run of {partition} to end", RUN_LIMIT_S)
