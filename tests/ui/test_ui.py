"""A mark is made, reviewed, approved and swept in Dagster's UI, and the schedule makes marks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from playwright.sync_api import Locator, Page, expect

from lakegc_assets.jobs import APPROVED_IN_UI
from lakegc_assets.partitions import REPOSITORY_TAG
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.approval import read_approval
from spark_resources.mark_store.mark import Mark
from tests.support.mark_runs import target_of
from tests.support.ui_pages import JOB, SCHEDULE, SENSOR, Run, Ui, polled
from tests.ui.conftest import NIGHT

pytestmark = pytest.mark.timeout(1200)  # each test waits for what the previous one started

MARK = "lake|by-hand"
RELEASED = {"share": "it is a test", "others/night-broken": "it is broken"}


def stored(sandbox: Sandbox) -> set[bytes]:
    """The contents of the stored objects of `lake`."""
    return {path.read_bytes() for path in (sandbox.local_path / "lake" / "data").rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def by_hand(ui: Ui) -> Run:
    """The run of a mark of `lake`, launched with the dialog. No other run is active at that time. The sensor is on."""
    ui.turn(SENSOR, on=True)
    ui.picture("sensor-on")
    ui.launch(MARK)
    return ui.ended_run(MARK)


@dataclass(frozen=True)
class Approved:
    """The stored objects and the sweeps at the time when the approval was reported."""

    stored: set[bytes]
    sweeps: list[Run]


@pytest.fixture(scope="module")
def approved(ui: Ui, by_hand: Run, sandbox: Sandbox) -> Approved:
    """The approval of that mark. First an event is reported by hand, which approves nothing, then the job is run."""
    assert by_hand.status == "SUCCESS"
    before = Approved(stored(sandbox), ui.runs("sweep"))
    ui.report_by_hand(MARK, "by Ada")
    ui.events("sweep_approval", MARK, 2)  # the event, and the sensor's reaction to it
    ui.approve(MARK, by="Ada", digest=digest(sandbox)[:12], release=RELEASED)
    assert ui.ended_run(MARK, job="approve").status == "SUCCESS"
    return before


def digest(sandbox: Sandbox) -> str:
    """The digest of the mark's expired set, as its asset shows it."""
    return str(Mark.open(target_of(sandbox.settings, "lake").place, "by-hand").record.digest)


@pytest.fixture(scope="module")
def night(ui: Ui, approved: Approved) -> str:
    """The mark id of a night: the schedule was turned on, and turned off again after its first tick.

    In the meantime a run was launched for a partition with an invalid name.
    """
    page = ui.open("/automation")
    expect(page.get_by_text("mark_repositories")).to_be_visible()
    expect(page.get_by_text("new_repositories")).to_be_visible()
    expect(page.get_by_text("approved_sweeps")).to_be_visible()
    expect(page.get_by_text("Every minute")).to_be_visible()
    ui.picture("automation")
    ui.turn(SCHEDULE, on=True)
    ui.picture("schedule-on")
    ui.launch("nonsense")

    def occasion() -> str | None:
        partitions = [run.partition for run in ui.runs("mark") if run.partition.startswith("night-broken|")]
        return partitions[-1].partition("|")[2] if partitions else None

    ui.leave()
    mark_id = polled(occasion, "the schedule's first occasion", 180)
    # the daemon writes the schedule's state when it has requested runs, and would turn it on again
    expect(ui.open(SCHEDULE).get_by_text("2 runs requested").first).to_be_visible()
    ui.turn(SCHEDULE, on=False)
    return mark_id


@pytest.fixture(scope="module")
def swept(ui: Ui, approved: Approved) -> Run:
    """The sweep of the mark, which the sensor started."""
    return ui.ended_run(MARK, job="sweep")


def row(page: Page, name: str) -> Locator:
    """The row with this name in an asset's metadata."""
    return page.locator("tr").filter(has=page.get_by_text(name, exact=True)).last


def plot(page: Page, name: str, title: str) -> int:
    """Open the plot in an asset's metadata. Returns its width."""
    row(page, name).get_by_text("Show Markdown").click()
    drawn = page.get_by_alt_text(title)
    expect(drawn).to_be_visible()
    return int(drawn.evaluate("picture => picture.naturalWidth"))


