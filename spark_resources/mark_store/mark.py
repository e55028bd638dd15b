"""A mark in the namespace: its folder, record and states.

    _lakefs/retention/gc/lakegc/<mark_id>/mark.json      the record: state, cutoff, scope, rules, steps, digest
    _lakefs/retention/gc/lakegc/<mark_id>/<asset>/…      each asset's Parquet
    _lakefs/retention/gc/unified/<mark_id>/deleted/…     the expired set in the reference collector's layout

The record alone determines the state. A mark is finished when its record says so; that update is its last write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from spark_resources.errors import (
    DamagedData,
    NotFound,
    NothingToDo,
    Refused,
    UnknownFormat,
    Untrusted,
    WrongUsage,
    duration,
    shortened,
)
from spark_resources.identifiers import is_mark_id, lakefs_id, repository_on
from spark_resources.mark_store.record import (
    CHAIN,
    FULL_MARK,
    PARTS_ABOUT_OTHERS,
    Basis,
    HoldsSeen,
    MarkRecord,
    PreviousMark,
    Retirement,
    StepRecord,
    finished_at,
    newest_holds,
    refuse_earlier_format,
    refuse_retired,
)
from spark_resources.model import MarkState, check_mark_id
from spark_resources.records.json_records import Version, check_format, read_json
from spark_resources.spark.datasets import Dataset, open_dataset
from spark_resources.stores.base import AlreadyExists, Changed, Store, folders_in
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

GC_ROOT = "_lakefs/retention/gc/"
MARKS_ROOT = GC_ROOT + "lakegc/"
OWNER_KEY = MARKS_ROOT + "owner.json"
OWNER_FORMAT = 1
VERIFICATIONS = "verifications/"  # in the folder of a mark

# allowed transitions; any other is refused
TRANSITIONS: Mapping[MarkState, frozenset[MarkState]] = {
    MarkState.MARKING: frozenset({MarkState.MARKED, MarkState.FAILED, MarkState.RETIRED}),
    MarkState.FAILED: frozenset({MarkState.MARKING, MarkState.RETIRED}),
    MarkState.MARKED: frozenset({MarkState.APPROVED, MarkState.SUPERSEDED, MarkState.RETIRED}),
    MarkState.APPROVED: frozenset({MarkState.MARKED, MarkState.SWEEPING, MarkState.SUPERSEDED, MarkState.RETIRED}),
    MarkState.SWEEPING: frozenset({MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES}),
    MarkState.SWEPT_WITH_FAILURES: frozenset({MarkState.SWEEPING}),
    MarkState.SWEPT: frozenset({MarkState.RETIRED}),
    MarkState.SUPERSEDED: frozenset({MarkState.RETIRED}),
    MarkState.RETIRED: frozenset(),
}
MARK_OPTIONS = ("repository", "repository_created", "namespace", "scope", "min_age", "accepted_missing", "inventory")
UNFINISHED = frozenset({MarkState.MARKING, MarkState.FAILED})


def readable_option(value: Any) -> Any:
    """The value of one of MARK_OPTIONS for a message: a duration as readable text, anything else unchanged."""
    return duration(value) if isinstance(value, timedelta) else value


def mark_folder(mark_id: str) -> str:
    return f"{MARKS_ROOT}{check_mark_id(mark_id)}/"


def asset_folder(mark_id: str, asset: str, part: str = "") -> str:
    return f"{mark_folder(mark_id)}{asset}/{part + '/' if part else ''}"


def verifications_folder(mark_id: str) -> str:
    """The folder with a numbered subfolder for the re-verification of each of a mark's sweeps."""
    return mark_folder(mark_id) + VERIFICATIONS


def reference_folder(mark_id: str) -> str:
    """The folder in which the current reference collector keeps a mark (formats §5)."""
    return f"{GC_ROOT}unified/{check_mark_id(mark_id)}/"


