"""The record of a mark, `mark.json`, as a value: its fields, the order of its steps, and its digest. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, ClassVar, NotRequired

from pydantic import BeforeValidator, ValidationInfo
from typing_extensions import TypedDict

from spark_resources.errors import DamagedData, Refused, Retired, UnknownFormat
from spark_resources.identifiers import lakefs_id
from spark_resources.model import MarkState, Rules, Scope
from spark_resources.records.json_records import record_bytes, to_json_value
from spark_resources.records.model import AsInJson, Count, MarkId, Record, Seconds, TimeText, UtcTime

RECORD_FORMAT = 2
EARLIER_FORMAT = 1
"""Marks of this format can no longer be used, only listed. Objects that their sweeps quarantined can still be restored
or purged."""
RETIRED_FORMAT = 3
"""The format in which a retired mark of `RECORD_FORMAT` is stored. Versions that don't know retired marks report an
unknown format instead of damage."""


class HoldsSeen(TypedDict):
    """A signed file of holds, newer than the one that the mark used: its number, and the ids of its holds."""

    number: int
    ids: list[str]


class HoldsUsed(TypedDict):
    """The file of holds that a mark used: its hash ("" without a file), and the ids of its holds.

    For a signed file, also its `number`, and the newest version `seen` since then: used by a sweep of the mark, or
    written while the mark could be swept. If there were holds in the settings, `ids` and `sha256` cover them, too, and
    `configured` has their ids.
    """

    sha256: str
    ids: list[str]
    configured: NotRequired[list[str]]
    number: NotRequired[int]
    seen: NotRequired[HoldsSeen]


class Basis(TypedDict):
    """How a mark was made: whether it is `incremental` (`optimized` in the earlier format), and if not, `why`.

    `chain` are its base marks with their `digests`, newest first, back to a full mark. A full mark with a chain records
    what an incremental one would have missed. `full_in` of an incremental mark is the number of further incremental
    marks before a full one is due. `spellings` are the namespace's aliases (`Namespace.aliases`) at the time when
    addresses were read.
    """

    incremental: NotRequired[bool]
    optimized: NotRequired[bool]
    why: str
    chain: list[MarkId]
    digests: list[str]
    full_in: NotRequired[int]
    spellings: list[str]


FULL_MARK: Basis = {"incremental": False, "why": "", "chain": [], "digests": [], "spellings": []}


class PreviousMark(TypedDict, total=False):
    """The previous finished mark, if there is one, and the ids of earlier marks that are `unreadable`."""

    mark_id: str
    counts: Mapping[str, int]
    unreadable: list[str]


class DatasetSummary(TypedDict):
    """A step's dataset: the hash of its list of files, and its row and byte counts."""

    sha256: str
    rows: NotRequired[int]
    bytes: NotRequired[int]


class Retirement(TypedDict):
    """The retirement of a mark: when it began (by the store's clock), who began it, the mark's `state` before, and the
    number and size of the files that it removes. `done` is false while some of them may still exist.
    """

    when: TimeText
    who: str
    state: str
    files: Count
    bytes: Count
    done: bool


def _known_format(value: object, info: ValidationInfo) -> object:
    if type(value) is not int or value not in (EARLIER_FORMAT, RECORD_FORMAT):
        raise UnknownFormat(
            f"{info.context} is of format {value!r:.80}, but this version of lakegc supports {EARLIER_FORMAT} and "
            f"{RECORD_FORMAT}. Update lakegc."
        )
    return value


