"""Run the same Dagster jobs as the UI, in this process, for the command line and for tests."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import uuid
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import dagster as dg
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import (
    ManagedGrpcPythonEnvCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from sqlalchemy.exc import SQLAlchemyError
from yaml import YAMLError

from lakegc_assets.definitions import backup_job, defs, mark_job, sweep_job
from lakegc_assets.partitions import COMMAND_LINE_TAG, PARTITIONS, REPOSITORY_TAG
from lakegc_assets.progress import RunFields, set_run_fields
from spark_resources.errors import LakegcError, LakegcWarning, NothingToDo, Unavailable, WrongUsage, full_stop
from spark_resources.host.private_files import open_private, private_folder
from spark_resources.host.user_folders import data_folder
from spark_resources.model import Partition


def dagster_home(environ: Mapping[str, str]) -> Path:
    """The folder of Dagster's history: `DAGSTER_HOME`, or lakegc's own folder. It is created if it doesn't exist.

    Only this user can access lakegc's own folder or a newly created one; an existing `DAGSTER_HOME` keeps its
    permissions. Raises `Refused` if lakegc's own folder is a link or belongs to another user, `WrongUsage` if
    `DAGSTER_HOME` can't be created.
    """
    configured = environ.get("DAGSTER_HOME", "").strip()
    if not configured:
        return data_folder("dagster", on_fallback=_warn_of_temporary_history)
    home = Path(configured).expanduser()
    try:
        return home if home.is_dir() else private_folder(home)
    except OSError as error:
        problem = f"DAGSTER_HOME is {home}, which can't be created: {error.strerror}"
        raise WrongUsage(f"{problem}. Set it to another folder.") from None


def _warn_of_temporary_history(folder: Path) -> None:
    warnings.warn(
        f"Dagster's history is in the temporary folder {folder}, since the home folder isn't writable. To keep the "
        "history, set DAGSTER_HOME to a persistent folder. Marks, approvals and reports are stored in the namespace in "
        "any case.",
        LakegcWarning,
        stacklevel=1,
    )


MODULE, LOCATION = "lakegc_assets.definitions", "lakegc"
"""The module of the code location that `WORKSPACE` serves, and its name."""
WORKSPACE = Path(__file__).parents[1] / "workspace.yaml"
REPOSITORY = "__repository__"  # Dagster's name for the repository of a `Definitions`
UI_TAGS = {".dagster/repository": f"{REPOSITORY}@{LOCATION}"}
"""The tag by which the UI finds the runs of a job. Dagster itself sets it only on runs that a server launched."""

DAGSTER_SETTINGS = f"""\
# Written by lakegc because this file didn't exist. lakegc never changes it again, so edit it as you like.
telemetry:
  enabled: false
nux:
  enabled: false
concurrency:
  runs:
    # each run starts its own Spark session, which uses all cores unless LAKEGC_SPARK_MASTER says otherwise
    max_concurrent_runs: 2
    # runs of one repository wait for each other instead of failing because its lease is held
    tag_concurrency_limits:
      - key: {REPOSITORY_TAG}
        value:
          applyLimitPerUniqueValue: true
        limit: 1
"""


NO_LOG_CAPTURE = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
}
"""Dagster doesn't copy the output of commands to files: the processes that would do so print stack traces at Ctrl-C."""


def prepare_home(home: Path) -> None:
    """Make a folder the Dagster home of this process, and write lakegc's settings to it unless it has a
    `dagster.yaml`."""
    settings = home / "dagster.yaml"
    with suppress(FileExistsError), open_private(settings, os.O_EXCL) as file:
        file.write(DAGSTER_SETTINGS.encode())
    os.environ["DAGSTER_HOME"] = str(home)


def open_instance(home: Path) -> dg.DagsterInstance:
    """Prepare a home, and return its Dagster instance.

    Raises `WrongUsage` if its `dagster.yaml` is invalid, or needs an environment variable or a package that is missing,
    `Unavailable` if its database can't be used.
    """
    prepare_home(home)
    try:
        return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides=NO_LOG_CAPTURE))
    except Exception as error:
        raise instance_error(home / "dagster.yaml", error) from error


def instance_error(settings: Path, error: Exception) -> LakegcError:
    """The error for an instance that can't be opened with these settings, with Dagster's reason in one sentence."""
    text = str(error)
    if "Couldn't import module dagster_postgres" in text:
        return WrongUsage(
            f"{settings} needs a package that isn't installed. To install it: pip install 'lakegc[postgres]'"
        )
    if isinstance(error, ModuleNotFoundError) and error.name == "psycopg":
        return WrongUsage(
            f"{settings} has to name the database driver: add 'scheme: postgresql+psycopg2' to postgres_db."
        )
    if unset := sorted(set(re.findall(r'environment variable "(\w+)" which is not set', text))):
        names = ", ".join(unset)
        return WrongUsage(
            f"{settings} needs environment variables that aren't set: {names}. Set them, or correct the file."
        )
    if isinstance(error, dg.DagsterInvalidConfigError):
        pattern = r"^ *Error \d+: (.*?)(?: (?:Expected: |You must provide th).*)?$"
        problems = re.findall(pattern, text, re.MULTILINE) or text.splitlines()[:1]
        return WrongUsage(f"{settings} is invalid: {' '.join(map(full_stop, problems))} Correct the file.")
    if isinstance(error, YAMLError):
        return WrongUsage(f"{settings} isn't valid YAML: {' '.join(text.split())}. Correct the file.")
    reason = str(error.__cause__ or error).partition("\n")[0]
    return Unavailable(
        f"Dagster's history can't be opened: {full_stop(reason)} Check its database, which {settings} configures. To "
        "keep the history elsewhere in the meantime, set DAGSTER_HOME to another folder."
    )


