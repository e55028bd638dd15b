"""Impossible requests are refused before Spark is started for them, since starting Spark takes longer than finding
out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import dagster as dg
import pytest

from lakegc_assets.partitions import PARTITIONS, REPOSITORY_TAG
from lakegc_assets.resources import MarksResource
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.model import Outcome
from spark_resources.spark.resource import SparkResource
from tests.approval.conftest import Lake, lake, sandbox
from tests.commands.test_reports import swept
from tests.support.command_line import Lakegc, dagster_home, lakegc
from tests.support.command_line import Outcome as CommandOutcome
from tests.support.finished_marks import COUNTS

__all__ = ["dagster_home", "lake", "lakegc", "sandbox"]


class Unstartable(SparkResource):
    """A Spark that must not be started."""

    def _init_session(self) -> None:
        raise AssertionError("Spark was started")


@contextmanager
def unstartable_spark() -> Iterator[None]:
    lakefs, spark = LakeFSResource(), Unstartable()
    resources = {"lakefs": lakefs, "spark": spark, "marks": MarksResource(lakefs=lakefs, spark=spark)}
    with (
        mock.patch("tests.support.command_line.resources", return_value=resources),
        mock.patch("tests.support.command_line.SharedSpark", Unstartable),
    ):
        yield


@pytest.fixture
def without_spark(lake: Lake, lakegc: Lakegc) -> Callable[..., CommandOutcome]:
    """A command on that repository, with a Spark that can't be started, not even ahead of the run."""

    def run(name: str, *arguments: str, **settings: str) -> CommandOutcome:
        started = AssertionError("Spark was started")
        with unstartable_spark(), mock.patch("lakegc_assets.cli.commands.start_spark_ahead", side_effect=started):
            return lakegc({**lake.sandbox.settings, **settings}, name, lake.name, *arguments)

    return run


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("mark", "--min-age", "1h"), 3, "a minimum age of 1 hour is less than 1 day, the lifetime of a link token"),
        (("mark", "--min-age", "one hour"), 2, "min_age"),
        (("mark", "--since", "m0", "--full"), 2, "--since or --full"),
        (("mark", "--inventory-taken", "2026-01-01"), 2, "there is no inventory"),
        (("sweep", "m1"), 3, "is not approved"),
        (("sweep", "m0"), 2, "m0"),
        (("undo", "m1"), 2, "is marked, so it has no objects in quarantine"),
        (("purge", "m1", "--yes"), 2, "is marked, so it has no objects in quarantine"),
        (("purge", "m1"), 2, "pass --yes"),
        (("backup", "m1"), 2, "LAKEGC_BACKUP_TO"),
        (("backup", "m0", "/tmp/nowhere-lakegc"), 2, "m0"),
        (("restore", "m1", "/nowhere"), 1, "no complete backup"),
        (("restore", "m1", "/nowhere", "--drill", "2"), 1, "no complete backup"),
    ],
)
def test_invalid_options_ids_states_and_destinations_are_refused_before_spark_starts(
    lake: Lake, without_spark: Callable[..., CommandOutcome], arguments: tuple[str, ...], code: int, words: str
) -> None:
    lake.add_mark()

    without_spark(*arguments).stopped(code, words)


def test_a_refused_sweep_names_the_complete_command_that_approves_the_mark(
    lake: Lake, without_spark: Callable[..., CommandOutcome]
) -> None:
    """Without the tripped brakes, the command would be refused, too."""
    lake.add_mark(counts={**COUNTS, "expired": 60_000, "live": 0})

    releases = "--release share --because WHY --release live --because WHY"
    without_spark("sweep", "m1").stopped(3, "is not approved", f"lakegc approve {lake.name} m1 {releases} (replace")


def test_a_sweep_without_its_backup_is_refused_before_spark_starts(
    lake: Lake, without_spark: Callable[..., CommandOutcome]
) -> None:
    """The error names the command that makes the backup."""
    lake.add_mark()
    lake.approve()

    without_spark("sweep", "m1", backup_to="/nowhere").stopped(
        3, "there is no complete one of mark m1", "lakegc backup"
    )


@pytest.mark.parametrize(
    ("arguments", "settings", "code", "words"),
    [
        (("mark", "--min-age", "1h"), {}, 3, "a minimum age of 1 hour"),
        (("mark", "--mark-id", "m1"), {}, 2, "mark id m1 is in use"),
        (("mark", "--since", "m0"), {}, 1, "there is no finished mark m0"),
        (("sweep", "m0"), {}, 2, "there is no approved mark m0"),
        (("sweep", "m1"), {}, 3, "is not approved"),
        (("sweep", "swept"), {}, 3, "has been used: the mark's state is swept"),
        (("sweep", "approved"), {"backup_to": "/nowhere"}, 3, "there is no complete one of mark approved"),
        (("backup", "m1"), {}, 2, "LAKEGC_BACKUP_TO"),
        (("backup", "m0", "/tmp/nowhere-lakegc"), {}, 2, "there is no mark m0"),
    ],
)
def test_a_refused_command_leaves_no_run_and_no_partition_in_dagster(
    lake: Lake, lakegc: Lakegc, arguments: tuple[str, ...], settings: dict[str, str], code: int, words: str
) -> None:
    """A run would be shown in red, and a useless partition would stay forever."""
    lake.add_mark()
    lake.add_mark(["data/s/b"], "approved")
    lake.approve("approved")
    swept(lake, {"data/s/a": (Outcome.DELETED, "")}, "swept")
    name, *rest = arguments

    lakegc({**lake.sandbox.settings, **settings}, name, lake.name, *rest).stopped(code, words)

    with lakegc.instance(lakegc.home) as instance:
        partitions = instance.get_dynamic_partitions(str(PARTITIONS.name))
        runs = instance.get_runs(dg.RunsFilter(tags={REPOSITORY_TAG: lake.name}))
    assert (runs, [key for key in partitions if key.startswith(f"{lake.name}|")]) == ([], [])


@pytest.mark.parametrize("command", [("undo",), ("purge", "--yes")])
def test_undo_and_purge_end_before_spark_starts_if_nothing_is_in_quarantine(
    lake: Lake, without_spark: Callable[..., CommandOutcome], command: tuple[str, ...]
) -> None:
    """A sweep without quarantine left no objects to bring back."""
    swept(lake, {"data/s/a": (Outcome.DELETED, "")})

    ended = without_spark(command[0], "m1", *command[1:])

    assert (ended.code, "no objects in quarantine" in ended.out) == (0, True), ended.err
    restore = f"If there is a backup of the mark, restore what is missing with: lakegc restore {lake.name} m1 PLACE\n"
    assert (restore in ended.out) == (command[0] == "undo")


def test_a_sweep_reports_progress_from_its_start(lake: Lake, lakegc: Lakegc) -> None:
    """It may be a long time before the first object is deleted."""
    lake.add_mark()
    lake.approve()

    with unstartable_spark():
        ended = lakegc(lake.sandbox.settings, "sweep", lake.name, "m1")

    assert [line.partition("] ")[2] for line in ended.err.splitlines()][:2] == [
        "starting the sweep", "verifying the approved set"
    ]  # fmt: skip