@dataclass(frozen=True, slots=True)
class StepRecord(Record):
    """The result of one asset. Times are by the store's clock; `datasets` are keyed by part.

    `number` counts the steps of this mark in the order in which they ended, independently of clocks; 0 until recorded.
    """

    started: UtcTime
    finished: UtcTime
    number: int = 0
    datasets: Mapping[str, DatasetSummary] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MarkRecord(Record):
    """The content of `mark.json`. `start` and `cutoff` are by the store's clock, `server_now` by the lakeFS server's.

    `previous` is set when the mark finishes; None for the first mark of a repository and scope. `approval` is the
    SHA-256 of its approval (see `spark_resources.mark_store.approval`). `inventory` describes the list of objects that
    was read instead of listing the store (see `spark_resources.stores.inventory`); `start` is then the time at which it
    was taken. `retired` is set for a mark in the state `RETIRED`. `quarantine` is set once a sweep of the mark
    quarantines: however it is resumed, it then deletes nothing for good.
    """

    optional_fields: ClassVar = frozenset({"retired", "quarantine"})

    mark_id: str
    state: AsInJson[MarkState]
    repository: str
    repository_created: UtcTime
    namespace: str
    scope: AsInJson[Scope]
    min_age: Seconds
    start: UtcTime
    cutoff: UtcTime
    server_now: UtcTime
    rules: AsInJson[Rules] | None
    by: str
    versions: Mapping[str, str]
    clocks: Mapping[str, str] = field(default_factory=dict)
    accepted_missing: AsInJson[tuple[str, ...]] = ()
    holds: HoldsUsed = field(default_factory=lambda: HoldsUsed(sha256="", ids=[]))
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    finished: UtcTime | None = None
    digest: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    previous: PreviousMark | None = None
    approval: str | None = None
    failure: str | None = None
    inventory: Mapping[str, Any] | None = None
    basis: Basis = field(default_factory=FULL_MARK.copy)
    retired: Retirement | None = None
    quarantine: bool = False
    format: Annotated[int, BeforeValidator(_known_format)] = RECORD_FORMAT

    def to_json(self) -> bytes:
        """The record as JSON. `retired` and `quarantine` are left out if they aren't set, as in earlier versions."""
        fields = to_json_value(self)
        assert isinstance(fields, dict)
        if self.state is MarkState.RETIRED:
            fields["format"] = RETIRED_FORMAT
        return record_bytes({name: fields[name] for name in fields if fields[name] or name not in self.optional_fields})

    @classmethod
    def as_declared(cls, plain: dict[str, Any]) -> dict[str, Any]:
        if plain.get("format") == RETIRED_FORMAT and plain.get("state") == MarkState.RETIRED.value:
            return {**plain, "format": RECORD_FORMAT}
        return plain

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
    def is_incremental(self) -> bool:
        """Whether this mark read only data that may have changed since an earlier mark."""
        return self.basis["optimized"] if self.format == EARLIER_FORMAT else self.basis["incremental"]

    def verify(self, data: bytes) -> None:
        if len(self.basis["chain"]) != len(self.basis["digests"]):
            raise ValueError("the chain of marks and their digests differ in length")
        if ("optimized" if self.format == EARLIER_FORMAT else "incremental") not in self.basis:
            raise ValueError("it doesn't say whether it is incremental")
        if self.retired is not None and self.state is not MarkState.RETIRED:
            raise ValueError(f"it was retired, but its state is {self.state}")

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid mark record ({why}). Make a new mark.")


SWEEP_STARTED = frozenset({MarkState.SWEEPING, MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES})


def refuse_earlier_format(record: MarkRecord, what: str) -> None:
    """Raise `Refused` (invariant 7) for a mark of an earlier format. `what` is the refused action, e.g. "approved"."""
    if record.format != RECORD_FORMAT:
        name = f"{record.repository} {record.mark_id}"
        undo_hint = (
            f" Its quarantined objects can still be restored (lakegc undo {name}) or purged (lakegc purge {name})."
        )
        raise Refused(
            f"mark {record.mark_id} of {record.repository} was made by an earlier version of lakegc (format "
            f"{record.format}; this one writes {RECORD_FORMAT}), so it can't be {what}. Make a new mark: lakegc mark "
            f"{record.repository}." + (undo_hint if record.state in SWEEP_STARTED else ""),
            invariant=7,
        )


def refuse_retired(record: MarkRecord) -> None:
    """Raise `Retired` (invariant 12) for a retired mark, even if its retirement was interrupted."""
    if record.state is not MarkState.RETIRED:
        return
    was_swept = record.retired is not None and record.retired["state"] == MarkState.SWEPT
    name = f"{record.repository} {record.mark_id}"
    report = f" To see what its sweep did: lakegc report {name}." if was_swept else ""
    raise Retired(
        f"mark {record.mark_id} of {record.repository} was {retirement_in_words(record)}: its files were removed "
        f"because of its age.{report} To make a new mark: lakegc mark {record.repository}.",
        invariant=12,
    )


