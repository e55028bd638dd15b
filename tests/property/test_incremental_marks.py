"""Incremental marks, and marks that become full instead: what is listed, what is missed, and what is reported."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.asset_checks.invariants import nothing_missed
from lakegc_assets.mark import candidates, incremental_comparison, reference_status
from lakegc_assets.mark.options import MarkOptions
from spark_resources.errors import DamagedData, Refused, WrongUsage
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.mark_store.record import CHAIN
from spark_resources.model import Rules, Scope
from tests.support.mark_runs import ANY_AGE, Marked, Marker

DAY = timedelta(days=1)
FULL_MARK = MarkOptions(min_age=timedelta(0), allow_young=True, full=True)
HOLD = 'holds:\n  - {id: h1, owner: ada, reason: audit, prefix: "data/"}\n'


class Lake:
    """A sandbox with two commits ten days apart, of which the first one's object is garbage."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.repository = sandbox, sandbox.create("lake")
        sandbox.set_clock(sandbox.now() - 30 * DAY)
        set_rules(self.repository, Rules(3))
        self.old = self.put("a", b"old")
        self.put("kept", b"kept")
        self.repository.commit("main", "first")
        self.days(10)
        self.put("a", b"new one")
        self.repository.commit("main", "second")
        self.days(10)

    def put(self, path: str, data: bytes) -> str:
        return self.repository.put("main", path, data).address

    def days(self, days: int) -> None:
        self.sandbox.set_clock(self.sandbox.now() + days * DAY)

    def file(self, key: str) -> Path:
        file = self.repository.objects.file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        return file

    def write(self, key: str, data: bytes = b"stray") -> None:
        """An object that nothing refers to, dated now by the sandbox's clock."""
        now = self.sandbox.now().timestamp()
        self.file(key).write_bytes(data)
        os.utime(self.file(key), (now, now))

    def steps(self, mark_id: str, *assets: str) -> None:
        Marker().steps(self.sandbox.settings, "lake", mark_id, ANY_AGE, assets)

    def mark(self, mark_id: str, options: MarkOptions | None = None, *, every: int = 9) -> Marked:
        self.days(0)
        settings = {**self.sandbox.settings, "full_every": str(every)}
        return Marker().mark(settings, "lake", mark_id, options or ANY_AGE)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Sandbox(tmp_path / "sandbox") as sandbox:
        yield Lake(sandbox)


def test_objects_of_a_dropped_hold_expire_in_the_next_incremental_mark(lake: Lake) -> None:
    """The objects expire even if nothing else has changed.

    apache/hudi#10651, lance-format/lance#8705
    """
    lake.file(HOLDS_KEY).write_text(HOLD)
    with_hold = lake.mark("m1")
    lake.file(HOLDS_KEY).unlink()
    lake.days(5)

    freed = lake.mark("m2")

    assert (with_hold.expired, freed.expired) == (set(), {lake.old})
    assert freed.record.is_incremental
    assert freed.record.basis["chain"] == ["m1"]
    assert freed.facts("namespace_slices")["slices"] == 0  # no slice is open any more
    assert freed.facts("expired_set")["compared"] == 1
    assert freed.facts("expired_set")["candidates"] == with_hold.facts("expired_set")["candidates"] == 3


def test_altered_files_of_the_base_mark_make_the_next_mark_full(lake: Lake) -> None:
    """The mark records why it isn't incremental."""
    base = lake.mark("m1")
    lake.days(5)
    parts = ("forged", "committed_addresses/addresses/", "expired_set/not_retained/", "mark.json")
    for number, part in enumerate(parts):
        spoil(lake, f"_lakefs/retention/gc/lakegc/{base.record.mark_id}/", part)

        again = lake.mark(f"after{number}")

        assert again.expired == {lake.old}, part
        if part != "mark.json":
            assert not again.record.is_incremental, part
            assert base.record.mark_id in again.record.basis["why"]
        base = again


def spoil(lake: Lake, mark: str, part: str) -> None:
    if part == "forged":
        record = lake.file(mark + "mark.json")
        record.write_text(record.read_text().replace('"candidates": 3', '"candidates": 9'))
        return
    spoiled = lake.file(mark + part)
    for file in spoiled.glob("*.parquet") if spoiled.is_dir() else [spoiled]:
        file.write_bytes(b"something else")


def test_every_nth_mark_is_full_and_reports_objects_that_incremental_ones_missed(lake: Lake) -> None:
    """The missed object was written to an old slice. The check in the UI fails."""
    lake.mark("m1")
    lake.days(5)
    stray = f"{lake.old.rpartition('/')[0]}/stray"
    lake.write(stray)

    incremental, full = lake.mark("m2", every=2), lake.mark("m3", every=2)

    assert incremental.record.is_incremental
    assert not full.record.is_incremental
    assert full.expired - incremental.expired == {stray}
    assert (full.facts("expired_set")["missed"], full.facts("expired_set")["missed_names"]) == (1, [stray])
    passed, measured = nothing_missed(full.record)
    assert not passed
    assert measured["names"] == stray
    assert nothing_missed(incremental.record)[0]


