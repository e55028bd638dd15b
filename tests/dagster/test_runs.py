"""Runs of the mark in Dagster: what Dagster shows, where a run stops, and what it leaves behind."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.partition_status_cache import AssetPartitionStatus  # this class has no public name
from py4j.java_gateway import GatewayParameters, JavaGateway

from lakegc_assets.asset_checks.brakes import BRAKE_CHECKS
from lakegc_assets.asset_checks.invariants import INVARIANTS, MARK_CHECKS
from lakegc_assets.cli.dagster_runs import LOCATION, run_mark
from lakegc_assets.definitions import defs, mark_job
from lakegc_assets.markdown import BAR_WIDTH, MAX_INLINE
from lakegc_assets.rules.brakes import BRAKES
from spark_resources.errors import LakegcError, Refused, WrongUsage
from spark_resources.host.failure_kinds import JAVA_ENDED
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.lease import LEASE_KEY, current_holder
from spark_resources.mark_store.record import CHAIN
from spark_resources.model import Partition, Rules
from tests.support.documented_commands import usage_error
from tests.support.mark_runs import NO_MINIMUM_AGE, environment, resources, target_of
from tests.support.s3_servers import free_port

MARK = Partition("lake", "m1")
RECORD = "_lakefs/retention/gc/lakegc/m1/mark.json"


@dataclass(frozen=True)
class World:
    """A sandbox with the repository `lake`, and the Dagster instance that runs on it."""

    sandbox: Sandbox
    instance: dg.DagsterInstance

    @property
    def folder(self) -> Path:
        return self.sandbox.local_path / "lake"

    def files(self) -> dict[str, bytes]:
        """All files of the namespace except the lease, which each run takes and releases."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        contents = {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}
        return {name: data for name, data in contents.items() if name != LEASE_KEY}

    def events(self, run_id: str) -> list[dg.DagsterEvent]:
        return [record.dagster_event for record in self.instance.all_logs(run_id) if record.dagster_event is not None]


@dataclass(frozen=True)
class Run:
    """A run that ended: what it materialized and checked, by asset and check."""

    run: dg.DagsterRun
    materialized: Mapping[str, Mapping[str, Any]]
    checked: Mapping[str, dg.AssetCheckEvaluation]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A repository with objects: one that only an expired commit has, one that was reset, one committed, and one
    staged."""
    with Sandbox(tmp_path_factory.mktemp("runs")) as sandbox, dg.DagsterInstance.ephemeral() as instance:
        lake, now = sandbox.create("lake"), sandbox.now()
        lake.put("main", "overwritten", b"first")
        lake.commit("main", "first", date=now - timedelta(days=60))
        lake.put("main", "overwritten", b"second version")
        lake.commit("main", "second", date=now - timedelta(days=50))
        lake.put("main", "forgotten", b"was never committed")
        lake.reset("main")
        lake.put("main", "staged", b"will be committed")
        set_rules(lake, Rules(30, {}))
        with environment(sandbox.settings):
            yield World(sandbox, instance)


@pytest.fixture(scope="module")
def ran(world: World) -> Run:
    """The only complete run in this module."""
    run_mark(MARK, NO_MINIMUM_AGE, instance=world.instance, resources=resources())
    run = world.instance.get_runs()[0]
    events = world.events(run.run_id)
    materializations = [
        event.step_materialization_data.materialization for event in events if event.is_step_materialization
    ]
    evaluated = [event for event in events if event.event_type_value == "ASSET_CHECK_EVALUATION"]
    checks = [event.asset_check_evaluation_data for event in evaluated]
    return Run(
        run,
        {
            event.asset_key.to_user_string(): {name: value.value for name, value in event.metadata.items()}
            for event in materializations
        },
        {check.asset_check_key.to_user_string(): check for check in checks},
    )


def launched(
    world: World, key: str, *, only: str = "", config: Mapping[str, Any] = NO_MINIMUM_AGE
) -> dg.ExecuteInProcessResult:
    """A run of Dagster's own job for a partition, of one asset or of all, as a person launches it."""
    world.instance.add_dynamic_partitions("repository_and_mark", [key])
    job = dg.Definitions(assets=defs.assets, asset_checks=defs.asset_checks, jobs=defs.jobs, resources=resources())
    first = {"ops": {"namespace_slices": {"config": dict(config)}}}
    return job.resolve_job_def(mark_job.name).execute_in_process(
        instance=world.instance,
        partition_key=key,
        asset_selection=[dg.AssetKey(only)] if only else None,
        run_config={} if only not in ("", CHAIN[0]) else first,
        raise_on_error=False,
    )