def _record_of(place: Place, mark_id: str, data: bytes, key: str) -> MarkRecord:
    """The record of this mark, with the name of its repository's server. Raises `DamagedData` if it can't be read or
    belongs to another mark."""
    where = f"{place.store().where}/{key}"
    record = MarkRecord.from_json(data, where)
    if record.mark_id != mark_id:
        raise DamagedData(
            f"{where} is the record of another mark, {record.mark_id}: the folder was copied or renamed. Make a new "
            "mark."
        )
    return replace(record, repository=repository_on(place.server, lakefs_id(record.repository)))


def _to_json(record: MarkRecord) -> bytes:
    """The content of `mark.json`, without the name of the repository's server."""
    return replace(record, repository=lakefs_id(record.repository)).to_json()


# --- one mark -------------------------------------------------------------------------------------------------------


class Mark:
    """One mark of one namespace. The only writer of `mark.json`. Callers must hold the namespace's lease."""

    def __init__(self, place: Place, record: MarkRecord, version: Version, root: str = "") -> None:
        self.place, self.record, self._version = place, record, version
        self._root = root or mark_folder(record.mark_id)

    @property
    def key(self) -> str:
        return self._root + "mark.json"

    @property
    def store(self) -> Store:
        return self.place.store()

    def folder(self, asset: str, part: str = "") -> str:
        """The folder of an asset's dataset, which might not exist yet."""
        return f"{self._root}{asset}/{part + '/' if part else ''}"

    @classmethod
    def begin(cls, place: Place, record: MarkRecord, *, root: str = "") -> Mark:
        """Start a mark, or resume an unfinished one with the same id and options.

        `root` is another folder for a record of the same kind, such as a re-verification's. Such a record is
        never resumed: raises `AlreadyExists` if the folder already has one. Raises `Refused` for a finished mark, and
        `WrongUsage` if the options or the repository differ.
        """
        key = (root or mark_folder(record.mark_id)) + "mark.json"
        try:
            return cls(place, record, place.records().create(key, _to_json(record)), root)
        except AlreadyExists:
            if root:
                raise
            mark = cls.open(place, record.mark_id)
        mark.check_unfinished()
        old = mark.record
        for name in MARK_OPTIONS:
            if getattr(old, name) != getattr(record, name):
                raise WrongUsage(
                    f"mark {record.mark_id} of {old.repository} was started with a different "
                    f"{name.replace('_', ' ')} ({readable_option(getattr(old, name))}, now "
                    f"{readable_option(getattr(record, name))}). Choose another mark id."
                )
        # the first run's start is kept: an older cutoff can only keep more
        mark._write(replace(old, state=MarkState.MARKING, failure=None))
        return mark

    @classmethod
    def exists(cls, place: Place, mark_id: str) -> bool:
        """Whether this mark has a record, even an unreadable one."""
        try:
            place.store().stat(mark_folder(mark_id) + "mark.json")
        except NotFound:
            return False
        return True

    @classmethod
    def open(cls, place: Place, mark_id: str, *, root: str = "") -> Mark:
        """Open the mark with this id, or its record in another folder. Raises `NotFound` if it has no record."""
        store, key = place.store(), (root or mark_folder(mark_id)) + "mark.json"
        try:
            data, version = place.records().read_with_version(key)
        except NotFound as error:
            raise NotFound(
                f"there is no mark {mark_id} in {store.where}. 'lakegc status REPO' lists the marks."
            ) from error
        return cls(place, _record_of(place, mark_id, data, key), version, root)

    def check_unfinished(self) -> None:
        """Raise `NothingToDo` if the mark is finished, because it is never remade (invariant 12).

        Raises `Retired` if it was retired, and `Refused` if an earlier version of lakegc began it, because its steps
        are in an older format.
        """
        refuse_retired(self.record)
        if self.record.state not in UNFINISHED:
            raise NothingToDo(
                f"mark {self.record.mark_id} of {self.record.repository} is finished ({self.record.state}) and "
                "can't be remade. Make a new mark with another id.",
                invariant=12,
            )
        refuse_earlier_format(self.record, "resumed")

    def add_step(self, asset: str, step: StepRecord) -> None:
        """Record that an asset of this unfinished mark has been computed."""
        self.check_unfinished()
        number = 1 + max((done.number for done in self.record.steps.values()), default=0)
        self._write(replace(self.record, steps={**self.record.steps, asset: replace(step, number=number)}))

    def move_to(self, state: MarkState, **changes: Any) -> None:
        """Change the state. Raises `Refused` with both states if the transition isn't allowed."""
        if state not in TRANSITIONS[self.record.state]:
            raise Refused(
                f"mark {self.record.mark_id} of {self.record.repository} is {self.record.state}, so it can't become "
                f"{state}. Check 'lakegc status'.",
                invariant=12,
            )
        self._write(replace(self.record, state=state, **changes))

    def begin_sweep(self, *, quarantine: bool) -> None:
        """Record that a sweep begins or resumes, and whether it quarantines. Raises `Refused` unless the mark is
        approved, or its sweep was interrupted or had failures."""
        quarantine = quarantine or self.record.quarantine
        if self.record.state is not MarkState.SWEEPING:
            self.move_to(MarkState.SWEEPING, quarantine=quarantine)
        elif quarantine != self.record.quarantine:
            self._write(replace(self.record, quarantine=quarantine))

    def make_full(self, why: str) -> None:
        """Turn this unfinished incremental mark into a full one, and record why.

        Its steps are discarded, because they relied on a base mark.
        """
        self.check_unfinished()
        basis: Basis = {**FULL_MARK, "why": why, "spellings": self.record.basis["spellings"]}
        self._write(replace(self.record, basis=basis, steps={}))

    def retire(self, *, who: str, now: datetime, files: int, size: int) -> None:
        """Retire the mark, before its `files`, of `size` bytes in all, are removed. From then on it can't be resumed,
        approved, swept or used for other marks. `now` is by the store's clock.

        Raises `Refused` if another process has changed the record since it was read, for example to approve the mark.
        """
        retirement = Retirement(
            when=now.isoformat(), who=who, state=self.record.state.value, files=files, bytes=size, done=False
        )
        self.move_to(MarkState.RETIRED, retired=retirement)

    def end_retirement(self) -> None:
        """Record that the files of this retired mark have been removed."""
        assert self.record.retired is not None
        self._write(replace(self.record, retired={**self.record.retired, "done": True}))

    def fail(self, why: str) -> None:
        """Record why an unfinished mark stopped. It stays unfinished and can be resumed."""
        if self.record.state is MarkState.MARKING:
            self.move_to(MarkState.FAILED, failure=why)

    def record_newer_holds(self, number: int, ids: Sequence[str]) -> None:
        """Record a signed file of holds (its number, and the ids of its holds) if it is newer than the recorded one."""
        if number > newest_holds(self.record)[0]:
            seen = HoldsSeen(number=number, ids=list(ids))
            self._write(replace(self.record, holds={**self.record.holds, "seen": seen}))

    def dataset(self, asset: str, part: str = "") -> Dataset:
        """A step's dataset, checked against the record. Raises `DamagedData` if it is missing or differs, and `Retired`
        for a retired mark, except for the parts that later marks need (PARTS_ABOUT_OTHERS)."""
        if (asset, part) not in PARTS_ABOUT_OTHERS:
            refuse_retired(self.record)
        step = self.record.steps.get(asset)
        if step is None or part not in step.datasets:
            name = f"{asset} {part}".rstrip()
            raise DamagedData(
                f"mark {self.record.mark_id} ({self.record.repository}) has no {name}. Materialize it again."
            )
        return open_dataset(self.place, self.folder(asset, part), sha256=str(step.datasets[part]["sha256"]))

    def _write(self, record: MarkRecord) -> None:
        data, records = _to_json(record), self.place.records()
        try:
            self._version = records.replace(self.key, data, self._version)
        except Changed as error:
            current, version = records.read_with_version(self.key)
            if current != data:
                raise Refused(
                    f"{self.key} in {self.store.where} was changed by another process after it was read. Nothing was "
                    "overwritten. Try again.",
                    invariant=12,
                ) from error
            self._version = version  # our own write succeeded, but its response was lost
        self.record = record