def test_a_full_mark_also_becomes_due_after_incremental_marks_with_named_bases(lake: Lake) -> None:
    """Marks with the same named base all have the same short chain. The full mark finds objects that were uploaded late
    to an old slice."""
    from_the_first = MarkOptions(min_age=timedelta(0), allow_young=True, since="m1")
    lake.mark("m1", every=3)
    lake.days(5)
    late = f"{lake.old.rpartition('/')[0]}/late"
    lake.write(late)

    named = [lake.mark(mark_id, from_the_first, every=3) for mark_id in ("m2", "m3", "m4")]
    scheduled = lake.mark("m5", every=3)  # the schedule requests its marks without options

    assert [mark.record.basis["full_in"] for mark in named] == [1, 0, 0]
    assert not any(late in mark.expired for mark in named)
    not_looked_for = nothing_missed(named[-1].record)[1]["not_looked_for"]
    assert "due now" in not_looked_for
    assert "--full --scope unified --min-age 0 --allow-young" in not_looked_for
    assert not scheduled.record.is_incremental
    assert late in scheduled.expired


def test_an_incremental_mark_equals_a_full_one_whether_or_not_addresses_are_broadcast(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some ranges are no longer retained, and some of those are retained again."""

    def incremental_marks(name: str, base: str) -> list[set[str]]:
        """The expired sets of incremental marks, with and without broadcasts."""
        expired = []
        for limit in (0, 250_000):
            for module in (incremental_comparison, reference_status):
                monkeypatch.setattr(module, "MAX_BROADCAST_ADDRESSES", limit)
            mark = lake.mark(f"{name}-{limit}", replace(ANY_AGE, since=base))
            assert mark.record.basis["chain"] == [base]
            expired.append(mark.expired)
        return expired

    lake.mark("m1")
    lake.put("staged", b"staged")
    lake.put("kept", b"replaced")
    lake.repository.commit("main", "third")
    lake.put("staged", b"staged again")
    lake.write("data/stray")
    lake.days(20)
    full = lake.mark("m2", FULL_MARK)
    incremental = incremental_marks("m3", "m1")
    set_rules(lake.repository, Rules(90))
    full_again = lake.mark("m4", FULL_MARK)
    again = incremental_marks("m5", "m2")

    assert {lake.old, "data/stray"} <= full.expired
    assert incremental == [full.expired] * 2
    assert full_again.expired == {"data/stray"}
    assert again == [full_again.expired] * 2


def test_an_address_whose_history_was_not_looked_up_stops_an_incremental_mark(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the address were compared without what earlier marks know of it, it could look like garbage."""
    lake.mark("m1")
    lake.write("data/stray")
    lake.days(1)
    addresses_of = incremental_comparison.addresses_of
    monkeypatch.setattr(incremental_comparison, "addresses_of", lambda *of: addresses_of(*of)[1:])

    with pytest.raises(DamagedData, match="1 address, such as"):
        lake.mark("m2")


def test_an_incremental_mark_reads_known_branch_ranges_only_if_sizes_match(lake: Lake) -> None:
    """If something unreferenced has the size of an entry, the mark has to know the paths of the entry's range."""
    lake.mark("m1")
    for table in lake.file("_lakefs/").glob("*"):
        if table.is_file():
            table.rename(table.with_name(f"{table.name}.away"))
    for name in ("stray", "of no size in a branch"):
        lake.write(f"data/{name}", name.encode())
    lake.days(1)

    incremental = lake.mark("m2")

    assert incremental.record.is_incremental
    assert incremental.expired == {lake.old, "data/stray", "data/of no size in a branch"}
    lake.write("data/kept", b"KEPT")
    lake.days(1)
    with pytest.raises(DamagedData, match="referenced by a branch of lake, is missing"):
        lake.mark("m3")


def test_branch_ranges_are_read_if_their_recorded_sizes_are_damaged_or_missing(lake: Lake) -> None:
    """A staged object with the same content as the committed one is kept."""
    for number, damage in enumerate(("damaged", "gone", "never written")):
        lake.mark(f"base{number}", FULL_MARK)
        lake.days(5)
        again = lake.put("kept", b"kept")  # on no list, because the bytes are the same
        lake.days(1)
        sizes = lake.file(f"_lakefs/retention/gc/lakegc/base{number}/committed_addresses/sizes/")
        for file in sizes.glob("part*"):
            file.unlink() if damage == "gone" else file.write_bytes(bytes(file.stat().st_size))
        if damage == "never written":
            record = lake.file(f"_lakefs/retention/gc/lakegc/base{number}/mark.json")
            text = json.loads(record.read_text())
            del text["steps"]["committed_addresses"]["datasets"]["sizes"]
            record.write_text(json.dumps(text))

        mark = lake.mark(f"m{number}")

        assert mark.record.is_incremental == (damage != "never written")  # this mark isn't the one that was made
        assert again not in mark.expired
        assert lake.old in mark.expired


def test_a_mark_of_a_different_scope_is_never_a_base(lake: Lake) -> None:
    """If the latest mark has a different scope, the next mark is full, unless it names a mark of its own scope as the
    base."""
    lake.mark("m1")
    options = MarkOptions(Scope.UNCOMMITTED, min_age=timedelta(0), allow_young=True)
    other = lake.mark("m2", options)
    assert not other.record.is_incremental
    after = lake.mark("m3")
    assert not after.record.is_incremental
    assert "scope" in after.record.basis["why"]
    named = lake.mark("m4", MarkOptions(min_age=timedelta(0), allow_young=True, since="m1"))
    assert named.record.basis["chain"] == ["m1"]
    assert named.expired == after.expired == {lake.old}


# --- what caused two wrong deletes ---------------------------------------------------------------------------------


def retained_but_no_head(lake: Lake) -> str:
    """An object of yesterday's commit. The rules retain the commit, but it is the head of no branch."""
    live = lake.put("live", b"live bytes")
    lake.repository.commit("main", "third")
    lake.put("live", b"others")
    lake.repository.commit("main", "over it")
    return live


def test_a_mark_that_became_full_discards_its_incremental_steps(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps don't count even if the mark is killed before it has listed everything again."""
    live = retained_but_no_head(lake)
    lake.mark("m1")
    lake.days(1)
    lake.put("new", b"new ones")
    lake.repository.commit("main", "fourth")
    lake.steps("m2", *CHAIN[:-1])
    next(lake.file("_lakefs/retention/gc/lakegc/m1/committed_addresses/addresses").glob("part*")).unlink()
    with pytest.raises(DamagedData, match="missing"):
        lake.steps("m2", CHAIN[-1])
    with monkeypatch.context() as patch:
        patch.setattr(candidates, "list_parts", killed)
        with pytest.raises(KeyboardInterrupt):
            lake.steps("m2", CHAIN[0])

    with pytest.raises(Refused, match="doesn't exist yet"):
        lake.steps("m2", CHAIN[-1])
    assert live not in lake.mark("m2").expired


def test_a_dataset_that_is_missing_from_a_record_stops_the_mark(lake: Lake) -> None:
    """A step always writes it, so its absence isn't an empty set."""
    lake.steps("m1", *CHAIN[:-1])
    file = lake.file("_lakefs/retention/gc/lakegc/m1/mark.json")
    whole = file.read_text()
    for asset, part in (
        ("committed_addresses", "addresses"),
        ("namespace_slices", ""),
        ("uncommitted_addresses", "second"),
    ):
        record = json.loads(whole)
        del record["steps"][asset]["datasets"][part]
        file.write_text(json.dumps(record))

        with pytest.raises(DamagedData, match=f"has no {asset}"):
            lake.steps("m1", CHAIN[-1])
        assert json.loads(file.read_text())["state"] != "marked", asset


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_resumed_mark_whose_base_was_replaced_becomes_full(lake: Lake) -> None:
    """The mark began with a base whose id was then reused by a later mark, so it becomes full."""
    live = retained_but_no_head(lake)
    lake.mark("monday")
    lake.steps("tuesday", CHAIN[0])
    lake.mark("wednesday", FULL_MARK)
    for folder in ("lakegc", "unified"):
        shutil.rmtree(lake.file(f"_lakefs/retention/gc/{folder}/monday"))
    lake.mark("monday")

    resumed = lake.mark("tuesday")

    assert live not in resumed.expired
    assert not resumed.record.is_incremental
    assert "monday" in resumed.record.basis["why"]


def test_a_mark_is_resumed_only_with_the_base_with_which_it_began(lake: Lake) -> None:
    """A request for a full mark, or for another base, never resumes a mark that was started differently."""
    lake.mark("m1")
    lake.steps("m2", CHAIN[0])
    for options in (FULL_MARK, replace(ANY_AGE, since="m1-again")):
        if options.since:
            lake.mark("m1-again", FULL_MARK)
        with pytest.raises(WrongUsage, match="incremental, based on mark m1"):
            lake.mark("m2", options)


def test_contradictory_options_for_the_base_are_refused(lake: Lake) -> None:
    """The mark is refused before anything is read."""
    with pytest.raises(WrongUsage, match="--since or --full"):
        lake.mark("m1", MarkOptions(since="m0", full=True))
    with pytest.raises(WrongUsage, match="--since"):
        lake.mark("m1", MarkOptions(since="m0", inventory="s3://x/manifest.json"))
