"""A listing that lacks live objects, or spells them differently, stops the mark unless the losses are accepted."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_resources.errors import LakegcError
from spark_resources.model import AddressType
from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.support.mark_runs import ANY_AGE, Marker


def test_an_empty_listing_stops_the_mark_if_commits_have_objects(lakegc: Lakegc, lake: Lake) -> None:
    """No bound on missing objects permits an empty listing."""
    shutil.rmtree(lake.folder / "data")
    settings = {**lake.settings, "max_missing": "1000"}

    lakegc(settings, "mark", lake.name, *NO_AGE).stopped(3, "4 of 4 live addresses", lake.name, "the listing is wrong")
    lake.check_no_finished_mark()


def test_a_repository_without_any_objects_can_be_marked(lake: Lake) -> None:
    """No object is stored, committed or staged, so none is missing or expired. This holds for full and incremental
    marks."""
    lake.sandbox.create(empty := f"{lake.name}-empty")

    for number in range(2):
        assert Marker().mark(lake.settings, empty, f"m{number}", ANY_AGE).expired == set()


@pytest.mark.parametrize("status", [None, 404, 503])
def test_a_failed_or_empty_listing_of_branches_stops_the_mark(lake: Lake, status: int | None) -> None:
    """An empty listing is an error because every repository has a branch.

    restic/restic#4612
    """
    if status is None:
        lake.server.after("/branches", no_results)
    else:
        lake.server.refused["/branches"] = status

    with pytest.raises(LakegcError, match="branches"):
        Marker().mark(lake.settings, lake.name, "m1", ANY_AGE)
    lake.check_no_finished_mark()


def no_results(response: dict[str, Any]) -> None:
    response["results"] = []
    response["pagination"] = {**response["pagination"], "results": 0, "has_more": False}


def test_live_objects_that_are_missing_from_the_listing_stop_the_mark(
    lakegc: Lakegc, lake: Lake, tmp_path: Path
) -> None:
    """The error names the missing objects. If all of them are accepted as lost, the mark finishes.

    HUDI-6339 (issues.apache.org)
    """
    missing = [lake.repository.stat("main", path).address for path in ("a", "b")]
    for address in missing:
        (lake.folder / address).unlink()
    lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE).stopped(
        3, "2 of 4 live addresses", *missing, "--accept-missing"
    )
    lake.check_no_finished_mark()
    known = tmp_path / "known"
    known.write_text(f"{missing[0]}\n")
    arguments = ["mark", lake.name, *NO_AGE, "--accept-missing", str(known)]
    lakegc(lake.settings, *arguments, "--mark-id", "m2").stopped(3, missing[1])
    lake.check_no_finished_mark()
    known.write_text("".join(f"{address}\n" for address in missing))

    assert lakegc(lake.settings, *arguments, "--mark-id", "m3").code == 0
    record = lake.records()[-1]
    assert record.accepted_missing == tuple(missing)
    assert record.counts["expired"] == 1


@pytest.mark.parametrize(
    ("form", "committed"),
    [("s3://{0}/{1}", True), ("s3://{0}/{1}", False), ("local://{0}//{1}", True), ("LOCAL://{0}/{1}", False)],
)
def test_a_live_address_in_another_spelling_of_the_namespace_stops_the_mark(
    lakegc: Lakegc, lake: Lake, form: str, committed: bool
) -> None:
    """The address differs in scheme or slashes. If it counted as outside the namespace, its object would look like
    garbage."""
    live = lake.repository.stat("main", "a")
    strange = form.format(lake.name, live.address)
    entry = replace(live, path=b"strange", address=strange, address_type=AddressType.FULL)
    lake.repository.stage("main", [entry])
    if committed:
        lake.repository.commit("main", "with a strange address")

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, strange, f"local://{lake.name}", "live object")
    lake.check_no_finished_mark()


def test_a_live_address_whose_host_differs_in_case_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """The error shows the address and the namespace."""
    live = lake.repository.stat("main", "a")
    strange = f"local://{lake.name.upper()}/{live.address}"
    lake.repository.stage("main", [replace(live, path=b"x", address=strange, address_type=AddressType.FULL)])
    lake.repository.commit("main", "with a strange address")

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, strange, f"local://{lake.name}")
    lake.check_no_finished_mark()
