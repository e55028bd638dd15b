"""`lakegc review`: show what a mark would delete, streamed from its files without Spark and with little memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from lakegc_assets.approval.mark_states import state_of
from lakegc_assets.approval.parse_request import release_options
from lakegc_assets.approval.preconditions import changes_since
from lakegc_assets.cli import brakes_table as brakes
from lakegc_assets.cli import diff
from lakegc_assets.cli.console import age, cell, print_command, print_sentence, print_table, printing, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import (
    Servers,
    announcement_in_words,
    command_to_repeat,
    expired_tables,
    open_mark_in,
    show_late_uploads,
)
from lakegc_assets.cli.object_list import as_json, list_rows
from lakegc_assets.cli.tables import show_totals, totals_document
from lakegc_assets.formatting import fraction, money, monthly_cost, plural, rules_in_words
from lakegc_assets.mark import dot_segments
from lakegc_assets.mark.changed_rules import changed_rules
from lakegc_assets.mark.context import Target
from lakegc_assets.mark.sample_objects import Commit, commits_of, samples_by_kind
from lakegc_assets.mark.totals import Totals, count_totals
from lakegc_assets.rules.brakes import Brake
from lakegc_assets.sweep.history import known_history, sweeps_since_in_words
from spark_resources.errors import LakegcError, capitalized, full_stop
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.approval import ApprovalStatus
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord, refuse_earlier_format
from spark_resources.model import ExpiredReason, MarkState

KINDS = ("reason", "age", "prefix", "slice")
ROWS_SHOWN = {"largest": 5, "newest": 5, "sample": 10}
TITLES = {"largest": "Largest objects", "newest": "Newest objects", "sample": "Random sample"}
MAX_MESSAGE_LENGTH = 50  # maximum number of characters shown of a commit's message
NEVER_COMMITTED = (
    "Objects that no commit and no staged change refers to were overwritten, deleted or reset while staged, or "
    "uploaded and never linked. A mark can't distinguish these cases."
)


NEXT_COMMANDS = {
    MarkState.MARKED.value: "approve",
    ApprovalStatus.EXPIRED.value: "approve",
    ApprovalStatus.INCOMPLETE.value: "approve",
    MarkState.APPROVED.value: "sweep",
}
"""The command that follows a review, by the mark's state."""


@dataclass(frozen=True, slots=True)
class ChangesSince:
    """How the rules, holds and servers have changed since a mark was made, as sentences. `unknown` is the reason if
    they couldn't be compared."""

    changes: tuple[str, ...] = ()
    unknown: str | None = None

    @classmethod
    def of(cls, record: MarkRecord, target: Target, lakefs: LakeFS) -> ChangesSince:
        """Reads the rules from the server and the holds from the namespace, unless the mark was swept."""
        if record.state not in (MarkState.MARKED, MarkState.APPROVED):
            return cls()
        changes: list[str] = []
        try:
            changes.extend(full_stop(capitalized(found.change)) for found in changes_since(record, target, lakefs))
        except LakegcError as error:
            return cls(tuple(changes), unknown=str(error))
        return cls(tuple(changes))


