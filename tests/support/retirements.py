"""A sandbox with marks that need no Spark, and what remains of them after their retirement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from lakegc_assets.mark.context import Target
from lakegc_assets.retirement import retire
from lakegc_assets.retirement.retire import Retirements
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import GC_ROOT, Mark
from spark_resources.settings import Settings
from tests.support.finished_marks import finished_mark
from tests.support.mark_runs import environment, quick_environment, target_of

DAY = timedelta(days=1)


@dataclass
class OldMarks:
    """A repository of a sandbox, whose marks are written without being made."""

    sandbox: Sandbox
    repository: str

    @property
    def target(self) -> Target:
        return target_of(self.sandbox.settings, self.repository)

    def add(self, mark_id: str, *, age: int, **changes: Any) -> Mark:
        """A finished mark of this many days ago."""
        target = self.target
        identity = {
            "repository": self.repository,
            "repository_created": target.repository.created,
            "namespace": target.place.namespace.uri,
            "rules": None,
        }
        start = self.sandbox.now() - age * DAY
        return finished_mark(target.place, [f"data/{mark_id}"], mark_id, start=start, **identity, **changes)

    def retire(self, older_than: timedelta = DAY, only: tuple[str, ...] = ()) -> Retirements:
        with environment(self.sandbox.settings):
            settings = Settings.load(quick_environment(self.sandbox.settings), Path("/nonexistent"))
            lakefs = LakeFS(*LakeFSSettings.of(settings))
            return retire.retire(self.target, lakefs, settings, older_than, only=only)

    def files(self) -> Mapping[str, bytes]:
        """All files under `_lakefs/retention/gc/`, except the lease."""
        root = self.sandbox.local_path / self.repository
        paths = [path for path in (root / GC_ROOT).rglob("*") if path.is_file()]
        return {str(path.relative_to(root / GC_ROOT)): path.read_bytes() for path in paths if path.name != "lease.json"}

    def record(self, mark_id: str) -> Any:
        return Mark.open(self.target.place, mark_id).record