def failure_of(world: World, key: str, *, only: str = "", config: Mapping[str, Any] = NO_MINIMUM_AGE) -> dg.Failure:
    """The failure with which a run of a partition ends."""
    result = launched(world, key, only=only, config=config)
    assert not result.success
    failed = [event for event in result.all_events if event.is_step_failure]
    assert len(failed) == 1
    data = failed[0].step_failure_data.user_failure_data
    assert data is not None, failed[0].step_failure_data.error
    return dg.Failure(data.description, metadata=data.metadata, allow_retries=False)


def run_without_effect(
    world: World, key: str, *, only: str = "", config: Mapping[str, Any] = NO_MINIMUM_AGE
) -> Mapping[str, Any]:
    """The messages of a partition's run that has nothing to do: it materializes nothing, and no step fails."""
    result = launched(world, key, only=only, config=config)
    assert result.success
    assert not [event for event in result.all_events if event.is_step_materialization]
    assert not result.get_asset_check_evaluations()
    [observation] = [event for event in result.all_events if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    event = observation.asset_observation_data.asset_observation
    return {
        "description": event.description,
        **{name: value.value for name, value in event.metadata.items()},
    }


def checked(
    world: World, key: str, checks: Sequence[dg.AssetChecksDefinition] = MARK_CHECKS
) -> dict[str, dg.AssetCheckEvaluation]:
    """Run only the checks of a partition, as Dagster's UI does; no check may raise an error."""
    world.instance.add_dynamic_partitions("repository_and_mark", [key])
    job = dg.define_asset_job("checks", selection=dg.AssetSelection.all_asset_checks())
    with_checks = dg.Definitions(assets=defs.assets, asset_checks=checks, jobs=[job], resources=resources())
    result = with_checks.resolve_job_def("checks").execute_in_process(
        instance=world.instance, tags={"dagster/partition": key}
    )
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


# --- one whole run --------------------------------------------------------------------------------------------------


def test_a_run_materializes_every_asset_for_its_partition(ran: Run) -> None:
    """The partition is that of the repository and the mark."""
    assert set(ran.materialized) == set(CHAIN)
    assert ran.run.is_success
    assert ran.run.tags["dagster/partition"] == str(MARK)


def test_runs_are_tagged_with_their_repository(ran: Run) -> None:
    """Concurrency limits queue them by this tag."""
    assert ran.run.tags["lakegc/repository"] == "lake"


def test_runs_started_on_the_command_line_are_shown_on_the_overview_page(ran: Run) -> None:
    """The UI's overview shows runs of code locations that it knows, and `lakegc ui` serves the location of these
    runs."""
    assert ran.run.remote_job_origin is not None
    assert ran.run.remote_job_origin.location_name == LOCATION
    assert ran.run.remote_job_origin.job_name == mark_job.name


@pytest.mark.parametrize(
    ("asset", "rows", "column"),
    [
        ("namespace_slices", 4, "address"),
        ("uncommitted_addresses", 1, "address"),
        ("retained_commits", 3, "commit_id"),
        ("committed_addresses", 1, "address"),
        ("expired_set", 2, "address"),
    ],
)
def test_each_asset_shows_a_summary_first_and_its_rows_duration_and_folder(
    world: World, ran: Run, asset: str, rows: int, column: str
) -> None:
    """Long values are behind a click, and everything else is shown directly. The folder contains Parquet files."""
    metadata = ran.materialized[asset]
    details = dict(re.findall(r"(?m)^\| (\S+) \| (.*) \|$", metadata["details"].replace("\\", "").strip()))
    folder = details["where"].removeprefix("local://lake/")

    assert next(iter(metadata)) == "summary"
    assert metadata["summary"].startswith("**")
    assert "../assets/" in metadata["next"]
    assert (details["repository"], details["mark"], metadata["dagster/row_count"]) == ("lake", "m1", rows)
    assert metadata["seconds"] >= 0
    shown = metadata["examples" if asset == "expired_set" else "preview"]
    assert f"| {column}" in shown.replace("\\", "") or f"{column} |" in shown
    for name, value in metadata.items():
        is_behind_a_click = name in ("details", "preview", "examples")
        assert not isinstance(value, str) or (len(value) > MAX_INLINE) == is_behind_a_click, name
    assert details["where"] != folder
    assert list((world.folder / folder).glob("*.parquet"))


def test_the_expired_set_shows_how_many_objects_and_bytes_expire(ran: Run) -> None:
    """The totals are also shown."""
    metadata = ran.materialized["expired_set"]
    expired_bytes, stored_bytes = metadata["expired_bytes"], metadata["stored_bytes"]

    assert metadata["summary"].startswith("**2 of 4 objects (24 B of 55 B, 43.6%) are expired.**")
    assert (metadata["expired"], metadata["expired_percent"]) == (2, 43.6)
    assert expired_bytes == len(b"first") + len(b"was never committed")
    assert metadata["kept_bytes"] == stored_bytes - expired_bytes == len(b"second version") + len(b"will be committed")


def test_the_expired_set_names_the_command_for_each_next_step_and_each_question(ran: Run) -> None:
    """The command line accepts all of these commands, once PATH_OR_ADDRESS and FILE are replaced."""
    metadata = ran.materialized["expired_set"]
    commands = [shlex.split(command) for command in re.findall(r"`lakegc (.*?)`", metadata["next"])]
    questions = [shlex.split(command) for command in re.findall(r"`lakegc (.*?)`", metadata["questions"])]

    assert [name for name, *_ in commands] == ["review", "approve", "report"]
    assert [name for name, *_ in questions] == ["explain", "pins", "rules", "what-if", "report"]
    assert {command[1] for command in (*commands, *questions)} == {"lake"}
    assert [error for error in map(usage_error, [*commands, *questions]) if error is not None] == []


def test_the_expired_set_shows_plots_and_sample_objects(ran: Run) -> None:
    """The plots add up to the set, and the objects have paths and last commits."""
    metadata = ran.materialized["expired_set"]

    for by in ("by_reason", "by_age", "by_path"):
        rows = re.findall(r"\| (\S+) \| (\d+)\N{NO-BREAK SPACE}B \| (\d+) \|", metadata[by])
        assert sum(int(size) for _, size, _ in rows) == metadata["expired_bytes"]
        assert sum(int(objects) for _, _, objects in rows) == metadata["expired"]
        assert max(len(bar) for bar, _, _ in rows) == BAR_WIDTH
    assert metadata["over_time"].startswith("No sweep of this repository has freed anything yet.\n\n| marked |")
    assert metadata["examples"].count("| overwritten | 5\N{NO-BREAK SPACE}B |") == 3
    assert len(re.findall(r"\| overwritten \|.* first \|", metadata["examples"])) == 3


@pytest.mark.parametrize("name", [invariant.name for invariant in INVARIANTS])
def test_every_check_shows_its_measured_values(ran: Run, name: str) -> None:
    """All checks of this mark passed."""
    [check] = [evaluation for evaluation in ran.checked.values() if evaluation.check_name == name]

    assert check.passed, check.description
    assert check.metadata
    assert all(value.value is not None for value in check.metadata.values())


def test_every_run_releases_its_lease(world: World, ran: Run) -> None:
    """Whether the run succeeded or failed, the next one doesn't have to wait."""
    assert ran.run.is_success
    store = target_of(world.sandbox.settings, "lake").place.store()
    assert (world.folder / LEASE_KEY).exists()
    assert current_holder(store) is None

    failure_of(world, "lake:never-begun", only=CHAIN[1])
    assert current_holder(store) is None


@pytest.mark.parametrize("only", ["", *CHAIN])
def test_a_finished_mark_is_never_repeated(world: World, ran: Run, only: str) -> None:
    """A run of the whole mark or of one asset says so; no file changes, and no step fails."""
    assert ran.run.is_success
    before = world.files()
    event = run_without_effect(world, str(MARK), only=only)

    assert "mark m1 of lake is finished (marked) and can't be remade" in event["description"]
    assert (event["invariant"], event["exit_code"]) == (12, 3)
    assert world.files() == before
    partitions = world.instance.get_status_by_partition(
        dg.AssetKey(only or "expired_set"), [str(MARK)], defs.resolve_assets_def(only or "expired_set").partitions_def
    )
    assert partitions is None or partitions[str(MARK)] == AssetPartitionStatus.MATERIALIZED


@pytest.mark.parametrize("config", [{"min_age": "24"}, {"min_age": "1h"}, {"since": "m1", "full": True}])
def test_a_run_leaves_a_finished_mark_unchanged_whatever_its_options(
    world: World, ran: Run, config: dict[str, Any]
) -> None:
    """No step fails, even with options that no mark can have."""
    assert ran.run.is_success
    before = world.files()

    event = run_without_effect(world, str(MARK), config=config)

    assert "mark m1 of lake is finished" in event["description"]
    assert world.files() == before


def test_the_error_that_stopped_a_run_reaches_the_command_line(world: World, ran: Run) -> None:
    """The original error is raised, with its exit code."""
    assert ran.run.is_success
    with pytest.raises(Refused, match="is finished") as caught:
        run_mark(MARK, NO_MINIMUM_AGE, instance=world.instance, resources=resources())
    assert (caught.value.exit_code, caught.value.invariant) == (3, 12)


# --- what a run stops at --------------------------------------------------------------------------------------------

UNUSABLE = {
    "nonsense": "'nonsense' is not of the form repository:mark_id",
    ":m1": "is not of the form repository:mark_id",
    "UPPER/lake:m1": "is not of the form repository:mark_id",
    "lake:": "mark id",
    "lake:..": "mark id",
    "lake|m1:m2": "is not of the form repository:mark_id",
    "lake:m1/../m2": "mark id",
    "lake:m\x1b[31m": "mark id",
}


@pytest.mark.parametrize(("key", "words"), UNUSABLE.items())
def test_an_invalid_partition_key_is_refused_and_removed(world: World, key: str, words: str) -> None:
    """The run ends with one sentence, nothing is written, no step fails, and the partition key is removed again."""
    before = world.files(), sorted(world.sandbox.local_path.iterdir())
    event = run_without_effect(world, key)

    assert words in event["description"]
    assert event["kind"] == "NotAPartition"
    assert key not in world.instance.get_dynamic_partitions("repository_and_mark")
    assert (world.files(), sorted(world.sandbox.local_path.iterdir())) == before


def test_a_run_for_an_unknown_repository_fails_with_one_sentence(world: World) -> None:
    """No file is written for a repository that the server doesn't have."""
    before = world.files(), sorted(world.sandbox.local_path.iterdir())
    failure = failure_of(world, "nowhere:m1")

    assert "nowhere" in (failure.description or "")
    assert failure.metadata["kind"].value == "NotFound"
    assert (world.files(), sorted(world.sandbox.local_path.iterdir())) == before


def test_invalid_options_are_refused_before_a_mark_begins(world: World) -> None:
    """Examples are a minimum age without a unit, or below a day without --allow-young."""
    before = world.files()
    unit = failure_of(world, "lake:m2", config={"min_age": "24"})
    young = failure_of(world, "lake:m2", config={"min_age": "1h"})

    assert "expected a duration such as 24h" in (unit.description or "")
    assert "--allow-young" in (young.description or "")
    assert young.metadata["invariant"].value == 6
    assert world.files() == before


@pytest.mark.parametrize("only", CHAIN[1:])
def test_a_step_of_a_mark_that_never_began_fails(world: World, only: str) -> None:
    """The step fails with one sentence, and creates no folder."""
    before = world.files()
    failure = failure_of(world, "lake:never-begun", only=only)

    assert "there is no mark never-begun" in (failure.description or "")
    assert world.files() == before


@pytest.mark.parametrize("name", BRAKES)
def test_every_brake_is_shown_with_its_measured_value_and_bound(ran: Run, name: str) -> None:
    """Each brake is an asset check of the expired set, with a sentence."""
    check = ran.checked[f"expired_set:brake_{name}"]

    assert check.passed, check.description
    assert {"measured", "bound"} <= check.metadata.keys()
    assert check.description


def test_a_tripped_brake_is_shown_as_a_warning_with_the_command_that_releases_it(world: World, ran: Run) -> None:
    """If the mark doesn't exist, no brake passes."""
    assert ran.run.is_success
    counts = json.loads((world.folder / RECORD).read_bytes())["counts"]
    checks = checked(world, written(world, "large", counts=counts | {"expired": counts["candidates"]}), BRAKE_CHECKS)
    unknown = checked(world, "lake:never-begun", BRAKE_CHECKS)

    assert {name for name, check in checks.items() if not check.passed} == {"brake_share"}
    assert checks["brake_share"].severity is dg.AssetCheckSeverity.WARN
    assert "--release share" in (checks["brake_share"].description or "")
    assert not any(check.passed for check in unknown.values())
    assert all("there is no mark never-begun" in (check.description or "") for check in unknown.values())


# --- checks alone ---------------------------------------------------------------------------------------------------


def test_checks_of_a_missing_mark_fail_with_one_sentence(world: World) -> None:
    """Checks of a key that is no partition fail in the same way."""
    for key, words in (("lake:never-begun", "there is no mark never-begun"), ("nonsense", "not of the form")):
        checks = checked(world, key)
        assert len(checks) == len(INVARIANTS)
        for check in checks.values():
            assert not check.passed
            assert words in (check.description or "")


def written(world: World, mark_id: str, **changes: Any) -> str:
    """Write the finished mark's record under another id and with other values. Returns the partition's key."""
    record = json.loads((world.folder / RECORD).read_bytes())
    target = world.folder / RECORD.replace("m1", mark_id)
    target.parent.mkdir()
    target.write_text(json.dumps(record | changes | {"mark_id": mark_id}))
    return f"lake:{mark_id}"


def test_checks_of_steps_that_have_not_run_yet_fail_with_one_sentence(world: World, ran: Run) -> None:
    """The checks of earlier steps still pass."""
    assert ran.run.is_success
    steps = json.loads((world.folder / RECORD).read_bytes())["steps"]
    begun = {name: steps[name] for name in CHAIN[:2]}
    checks = checked(world, written(world, "begun", steps=begun, state="marking", finished=None))

    assert {name for name, check in checks.items() if check.passed} == {"clocks_agree", "inside_only", "read_twice"}
    assert "retained_commits of mark begun (lake) doesn't exist yet" in (checks["heads_retained"].description or "")
    assert all(check.passed or check.description for check in checks.values())


def test_checks_evaluate_the_record_in_the_namespace(world: World, ran: Run) -> None:
    """A record that breaks invariants doesn't pass, whatever the run did."""
    assert ran.run.is_success
    record = json.loads((world.folder / RECORD).read_bytes())
    steps = record["steps"]
    steps["expired_set"]["facts"] |= {"live_lost": 3, "probes_failed": 1, "missed": 2}
    steps["retained_commits"]["facts"]["retained"] = 0
    del steps["uncommitted_addresses"]["facts"]["second"]
    steps["committed_addresses"]["facts"]["elsewhere"]["repositories"] = ["other"]
    steps["namespace_slices"]["number"], steps["retained_commits"]["number"] = 3, 1
    clocks = {"store": record["clocks"]["store"]}
    late = "9999-01-01T00:00:00+00:00"
    checks = checked(world, written(world, "broken", steps=steps, clocks=clocks, cutoff=late))

    passed = {name for name, check in checks.items() if check.passed}
    assert passed == {"inside_only", "ranges_whole"}


def test_a_lost_java_process_becomes_a_failure_with_an_explanation() -> None:
    """A stack trace of py4j would not say what happened, nor what to do."""
    from lakegc_assets.assets.results import reporting_failures

    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_port()))
    with pytest.raises(dg.Failure) as caught, reporting_failures():
        gateway.jvm.System.currentTimeMillis()

    assert caught.value.description == JAVA_ENDED


def test_errors_become_dagster_failures_with_their_kind_and_exit_code() -> None:
    """Failures keep the error's message and are never retried."""
    from lakegc_assets.assets.results import reporting_failures

    errors: list[LakegcError] = [WrongUsage("so"), Refused("so", invariant=4), LakegcError("so")]
    for error in errors:
        with pytest.raises(dg.Failure) as caught, reporting_failures():
            raise error
        assert caught.value.description == "so"
        assert caught.value.allow_retries is False
        assert caught.value.metadata["kind"].value == type(error).__name__
        assert caught.value.metadata["exit_code"].value == error.exit_code
