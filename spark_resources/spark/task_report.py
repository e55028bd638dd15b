"""The report that a task sends to the driver in addition to its rows. The driver sums the reports of all tasks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

SAMPLES_KEPT = 10


@dataclass(slots=True)
class TaskReport:
    """The report of one task, or the sum of several.

    `counters` has counters by name; a missing one is 0. `by_key` has counters of several items, first by the counter's
    name, then by the item's key, such as the id of a hold. `errors` has the first error for each subject, such as a
    repository that could not be read. `samples` has a few samples of each kind, such as addresses.
    """

    counters: Counter[str] = field(default_factory=Counter)
    by_key: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    errors: dict[str, str] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)

    def count(self, **amounts: int) -> None:
        """Add these amounts to the counters of these names."""
        self.counters.update(amounts)

    def count_for(self, key: str, **amounts: int) -> None:
        """Add these amounts to the counters of one item."""
        for name, amount in amounts.items():
            self.by_key[name][key] += amount

    def error(self, subject: str, reason: str) -> None:
        """Record an error, unless one is already recorded for this subject."""
        self.errors.setdefault(subject, reason)

    def sample(self, kind: str, *values: str) -> None:
        """Record samples of a kind; only the first SAMPLES_KEPT of each kind are kept."""
        self.samples[kind] = [*self.samples.get(kind, ()), *values][:SAMPLES_KEPT]

    def add(self, other: TaskReport) -> None:
        self.counters.update(other.counters)
        for name, amounts in other.by_key.items():
            self.by_key[name].update(amounts)
        for subject, reason in sorted(other.errors.items()):
            self.error(subject, reason)
        for kind, values in other.samples.items():
            self.sample(kind, *values)

    def to_json(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        """The report from its `to_json` form."""
        plain = json.loads(text)
        by_key = defaultdict(Counter, {name: Counter(amounts) for name, amounts in plain["by_key"].items()})
        return cls(Counter(plain["counters"]), by_key, plain["errors"], plain["samples"])

    @classmethod
    def summed(cls, texts: Iterable[str]) -> TaskReport:
        """The sum of the reports of all tasks, each in its `to_json` form."""
        total = cls()
        for text in texts:
            total.add(cls.from_json(text))
        return total