def marks(place: Place) -> Iterator[MarkRecord]:
    """The records of all of lakegc's marks in a namespace, in order of their ids. Folders without a record are ignored.

    Raises `DamagedData` for a record that can't be read. Skips records of an unknown format and, if a key is set,
    unsigned ones.
    """
    return (record for _, record in each_mark(place) if isinstance(record, MarkRecord))


def each_mark(place: Place) -> Iterator[tuple[str, MarkRecord | Untrusted | UnknownFormat]]:
    """The id and record of each of lakegc's marks. For an untrusted record or an unknown format, the error instead."""
    store, records = place.store(), place.records()

    def read(folder: str) -> tuple[str, MarkRecord | Untrusted | UnknownFormat | None]:
        key, mark_id = folder + "mark.json", folder.removeprefix(MARKS_ROOT).rstrip("/")
        try:
            return mark_id, _record_of(place, mark_id, records.read(key), key)
        except NotFound:
            return mark_id, None
        except (Untrusted, UnknownFormat) as error:
            return mark_id, error

    for mark_id, record in fetch_in_parallel(sorted(folders_in(store, MARKS_ROOT)), read):
        if record is not None:
            yield mark_id, record


def folder_ids(store: Store) -> list[str]:
    """The ids of all marks with a folder in a namespace, sorted. A folder might have no record. Folders whose names
    can't be ids are left out, for example that of a probe of the store's capabilities."""
    names = (folder.removeprefix(MARKS_ROOT).rstrip("/") for folder in folders_in(store, MARKS_ROOT))
    return sorted(filter(is_mark_id, names))


