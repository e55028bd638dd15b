"""Marks on the terminal: make one, and open one for other commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
from rich.table import Table

from lakegc_assets.approval.mark_states import pending_announcement
from lakegc_assets.cli import brakes_table
from lakegc_assets.cli.console import (
    cell,
    print_command,
    print_sentence,
    print_table,
    printing,
    size,
)
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.formatting import duration, plural
from lakegc_assets.mark import dot_segments
from lakegc_assets.mark.context import Target, find_target
from lakegc_assets.mark.options import arguments_to_repeat
from lakegc_assets.rules.incremental import late_uploads
from spark_resources.errors import DamagedData, NotFound, WrongUsage, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.mark_store.foreign_layouts import reference_marks
from spark_resources.mark_store.mark import Mark, asset_folder, marks
from spark_resources.mark_store.record import MarkRecord, newest_finished, refuse_retired
from spark_resources.model import EXPIRED_OBJECTS, Partition
from spark_resources.settings import Settings
from spark_resources.spark.datasets import file_batches
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class Servers:
    """The configured lakeFS servers, with the settings for each of their repositories."""

    lakefs: LakeFS

    @classmethod
    def configured(cls) -> Servers:
        return cls(LakeFS(*LakeFSSettings.of(Settings.load(os.environ, home_folder()))))

    def settings(self, repository: str) -> Settings:
        return Settings.load(os.environ, home_folder(), repository=repository)

    def store_settings(self, repository: str) -> StoreSettings:
        return self.settings(repository).store_settings()

    def target(self, repository: str) -> Target:
        return find_target(self.lakefs, repository, self.settings(repository))


# --- making a mark --------------------------------------------------------------------------------------------------


def refuse_mark_early(partition: Partition, options: Mapping[str, Any]) -> None:
    """Refuse a mark before its partition or run is created: if its id is already used by a lakegc or foreign mark, or
    its base mark is missing or unfinished. Reads only small records."""
    target = Servers.configured().target(partition.repository)
    refuse_used_id(target, partition)
    since = options["since"]
    if since and (not Mark.exists(target.place, since) or Mark.open(target.place, since).record.finished is None):
        raise NotFound(
            f"there is no finished mark {since} of {partition.repository} to base an incremental mark on. To list "
            f"the marks: {command('status', partition.repository)}"
        )
    if since:
        refuse_retired(Mark.open(target.place, since).record)


def refuse_used_id(target: Target, partition: Partition) -> None:
    foreign = {mark.mark_id for mark in reference_marks(target.place, own_ids=frozenset())}
    if partition.mark_id in foreign or Mark.exists(target.place, partition.mark_id):
        raise WrongUsage(
            f"mark id {partition.mark_id} is in use in {partition.repository}. Choose another id, or leave out "
            "--mark-id to use the current time. An unfinished mark can be resumed in the Dagster UI."
        )


def make_mark(partition: Partition, options: Mapping[str, Any]) -> MarkRecord:
    """Run the job `mark` and return the finished mark's record."""
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance, run_mark

    with open_instance(dagster_home(os.environ)) as instance:
        run_mark(partition, options, instance=instance)
    return Mark.open(Servers.configured().target(partition.repository).place, partition.mark_id).record


def basis_in_words(record: MarkRecord) -> str:
    """Whether a mark is full (and why) or incremental (and how many objects it compared)."""
    if record.is_incremental:
        compared = record.steps["expired_set"].facts["compared"]
        return f"incremental since mark {record.basis['chain'][0]}; {plural(compared, 'object')} compared"
    missed = record.steps["expired_set"].facts.get("missed")
    missed_text = "" if missed is None else f"; the incremental marks before it missed {plural(missed, 'object')}"
    return f"full ({record.basis['why']}){missed_text}" if record.basis["why"] else f"full{missed_text}"


