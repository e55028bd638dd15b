"""The conditions under which a policy may approve a mark (invariant 7), each at its limit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.rules.auto_approval import Policy, PolicyInputs, unmet_conditions
from lakegc_assets.rules.brakes import Brake
from spark_resources.model import MarkState
from spark_resources.settings import Settings

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
DAY = timedelta(days=1)
POLICY = Policy(0.01, 30 * DAY, DAY, quarantine=True, backup_to=None)
USUAL = PolicyInputs(
    own=True,
    state=MarkState.MARKED,
    has_approval=False,
    from_inventory=False,
    previous="m0",
    unreadable=(),
    brakes=(Brake("share", False, 0.01, 0.3, ""),),
    trusted=(),
    trusted_now=(),
    candidates=1_000,
    candidate_bytes=1_000_000,
    expired=10,
    expired_bytes=10_000,
    youngest=NOW - 30 * DAY - timedelta(seconds=1),
    reasons=frozenset({"a"}),
    previous_reasons=frozenset({"a", "b"}),
)


def test_a_policy_can_approve_a_usual_mark_whose_share_is_exactly_at_the_limit() -> None:
    assert unmet_conditions(USUAL, POLICY, now=NOW) == []


UNMET: dict[str, tuple[dict[str, Any], str]] = {
    "a foreign mark": ({"own": False}, "not made by lakegc"),
    **{
        f"state {state}": ({"state": state}, f"state is '{state}'")
        for state in MarkState
        if state is not MarkState.MARKED
    },
    "approved before": ({"has_approval": True}, "only a person can approve it again"),
    "an inventory": ({"from_inventory": True}, "inventory"),
    "the first mark": ({"previous": None, "previous_reasons": None}, "first mark"),
    "unreadable marks": ({"unreadable": ("m-1",)}, "1 mark can't be read: m-1"),
    "a tripped brake": ({"brakes": (Brake("jump", True, 4, 3, "too many"),)}, "the brake 'jump' has tripped: too many"),
    "a trusted repository": ({"trusted": ("pond",)}, "without reading them: pond"),
    "trust not recorded": ({"trusted": None}, "doesn't record which other repositories"),
    "trusted today": ({"trusted_now": ("scratch-*",)}, "a sweep would trust"),
    "nothing expired": ({"expired": 0, "expired_bytes": 0}, "no object is expired"),
    "one object more": ({"expired": 11}, "1.1% of all objects are expired (11 of 1,000); the limit is 1%"),
    "one byte more": ({"expired_bytes": 10_001}, "1% of all bytes are expired (10,001 of 1,000,000)"),
    "bytes of an empty store": ({"candidate_bytes": 0}, "100% of all bytes"),
    "an object exactly at the age": ({"youngest": NOW - 30 * DAY}, "must be older than 30 days"),
    "an object of the future": ({"youngest": NOW + DAY}, "must be older than 30 days"),
    "age not recorded": ({"youngest": None}, "doesn't record when its youngest"),
    "a new reason": ({"reasons": frozenset({"a", "c"})}, "1 reason did not occur in the previous mark, m0: c"),
    "reasons unknown": ({"reasons": None}, "the mark's expiry reasons aren't known"),
    "previous reasons unknown": ({"previous_reasons": None}, "of the previous mark, m0, aren't known"),
}


@pytest.mark.parametrize("case", UNMET)
def test_a_policy_cannot_approve_a_mark_that_violates_a_single_condition(case: str) -> None:
    """The sentence says which condition is violated."""
    changes, words = UNMET[case]
    unmet = unmet_conditions(replace(USUAL, **changes), POLICY, now=NOW)

    assert any(words in sentence for sentence in unmet), unmet


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"quarantine": False}, "neither sweep_quarantine nor backup_to"),
        ({"wait": timedelta(0)}, "nobody could revoke"),
    ],
)
def test_a_policy_without_a_waiting_time_or_without_quarantine_and_backup_approves_nothing(
    changes: dict[str, Any], words: str
) -> None:
    unmet = unmet_conditions(USUAL, replace(POLICY, **changes), now=NOW)

    assert [words in sentence for sentence in unmet] == [True]
    assert unmet_conditions(USUAL, replace(POLICY, quarantine=False, backup_to="/backups"), now=NOW) == []


def test_all_unmet_conditions_are_reported_at_once() -> None:
    violations: dict[str, Any] = {}
    for changes, _ in UNMET.values():
        violations = changes | violations

    assert len(unmet_conditions(replace(USUAL, **violations), replace(POLICY, quarantine=False), now=NOW)) >= 12


@pytest.mark.parametrize(
    "changes",
    [
        {"max_share": 0.010000000000000002},
        {"min_age": timedelta(days=30, seconds=1)},
        {"wait": timedelta(hours=24, microseconds=1)},
        {"quarantine": False},
        {"backup_to": "/backups"},
        {"backup_to": "/backups", "quarantine": False},
    ],
)
def test_different_policies_have_different_texts(changes: dict[str, Any]) -> None:
    """However small the difference is, it causes a new announcement with a new waiting time."""
    other = replace(POLICY, **changes)

    assert other.text != POLICY.text
    assert other.sha256 != POLICY.sha256


def test_the_default_settings_approve_nothing_by_policy(tmp_path: Path) -> None:
    """Even if auto_approve is set, a quarantine or a backup has to be chosen."""
    settings = Settings.load({}, tmp_path)

    assert settings.auto_approve is False
    assert Policy.of(settings) == Policy(0.01, 30 * DAY, DAY, quarantine=False, backup_to=None)
    assert unmet_conditions(USUAL, Policy.of(settings), now=NOW) != []
