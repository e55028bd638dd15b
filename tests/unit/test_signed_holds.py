"""Signed holds: lakegc detects a file that was removed, replaced by an older one, or written without the key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_resources.errors import Refused, Untrusted, WrongUsage
from spark_resources.mark_store.hold_file import parse_hold
from spark_resources.mark_store.holds import (
    HOLDS_KEY,
    add_hold,
    drop_hold,
    newest_recorded,
    read_holds,
    read_unsigned,
    sign_holds,
)
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import Namespace
from spark_resources.records.signing import Seal, SigningKey, SigningKeys
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.finished_marks import finished_record

BY_HAND = b"# by hand\nholds:\n  - {id: h0, owner: ada, reason: audit, prefix: data/a/}\n"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    record = finished_record()
    keys = SigningKeys(SigningKey.parse("0f" * 32))
    seal = Seal.of(keys, repository="lake", created=record.repository_created, namespace="local://lake")
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)), seal=seal)


def add(place: Place, *ids: str) -> bytes:
    """Add holds and return the file's new content."""
    for hold_id in ids:
        add_hold(place, parse_hold({"id": hold_id, "owner": "ada", "reason": "audit", "prefix": f"data/{hold_id}/"}))
    return place.store().read(HOLDS_KEY)


def marked(place: Place, mark_id: str = "m1") -> Mark:
    """A mark that uses the current holds."""
    return Mark.begin(place, finished_record(mark_id, holds=read_holds(place).record_fields()))


def refused(place: Place, *words: str) -> None:
    with pytest.raises(Untrusted) as caught:
        read_holds(place)
    for word in (*words, HOLDS_KEY, "lakegc holds REPO sign"):
        assert word in str(caught.value)


def test_holds_are_signed_and_numbered(place: Place) -> None:
    """The signature is a comment: it doesn't change the content or hash of the holds."""
    add(place, "h1", "h2")
    signed, unsigned = read_holds(place), read_holds(replace(place, seal=None))

    assert (signed.ids, signed.number, unsigned.number) == (("h1", "h2"), 2, 0)
    assert (unsigned.holds, unsigned.sha256) == (signed.holds, signed.sha256)
    assert place.store().read(HOLDS_KEY).splitlines()[-1].startswith(b"# signed by lakegc: {")
    drop_hold(place, "h1")
    drop_hold(place, "h2")
    assert (read_holds(place).ids, read_holds(place).number) == ((), 4)


@pytest.mark.parametrize("below", ["", "theirs/"], ids=["a mark", "a sweep of a foreign mark"])
def test_removed_holds_are_detected(place: Place, below: str) -> None:
    """Without the file, nothing seems to be on hold, but a signed record says that there were holds."""
    add(place, "h1")
    record = finished_record(holds=read_holds(place).record_fields())
    Mark.begin(place, record, root=mark_folder("m1") + below)
    place.store().delete_many([HOLDS_KEY])

    refused(place, "doesn't exist", "mark m1", "version 1", "h1")
    with pytest.raises(Untrusted):
        add(place, "h2")


def test_restored_older_holds_are_detected(place: Place) -> None:
    """The signature of the older file is valid, but a mark has used a newer version."""
    older = add(place, "h1")
    add(place, "h2")
    marked(place)
    place.store().write(HOLDS_KEY, older)

    refused(place, "is version 1", "mark m1", "version 2", "h1, h2")


def test_the_removal_of_holds_that_a_sweep_used_is_detected(place: Place) -> None:
    """The sweep's record also names holds that were added after the mark."""
    older = add(place, "h1")
    mark = marked(place)
    add(place, "h2")
    newer = read_holds(place)
    mark.record_newer_holds(newer.number, newer.ids)
    digest = mark.record.digest
    place.store().write(HOLDS_KEY, older)

    refused(place, "version 2", "h1, h2")
    assert Mark.open(place, "m1").record.digest == digest


def test_holds_dropped_with_lakegc_do_not_count_as_removed(place: Place) -> None:
    """Dropping a hold signs a newer version with fewer holds."""
    add(place, "h1", "h2")
    marked(place)
    drop_hold(place, "h1")

    assert read_holds(place).ids == ("h2",)


@pytest.mark.parametrize("change", [b"# a word more\n", b"  - {id: h9, owner: eve, reason: x, prefix: data/}\n"])
def test_altered_holds_are_refused(place: Place, change: bytes) -> None:
    """The altered text may precede or follow the signature."""
    data = add(place, "h1")
    content, line = data.splitlines(keepends=True)[:-1], data.splitlines(keepends=True)[-1]
    for altered in (b"".join(content) + change + line, data + change):
        place.store().write(HOLDS_KEY, altered)
        refused(place)


def test_a_file_written_by_hand_is_accepted_once_it_is_signed(place: Place) -> None:
    """Before somebody signs the file, they see its content and that of the newer signed file. Once signed, it is the
    newest version. A file that changed in the meantime isn't signed."""
    older = add(place, "h1")
    add(place, "h2")
    marked(place)
    for content, missing in ((BY_HAND, ("h1", "h2")), (older, ("h0",)), (None, ("h1",))):
        if content is None:
            place.store().delete_many([HOLDS_KEY])
        else:
            place.store().write(HOLDS_KEY, content)
        refused(place)

        unsigned = read_unsigned(place)
        sign_holds(place, unsigned)

        assert unsigned.missing == missing
        assert read_holds(place).ids == tuple(hold.id for hold in unsigned.holds)
        assert read_holds(place).number == newest_recorded(place).number, "no mark records the new version"
    place.store().write(HOLDS_KEY, BY_HAND)
    unsigned = read_unsigned(place)
    place.store().write(HOLDS_KEY, BY_HAND + b"# changed since\n")
    with pytest.raises(Refused, match="changed by another process"):
        sign_holds(place, unsigned)


def test_signed_holds_are_not_changed_without_the_key(place: Place) -> None:
    """The changed file would be unsigned, and every process with the key would refuse it."""
    before = add(place, "h1")

    with pytest.raises(Refused, match="LAKEGC_SIGNING_KEY"):
        add(replace(place, seal=None), "h2")
    with pytest.raises(WrongUsage, match="LAKEGC_SIGNING_KEY"):
        read_unsigned(replace(place, seal=None))
    assert place.store().read(HOLDS_KEY) == before


def test_an_unsigned_record_is_ignored_when_holds_are_verified(place: Place) -> None:
    """Therefore, nobody without the key can make lakegc expect holds that never existed."""
    add(place, "h1")
    Mark.begin(replace(place, seal=None), finished_record(holds={"sha256": "f", "ids": ["x"], "number": 9}))

    assert read_holds(place).ids == ("h1",)
