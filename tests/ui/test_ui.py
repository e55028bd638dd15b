"""A mark is made, understood and left to the schedule in Dagster's UI."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.ui.conftest import NIGHT
from tests.ui.pages import JOB, SCHEDULE, Run, Ui, polled

pytestmark = pytest.mark.timeout(600)  # each waits for what the one before it began


@pytest.fixture(scope="module")
def by_hand(ui: Ui) -> Run:
    """The run of a mark of `lake`, launched with the dialog; nothing else runs meanwhile."""
    ui.launch("lake|by-hand")
    return ui.ended_run("lake|by-hand")


@pytest.fixture(scope="module")
def night(ui: Ui, by_hand: Run) -> str:
    """The mark id of a night: the schedule was turned on, and off again after its first occasion.

    Meanwhile a partition was launched that is none.
    """
    page = ui.open("/automation")
    expect(page.get_by_text("mark_repositories")).to_be_visible()
    expect(page.get_by_text("new_repositories")).to_be_visible()
    expect(page.get_by_text("Every minute")).to_be_visible()
    ui.picture("automation")
    ui.turn_schedule(on=True)
    ui.picture("schedule-on")
    ui.launch("nonsense")

    def occasion() -> str | None:
        found = [run.partition for run in ui.runs() if run.partition.startswith("night-broken|")]
        return found[-1].partition("|")[2] if found else None

    mark_id = polled(occasion, "the schedule's first occasion", 180)
    # the daemon writes the schedule's state when it has requested runs, and would turn it on again
    expect(ui.open(SCHEDULE).get_by_text("3 runs requested").first).to_be_visible()
    ui.turn_schedule(on=False)
    return mark_id


def test_a_mark_cannot_be_made_by_hand(ui: Ui, by_hand: Run) -> None:
    """A partition added in the dialog becomes a mark; its asset shows what it is, and what may go."""
    assert by_hand.status == "SUCCESS"
    page = ui.open(f"/runs/{by_hand.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("by-hand")

    page = ui.open("/assets/expired_set")
    expect(page.get_by_text("Deleting it takes a person's word first")).to_be_visible()
    row = page.get_by_role("row").or_(page.locator("tr")).filter(has_text="candidate_bytes")
    expect(row.first).to_contain_text("41")
    ui.picture("asset")

    plot = page.locator("tr").filter(has_text="bytes_by_reason").last
    plot.get_by_text("Show Markdown").click()
    drawn = page.get_by_alt_text("Bytes by reason")
    expect(drawn).to_be_visible()
    assert drawn.evaluate("picture => picture.naturalWidth") == 800
    ui.picture("plot")

    page = ui.open("/assets/expired_set?view=lineage&lineageScope=upstream")
    expect(page.get_by_text("retained_commits").first).to_be_visible()
    ui.picture("lineage")


def test_a_failed_check_says_nothing(ui: Ui, by_hand: Run) -> None:
    """A failed check shows what it promises, that it failed, what it means, and what was measured."""
    assert by_hand.status == "SUCCESS"

    page = ui.open("/assets/expired_set?view=checks&checkDetail=same_bytes_asked")
    expect(page.get_by_text("Every branch was asked about equal sizes.").first).to_be_visible()
    expect(page.get_by_text("Failed").first).to_be_visible()
    expect(page.get_by_text("Raise LAKEGC_MAX_QUESTIONS").first).to_be_visible()
    ui.picture("check")
    page = ui.open("/assets/committed_addresses?view=checks&checkDetail=others_read")
    expect(page.get_by_text("What other repositories hold here was read.").first).to_be_visible()
    expect(page.get_by_text("night-broken: table").first).to_be_visible()
    expect(page.get_by_text("LAKEGC_TRUSTED_REPOSITORIES").first).to_be_visible()
    ui.picture("check-others")


def test_a_bad_key_ends_in_a_stack_of_code(ui: Ui, night: str) -> None:
    """A partition that is none fails with the form that is expected, on the run's own page."""
    run = ui.ended_run("nonsense")
    page = ui.open(f"/runs/{run.id}")

    assert run.status == "FAILURE"
    expect(page.get_by_text("'nonsense' is not of the form repository|mark_id").first).to_be_visible()
    ui.picture("bad-key")


def test_marks_of_the_command_line_are_missing(ui: Ui) -> None:
    """What the command line marked in this home is a run of the same job, with its partition."""
    run = ui.ended_run("night-a|by-cli")
    assert run.status == "SUCCESS"
    page = ui.open(f"{JOB}/runs")
    expect(page.get_by_text("night-a|by-cli").first).to_be_visible()
    ui.picture("runs")
    page = ui.open(f"/runs/{run.id}")
    expect(page.get_by_text("RUN_SUCCESS")).to_be_visible()
    ui.picture("by-cli")


def test_a_broken_repository_stops_the_night(ui: Ui, night: str) -> None:
    """The schedule, turned on in the UI, marks every repository of its patterns; the broken one says why it isn't."""
    ended = {name: ui.ended_run(f"{name}|{night}") for name in NIGHT}

    assert not ui.schedule_is_on()
    assert [run.status for run in ended.values()] == ["SUCCESS", "SUCCESS", "FAILURE"]
    assert [run.tags["lakegc/repository"] for run in ended.values()] == list(NIGHT)
    page = ui.open(SCHEDULE)
    expect(page.get_by_text("3 runs requested").first).to_be_visible()
    ui.picture("ticks")
    page = ui.open(f"/runs/{ended['night-broken'].id}")
    expect(page.get_by_text("can't be used: it doesn't end like a table").first).to_be_visible()
    ui.picture("broken")
