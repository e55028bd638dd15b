"""Marks, a sweep with quarantine, incremental marks, a purge and retirements of one repository, in the order of normal
operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.resources import MarksResource
from lakegc_assets.retirement.old_quarantines import Purged, purge_all
from lakegc_assets.retirement.retire import plan
from lakegc_assets.rules.retirement import Action
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import LakegcError, Refused, Retired
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.mark_store.record import CHAIN
from spark_resources.model import AddressType, MarkState
from tests.support.command_line import Lakegc
from tests.support.leases import hold_lease
from tests.support.mark_runs import ANY_AGE, Marked, Marker, SharedSpark, Sweeper, environment
from tests.support.retirements import DAY, OldMarks

FULL = MarkOptions(min_age=timedelta(0), allow_young=True, full=True)


class Lake(OldMarks):
    """A repository with real marks, beside another one. The test lets days pass."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(sandbox, "lake")
        self.others, self.files_of_lake = sandbox.create("other"), sandbox.create("lake")
        sandbox.set_clock(sandbox.now() - 60 * DAY)

    @property
    def settings(self) -> dict[str, str]:
        return {**self.sandbox.settings, "retry_total_s": "0"}

    def garbage(self, name: str) -> str:
        """Stage an object, delete it again, and return its address."""
        address = self.files_of_lake.put("main", name, name.encode()).address
        self.files_of_lake.delete("main", [name])
        return address

    def mark(self, mark_id: str, options: MarkOptions = ANY_AGE) -> Marked:
        """Make a mark one day after another object became garbage."""
        self.newest_garbage = self.garbage(f"garbage before {mark_id}")
        self.sandbox.set_clock(self.sandbox.now() + DAY)
        return Marker().mark(self.settings, "lake", mark_id, options)

    def decisions(self, older_than: timedelta) -> dict[str, tuple[Action, str]]:
        marks = plan(self.target, older_than).marks
        return {mark.decision.mark_id: (mark.decision.action, mark.decision.why) for mark in marks}

    def purge_old(self, purge_after: str) -> list[tuple[str, Purged | LakegcError]]:
        with environment({**self.settings, "purge_after": purge_after}):
            marks = MarksResource(lakefs=LakeFSResource(), spark=SharedSpark())
            return list(purge_all(marks, ["other", "lake"], lambda _: None))

    def quarantined(self) -> list[str]:
        return [key for key in self.files() if key.startswith("quarantine/")]


@pytest.fixture
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Sandbox(tmp_path_factory.mktemp("flow")) as sandbox:
        yield Lake(sandbox)


def refused(lakegc: Lakegc, lake: Lake, *arguments: str) -> None:
    lakegc(lake.sandbox.settings, *arguments).stopped(3, "m1 of lake was retired on", "lakegc report lake m1")


def test_marks_are_retired_once_nothing_needs_them(lake: Lake, lakegc: Lakegc) -> None:
    """At every point, everything that the next steps need is kept: the quarantine for an undo, the chain for
    incremental marks, and the base of an interrupted mark. Afterwards, an incremental mark finds the same objects as a
    full one."""
    imported = lake.files_of_lake.put("main", "imported", b"imported")
    lake.files_of_lake.delete("main", ["imported"])
    full_address = f"local://lake/{imported.address}"
    lake.others.stage("main", [replace(imported, address=full_address, address_type=AddressType.FULL)])
    first = lake.mark("m1")
    Sweeper().approve(lake.settings, "lake", "m1")
    Sweeper().sweep(lake.settings, "lake", "m1", SweepOptions(quarantine=True))
    lake.mark("m2")

    assert imported.address not in first.expired
    assert lake.decisions(timedelta(0)) == {
        "m1": (Action.KEEP, "its quarantine has objects: restore or purge them first"),
        "m2": (Action.KEEP, "it is the newest finished mark"),
    }

    # the quarantine is purged by age, but not while another run holds the lease
    store = lake.target.place.store()
    before = lake.quarantined()
    assert lake.purge_old("2d") == []
    hold_lease(store, "m2")
    ((repository, skipped),) = lake.purge_old("1d")
    assert (repository, isinstance(skipped, Purged) and "holds the lease" in skipped.skipped) == ("lake", True)
    assert lake.quarantined() == before != []
    hold_lease(store, "m2", for_=-DAY)
    ((_, purged),) = lake.purge_old("1d")
    assert purged == Purged("m1", {"purged": 1})
    assert (lake.quarantined(), lake.purge_old("1d")) == ([], [])

    # an interrupted incremental mark keeps its base
    lake.mark("m3", FULL)
    lake.sandbox.set_clock(lake.sandbox.now() + 3 * DAY)
    Marker().steps(lake.settings, "lake", "m4", ANY_AGE, CHAIN[:2])
    lake.mark("m5", FULL)
    lake.sandbox.fail("other", 503)
    assert lake.decisions(4 * DAY)["m3"][0] is Action.KEEP
    assert lake.retire(4 * DAY).applied == ["m1", "m2"]
    Marker().steps(lake.settings, "lake", "m4", ANY_AGE, CHAIN[2:])
    assert Mark.open(lake.target.place, "m4").record.is_incremental

    # what the retired marks found out about a repository that can't be read now still counts
    incremental = lake.mark("m6")
    store.write(
        mark_folder("m1") + "restored/1", b"objects of m1 are restored from a backup, so they have to be looked up"
    )
    full = lake.mark("m7")
    assert incremental.record.basis["chain"][0] == "m4"
    assert not full.record.is_incremental
    assert "m1 of lake was retired" in full.record.basis["why"]
    assert full.expired == incremental.expired | {lake.newest_garbage}
    assert imported.address not in full.expired
    check_refusals(lake, lakegc)


def check_refusals(lake: Lake, lakegc: Lakegc) -> None:
    """Check that nothing uses a retired mark as if it were intact, and that the outcome of its sweep can still be
    shown."""
    settings = lake.sandbox.settings
    report = json.loads(lakegc.output(settings, "report", "lake", "m1", "--format", "json"))
    rows: list[dict[str, Any]] = json.loads(lakegc.output(settings, "status", "lake", "--format", "json"))["marks"]
    (row,) = (row for row in rows if row["mark_id"] == "m1")

    assert report["objects"] == {"quarantined": 1}
    assert report["in_quarantine"]["purged"] == 1
    assert (report["retired"]["state"], report["where"]) == ("swept", "")
    assert row["state"] == MarkState.RETIRED
    assert row["outcome"].startswith("on ")
    assert row["outcome"].endswith("; purged")
    assert "was retired on" in lakegc.output(settings, "report", "lake", "m1")
    for arguments in (
        ("approve", "lake", "m1", "--yes", "--digest", "0" * 64), ("sweep", "lake", "m1"), ("undo", "lake", "m1"),
        ("purge", "lake", "m1", "--yes"), ("review", "lake", "m1"), ("diff", "lake", "m1", "m7"),
        ("report", "lake", "m1", "--list"),
        ("explain", "lake", "a", "--mark", "m1"), ("mark", "lake", "--since", "m1"),
        ("revoke", "lake", "m1"), ("backup", "lake", "m1", str(lakegc.home / "b")),
    ):  # fmt: skip
        refused(lakegc, lake, *arguments)
    with pytest.raises(Retired):
        Sweeper().sweep(lake.settings, "lake", "m1", SweepOptions())
    with pytest.raises(Retired):
        Sweeper().undo(lake.settings, "lake", "m1")
    with pytest.raises(Refused):
        Marker().steps(lake.settings, "lake", "m1", ANY_AGE, CHAIN[1:2])
