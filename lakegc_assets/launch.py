"""Runs the same Dagster job as the UI, in this process, for the command line and for tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import platformdirs

from lakegc_assets.assets import PARTITIONS
from lakegc_assets.definitions import defs, mark_job
from spark_resources.errors import LakegcError
from spark_resources.model import Partition


def dagster_home(environ: Mapping[str, str]) -> Path:
    """Where Dagster keeps its history: `DAGSTER_HOME`, or a folder of lakegc's own. Made where it isn't there."""
    named = environ.get("DAGSTER_HOME", "").strip()
    home = Path(named).expanduser() if named else Path(platformdirs.user_data_dir("lakegc")) / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    return home


def open_instance(home: Path) -> dg.DagsterInstance:
    """The Dagster instance of a home, without telemetry unless its own `dagster.yaml` says otherwise."""
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text("telemetry:\n  enabled: false\n", encoding="utf-8")
    os.environ["DAGSTER_HOME"] = str(home)
    return dg.DagsterInstance.get()


def run_mark(
    partition: Partition,
    options: Mapping[str, Any],
    *,
    instance: dg.DagsterInstance,
    resources: Mapping[str, Any] | None = None,
) -> None:
    """Materialize the assets of one mark, adding its partition first.

    `options` are those of `MarkConfig`. Raises the `LakegcError` that stopped the run, or `KeyboardInterrupt`.
    """
    key = str(partition)
    instance.add_dynamic_partitions(str(PARTITIONS.name), [key])
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    known = defs if resources is None else _with(resources)
    job = known.resolve_job_def(mark_job.name)
    try:
        job.execute_in_process(
            instance=instance,
            partition_key=key,
            run_config={
                "ops": {"namespace_slices": {"config": dict(options)}},
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
            tags={"lakegc/repository": partition.repository},
        )
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None  # as Ctrl-C is called everywhere else
    except dg.Failure as failure:
        if isinstance(failure.__cause__, LakegcError):
            raise failure.__cause__ from failure.__cause__.__cause__
        raise


def _with(resources: Mapping[str, Any]) -> dg.Definitions:
    """The same definitions with other resources, e.g. a Spark session that several runs share."""
    return dg.Definitions(
        assets=defs.assets,
        asset_checks=defs.asset_checks,
        jobs=defs.jobs,
        executor=defs.executor,
        resources={**(defs.resources or {}), **resources},
    )
