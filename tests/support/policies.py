"""A repository with a policy that approves marks, and marks that qualify. The sandbox's clock can be moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from lakegc_assets.approval.auto_approval import Decision, apply_policy
from spark_resources.mark_store.announcement import Announcement, announcement_key, read_announcement
from spark_resources.mark_store.mark import Mark
from spark_resources.model import MarkState
from spark_resources.settings import Settings
from tests.approval.conftest import Lake
from tests.support.mark_runs import quick_environment
from tests.support.reviewable_marks import expired, reviewable, tables

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
OLD = [expired(f"data/s/{number}", old=50, path=f"p/{number}") for number in range(10)]
"""Expired objects: one percent of the thousand objects of a mark, and less of its bytes."""
BEFORE = {"candidates": 1_000, "candidate_bytes": 1_000_000, "expired": 10, "expired_bytes": 10, "live": 80_000}


@dataclass
class Fleet:
    """A repository with a policy, and its operations. `options` are its settings."""

    lake: Lake
    options: dict[str, str] = field(default_factory=lambda: {"auto_approve": "true", "sweep_quarantine": "true"})

    @property
    def known(self) -> dict[str, str]:
        """All settings by name."""
        return {**self.lake.sandbox.settings, **self.options}

    @property
    def settings(self) -> Settings:
        return Settings.load(quick_environment(self.known), home=Path("/nonexistent"))

    def add_mark(self, mark_id: str = "m1", rows: Sequence[dict[str, Any]] = OLD, **changes: Any) -> Mark:
        """Write a mark that qualifies, unless it is changed; its previous mark is m0."""
        lake = self.lake
        known: dict[str, Any] = {
            "repository": lake.name,
            "repository_created": lake.target.repository.created,
            "namespace": lake.place.namespace.uri,
            "rules": None,
            "start": lake.finished - timedelta(minutes=9),
            "elsewhere": {"trusted": [], "unread": {}},
        }
        if mark_id != "m0":
            counts = {
                "candidates": 1_000,
                "candidate_bytes": 1_000_000,
                "expired": 10,
                "expired_bytes": 10,
                "live": 900,
            }
            known["previous"] = {"mark_id": "m0", "counts": counts, "unreadable": []}
        return reviewable(lake.place, tables(rows, per_file=6), mark_id, **{**known, **changes})

    def add_marks(self, **changes: Any) -> Mark:
        """Write two marks. The second is the newest, and qualifies unless it is changed."""
        self.add_mark("m0", start=self.lake.finished - DAY)
        return self.add_mark(**changes)

    def tick(self, **options: str) -> Decision:
        """What the sensor does at one tick, with these settings from now on."""
        self.options |= options
        return apply_policy(self.lake.target, self.lake.lakefs, self.settings)

    def wait(self, span: timedelta) -> None:
        self.lake.sandbox.set_clock(self.lake.now + span)

    def announcement(self, mark_id: str = "m1") -> Announcement:
        stored = read_announcement(self.lake.place, mark_id)
        assert stored is not None
        return stored.announcement

    def assert_not_approved(self) -> None:
        assert self.lake.approval() is None
        assert self.lake.record().state is MarkState.MARKED

    @property
    def file(self) -> Path:
        return self.lake.folder / announcement_key("m1")

    def approve(self, **options: str) -> None:
        """Write marks, and let the policy approve the newest one."""
        self.add_marks()
        self.tick(**options)
        self.wait(DAY + HOUR)
        assert self.tick().approval is not None
