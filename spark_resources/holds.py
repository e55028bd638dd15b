"""The file of holds in a namespace: what must never go, or not yet, though no rule keeps it (design, invariant 1).

It stands beside the marks, for everybody to review. A file that isn't right throughout is no file of holds: nothing of
it counts, and nothing is marked. Without the file there are no holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from spark_resources.datasets import Place
from spark_resources.errors import NotThere, Refused, WrongUsage
from spark_resources.hold_file import Hold, parse_holds, with_hold, without_hold
from spark_resources.marks import MARKS_ROOT
from spark_resources.stores.base import AlreadyThere, Changed

HOLDS_KEY = MARKS_ROOT + "holds.yaml"


@dataclass(frozen=True, slots=True)
class Holds:
    """The holds of a namespace in the file's order, and the hash of its bytes (hex); "" where there is no file."""

    holds: tuple[Hold, ...] = ()
    sha256: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(hold.id for hold in self.holds)

    def recorded(self) -> dict[str, object]:
        """What a mark's record says of them."""
        return {"sha256": self.sha256, "ids": list(self.ids)}


def read_holds(place: Place) -> Holds:
    """The holds of a namespace. Raises `BadHolds` for a file with anything wrong; none is no holds."""
    data, _ = _read(place)
    if data is None:
        return Holds()
    return Holds(parse_holds(data, where(place)), hashlib.sha256(data).hexdigest())


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

    _change(place, changed)


def drop_hold(place: Place, hold_id: str) -> None:
    """Take one hold out of the file. Raises `WrongUsage` where there is none of this id."""

    def changed(data: bytes | None) -> bytes:
        known = [] if data is None else [each.id for each in parse_holds(data, where(place))]
        if data is None or hold_id not in known:
            raise WrongUsage(f"there is no hold '{hold_id}' in {where(place)}. Known: {', '.join(known) or 'none'}.")
        return without_hold(data, hold_id, where(place))

    _change(place, changed)


def _read(place: Place) -> tuple[bytes | None, str]:
    try:
        return place.store().read_with_tag(HOLDS_KEY)
    except NotThere:
        # the namespace itself may not be there, and that is no absence of holds
        for _ in place.store().pages(MARKS_ROOT, page_size=1):
            break
        return None, ""


def _change(place: Place, changed: Callable[[bytes | None], bytes]) -> None:
    """Replace the file as it is now, or say that it was changed meanwhile; never over somebody else's word."""
    data, tag = _read(place)
    new, store = changed(data), place.store()
    try:
        if data is None:
            store.write_if_absent(HOLDS_KEY, new)
        else:
            store.replace_if_unchanged(HOLDS_KEY, new, tag)
    except (AlreadyThere, Changed) as error:
        if _read(place)[0] == new:
            return  # our own write, whose answer was lost
        raise Refused(
            f"{where(place)} was changed by somebody else meanwhile. Nothing was overwritten; try again."
        ) from error
