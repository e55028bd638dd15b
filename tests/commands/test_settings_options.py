"""Settings on the command line and in Dagster: a misspelled one stops a command before it does anything."""

from __future__ import annotations

import dagster as dg
import pytest

from lakegc_assets.cli.dagster_runs import run_mark, run_sweep
from spark_resources.errors import WrongUsage
from spark_resources.model import Partition
from spark_resources.settings import RENAMED
from tests.approval.conftest import Lake, lake, sandbox
from tests.support.command_line import Lakegc, dagster_home, lakegc
from tests.support.mark_runs import environment, resources

__all__ = ["dagster_home", "lake", "lakegc", "sandbox"]


def test_a_sweep_with_a_misspelled_backup_setting_is_refused(lake: Lake, lakegc: Lakegc) -> None:
    """An operator who sets LAKEGC_BAKCUP_TO relies on a backup, so nothing must be deleted without one."""
    lake.add_mark()
    lake.approve()
    settings = {**lake.sandbox.settings, "bakcup_to": "/somewhere"}

    lakegc(settings, "sweep", lake.name, "m1").stopped(2, "LAKEGC_BAKCUP_TO", "Did you mean LAKEGC_BACKUP_TO?")
    with (
        environment(settings),
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(WrongUsage, match="Did you mean LAKEGC_BACKUP_TO"),
    ):
        run_sweep(Partition(lake.name, "m1"), {}, instance=instance, resources=resources())
    assert lake.record().state == "approved"


def test_an_unknown_setting_is_refused_and_the_closest_name_is_suggested(lake: Lake, lakegc: Lakegc) -> None:
    """`--set` accepts only settings."""
    settings = lake.sandbox.settings

    lakegc(settings, "--set", "bakcup_to=x", "status").stopped(2, "bakcup_to", "Did you mean backup_to?")
    lakegc(settings, "--set", "xyzzy=1", "status").stopped(2, "xyzzy", "The settings are endpoint_url, ")
    lakegc(settings, "--set", "backup_to", "status").stopped(2, "expected backup_to=VALUE")


def test_an_option_for_holds_is_refused_if_it_would_hide_other_holds(lakegc: Lakegc) -> None:
    """Holds from all sources apply together."""
    lakegc({"holds": "[]"}, "--set", "holds=[]", "config", "check").stopped(
        2, "--set holds would override LAKEGC_HOLDS"
    )
    lakegc({}, "--set", "holds=[]", "--set", "holds=[]", "config", "check").stopped(2, "Pass all values in one list")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_setting_is_refused_on_the_command_line(lake: Lake, lakegc: Lakegc, old: str, new: str) -> None:
    """The old name is refused as an option and as a variable; the message has the new name."""
    settings = lake.sandbox.settings

    lakegc(settings, "--set", f"{old}=1", "status").stopped(2, f"--set {old}: the setting is now called {new}")
    lakegc({**settings, old: "1"}, "status").stopped(2, f"LAKEGC_{old.upper()} was renamed to LAKEGC_{new.upper()}")


@pytest.mark.parametrize("value", [True, False])
def test_the_old_name_of_the_option_full_is_refused(lake: Lake, lakegc: Lakegc, value: bool) -> None:
    """The old name is refused in a Dagster run's config as on the command line; no mark is started."""
    settings = lake.sandbox.settings

    if value:
        lakegc(settings, "mark", lake.name, "--clean").stopped(2, "--clean is now called --full", "--full")
    with (
        environment(settings),
        dg.DagsterInstance.ephemeral() as instance,
        pytest.raises(WrongUsage, match="'clean' was renamed to 'full'"),
    ):
        run_mark(Partition(lake.name, "m9"), {"clean": value}, instance=instance, resources=resources())
    assert not lake.files("m9")
