"""How tests run marks: lakegc's own Dagster job on a sandbox or a replayed server, with one shared Spark session."""

from __future__ import annotations

import functools
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import dagster as dg

from lakegc_assets.approval.approve import approve
from lakegc_assets.approval.proposals import ApprovalRequest, propose
from lakegc_assets.assets.mark import MarkConfig
from lakegc_assets.cli.dagster_runs import run_mark
from lakegc_assets.jobs import MARK_ASSETS
from lakegc_assets.mark import (
    expired_set,
    namespace_slices,
)
from lakegc_assets.mark.context import MarkRun, Target, find_target
from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.mark.reading_order import STEP_FUNCTIONS
from lakegc_assets.resources import MarksResource
from lakegc_assets.rules.brakes import BrakeLimits, brakes
from lakegc_assets.sweep.delete_rounds import Tally
from lakegc_assets.sweep.preconditions import SweepOptions, open_sweep, open_swept
from lakegc_assets.sweep.report import Report
from lakegc_assets.sweep.sweep import sweep
from lakegc_assets.sweep.undo import purge, undo
from spark_resources.errors import LakegcError
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import COMMIT_VERDICTS, EXPIRED_OBJECTS, Partition
from spark_resources.settings import Settings
from spark_resources.spark.datasets import all_rows
from spark_resources.spark.resource import SparkResource
from spark_resources.spark.session import SMALL_DATA_SETTINGS
from spark_resources.spark.tasks import Tasks
from spark_resources.stores import endpoint_to_probe
from spark_resources.stores.probe import RECORD_KEY, recorded_capabilities
from tests.support.clocks import later

NO_HOME = Path("/nonexistent")
_Result = TypeVar("_Result")
NO_MINIMUM_AGE: Mapping[str, Any] = {"min_age": "0", "allow_young": True}
ANY_AGE = MarkOptions(min_age=timedelta(0), allow_young=True)
"""The same options, for `Marker.mark`."""


LONG_LIVED = {  # settings for thousands of queries in one session
    **SMALL_DATA_SETTINGS,
    "spark.driver.memory": "2g",
    "spark.buffer.pageSize": "256k",  # larger pages fill over half a region of this heap, and each starts a collection
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # a broadcast is a job of its own
}


class SharedSpark(SparkResource):
    """lakegc's Spark resource with a session that outlives the run, because starting one takes longer than most
    tests."""

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Leave the session to the next test."""


@contextmanager
def on_executors(wanted: bool = True) -> Iterator[None]:
    """Make executors do the work, as in large repositories. Otherwise the driver would do it, because there is so
    little."""
    is_on_driver = property(lambda tasks: not any(map(len, tasks.pieces)))
    with mock.patch.object(Tasks, "is_on_driver", is_on_driver) if wanted else nullcontext():
        yield


def quick_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The LAKEGC_* variables for these settings, and for a Spark session for small data."""
    variables = {f"LAKEGC_{name.upper()}": value for name, value in settings.items()}
    return {"LAKEGC_SPARK_MASTER": "local[2]", "LAKEGC_SPARK_CONF": json.dumps(LONG_LIVED), **variables}


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """An environment with exactly these settings, whatever the machine's own environment has."""
    cleared = {name: value for name, value in os.environ.items() if not name.startswith(("LAKEGC_", "LAKECTL_"))}
    with mock.patch.dict(os.environ, {**cleared, **quick_environment(settings)}, clear=True):
        yield


@dataclass(frozen=True)
class Marked:
    """A finished mark, read back from the namespace."""

    target: Target
    record: MarkRecord

    @property
    def expired(self) -> set[str]:
        return {row["address"] for row in self.expired_rows()}

    def expired_rows(self) -> list[dict[str, Any]]:
        mark = Mark.open(self.target.place, self.record.mark_id)
        return all_rows(self.target.place, mark.dataset("expired_set"), EXPIRED_OBJECTS)

    def verdicts(self) -> list[dict[str, Any]]:
        mark = Mark.open(self.target.place, self.record.mark_id)
        return all_rows(self.target.place, mark.dataset("retained_commits"), COMMIT_VERDICTS)

    def facts(self, asset: str) -> Mapping[str, Any]:
        return self.record.steps[asset].facts


