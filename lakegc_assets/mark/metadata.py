"""The metadata of a step in Dagster, in the order in which its page shows them: a summary, what comes next, plots and
tables, a few numbers that Dagster plots over all marks, and every other fact behind a click."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import dagster as dg
import pyarrow as pa

from lakegc_assets.formatting import fraction, size
from lakegc_assets.mark.changed_rules import changed_rules
from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.over_time import over_time
from lakegc_assets.mark.plots import plots
from lakegc_assets.mark.sample_objects import Commit, commits_of, samples_by_kind
from lakegc_assets.mark.summaries import SUMMARIES, expired_summary
from lakegc_assets.mark.totals import Sum, recorded_totals
from lakegc_assets.markdown import (
    as_text,
    asset_link,
    behind_a_click,
    checks_link,
    inline,
    launchpad_link,
    table,
    unbroken,
)
from spark_resources.mark_store.history import History
from spark_resources.model import Partition
from spark_resources.settings import Settings
from spark_resources.spark.datasets import first_rows

PREVIEW_ROWS = 20
EXAMPLES = {"largest": "Largest objects", "newest": "Newest objects", "sample": "Random sample"}
PLOTTED: Mapping[str, Mapping[str, str]] = {
    "namespace_slices": {"stored_bytes": "bytes"},
    "retained_commits": {"retained_commits": "retained", "expired_commits": "expired"},
    "committed_addresses": {"bytes_read": "bytes_read"},
}
"""The facts of each step that Dagster plots, by the name of the plot, besides rows and seconds."""
QUESTIONS: Mapping[str, str] = {
    "explain {repository} PATH_OR_ADDRESS": "Why is an object kept, expired or gone?",
    "pins {repository}": "What does only one branch or commit keep?",
    "rules {repository}": "Which retention rules apply?",
    "what-if {repository} --rules FILE": "What would other rules free?",
    "report {repository} {mark}": "What was deleted, and why were the other objects not?",
}
"""The questions that people ask about a mark or its sweep, by the command that answers each."""


def step_result(run: MarkRun, asset: str, schema: pa.Schema, *, part: str = "") -> dg.MaterializeResult[Any]:
    """The result of a step before `expired_set`, with a preview of one of its datasets."""
    record = run.mark.record
    rows = first_rows(run.place, run.mark.dataset(asset, part), schema, PREVIEW_ROWS)
    facts = record.steps[asset].facts
    return dg.MaterializeResult(
        metadata={
            "summary": inline(SUMMARIES[asset](record)),
            "next": inline(f"Expired objects: {asset_link('expired_set', str(run.partition))}"),
            **({"preview": behind_a_click(preview(rows, schema.names))} if rows else {}),
            **{name: facts[fact] for name, fact in PLOTTED.get(asset, {}).items() if fact in facts},
            **common_metadata(run, asset, part),
        }
    )


def expired_set_result(run: MarkRun, settings: Settings, history: History | None) -> dg.MaterializeResult[Any]:
    """The result of `expired_set`, with plots, sample objects, changed retention rules, and the repository over time.

    The rows aren't read again, because the executors counted and selected them while writing.
    """
    totals, facts = recorded_totals(run.mark), run.mark.record.steps["expired_set"].facts
    metadata: dict[str, Any] = {
        "summary": inline(expired_summary(run.mark.record, totals.whole, settings)),
        "next": inline(next_steps(run)),
        "questions": inline(questions(run.partition)),
    }
    if rules_sentence := changed_rules(run.mark):
        metadata["rules_changed"] = rules_sentence
    metadata |= {name: inline(plot) for name, plot in plots(totals).items()}
    if totals.whole.objects:
        metadata["examples"] = behind_a_click(examples(run))
    if history is not None:
        metadata["over_time"] = inline(over_time(history))
    metadata |= plotted_numbers(totals.whole, facts)
    return dg.MaterializeResult(metadata=metadata | common_metadata(run, "expired_set", ""))


def next_steps(run: MarkRun) -> str:
    """Links to what follows, and the commands for it."""
    key, name = str(run.partition), f"{run.partition.repository} {run.partition.mark_id}"
    return (
        f"1. Review the numbers below and {checks_link('expired_set', 'the checks')}, or `lakegc review {name}`\n"
        f"2. {launchpad_link('approve', 'Approve')}: choose this partition, and fill in the digest above; or "
        f"`lakegc approve {name}`\n"
        f"3. See {asset_link('sweep_report', key, 'what was deleted')}, or `lakegc report {name}`"
    )


def questions(partition: Partition) -> str:
    """Further questions, each with the command that answers it, as a list of Markdown."""
    names = {"repository": partition.repository, "mark": partition.mark_id}
    return "\n".join(f"- {question} `lakegc {command.format(**names)}`" for command, question in QUESTIONS.items())


def plotted_numbers(expired: Sum, facts: Mapping[str, Any]) -> dict[str, int | float]:
    """The numbers that Dagster plots over the marks of all repositories."""
    stored_bytes = facts["candidate_bytes"]
    return {
        "expired": expired.objects,
        "expired_bytes": expired.bytes,
        "expired_percent": round(100 * fraction(expired.bytes, stored_bytes), 1),
        "stored_bytes": stored_bytes,
        "kept_bytes": stored_bytes - expired.bytes,
    }


def common_metadata(run: MarkRun, asset: str, part: str) -> dict[str, Any]:
    """Rows, seconds, and behind a click: repository, mark, folder, and all facts of the step."""
    record, recorded = run.mark.record, run.mark.record.steps[asset]
    details = {
        "repository": run.partition.repository,
        "mark": record.mark_id,
        "digest": record.digest,
        "where": f"{run.place.namespace.uri}/{run.mark.folder(asset, part)}",
        "parquet_bytes": int(recorded.datasets[part]["bytes"]),
        **flatten(recorded.facts),
    }
    rows, seconds = int(recorded.datasets[part]["rows"]), recorded.facts.get("seconds")
    return {
        "dagster/row_count": rows,
        **({} if seconds is None else {"seconds": seconds}),
        "details": behind_a_click(details_table(details)),
    }


def details_table(facts: Mapping[str, Any]) -> str:
    rows = [(as_text(name), value_in_words(name, value)) for name, value in facts.items() if value not in (None, "")]
    return table(["fact", "value"], rows)


def value_in_words(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{size(value)} ({value:,} B)" if "bytes" in name else f"{value:,}"
    return as_text(", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))


def preview(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    return table(columns, [[cell(row[name]) for name in columns] for row in rows])


def examples(run: MarkRun) -> str:
    """The sample objects of a mark, as a table of each kind."""
    samples = samples_by_kind(run.mark)
    commits = commits_of(run.mark, [row for rows in samples.values() for row in rows])
    tables = [f"**{EXAMPLES[kind]}**\n\n{example_table(rows, commits)}" for kind, rows in samples.items()]
    return "\n\n".join(tables)


def example_table(rows: Iterable[Mapping[str, Any]], commits: Mapping[str, Commit]) -> str:
    """Objects, each with its path and the last commit that referred to it, if they are known."""
    headings = ["path in lakeFS", "size:", "stored", "last commit", "address"]
    return table(headings, [example_row(row, commits.get(row["commit_id"])) for row in rows])


def example_row(row: Mapping[str, Any], commit: Commit | None) -> list[str]:
    return [
        cell(row["path"]),
        unbroken(size(row["size"])),
        f"{row['modified']:%Y-%m-%d}",
        as_text(row["commit_id"] or "" if commit is None else commit_in_words(commit)),
        as_text(row["address"]),
    ]


def commit_in_words(commit: Commit) -> str:
    created = "" if commit.created is None else f" {commit.created:%Y-%m-%d}"
    return f"{commit.commit_id[:12]}{created} {commit.message or ''}"


def flatten(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested facts into dotted names; null values are left out."""
    flattened: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flattened |= {f"{name}.{inner}": inner_value for inner, inner_value in flatten(value).items()}
        elif value is not None:
            flattened[name] = value
    return flattened


def cell(value: object) -> str:
    """A value as literal Markdown: times to the second, nothing for null."""
    if value is None:
        return ""
    return as_text(value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else str(value))
