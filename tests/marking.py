"""Marks as tests make them: the product's own Dagster job on a sandbox or a replay, with one Spark session for all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg

from lakegc_assets.launch import run_mark
from lakegc_assets.marking.resource import MarksResource
from lakegc_assets.marking.run import Target, find_target
from spark_resources.datasets import all_rows
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.marks import Mark, MarkRecord
from spark_resources.model import COMMIT_VERDICTS, EXPIRED_OBJECTS, Partition
from spark_resources.session import QUICK_START, SparkResource
from spark_resources.settings import Settings

_NOWHERE = Path("/nonexistent")
NO_MINIMUM_AGE: Mapping[str, Any] = {"min_age": "0", "allow_young": True}


class SharedSpark(SparkResource):
    """The product's Spark resource, but the session outlives the run: starting one takes longer than most tests."""

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        """Leave the session to the next test."""


def quick_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """LAKEGC_* variables of settings by name, with a Spark for small data."""
    named = {f"LAKEGC_{name.upper()}": value for name, value in settings.items()}
    return {"LAKEGC_SPARK_MASTER": "local[2]", "LAKEGC_SPARK_CONF": json.dumps(QUICK_START), **named}


@contextmanager
def environment(settings: Mapping[str, str]) -> Iterator[None]:
    """Exactly these settings, whatever the machine's own environment says."""
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
    known = Settings.load(quick_environment(settings), home=_NOWHERE)
    return find_target(LakeFS(LakeFSSettings.of(known)), repository, known.store())


def marked(
    settings: Mapping[str, str], repository: str, mark_id: str = "m1", options: Mapping[str, Any] = NO_MINIMUM_AGE
) -> Marked:
    """Run the Dagster job for one mark in a fresh Dagster instance; raises the error that stopped it."""
    with environment(settings), dg.DagsterInstance.ephemeral() as instance:
        run_mark(Partition(repository, mark_id), options, instance=instance, resources=resources())
        target = target_of(settings, repository)
        return Marked(target, Mark.open(target.place, mark_id).record)


def resources() -> dict[str, Any]:
    lakefs, spark = LakeFSResource(), SharedSpark()
    return {"lakefs": lakefs, "spark": spark, "marks": MarksResource(lakefs=lakefs, spark=spark)}
