"""Unfinished sweeps of foreign marks, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lakegc_assets.approval.foreign_marks import sweep_record_root
from spark_resources.model import MarkState
from tests.approval.conftest import Lake


def begin_foreign_sweep(lake: Lake, *, digest: str, mark_id: str = "t1", **changes: Any) -> None:
    """Write the record of a sweep of a foreign mark, replacing any existing one."""
    known: dict[str, Any] = {"state": MarkState.SWEEPING, "digest": digest, **changes}
    record = replace(lake.proposal(mark_id).record, **known)
    lake.place.store().write(sweep_record_root(mark_id) + "mark.json", record.to_json())
