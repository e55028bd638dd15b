"""The holds of a namespace: objects to keep, permanently or until a date, regardless of the rules (invariant 1).

Those in the namespace's file and those in the settings apply together. The file is stored next to the marks, where
everyone can review it. A file with any problem is refused as a whole, and nothing is marked.

If a signing key is set, the last line is a comment with a signature. Each signed version has a number, and marks record
the newest one, so lakegc detects a file that was removed or replaced by an older version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from spark_resources.errors import DamagedData, NotFound, Refused, Untrusted, WrongUsage, full_stop
from spark_resources.mark_store.hold_file import Hold, parse_holds, render_holds, with_hold, without_hold
from spark_resources.mark_store.mark import MARKS_ROOT, Mark
from spark_resources.mark_store.record import HoldsUsed, newest_holds
from spark_resources.model import MarkState
from spark_resources.records.json_records import has_signed_time, read_json, replay_error
from spark_resources.records.signing import KEY_VARIABLE, Signature
from spark_resources.stores.base import AlreadyExists, Changed, folders_in
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

HOLDS_KEY = MARKS_ROOT + "holds.yaml"
SIGNED = b"# signed by lakegc: "
RECORD_FOLDERS = ("", "theirs/")  # in a mark's folder: for the record of lakegc's own mark, or of a foreign one's sweep
SWEEPABLE_STATES = frozenset({MarkState.MARKED, MarkState.APPROVED, MarkState.SWEPT_WITH_FAILURES})
MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class Holds:
    """The holds of a namespace: those of its file, in the file's order, then those only in the settings (`configured`).

    `sha256` identifies all of them. Without configured holds it is the hash (hex) of the file's bytes without the
    signature, "" if there is no file. `number` is the version number of a signed file, 0 otherwise.
    """

    holds: tuple[Hold, ...] = ()
    sha256: str = ""
    number: int = 0
    configured: tuple[Hold, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(hold.id for hold in self.holds)

    @property
    def ids_in_file(self) -> tuple[str, ...]:
        return tuple(hold.id for hold in self.holds if hold not in self.configured)

    def with_configured(self, configured: Sequence[Hold], where: str) -> Holds:
        """These holds of a file, together with those of the settings. Raises `Refused` if both have different holds
        with the same id; `where` is the location of the file."""
        known = {hold.id: hold for hold in self.holds}
        if conflicts := [hold.id for hold in configured if known.get(hold.id, hold) != hold]:
            raise Refused(
                f"the hold '{conflicts[0]}' in {where} differs from the one with the same id in the settings, so "
                "lakegc can't tell what should be on hold. Rename or remove one of them.",
                invariant=3,
            )
        added = tuple(sorted((hold for hold in configured if hold.id not in known), key=lambda hold: hold.id))
        if not added:
            return self
        content = json.dumps([self.sha256, *(hold.fields() for hold in added)], sort_keys=True)
        return Holds((*self.holds, *added), hashlib.sha256(content.encode()).hexdigest(), self.number, added)

    def record_fields(self) -> HoldsUsed:
        """The fields that a mark records."""
        fields = HoldsUsed(sha256=self.sha256, ids=list(self.ids))
        if self.configured:
            fields["configured"] = [hold.id for hold in self.configured]
        if self.number:
            fields["number"] = self.number
        return fields


def read_holds(place: Place, configured: Sequence[Hold] = ()) -> Holds:
    """The holds of a namespace: those of its file, if there is one, and `configured` ones from the settings.

    Raises `BadHolds` for a file with any problem, and `Refused` if a configured hold contradicts it. If a key is set,
    raises `Untrusted` for an unsigned file, and for a missing or older file if a mark recorded a newer one.
    """
    file = _read_signed(place)
    if place.seal is not None:
        refuse_older_holds(place, file.number)
    return file.parse(place).with_configured(configured, holds_location(place))


def read_holds_of_any_version(place: Place, configured: Sequence[Hold] = ()) -> Holds:
    """Like `read_holds`, but accepts a missing or older file even if a mark recorded a newer one."""
    return _read_signed(place).parse(place).with_configured(configured, holds_location(place))


def holds_location(place: Place) -> str:
    return f"{place.store().where}/{HOLDS_KEY}"


def add_hold(place: Place, hold: Hold) -> None:
    """Add a hold. Raises `WrongUsage` if its id is taken, and `Refused` if another process has changed the file."""

    def edit(data: bytes | None) -> bytes:
        if data is not None and hold.id in {known.id for known in parse_holds(data, holds_location(place))}:
            raise WrongUsage(
                f"the hold '{hold.id}' already exists in {holds_location(place)}. Drop it first, or choose another id."
            )
        return with_hold(data, hold, holds_location(place))

    _change(place, _read_signed(place), edit)


def drop_hold(place: Place, hold_id: str) -> None:
    """Remove a hold. Raises `WrongUsage` if its id is unknown, `Refused` if another process has changed the file."""

    def edit(data: bytes | None) -> bytes:
        known = [] if data is None else [hold.id for hold in parse_holds(data, holds_location(place))]
        if data is None or hold_id not in known:
            raise WrongUsage(
                f"there is no hold '{hold_id}' in {holds_location(place)}. "
                f"Existing holds: {', '.join(known) or 'none'}."
            )
        return without_hold(data, hold_id, holds_location(place))

    _change(place, _read_signed(place), edit)


# --- signing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnsignedHolds:
    """The unverified file, and the holds of the newest known signed version that are missing from it.

    A person reviews both before signing.
    """

    holds: tuple[Hold, ...]
    missing: tuple[str, ...]
    file: _HoldFile


def read_unsigned(place: Place) -> UnsignedHolds:
    """The file to be signed. Raises `WrongUsage` without a key, and `BadHolds` for a file with any problem."""
    if place.seal is None:
        raise WrongUsage(f"the holds can't be signed without a key. Set {KEY_VARIABLE}.")
    file = _read(place)
    holds = file.parse(place).holds
    known = {hold.id for hold in holds}
    newest = newest_recorded(place)
    return UnsignedHolds(holds, tuple(hold_id for hold_id in newest.ids if hold_id not in known), file)


def sign_holds(place: Place, reviewed: UnsignedHolds) -> None:
    """Sign the reviewed file as the newest version. Raises `Refused` if it was changed after it was read."""
    content = reviewed.file.content if reviewed.file.content is not None else render_holds(())
    _write(place, reviewed.file, content)


# --- the newest known version ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordedHolds:
    """The newest version of signed holds in any signed record, and the mark of that record."""

    number: int = 0
    ids: tuple[str, ...] = ()
    mark_id: str = ""


def newest_recorded(place: Place) -> RecordedHolds:
    """The newest version of the holds in the signed records of this namespace's marks and sweeps."""
    recorded = [RecordedHolds(*newest_holds(mark.record), mark.record.mark_id) for mark in signed_marks(place)]
    return max(recorded, key=lambda holds: holds.number, default=RecordedHolds())


