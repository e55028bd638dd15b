"""The file of holds in a namespace: what must never go, or not yet, though no rule keeps it (design, invariant 1).

It stands beside the marks, for everybody to review. A file that isn't right throughout is no file of holds: nothing of
it counts, and nothing is marked. Without the file there are no holds.

Where a signing key is set, its last line is a comment with a signature. Each signed version has a number, and marks
record the one that they used: a file that was removed, or replaced by an older one, is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spark_resources.errors import DamagedData, NotThere, Refused, Untrusted, WrongUsage
from spark_resources.mark_store.hold_file import Hold, parse_holds, rendered, with_hold, without_hold
from spark_resources.mark_store.mark import MARKS_ROOT, Mark
from spark_resources.mark_store.record import newest_holds
from spark_resources.model import MarkState
from spark_resources.records.json_records import put_back, was_written_then
from spark_resources.records.signing import VARIABLE, Signature
from spark_resources.stores.base import AlreadyThere, Changed, folders_in
from spark_resources.stores.place import Place

HOLDS_KEY = MARKS_ROOT + "holds.yaml"
SIGNED = b"# signed by lakegc: "
ROOTS = ("", "theirs/")  # of records in a mark's folder: of lakegc's mark, of a sweep of the reference's
READ_AT_ONCE = 16
TO_BE_SWEPT = frozenset({MarkState.MARKED, MarkState.APPROVED, MarkState.SWEPT_WITH_FAILURES})
TRIES = 3


@dataclass(frozen=True, slots=True)
class Holds:
    """The holds of a namespace in the file's order, and the hash of its bytes (hex) but for a signature; "" where there
    is no file. `number` is that of a signed file, 0 otherwise."""

    holds: tuple[Hold, ...] = ()
    sha256: str = ""
    number: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(hold.id for hold in self.holds)

    def recorded(self) -> dict[str, object]:
        """What a mark's record says of them."""
        number = {"number": self.number} if self.number else {}
        return {"sha256": self.sha256, "ids": list(self.ids), **number}


def read_holds(place: Place) -> Holds:
    """The holds of a namespace; none where there is no file. Raises `BadHolds` for a file with anything wrong; where a
    key is set, `Untrusted` for one that isn't signed, or is older than one that a mark used."""
    found = _read_signed(place)
    if place.seal is not None:
        refuse_older(place, found.number)
    return found.parsed(place)


def read_recorded_holds(place: Place) -> Holds:
    """The same without asking what other marks used: for who compares them with a mark's own record."""
    return _read_signed(place).parsed(place)


def where(place: Place) -> str:
    return f"{place.store().where}/{HOLDS_KEY}"


def add_hold(place: Place, hold: Hold) -> None:
    """Write one more hold. Raises `WrongUsage` where its id is taken, `Refused` where somebody else was faster."""

    def changed(data: bytes | None) -> bytes:
        if data is not None and hold.id in {each.id for each in parse_holds(data, where(place))}:
            raise WrongUsage(
                f"there is a hold '{hold.id}' already in {where(place)}. Drop it first, or take another id."
            )
        return with_hold(data, hold, where(place))

    _change(place, _read_signed(place), changed)


def drop_hold(place: Place, hold_id: str) -> None:
    """Take one hold out of the file. Raises `WrongUsage` where there is none of this id."""

    def changed(data: bytes | None) -> bytes:
        known = [] if data is None else [each.id for each in parse_holds(data, where(place))]
        if data is None or hold_id not in known:
            raise WrongUsage(f"there is no hold '{hold_id}' in {where(place)}. Known: {', '.join(known) or 'none'}.")
        return without_hold(data, hold_id, where(place))

    _change(place, _read_signed(place), changed)


# --- as people find it, to sign it ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unsigned:
    """The file as it lies there, whoever wrote it, and the holds of the newest signed one that is known of but not in
    it: what a person looks at before they sign it."""

    holds: tuple[Hold, ...]
    missing: tuple[str, ...]
    found: _File


def read_unsigned(place: Place) -> Unsigned:
    """The file to be signed. Raises `WrongUsage` without a key, `BadHolds` for a file with anything wrong."""
    if place.seal is None:
        raise WrongUsage(f"{VARIABLE} isn't set: there is nothing to sign the holds with")
    found = _read(place)
    holds = found.parsed(place).holds
    known = {hold.id for hold in holds}
    newest = newest_recorded(place)
    return Unsigned(holds, tuple(one for one in newest.ids if one not in known), found)


def sign_holds(place: Place, seen: Unsigned) -> None:
    """Sign the file that a person saw, as newer than any. Raises `Refused` where it was changed meanwhile."""
    content = seen.found.content if seen.found.content is not None else rendered(())
    _write(place, seen.found, content)


