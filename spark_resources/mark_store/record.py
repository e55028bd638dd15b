"""The record of a mark, `mark.json`, as a value: its fields, the order of its steps, and its digest. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from spark_resources.errors import DamagedData, Refused, UnknownFormat, WrongUsage
from spark_resources.model import MarkState, Rules, Scope, check_mark_id
from spark_resources.records.json_records import read_json, record_bytes, time_of

RECORD_FORMAT = 2
EARLIER_FORMAT = 1
"""Records of this format can only be listed, and objects that their sweeps quarantined restored or purged."""
FULL_MARK: Mapping[str, Any] = {"incremental": False, "why": "", "chain": [], "digests": [], "spellings": []}


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The result of one asset. Times by the store's clock; `datasets` by part: hash of its list of files, and its rows.

    `number` counts the steps of this mark in the order in which they ended, independent of clocks; 0 until recorded.
    """

    started: datetime
    finished: datetime
    number: int = 0
    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MarkRecord:
    """The content of `mark.json`. `start` and `cutoff` by the store's clock, `server_now` by the lakeFS server's.

    `previous`, set when the mark finishes, has `mark_id` and `counts` of the finished mark before it, and names earlier
    ones that are `unreadable`; None for the first mark of a repository and scope.
    `holds` has the hash of the file of holds (`sha256`, "" without a file) and the `ids` of its holds. For a signed
    file it also has the `number`, and the newer version that a sweep of the mark used (`seen`, with `number` and
    `ids`). `approval` is the SHA-256 of the approval that made it `approved` (see
    `spark_resources.mark_store.approval`).
    `inventory` names the list of objects that was read instead of listing the store (see
    `spark_resources.stores.inventory`); `start` is then the time at which it was taken.
    `basis` describes how this mark was made: whether `incremental` (if not, `why`), and the `chain` of its base marks
    with their `digests`, newest first, back to a full mark. A full mark with a chain records what an incremental one
    would have missed. `full_in` of an incremental mark is the number of further incremental marks before a full one is
    due. `spellings` are those of the namespace (`Namespace.also`) by which addresses were read.
    """

    mark_id: str
    state: MarkState
    repository: str
    repository_created: datetime
    namespace: str
    scope: Scope
    min_age: timedelta
    start: datetime
    cutoff: datetime
    server_now: datetime
    rules: Rules | None
    by: str
    versions: Mapping[str, str]
    clocks: Mapping[str, str] = field(default_factory=dict)
    accepted_missing: tuple[str, ...] = ()
    holds: Mapping[str, Any] = field(default_factory=lambda: {"sha256": "", "ids": []})
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    finished: datetime | None = None
    digest: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    previous: Mapping[str, Any] | None = None
    approval: str | None = None
    failure: str | None = None
    inventory: Mapping[str, Any] | None = None
    basis: Mapping[str, Any] = field(default_factory=lambda: dict(FULL_MARK))
    format: int = RECORD_FORMAT

    def step(self, name: str) -> StepRecord:
        """The step of one asset. Raises `Refused` (invariant 2) if it isn't recorded yet."""
        if name not in self.steps:
            raise Refused(
                f"{name} of mark {self.mark_id} ({self.repository}) doesn't exist yet. Materialize it first: the "
                "order of a mark's assets is a safety rule.",
                invariant=2,
            )
        return self.steps[name]

    @property
    def incremental(self) -> bool:
        """Whether this mark read only data that may have changed since an earlier one."""
        return bool(self.basis[_incremental(self.format)])

    def to_json(self) -> bytes:
        plain = asdict(self)
        plain["state"], plain["scope"] = self.state.value, self.scope.value
        plain["min_age"] = self.min_age.total_seconds()
        if self.rules is not None:
            plain["rules"] = {"default_days": self.rules.default_days, "branch_days": dict(self.rules.branch_days)}
        return record_bytes(plain)

    @classmethod
    def from_json(cls, data: bytes, where: str) -> MarkRecord:
        try:
            plain = read_json(data)
            if type(plain["format"]) is not int or plain["format"] not in (EARLIER_FORMAT, RECORD_FORMAT):
                raise UnknownFormat(
                    f"{where} is of format {plain['format']}; this lakegc knows {EARLIER_FORMAT} and {RECORD_FORMAT}. "
                    "Update lakegc."
                )
            if missing := sorted({each.name for each in fields(cls)} - plain.keys()):
                raise ValueError(f"{', '.join(missing)} missing")
            steps = {name: _step(step) for name, step in plain["steps"].items()}
            rules = Rules(**plain["rules"]) if plain["rules"] is not None else None
            times = {name: time_of(plain[name]) for name in ("repository_created", "start", "cutoff", "server_now")}
            changed: dict[str, Any] = {
                "state": MarkState(plain["state"]),
                "scope": Scope(plain["scope"]),
                "min_age": timedelta(seconds=plain["min_age"]),
                "accepted_missing": tuple(plain["accepted_missing"]),
                "finished": time_of(plain["finished"]) if plain["finished"] else None,
                "rules": rules,
                "holds": _holds(plain["holds"]),
                "steps": steps,
                "counts": dict(plain["counts"]),
                "previous": None if plain["previous"] is None else dict(plain["previous"]),
                "basis": _basis(plain["basis"], plain["format"]),
            }
            return cls(**{**plain, **times, **changed})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DamagedData(f"{where} is not a valid mark record ({error}).") from error


