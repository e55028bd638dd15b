"""The schedule that retires old marks and purges old quarantines, and its job, on several repositories."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from lakegc_assets.definitions import defs, retire_job
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.retirement import retired_partitions
from lakegc_assets.schedules.retirement import retire_old_marks
from spark_resources.deleting.quarantine import key_in_quarantine
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark
from spark_resources.model import MarkState
from tests.support.leases import hold_lease
from tests.support.mark_runs import environment, resources
from tests.support.retirements import OldMarks

MORNING = datetime(2026, 11, 21, 4, 30, tzinfo=UTC)
NAMES = ("lake-a", "lake-b", "lake-c")


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with Sandbox(tmp_path_factory.mktemp("fleet")) as server:
        for name in NAMES:
            server.create(name)
        yield server


@pytest.fixture
def settings(sandbox: Sandbox) -> Iterator[dict[str, str]]:
    """An environment with the sandbox's settings."""
    values = {**sandbox.settings, "retry_total_s": "0"}
    with environment(values):
        yield values


def tick(instance: dg.DagsterInstance, at: datetime = MORNING) -> tuple[list[str | None], str]:
    """The run keys that the schedule requests, or why it skips the tick."""
    context = dg.build_schedule_context(instance, at, {"lakefs": LakeFSResource()}, defs.get_repository_def())
    with context:
        data = retire_old_marks.evaluate_tick(context)
    return [request.run_key for request in data.run_requests or []], data.skip_message or ""


# --- the schedule -----------------------------------------------------------------------------------------------------


def test_the_schedule_does_nothing_without_settings_and_says_so(
    settings: dict[str, str], instance: dg.DagsterInstance
) -> None:
    assert tick(instance) == ([], "Nothing is retired or purged: set retire_after or purge_after, for example to 90d.")


@pytest.mark.parametrize("name", ["retire_after", "purge_after"])
def test_the_schedule_requests_one_run_each_morning(
    settings: dict[str, str], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A repeated tick requests the same run, so that Dagster launches it once."""
    monkeypatch.setenv(f"LAKEGC_{name.upper()}", "90d")
    (first,), (again,) = tick(instance)[0], tick(instance)[0]
    (tomorrow,) = tick(instance, MORNING + timedelta(days=1))[0]

    assert first == again != tomorrow


def test_the_settings_of_one_repository_suffice_for_a_run_even_if_those_of_another_are_invalid(
    settings: dict[str, str], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here, two sections of a fleet file contradict each other about lake-c."""
    fleet = tmp_path / "lakegc.toml"
    fleet.write_text(
        '[repositories.lake-b]\nretire_after = "30d"\n[repositories."*-c"]\npurge_after = "2d"\n'
        '[repositories."lake-[cd]"]\npurge_after = "3d"\n'
    )
    monkeypatch.setenv("LAKEGC_CONFIG", str(fleet))

    assert len(tick(instance)[0]) == 1


def test_a_tick_is_skipped_if_the_server_cannot_be_reached(
    settings: dict[str, str], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEGC_RETIRE_AFTER", "90d")
    monkeypatch.setenv("LAKEGC_ENDPOINT_URL", "http://127.0.0.1:9")
    requested, why = tick(instance)

    assert requested == []
    assert "127.0.0.1:9" in why


@pytest.mark.parametrize("value", ["1h", "0", "90"])
def test_ages_below_a_day_or_without_a_unit_are_refused(
    settings: dict[str, str], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """A missing unit or a zero must not retire every mark. The tick says what is wrong."""
    monkeypatch.setenv("LAKEGC_RETIRE_AFTER", value)

    assert "LAKEGC_RETIRE_AFTER" in tick(instance)[1]


# --- the job ----------------------------------------------------------------------------------------------------------


def partitions(instance: dg.DagsterInstance) -> set[str]:
    return set(instance.get_dynamic_partitions(str(PARTITIONS.name)))


def state_of(marks: OldMarks, mark_id: str) -> MarkState:
    return Mark.open(marks.target.place, mark_id).record.state


def run(instance: dg.DagsterInstance) -> tuple[bool, str]:
    """Whether the job succeeds, and the reasons why it fails."""
    result = retire_job.execute_in_process(instance=instance, resources=resources(), raise_on_error=False)
    failures = [event.step_failure_data.error for event in result.all_events if event.is_step_failure]
    return result.success, " ".join(str(error.message) for error in failures if error is not None)


def test_the_job_retires_marks_of_each_repository_even_if_others_fail_or_are_busy(
    settings: dict[str, str], sandbox: Sandbox, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One repository can't be read, and another run works on the next one; only the first is a failure. Partitions of
    retired marks are removed, including those of marks that another deployment retired; all others stay. The next
    morning, the run retires what is left."""
    for key in partitions(instance):
        instance.delete_dynamic_partition(str(PARTITIONS.name), key)
    monkeypatch.setenv("LAKEGC_RETIRE_AFTER", "10d")
    monkeypatch.setenv("LAKEGC_PURGE_AFTER", "10d")
    lakes = [OldMarks(sandbox, name) for name in NAMES]
    for lake in lakes:
        for number, age in enumerate((40, 30, 5, 4), 1):
            lake.add(f"m{number}", age=age)
    keys = {f"{name}:m{number}" for name in NAMES for number in range(1, 5)} | {"lake-z:m1"}
    instance.add_dynamic_partitions(str(PARTITIONS.name), sorted(keys))
    lakes[2].target.place.store().write(key_in_quarantine("m1", "data/x"), b"x")
    lakes[2].retire(10 * timedelta(days=1), ("m2",))
    hold_lease(lakes[2].target.place.store(), "m4")
    lakes[0].retire(10 * timedelta(days=1), ("m1",))
    sandbox.fail("lake-b", 503)
    is_success, why = run(instance)

    assert not is_success
    assert "lake-b" in why
    assert "lake-c" not in why
    assert partitions(instance) == keys - {"lake-a:m1", "lake-a:m2", "lake-c:m2"}
    assert [state_of(lakes[0], f"m{number}") for number in range(1, 5)] == [
        MarkState.RETIRED, MarkState.RETIRED, MarkState.MARKED, MarkState.MARKED,
    ]  # fmt: skip

    sandbox.fail("lake-b", None)
    hold_lease(lakes[2].target.place.store(), "m4", for_=-timedelta(days=1))
    assert run(instance) == (True, "")
    assert (state_of(lakes[1], "m1"), state_of(lakes[2], "m1")) == (MarkState.RETIRED, MarkState.MARKED)
    assert not {"lake-b:m1", "lake-b:m2"} & partitions(instance)
    assert [lake.retire(10 * timedelta(days=1)).applied for lake in lakes] == [[], [], []]


def test_the_number_of_partitions_that_are_removed_at_a_time_is_limited(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each removal takes a transaction of Dagster's database. Partitions of other repositories and invalid ids don't
    match; those with the keys of earlier versions do."""
    monkeypatch.setattr(retired_partitions, "MAX_PER_CALL", 2)
    ids = ["m1", "m2", "m3", "not/an id"]
    instance.add_dynamic_partitions(
        str(PARTITIONS.name), [f"lake-x:m{n}" for n in range(1, 5)] + ["lake-x|m3", "lake-y|m1"]
    )
    counts = [len(retired_partitions.remove_partitions(instance, "lake-x", ids)) for _ in range(3)]

    assert counts == [2, 2, 0]
    assert "lake-x|m3" not in partitions(instance)
    assert {"lake-x:m4", "lake-y|m1"} <= partitions(instance)
