"""Print the report of a sweep. Without Dagster, so that `lakegc report` starts fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from lakegc_assets.cli.console import (
    escaped_name,
    outcomes_table,
    print_command,
    print_sentence,
    print_table,
    printing,
    size,
)
from lakegc_assets.cli.invocation import command
from lakegc_assets.formatting import plural, was_or_were
from lakegc_assets.rules.brakes import sentence_about
from lakegc_assets.sweep.quarantine import Quarantine
from lakegc_assets.sweep.report import Report
from spark_resources.model import Outcome
from spark_resources.stores.failure_codes import TRANSIENT_CODES
from spark_resources.stores.permissions import MISSING_PERMISSIONS

REMEDIES = {
    **dict.fromkeys(TRANSIENT_CODES, "The store was busy or unreachable. Try again later, or with a lower --rate."),
    "NotInBackup": "Back the mark up again, then sweep again.",
}
"""The remedy for a failure, by the code in its receipt. `why_failed` handles missing permissions and other codes."""
LATE_SHOWN = 20


@printing()
def show_report(
    report: Report, *, as_json: bool, quarantine: Quarantine | None = None, rate: float | None = None
) -> None:
    """Print a report. `quarantine` is the current state of its quarantined objects; None right after the sweep, which
    had this `rate` if it was limited."""
    if as_json:
        sys.stdout.write(report.to_json().decode() + "\n")
        return
    approved = ("approved", report.approved, sum(report.sizes.values()))
    in_quarantine_now = (quarantine or Quarantine.of(report, {})).left
    title = f"Sweep of mark {report.mark_id} of {report.repository}"
    print_table(title, outcomes_table(Outcome, report.objects, report.sizes, approved))
    for sentence in summary_sentences(report, in_quarantine_now):
        print_sentence(sentence)
    for repository, why in sorted(report.unread.items()):
        print_sentence(f"As accepted in the approval, {sentence_about(repository)}: {why}")
    for sentence in why_failed(report):
        print_sentence(sentence)
    for what, line in next_commands(report, in_quarantine_now, rate):
        print_command(what, line)
    if quarantine is None:
        report_command = command("report", report.repository, report.mark_id)
        print_command("Show this report again, with what was rescued and why", report_command)


def summary_sentences(report: Report, in_quarantine: int) -> Iterator[str]:
    """Sentences on duration, freed space, objects in quarantine, and objects that became live too late."""
    deleted, quarantined = (report.objects.get(outcome.value, 0) for outcome in (Outcome.DELETED, Outcome.QUARANTINED))
    if removed := report.known_taken:
        how = "Quarantining" if report.quarantine else "Deleting"
        rate = f"{removed / report.seconds:,.0f} objects/s, " if report.seconds >= 1 else ""
        yield f"{how} took {report.seconds:,.1f} s: {rate}{plural(report.requests, 'request')}."
    if removed is not None and (earlier := max(0, deleted + quarantined - removed)):
        yield f"{plural(earlier, 'object')} {was_or_were(earlier)} handled by earlier runs."
    if verifications := len(report.verifications) + bool(deleted + quarantined):
        yield f"Re-verified {plural(verifications, 'time')}."
    if in_quarantine:
        amount = f" ({size(report.sizes.get(Outcome.QUARANTINED.value, 0))})" if in_quarantine == quarantined else ""
        yield f"{plural(in_quarantine, 'object')}{amount} in quarantine: purging the quarantine frees the space."
    if deleted:
        yield f"Space: {report.deleting}."
    if report.late_objects:
        yield (
            f"{plural(report.late_objects, 'object')} became live while being deleted, and "
            f"{'is' if report.late_objects == 1 else 'are'} now missing for readers:"
        )
        yield from (f"  {escaped_name(address)}" for address in report.late[:LATE_SHOWN])
        if report.late_objects > LATE_SHOWN:
            yield f"  … and {report.late_objects - LATE_SHOWN:,} more, in the report"


def why_failed(report: Report) -> Iterator[str]:
    """The most frequent reasons why objects could not be deleted, each with an example and a remedy."""
    for refusal in report.refusals:
        why = ": ".join(filter(None, (refusal["code"], refusal["why"]))).rstrip(".") or "the store gave no reason"
        remedy = (
            "Grant the permission to delete these objects."
            if refusal["code"] in MISSING_PERMISSIONS
            else REMEDIES.get(refusal["code"], "Inspect that object in the store, then try again.")
        )
        count = plural(refusal["objects"], "object")
        yield f"{count} could not be deleted, for example {refusal['example']!r} ({why}). {remedy}"


def next_commands(report: Report, in_quarantine: int, rate: float | None) -> Iterator[tuple[str, str]]:
    """The commands that may follow a sweep, as pairs of purpose and command line."""
    repository_and_mark = (report.repository, report.mark_id)
    if report.objects.get(Outcome.FAILED.value):
        options = ["--quarantine"] if report.quarantine else []
        options += [] if rate is None else ["--rate", f"{rate:.10g}"]
        yield "Retry the failed objects", command("sweep", *repository_and_mark, *options)
    if in_quarantine:
        yield "Restore the quarantined objects", command("undo", *repository_and_mark)
        yield "Delete the quarantined objects permanently", command("purge", *repository_and_mark)
