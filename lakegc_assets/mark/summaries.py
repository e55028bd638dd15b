"""What each step of a mark found, in one paragraph for people who don't know Dagster: the first thing on its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakegc_assets.formatting import (
    duration,
    is_or_are,
    money,
    monthly_cost,
    percent,
    plural,
    rules_in_words,
    size,
    was_or_were,
)
from lakegc_assets.mark.totals import Sum
from lakegc_assets.markdown import as_text, unbroken
from lakegc_assets.rules.brakes import unread_repositories_in
from spark_resources.mark_store.record import MarkRecord
from spark_resources.settings import Settings

DIGEST_CHARACTERS = 12  # as many as an approval has to name


def listing_summary(record: MarkRecord) -> str:
    facts = record.step("namespace_slices").facts
    amount = f" ({size(facts['bytes'])})" if "bytes" in facts else ""
    source = "an inventory of the store" if record.inventory is not None else "the store's listing"
    when, objects = unbroken(f"{record.start:%Y-%m-%d %H:%M:%S} UTC"), facts["objects"]
    return (
        f"**{plural(objects, 'object')}{amount} {is_or_are(objects)} stored**, according to {source} of {when}. Only "
        f"these can expire: a sweep of this mark can't delete anything written later.{incremental_sentence(record)}"
    )


def staged_summary(record: MarkRecord) -> str:
    facts = record.step("uncommitted_addresses").facts
    staged = max(facts.get(part, {}).get("addresses", 0) for part in ("first", "second"))
    if not staged:
        return "**No staged changes**: no branch has uploads that aren't committed yet."
    return (
        f"**{plural(staged, 'staged change')}**: uploaded to a branch, but not committed yet. Their objects are kept. "
        "The list was read twice, because changes can move while it is read."
    )


def commits_summary(record: MarkRecord) -> str:
    facts = record.step("retained_commits").facts
    if record.rules is None:
        retained = facts["retained"]
        return (
            f"**{retained:,} of {plural(retained, 'commit')} {is_or_are(retained)} retained**, because the repository "
            "has no retention rules. Only objects that no commit refers to can expire."
        )
    kept_by_holds = f" Holds keep {plural(facts['on_hold'], 'more commit')}." if facts.get("on_hold") else ""
    return (
        f"**{facts['retained']:,} of {plural(facts['retained'] + facts['expired'], 'commit')} "
        f"{is_or_are(facts['retained'])} retained**, and {facts['expired']:,} {is_or_are(facts['expired'])} expired "
        f"according to the retention rules: {as_text(rules_in_words(record.rules))}.{kept_by_holds} Objects that only "
        "expired commits refer to can expire."
    )


def committed_summary(record: MarkRecord) -> str:
    facts = record.step("committed_addresses").facts
    return (
        f"**Retained commits need {plural(facts['inside'], 'address')}**, as listed in "
        f"{plural(facts['ranges'], 'file')} of their metadata (*ranges*), read completely "
        f"({unbroken(size(facts['bytes_read']))}). Their objects are kept.{others_in_words(record)}"
        f"{incremental_sentence(record)}"
    )


def others_in_words(record: MarkRecord) -> str:
    """Whether the other repositories of the server were read."""
    unread = unread_repositories_in(record)
    if unread:
        named = f"Other repositories that can't be read: {as_text(', '.join(sorted(unread)))}"
        problem = "The other repositories can't be listed" if "*" in unread else named
        return f" **{problem}**; see the check *others\\_read*."
    others = len(record.step("committed_addresses").facts["elsewhere"]["repositories"])
    return f" {plural(others, 'other repository')} of the server {was_or_were(others)} read, too." if others else ""


SUMMARIES: Mapping[str, Callable[[MarkRecord], str]] = {
    "namespace_slices": listing_summary,
    "uncommitted_addresses": staged_summary,
    "retained_commits": commits_summary,
    "committed_addresses": committed_summary,
}


def incremental_sentence(record: MarkRecord) -> str:
    if not record.is_incremental:
        return ""
    return f" Only what may have changed since mark {as_text(record.basis['chain'][0])} was read."


def expired_summary(record: MarkRecord, expired: Sum, settings: Settings) -> str:
    """How much is expired, what keeps the rest, and what happens next."""
    facts = record.step("expired_set").facts
    stored, stored_bytes = plural(facts["candidates"], "object"), size(facts["candidate_bytes"])
    if not expired.objects:
        return f"**None of {stored} ({stored_bytes}) is expired.** Nothing can be deleted.{kept_in_words(record)}"
    share = percent(expired.bytes, facts["candidate_bytes"])
    return (
        f"**{expired.objects:,} of {stored} ({size(expired.bytes)} of {stored_bytes}, {share}) "
        f"{is_or_are(expired.objects)} expired.** They are deleted only if somebody approves exactly this "
        f"set, digest `{(record.digest or '')[:DIGEST_CHARACTERS]}`, and only those that nothing needs at that time."
        f"{savings(expired, settings)}{kept_in_words(record)}{owners_in_words(settings)}"
    )


def kept_in_words(record: MarkRecord) -> str:
    """Why the other objects are kept. An object can count for several reasons."""
    facts = record.step("expired_set").facts
    reasons = {
        "in retained commits": facts.get("committed", 0),
        "staged": facts.get("uncommitted", 0),
        f"younger than {duration(record.min_age)}": facts.get("young", 0),
        "on hold": facts.get("objects_on_hold", 0),
        "needed by other repositories": facts.get("kept_for_other_repositories", 0),
        "that a branch may serve": facts.get("kept_by_probes", 0),
    }
    named = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
    return f" Kept: {', '.join(named)}." if named else ""


def savings(expired: Sum, settings: Settings) -> str:
    if settings.price_per_gb_month is None:
        return ""
    return f" Deleting them saves {money(monthly_cost(expired.bytes, settings.price_per_gb_month))} a month."


def owners_in_words(settings: Settings) -> str:
    return f" Owners: {as_text(', '.join(settings.owners))}." if settings.owners else ""
