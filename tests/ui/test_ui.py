"""The story of a fleet in Dagster's UI: a schedule marks three repositories, one mark is reviewed, approved and swept,
and each page shows what happened."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from lakegc_assets.cli.dagster_runs import LOCATION
from lakegc_assets.jobs import APPROVED_IN_UI
from lakegc_assets.partitions import REPOSITORY_TAG
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.approval import read_approval
from spark_resources.mark_store.mark import Mark
from spark_resources.model import Partition
from tests.support.mark_runs import target_of
from tests.support.ui_pages import JOB, SCHEDULE, SENSOR, Run, Ui, polled
from tests.ui.conftest import BROKEN, DAYS_OF_COMMITS, FLEET, FORGOTTEN, PATHS, content

pytestmark = pytest.mark.timeout(1200)  # each test waits for what the previous one started

END_LIMIT_S = 90.0
REPOSITORY = "orders"
RELEASED = {"share": "the old exports were imported again", f"others/{BROKEN}": "it is broken, and shares nothing"}
NEWEST = max(DAYS_OF_COMMITS.values())
EXPIRED = {content(path, number) for path in PATHS for number in range(1, NEWEST)}
# the newest commit is live, and a branch may serve the last one, since no paths were probed
KEPT = {content(path, NEWEST) for path in PATHS} | {FORGOTTEN}


def stored(sandbox: Sandbox) -> set[bytes]:
    """The contents of the stored objects of the repository."""
    return {path.read_bytes() for path in (sandbox.local_path / REPOSITORY / "data").rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def occasion(ui: Ui) -> str:
    """The mark id of the schedule's first tick: it was turned on, and turned off again afterwards.

    In the meantime the sensor was turned on.
    """
    page = ui.open("/automation")
    for name in ("mark_repositories", "new_repositories", "approved_sweeps", "Every minute"):
        expect(page.get_by_text(name).first).to_be_visible()
    ui.picture("automation")
    ui.turn(SCHEDULE, on=True)
    ui.picture("schedule-on")
    ui.turn(SENSOR, on=True)
    ui.picture("sensor-on")

    def first_tick() -> str | None:
        partitions = [run.partition for run in ui.runs("mark") if run.partition.startswith(f"{BROKEN}:")]
        return Partition.parse(partitions[-1]).mark_id if partitions else None

    mark_id = ui.waited(first_tick, "the schedule's first tick", 180)
    # the daemon writes the schedule's state when it has requested runs, and would turn it on again
    expect(ui.open(SCHEDULE).get_by_text("3 runs requested").first).to_be_visible()
    ui.turn(SCHEDULE, on=False)
    return mark_id


@pytest.fixture(scope="module")
def mark(ui: Ui, occasion: str) -> str:
    """The partition of the mark that the schedule made of the repository."""
    partition = f"{REPOSITORY}:{occasion}"
    assert ui.ended_run(partition).status == "SUCCESS"
    return partition


@dataclass(frozen=True)
class Approved:
    """The stored objects and the sweeps at the time when the approval was reported."""

    stored: set[bytes]
    sweeps: list[Run]


@pytest.fixture(scope="module")
def approved(ui: Ui, mark: str, sandbox: Sandbox) -> Approved:
    """The approval of that mark. First, an event is reported by hand, which approves nothing; then the job is run.

    In the meantime, a run is launched by hand for a partition with an invalid name, which is added in the dialog.
    """
    before = Approved(stored(sandbox), ui.runs("sweep"))
    ui.launch("nonsense")
    ui.report_by_hand(mark, "by Ada")
    ui.wait_for_events("sweep_approval", mark, 2)  # the event, and the sensor's reaction to it
    ui.approve(mark, by="Ada", digest=digest(sandbox, mark), release=RELEASED)
    assert ui.ended_run(mark, job="approve").status == "SUCCESS"
    return before


def digest(sandbox: Sandbox, mark: str) -> str:
    """The first characters of the digest of the mark's expired set, as its page shows them."""
    place = target_of(sandbox.settings, REPOSITORY).place
    return str(Mark.open(place, Partition.parse(mark).mark_id).record.digest)[:12]


@pytest.fixture(scope="module")
def swept(ui: Ui, mark: str, approved: Approved) -> Run:
    """The sweep of the mark, which the sensor started."""
    return ui.ended_run(mark, job="sweep")


def row(page: Page, name: str) -> Locator:
    """The row with this name in an asset's metadata."""
    return page.locator("tr").filter(has=page.get_by_text(name, exact=True)).last


def fits(page: Page) -> bool:
    """Whether none of an asset's metadata is cut off. A value that is too wide makes the table wider than its
    container."""
    table = page.locator("table", has=page.get_by_text("summary", exact=True)).last
    edges = "table => [table, table.parentElement].map(element => element.getBoundingClientRect().right)"
    right, limit = table.evaluate(edges)
    return bool(right <= limit + 1)


def open_partition(ui: Ui, asset: str, mark: str) -> Page:
    """The page of an asset for one mark, as the links between assets open it."""
    return ui.open(f"/assets/{asset}?view=partitions&partition={quote(mark, safe='')}")