@printing()
def show_mark(record: MarkRecord, *, as_json: bool) -> None:
    all_brakes = brakes_table.configured_brakes(record, now=record.finished or record.start)
    if as_json:
        print_text(json.dumps(summary(record) | {"brakes": brakes_table.document(all_brakes)}, indent=1))
        return
    commits, ranges, facts = (
        record.steps[name].facts for name in ("retained_commits", "committed_addresses", "expired_set")
    )
    retained = plural(commits["retained"], "retained commit")
    others = (
        ("on hold", facts.get("objects_on_hold", 0)),
        ("needed by other repositories", facts.get("kept_for_other_repositories", 0)),
    )
    table = Table(show_header=False)
    rows = (
        ("mark", basis_in_words(record)),
        ("stored", f"{plural(facts['candidates'], 'object')}, {size(facts['candidate_bytes'])}"),
        ("younger than the cutoff", f"{facts['young']:,} (modified after {record.cutoff:%Y-%m-%d %H:%M:%S} UTC)"),
        (
            "live, committed",
            f"{facts['committed']:,} in {plural(ranges['ranges'], 'range')} of {retained}",
        ),
        ("live, uncommitted", f"{facts['uncommitted']:,}"),
        (
            "kept: live after all, or unclear",
            f"{facts['kept_by_probes']:,} ({plural(facts['probes'], 'path')} probed)",
        ),
        *((name, f"{count:,}") for name, count in others if count),
        (
            "expired",
            f"{plural(facts['expired'], 'object')}, {size(facts['expired_bytes'])}" if facts["expired"] else "nothing",
        ),
        ("brakes", brakes_table.in_words(all_brakes)),
    )
    for name, value in rows:
        table.add_row(name, cell(value))
    print_table(f"Mark {record.mark_id} of {record.repository}", table)
    print_sentence(f"Digest: {record.digest}")
    print_sentence(f"Written to: {record.namespace}/{asset_folder(record.mark_id, 'expired_set')}")
    for sentence in (*facts.get("unclear", []), *dot_segments.sentences(facts)):
        print_sentence(f"{sentence}.")
    show_late_uploads(record)
    if facts["young"] and not facts["expired"]:
        print_sentence(
            f"Objects stored less than {duration(record.min_age)} ago are kept, whether or not they are referenced."
        )
        if record.inventory is None:
            young_command = command_to_repeat(record, min_age=timedelta(0))
            print_command("If nothing is being written, as in a sandbox", young_command)
    print_command("Nothing was deleted. Next", command("review", record.repository, record.mark_id))


def show_late_uploads(record: MarkRecord) -> None:
    """After an incremental mark, print which uploads only a full mark can find, and the command for a full mark."""
    if sentence := late_uploads(record):
        print_sentence(sentence)
        print_command("To make a full mark now", command_to_repeat(record, "--full"))


def command_to_repeat(record: MarkRecord, *options: str, min_age: timedelta | None = None) -> str:
    """The command for a new mark with the options of this one, plus these."""
    settings = Servers.configured().settings(record.repository)
    configured = (settings.mark_scope, settings.min_age)
    repeated = arguments_to_repeat(record, min_age=min_age, configured=configured)
    return command("mark", record.repository, *options, *repeated)


def command_for_next_mark(place: Place, repository: str) -> str:
    """The command for a new mark, with the options of the newest finished one, if there is one."""
    newest = newest_finished(marks(place))
    return command("mark", repository) if newest is None else command_to_repeat(newest)


def summary(record: MarkRecord) -> dict[str, Any]:
    """A mark as one JSON document: its record without the lists of files."""
    document: dict[str, Any] = json.loads(record.to_json())
    for step in document["steps"].values():
        step.pop("datasets")
    return document


def announcement_in_words(place: Place, record: MarkRecord) -> str | None:
    """The announced approval of a mark by a policy, as a sentence; None if there is none."""
    try:
        announcement = pending_announcement(place, record)
    except DamagedData as error:
        return str(error)
    if announcement is None:
        return None
    return (
        f"Announced on {announcement.announced:%Y-%m-%d %H:%M} UTC: a policy will approve mark {record.mark_id} of "
        f"{record.repository} on {announcement.due:%Y-%m-%d %H:%M} UTC at the earliest, if the mark still qualifies "
        f"and is still the newest one. The policy: {announcement.policy}."
    )


# --- opening a mark -------------------------------------------------------------------------------------------------


def resolve_mark_id(place: Place, repository: str, mark_id: str) -> str:
    """A mark's id; 'latest' stands for lakegc's newest finished mark. Raises `NotFound` if there is none."""
    if mark_id != "latest":
        return mark_id
    newest = newest_finished(marks(place))
    if newest is None:
        raise NotFound(f"{repository} has no finished mark. To make one: {command('mark', repository)}")
    return newest.mark_id


def open_mark(repository: str, mark_id: str) -> Mark:
    """One of lakegc's finished marks; 'latest' is the newest one. Raises `NotFound` if there is no such mark,
    `WrongUsage` if it isn't finished, `Retired` if it was retired."""
    return open_mark_in(Servers.configured().target(repository).place, repository, mark_id)


def open_mark_in(place: Place, repository: str, mark_id: str) -> Mark:
    """Like `open_mark`, for the namespace of the repository."""
    mark = Mark.open(place, resolve_mark_id(place, repository, mark_id))
    refuse_retired(mark.record)
    if mark.record.finished is None:
        reason = f": {mark.record.failure}" if mark.record.failure else ""
        problem = full_stop(f"mark {mark_id} of {repository} is not finished ({mark.record.state}){reason}")
        raise WrongUsage(f"{problem} To list the marks: {command('status', repository)}")
    return mark


def expired_tables(mark: Mark) -> Iterator[pa.Table]:
    """The expired set, table by table. Each file is verified, and only part of one file is in memory at a time."""
    dataset = mark.dataset("expired_set")
    for file in dataset.files:
        yield from file_batches(mark.place, dataset.folder, file, EXPIRED_OBJECTS)
