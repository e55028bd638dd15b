"""The file of holds in a namespace: objects to keep, for good or for a time, that no rule keeps (design, invariant 1).

It is stored beside the marks, where everybody can review it. A file with any problem is refused as a whole, and nothing
is marked. Without the file there are no holds.

If a signing key is set, the last line is a comment with a signature. Each signed version has a number, and marks record
the one that they used, so that a file that was removed or replaced by an older one is detected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spark_resources.errors import DamagedData, NotFound, Refused, Untrusted, WrongUsage
from spark_resources.mark_store.hold_file import Hold, parse_holds, rendered, with_hold, without_hold
from spark_resources.mark_store.mark import MARKS_ROOT, Mark
from spark_resources.mark_store.record import HoldsUsed, newest_holds
from spark_resources.model import MarkState
from spark_resources.records.json_records import has_signed_time, read_json, replayed
from spark_resources.records.signing import VARIABLE, Signature
from spark_resources.stores.base import AlreadyExists, Changed, folders_in
from spark_resources.stores.place import Place

HOLDS_KEY = MARKS_ROOT + "holds.yaml"
SIGNED = b"# signed by lakegc: "
ROOTS = ("", "theirs/")  # of records in a mark's folder: of lakegc's mark, of a sweep of the reference's
READ_AT_ONCE = 16
TO_BE_SWEPT = frozenset({MarkState.MARKED, MarkState.APPROVED, MarkState.SWEPT_WITH_FAILURES})
TRIES = 3


@dataclass(frozen=True, slots=True)
class Holds:
    """The holds of a namespace in the file's order, and the hash of its bytes (hex) without the signature; "" if there
    is no file. `number` is the version number of a signed file, 0 otherwise."""

    holds: tuple[Hold, ...] = ()
    sha256: str = ""
    number: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(hold.id for hold in self.holds)

    def recorded(self) -> HoldsUsed:
        """Their form in a mark's record."""
        found = HoldsUsed(sha256=self.sha256, ids=list(self.ids))
        return {**found, "number": self.number} if self.number else found


def read_holds(place: Place) -> Holds:
    """The holds of a namespace; none if there is no file. Raises `BadHolds` for a file with any problem. If a key is
    set, raises `Untrusted` for a file that isn't signed, or is older than one that a mark used."""
    found = _read_signed(place)
    if place.seal is not None:
        refuse_older(place, found.number)
    return found.parsed(place)


def read_recorded_holds(place: Place) -> Holds:
    """The same without checking which version other marks used, for comparison with a mark's own record."""
    return _read_signed(place).parsed(place)


def where(place: Place) -> str:
    return f"{place.store().where}/{HOLDS_KEY}"


def add_hold(place: Place, hold: Hold) -> None:
    """Add a hold. Raises `WrongUsage` if its id is taken, `Refused` if another process has changed the file."""

    def changed(data: bytes | None) -> bytes:
        if data is not None and hold.id in {each.id for each in parse_holds(data, where(place))}:
            raise WrongUsage(
                f"the hold '{hold.id}' already exists in {where(place)}. Drop it first, or choose another id."
            )
        return with_hold(data, hold, where(place))

    _change(place, _read_signed(place), changed)


def drop_hold(place: Place, hold_id: str) -> None:
    """Remove a hold. Raises `WrongUsage` if there is none with this id."""

    def changed(data: bytes | None) -> bytes:
        known = [] if data is None else [each.id for each in parse_holds(data, where(place))]
        if data is None or hold_id not in known:
            raise WrongUsage(f"there is no hold '{hold_id}' in {where(place)}. Known: {', '.join(known) or 'none'}.")
        return without_hold(data, hold_id, where(place))

    _change(place, _read_signed(place), changed)


# --- signing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unsigned:
    """The file as it is, without trusting its author, and holds of the newest known signed version that it lacks. A
    person reviews both before signing."""

    holds: tuple[Hold, ...]
    missing: tuple[str, ...]
    found: _File


def read_unsigned(place: Place) -> Unsigned:
    """The file to be signed. Raises `WrongUsage` without a key, `BadHolds` for a file with any problem."""
    if place.seal is None:
        raise WrongUsage(f"{VARIABLE} isn't set: there is no key to sign the holds with")
    found = _read(place)
    holds = found.parsed(place).holds
    known = {hold.id for hold in holds}
    newest = newest_recorded(place)
    return Unsigned(holds, tuple(one for one in newest.ids if one not in known), found)


def sign_holds(place: Place, seen: Unsigned) -> None:
    """Sign the reviewed file as the newest version. Raises `Refused` if it was changed in the meantime."""
    content = seen.found.content if seen.found.content is not None else rendered(())
    _write(place, seen.found, content)


# --- the newest known version ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest version of signed holds that any signed record names, and the mark of that record."""

    number: int = 0
    ids: tuple[str, ...] = ()
    mark_id: str = ""


def newest_recorded(place: Place) -> Recorded:
    """The newest holds that a mark or a sweep of this namespace used, according to signed records."""
    found = [Recorded(*newest_holds(mark.record), mark.record.mark_id) for mark in signed_marks(place)]
    return max(found, key=lambda one: one.number, default=Recorded())


