"""`lakegc approve` and `lakegc revoke`: show what would be approved, ask for confirmation, and record the approval."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from lakegc_assets.approval import approve as approval
from lakegc_assets.approval.parse_request import PLACEHOLDER, known_brake, release_options, single_line
from lakegc_assets.approval.preconditions import BrakeNotTripped, OutdatedMark, StoppedByBrakes
from lakegc_assets.approval.proposals import ApprovalRequest, Proposal, propose
from lakegc_assets.cli import brakes_table
from lakegc_assets.cli.console import cell, print_command, print_sentence, print_table, printing, read_answer, size
from lakegc_assets.cli.escaping import print_log, print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers, command_to_repeat, resolve_mark_id
from lakegc_assets.cli.rules_files import refuse_what_if_result
from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import user_and_machine, with_probed_capabilities
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.sweep.history import known_history, sweeps_since_in_words
from spark_resources.errors import LakegcError, WrongUsage, full_stop
from spark_resources.mark_store.approval import Approval
from spark_resources.model import Partition
from spark_resources.settings import parse_duration

APPROVE_COMMAND = "lakegc approve"
CONFIRMATION = "approve"
REFERENCE_WARNING = (
    "--for-reference makes this mark available to the reference collector: anyone who runs its sweep deletes these "
    "objects, without re-verification, without brakes, and irrecoverably. Until that sweep has ended, do not commit, "
    "branch from, revert to or tag anything that this mark lists as expired."
)


@dataclass(frozen=True, slots=True)
class ApproveOptions:
    """The options of `lakegc approve`, as typed."""

    digest: str | None = None
    yes: bool = False
    releases: Sequence[str] = ()
    reasons: Sequence[str] = ()
    until: str | None = None
    by: str | None = None
    for_reference: bool = False


def approve(repository: str, mark_id: str, options: ApproveOptions, *, as_json: bool) -> tuple[Proposal, Approval]:
    """Show a mark, ask for confirmation unless `--yes` is set, and record its approval. Returns the proposal and the
    approval. If the request is refused, no approval is written."""
    refuse_what_if_result(repository, mark_id)
    released = released_brakes(options.releases, options.reasons)
    if options.yes and options.digest is None:
        raise WrongUsage(
            "--yes requires --digest, the digest of the set that was reviewed. To see it: "
            f"{command('review', repository, mark_id)}"
        )
    servers = Servers.configured()
    target = with_probed_capabilities(servers.target(repository))
    proposal = propose(target, resolve_mark_id(target.place, repository, mark_id), now=target.place.store().now())
    settings = servers.settings(repository)
    limits, single_deployment = BrakeLimits.of(settings), settings.single_deployment
    try:
        if not options.yes:
            now = proposal.store.now()
            request = request_of(proposal, options, released, now=now)
            approval.check(proposal, request, servers.lakefs, limits, now=now, single_deployment=single_deployment)
            ask_for_confirmation(proposal, options)
        now = proposal.store.now()
        request = request_of(proposal, options, released, now=now)
        granted = approval.approve(
            proposal, request, servers.lakefs, limits, now=now, single_deployment=single_deployment
        )
    except (StoppedByBrakes, BrakeNotTripped) as error:
        corrected = full_command(proposal, options, released, error.tripped)
        reasons = f" (replace each {PLACEHOLDER} with your reason)" if f" {PLACEHOLDER}" in corrected else ""
        raise type(error)(f"{error}\nThe full command{reasons}:\n  {corrected}") from None
    except OutdatedMark as error:
        raise OutdatedMark(error.change, command_to_repeat(proposal.record), invariant=error.invariant) from None
    show_approval(proposal, granted, as_json=as_json)
    return proposal, granted


def request_of(
    proposal: Proposal, options: ApproveOptions, released: Mapping[str, str], *, now: datetime
) -> ApprovalRequest:
    """The approval request with these options. `now` is by the store's clock."""
    return ApprovalRequest(
        who=single_line(options.by, "the name after --by") if options.by is not None else current_user(),
        how=APPROVE_COMMAND,
        when=now,
        released=released,
        until=None if options.until is None else parse_until(options.until, now=now),
        digest=options.digest if options.digest is not None else proposal.digest,
        for_reference=options.for_reference,
    )


def full_command(
    proposal: Proposal, options: ApproveOptions, released: Mapping[str, str], tripped: Sequence[str]
) -> str:
    """The command with the same options, and with one `--release` for each tripped brake and no other."""
    values = {"--until": options.until, "--by": options.by, "--digest": options.digest}
    arguments = [part for name, value in values.items() if value is not None for part in (name, value)]
    flags = {"--yes": options.yes, "--for-reference": options.for_reference}
    arguments += [name for name, is_set in flags.items() if is_set]
    releases = release_options(tripped, released)
    return command("approve", proposal.target.repository.id, mark_name(proposal), *arguments, *releases)


def mark_name(proposal: Proposal) -> str:
    """The mark's name on the command line: its id, or layout/id for a foreign mark."""
    foreign = proposal.foreign
    return proposal.record.mark_id if foreign is None else f"{foreign.layout}/{foreign.mark_id}"