def own_mark_ids(place: Place) -> frozenset[str]:
    """The ids of all marks that lakegc began or finished, with or without a record.

    A folder with only an approval or a sweep's files isn't included: lakegc creates such folders for foreign marks.
    """
    store = place.store()

    def is_own(folder: str) -> bool:
        inside: set[str] = set()
        for page in store.pages(folder, delimiter="/"):
            inside |= {listed.key for listed in page.objects} | set(page.prefixes)
        return bool({f"{folder}mark.json", *(f"{folder}{asset}/" for asset in CHAIN)} & inside)

    folders = folders_in(store, MARKS_ROOT)
    results = zip(folders, fetch_in_parallel(folders, is_own), strict=True)
    return frozenset(folder.removeprefix(MARKS_ROOT).rstrip("/") for folder, own in results if own)


@dataclass(frozen=True, slots=True)
class FinishedMarks:
    """All finished marks of a namespace; the ids of marks with an unreadable record; and, if a key is set, the ids of
    marks that aren't signed by a known key (`untrusted`)."""

    finished: list[Mark] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    untrusted: list[str] = field(default_factory=list)


def finished_marks(place: Place) -> FinishedMarks:
    store, found = place.store(), FinishedMarks()

    def open_if_finished(mark_id: str) -> Mark | None:
        try:
            mark = Mark.open(place, mark_id)
        except (NotFound, WrongUsage):  # a folder without a record, or with an invalid id
            return None
        except Untrusted:
            found.untrusted.append(mark_id)
            return None
        except DamagedData:
            found.unreadable.append(mark_id)
            return None
        return mark if mark.record.finished is not None else None

    found.finished.extend(filter(None, fetch_in_parallel(folder_ids(store), open_if_finished)))
    found.untrusted.sort()
    found.unreadable.sort()
    return found


