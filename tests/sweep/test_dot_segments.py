"""Unreferenced keys with `.` or `..` as a path segment are kept. All other garbage is collected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from lakegc_assets.approval.verify_files import forbidden_keys
from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository, StorePlace
from spark_resources.stores import Store
from tests.support.clocks import later
from tests.support.command_line import Lakegc
from tests.support.mark_runs import Marked, Sweeper, marked, target_of
from tests.support.s3_servers import MotoServer

DOTTED = {"data/s/../garbage", "data/./b", "data/s/..", ".."}
PLAIN = {"data/s/garbage", "data/s/...", "data/s/.hidden", "legacy..", "data/a..b/c"}
WHY = "unreferenced objects are kept, because"


@dataclass(frozen=True)
class Lake:
    repository: SandboxRepository
    settings: dict[str, str]

    @property
    def store(self) -> Store:
        return target_of(self.settings, self.repository.id).place.store()

    def stored(self, keys: set[str]) -> set[str]:
        return {stored.key for page in self.store.pages("") for stored in page.objects} & keys

    def marked(self, mark_id: str) -> Marked:
        return marked(self.settings, self.repository.id, mark_id)


@pytest.fixture
def lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[Lake]:
    """A repository in a store that accepts such keys. One object is live, and all others are garbage."""
    moto_server.make_bucket("dots")
    with Sandbox(tmp_path, place=StorePlace("s3://dots/sandbox", moto_server.settings())) as sandbox:
        repository = sandbox.create("dots")
        repository.put("main", "live", b"live")
        repository.commit("main", "live")
        repository_lake = Lake(
            repository,
            {
                **sandbox.settings,
                "s3_endpoint_url": moto_server.endpoint_url,
                "s3_access_key_id": moto_server.access_key,
                "s3_secret_access_key": moto_server.secret_key,
                "s3_region": "us-east-1",
            },
        )
        for key in DOTTED | PLAIN:
            repository_lake.store.write(key, key.encode())
        later(repository_lake.store, repository_lake.store.now())  # so that they are older than every mark
        yield repository_lake


def test_keys_with_dot_segments_are_kept_and_reported_while_all_others_are_swept(
    lake: Lake, lakegc: Lakegc, moto_server: MotoServer
) -> None:
    """A tool that resolves paths would delete a different object by such a key. One such key must not keep all other
    garbage, either."""
    name = lake.repository.id
    first = lake.marked("m1")
    review = json.loads(lakegc.output(lake.settings, "review", name, "m1", "--format", "json"))
    output = lakegc.output(lake.settings, "review", name, "m1")
    Sweeper().approve(lake.settings, name, "m1")
    report = lakegc.output(lake.settings, "sweep", name, "m1")
    reported = lakegc.output(lake.settings, "report", name, "m1")
    since = lake.marked("m2")

    assert first.expired == PLAIN
    assert first.facts("expired_set")["dot_segments"] == len(DOTTED)
    assert set(first.facts("expired_set")["dot_segment_names"]) == DOTTED
    assert review["dot_segments"] == {"objects": len(DOTTED), "named": sorted(DOTTED)}
    for text in (output, reported):
        assert f"{len(DOTTED)} {WHY}" in text
        assert repr("data/s/../garbage") in text
    assert "deleted" in report
    assert lake.stored(DOTTED | PLAIN) == DOTTED
    assert lake.repository.read("main", "live")[1] == b"live"
    assert since.record.is_incremental
    assert (since.expired, since.facts("expired_set")["dot_segments"]) == (set(), len(DOTTED))


def test_marks_keep_exactly_the_keys_that_approvals_refuse() -> None:
    """Marks and approvals use the same rule. No mark is made that can't be approved, and no forged mark is approved."""
    keys = pa.array(sorted(DOTTED | PLAIN), pa.string())

    assert set(forbidden_keys(keys, local_adapter=False).to_pylist()) == DOTTED
