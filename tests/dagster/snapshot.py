"""The graph as one page of text. Names come first, so that an added or missing name is the first difference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

SNAPSHOT = Path(__file__).with_name("graph.txt")
REFRESH = "UPDATE_GRAPH=1 pytest tests/dagster/test_graph.py"


def page(defs: dg.Definitions) -> dict[str, list[str]]:
    """The sections of the page in their order; the lines of each are sorted."""
    graph, location = defs.resolve_asset_graph(), defs.get_repository_def()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    checks = [graph.get(key) for key in graph.asset_check_keys]
    jobs = [job for job in location.get_all_jobs() if not job.name.startswith("__")]
    return {
        "assets": sorted(name(node.key) for node in nodes),
        "checks": sorted(check.key.to_user_string() for check in checks),
        "jobs": sorted(job.name for job in jobs),
        "schedules": sorted(schedule.name for schedule in location.schedule_defs),
        "sensors": sorted(sensor.name for sensor in location.sensor_defs),
        "resources": sorted(location.get_top_level_resources()),
        "edges": sorted(f"{name(above)} -> {name(node.key)}" for node in nodes for above in node.parent_keys),
        "groups": sorted(f"{name(node.key)}: {node.group_name}" for node in nodes),
        "kinds of asset": sorted(f"{name(node.key)}: {how_made(node)}" for node in nodes),
        "partitions of assets": sorted(f"{name(node.key)}: {partitions(node.partitions_def)}" for node in nodes),
        "what checks do": sorted(f"{check.key.to_user_string()}: {effect(check)}" for check in checks),
        "what jobs run": sorted(line for job in jobs for line in selection(job)),
        "classes of resources": sorted(classes(location.get_top_level_resources())),
    }


def written(sections: Mapping[str, Iterable[str]]) -> str:
    """The page as text."""
    return "\n".join(f"{heading}\n" + "".join(f"  {line}\n" for line in lines) for heading, lines in sections.items())


def read(text: str) -> dict[str, list[str]]:
    """The sections of a written page."""
    sections: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("  "):
            sections[next(reversed(sections))].append(line.strip())
        elif line:
            sections[line] = []
    return sections


def name(key: dg.AssetKey) -> str:
    return key.to_user_string()


def how_made(node: Any) -> str:
    kind = "external" if node.is_external else "materialized" if node.is_materializable else "observed"
    return f"{kind}, {' and '.join(sorted(node.kinds)) or 'of no kind'}"


def partitions(definition: dg.PartitionsDefinition[str] | None) -> str:
    if isinstance(definition, dg.DynamicPartitionsDefinition):
        return f"dynamic, {definition.name}"
    return "none" if definition is None else type(definition).__name__


def effect(check: Any) -> str:
    return f"{'blocks' if check.blocking else 'shows'}, partitions {partitions(check.partitions_def)}"


def selection(job: dg.JobDefinition) -> Iterator[str]:
    layer = job.asset_layer
    yield f"{job.name}: by {job.executor_def.name}, partitions {partitions(job.partitions_def)}"
    yield from (f"{job.name}: asset {name(key)}" for key in layer.selected_asset_keys)
    yield from (f"{job.name}: check {key.to_user_string()}" for key in layer.asset_graph.asset_check_keys)


def classes(resources: Mapping[str, Any]) -> Iterator[str]:
    for key, resource in resources.items():
        resource_class = getattr(resource, "configurable_resource_cls", type(resource))
        yield f"{key}: {resource_class.__module__}.{resource_class.__qualname__}"
