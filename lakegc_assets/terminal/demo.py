"""`lakegc demo`: runs the worked example and tells what became of each commit and object."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from lakegc_assets import demo
from lakegc_assets.retention import Reason
from lakegc_assets.terminal.marks import Server
from lakegc_assets.terminal.words import age, console, size
from spark_resources.datasets import all_rows
from spark_resources.errors import WrongUsage
from spark_resources.marks import Mark, MarkRecord, asset_folder
from spark_resources.model import COMMIT_VERDICTS, EXPIRED_OBJECTS, Partition
from spark_resources.sandbox import Sandbox

MARK_ID = "demo"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found, as rows of COMMIT_VERDICTS and EXPIRED_OBJECTS."""

    story: demo.Story
    record: MarkRecord
    root: Path
    mark_folder: Path
    commits: list[dict[str, Any]]
    expired: list[dict[str, Any]]


def run(folder: Path | None, *, now: datetime, status: Callable[[str], None]) -> Outcome:
    """Replay the example in a sandbox under a folder, mark it with the Dagster job, and read the mark back."""
    root = Path(tempfile.mkdtemp(prefix="lakegc-demo-")) if folder is None else folder
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise WrongUsage(f"{folder} is not empty; the demo makes its sandbox in a new folder")
    status("replaying the documented history in a sandbox")
    with Sandbox(root) as sandbox:
        os.environ.update(sandbox.environment)
        os.environ["DAGSTER_HOME"] = str(root / "dagster")
        story = demo.replay(sandbox, now=now)
        return marked(sandbox, story)


def marked(sandbox: Sandbox, story: demo.Story) -> Outcome:
    import json

    from lakegc_assets.launch import dagster_home, open_instance, run_mark
    from spark_resources.session import QUICK_START

    os.environ.setdefault("LAKEGC_SPARK_CONF", json.dumps(QUICK_START))
    partition = Partition(demo.REPOSITORY, MARK_ID)
    with open_instance(dagster_home(os.environ)) as instance:
        run_mark(partition, {"min_age": "0", "allow_young": True}, instance=instance)
    place = Server.configured().target(demo.REPOSITORY).place
    mark = Mark.open(place, MARK_ID)
    folder = asset_folder(MARK_ID, "expired_set")
    return Outcome(
        story,
        mark.record,
        sandbox.root,
        sandbox.local_path / demo.REPOSITORY / folder,
        all_rows(place, mark.dataset("retained_commits"), COMMIT_VERDICTS),
        all_rows(place, mark.dataset("expired_set"), EXPIRED_OBJECTS),
    )


def tell(outcome: Outcome) -> None:
    """Print the verdicts, the expired objects, where the mark is, and what to type next."""
    out, story = console(), outcome.story
    out.print("The documented worked example: main keeps 21 days, dev 7; run on 2022-03-31.\n", markup=False)
    commits = Table(title="Commits", title_justify="left")
    for heading in ("date", "commit", "verdict", "why", "until"):
        commits.add_column(heading, no_wrap=heading in ("date", "verdict", "until"))
    for row in sorted(outcome.commits, key=lambda row: row["created"]):
        until = story.documented(row["until"]) if row["until"] else ""
        verdict = "[green]retained[/]" if row["retained"] else "[red]expired[/]"
        commits.add_row(story.documented(row["created"]), row["message"], verdict, why(row), until)
    out.print(commits)
    objects = Table(title="Expired objects", title_justify="left")
    for heading in ("path it was written for", "size", "age", "address"):
        objects.add_column(heading, overflow="fold")
    for row in sorted(outcome.expired, key=lambda row: row["modified"]):
        path = story.paths.get(row["address"], "")
        objects.add_row(path, size(row["size"]), age(outcome.record.start - row["modified"]), row["address"])
    out.print(objects)
    counts = outcome.record.counts
    out.print(
        f"{counts['expired']} of {counts['candidates']} objects may go ({size(counts['expired_bytes'])}). "
        f"Nothing was deleted. The mark is in\n  {outcome.mark_folder}\n\n"
        f"Next, look around in this sandbox:\n  lakegc sandbox up --folder {outcome.root}\n"
        f"and in another terminal, with the settings that it prints:\n"
        f"  lakegc review {demo.REPOSITORY} {MARK_ID} --list\n  lakegc mark {demo.REPOSITORY}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def why(verdict: dict[str, Any]) -> str:
    """The reason of a verdict in a few words."""
    branch, days = verdict["branch"], verdict["days"]
    if verdict["reason"] == Reason.HEAD.value:
        return f"head of {branch}"
    if days is None:
        return str(verdict["reason"])
    return f"{branch or 'dangling'}: {days} days after {'its own date' if branch is None else 'its child'}"
