"""`lakegc demo`: run the worked example, and show the verdict on each commit and the outcome of each object."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from lakegc_assets.approval import approve as approval
from lakegc_assets.approval.proposals import ApprovalRequest, propose
from lakegc_assets.backup.context import CopyLimits
from lakegc_assets.backup.manifest import Backup
from lakegc_assets.backup.restore import Selection, restore
from lakegc_assets.cli import worked_example
from lakegc_assets.cli.backup import restore_run
from lakegc_assets.cli.console import age, print_command, print_sentence, print_table, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.cli.review import Review
from lakegc_assets.cli.tables import show_totals
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.rules.retention import Reason
from lakegc_assets.sweep.report import Report, read_report
from spark_resources.errors import Unavailable, WrongUsage
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs_sandbox import Problem, Sandbox, StorePlace
from spark_resources.mark_store.mark import Mark, asset_folder
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import COMMIT_VERDICTS, EXPIRED_OBJECTS, Partition
from spark_resources.settings import Settings
from spark_resources.spark.datasets import all_rows
from spark_resources.stores.base import Store
from spark_resources.stores.polling import poll

MARK_ID = "demo"
APPROVER = "the demo"
HTTP_GONE = 410
LONGEST_WAIT_S, POLL_S = 30.0, 0.1


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demo: rows of COMMIT_VERDICTS and EXPIRED_OBJECTS, and counts of paths after the sweep.

    `kept` counts paths of retained commits with the same bytes after the sweep as before, `lost` the others. `gone`
    counts paths of expired objects that returned 410 Gone after the sweep, and `restored` those that were
    restored byte for byte.
    """

    example: worked_example.ReplayedExample
    record: MarkRecord
    sandbox: Path
    store: str | None
    mark_folder: str
    commits: list[dict[str, Any]]
    expired: list[dict[str, Any]]
    review: Review
    backup: Backup
    backup_to: str
    report: Report
    kept: int
    lost: int
    gone: int
    restored: int


def run(folder: Path | None, store: str | None, *, now: datetime, status: Callable[[str], None]) -> DemoResult:
    """Replay the example in a sandbox, with its objects in a local folder or an object store: mark, review, back up,
    approve, sweep and restore it, and read everything again after the sweep and after the restore.

    Raises `WrongUsage` for a folder that isn't empty, or a store location that already has an earlier demo.
    """
    root = Path(tempfile.mkdtemp(prefix="lakegc-demo-")) if folder is None else folder
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise WrongUsage(f"{folder} is not empty. Choose a new folder for the demo's sandbox.")
    place = StorePlace(store, Settings.load(os.environ, home_folder()).store_settings()) if store else None
    status("replaying the documented history in a sandbox")
    with Sandbox(root, place=place) as sandbox:
        os.environ.update(sandbox.environment)
        os.environ["DAGSTER_HOME"] = str(root / "dagster")
        os.environ["LAKEGC_BACKUP_TO"] = f"{store.rstrip('/')}/backup" if store else str(root / "backup")
        try:
            example = worked_example.replay(sandbox, now=now)
        except Problem as problem:
            raise WrongUsage(f"the demo needs an empty location in {store or root}: {problem}") from problem
        written_at = Servers.configured().target(worked_example.REPOSITORY).place.store().now()
        return run_in_sandbox(sandbox, example, store, status, written_at)


def wait_until_old(store: Store, written_at: datetime) -> None:
    """Wait until a mark without a minimum age no longer treats objects written at `written_at` or before (by the
    store's clock) as young, given the resolution of the store's times. This takes two seconds at most; in a
    folder, no time.

    Raises `Unavailable` if the store's clock doesn't advance.
    """
    old_at = written_at + 2 * store.capabilities.time_resolution
    if poll(lambda: store.now() >= old_at or None, timeout_s=LONGEST_WAIT_S, first_wait_s=POLL_S) is None:
        raise Unavailable(
            f"the clock of {store.where} doesn't advance, so the ages of its objects are unknown. Check the store's "
            "clock."
        )


