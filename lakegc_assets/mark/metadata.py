"""The metadata of a step in Dagster: its facts as numbers, the location of its data, and a preview of a few rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from lakegc_assets.formatting import fraction, monthly_cost
from lakegc_assets.mark.changed_rules import changed_rules
from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.plots import plots
from lakegc_assets.mark.sample_objects import Commit, commits_of, samples_by_kind
from lakegc_assets.mark.totals import KINDS, Totals, label_in_words, recorded_totals
from spark_resources.model import EXPIRED_OBJECTS
from spark_resources.spark.datasets import first_rows

PREVIEW_ROWS = 20


def step_result(run: MarkRun, asset: str, schema: pa.Schema, *, part: str = "") -> dg.MaterializeResult[Any]:
    """The result of a step for Dagster: facts, and the location, size and a preview of one of its datasets."""
    recorded = run.mark.record.steps[asset]
    folder = run.mark.folder(asset, part)
    metadata: dict[str, Any] = {
        "repository": run.partition.repository,
        "mark": run.partition.mark_id,
        "state": run.mark.record.state.value,
        "where": f"{run.place.namespace.uri}/{folder}",
        "dagster/row_count": int(recorded.datasets[part]["rows"]),
        "parquet_bytes": int(recorded.datasets[part]["bytes"]),
        **flatten(recorded.facts),
    }
    rows = first_rows(run.place, run.mark.dataset(asset, part), schema, PREVIEW_ROWS)
    if rows:
        records = [dg.TableRecord({name: cell(row[name]) for name in schema.names}) for row in rows]
        metadata["preview"] = dg.MetadataValue.table(records)
    return dg.MaterializeResult(metadata=metadata)


def expired_set_result(run: MarkRun, *, price: float | None) -> dg.MaterializeResult[Any]:
    """The result of `expired_set`, with plots, the totals behind them, sample objects, changed retention rules and, at
    a `price` per GB per month, the monthly savings.

    The rows aren't read again, because the executors counted and selected them while writing.
    """
    result = step_result(run, "expired_set", EXPIRED_OBJECTS)
    facts, totals = run.mark.record.steps["expired_set"].facts, recorded_totals(run.mark)
    metadata: dict[str, Any] = {
        "share_of_objects": fraction(totals.whole.objects, facts["candidates"]),
        "share_of_bytes": fraction(totals.whole.bytes, facts["candidate_bytes"]),
        "explain": f"lakegc explain {run.partition.repository} PATH_OR_ADDRESS",
        "pins": f"lakegc pins {run.partition.repository}",
    }
    if rules_sentence := changed_rules(run.mark):
        metadata["rules_changed"] = rules_sentence
    if price is not None:
        metadata["saved_a_month"] = monthly_cost(totals.whole.bytes, price)
    if totals.whole.objects:
        metadata |= {name: dg.MetadataValue.md(picture) for name, picture in plots(totals).items()}
        metadata |= {f"by_{kind}": dg.MetadataValue.table(totals_records(totals, kind)) for kind in KINDS}
        samples = samples_by_kind(run.mark)
        commits = commits_of(run.mark, [row for rows in samples.values() for row in rows])
        metadata |= {kind: dg.MetadataValue.table([sample_row(row, commits) for row in rows])
                  for kind, rows in samples.items()}  # fmt: skip
    shown = dict(result.metadata or {})
    first = {name: shown.pop(name) for name in ("repository", "mark", "state")}
    return dg.MaterializeResult(metadata={**first, **metadata, **shown})  # the UI keeps this order


def totals_records(totals: Totals, kind: str) -> list[dg.TableRecord]:
    return [
        dg.TableRecord({kind: label_in_words(kind, label), "objects": total.objects, "bytes": total.bytes})
        for label, total in totals.ordered(kind)[:PREVIEW_ROWS]
    ]


def sample_row(row: Mapping[str, Any], commits: Mapping[str, Commit]) -> dg.TableRecord:
    commit = commits.get(row["commit_id"])
    return dg.TableRecord(
        {
            "address": row["address"],
            "size": row["size"],
            "modified": cell(row["modified"]),
            "path": row["path"],
            "commit": row["commit_id"],
            "committed": cell(commit.created) if commit else None,
            "message": commit.message if commit else None,
        }
    )


def flatten(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested facts into dotted names; null values are left out."""
    flattened: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flattened |= {f"{name}.{inner}": inner_value for inner, inner_value in flatten(value).items()}
        elif value is not None:
            flattened[name] = value
    return flattened


def cell(value: object) -> str | int | float | bool | None:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
