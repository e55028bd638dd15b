"""Every reason to keep an unreferenced object applies in marks and in the re-verification of sweeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace

import pytest

from lakegc_assets.mark.keep_lookups import LOOKUPS
from lakegc_assets.queries.addresses import REASONS
from lakegc_assets.rules.keep_reasons import (
    BRANCH,
    COMMITTED,
    HOLD,
    KEEP_REASONS,
    NEWLY_REFERENCED,
    OTHER_REPOSITORY,
    STAGED,
    KeepReason,
)
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import Refused
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.model import RECEIPTS, AddressType
from spark_resources.spark.datasets import all_rows, open_dataset
from spark_resources.sstable import Entry
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.messages import on_first_message

DATA = b"an object that only this reason keeps"


@dataclass(frozen=True)
class Lake:
    """A repository beside another one, and two of its objects to which nothing refers."""

    sandbox: Sandbox
    repository: SandboxRepository
    kept: Entry
    free: str

    def add_like_kept(self) -> Entry:
        """Another object with the content of `kept` to which nothing refers."""
        return unreferenced(self.repository, DATA)

    def is_stored(self, address: str) -> bool:
        return self.repository.objects.file(address).exists()


@pytest.fixture
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with Sandbox(tmp_path_factory.mktemp("reasons")) as server:
        server.create("other")
        repository = server.create("lake")
        repository.put("main", "path", DATA)
        repository.commit("main", "content that can be re-staged")
        free = unreferenced(repository, b"nobody wants this")
        yield Lake(server, repository, unreferenced(repository, DATA), free.address)


def unreferenced(repository: SandboxRepository, data: bytes) -> Entry:
    entry = repository.put("main", "unreferenced", data)
    repository.delete("main", ["unreferenced"])
    return entry


# --- how each reason comes about: around a mark or a sweep, or before it ---------------------------------------------


def imported(lake: Lake, kept: Entry) -> AbstractContextManager[None]:
    """Another repository has a commit with the object's full address. It is no longer on any branch, so no path probe
    finds it."""
    full = {"address": f"local://lake/{kept.address}", "address_type": AddressType.FULL}
    other = lake.sandbox.repository("other")
    other.stage("main", [replace(kept, path=b"imported", **full)])
    other.commit("main", "import")
    other.delete("main", ["imported"])
    other.commit("main", "leave it out")
    return nullcontext()


def re_staged(lake: Lake, kept: Entry) -> AbstractContextManager[None]:
    """A branch serves the object at a path whose committed object has the same content, so no list and no diff shows
    it."""
    lake.repository.stage("main", [replace(kept, path=b"path")])
    return nullcontext()


def staged_while_listing(lake: Lake, kept: Entry) -> AbstractContextManager[None]:
    """The object is staged after all references were listed, and before they are listed again."""
    staged = replace(kept, path=b"meanwhile")
    return on_first_message("reading once more", lambda: lake.repository.stage("main", [staged]))


def put_on_hold(lake: Lake, kept: Entry) -> AbstractContextManager[None]:
    file = lake.repository.objects.file(HOLDS_KEY)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"holds: [{{id: audit, prefix: {kept.address}, owner: ada, reason: because}}]")
    return nullcontext()


def staged(lake: Lake, kept: Entry) -> AbstractContextManager[None]:
    lake.repository.stage("main", [replace(kept, path=b"staged again")])
    return nullcontext()


def committed(lake: Lake, kept: Entry) -> AbstractContextManager[None]:
    lake.repository.create_branch("dev", "main")
    lake.repository.stage("dev", [replace(kept, path=b"staged again")])
    lake.repository.commit("dev", "commit it after all")
    return nullcontext()


ComesAbout = Callable[[Lake, Entry], AbstractContextManager[None]]
CASES: Mapping[KeepReason, tuple[ComesAbout, str]] = {
    OTHER_REPOSITORY: (imported, "another repository refers to it"),
    BRANCH: (re_staged, "branch main of repository lake serves it"),
    NEWLY_REFERENCED: (staged_while_listing, "it was staged or committed while references were being read"),
    HOLD: (put_on_hold, "it is on hold: audit"),
}
"""For each reason how it comes about, and what a sweep's report says: a new reason needs an entry here."""
REFERENCES: Mapping[KeepReason, tuple[ComesAbout, str]] = {
    STAGED: (staged, "it is staged on a branch"),
    COMMITTED: (committed, "a retained commit or a branch refers to it"),
}
"""The same for references, which a mark has subtracted already and a re-verification reads again."""


def test_each_keep_reason_keeps_an_object_out_of_the_expired_set(lake: Lake) -> None:
    """Each object has one reason. All others still expire."""
    kept = {reason: lake.add_like_kept() for reason in KEEP_REASONS}
    with ExitStack() as stack:
        for reason, entry in kept.items():
            comes_about, _ = CASES[reason]
            stack.enter_context(comes_about(lake, entry))
        expired = Marker().mark(lake.sandbox.settings, "lake", "m1", ANY_AGE).expired

    assert {reason.name: entry.address in expired for reason, entry in kept.items()} == {
        reason.name: False for reason in KEEP_REASONS
    }
    assert expired == {lake.kept.address, lake.free}