# --- the newest that is known of ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest signed holds that any signed record names, and the mark whose record that is."""

    number: int = 0
    ids: tuple[str, ...] = ()
    mark_id: str = ""


def newest_recorded(place: Place) -> Recorded:
    """The newest holds that a mark or a sweep of this namespace used, as far as signed records tell."""
    found = [Recorded(*newest_holds(mark.record), mark.record.mark_id) for mark in signed_marks(place)]
    return max(found, key=lambda one: one.number, default=Recorded())


def signed_marks(place: Place) -> Iterator[Mark]:
    """Every mark, and every sweep of the reference's mark, whose record is signed; others count for nothing here."""

    def opened(root: str) -> Mark | None:
        try:
            return Mark.open(place, root.removeprefix(MARKS_ROOT).split("/")[0], root=root)
        except (NotThere, DamagedData, WrongUsage):
            return None

    roots = [folder + below for folder in folders_in(place.store(), MARKS_ROOT) for below in ROOTS]
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        yield from (one for one in pool.map(opened, roots) if one is not None)


def refuse_older(place: Place, number: int) -> None:
    """Raise `Untrusted` where a mark used a newer file than the one of this number; 0 stands for no file."""
    newest = newest_recorded(place)
    if number < newest.number:
        is_now = f"is version {number}" if number else "isn't there"
        raise Untrusted(
            f"the file of holds {where(place)} {is_now}, and mark {newest.mark_id} used version {newest.number} "
            f"(holds: {', '.join(newest.ids) or 'none'}): it was removed, or an older one was put back. Nothing is "
            "marked, approved or swept by it. Put the newer file back, or look at this one and sign it: lakegc holds "
            "REPO sign."
        )


# --- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """The file without its signature; no content where there is no file."""

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
    except NotThere:
        # the namespace itself may not be there, and that is no absence of holds
        for _ in place.store().pages(MARKS_ROOT, page_size=1):
            break
        return _File()
    content, marker, line = data.rpartition(SIGNED)
    if not marker or not (content == b"" or content.endswith(b"\n")) or b"\n" in line.rstrip(b"\n"):
        return _File(data, tag)
    try:
        return _File(content, tag, Signature.of(json.loads(line), where(place)))
    except ValueError as error:
        raise Untrusted(f"the last line of {where(place)} is no signature ({error}).") from error


def _read_signed(place: Place) -> _File:
    """The file, whose signature is verified where a key is set."""
    found = _read(place)
    if place.seal is None or found.content is None:
        return found
    try:
        place.seal.check(HOLDS_KEY, found.content, found.signature, where(place))
        assert found.signature is not None
        if not was_written_then(place.store(), HOLDS_KEY, found.signature):
            raise put_back(where(place), found.signature)
    except Untrusted as error:
        raise Untrusted(
            f"{error} If the file is right as it is, look at it and sign it: lakegc holds REPO sign."
        ) from error
    return found


def _change(place: Place, found: _File, changed: Callable[[bytes | None], bytes]) -> None:
    """Write what becomes of the file as it is now."""
    if place.seal is None and found.signature is not None:
        raise Refused(
            f"{where(place)} is signed, and {VARIABLE} isn't set: set the key that the others use, and run this again."
        )
    if place.seal is not None:
        refuse_older(place, found.number)
    _write(place, found, changed(found.content))


def _write(place: Place, found: _File, content: bytes) -> None:
    """Replace the file that was found, or say that it was changed meanwhile; never over somebody else's word."""
    store, new = place.store(), _signed(place, found, content)
    try:
        if found.content is None:
            store.write_if_absent(HOLDS_KEY, new)
        else:
            store.replace_if_unchanged(HOLDS_KEY, new, found.tag)
    except (AlreadyThere, Changed) as error:
        if store.read(HOLDS_KEY) != new:  # otherwise it is our own write, whose answer was lost
            raise Refused(
                f"{where(place)} was changed by somebody else meanwhile. Nothing was overwritten; try again."
            ) from error
    if place.seal is not None:
        _record_in_marks(place, _read_signed(place).parsed(place))


def _record_in_marks(place: Place, holds: Holds) -> None:
    """Note these holds in the record of each mark that can be swept next, so that its sweep notices where the file was
    removed since. A sweep that is at work notes them itself, and nobody else writes its record meanwhile.

    Raises `Refused` where a record is written by somebody else again and again.
    """
    # not the retry policy: what is repeated is a reading that another writer overtook, and it needs no wait
    for last in (*[False] * (TRIES - 1), True):
        try:
            for mark in signed_marks(place):
                if mark.record.state in TO_BE_SWEPT:
                    mark.saw_holds(holds.number, holds.ids)
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