def signed_marks(place: Place) -> Iterator[Mark]:
    """All marks, and sweeps of foreign marks, with a signed record; others are ignored."""

    def open_if_signed(root: str) -> Mark | None:
        try:
            return Mark.open(place, root.removeprefix(MARKS_ROOT).split("/")[0], root=root)
        except (NotFound, DamagedData, WrongUsage):
            return None

    roots = [folder + below for folder in folders_in(place.store(), MARKS_ROOT) for below in RECORD_FOLDERS]
    return (opened for opened in fetch_in_parallel(roots, open_if_signed) if opened is not None)


def refuse_older_holds(place: Place, number: int) -> None:
    """Raise `Untrusted` if a mark recorded a newer version of the file than this number; 0 stands for no file."""
    newest = newest_recorded(place)
    if number < newest.number:
        state_now = f"is version {number}" if number else "doesn't exist"
        raise Untrusted(
            f"{holds_location(place)} {state_now}, but mark {newest.mark_id} recorded version {newest.number} "
            f"(holds: {', '.join(newest.ids) or 'none'}): it was deleted, or replaced by an older version. Until "
            "this is resolved, nothing is marked, approved or swept. Restore the newer file, or review the holds and "
            "sign them with 'lakegc holds REPO sign'."
        )


# --- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _HoldFile:
    """The file without its signature; `content` is None if there is no file."""

    content: bytes | None = None
    tag: str = ""
    signature: Signature | None = None

    @property
    def number(self) -> int:
        return 0 if self.signature is None else self.signature.number

    def parse(self, place: Place) -> Holds:
        if self.content is None:
            return Holds()
        holds = parse_holds(self.content, holds_location(place))
        number = 0 if place.seal is None else self.number
        return Holds(holds, hashlib.sha256(self.content).hexdigest(), number)