def run_in_sandbox(
    sandbox: Sandbox,
    example: worked_example.ReplayedExample,
    store: str | None,
    status: Callable[[str], None],
    written_at: datetime,
) -> DemoResult:
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance, run_backup, run_mark, run_sweep
    from lakegc_assets.resources import MarksResource
    from spark_resources.lakefs.resource import LakeFSResource
    from spark_resources.spark.resource import LongLivedSparkResource
    from spark_resources.spark.session import SMALL_DATA_SETTINGS

    os.environ.setdefault("LAKEGC_SPARK_CONF", json.dumps(SMALL_DATA_SETTINGS))
    partition, backup_to = Partition(worked_example.REPOSITORY, MARK_ID), os.environ["LAKEGC_BACKUP_TO"]
    lakefs, spark = LakeFSResource(), LongLivedSparkResource()
    resources = {"lakefs": lakefs, "spark": spark, "marks": MarksResource(lakefs=lakefs, spark=spark)}
    with open_instance(dagster_home(os.environ)) as instance:
        wait_until_old(Servers.configured().target(worked_example.REPOSITORY).place.store(), written_at)
        run_mark(partition, {"min_age": "0", "allow_young": True}, instance=instance, resources=resources)
        servers = Servers.configured()
        place = servers.target(worked_example.REPOSITORY).place
        mark = Mark.open(place, MARK_ID)
        review = Review.of(mark, depth=1, price=None)
        commits = all_rows(place, mark.dataset("retained_commits"), COMMIT_VERDICTS)
        expired = all_rows(place, mark.dataset("expired_set"), EXPIRED_OBJECTS)
        retained_locations = [
            (row["commit_id"], path) for row in commits if row["retained"] for path in paths_at(servers, row)
        ]
        expired_locations = [(row["commit_id"], row["path"]) for row in expired]
        content_before = {
            location: read_path(servers, *location) for location in retained_locations + expired_locations
        }
        run_backup(partition, {"to": backup_to}, instance=instance, resources=resources)
        approve(servers)
        run_sweep(partition, {}, instance=instance, resources=resources)
        status("verifying retained files")
        content_after = {location: read_path(servers, *location) for location in content_before}
    status("restoring everything from the backup")
    with restore_run(partition, backup_to, CopyLimits(), with_lease=True, spark=spark) as restoring:
        restore(restoring, Selection())
        backup = restoring.backup
    report = read_report(place, MARK_ID)
    assert report is not None
    return DemoResult(
        example,
        mark.record,
        sandbox.root,
        store,
        f"{place.store().where}/{asset_folder(MARK_ID, 'expired_set')}",
        commits,
        expired,
        review,
        backup,
        backup_to,
        report,
        kept=sum(content_after[location] == content_before[location] is not None for location in retained_locations),
        lost=sum(
            content_after[location] != content_before[location] or content_before[location] is None
            for location in retained_locations
        ),
        gone=sum(content_after[location] is None for location in expired_locations),
        restored=sum(
            read_path(servers, *location) == content_before[location] is not None for location in expired_locations
        ),
    )


def approve(servers: Servers) -> None:
    """Approve the mark, as `lakegc approve` does after a review."""
    target = servers.target(worked_example.REPOSITORY)
    now = target.place.store().now()
    proposal = propose(target, MARK_ID, now=now)
    request = ApprovalRequest(who=APPROVER, how="lakegc demo", when=now, digest=proposal.digest)
    limits = BrakeLimits.of(servers.settings(worked_example.REPOSITORY))
    approval.approve(proposal, request, servers.lakefs, limits, now=now, single_deployment=False)


def paths_at(servers: Servers, commit: dict[str, Any]) -> list[str]:
    return [
        listed.path for listed in servers.lakefs.list_objects(worked_example.REPOSITORY, commit["commit_id"]).objects
    ]


