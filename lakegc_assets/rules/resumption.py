"""Whether a failed sweep may be resumed automatically: pure.

A person may resume a sweep that has begun at any time. It is resumed automatically only as long as it could
also be started for the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lakegc_assets.rules.brakes import effective_time
from spark_resources.model import MarkState, Outcome

if TYPE_CHECKING:
    from spark_resources.mark_store.approval import Approval
    from spark_resources.mark_store.record import MarkRecord

UNFINISHED_SWEEPS = frozenset({MarkState.APPROVED, MarkState.SWEEPING, MarkState.SWEPT_WITH_FAILURES})


def why_not_resumed(
    record: MarkRecord,
    approval: Approval | None,
    outcomes: Mapping[str, int] | None,
    *,
    max_age: timedelta,
    now: datetime,
) -> str | None:
    """Why the sweep of a mark isn't resumed automatically; None if it may be. `now` is by the store's clock.

    `outcomes` are the numbers of objects by outcome in the sweep's report; None if there is no report. `max_age` is the
    age beyond which a mark isn't swept, unless its approval released that brake.
    """
    if record.state not in UNFINISHED_SWEEPS:
        return f"the mark is {record.state}, so there is nothing to sweep"
    if approval is None or approval.sha256 != record.approval or approval.digest != record.digest:
        return "the approval of the set is missing, or was altered"
    if now >= approval.until:
        return f"the approval expired at {approval.until:%Y-%m-%d %H:%M} UTC"
    if "age" not in approval.released and now - effective_time(record) > max_age:
        return "the mark has become too old (brake_age)"
    if record.state is MarkState.SWEPT_WITH_FAILURES and not (outcomes or {}).get(Outcome.FAILED.value):
        return "no object failed, so there is nothing to retry"
    return None
