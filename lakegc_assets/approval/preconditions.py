"""What speaks against a person's word: each raises with a sentence, and writes nothing (invariants 7, 9 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from lakegc_assets.approval.proposals import Proposal, Word, read_if_whole, refuse_used
from lakegc_assets.approval.verify_files import check_files, their_files
from lakegc_assets.formatting import plural
from lakegc_assets.rules.brakes import BrakeLimits, brakes
from spark_resources.errors import NothingToDo, Refused, WrongUsage
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.approval import Approval, Standing
from spark_resources.mark_store.foreign_expired_set import reference_mark
from spark_resources.mark_store.holds import read_holds
from spark_resources.mark_store.mark import own_marks
from spark_resources.mark_store.record import MarkRecord, digest_of
from spark_resources.model import Rules


def refuse_unlocked(proposal: Proposal, *, single_deployment: bool) -> None:
    if not (proposal.store.capabilities.conditional_writes or single_deployment):
        raise Refused(
            f"{proposal.store.where} has no conditional writes, so two people could not be kept apart. If this is the "
            "only lakegc that works on it, set LAKEGC_SINGLE_DEPLOYMENT=true.",
            invariant=11,
        )


def free_to_approve(proposal: Proposal, *, now: datetime) -> Standing:
    """What an earlier approval is worth, if a new one may be given; `Refused` otherwise."""
    refuse_used(proposal)
    found = read_if_whole(proposal)
    earlier = proposal.standing(found, now=now)
    if earlier is Standing.APPROVED and found is not None:
        raise Refused(
            f"{proposal.name} is approved already, by {found.who} until {found.until:%Y-%m-%d %H:%M} UTC. To approve "
            "it otherwise, take that back first: lakegc revoke.",
            invariant=7,
        )
    return earlier


def check_word(proposal: Proposal, word: Word) -> None:
    """Raise `Refused` where a word is older than the mark or than the end of an earlier approval, or means another
    digest.
    """
    finished = proposal.record.finished
    assert finished is not None  # a proposal's mark is
    # a store that tells whole seconds floors them: the mark may have ended within the second that it says
    if word.when < finished + proposal.store.capabilities.time_resolution:
        raise Refused(
            f"{proposal.name} was finished at {finished:%Y-%m-%d %H:%M:%S} UTC by the store's clock, and this approval "
            f"is of {word.when:%Y-%m-%d %H:%M:%S}: whoever gave it can't have seen this set. Look at it, and approve "
            "again.",
            invariant=7,
        )
    earlier = read_if_whole(proposal)
    if earlier is not None and earlier.ended is not None and word.when <= datetime.fromisoformat(earlier.ended["when"]):
        raise Refused(
            f"the approval of {proposal.name} was taken back ({earlier.ended['how']} by {earlier.ended['who']}) after "
            f"this one was given, at {word.when:%Y-%m-%d %H:%M:%S} UTC. Approve again, if it is to count.",
            invariant=7,
        )
    if word.digest is not None and word.digest != proposal.digest:
        raise Refused(
            f"the digest of {proposal.name} is {proposal.digest}, and {word.digest} was approved: that is another set. "
            "Look at this one with lakegc review.",
            invariant=7,
        )


def check_newer(proposal: Proposal, word: Word, earlier: Standing) -> None:
    """Raise `Refused` where a word is no newer than the end of an approval that has expired: it would outlive it."""
    found = read_if_whole(proposal)
    if earlier is Standing.EXPIRED and found is not None and word.when < found.until:
        raise Refused(
            f"the approval of {proposal.name} by {found.who} ended at {found.until:%Y-%m-%d %H:%M:%S} UTC, and this "
            f"one was given before that, at {word.when:%Y-%m-%d %H:%M:%S}. Look at the mark, and approve again.",
            invariant=7,
        )


class StoppedByBrakes(Refused):
    """Raised where a brake has tripped that isn't released. `tripped` names all that have."""

    def __init__(self, message: str, tripped: Sequence[str] = ()) -> None:
        super().__init__(message, invariant=9)
        self.tripped = tuple(tripped)


