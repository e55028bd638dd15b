"""Structured logs: lines of JSON on stderr, from commands and from Dagster's runs."""

# no `from __future__ import annotations` here: Dagster reads the annotations of assets

import json
import re
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from lakegc_assets.cli import main
from lakegc_assets.cli.commands import progress
from lakegc_assets.cli.dagster_runs import _with_resources
from lakegc_assets.cli.escaping import escaped, show_warnings
from lakegc_assets.definitions import defs
from lakegc_assets.notifications.console_logger import console
from lakegc_assets.partitions import PARTITIONS, TAGGED_CONFIG
from lakegc_assets.progress import RunFields, publish, set_run_fields
from spark_resources.errors import LakegcWarning
from tests.support.command_line import check_terminal_safe
from tests.support.mark_runs import environment

FIELDS = ["time", "level", "message", "run", "repository", "mark"]
HOSTILE = "reading \x1b[2J\u202e\ndata/a"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines on stderr, each of which must be one JSON object with all fields, in ASCII."""
    err = capsys.readouterr().err
    assert err.isascii()
    documents = [json.loads(line) for line in err.splitlines()]
    assert all(list(document) == FIELDS for document in documents)
    assert all(datetime.fromisoformat(document["time"]).tzinfo == UTC for document in documents)
    return documents


def test_progress_lines_contain_the_run_the_repository_and_the_mark(capsys: pytest.CaptureFixture[str]) -> None:
    with environment({"log_format": "json"}), progress("lake", "m1"):
        publish("starting")
        set_run_fields(RunFields("a-run", "lake", "m1"))
        publish(HOSTILE)
    started, hostile = lines(capsys)

    assert (started["run"], started["repository"], started["mark"]) == (None, "lake", "m1")
    assert (hostile["run"], hostile["level"], hostile["message"]) == ("a-run", "INFO", HOSTILE)


def test_each_warning_is_a_separate_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with environment({"log_format": "json"}), warnings.catch_warnings():
        warnings.simplefilter("always")
        show_warnings()
        warnings.warn("the home folder isn't writable", LakegcWarning, stacklevel=1)
    [line] = lines(capsys)

    assert (line["level"], line["message"]) == ("WARNING", "the home folder isn't writable")


@pytest.mark.parametrize(
    ("settings", "arguments", "words"),
    [
        ({}, ["status"], "endpoint_url"),
        ({}, ["no-such-command"], "No such command"),
        ({"min_age": "soon"}, ["status"], "LAKEGC_MIN_AGE"),
    ],
    ids=["a missing setting", "wrong usage", "an invalid setting"],
)
def test_usage_and_settings_errors_are_json_lines(
    capsys: pytest.CaptureFixture[str], settings: dict[str, str], arguments: list[str], words: str
) -> None:
    with environment({"log_format": "json", **settings}):
        assert main.run(arguments) != 0
    [line] = lines(capsys)

    assert line["level"] == "ERROR"
    assert words in line["message"]


def test_messages_are_plain_text_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with environment({}):
        main.run(["no-such-command"])
        with progress("lake", "m1"):
            publish("starting")

    err = capsys.readouterr().err
    assert "{" not in err
    assert err.rstrip().endswith("s] starting")


# --- Dagster's runs ---------------------------------------------------------------------------------------------------


@dg.asset(partitions_def=PARTITIONS)
def logging_asset(context: dg.AssetExecutionContext) -> None:
    context.log.info(HOSTILE)
    context.log.warning("careful")


def run_in_dagster() -> dg.ExecuteInProcessResult:
    """A run with the configuration that lakegc's jobs have, as Dagster's daemon launches it."""
    job = dg.define_asset_job("mark", [logging_asset], config=TAGGED_CONFIG)
    location = dg.Definitions([logging_asset], jobs=[job], loggers={"console": console})
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(PARTITIONS.name), ["lake:m1"])
        return location.resolve_job_def("mark").execute_in_process(instance=instance, partition_key="lake:m1")


def test_runs_in_dagster_log_the_same_fields_as_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with environment({"log_format": "json"}):
        result = run_in_dagster()
    logged = {line["message"]: line for line in lines(capsys)}

    assert {HOSTILE, "careful"} <= logged.keys()
    assert logged["careful"]["level"] == "WARNING"
    fields = {(line["run"], line["repository"], line["mark"]) for line in logged.values()}
    assert fields == {(result.run_id, "lake", "m1")}


def test_runs_in_dagster_log_plain_text_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    with environment({}):
        run_in_dagster()
    err = capsys.readouterr().err

    assert " - dagster - WARNING - mark - " in err
    assert "RUN_SUCCESS" in err


def test_messages_of_runs_in_dagster_never_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """The colors that remain are Dagster's own."""
    with environment({}):
        run_in_dagster()
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err)

    assert escaped(HOSTILE) in shown
    check_terminal_safe(shown)


def test_mark_sweep_backup_and_approve_jobs_use_the_logger_of_lakegc(tmp_path: Path) -> None:
    """Jobs with the resources that commands give them also use it."""
    for definitions in (defs, _with_resources({})):
        for name in ("mark", "sweep", "back_up", "back_up_and_sweep", "approve"):
            assert definitions.resolve_job_def(name).loggers["console"] is console