def _step(plain: Mapping[str, Any]) -> StepRecord:
    times = time_of(plain["started"]), time_of(plain["finished"])
    datasets = {part: {**found, "sha256": str(found["sha256"])} for part, found in plain["datasets"].items()}
    return StepRecord(*times, int(plain["number"]), datasets, dict(plain["facts"]))


def _holds(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {"sha256": str(plain["sha256"]), "ids": [str(one) for one in plain["ids"]]}
    if "number" in plain:
        found["number"] = int(plain["number"])
    if "seen" in plain:
        seen = plain["seen"]
        found["seen"] = {"number": int(seen["number"]), "ids": [str(one) for one in seen["ids"]]}
    return found


def _incremental(record_format: int) -> str:
    """The name of `basis`' field for an incremental mark in records of this format."""
    return "optimized" if record_format == EARLIER_FORMAT else "incremental"


def _basis(plain: Mapping[str, Any], record_format: int) -> Mapping[str, Any]:
    """`basis` in a record's own format: its digest, and the record when rewritten, use the names of that format."""
    try:
        chain = [check_mark_id(one) for one in plain["chain"]]
    except WrongUsage as error:
        raise ValueError(str(error)) from error
    digests, spellings = ([str(one) for one in plain[name]] for name in ("digests", "spellings"))
    if len(chain) != len(digests):
        raise ValueError("a chain of marks without their digests")
    incremental = _incremental(record_format)
    basis: dict[str, Any] = {incremental: bool(plain[incremental]), "why": str(plain["why"])}
    if "full_in" in plain:  # of incremental marks
        basis["full_in"] = int(plain["full_in"])
    return {**basis, "chain": chain, "digests": digests, "spellings": spellings}


SWEEP_BEGUN = frozenset({MarkState.SWEEPING, MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES})


def refuse_earlier_format(record: MarkRecord, what: str) -> None:
    """Raise `Refused` (invariant 7) for a mark of an earlier format. `what` is the refused action: approved, swept."""
    if record.format != RECORD_FORMAT:
        name = f"{record.repository} {record.mark_id}"
        aside = (
            f" What it has in quarantine can still be restored (lakegc undo {name}) or purged (lakegc purge {name})."
        )
        raise Refused(
            f"mark {record.mark_id} of {record.repository} was made by an earlier lakegc (format {record.format}; this "
            f"one writes {RECORD_FORMAT}), so it can't be {what}. Make a new mark: lakegc mark {record.repository}."
            + (aside if record.state in SWEEP_BEGUN else ""),
            invariant=7,
        )


def newest_holds(record: MarkRecord) -> tuple[int, tuple[str, ...]]:
    """The number of the newest signed file of holds that a mark or its sweep used, and the ids of its holds."""
    seen = record.holds.get("seen", record.holds)
    return seen.get("number", 0), tuple(seen["ids"])


def finished_at(record: MarkRecord) -> datetime:
    """When a mark ended, by the store's clock. It orders marks, since a mark by an inventory starts in the past."""
    return record.finished or record.start


CHAIN = (
    "namespace_slices",
    "uncommitted_addresses",
    "retained_commits",
    "committed_addresses",
    "expired_set",
)
"""The steps of a mark in the order in which they read, which is a safety rule (invariant 2)."""


def check_order(record: MarkRecord, *, before: str) -> None:
    """Raise `Refused` (invariant 2) unless all steps before this one were done, in order."""
    done = [(name, record.step(name)) for name in CHAIN[: CHAIN.index(before)]]
    for (earlier, first), (later, second) in pairwise(done):
        if first.number >= second.number or first.finished > second.started:
            raise Refused(
                f"{earlier} of mark {record.mark_id} ({record.repository}) was read after {later}: ended "
                f"{first.finished:%H:%M:%S}, {later} began {second.started:%H:%M:%S}. The safe order requires "
                f"{earlier} to be read first. Materialize {later} and the assets after it again.",
                invariant=2,
            )


def digest_of(record: MarkRecord) -> str:
    """SHA-256 (hex) over everything that an approval covers (invariant 7): rows and live ranges by their files' hashes,
    scope, cutoff, rules, holds, namespace and repository, and the numbers that the brakes compare."""
    named = {
        "mark_id": record.mark_id,
        "repository": [record.repository, record.repository_created.isoformat()],
        "namespace": record.namespace,
        "scope": record.scope.value,
        "cutoff": record.cutoff.isoformat(),
        "rules": None
        if record.rules is None
        else [record.rules.default_days, sorted(record.rules.branch_days.items())],
        "counts": [dict(record.counts), record.previous],
        "holds": record.holds["sha256"],
        "basis": dict(record.basis),
        "datasets": {
            name: {part: found["sha256"] for part, found in sorted(step.datasets.items())}
            for name, step in sorted(record.steps.items())
        },
    }
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()
