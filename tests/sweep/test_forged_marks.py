"""A sweep doesn't trust the files of an earlier mark, because anybody who can write to the namespace can alter them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.mark.committed_addresses import trusted_record
from lakegc_assets.mark.mark_chain import ADDRESSES, METARANGES
from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.sweep.preconditions import SweepOptions
from lakegc_assets.sweep.report import Report
from spark_resources.errors import WrongUsage
from spark_resources.lakefs.ranges import range_number
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.mark import Mark
from spark_resources.model import AddressType, Commit, Rules
from spark_resources.stores.place import Place
from tests.support.forged_marks import forge
from tests.support.mark_runs import Marked, Marker, Sweeper, target_of

DAY = timedelta(days=1)


class Lake:
    """A history of three commits: `dropped` is in the first two, `garbage` only in the first one.

    Two days later, the rules retain the last two commits, so that `dropped` is live although it is no longer on any
    branch.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.repository = sandbox, sandbox.create("lake")
        self.settings = dict(sandbox.settings)
        sandbox.set_clock(sandbox.now() - 30 * DAY)
        set_rules(self.repository, Rules(5))
        self.dropped = self.put("dropped", b"in retained history")
        self.garbage = self.put("garbage", b"in expired history alone")
        self.repository.commit("main", "first")
        self.days(1)
        self.put("garbage", b"overwritten")
        self.range_id = self.range_of(self.repository.commit("main", "second"))
        self.days(3)
        self.put("dropped", b"overwritten, too")
        self.last_range_id = self.range_of(self.repository.commit("main", "third"))
        self.days(1)

    @property
    def place(self) -> Place:
        return target_of(self.settings, "lake").place

    def range_of(self, commit: Commit) -> str:
        [table] = self.repository.committed.ranges(commit.metarange_id)
        return table.id

    def put(self, path: str, data: bytes) -> str:
        return self.repository.put("main", path, data).address

    def days(self, days: int) -> None:
        self.sandbox.set_clock(self.sandbox.now() + days * DAY)

    def mark(self, mark_id: str, *, full: bool = False) -> Marked:
        options = MarkOptions(min_age=timedelta(0), allow_young=True, full=full)
        return Marker().mark(self.settings, "lake", mark_id, options)

    def sweep(self, mark_id: str) -> Report:
        Sweeper().approve(self.settings, "lake", mark_id)
        return Sweeper().sweep(self.settings, "lake", mark_id, SweepOptions())

    def stored(self, address: str) -> bool:
        return self.repository.objects.file(address).exists()

    def drop(self, mark_id: str, place: Place | None = None) -> None:
        """Remove `dropped` from the data that a mark recorded of the second commit's range, as an attacker without a
        key would."""
        number = range_number(self.range_id)

        def without(table: pa.Table) -> pa.Table:
            named = pc.and_(pc.equal(table["address"], self.dropped), pc.equal(table["range"], number))
            assert pc.any(named).as_py()
            return table.filter(pc.invert(named))

        forge(place or self.place, mark_id, *ADDRESSES, without)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Sandbox(tmp_path / "sandbox") as sandbox:
        yield Lake(sandbox)


def test_a_live_address_removed_from_an_earlier_marks_files_is_rescued(lake: Lake) -> None:
    """The incremental mark trusts the forged one, but its sweep reads the range again before it deletes any object."""
    assert lake.mark("m1").expired == set()
    lake.days(2)
    lake.drop("m1")

    forged = lake.mark("m2")
    assert forged.record.is_incremental
    assert forged.expired == {lake.dropped, lake.garbage}
    report = lake.sweep("m2")

    assert (lake.stored(lake.dropped), lake.stored(lake.garbage)) == (True, False)
    assert report.objects == {"deleted": 1, "rescued": 1}


def test_an_object_in_a_range_replaced_in_an_earlier_marks_metarange_is_rescued(lake: Lake) -> None:
    """A sweep trusts only what full marks recorded about metaranges, and other marks if they are signed."""
    lake.mark("m1")
    lake.days(2)

    def replaced(table: pa.Table) -> pa.Table:
        ids = table["range_id"]
        changed = pc.if_else(pc.equal(ids, lake.range_id), pa.scalar(lake.last_range_id), ids)
        return table.set_column(table.schema.get_field_index("range_id"), table.schema.field("range_id"), changed)

    forge(lake.place, "m1", *METARANGES, replaced)

    forged = lake.mark("m2")
    assert forged.expired == {lake.dropped, lake.garbage}
    full, incremental = (Mark.open(lake.place, mark_id) for mark_id in ("m1", "m2"))
    assert (trusted_record(full), trusted_record(incremental)) == (full, None)
    assert lake.sweep("m2").objects == {"deleted": 1, "rescued": 1}
    assert lake.stored(lake.dropped)


def test_a_sweep_re_reads_a_table_that_an_earlier_mark_recorded_as_having_no_references(lake: Lake) -> None:
    """An incremental mark trusts what the forged mark records about another repository. A full mark and a sweep
    don't."""
    other = lake.sandbox.create("other")
    imported = lake.repository.put("main", "imported", b"served elsewhere")
    lake.repository.delete("main", ["imported"])
    there = replace(imported, address=f"local://lake/{imported.address}", address_type=AddressType.FULL)
    other.stage("main", [there])
    [imported_range] = other.committed.ranges(other.commit("main", "imports").metarange_id)
    other.delete("main", ["imported"])  # objects at a head are probed anyway, and kept
    other.commit("main", "only history has it")
    assert lake.mark("m1").expired == set()
    lake.days(2)
    forge(
        lake.place, "m1", "committed_addresses", "clean_elsewhere",
        lambda table: pa.concat_tables([table, pa.table({"table_id": [imported_range.id]}, schema=table.schema)]),
    )  # fmt: skip

    assert lake.mark("m2").expired == {imported.address, lake.garbage}
    assert lake.mark("m3", full=True).expired == {lake.garbage}
    report = lake.sweep("m2")

    assert (lake.stored(imported.address), lake.stored(lake.garbage)) == (True, False)
    assert report.objects == {"deleted": 1, "rescued": 1}


def test_an_incremental_mark_cannot_be_handed_to_the_reference_collector(lake: Lake) -> None:
    """The reference collector doesn't re-verify anything, so it would delete objects that an earlier mark's altered
    files name."""
    lake.mark("m1")
    lake.days(2)
    lake.mark("m2")

    with pytest.raises(WrongUsage, match="--full"):
        Sweeper().approve(lake.settings, "lake", "m2", for_reference=True)
    lake.mark("m3", full=True)
    Sweeper().approve(lake.settings, "lake", "m3", for_reference=True)
