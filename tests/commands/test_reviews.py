"""What `lakegc review` shows of a mark: how much expires, how old it is, where it is and why, what it costs, and
anything unusual."""

from __future__ import annotations

import csv
import io
import json
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakegc_assets.cli.object_list import with_times_as_text
from lakegc_assets.mark import sample_objects
from lakegc_assets.mark.context import Limits, MarkRun, Target
from lakegc_assets.mark.metadata import expired_set_result
from lakegc_assets.rules.brakes import BRAKES
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.approval import Approval, write_approval
from spark_resources.mark_store.history import FinishedSweep, History, write_history
from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.mark_store.mark import Mark
from spark_resources.model import EXPIRED_OBJECTS, ExpiredReason, MarkState, Partition, Rules
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from tests.support.command_line import Lakegc, check_terminal_safe
from tests.support.finished_marks import COUNTS, START
from tests.support.reviewable_marks import FACTS, commit, expired, reviewable, sums, tables
from tests.support.tampering_proxy import tampering_proxy

DANGLING = {"commit_id": "d" * 64, "branch": None, "days": 7}
ROWS = [
    expired("data/s1/a", 600_000, 3, "tables/users/1.parquet"),
    expired("data/s1/b", 1_000, 45, "tables/users/2.parquet"),
    expired("data/s1/c", 2_000, 400, "tables/orders/1.parquet", branch="dev", days=7),
    expired("data/s2/d", 4_000, 100, "raw/x.json", **DANGLING),
    expired("data/s2/e", 8_000, 0.5),
    expired("legacy", 16_000, 20, "top"),
]
COMMITS = [commit("loaded users"), commit("an experiment\x1b[31m", commit_id="d" * 64, branch=None, days=61)]
WHOLE = (len(ROWS), sum(row["size"] for row in ROWS))


def review(lakegc: Lakegc, sandbox: Sandbox, name: str, *options: str, **more: str) -> Any:
    return json.loads(lakegc.output({**sandbox.settings, **more}, "review", name, "--format", "json", *options))


