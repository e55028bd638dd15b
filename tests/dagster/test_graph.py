"""The asset graph: its content, the order in which it reads, and a snapshot that shows any change."""

from __future__ import annotations

import os
from itertools import pairwise

import dagster as dg
import pytest

from lakegc_assets.assets.mark import MarkConfig
from lakegc_assets.definitions import defs, mark_job
from lakegc_assets.partitions import PARTITIONS
from spark_resources.mark_store.record import CHAIN
from tests.dagster import snapshot

GRAPH = defs.resolve_asset_graph()


def key(name: str) -> dg.AssetKey:
    return dg.AssetKey(name)


def test_the_graph_equals_its_snapshot_in_graph_txt() -> None:
    """If a change is intended, `UPDATE_GRAPH=1 pytest tests/dagster` updates the snapshot."""
    now = snapshot.page(defs)
    if os.environ.get("UPDATE_GRAPH"):
        snapshot.SNAPSHOT.write_text(snapshot.written(now), encoding="utf-8")
    expected = snapshot.read(snapshot.SNAPSHOT.read_text(encoding="utf-8"))

    assert list(now) == list(expected), snapshot.REFRESH
    for section in now:  # names come first, so the first difference is the shortest
        assert now[section] == expected[section], f"{section} changed; if that is intended: {snapshot.REFRESH}"


def test_commits_are_read_after_staged_addresses() -> None:
    """`retained_commits` waits for `uncommitted_addresses`: an object may move from staging to a commit at any moment.

    If commits were read first, an object that moves in between would be on neither list, and would look like garbage.
    """
    assert key("uncommitted_addresses") in GRAPH.get(key("retained_commits")).parent_keys


@pytest.mark.parametrize(("earlier", "later"), list(pairwise(CHAIN)))
def test_each_step_depends_on_the_one_before_it(earlier: str, later: str) -> None:
    """Listing, staged, commits, ranges, expired set."""
    assert key(earlier) in GRAPH.get(key(later)).parent_keys


def test_the_steps_of_the_job_can_only_run_in_the_order_of_the_chain() -> None:
    """A mark's record is checked against the chain."""
    steps = [node.name for node in defs.resolve_job_def(mark_job.name).nodes_in_topological_order]

    assert [step for step in steps if step in CHAIN] == list(CHAIN)
    assert list(CHAIN[:-1]) == [name for name in CHAIN if key(name) in GRAPH.get(key(CHAIN[-1])).parent_keys]


def test_every_asset_is_partitioned_and_described() -> None:
    """The description is a sentence about what a row of the asset is."""
    for key in GRAPH.get_all_asset_keys():
        node = GRAPH.get(key)
        assert node.partitions_def == PARTITIONS, key
        assert (node.description or "").rstrip().endswith("."), key


def test_every_check_belongs_to_an_asset_and_describes_what_it_guards_against() -> None:
    """The description can be understood without another page: it doesn't cite an invariant by its number."""
    for check in GRAPH.asset_check_keys:
        assert check.asset_key in GRAPH.get_all_asset_keys()
        described = GRAPH.get(check).description or ""
        assert described, check
        assert "invariant" not in described, check
    assert {check.asset_key for check in GRAPH.asset_check_keys} >= {key(name) for name in CHAIN}


def test_descriptions_in_the_ui_cite_no_invariant_by_its_number() -> None:
    """Descriptions of assets, jobs, schedules and sensors have to be understandable without another page."""
    location = defs.get_repository_def()
    described = [GRAPH.get(key).description for key in GRAPH.get_all_asset_keys()]
    described += [definition.description for definition in (*location.get_all_jobs(), *location.sensor_defs)]
    described += [schedule.description for schedule in location.schedule_defs]

    assert not [text for text in described if text and "invariant" in text]


def test_the_description_of_the_mark_job_names_every_option() -> None:
    """People who launch the job look there first. The description also says where the options are explained."""
    description = defs.resolve_job_def(mark_job.name).description or ""

    for option in MarkConfig.model_fields:
        assert option in description, option
    assert "namespace_slices*, under *Config*" in description.replace("\n", " ")
    assert all(field.description for field in MarkConfig.model_fields.values())


def test_a_mark_runs_in_one_process() -> None:
    """One Spark session and one lease serve all its assets."""
    assert defs.resolve_job_def(mark_job.name).executor_def is dg.in_process_executor
    assert defs.executor is dg.in_process_executor