def retirement_in_words(record: MarkRecord) -> str:
    """When a mark was retired, and by whom: retired on 2026-11-21 by ada@host."""
    if record.retired is None:
        return "retired"
    who = record.retired["who"].partition(" (process")[0]
    return f"retired on {datetime.fromisoformat(record.retired['when']):%Y-%m-%d} by {who}"


PARTS_ABOUT_OTHERS = frozenset(
    {
        *(("uncommitted_addresses", part) for part in ("first_elsewhere", "second_elsewhere")),
        *(("committed_addresses", part) for part in ("elsewhere", "carried_elsewhere")),
        *(("expired_set", part) for part in ("elsewhere_at_the_end", "committed_elsewhere_since")),
        *(("expired_set", part) for part in ("carried_at_the_end", "served", "served_again")),
    }
)
"""The parts (asset, part) with addresses that other repositories referred to. As long as one of these repositories
can't be read, later marks keep those objects, so a retirement keeps these parts."""


def parts_needed_later(record: MarkRecord) -> frozenset[tuple[str, str]]:
    """The recorded parts among PARTS_ABOUT_OTHERS that contain an address."""
    served = record.steps["expired_set"].facts.get("served_inside", 0) if "expired_set" in record.steps else 0
    return frozenset(
        (asset, part)
        for asset, part in PARTS_ABOUT_OTHERS
        if asset in record.steps
        and part in record.steps[asset].datasets
        and record.steps[asset].datasets[part].get("rows") != 0
        and (served or part not in ("served", "served_again"))
    )


def newest_holds(record: MarkRecord) -> tuple[int, tuple[str, ...]]:
    """The number of the newest file of holds in a mark's record (0 if it isn't signed), and the ids of its holds."""
    if seen := record.holds.get("seen"):
        return seen["number"], tuple(seen["ids"])
    configured = record.holds.get("configured", [])
    return record.holds.get("number", 0), tuple(name for name in record.holds["ids"] if name not in configured)


def finished_at(record: MarkRecord) -> datetime:
    """When a mark finished (or started, if it is unfinished), by the store's clock.

    Marks are ordered by this time, not by their start, because a mark from an inventory starts in the past.
    """
    return record.finished or record.start


def newest_finished(records: Iterable[object]) -> MarkRecord | None:
    """The record of the mark that finished last; None if none is finished. Errors among the records are ignored."""
    own = (record for record in records if isinstance(record, MarkRecord) and record.finished is not None)
    return max(own, key=finished_at, default=None)


CHAIN = (
    "namespace_slices",
    "uncommitted_addresses",
    "retained_commits",
    "committed_addresses",
    "expired_set",
)
"""The steps of a mark in reading order, which is a safety rule (invariant 2)."""


def check_order(record: MarkRecord, *, before: str) -> None:
    """Raise `Refused` (invariant 2) unless all steps before this one were done in order."""
    done = [(name, record.step(name)) for name in CHAIN[: CHAIN.index(before)]]
    for (earlier, first), (later, second) in pairwise(done):
        if first.number >= second.number or first.finished > second.started:
            raise Refused(
                f"{earlier} of mark {record.mark_id} ({record.repository}) was read after {later}: it ended at "
                f"{first.finished:%H:%M:%S}, and {later} began at {second.started:%H:%M:%S}. For safety, {earlier} "
                f"must be read first. Materialize {later} and the assets after it again.",
                invariant=2,
            )


def digest_of(record: MarkRecord) -> str:
    """SHA-256 (hex) of everything that an approval covers (invariant 7).

    This is the mark's id, repository, namespace, scope, cutoff, rules, holds and basis, the hashes of its files (rows
    and live ranges), and the numbers that the brakes compare.
    """
    covered = {
        "mark_id": record.mark_id,
        "repository": [lakefs_id(record.repository), record.repository_created.isoformat()],
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
            name: {part: dataset["sha256"] for part, dataset in sorted(step.datasets.items())}
            for name, step in sorted(record.steps.items())
        },
    }
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()