def test_review_and_status_name_a_later_sweep_that_may_have_taken_some_of_the_objects(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """Only sweeps of other marks count that ended after the mark began and took at least one object. If that object was
    restored, a sweep keeps it."""
    reviewable(place, tables(ROWS), "m2")
    before, since = START - timedelta(hours=1), START + timedelta(hours=1)
    history = History().with_sweep(FinishedSweep("m0", before, 9, 90)).with_sweep(FinishedSweep("m3", since, 0, 0))
    write_history(place, history)
    assert [found["swept_since"] for found in documents(lakegc, sandbox, name)] == [None, None, None]
    assert not any("may already be gone" in output for output in overviews(lakegc, sandbox.settings, name))

    write_history(place, history.with_sweep(FinishedSweep("m1", since, 0, 0, quarantined=4)))

    of_m1, mark_again = f"the sweep of mark m1 (ended {since:%Y-%m-%d %H:%M:%S} UTC)", "A new mark has current counts: "
    gone = (
        f"Some of the expired objects of mark m2 may already be gone: since it began, {of_m1} has quarantined 4 "
        f"objects. A sweep of mark m2 reports them as already gone. {mark_again}lakegc mark lake"
    )
    assert [found["swept_since"] for found in documents(lakegc, sandbox, name)] == [gone] * 3
    assert all(gone in output for output in overviews(lakegc, sandbox.settings, name))
    assert "≤ 6" in lakegc.output(sandbox.settings, "status")

    write_history(place, history.with_sweep(FinishedSweep("m1", since, 0, 0, restored=4)))

    changed = (
        f"Some of the expired objects of mark m2 may have been restored: since it began, {of_m1} has quarantined 4 "
        "objects, which are back with new modification times. A sweep of mark m2 reports them as changed and keeps "
        f"them. {mark_again}lakegc mark lake"
    )
    assert all(changed in output for output in overviews(lakegc, sandbox.settings, name))


def documents(lakegc: Lakegc, sandbox: Sandbox, name: str) -> list[dict[str, Any]]:
    """The review of the only mark, and the rows of this mark and of the repository in the overview, for scripts."""
    status = json.loads(lakegc.output(sandbox.settings, "status", "--format", "json"))
    [mark] = (row for row in status["marks"] if row["repository"] == name)
    [repository] = (row for row in status["repositories"] if row["repository"] == name)
    return [review(lakegc, sandbox, name), mark, repository]


def overviews(lakegc: Lakegc, settings: dict[str, str], name: str) -> list[str]:
    """What `review`, `status` of the repository and `status` of all repositories print, without line breaks."""
    return [
        " ".join(lakegc.output(settings, *arguments).split())
        for arguments in (("review", name, "m2"), ("status", name), ("status",))
    ]


def test_a_review_says_how_rules_and_holds_have_changed_since_the_mark_and_leads_to_a_new_mark(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """Such a mark can't be approved, but one that is approved already can be swept. If the server doesn't show its
    rules, the review says so."""
    mark = reviewable(place, tables(ROWS), repository=name, rules=None, min_age=timedelta(0))
    assert review(lakegc, sandbox, name)["changes_since"] == []
    assert f"Next: lakegc approve {name} m1" in lakegc.output(sandbox.settings, "review", name)

    set_rules(sandbox.repository(name), Rules(7))
    place.store().write(HOLDS_KEY, b"holds: [{id: releases, tags: v*, owner: ada, reason: shipped}]")
    changes = [
        f"The retention rules of {name} were changed after mark m1 of {name} was made, from none to default 7 days.",
        f"The holds of {name} were changed after mark m1 of {name} was made (added releases).",
    ]
    assert review(lakegc, sandbox, name)["changes_since"] == changes
    output = " ".join(lakegc.output(sandbox.settings, "review", name).split())
    assert f"{' '.join(changes)} Therefore this mark can't be approved any more." in output
    assert f"Next, make a new mark: lakegc mark {name} --min-age 0 --allow-young" in output
    assert "lakegc approve" not in output

    with tampering_proxy(sandbox.endpoint_url) as proxy:
        proxy.refused["/settings/gc_rules"] = 403
        unknown = review(lakegc, sandbox, name, endpoint_url=proxy.endpoint)
    assert (unknown["changes_since"], "GetGarbageCollectionRules" in unknown["changes_unknown"]) == ([], True)

    now = place.store().now()
    approval = Approval("m1", None, mark.record.digest or "", "Ada", "a test", now, now + timedelta(days=1), {}, False)
    mark.move_to(MarkState.APPROVED, approval=approval.sha256)
    write_approval(place, approval, replacing=None)
    output = " ".join(lakegc.output(sandbox.settings, "review", name).split())
    assert f"{' '.join(changes)} Its sweep uses what is set now" in output
    assert f"Next: lakegc sweep {name} m1" in output


# --- totals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("per_file", [1, 4, 100])
def test_totals_do_not_depend_on_how_rows_are_spread_over_files(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place, per_file: int
) -> None:
    """Objects and bytes are counted by rule, age, path and slice, and each adds up to the whole."""
    reviewable(place, tables(ROWS, per_file=per_file), commits=COMMITS)

    document = review(lakegc, sandbox, name)

    assert (document["objects"], document["bytes"]) == WHOLE
    assert sums(document["by_reason"], "reason", "branch", "days") == {
        (ExpiredReason.EXPIRED_COMMIT.value, "main", 21): (3, 617_000),
        (ExpiredReason.EXPIRED_COMMIT.value, "dev", 7): (1, 2_000),
        (ExpiredReason.EXPIRED_COMMIT.value, None, 7): (1, 4_000),
        (ExpiredReason.NEVER_COMMITTED.value, None, None): (1, 8_000),
    }
    assert list(sums(document["by_age"], "age").items()) == [
        ("under a day", (1, 8_000)),
        ("a day to a week", (1, 600_000)),
        ("a week to a month", (1, 16_000)),
        ("1 to 3 months", (1, 1_000)),
        ("3 months to a year", (1, 4_000)),
        ("over a year", (1, 2_000)),
    ]
    assert sums(document["by_prefix"], "prefix") == {
        "tables/": (3, 603_000), "raw/": (1, 4_000), "": (1, 16_000), None: (1, 8_000)
    }  # fmt: skip
    assert sums(document["by_slice"], "slice") == {"data/s1/": (3, 603_000), "data/s2/": (2, 12_000), "": (1, 16_000)}


def test_the_option_depth_groups_paths_by_that_many_folders(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """Two tables in one folder become two groups."""
    reviewable(place, tables(ROWS))

    by_prefix = sums(review(lakegc, sandbox, name, "--depth", "2")["by_prefix"], "prefix")

    assert {"tables/users/", "tables/orders/", "raw/", "", None} == set(by_prefix)


def test_the_expired_share_is_computed_from_all_listed_objects_and_bytes(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """Both shares are shown."""
    reviewable(place, tables(ROWS))

    document, output = review(lakegc, sandbox, name), lakegc.output(sandbox.settings, "review", name)

    assert (document["candidates"], document["candidate_bytes"]) == (FACTS["candidates"], FACTS["candidate_bytes"])
    assert (document["share_of_objects"], document["share_of_bytes"]) == (0.006, 0.631)
    for words in ("6 of 1,000 objects (0.6%) are expired", "616.2 KiB of 976.6 KiB (63.1%)"):
        assert words in output


def test_costs_are_shown_only_if_a_price_is_set(lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place) -> None:
    """The price is for a GB of 2^30 bytes; without one, the output names the setting."""
    reviewable(place, tables([expired("data/s/a", 3 * 2**40)]), facts={**FACTS, "candidate_bytes": 2**42})

    assert review(lakegc, sandbox, name)["monthly_savings"] is None
    assert "To see what the expired objects cost" in lakegc.output(sandbox.settings, "review", name)
    assert review(lakegc, sandbox, name, price_per_gb_month="0.02")["monthly_savings"] == pytest.approx(61.44)
    priced = {**sandbox.settings, "price_per_gb_month": "0.02"}
    assert "The expired objects cost 61.44 a month, at 0.02 a GB." in lakegc.output(priced, "review", name)
    lakegc({**sandbox.settings, "price_per_gb_month": "-1"}, "review", name).stopped(2, "LAKEGC_PRICE_PER_GB_MONTH")


def test_reasons_name_their_rule_and_say_what_is_unknown(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """Dangling commits, objects that were never committed, and objects whose commits couldn't be read are each
    described as such."""
    unknown = {"reason": ExpiredReason.UNKNOWN.value}
    reviewable(place, tables(ROWS), "m1")
    reviewable(place, tables([expired("data/s/a", **unknown)]), "m2")
    reviewable(place, tables([expired("data/s/a", **unknown)]), "m3", facts={**FACTS, "unexplained": "range 12 is cut"})

    known, graph, damaged = (lakegc.output(sandbox.settings, "review", name, mark) for mark in ("m1", "m2", "m3"))

    together = " ".join(known.replace("│", " ").split())
    for words in ("(main's rule of 21 days)", "(dev's rule of 7 days)", "(dangling: the default rule of 7 days)"):
        assert words in together
    assert "A mark can't distinguish these cases" in known
    assert "A mark can't distinguish these cases" not in graph
    assert "The commit graph could not be read" in graph
    assert "without their commit, because some expired commits could not be read: range 12 is cut" in damaged


# --- what to look at ------------------------------------------------------------------------------------------------


def test_the_largest_newest_and_sampled_objects_are_shown_with_path_and_commit(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """The id, date and message of the last commit are shown."""
    reviewable(place, tables(ROWS, per_file=2), commits=COMMITS)

    document, output = review(lakegc, sandbox, name), lakegc.output(sandbox.settings, "review", name)

    assert [row["address"] for row in document["largest"][:3]] == ["data/s1/a", "legacy", "data/s2/e"]
    assert [row["address"] for row in document["newest"][:3]] == ["data/s2/e", "data/s1/a", "legacy"]
    assert {row["address"] for row in document["sample"]} == {row["address"] for row in ROWS}
    assert document["sample_seed"] == "m1"
    largest = document["largest"][0]
    assert (largest["path"], largest["commit_id"]) == ("tables/users/1.parquet", "c" * 64)
    assert (largest["commit_date"], largest["commit_message"]) == ("2026-10-12T08:50:00+00:00", "loaded users")
    assert (document["newest"][0]["path"], document["newest"][0]["commit_message"]) == (None, None)
    for words in ("Largest objects", "Newest objects", "Random sample", "cccccccccccc 2026-10-12 loaded users"):
        assert words in output
    check_terminal_safe(output)


def test_the_sample_is_drawn_uniformly_and_is_reproducible_for_a_mark(place: Place) -> None:
    """The sample doesn't depend on how the rows are spread over files."""
    rows = [expired(f"data/s{n % 7}/{n:05}", n) for n in range(2_000)]

    single = sample_objects.samples_by_kind(reviewable(place, tables(rows), "m1"))
    many = sample_objects.samples_by_kind(reviewable(place, tables(rows, per_file=90), "m2"))
    again = sample_objects.select_samples(tables(rows)[0], seed="m2").to_pylist()

    for kind in ("largest", "newest"):
        assert [row["address"] for row in single[kind]] == [row["address"] for row in many[kind]]
    assert single["largest"][0]["size"] == 1_999
    drawn = [row["address"] for row in many["sample"]]
    assert drawn == [row["address"] for row in again if row["kind"] == "sample"]
    assert drawn != [row["address"] for row in single["sample"]]  # another mark draws another sample
    numbers = [int(address[-5:]) for address in drawn]
    assert len(set(numbers)) == 20
    assert min(numbers) < 600
    assert max(numbers) > 1_400


def test_each_hold_and_each_brake_is_shown_with_its_numbers(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """Brakes that did not trip are also shown."""
    on_hold = {"releases": {"objects": 7, "bytes": 7_168}, "legal": {"objects": 1, "bytes": 10}}
    reviewable(place, tables(ROWS), facts={**FACTS, "on_hold": on_hold}, holds={"sha256": "f" * 64, "ids": [*on_hold]})

    document, output = review(lakegc, sandbox, name), lakegc.output(sandbox.settings, "review", name)

    assert document["held"] == on_hold
    assert document["holds"] == [*on_hold]
    assert [brake["name"] for brake in document["brakes"]] == list(BRAKES)
    assert {brake["name"] for brake in document["brakes"] if brake["tripped"]} >= {"share"}
    rows = [" ".join(line.replace("│", " ").split()) for line in output.splitlines()]
    for row in ("releases 7 7.0 KiB", "legal 1 10 B"):
        assert row in rows
    assert "tripped" in output


def test_a_review_without_expired_objects_still_shows_holds_and_brakes(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """The review also shows the changes since the previous mark."""
    reviewable(place, [], facts={**FACTS, "on_hold": {"all": {"objects": 2, "bytes": 2}}})

    output = lakegc.output(sandbox.settings, "review", name)

    for words in ("none of 1,000 objects is expired", "Kept by holds", "Brakes", "This is the first mark"):
        assert words in output


def test_a_review_says_how_the_retention_rules_were_changed(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """The terminal, the document and Dagster all show it: a rule that someone shortened is the first thing to check."""
    reviewable(place, tables(ROWS), "m0", rules=Rules(30, {"dev": 7}))
    mark = reviewable(
        place,
        tables(ROWS),
        rules=Rules(21),
        start=START + timedelta(days=1),
        previous={"mark_id": "m0", "counts": dict(COUNTS), "unreadable": []},
    )

    sentence = (
        "The retention rules have changed on the server since mark m0: default: 30 days → 21 days; dev: 7 days → the "
        "default."
    )
    assert sentence in " ".join(lakegc.output(sandbox.settings, "review", name).split())
    assert review(lakegc, sandbox, name)["rules_changed"] == sentence
    assert (expired_set_result(mark_run(mark), Settings(), None).metadata or {})["rules_changed"] == sentence


def mark_run(mark: Mark) -> MarkRun:
    """The run of a finished mark, for code that only reads its files."""
    record = mark.record
    partition, target = Partition(record.repository, record.mark_id), cast(Target, SimpleNamespace(place=mark.place))
    return MarkRun(partition, target, mark, cast(LakeFS, None), lambda: None, Limits(), lambda _: None)


# --- the whole list -------------------------------------------------------------------------------------------------


def test_every_format_lists_every_object_in_address_order(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place
) -> None:
    """JSON, JSON lines and CSV have every column; people get one line for each object."""
    reviewable(place, tables(ROWS, per_file=4))

    as_json, as_lines, as_csv, people = (
        lakegc.output(sandbox.settings, "review", name, "--list", "--format", form)
        for form in ("json", "jsonl", "csv", "table")
    )

    rows = json.loads(as_json)
    assert [json.loads(line) for line in as_lines.splitlines()] == rows
    assert [row["address"] for row in rows] == sorted(row["address"] for row in ROWS)
    assert all(list(row) == EXPIRED_OBJECTS.names for row in rows)
    assert [{key: "" if value is None else str(value) for key, value in row.items()} for row in rows] == list(
        csv.DictReader(io.StringIO(as_csv, newline=""))
    )
    assert len(people.splitlines()) == len(ROWS)
    assert "data/s1/a  tables/users/1.parquet  (only expired commits refer to it)" in people


@pytest.mark.parametrize("micro", [0, 1, 120_000, 999_999])
def test_listed_times_keep_their_microseconds_and_time_zone(micro: int) -> None:
    """The times are those of the mark."""
    when = START.replace(microsecond=micro)
    (row,) = with_times_as_text(tables([expired("data/s/a", modified=when)])[0]).to_pylist()

    assert (row["modified"], row["until"]) == (when.isoformat(), None)
    assert datetime.fromisoformat(row["modified"]) == when


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_cells_that_look_like_formulas_are_escaped(
    lakegc: Lakegc, sandbox: Sandbox, name: str, place: Place, begin: str
) -> None:
    """Addresses and paths are escaped with an apostrophe; the rest of the cell is unchanged."""
    reviewable(place, tables([expired(f"{begin}1+1", path=f"{begin}cmd|' /C calc'!A0")]))

    text = lakegc.output(sandbox.settings, "review", name, "--list", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))

    assert (row["address"], row["path"]) == (f"'{begin}1+1", f"'{begin}cmd|' /C calc'!A0")


def test_json_lines_and_csv_of_totals_are_refused(lakegc: Lakegc, sandbox: Sandbox, name: str) -> None:
    """Both are formats of lists; the message names the option to add."""
    for command in (("review", name), ("diff", name, "m1", "m2")):
        for form in ("jsonl", "csv"):
            lakegc(sandbox.settings, *command, "--format", form).stopped(2, "add --list, or use json")