def _read(place: Place) -> _HoldFile:
    try:
        data, tag = place.store().read_with_tag(HOLDS_KEY)
    except NotFound:
        # raises if the namespace itself is missing: that must not be mistaken for having no holds
        for _ in place.store().pages(MARKS_ROOT, page_size=1):
            break
        return _HoldFile()
    content, marker, line = data.rpartition(SIGNED)
    if not marker or not (content == b"" or content.endswith(b"\n")) or b"\n" in line.rstrip(b"\n"):
        return _HoldFile(data, tag)
    try:
        return _HoldFile(content, tag, Signature.of(read_json(line), holds_location(place)))
    except ValueError as error:
        raise Untrusted(
            f"the last line of {holds_location(place)} is not a valid signature ({error}). Remove that line, review "
            "the file, and sign it with 'lakegc holds REPO sign'."
        ) from error


def _read_signed(place: Place) -> _HoldFile:
    """The file; its signature is verified if a key is set."""
    file = _read(place)
    if place.seal is None or file.content is None:
        return file
    try:
        place.seal.check(HOLDS_KEY, file.content, file.signature, holds_location(place))
        assert file.signature is not None
        if not has_signed_time(place.store(), HOLDS_KEY, file.signature):
            raise replay_error(holds_location(place), file.signature)
    except Untrusted as error:
        raise Untrusted(f"{full_stop(error)} Review the file, and sign it with 'lakegc holds REPO sign'.") from error
    return file


def _change(place: Place, file: _HoldFile, edit: Callable[[bytes | None], bytes]) -> None:
    """Apply an edit to the file that was read, and write it."""
    if place.seal is None and file.signature is not None:
        raise Refused(
            f"{holds_location(place)} is signed, but {KEY_VARIABLE} isn't set. Set it to your deployment's signing "
            "key, and run the command again."
        )
    if place.seal is not None:
        refuse_older_holds(place, file.number)
    _write(place, file, edit(file.content))


def _write(place: Place, file: _HoldFile, content: bytes) -> None:
    """Replace the file that was read. Raises `Refused` if it has changed since then, so that no change is lost."""
    store, new = place.store(), _with_signature(place, file, content)
    try:
        if file.content is None:
            store.write_if_absent(HOLDS_KEY, new)
        else:
            store.replace_if_unchanged(HOLDS_KEY, new, file.tag)
    except (AlreadyExists, Changed) as error:
        if store.read(HOLDS_KEY) != new:  # otherwise our own write succeeded, but its response was lost
            raise Refused(
                f"{holds_location(place)} was changed by another process after it was read. Nothing was overwritten. "
                "Try again."
            ) from error
    if place.seal is not None:
        _record_in_marks(place, _read_signed(place).parse(place))


def _record_in_marks(place: Place, holds: Holds) -> None:
    """Record these holds in each mark that can be swept, so that its sweep detects a later removal of the file.

    A running sweep records the holds itself, and no other process writes the record of its mark in the meantime. Raises
    `Refused` if other writers keep changing a record.
    """
    # not the retry policy: after a concurrent write, the record is read again without waiting
    for attempt in range(1, MAX_TRIES + 1):
        try:
            for mark in signed_marks(place):
                if mark.record.state in SWEEPABLE_STATES:
                    mark.record_newer_holds(holds.number, holds.ids)
        except Refused:
            if attempt == MAX_TRIES:
                raise
        else:
            return


def _with_signature(place: Place, file: _HoldFile, content: bytes) -> bytes:
    if place.seal is None:
        return content
    content += b"" if content.endswith(b"\n") else b"\n"
    number = 1 + max(file.number, newest_recorded(place).number)
    signature = place.seal.sign(HOLDS_KEY, content, written=place.store().now(), number=number)
    return content + SIGNED + json.dumps(signature.to_dict(), sort_keys=True).encode() + b"\n"
