"""The lakeFS server is restarted or upgraded between a mark and its sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.lakefs_sandbox import Sandbox
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.tampering_proxy import tampering_proxy

CALLS = (
    "/config", "/repositories", "/lake", "/branches", "/tags", "/commits", "/rules", "/prepare_commits/status",
    "/prepare_uncommited", "/diff", "/diff/main", "/ls", "/stat", "/dump",
)  # fmt: skip
"""The ends of the paths of all calls that may answer with JSON."""


def upgrade(response: Any) -> None:
    """Change a response as a newer server might: another version, new fields everywhere, and without optional ones."""
    for item in (response, *response.get("results", ())):
        item["new_field"] = {"list": [1], "text": "added later"}
        item.pop("read_only", None)
    if "version_config" in response:
        response["version_config"] = {"version": "2.0.0", "new_field": True}
    if "storage_config" in response:
        response["storage_config"]["new_field"] = ["added later"]
    if "pagination" in response:
        response["pagination"]["new_field"] = 1
        response["pagination"].pop("max_per_page", None)


@contextmanager
def upgraded(sandbox: Sandbox) -> Iterator[tuple[dict[str, str], set[str]]]:
    """A newer server on the same repositories: the settings to reach it, and the calls that it has answered."""
    answered: set[str] = set()
    with tampering_proxy(sandbox.endpoint_url) as proxy:
        for call in CALLS:
            proxy.after(call, upgrade)
            proxy.after(call, lambda _, call=call: answered.add(call))
        yield {**sandbox.settings, "endpoint_url": proxy.endpoint}, answered


def test_a_sweep_gives_the_same_result_if_the_server_was_restarted_and_upgraded_since_its_mark(tmp_path: Path) -> None:
    """Fields that lakegc doesn't know are ignored, and missing optional ones have their defaults. The server's address
    also changes."""
    with Sandbox(tmp_path) as sandbox:
        lake = sandbox.create("lake")
        for content in (b"old", b"new"):
            lake.put("main", "a", content)
        lake.commit("main", "the new one")
        lake.put("main", "b", b"deleted while it was staged")
        lake.delete("main", ["b"])
        garbage = Marker().mark(sandbox.settings, "lake", "m1", ANY_AGE).expired
        Sweeper().approve(sandbox.settings, "lake", "m1")
    assert len(garbage) == 2

    with Sandbox(tmp_path) as restarted, upgraded(restarted) as (settings, answered):
        report = Sweeper().sweep(settings, "lake", "m1", SweepOptions())
        store = target_of(settings, "lake").place.store()
        stored = {listed.key for page in store.pages("data/") for listed in page.objects}
        assert Marker().mark(settings, "lake", "m2", replace(ANY_AGE, full=True)).expired == set()

    assert dict(report.objects) == {"deleted": 2}
    assert (len(stored), stored & garbage) == (1, set())
    assert {"/config", "/branches", "/lake", "/prepare_uncommited"} <= answered