@dataclass(frozen=True, slots=True)
class Review:
    """The content of a review. `changed` is None for the first mark of a repository and scope, and if earlier marks
    can't be read. In the second case, `why_incomparable` is the reason; otherwise it is None. `rules_changed` is a
    sentence if the retention rules differ from those of the previous mark."""

    record: MarkRecord
    state: str
    """The mark's state; `approved` only while its approval is valid."""
    totals: Totals
    samples: Mapping[str, list[dict[str, Any]]]
    commits: Mapping[str, Commit]
    brakes: tuple[Brake, ...]
    price: float | None
    previous: MarkRecord | None
    changed: diff.Difference | None
    why_incomparable: str | None
    rules_changed: str | None
    announced: str | None
    """The announced approval of the mark by a policy, as a sentence; None if there is none."""
    swept_since: str | None
    """Why the counts may be too high, as sentences; None if no other mark was swept since this one began."""
    changes_since: ChangesSince

    @classmethod
    def of(cls, mark: Mark, *, depth: int, price: float | None, changes_since: ChangesSince = ChangesSince()) -> Review:
        totals = Totals()
        for table in expired_tables(mark):
            totals.add(count_totals(table, start=mark.record.start, depth=depth))
        samples = samples_by_kind(mark)
        commits = commits_of(mark, [row for rows in samples.values() for row in rows])
        now = mark.place.store().now()
        all_brakes = brakes.configured_brakes(mark.record, now=now)
        changes = (*since_previous(mark), changed_rules(mark))
        announced = announcement_in_words(mark.place, mark.record)
        swept_since = sweeps_since_in_words(known_history(mark.place), mark.record)
        state = state_of(mark.place, mark.record, now=now)
        return cls(
            mark.record, state, totals, samples, commits, all_brakes, price, *changes, announced, swept_since,
            changes_since,
        )  # fmt: skip

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.record.steps["expired_set"].facts

    @property
    def share_of_objects(self) -> float:
        return fraction(self.totals.whole.objects, self.facts["candidates"])

    @property
    def share_of_bytes(self) -> float:
        return fraction(self.totals.whole.bytes, self.facts["candidate_bytes"])

    @property
    def monthly_savings(self) -> float | None:
        return None if self.price is None else monthly_cost(self.totals.whole.bytes, self.price)

    @property
    def by_hold(self) -> Mapping[str, Mapping[str, int]]:
        """The objects and bytes that each hold keeps; an object under two holds counts for both."""
        kept_by_hold: Mapping[str, Mapping[str, int]] = self.facts.get("on_hold", {})
        return kept_by_hold


def since_previous(mark: Mark) -> tuple[MarkRecord | None, diff.Difference | None, str | None]:
    """The previous mark, the changes since then, and the reason if the two marks can't be compared."""
    previous_id = (mark.record.previous or {}).get("mark_id")
    if previous_id is None:
        unreadable = (mark.record.previous or {}).get("unreadable", ())
        return None, None, f"earlier marks can't be read: {', '.join(unreadable)}" if unreadable else None
    try:
        previous = Mark.open(mark.place, previous_id)
        return previous.record, diff.difference(previous, mark), None
    except LakegcError as error:
        return None, None, f"the previous mark, {previous_id}, can't be compared with this one: {error}"


@printing()
def show(repository: str, mark_id: str, *, list_all: bool, output_format: str, depth: int = 1) -> None:
    from lakegc_assets.cli import review_foreign

    if (foreign := review_foreign.find_foreign_mark(repository, mark_id)) is not None:
        review_foreign.show(foreign, list_all=list_all, output_format=output_format)
        return
    servers = Servers.configured()
    target = servers.target(repository)
    mark = open_mark_in(target.place, repository, mark_id)
    refuse_earlier_format(mark.record, "reviewed")
    if list_all:
        list_rows(expired_tables(mark), mark.record.start, output_format)
        return
    price = servers.settings(repository).price_per_gb_month
    changes = ChangesSince.of(mark.record, target, servers.lakefs)
    review = Review.of(mark, depth=depth, price=price, changes_since=changes)
    if output_format == "table":
        show_review(review)
    else:
        print_text(json.dumps(document(review), indent=1))


# --- for people -----------------------------------------------------------------------------------------------------


def show_review(review: Review) -> None:
    record = review.record
    for sentence in overview(review):
        print_sentence(sentence)
    show_sweep(record)
    for sentence in changes_in_words(review):
        print_sentence(sentence)
    if review.swept_since is not None:
        print_sentence(review.swept_since)
    if review.announced is not None:
        print_sentence(review.announced)
        print_command("To withdraw the announcement", command("revoke", record.repository, record.mark_id))
    if review.totals.whole.objects:
        show_totals(review.totals, "reason")
        for sentence in notes_on_reasons(review):
            print_sentence(sentence)
        for kind in KINDS[1:]:
            show_totals(review.totals, kind)
        for kind in ROWS_SHOWN:
            show_objects(review, kind)
    show_late_uploads(record)
    for sentence in dot_segments.sentences(review.facts):
        print_sentence(f"{sentence}.")
    show_objects_on_hold(review)
    brakes.show(review.brakes)
    show_change(review)
    if review.totals.whole.objects:
        print_command("List every object", command("review", record.repository, record.mark_id, "--list"))
        next_name = NEXT_COMMANDS.get(review.state)
        if next_name == "approve" and review.changes_since.changes:
            print_command("Next, make a new mark", command_to_repeat(record))
        elif next_name is not None:
            tripped = [brake.name for brake in review.brakes if brake.tripped and next_name == "approve"]
            next_command = command(next_name, record.repository, record.mark_id, *release_options(tripped))
            print_command("Next", next_command)
    else:
        again = command_to_repeat(record)
        print_command("There is nothing to approve. To mark again after further changes", again)


