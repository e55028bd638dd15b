"""Settings on the command line and in Dagster: a misspelt one stops a command before it does anything."""

from __future__ import annotations

import dagster as dg
import pytest

from lakegc_assets.cli.dagster_runs import run_sweep
from spark_resources.errors import WrongUsage
from spark_resources.model import Partition
from tests.approval.conftest import Lake, lake, sandbox
from tests.support.command_line import Lakegc, dagster_home, lakegc
from tests.support.mark_runs import environment, resources

__all__ = ["dagster_home", "lake", "lakegc", "sandbox"]


def test_a_sweep_with_a_misspelt_backup_setting_is_refused(lake: Lake, lakegc: Lakegc) -> None:
    """Whoever sets LAKEGC_BAKCUP_TO relies on a backup: nothing may be deleted as if none were wanted."""
    lake.marked()
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


def test_an_unknown_setting_is_refused_with_the_closest_name(lake: Lake, lakegc: Lakegc) -> None:
    """`--set` takes settings and nothing else."""
    settings = lake.sandbox.settings

    lakegc(settings, "--set", "bakcup_to=x", "status").stopped(2, "bakcup_to", "Did you mean backup_to?")
    lakegc(settings, "--set", "xyzzy=1", "status").stopped(2, "xyzzy", "Settings are endpoint_url, ")
    lakegc(settings, "--set", "backup_to", "status").stopped(2, "expected backup_to=VALUE")
