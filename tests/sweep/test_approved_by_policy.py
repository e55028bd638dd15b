"""A whole sweep of a real mark that a policy approved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lakegc_assets.approval.auto_approval import Decision, apply_policy
from lakegc_assets.mark.sample_objects import newest_object_time, samples_by_kind
from lakegc_assets.resources import MarksResource
from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.deleting.quarantine import key_in_quarantine
from spark_resources.errors import Refused
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.approval import Approval, approval_key
from spark_resources.mark_store.mark import Mark
from spark_resources.model import AddressType
from spark_resources.settings import Settings
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, quick_environment, target_of

POLICY = {
    "auto_approve": "true",
    "auto_approve_max_share": "0.5",
    "brake_share": "0.5",
    "sweep_quarantine": "true",
}


def apply(settings: dict[str, str]) -> Decision:
    loaded = Settings.load(quick_environment(settings), home=Path("/nonexistent"))
    return apply_policy(target_of(settings, "lake"), LakeFS(*LakeFSSettings.of(loaded)), loaded)


@contextmanager
def another_approval_before_the_lease(sandbox: Sandbox) -> Iterator[None]:
    """Somebody replaces the approval by one without a policy's terms while the sweep takes its lease."""
    file, take = sandbox.local_path / "lake" / approval_key("m1"), MarksResource.ensure_lease
    intact = file.read_bytes()

    def replace_first(*arguments: Any) -> Any:
        file.write_bytes(replace(Approval.from_json(intact, "here"), policy=None).to_json())
        return take(*arguments)

    try:
        with mock.patch.object(MarksResource, "ensure_lease", replace_first):
            yield
    finally:
        file.write_bytes(intact)


def test_the_sweep_of_a_mark_approved_by_a_policy_quarantines_even_if_the_setting_was_changed(tmp_path: Path) -> None:
    """The policy relied on the quarantine. Only the second mark qualifies, because there is none to compare the first
    one with."""
    with Sandbox(tmp_path) as sandbox:
        lake = sandbox.create("lake")
        lake.put("main", "a", b"old")
        lake.put("main", "a", b"new")
        lake.commit("main", "first")
        sandbox.set_clock(sandbox.now() + timedelta(days=40))
        settings = {**sandbox.settings, **POLICY}
        first = Marker().mark(settings, "lake", "m0", ANY_AGE)
        [address] = first.expired
        assert apply(settings).sentence == (
            "mark m0 doesn't qualify: this is the first mark of the repository and scope: there is none to compare it "
            "with"
        )
        sandbox.set_clock(sandbox.now() + timedelta(days=1))
        Marker().mark(settings, "lake", "m1", ANY_AGE)
        assert "mark m1 was announced" in apply(settings).sentence
        sandbox.set_clock(sandbox.now() + timedelta(days=1, minutes=1))
        assert apply(settings).sentence == "mark m1 was approved"

        with another_approval_before_the_lease(sandbox), pytest.raises(Refused, match="is for a different set"):
            Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions())

        report = Sweeper().sweep(sandbox.settings, "lake", "m1", SweepOptions())

        place = target_of(sandbox.settings, "lake").place
        assert (report.objects, report.quarantine) == ({"quarantined": 1}, True)
        assert place.store().read(key_in_quarantine("m1", address)) == b"old"
        assert lake.read("main", "a")[1] == b"new"


def test_a_sweep_reads_repositories_that_are_trusted_only_since_the_policys_approval(tmp_path: Path) -> None:
    """A policy approves only marks that read all other repositories. The recorded facts of an incremental mark cover
    its whole set."""
    with Sandbox(tmp_path) as sandbox:
        lake, pond = sandbox.create("lake"), sandbox.create("pond")
        first = lake.put("main", "a", b"first")
        sandbox.set_clock(sandbox.now() + timedelta(days=10))
        lake.put("main", "a", b"second")
        lake.put("main", "a", b"new")
        lake.commit("main", "first")
        sandbox.set_clock(sandbox.now() + timedelta(days=40))
        settings = {**sandbox.settings, **POLICY, "auto_approve_max_share": "0.9", "brake_share": "0.9"}
        Marker().mark(settings, "lake", "m0", ANY_AGE)
        sandbox.set_clock(sandbox.now() + timedelta(days=1))
        second = Marker().mark(settings, "lake", "m1", ANY_AGE)
        assert second.record.is_incremental
        assert len(second.expired) == second.record.counts["expired"] == 2
        mark = Mark.open(second.target.place, "m1")
        newest = max(row["modified"] for row in samples_by_kind(mark)["largest"])
        assert newest_object_time(mark) == newest > sandbox.now() - timedelta(days=42)
        apply(settings)
        sandbox.set_clock(sandbox.now() + timedelta(days=1, minutes=1))
        assert apply(settings).sentence == "mark m1 was approved"

        address, kind = f"local://lake/{first.address}", AddressType.FULL
        pond.stage("main", [replace(first, path=b"there", address=address, address_type=kind)])
        trusting = {**sandbox.settings, "trusted_repositories": "pond"}
        report = Sweeper().sweep(trusting, "lake", "m1", SweepOptions())

        assert report.objects == {"quarantined": 1, "rescued": 1}
        assert pond.read("main", "there")[1] == b"first"