def target_of(settings: Mapping[str, str], repository: str) -> Target:
    loaded = Settings.load(quick_environment(settings), home=NO_HOME, repository=repository)
    return find_target(LakeFS(*LakeFSSettings.of(loaded)), repository, loaded)


def marked(
    settings: Mapping[str, str], repository: str, mark_id: str = "m1", options: Mapping[str, Any] = NO_MINIMUM_AGE
) -> Marked:
    """Run one mark with the options of the run configuration, without Dagster. Raises the error that stopped it."""
    return Marker().mark(settings, repository, mark_id, MarkConfig(**options).options())


def marked_by_job(
    settings: Mapping[str, str], repository: str, mark_id: str = "m1", options: Mapping[str, Any] = NO_MINIMUM_AGE
) -> Marked:
    """Run the Dagster job for one mark in a new Dagster instance. Raises the error that stopped it."""
    share_probe_result(settings, repository)
    with environment(settings), dg.DagsterInstance.ephemeral() as instance:
        run_mark(Partition(repository, mark_id), options, instance=instance, resources=resources())
        target = target_of(settings, repository)
        return Marked(target, Mark.open(target.place, mark_id).record)


_probes: dict[str, bytes] = {}


def share_probe_result(settings: Mapping[str, str], repository: str) -> None:
    """Copy the result of an earlier probe of this server to the repository: probing SeaweedFS takes seconds. With
    local files, wait until those written before are older than a mark that begins now.

    Errors are ignored, because the mark itself runs into them again.
    """
    with suppress(LakegcError):
        place = target_of(settings, repository).place
        endpoint, store = endpoint_to_probe(place.namespace, place.settings), place.store()
        if endpoint is None:
            if store.capabilities.time_resolution < timedelta(seconds=1):  # a mark may begin sooner after a write
                later(store, store.now())
            return
        if endpoint not in _probes:
            recorded_capabilities(store, endpoint, token=uuid.uuid4().hex)
            _probes[endpoint] = store.read(RECORD_KEY)
        store.write_if_absent(RECORD_KEY, _probes[endpoint])
        later(store, store.now())  # by then objects written earlier are old, as after most probes


def resources() -> dict[str, Any]:
    lakefs, spark = LakeFSResource(), SharedSpark()
    return {"lakefs": lakefs, "spark": spark, "marks": MarksResource(lakefs=lakefs, spark=spark)}


# --- many small marks -----------------------------------------------------------------------------------------------

_STEPS: Mapping[str, Callable[[MarkRun], None]] = {
    **STEP_FUNCTIONS,
    expired_set.ASSET: expired_set.compute,
}
_ONE_TASK = {"spark.sql.leafNodeDefaultParallelism": "1", "spark.sql.shuffle.partitions": "1"}


@functools.cache
def _shared_spark() -> SharedSpark:
    return SharedSpark()


def shared_session() -> Any:
    """The Spark session of this process."""
    return _shared_spark().spark_session


class Marker:
    """Runs marks: the steps of the graph in their order, but without a Dagster run.

    All instances share the process's Spark session. They use one task where a mark would use a few.
    """

    def mark(self, settings: Mapping[str, str], repository: str, mark_id: str, options: MarkOptions) -> Marked:
        """Run one mark, from the lease to the finished record. Raises the error that stopped it."""
        share_probe_result(settings, repository)
        with environment(settings):
            run = mark_steps(Partition(repository, mark_id), options)
            return Marked(run.target, Mark.open(run.place, mark_id).record)

    def steps(
        self, settings: Mapping[str, str], repository: str, mark_id: str, options: MarkOptions, assets: Sequence[str]
    ) -> None:
        """Run some steps of a mark, as if assets were materialized one by one."""
        share_probe_result(settings, repository)
        key = str(Partition(repository, mark_id))

        def run_steps(marks: MarksResource) -> None:
            for asset in assets:
                if asset == namespace_slices.ASSET:
                    _STEPS[asset](marks.begin(key, options, lambda _: None))
                else:
                    _STEPS[asset](marks.resume(key, lambda _: None))

        with environment(settings):
            _under_lease(run_steps)


