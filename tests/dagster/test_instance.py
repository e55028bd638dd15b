"""Dagster's instance: with the example's Postgres, with lakegc's own settings, and with invalid settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
import yaml

from lakegc_assets.cli.dagster_runs import DAGSTER_SETTINGS, open_instance, serve_ui
from lakegc_assets.definitions import defs
from lakegc_assets.partitions import PARTITIONS, REPOSITORY_TAG
from lakegc_assets.sensors.approvals import approved_sweeps
from spark_resources.errors import Unavailable, WrongUsage
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.model import Rules
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import environment
from tests.support.postgres import Postgres, postgres

EXAMPLE = (Path(__file__).parents[2] / "docs" / "deploying" / "dagster.yaml").read_text(encoding="utf-8")
VARIABLES = dict.fromkeys(Postgres(1).environment(), "1")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A Dagster home with the example's settings."""
    folder = tmp_path / "dagster"
    folder.mkdir()
    (folder / "dagster.yaml").write_text(EXAMPLE)
    with mock.patch.dict(os.environ):
        yield folder


def test_marks_and_approvals_in_postgres_are_seen_by_the_sensor_and_after_a_restart(
    server: Postgres, home: Path, tmp_path: Path
) -> None:
    os.environ.update(server.environment())
    with Sandbox(tmp_path / "sandbox") as sandbox:
        lake, now = sandbox.create("lake"), sandbox.now()
        lake.put("main", "overwritten", b"first")
        lake.commit("main", "first", date=now - timedelta(days=60))
        lake.put_many("main", [("overwritten", b"second"), ("kept", b"kept")])
        lake.commit("main", "second", date=now - timedelta(days=50))
        set_rules(lake, Rules(30, {}))
        lakegc = Lakegc(home, on_disk=True)
        lakegc.output(sandbox.settings, "mark", "lake", "--mark-id", "m1", *NO_AGE)
        digest = json.loads(lakegc.output(sandbox.settings, "review", "lake", "m1", "--format", "json"))["digest"]
        lakegc.output(sandbox.settings, "approve", "lake", "m1", "--yes", "--digest", digest)

    with environment({}), open_instance(home) as reopened:
        [run] = reopened.get_runs()
        materialized = reopened.get_latest_materialization_event(dg.AssetKey("expired_set"))
        partitions = reopened.get_dynamic_partitions(str(PARTITIONS.name))
        with dg.build_sensor_context(
            instance_ref=reopened.get_ref(), repository_def=defs.get_repository_def()
        ) as context:
            tick = approved_sweeps.evaluate_tick(context)

    assert (run.job_name, run.status, run.tags[REPOSITORY_TAG]) == ("mark", dg.DagsterRunStatus.SUCCESS, "lake")
    assert materialized is not None
    assert materialized.run_id == run.run_id
    assert partitions == ["lake:m1"]
    assert [(request.job_name, request.partition_key) for request in tick.run_requests or []] == [("sweep", "lake:m1")]
    assert not list(home.rglob("*.db"))


def test_the_example_and_the_settings_that_lakegc_writes_agree() -> None:
    """A team's instance differs in its storage and in some additional settings that a team needs."""
    example, written = yaml.safe_load(EXAMPLE), yaml.safe_load(DAGSTER_SETTINGS)

    assert {name: example[name] for name in written} == written
    assert set(example) - set(written) == {"storage", "run_monitoring", "retention"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (EXAMPLE, "needs environment variables that aren't set: DAGSTER_POSTGRES_DB, DAGSTER_POSTGRES_HOST"),
        ("storage: {postgrs: {}}", 'unexpected config entry "postgrs"'),
        ("storage: [", "isn't valid YAML"),
        ("storage: {postgres: {postgres_url: 'postgresql://127.0.0.1/'}}", "postgresql+psycopg2"),
        ("run_queue: {}\nrun_coordinator: {module: a, class: b}", "`run_queue`"),
    ],
    ids=["unset variables", "a misspelled key", "invalid YAML", "no driver", "a contradiction"],
)
def test_the_error_about_invalid_dagster_settings_names_the_file_and_the_problem(
    home: Path, content: str, words: str
) -> None:
    for name in VARIABLES:
        os.environ.pop(name, None)
    (home / "dagster.yaml").write_text(content)
    with pytest.raises(WrongUsage) as caught:
        open_instance(home)

    assert str(home / "dagster.yaml") in str(caught.value)
    assert words in str(caught.value)
    assert "Stack Trace" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_ui_does_not_start_with_invalid_dagster_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster itself would print pages of output about them."""
    monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the web server was started"))
    (home / "dagster.yaml").write_text("storage: [")
    with pytest.raises(WrongUsage, match="isn't valid YAML"):
        serve_ui(home, host="127.0.0.1", port=1)


def test_the_error_about_the_missing_postgres_package_names_the_extra(home: Path) -> None:
    os.environ.update(VARIABLES)
    with mock.patch.dict("sys.modules", {"dagster_postgres": None}), pytest.raises(WrongUsage) as caught:
        open_instance(home)

    assert "pip install 'lakegc[postgres]'" in str(caught.value)


def test_an_unreachable_database_is_reported_without_its_password(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dagster_postgres.utils.calculate_delay", lambda *_, **__: 0)
    os.environ.update({**VARIABLES, "DAGSTER_POSTGRES_HOST": "127.0.0.1", "DAGSTER_POSTGRES_PASSWORD": "for-nobody"})
    with pytest.raises(Unavailable) as caught:
        open_instance(home)

    assert "Connection refused" in str(caught.value)
    assert "set DAGSTER_HOME" in str(caught.value)
    assert "for-nobody" not in str(caught.value)