def test_a_mark_can_be_launched_by_hand(ui: Ui, by_hand: Run) -> None:
    """A partition that is added in the dialog becomes a mark. The asset shows the mark's data and what may be
    deleted."""
    assert (by_hand.status, by_hand.tags[REPOSITORY_TAG]) == ("SUCCESS", "lake")
    page = ui.open(f"/runs/{by_hand.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("by-hand")

    page = ui.open("/assets/expired_set")
    expect(page.get_by_text("Only an approval allows deleting them")).to_be_visible()
    expect(row(page, "candidate_bytes")).to_contain_text("41")
    ui.picture("asset")

    assert plot(page, "bytes_by_reason", "Bytes by reason") == 800
    ui.picture("plot")

    page = ui.open("/assets/expired_set?view=lineage&lineageDepth=5")
    for asset in ("namespace_slices", "retained_commits", "sweep_approval", "sweep_report"):
        expect(page.get_by_text(asset).first).to_be_visible()
    ui.picture("lineage")


def test_a_failed_check_shows_what_was_measured_and_what_its_failure_means(ui: Ui, by_hand: Run) -> None:
    """The page shows what the check promises, what its failure means, and what was measured."""
    assert by_hand.status == "SUCCESS"

    page = ui.open("/assets/expired_set?view=checks&checkDetail=identical_content_probed")
    expect(
        page.get_by_text("Paths were probed on every branch for identical content staged again.").first
    ).to_be_visible()
    expect(page.get_by_text("Failed").first).to_be_visible()
    expect(page.get_by_text("Raise LAKEGC_MAX_PROBES").first).to_be_visible()
    ui.picture("check")
    page = ui.open("/assets/expired_set?view=checks&checkDetail=brake_share")
    expect(page.get_by_text("Tripped: 25.0 % of all objects").first).to_be_visible()
    expect(page.get_by_text("share: why this is right").first).to_be_visible()
    ui.picture("check-brake")
    page = ui.open("/assets/committed_addresses?view=checks&checkDetail=others_read")
    expect(page.get_by_text("Other repositories' references to objects here were read.").first).to_be_visible()
    expect(page.get_by_text("night-broken: table").first).to_be_visible()
    expect(page.get_by_text("LAKEGC_TRUSTED_REPOSITORIES").first).to_be_visible()
    ui.picture("check-others")


def test_an_approval_is_shown_with_the_approved_set(ui: Ui, approved: Approved, sandbox: Sandbox) -> None:
    """The asset shows who approved which set until when, and how to approve instead of reporting an event by hand."""
    assert approved.sweeps == []
    page = ui.open("/assets/sweep_approval")
    for name, value in (("by", "Ada"), ("objects", "1"), ("digest", digest(sandbox)[:12]), ("released.share", "test")):
        expect(row(page, name)).to_contain_text(value)
    ui.picture("approved")
    ui.events("sweep_approval", MARK, 3).nth(1).click()  # between the event by hand and the approval
    expect(page.get_by_text("This event was reported manually and approves nothing.")).to_be_visible()
    ui.picture("approval-by-hand")


def test_the_schedule_shows_its_ticks_and_can_be_turned_off(ui: Ui, night: str) -> None:
    """The schedule's page shows what a tick requested, and that the schedule is off again."""
    assert not ui.is_on(SCHEDULE)
    page = ui.open(SCHEDULE)
    expect(page.get_by_text("2 runs requested").first).to_be_visible()
    ui.picture("ticks")


def test_exactly_the_approved_objects_are_swept(ui: Ui, approved: Approved, swept: Run, sandbox: Sandbox) -> None:
    """The approval that the job gave makes the sensor start one sweep."""
    approval = read_approval(target_of(sandbox.settings, "lake").place, "by-hand")
    remaining = stored(sandbox)

    assert (swept.status, swept.tags["dagster/sensor_name"]) == ("SUCCESS", "approved_sweeps")
    assert swept.tags[REPOSITORY_TAG] == "lake"
    assert approval is not None
    assert (approval.who, approval.how, approval.released) == (
        "Ada",
        APPROVED_IN_UI,
        RELEASED,
    )
    assert approved.stored - remaining == {b"first"}
    # two are live, and a branch may serve the third, since no paths were probed
    assert remaining == {b"the second version", b"123456789", b"987654321"}


def test_an_approval_triggers_exactly_one_sweep(ui: Ui, swept: Run) -> None:
    """The sensor's page shows the run that it requested, and there is no other run."""
    page = ui.open(SENSOR)

    expect(page.get_by_text("1 run requested").first).to_be_visible()
    ui.picture("sensor-ticks")
    assert [run.id for run in ui.runs("sweep")] == [swept.id]


def test_a_sweep_is_shown_with_its_outcomes_and_rate(ui: Ui, swept: Run) -> None:
    """The sweep's asset counts the objects by outcome and in total."""
    page = ui.open("/assets/sweep_report")
    for name, value in (("objects.deleted", "1"), ("bytes.deleted", "5"), ("success", "true"), ("mark", "by-hand")):
        expect(row(page, name)).to_contain_text(value, ignore_case=True)
    expect(page.get_by_text("Row count").first).to_be_visible()
    ui.picture("sweep-report")
    assert plot(page, "rate", "Objects per second") == 800
    ui.picture("sweep-rate")
    page = ui.open(f"/runs/{swept.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("swept")


def test_an_invalid_partition_key_is_refused_with_the_expected_form(ui: Ui, night: str) -> None:
    """The page of the run shows one sentence. No asset is shown as failed, and the key is removed."""
    run = ui.ended_run("nonsense")
    page = ui.open(f"/runs/{run.id}")

    assert run.status == "SUCCESS"
    page.get_by_placeholder("Filter…").fill("is not of the form")
    expect(page.get_by_text("'nonsense' is not of the form repository|mark_id").first).to_be_visible()
    ui.picture("bad-key")


def test_marks_made_on_the_command_line_are_shown(ui: Ui) -> None:
    """A mark made by the command line with this home is a run of the same job, with its partition."""
    run = ui.ended_run("night-a|by-cli")
    assert run.status == "SUCCESS"
    page = ui.open(f"{JOB}/runs")
    expect(page.get_by_text("night-a|by-cli").first).to_be_visible()
    ui.picture("runs")
    page = ui.open(f"/runs/{run.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("by-cli")


def test_the_schedule_marks_every_repository_but_the_broken_one(ui: Ui, night: str) -> None:
    """The run for the broken repository shows what is wrong with it."""
    ended = {name: ui.ended_run(f"{name}|{night}") for name in NIGHT}

    assert [run.status for run in ended.values()] == ["SUCCESS", "FAILURE"]
    assert [run.tags[REPOSITORY_TAG] for run in ended.values()] == list(NIGHT)
    page = ui.open(f"/runs/{ended['night-broken'].id}")
    expect(page.get_by_text("can't be read: it doesn't end like a table").first).to_be_visible()
    ui.picture("broken")
