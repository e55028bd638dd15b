"""What a task reports beside its rows; executors fill it, the driver adds all of them up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

SAMPLES_KEPT = 10


class TaskReport(dict[str, int]):
    """Counters by name, which are summed over tasks; `errors` by what each is about, such as a repository that could
    not be read, of which the first one stays; and `samples` of a kind, such as addresses, of which a few stay."""

    def __init__(self, counters: Mapping[str, int] | None = None) -> None:
        super().__init__(counters or {})
        self.errors: dict[str, str] = {}
        self.samples: dict[str, list[str]] = {}

    def count(self, name: str, more: int = 1) -> None:
        self[name] = self.get(name, 0) + more

    def error(self, about: str, why: str) -> None:
        self.errors.setdefault(about, why)

    def sample(self, kind: str, *values: str) -> None:
        self.samples[kind] = [*self.samples.get(kind, ()), *values][:SAMPLES_KEPT]

    def to_json(self) -> str:
        return json.dumps({"counters": self, "errors": self.errors, "samples": self.samples})

    @classmethod
    def summed(cls, texts: Iterable[str]) -> TaskReport:
        """All tasks' reports as one, each as `to_json` gave it."""
        total = cls()
        for told in map(json.loads, texts):
            for name, count in told["counters"].items():
                total.count(name, count)
            for about, why in sorted(told["errors"].items()):
                total.error(about, why)
            for kind, values in told["samples"].items():
                total.sample(kind, *values)
        return total