def listing_in_words(record: MarkRecord) -> str:
    return "Listed" if record.inventory is None else f"From the inventory {record.inventory['where']}, taken"


def overview(review: Review) -> list[str]:
    record, facts, total = review.record, review.facts, review.totals.whole
    mark = f"Mark {record.mark_id} of {record.repository}, {review.state}, scope {record.scope}"
    origin = (
        f"{listing_in_words(record)} {record.start:%Y-%m-%d %H:%M:%S} UTC. Objects modified after "
        f"{record.cutoff:%Y-%m-%d %H:%M:%S} are kept. "
        f"Retention rules: {rules_in_words(record.rules)}. Holds: {diff.holds_in_words(record)}."
    )
    if record.is_incremental:
        origin += f" It is incremental, based on mark {record.basis['chain'][0]}."
    details = [origin, *([review.rules_changed] if review.rules_changed else []), f"Digest: {record.digest}"]
    if not total.objects:
        return [f"{mark}: none of {plural(facts['candidates'], 'object')} is expired.", *details]
    amount = (
        f"{total.objects:,} of {plural(facts['candidates'], 'object')} ({100 * review.share_of_objects:.1f}%) "
        f"{'is' if total.objects == 1 else 'are'} expired, {size(total.bytes)} of {size(facts['candidate_bytes'])} "
        f"({100 * review.share_of_bytes:.1f}%)"
    )
    return [f"{mark}: {amount}.", cost_sentence(review), *details]


def changes_in_words(review: Review) -> Iterator[str]:
    """How rules, holds and servers have changed since the mark was made, and what that means for it."""
    since = review.changes_since
    yield from since.changes
    if since.changes and review.state == MarkState.APPROVED.value:
        yield "Its sweep uses what is set now: it may keep some of these objects, and deletes no others."
    elif since.changes:
        yield "Therefore this mark can't be approved any more."
    if since.unknown is not None:
        yield f"Whether rules or holds have changed since the mark was made is unknown: {full_stop(since.unknown)}"


def show_sweep(record: MarkRecord) -> None:
    """If the sweep of this mark has started or ended, print that and the next command."""
    repository_and_mark = (record.repository, record.mark_id)
    if record.state is MarkState.SWEEPING:
        quarantine = ["--quarantine"] if record.quarantine else []
        print_sentence("The sweep of this mark is running or was interrupted.")
        print_command("If it was interrupted, resume it with", command("sweep", *repository_and_mark, *quarantine))
    elif record.state in (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES):
        print_sentence("This mark was swept. The set that was approved follows.")
        print_command("Show the outcome of each object", command("report", *repository_and_mark))


def cost_sentence(review: Review) -> str:
    if review.monthly_savings is None:
        return (
            "To see what the expired objects cost, set a price per GB per month, for example --set "
            "price_per_gb_month=0.023 (about the price of S3 Standard, in US dollars)."
        )
    return f"The expired objects cost {money(review.monthly_savings)} a month, at {review.price:g} a GB."


def notes_on_reasons(review: Review) -> list[str]:
    """Notes on reasons that are unknown or ambiguous, and on path probes without a clear result."""
    reasons = {label.name for label in review.totals.by["reason"]}
    notes = [NEVER_COMMITTED] if ExpiredReason.NEVER_COMMITTED.value in reasons else []
    if "unexplained" in review.facts:
        notes.append(
            "Some objects may be shown without their commit, because some expired commits could not be read: "
            f"{full_stop(review.facts['unexplained'])}"
        )
    elif ExpiredReason.UNKNOWN.value in reasons:
        notes.append(
            "The commit graph could not be read, so it isn't known whether expired commits refer to these objects."
        )
    return [*notes, *(f"{why}." for why in review.facts.get("unclear", []))]