def finished_reverifications(place: Place) -> Iterator[Mark]:
    """The finished re-verifications of all sweeps in a namespace, including those of foreign marks.

    Re-verifications with an unreadable record are left out.
    """
    store = place.store()
    for mark_id in folder_ids(store):
        for root in folders_in(store, f"{MARKS_ROOT}{mark_id}/{VERIFICATIONS}"):
            try:
                verification = Mark.open(place, mark_id, root=root)
            except (NotFound, DamagedData):
                continue
            if verification.record.finished is not None:
                yield verification


def unreadable_roots(place: Place) -> Iterator[str]:
    """The folders of all marks and re-verifications in a namespace whose record is unreadable."""
    store = place.store()
    for folder in folders_in(store, MARKS_ROOT):
        for root in (folder, *folders_in(store, folder + VERIFICATIONS)):
            try:
                Mark.open(place, folder.removeprefix(MARKS_ROOT).rstrip("/"), root=root)
            except NotFound:
                continue
            except DamagedData:
                yield root


def previous_mark(place: Place, record: MarkRecord) -> PreviousMark | None:
    """The value of `MarkRecord.previous`: the newest earlier finished mark of the same repository and scope.

    It also lists earlier marks with an unreadable record, because the mark to compare with may be among them. None if
    there are no earlier marks of either kind.
    """
    identity = (record.repository, record.repository_created, record.namespace, record.scope)
    known = finished_marks(place)
    unreadable = sorted([*known.unreadable, *known.untrusted])
    comparable = [
        other
        for other in (mark.record for mark in known.finished)
        if (other.repository, other.repository_created, other.namespace, other.scope) == identity
        and (record.finished is None or finished_at(other) < record.finished)
    ]
    newest = max(comparable, key=finished_at, default=None)
    if newest is None and not unreadable:
        return None
    if newest is None:
        return {"unreadable": unreadable}
    return {"mark_id": newest.mark_id, "counts": dict(newest.counts), "unreadable": unreadable}


# --- ownership of the namespace -------------------------------------------------------------------------------------


def claim_namespace(place: Place, repository: str, created: datetime) -> None:
    """Write the owner file of a namespace, if there is none. Raises `Refused` (invariant 5) if it names another
    repository.

    Raises `UnknownFormat` if a newer version of lakegc wrote it. A file without a format is of the first format.
    """
    store = place.store()
    own_claim = {"repository": lakefs_id(repository), "created": created.astimezone(UTC).isoformat()}
    try:
        store.write_if_absent(OWNER_KEY, json.dumps({**own_claim, "format": OWNER_FORMAT}, sort_keys=True).encode())
    except AlreadyExists:
        refuse_foreign_namespace(place, repository, created)


def refuse_foreign_namespace(place: Place, repository: str, created: datetime) -> None:
    """Raise as `claim_namespace` does if the namespace has another owner, but write nothing."""
    store = place.store()
    own_claim = {"repository": lakefs_id(repository), "created": created.astimezone(UTC).isoformat()}
    try:
        owner = read_json(store.read(OWNER_KEY))
    except NotFound:
        return
    except ValueError:
        owner = None
    if isinstance(owner, dict):
        check_format(owner.pop("format", OWNER_FORMAT), OWNER_FORMAT, f"{store.where}/{OWNER_KEY}")
    if owner != own_claim:
        is_readable = isinstance(owner, dict) and owner.keys() == own_claim.keys()
        identity = shortened(f"{owner['repository']}, created {owner['created']}", 200) if is_readable else "unreadable"
        raise Refused(
            f"the namespace {place.namespace.uri} is recorded as belonging to another repository ({identity}; this is "
            f"{repository}, created {own_claim['created']}). Two repositories that share a namespace would delete "
            f"each other's data. If the other repository was permanently deleted, delete {OWNER_KEY} in the namespace, "
            "and run the same command again.",
            invariant=5,
        )
