"""A mark qualifies for an approval by a policy only if it meets every single condition, whatever the inputs are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.rules.auto_approval import Policy, PolicyInputs, unmet_conditions
from lakegc_assets.rules.brakes import Brake
from spark_resources.model import MarkState

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def usually(value: object, *others: object) -> st.SearchStrategy[Any]:
    """Mostly this value: otherwise, hardly any mark would meet all conditions."""
    return st.sampled_from([value] * 15 * len(others) + list(others))


NAMES = usually((), ("pond",), ("*",))
AGES = [timedelta(days=days, seconds=seconds) for days in (60, 30, 0, -1) for seconds in (0, 1, -1)]
REASONS = usually(frozenset("ab"), None, frozenset(), frozenset("a"), frozenset("abc"))
brakes = st.lists(usually(False, True).map(lambda tripped: Brake("share", tripped, 1, 1, "")), max_size=3)
policies = st.builds(
    Policy,
    usually(0.01, 0.0, 1.0),
    usually(timedelta(days=30), timedelta(0)),
    usually(timedelta(days=1), timedelta(0)),
    st.booleans(),
    st.sampled_from(["/backups", "/backups", None]),
)
inputs = st.builds(
    PolicyInputs,
    own=usually(True, False),
    state=usually(MarkState.MARKED, *MarkState),
    has_approval=usually(False, True),
    from_inventory=usually(False, True),
    previous=usually("m0", None),
    unreadable=NAMES,
    brakes=brakes.map(tuple),
    trusted=usually((), None, ("pond",)),
    trusted_now=NAMES,
    candidates=usually(1_000, 0, 999, 1_001),
    candidate_bytes=usually(1_000, 0, 999, 1_001),
    expired=usually(10, 0, 9, 11),
    expired_bytes=usually(10, 0, 9, 11),
    youngest=usually(*(NOW - age for age in AGES), None),
    reasons=REASONS,
    previous_reasons=REASONS,
)


def share(some: int, whole: int) -> Fraction:
    return Fraction(some, whole) if whole else Fraction(some > 0)


@given(inputs, policies)
def test_a_mark_qualifies_if_and_only_if_it_meets_every_condition(mark: PolicyInputs, policy: Policy) -> None:
    """The test states each condition once more, on its own and with exact numbers."""
    limit = Fraction(repr(policy.max_share))
    met = [
        mark.own,
        mark.state == "marked",
        not mark.has_approval,
        not mark.from_inventory,
        mark.previous is not None,
        mark.unreadable == (),
        not any(brake.tripped for brake in mark.brakes),
        mark.trusted == (),
        mark.trusted_now == (),
        mark.expired > 0,
        share(mark.expired, mark.candidates) <= limit,
        share(mark.expired_bytes, mark.candidate_bytes) <= limit,
        mark.youngest is not None and mark.youngest + policy.min_age < NOW,
        mark.reasons is not None and mark.previous_reasons is not None and mark.reasons <= mark.previous_reasons,
        policy.quarantine or policy.backup_to is not None,
        policy.wait > timedelta(0),
    ]

    assert (unmet_conditions(mark, policy, now=NOW) == []) == all(met)