def signed_marks(place: Place) -> Iterator[Mark]:
    """Every mark, and every sweep of a foreign mark, whose record is signed; unsigned ones are ignored."""

    def opened(root: str) -> Mark | None:
        try:
            return Mark.open(place, root.removeprefix(MARKS_ROOT).split("/")[0], root=root)
        except (NotFound, DamagedData, WrongUsage):
            return None

    roots = [folder + below for folder in folders_in(place.store(), MARKS_ROOT) for below in ROOTS]
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        yield from (one for one in pool.map(opened, roots) if one is not None)


def refuse_older(place: Place, number: int) -> None:
    """Raise `Untrusted` if a mark used a newer version of the file than this number; 0 stands for no file."""
    newest = newest_recorded(place)
    if number < newest.number:
        is_now = f"is version {number}" if number else "doesn't exist"
        raise Untrusted(
            f"{where(place)} {is_now}, but mark {newest.mark_id} used version {newest.number} "
            f"(holds: {', '.join(newest.ids) or 'none'}): it was deleted, or replaced by an older version. Nothing "
            "is marked, approved or swept with it. Restore the newer file, or review this one and sign it: lakegc "
            "holds REPO sign."
        )


# --- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """The file without its signature; no content if there is no file."""

    content: bytes | None = None
    tag: str = ""
    signature: Signature | None = None

    @property
    def number(self) -> int:
        return 0 if self.signature is None else self.signature.number

    def parsed(self, place: Place) -> Holds:
        if self.content is None:
            return Holds()
        holds = parse_holds(self.content, where(place))
        number = 0 if place.seal is None else self.number
        return Holds(holds, hashlib.sha256(self.content).hexdigest(), number)


def _read(place: Place) -> _File:
    try:
        data, tag = place.store().read_with_tag(HOLDS_KEY)
    except NotFound:
        # the namespace itself may be missing, which must not be read as an absence of holds
        for _ in place.store().pages(MARKS_ROOT, page_size=1):
            break
        return _File()
    content, marker, line = data.rpartition(SIGNED)
    if not marker or not (content == b"" or content.endswith(b"\n")) or b"\n" in line.rstrip(b"\n"):
        return _File(data, tag)
    try:
        return _File(content, tag, Signature.of(read_json(line), where(place)))
    except ValueError as error:
        raise Untrusted(f"the last line of {where(place)} is not a valid signature ({error}).") from error


def _read_signed(place: Place) -> _File:
    """The file; its signature is verified if a key is set."""
    found = _read(place)
    if place.seal is None or found.content is None:
        return found
    try:
        place.seal.check(HOLDS_KEY, found.content, found.signature, where(place))
        assert found.signature is not None
        if not has_signed_time(place.store(), HOLDS_KEY, found.signature):
            raise replayed(where(place), found.signature)
    except Untrusted as error:
        raise Untrusted(f"{error} If the file is right, review it and sign it: lakegc holds REPO sign.") from error
    return found


def _change(place: Place, found: _File, changed: Callable[[bytes | None], bytes]) -> None:
    """Apply a change to the file as it is now, and write it."""
    if place.seal is None and found.signature is not None:
        raise Refused(
            f"{where(place)} is signed, but {VARIABLE} isn't set. Set it to your deployment's signing key, and run "
            "the command again."
        )
    if place.seal is not None:
        refuse_older(place, found.number)
    _write(place, found, changed(found.content))


def _write(place: Place, found: _File, content: bytes) -> None:
    """Replace the file that was read. Raises `Refused` if it was changed in the meantime, so that no change is lost."""
    store, new = place.store(), _signed(place, found, content)
    try:
        if found.content is None:
            store.write_if_absent(HOLDS_KEY, new)
        else:
            store.replace_if_unchanged(HOLDS_KEY, new, found.tag)
    except (AlreadyExists, Changed) as error:
        if store.read(HOLDS_KEY) != new:  # otherwise our own write succeeded and its response was lost
            raise Refused(
                f"{where(place)} was changed by another process in the meantime. Nothing was overwritten. Try again."
            ) from error
    if place.seal is not None:
        _record_in_marks(place, _read_signed(place).parsed(place))


def _record_in_marks(place: Place, holds: Holds) -> None:
    """Record these holds in each mark that can be swept next, so that its sweep detects if the file was removed since.
    A running sweep records them itself, and no other process writes its record at that time.

    Raises `Refused` if other writers keep changing a record.
    """
    # not the retry policy: the record is read again after a concurrent write, without a wait
    for last in (*[False] * (TRIES - 1), True):
        try:
            for mark in signed_marks(place):
                if mark.record.state in TO_BE_SWEPT:
                    mark.record_newer_holds(holds.number, holds.ids)
        except Refused:
            if last:
                raise
        else:
            return


def _signed(place: Place, found: _File, content: bytes) -> bytes:
    if place.seal is None:
        return content
    content += b"" if content.endswith(b"\n") else b"\n"
    number = 1 + max(found.number, newest_recorded(place).number)
    signature = place.seal.sign(HOLDS_KEY, content, written=place.store().now(), number=number)
    return content + SIGNED + json.dumps(signature.plain(), sort_keys=True).encode() + b"\n"