def read_path(servers: Servers, ref: str, path: str) -> bytes | None:
    """Read a path with lakeFS's own SDK, as any reader would. Returns None for 410 Gone."""
    from lakefs_sdk.api.objects_api import ObjectsApi
    from lakefs_sdk.api_client import ApiClient
    from lakefs_sdk.configuration import Configuration
    from lakefs_sdk.exceptions import ApiException

    settings = servers.lakefs.settings
    client: Any = ApiClient(
        Configuration(
            host=f"{settings.endpoint_url}/api/v1", username=settings.access_key_id, password=settings.secret_access_key
        )
    )
    try:
        return bytes(ObjectsApi(client).get_object(worked_example.REPOSITORY, ref, path))
    except ApiException as error:
        if error.status == HTTP_GONE:
            return None
        raise


def show(result: DemoResult) -> None:
    """Print the verdicts, the expired objects, the mark's location, and the next commands."""
    example = result.example
    print_sentence(
        "The worked example from lakeFS's documentation: main is retained for 21 days, dev for 7. Dates are shown as "
        "documented, as if the mark had been made on 2022-03-31. In the sandbox, all dates are shifted so that that "
        "day is today.\n"
    )
    commits = Table()
    for heading in ("date", "commit", "verdict", "why", "until"):
        commits.add_column(heading, no_wrap=heading in ("date", "verdict", "until"))
    for row in sorted(result.commits, key=lambda row: row["created"]):
        until = example.documented_day(row["until"]) if row["until"] else ""
        verdict = "[green]retained[/]" if row["retained"] else "[red]expired[/]"
        commits.add_row(example.documented_day(row["created"]), row["message"], verdict, verdict_reason(row), until)
    print_table("Commits", commits)
    objects = Table()
    for heading in ("path when written", "size", "age", "address"):
        objects.add_column(heading, overflow="fold")
    for row in sorted(result.expired, key=lambda row: row["modified"]):
        path = example.paths.get(row["address"], "")
        objects.add_row(path, size(row["size"]), age(result.record.start - row["modified"]), row["address"])
    print_table("Expired objects", objects)
    show_totals(result.review.totals, "reason")
    counts, report = result.record.counts, result.report
    store_option = ["--store", result.store] if result.store else []
    expired = len(result.expired)
    print_sentence(
        f"{counts['expired']} of {counts['candidates']} objects are expired ({size(counts['expired_bytes'])}). "
        f"The mark is in {result.mark_folder}"
    )
    print_sentence(f"Backed up {result.backup.copied} of {result.backup.marked} objects to {result.backup_to}")
    swept = ", ".join(f"{count} {name}" for name, count in sorted(report.objects.items()))
    print_sentence(f"Approved by {APPROVER}, re-verified and swept: {swept}, out of {report.approved} approved.")
    print_sentence(
        f"Read back: {result.kept} files of retained commits are intact, byte for byte, and {result.lost} are not; "
        f"{result.gone} of {expired} expired objects return 410 Gone."
    )
    print_sentence(
        f"Restored from the backup: {result.restored} of {expired} objects are readable again, byte for byte.\n"
    )
    print_command("To explore this sandbox", command("sandbox", "up", "--folder", str(result.sandbox), *store_option))
    print_sentence("Then, in another terminal, export the settings that this command prints, and run:")
    for following in (
        command("review", worked_example.REPOSITORY, MARK_ID, "--list"),
        command("report", worked_example.REPOSITORY, MARK_ID),
        command("explain", worked_example.REPOSITORY, "main/added-03-12.txt"),
        command("status"),
        command("mark", worked_example.REPOSITORY),
    ):
        print_text(f"  {following}")


def verdict_reason(verdict: dict[str, Any]) -> str:
    """The reason for a verdict in a few words."""
    branch, days = verdict["branch"], verdict["days"]
    if verdict["reason"] == Reason.HEAD.value:
        return f"head of {branch}"
    if days is None:
        return str(verdict["reason"])
    start = "its own date" if branch is None else "its child's date"
    return f"{branch or 'dangling'}: {days} days after {start}"