class ReleasedInVain(WrongUsage):
    """Raised where a brake is released that has not tripped. `tripped` names all that have."""

    def __init__(self, message: str, tripped: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.tripped = tuple(tripped)


def check_brakes(proposal: Proposal, released: Mapping[str, str], limits: BrakeLimits, *, until: datetime) -> None:
    """Raise `StoppedByBrakes` for brakes that have tripped and aren't released, `ReleasedInVain` for those released
    that haven't; either names all of both, so that one further try is enough.

    The age is the one that the mark may have when it is swept: at the end of the approval.
    """
    found = brakes(proposal.record, limits, now=until)
    tripped = {brake.name: brake.why for brake in found if brake.tripped}
    held = {name: why for name, why in tripped.items() if name not in released}
    sentences = "".join(f"\n  {name}: {why}" for name, why in held.items())
    how = (
        "\nIf that is right, release each by its name, with the reason: --release BRAKE --because TEXT, or in "
        "Dagster's job approve 'release: {BRAKE: TEXT}'."
    )
    if needless := sorted(set(released) - set(tripped)):
        rest = f" It is stopped by:{sentences}{how}" if held else f" Tripped: {', '.join(tripped) or 'none'}."
        have = "has" if len(needless) == 1 else "have"
        raise ReleasedInVain(
            f"{', '.join(needless)} {have} not tripped for {proposal.name} and can't be released in advance.{rest}",
            tuple(tripped),
        )
    if held:
        stopped = f"{proposal.name} is stopped by {plural(len(held), 'brake')}:{sentences}{how}"
        raise StoppedByBrakes(stopped, tuple(tripped))


def check_unchanged(proposal: Proposal, lakefs: LakeFS) -> None:
    """Raise `Refused` where rules or holds are no longer those of the mark; says which. The reference's names none."""
    if proposal.theirs is not None:
        return
    record = proposal.record
    rules, holds = lakefs.rules(record.repository), read_holds(proposal.target.place)
    if rules != record.rules:
        raise Refused(
            f"the retention rules of {record.repository} were changed after {proposal.name} was made, from "
            f"{in_words(record.rules)} to {in_words(rules)}. Make a new mark.",
            invariant=7,
        )
    if holds.sha256 != record.holds["sha256"]:
        before, after = set(record.holds["ids"]), set(holds.ids)
        which = [f"added {each}" for each in sorted(after - before)] + [
            f"dropped {each}" for each in sorted(before - after)
        ]
        raise Refused(
            f"the holds of {record.repository} were changed after {proposal.name} was made "
            f"({', '.join(which) or 'the same holds, with other words'}). Make a new mark.",
            invariant=7,
        )


def in_words(rules: Rules | None) -> str:
    if rules is None:
        return "none"
    return ", ".join([f"{rules.default_days} days", *(f"{b}: {days}" for b, days in sorted(rules.branch_days.items()))])


def check_set(proposal: Proposal) -> None:
    """Raise `Refused` where the namespace doesn't hold, byte for byte, the set that the digest names."""
    if proposal.theirs is not None:
        check_theirs(proposal)
        return
    check_record(proposal.record)
    check_files(proposal.target, proposal.record)


def check_record(record: MarkRecord) -> None:
    if digest_of(record) != record.digest:
        raise Refused(
            f"the record of mark {record.mark_id} of {record.repository} was altered after the mark was made: its "
            "digest is not that of what it says. Make a new mark.",
            invariant=7,
        )


def check_theirs(proposal: Proposal) -> None:
    """Raise `Refused` where a mark of the reference's is no longer the one that was looked at."""
    assert proposal.theirs is not None
    name, place = f"{proposal.theirs.layout}/{proposal.theirs.mark_id}", proposal.target.place
    found = reference_mark(place, name, ours=own_marks(place))
    if found is None or their_files(proposal.target, found).digest != proposal.digest:
        raise Refused(
            f"the files of {proposal.name} are not those that were looked at: one was altered, added or dropped. Look "
            "at it again.",
            invariant=7,
        )


def check_standing(name: str, worth: Standing, found: Approval | None) -> None:
    if worth is Standing.APPROVED:
        return
    why = {
        Standing.NONE: "is not approved",
        Standing.INCOMPLETE: "has an approval that was never written down whole, or was altered",
        Standing.EXPIRED: f"was approved until {found.until:%Y-%m-%d %H:%M} UTC" if found else "",
    }[worth]
    kind = NothingToDo if worth is Standing.NONE else Refused
    raise kind(f"{name} {why}. Look at it, and approve it: lakegc approve, or the job approve in Dagster.", invariant=7)