def test_the_schedule_shows_its_ticks_and_can_be_turned_off(ui: Ui, occasion: str) -> None:
    """The schedule's page shows what a tick requested, and that the schedule is off again."""
    assert not ui.is_on(SCHEDULE)
    page = ui.open(SCHEDULE)
    expect(page.get_by_text("3 runs requested").first).to_be_visible()
    ui.picture("ticks")


def test_the_page_of_an_expired_set_shows_a_summary_plots_and_the_next_step(
    ui: Ui, mark: str, sandbox: Sandbox
) -> None:
    """All of this is visible without a click, and nothing is cut off."""
    page = open_partition(ui, "expired_set", mark)
    expect(row(page, "summary")).to_contain_text("6 of 9 objects")
    expect(row(page, "summary")).to_contain_text(digest(sandbox, mark))
    expect(row(page, "summary")).to_contain_text("Owners: shop-team.")
    expect(row(page, "by_path")).to_contain_text("exports/")
    expect(row(page, "by_age")).to_contain_text("over a year")
    expect(row(page, "over_time")).to_contain_text("No sweep of this repository has freed anything yet.")
    assert page.get_by_text("█").first.is_visible()
    assert fits(page)
    ui.picture("expired-set", height=1600)
    row(page, "examples").get_by_text("Show Markdown").click()
    expect(page.get_by_text("Largest objects")).to_be_visible()
    expect(page.get_by_text("import 3").first).to_be_visible()
    ui.picture("examples")
    page.get_by_role("button", name="Close").click()

    row(page, "next").get_by_role("link", name="Approve").click()
    expect(page).to_have_url(re.compile(rf"/locations/{LOCATION}/jobs/approve/playground"))
    expect(page.get_by_placeholder("Partition")).to_be_visible()

    page = ui.open("/assets/expired_set")
    expect(page.get_by_text("Only an approval allows deleting them")).to_be_visible()
    expect(row(page, "summary")).to_contain_text("objects")
    assert fits(page)
    ui.picture("asset", height=1800)
    page.get_by_role("button", name="Plots").click()
    expect(page.get_by_text("expired_bytes", exact=True)).to_be_visible()
    ui.picture("plots", height=1600)


def test_the_lineage_and_the_summary_of_each_step_are_shown(ui: Ui, mark: str) -> None:
    page = ui.open("/assets/expired_set?view=lineage&lineageDepth=5")
    for asset in ("namespace_slices", "retained_commits", "sweep_approval", "sweep_report"):
        expect(page.get_by_text(asset).first).to_be_visible()
    ui.picture("lineage")
    for asset, words in (
        ("namespace_slices", "9 objects"),
        ("uncommitted_addresses", "No staged changes"),
        ("retained_commits", "1 of 5 commits is retained"),
        ("committed_addresses", "Retained commits need 2 addresses"),
    ):
        page = open_partition(ui, asset, mark)
        expect(row(page, "summary")).to_contain_text(words)
        ui.picture(asset)


def test_a_failed_check_shows_what_was_measured_and_what_its_failure_means(ui: Ui, mark: str) -> None:
    """The page shows what the check promises, what it protects against, what its failure means, and what was
    measured."""
    page = ui.open("/assets/expired_set?view=checks&checkDetail=identical_content_probed")
    expect(
        page.get_by_text("Paths were probed on every branch for identical content staged again.").first
    ).to_be_visible()
    expect(page.get_by_text("Protects against").first).to_be_visible()
    expect(page.get_by_text("Failed").first).to_be_visible()
    expect(page.get_by_text("Raise LAKEGC_MAX_PROBES").first).to_be_visible()
    ui.picture("check")
    page = ui.open("/assets/expired_set?view=checks&checkDetail=brake_share")
    expect(page.get_by_text("Tripped: 66.7% of all objects").first).to_be_visible()
    expect(page.get_by_text("share: why this is right").first).to_be_visible()
    ui.picture("check-brake")
    page = ui.open("/assets/committed_addresses?view=checks&checkDetail=others_read")
    expect(
        page.get_by_text("References from other repositories to objects of this repository were read.").first
    ).to_be_visible()
    expect(page.get_by_text(f"{BROKEN}: table").first).to_be_visible()
    expect(page.get_by_text("LAKEGC_TRUSTED_REPOSITORIES").first).to_be_visible()
    ui.picture("check-others")


def test_an_approval_is_shown_with_the_approved_set(ui: Ui, mark: str, approved: Approved, sandbox: Sandbox) -> None:
    """The asset shows who approved which set until when, and how to approve a mark instead of reporting an event by
    hand."""
    assert approved.sweeps == []
    page = ui.open("/assets/sweep_approval")
    for name, value in (
        ("summary", "Ada approved the deletion of 6 objects"),
        ("by", "Ada"),
        ("objects", "6"),
        ("digest", digest(sandbox, mark)),
        ("released.share", "imported again"),
    ):
        expect(row(page, name)).to_contain_text(value)
    ui.picture("approved", height=1600)
    ui.events("sweep_approval", mark, 3).nth(1).click()  # between the event by hand and the approval
    expect(page.get_by_text("This event was reported manually and approves nothing.")).to_be_visible()
    ui.picture("approval-by-hand")