def show_objects(review: Review, kind: str) -> None:
    rows = review.samples[kind]
    table = Table()
    for heading in ("size", "age"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("address", "path in lakeFS", "last commit"):
        table.add_column(heading, overflow="fold")
    for row in rows[: ROWS_SHOWN[kind]]:
        object_age = age(review.record.start - row["modified"])
        path = row["path"] if row["path"] is not None else ""
        table.add_row(size(row["size"]), object_age, cell(row["address"]), cell(path), cell(last_commit(review, row)))
    print_table(TITLES[kind], table)


def last_commit(review: Review, row: Mapping[str, Any]) -> str:
    if row["commit_id"] is None:
        return "none" if row["reason"] == ExpiredReason.NEVER_COMMITTED.value else "not known"
    commit = review.commits.get(row["commit_id"])
    if commit is None or commit.created is None:
        return str(row["commit_id"])[:12]
    message = commit.message or ""
    shown = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[: MAX_MESSAGE_LENGTH - 1]}…"
    return f"{commit.commit_id[:12]} {commit.created:%Y-%m-%d} {shown}"


def show_objects_on_hold(review: Review) -> None:
    if not review.by_hold:
        return
    table = Table()
    for heading in ("hold", "objects", "bytes"):
        table.add_column(heading, justify="left" if heading == "hold" else "right")
    for hold, totals in sorted(review.by_hold.items()):
        table.add_row(cell(hold), f"{totals['objects']:,}", size(totals["bytes"]))
    print_table("Kept by holds alone", table)


def show_change(review: Review) -> None:
    if review.changed is not None and review.previous is not None:
        diff.show_difference(review.previous, review.record, review.changed)
        return
    if review.why_incomparable:
        print_sentence(f"The changes since the previous mark are unknown: {full_stop(review.why_incomparable)}")
    else:
        print_sentence(
            "This is the first mark of the repository in this scope, so there is nothing to compare it with."
        )


# --- for scripts ----------------------------------------------------------------------------------------------------


def document(review: Review) -> dict[str, Any]:
    record, facts = review.record, review.facts
    changes = None
    if review.changed is not None and review.previous is not None:
        changes = diff.document(review.previous, record, review.changed)
    return {
        "repository": record.repository,
        "mark_id": record.mark_id,
        "state": review.state,
        "scope": record.scope.value,
        "start": record.start.isoformat(),
        "cutoff": record.cutoff.isoformat(),
        "finished": as_json(record.finished),
        "digest": record.digest,
        "rules": rules_in_words(record.rules),
        "rules_changed": review.rules_changed,
        "holds": list(record.holds.get("ids", ())),
        "basis": dict(record.basis),
        "candidates": facts["candidates"],
        "candidate_bytes": facts["candidate_bytes"],
        "share_of_objects": review.share_of_objects,
        "share_of_bytes": review.share_of_bytes,
        "price_per_gb_month": review.price,
        "monthly_savings": review.monthly_savings,
        **totals_document(review.totals, KINDS),
        **{kind: [sample_row(review, row) for row in rows] for kind, rows in review.samples.items()},
        "sample_seed": record.mark_id,
        "unexplained": facts.get("unexplained"),
        "unclear": facts.get("unclear", []),
        "dot_segments": dot_segments.document(facts),
        "held": {hold: dict(totals) for hold, totals in sorted(review.by_hold.items())},
        "brakes": brakes.document(review.brakes),
        "changed": changes,
        "incomparable": review.why_incomparable,
        "announced": review.announced,
        "swept_since": review.swept_since,
        "changes_since": list(review.changes_since.changes),
        "changes_unknown": review.changes_since.unknown,
    }


def sample_row(review: Review, row: Mapping[str, Any]) -> dict[str, Any]:
    commit = review.commits.get(row["commit_id"])
    fields = {name: as_json(value) for name, value in row.items()}
    commit_fields = {"commit_date": as_json(commit.created), "commit_message": commit.message} if commit else {}
    return {**fields, "commit_date": None, "commit_message": None, **commit_fields}
