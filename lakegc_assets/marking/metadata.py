"""What Dagster shows of a step: its facts as numbers, where its data is, and a few rows to look at."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from lakegc_assets.marking.run import MarkRun
from spark_resources.datasets import first_rows

PREVIEW_ROWS = 20


def described(run: MarkRun, asset: str, schema: pa.Schema, *, part: str = "") -> dg.MaterializeResult[Any]:
    """The result of a step for Dagster: facts, place, size and a preview of one of its datasets."""
    recorded = run.mark.record.steps[asset]
    folder = run.mark.folder(asset, part)
    metadata: dict[str, Any] = {
        "repository": run.partition.repository,
        "mark": run.partition.mark_id,
        "state": run.mark.record.state.value,
        "where": f"{run.place.namespace.uri}/{folder}",
        "dagster/row_count": int(recorded.datasets[part]["rows"]),
        "parquet_bytes": int(recorded.datasets[part]["bytes"]),
        **flat(recorded.facts),
    }
    rows = first_rows(run.place, run.mark.dataset(asset, part), schema, PREVIEW_ROWS)
    if rows:
        records = [dg.TableRecord({name: cell(row[name]) for name in schema.names}) for row in rows]
        metadata["preview"] = dg.MetadataValue.table(records)
    return dg.MaterializeResult(metadata=metadata)


def flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Nested facts with dotted names; what is unknown is left out."""
    found: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": one for inner, one in flat(value).items()}
        elif value is not None:
            found[name] = value
    return found


def cell(value: object) -> str | int | float | bool | None:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