def test_exactly_the_approved_objects_are_swept(
    ui: Ui, mark: str, approved: Approved, swept: Run, sandbox: Sandbox
) -> None:
    """The approval that the job wrote makes the sensor start one sweep."""
    approval = read_approval(target_of(sandbox.settings, REPOSITORY).place, Partition.parse(mark).mark_id)
    remaining = stored(sandbox)

    assert (swept.status, swept.tags["dagster/sensor_name"]) == ("SUCCESS", "approved_sweeps")
    assert swept.tags[REPOSITORY_TAG] == REPOSITORY
    assert approval is not None
    assert (approval.who, approval.how, approval.released) == ("Ada", APPROVED_IN_UI, RELEASED)
    assert approved.stored - remaining == EXPIRED
    assert remaining == KEPT


def test_an_approval_triggers_exactly_one_sweep(ui: Ui, swept: Run) -> None:
    """The sensor's page shows the run that it requested, and there is no other run."""
    page = ui.open(SENSOR)

    expect(page.get_by_text("1 run requested").first).to_be_visible()
    ui.picture("sensor-ticks")
    assert [run.id for run in ui.runs("sweep")] == [swept.id]


def test_the_page_of_a_sweep_shows_what_was_deleted_and_freed_and_how_fast(ui: Ui, mark: str, swept: Run) -> None:
    """All of this is visible without a click."""
    page = open_partition(ui, "sweep_report", mark)
    for name, value in (
        ("summary", "6 of 6 approved objects"),
        ("outcomes", "deleted: the space is free"),
        ("over_time", "freed in all"),
        ("objects.deleted", "6"),
    ):
        expect(row(page, name)).to_contain_text(value)
    expect(row(page, "rate")).to_contain_text("in a second")
    ui.picture("sweep-report", height=1400)
    row(page, "next").get_by_role("link", name="expired_set").click()
    expect(row(page, "summary")).to_contain_text("6 of 9 objects")
    page = ui.open(f"/runs/{swept.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("swept")


def test_an_invalid_partition_key_is_refused_and_the_expected_form_is_shown(ui: Ui, approved: Approved) -> None:
    """The page of the run, which was launched by hand, shows one sentence. No asset is shown as failed, and the
    partition key is removed."""
    run = ui.ended_run("nonsense")
    page = ui.open(f"/runs/{run.id}")

    assert run.status == "SUCCESS"
    page.get_by_placeholder("Filter…").fill("is not of the form")
    expect(page.get_by_text("'nonsense' is not of the form repository:mark_id").first).to_be_visible()
    ui.picture("bad-key")


def test_marks_made_on_the_command_line_are_shown(ui: Ui) -> None:
    """A mark made on the command line with this home is a run of the same job, with its own partition."""
    run = ui.ended_run("clicks:by-cli")
    assert run.status == "SUCCESS"
    page = ui.open(f"{JOB}/runs")
    expect(page.get_by_text("clicks:by-cli").first).to_be_visible()
    ui.picture("runs")
    page = ui.open(f"/runs/{run.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("by-cli")


def test_the_schedule_marks_every_repository_but_the_broken_one(ui: Ui, occasion: str) -> None:
    """The run for the broken repository shows what is wrong with it."""
    ended = {name: ui.ended_run(f"{name}:{occasion}") for name in FLEET}

    assert {name for name, run in ended.items() if run.status != "SUCCESS"} == {BROKEN}
    assert [run.tags[REPOSITORY_TAG] for run in ended.values()] == list(FLEET)
    page = ui.open(f"/runs/{ended[BROKEN].id}")
    expect(page.get_by_text("can't be read: it doesn't end like a table").first).to_be_visible()
    ui.picture("broken")


def test_the_page_that_a_mark_links_to_offers_a_sweep_of_this_mark(ui: Ui) -> None:
    """The dialog preselects the mark's partition."""
    page = open_partition(ui, "expired_set", "clicks:by-cli")
    row(page, "next").get_by_role("link", name="what was deleted").click()
    expect(page).to_have_url(re.compile(r"/assets/sweep_report\?"))
    ui.materialize()
    expect(page.get_by_text("1 partition", exact=True)).to_be_visible()
    ui.picture("dialog-sweep")
    expect(page.get_by_role("button", name="Launch 1 run")).to_be_enabled()


def test_sigterm_ends_the_ui_with_all_its_processes(ui: Ui, process: subprocess.Popen[bytes]) -> None:
    """Even if a script started it in the background, where it ignores Ctrl-C. This test is the last: it ends the UI."""
    process.terminate()

    polled(lambda: not group_exists(process), "the UI to end", END_LIMIT_S)


def group_exists(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process or one of its children still runs."""
    process.poll()  # otherwise, an ended process remains until this one ends
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