def mark_steps(partition: Partition, options: MarkOptions) -> MarkRun:
    """Run the steps of a mark with the environment's settings, under its lease. Raises the error that stopped it."""

    def run_steps(marks: MarksResource) -> MarkRun:
        run = marks.begin(str(partition), options, lambda _: None)
        for asset in MARK_ASSETS:
            _STEPS[asset.key.path[-1]](run)
        return run

    return _under_lease(run_steps)


def sweep_steps(partition: Partition, options: SweepOptions) -> Report:
    """Sweep an approved mark with the environment's settings, under its lease."""
    return _under_lease(lambda marks: sweep(open_sweep(marks, str(partition), options, lambda _: None)))


def _under_lease(work: Callable[[MarksResource], _Result]) -> _Result:
    marks = MarksResource(lakefs=LakeFSResource(), spark=_shared_spark())
    with few_tasks():
        try:
            return work(marks)
        finally:
            marks.release()


@contextmanager
def few_tasks() -> Iterator[None]:
    """Let queries of the shared session use one task."""
    settings = shared_session().conf
    before = {name: settings.get(name, None) for name in _ONE_TASK}
    for name, value in _ONE_TASK.items():
        settings.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                settings.unset(name)
            else:
                settings.set(name, value)


class Sweeper:
    """Approves and sweeps marks, with lakegc's own steps but without a Dagster run."""

    def approve(
        self, settings: Mapping[str, str], repository: str, mark_id: str, *, for_reference: bool = False
    ) -> None:
        """Approve a mark and release all tripped brakes."""
        target = target_of(settings, repository)
        now = later(target.place.store(), Mark.open(target.place, mark_id).record.finished)
        proposal = propose(target, mark_id, now=now)
        tripped = (
            brake.name for brake in brakes(proposal.record, BrakeLimits.of(Settings()), now=now) if brake.tripped
        )
        because = dict.fromkeys(tripped, "it is a test")
        request = ApprovalRequest(
            "the tests", "tests", now, because, digest=proposal.digest, for_reference=for_reference
        )
        loaded = Settings.load(quick_environment(settings), home=NO_HOME, repository=repository)
        lakefs = LakeFS(*LakeFSSettings.of(loaded))
        approve(proposal, request, lakefs, BrakeLimits.of(Settings()), now=now, single_deployment=False)

    def sweep(self, settings: Mapping[str, str], repository: str, mark_id: str, options: SweepOptions) -> Report:
        """Sweep an approved mark, or resume a sweep."""
        with environment(settings):
            return sweep_steps(Partition(repository, mark_id), options)

    def undo(self, settings: Mapping[str, str], repository: str, mark_id: str) -> Tally:
        arguments = _arguments(repository, mark_id, SweepOptions())
        with environment(settings):
            return _under_lease(lambda marks: undo(open_swept(marks, *arguments)))

    def purge(self, settings: Mapping[str, str], repository: str, mark_id: str) -> Tally:
        arguments = _arguments(repository, mark_id, SweepOptions())
        with environment(settings):
            return _under_lease(lambda marks: purge(open_swept(marks, *arguments)))


def _arguments(repository: str, mark_id: str, options: SweepOptions) -> tuple[str, SweepOptions, Callable[[str], None]]:
    return str(Partition(repository, mark_id)), options, lambda _: None