def report_to_dagster(proposal: Proposal, granted: Approval) -> None:
    """Report the approval to Dagster, for its asset graph and for the sensor that reacts to approvals.

    Raises `LakegcError` if Dagster can't record it.
    """
    from lakegc_assets.assets.approval_events import report_approval
    from lakegc_assets.cli.dagster_runs import dagster_home, open_instance

    try:
        opened = open_instance(dagster_home(os.environ))
    except LakegcError as error:
        raise LakegcError(
            "the approval was recorded, but not reported to Dagster, so no sensor will start the sweep. "
            f"{full_stop(error)} Start the sweep with 'lakegc sweep'."
        ) from error
    with opened as instance:
        report_approval(instance, str(Partition.of(proposal.target.repository.id, granted.mark_id)), proposal, granted)


def revoke(repository: str, mark_id: str, *, by: str | None) -> None:
    """Revoke a given or announced approval, and print the command that approves the mark."""
    target = with_probed_capabilities(Servers.configured().target(repository))
    proposal = propose(target, resolve_mark_id(target.place, repository, mark_id), now=target.place.store().now())
    name = single_line(by, "the name after --by") if by is not None else current_user()
    approval.revoke(proposal, who=name, now=proposal.store.now())
    with printing():
        print_sentence(f"{proposal.name} is not approved, and no policy will approve it.")
        print_command("To approve the mark", command("approve", repository, mark_name(proposal)))


# --- input ----------------------------------------------------------------------------------------------------------


def released_brakes(releases: Sequence[str], reasons: Sequence[str]) -> dict[str, str]:
    """The brakes to release, each with its reason. Raises `WrongUsage` unless each is known and has one reason."""
    if len(releases) != len(reasons):
        raise WrongUsage(
            f"--release was given {plural(len(releases), 'time')} and --because {plural(len(reasons), 'time')}. Give "
            "each released brake its own reason: --release BRAKE --because TEXT"
        )
    released: dict[str, str] = {}
    for name, reason in zip(releases, reasons, strict=True):
        if reason.strip() == PLACEHOLDER:
            raise WrongUsage(f"replace {reason} with your reason for releasing the brake '{name}'")
        if name in released:
            raise WrongUsage(f"--release names the brake '{name}' twice: pass it once, with one reason")
        released[known_brake(name)] = single_line(reason, f"the reason for releasing '{name}'")
    return released


def parse_until(text: str, *, now: datetime) -> datetime:
    """Parse the end of an approval: a duration such as 36h, or a date or time in UTC. Raises `WrongUsage` if it is
    neither."""
    try:
        return now + parse_duration(text)
    except (ValueError, OverflowError):
        pass
    try:
        end = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUsage(
            f"--until '{text}': expected a duration, such as 36h, or a date or time in UTC, such as 2026-11-28"
        ) from None
    return end.astimezone(UTC) if end.tzinfo is not None else end.replace(tzinfo=UTC)


def current_user() -> str:
    return user_and_machine().partition(" (")[0]


# --- confirmation and output ----------------------------------------------------------------------------------------


def ask_for_confirmation(proposal: Proposal, options: ApproveOptions) -> None:
    """Show what would be approved, and ask for confirmation. Raises `WrongUsage` if it isn't given, or if standard
    input isn't a terminal."""
    if not sys.stdin.isatty():
        raise WrongUsage("approval needs a terminal to prompt for confirmation. In a script, pass --yes and --digest.")
    show(proposal, options)
    answer = read_answer(f"Type '{CONFIRMATION}' to approve the deletion of these objects, anything else to cancel: ")
    if answer.strip() != CONFIRMATION:
        raise WrongUsage(f"'{answer.strip()}' is not '{CONFIRMATION}': nothing was approved")


def show(proposal: Proposal, options: ApproveOptions) -> None:
    record, counts = proposal.record, proposal.record.counts
    table = Table(show_header=False)
    rows = (
        ("started", f"{record.start:%Y-%m-%d %H:%M:%S} UTC by {record.by}"),
        ("to be deleted", f"{plural(counts['expired'], 'object')}, {size(counts['expired_bytes'])}"),
        ("stored", f"{plural(counts['candidates'], 'object')}, {size(counts['candidate_bytes'])}"),
        ("effect of a delete", proposal.store.delete_effect().value),
        ("brakes to release", ", ".join(options.releases) or "none"),
    )
    for name, value in rows:
        table.add_row(name, cell(value))
    print_table(f"To be approved: {proposal.name}", table)
    print_sentence(f"Digest: {proposal.digest}")
    if swept_since := sweeps_since_in_words(known_history(proposal.target.place), record):
        print_sentence(swept_since)
    brakes_table.show(brakes_table.configured_brakes(record, now=proposal.store.now()))
    print_command(
        "List every object with its reason", command("review", record.repository, mark_name(proposal), "--list")
    )
    if options.for_reference:
        print_sentence(f"Warning: {REFERENCE_WARNING}")


@printing()
def show_approval(proposal: Proposal, granted: Approval, *, as_json: bool) -> None:
    if granted.for_reference:
        print_log(f"warning: {REFERENCE_WARNING}", level="WARNING")
    if as_json:
        print_text(json.dumps(document(proposal, granted), indent=1))
        return
    print_sentence(
        f"{proposal.name} is approved by {granted.who} until {granted.until:%Y-%m-%d %H:%M:%S} UTC. "
        "Nothing was deleted."
    )
    print_command("To revoke the approval", command("revoke", proposal.target.repository.id, mark_name(proposal)))
    print_command("Next", command("sweep", proposal.target.repository.id, granted.mark_id))


def document(proposal: Proposal, granted: Approval) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(granted.to_json())
    return {"repository": proposal.target.repository.id, **fields}