def test_each_keep_reason_rescues_an_object_in_a_sweep(lake: Lake) -> None:
    """Each object has one reason, which applies only after the mark was approved. The re-verification keeps the
    objects, and the report says why."""
    cases = {**REFERENCES, **{reason: CASES[reason] for reason in KEEP_REASONS}}
    kept = {reason: lake.add_like_kept() for reason in cases}
    free = {lake.kept.address, lake.free}
    marked = Marker().mark(lake.sandbox.settings, "lake", "m1", ANY_AGE)
    assert marked.expired == {entry.address for entry in kept.values()} | free
    Sweeper().approve(lake.sandbox.settings, "lake", "m1")
    with ExitStack() as stack:
        for reason, (comes_about, _) in cases.items():
            stack.enter_context(comes_about(lake, kept[reason]))
        report = Sweeper().sweep(lake.sandbox.settings, "lake", "m1", SweepOptions())
    place = target_of(lake.sandbox.settings, "lake").place
    rows = all_rows(place, open_dataset(place, str(report.dataset["folder"])), RECEIPTS)

    outcomes = {row["address"]: (row["outcome"], row["why"]) for row in rows}
    assert {reason.name: outcomes.pop(entry.address) for reason, entry in kept.items()} == {
        reason.name: ("rescued", sentence) for reason, (_, sentence) in cases.items()
    }
    assert outcomes == dict.fromkeys(free, ("deleted", ""))
    assert all(lake.is_stored(entry.address) for entry in kept.values())
    assert not any(lake.is_stored(address) for address in free)


def test_every_keep_reason_has_a_lookup() -> None:
    """A reason without a lookup would keep no object."""
    assert tuple(LOOKUPS) == KEEP_REASONS
    assert len({reason.name for reason in KEEP_REASONS}) == len(KEEP_REASONS)


def test_every_reason_has_a_meaning_when_an_object_is_explained() -> None:
    assert {reason.name for reason in KEEP_REASONS} <= REASONS.keys()


# --- holds in the settings --------------------------------------------------------------------------------------------


def with_holds(lake: Lake, **prefixes: str) -> dict[str, str]:
    """The sandbox's settings with holds on stored objects, given by id."""
    holds = [{"id": name, "prefix": key, "owner": "ada", "reason": "because"} for name, key in prefixes.items()]
    return {**lake.sandbox.settings, "holds": json.dumps(holds)}


def test_a_hold_in_the_settings_keeps_its_objects_out_of_the_expired_set(lake: Lake) -> None:
    """Holds in the settings apply in addition to the namespace's own."""
    put_on_hold(lake, lake.kept)
    marked = Marker().mark(with_holds(lake, free=lake.free), "lake", "m1", ANY_AGE)

    assert marked.expired == set()
    assert marked.record.holds["ids"] == ["audit", "free"]


def test_a_hold_added_to_the_settings_after_the_approval_rescues_its_objects(lake: Lake) -> None:
    """A fleet file that changes between approval and sweep can only keep more objects."""
    Marker().mark(lake.sandbox.settings, "lake", "m1", ANY_AGE)
    Sweeper().approve(lake.sandbox.settings, "lake", "m1")
    report = Sweeper().sweep(with_holds(lake, audit=lake.kept.address), "lake", "m1", SweepOptions())

    assert lake.is_stored(lake.kept.address)
    assert not lake.is_stored(lake.free)
    assert report.objects == {"deleted": 1, "rescued": 1}


def test_an_approval_is_refused_if_the_holds_in_the_settings_have_changed_since_the_mark(lake: Lake) -> None:
    settings = with_holds(lake, audit=lake.kept.address)
    Marker().mark(settings, "lake", "m1", ANY_AGE)

    for changed, words in (
        (lake.sandbox.settings, "dropped audit"),
        (with_holds(lake, audit=lake.kept.address, more="data/x"), "added more"),
        (with_holds(lake, audit="data/"), "same ids, different definitions"),
    ):
        with pytest.raises(Refused, match=words):
            Sweeper().approve(changed, "lake", "m1")
    Sweeper().approve(settings, "lake", "m1")


def test_a_sweep_is_refused_if_the_settings_lack_a_hold_that_the_mark_used(lake: Lake) -> None:
    """A process in another folder might not read the fleet file. The hold might cover what has been tagged since the
    mark."""
    settings = with_holds(lake, audit=lake.kept.address)
    Marker().mark(settings, "lake", "m1", ANY_AGE)
    Sweeper().approve(settings, "lake", "m1")

    with pytest.raises(Refused, match=r"holds from the settings that are missing now: audit\. Set LAKEGC_CONFIG"):
        Sweeper().sweep(lake.sandbox.settings, "lake", "m1", SweepOptions())
    assert lake.is_stored(lake.free)
    Sweeper().sweep(settings, "lake", "m1", SweepOptions())
    assert not lake.is_stored(lake.free)
    assert lake.is_stored(lake.kept.address)


def test_a_hold_in_the_settings_that_contradicts_the_namespace_stops_marks(lake: Lake) -> None:
    put_on_hold(lake, lake.kept)

    with pytest.raises(Refused, match=r"the hold 'audit' in .*holds\.yaml differs"):
        Marker().mark(with_holds(lake, audit=lake.free), "lake", "m1", ANY_AGE)