def serve_ui(home: Path, *, host: str, port: int) -> NoReturn:
    """Replace this process with Dagster's web server and daemon for this project and home.

    Raises the errors of `open_instance` first, because Dagster reports them only in pages of output.
    """
    open_instance(home).dispose()
    # A script's background job ignores Ctrl-C, and so would Dagster and its children. They treat SIGTERM like Ctrl-C:
    # only SIGKILL would end them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, "-W", "ignore", "-m", "dagster", "dev", "--workspace", str(WORKSPACE)]
    os.execv(command[0], [*command, "--host", host, "--port", str(port), "--log-level", "warning"])


def refuse_port_in_use(host: str, port: int) -> None:
    """Raise `Unavailable` if the UI can't listen on this port, usually because it is in use: Dagster reports that only
    after pages of output, or not at all."""
    try:
        socket.create_server((host, port)).close()
    except (OSError, OverflowError) as error:
        problem = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise Unavailable(f"can't listen on {host}:{port}: {problem}. Choose another --port or --host.") from None


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
    run_job(mark_job.name, "namespace_slices", partition, options, instance, resources)


def run_sweep(
    partition: Partition,
    options: Mapping[str, Any],
    *,
    instance: dg.DagsterInstance,
    resources: Mapping[str, Any] | None = None,
) -> None:
    """Sweep an approved mark. `options` are those of `SweepConfig`. Raises like `run_mark`."""
    run_job(sweep_job.name, "sweep_report", partition, options, instance, resources)


def run_backup(
    partition: Partition,
    options: Mapping[str, Any],
    *,
    instance: dg.DagsterInstance,
    resources: Mapping[str, Any] | None = None,
) -> None:
    """Back up one finished mark. `options` are those of `BackupConfig`. Raises like `run_mark`."""
    run_job(backup_job.name, "backup", partition, options, instance, resources)


def run_job(
    name: str,
    first_asset: str,
    partition: Partition,
    options: Mapping[str, Any],
    instance: dg.DagsterInstance,
    resources: Mapping[str, Any] | None,
) -> None:
    """Run a job in this process for one partition; its first asset takes the options."""
    key = str(partition)
    instance.add_dynamic_partitions(str(PARTITIONS.name), [key])
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    definitions = defs if resources is None else _with_resources(resources)
    run_id = str(uuid.uuid4())
    set_run_fields(RunFields(run_id, partition.repository, partition.mark_id))
    try:
        result = definitions.resolve_job_def(name).execute_in_process(
            instance=instance,
            run_id=run_id,
            partition_key=key,
            run_config={
                "ops": {first_asset: {"config": dict(options)}},
                "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
            },
            tags={REPOSITORY_TAG: partition.repository, COMMAND_LINE_TAG: "true", **UI_TAGS},
        )
    except dg.DagsterExecutionInterruptedError:
        raise KeyboardInterrupt from None  # the usual exception for Ctrl-C
    except dg.Failure as failure:
        if isinstance(failure.__cause__, LakegcError):
            raise failure.__cause__ from failure.__cause__.__cause__
        raise
    except SQLAlchemyError as error:
        raise history_error(error) from error
    finally:
        with suppress(SQLAlchemyError):  # the run itself has failed for the same reason, or is already recorded
            show_on_overview(instance, run_id)
    raise_if_unchanged(result)


def history_error(error: SQLAlchemyError) -> Unavailable:
    """The error for a run that stopped because its events couldn't be written to Dagster's database."""
    reason = str(error.__cause__ or error).partition("\n")[0]
    return Unavailable(
        f"the run stopped because Dagster's history can't be written: {full_stop(reason)} Check its database and the "
        "space on its disk, or set DAGSTER_HOME to another folder. Marks and receipts are in the namespace, so a sweep "
        "resumes if you run the same command again. An unfinished mark doesn't: make a new one."
    )


def show_on_overview(instance: dg.DagsterInstance, run_id: str) -> None:
    """Make the UI's Overview page, which shows only runs of known code locations, show a finished run of this process.

    Dagster has no public API for this, so the UI tests check that it still works.
    """
    if (run := instance.get_run_by_id(run_id)) is not None and run.is_finished:
        instance.run_storage.replace_job_origin(run, job_origin(run.job_name))


def job_origin(job: str) -> RemoteJobOrigin:
    """How Dagster refers to a job of this code location."""
    location = ManagedGrpcPythonEnvCodeLocationOrigin(LoadableTargetOrigin(module_name=MODULE), LOCATION)
    return RemoteRepositoryOrigin(location, REPOSITORY).get_job_origin(job)


def raise_if_unchanged(result: dg.ExecuteInProcessResult) -> None:
    """Raise `NothingToDo` if the run left its assets unchanged, with the message that it recorded for them."""
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.ASSET_OBSERVATION:
            observation = event.asset_observation_data.asset_observation
            metadata = observation.metadata
            if "exit_code" in metadata:
                number = metadata["invariant"].value if "invariant" in metadata else None
                raise NothingToDo(observation.description or "", invariant=number if isinstance(number, int) else None)


def _with_resources(resources: Mapping[str, Any]) -> dg.Definitions:
    """The same definitions with other resources, e.g. a Spark session that several runs share."""
    return dg.Definitions(
        assets=defs.assets,
        asset_checks=defs.asset_checks,
        jobs=defs.jobs,
        executor=defs.executor,
        loggers=defs.loggers,
        resources={**(defs.resources or {}), **resources},
    )
