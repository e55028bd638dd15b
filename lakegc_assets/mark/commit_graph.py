"""The commit graph as a mark knew it, written with the verdicts. No step of a mark or sweep reads it: it lets queries
apply other rules, or leave out a branch, without requests to the server."""

from __future__ import annotations

from lakegc_assets.mark.context import Graph, MarkRun, StepNotes
from spark_resources.mark_store.mark import Mark
from spark_resources.model import COMMIT_GRAPH, Commit
from spark_resources.spark.datasets import all_rows, write_rows

ASSET, PART = "retained_commits", "graph"


def write_graph(run: MarkRun, notes: StepNotes, commits: Graph) -> None:
    """Write all commits that this mark knows (COMMIT_GRAPH)."""
    rows = [
        {
            "commit_id": commit.id,
            "parents": list(commit.parents),
            "created": commit.created,
            "metarange_id": commit.metarange_id,
            "version": commit.version,
            "metadata": list(commit.metadata.items()),
        }
        for _, commit in sorted(commits.items())
    ]
    notes.add_dataset(write_rows(run.place, run.mark.folder(ASSET, PART), rows, COMMIT_GRAPH), PART)


def has_graph(mark: Mark) -> bool:
    """Whether a mark recorded its commit graph. Earlier versions of lakegc didn't."""
    return PART in mark.record.step(ASSET).datasets


def recorded_graph(mark: Mark) -> Graph:
    """The commits that a mark recorded, without messages and committers."""
    return {
        row["commit_id"]: Commit(
            id=row["commit_id"],
            parents=tuple(row["parents"]),
            created=row["created"],
            metarange_id=row["metarange_id"],
            version=row["version"],
            metadata=dict(row["metadata"]),
        )
        for row in all_rows(mark.place, mark.dataset(ASSET, PART), COMMIT_GRAPH)
    }
