"""`lakegc retire`: what it shows, what it changes, and what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from lakegc_assets.partitions import PARTITIONS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.model import MarkState
from tests.support.command_line import Lakegc
from tests.support.leases import hold_lease
from tests.support.retirements import OldMarks


def document(lakegc: Lakegc, settings: dict[str, str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lakegc.output(settings, "retire", *arguments, "--format", "json"))
    return found


def test_the_command_shows_which_marks_it_would_retire_and_why_and_the_command_that_retires_them(
    lakegc: Lakegc, lake: OldMarks
) -> None:
    """The printed command does exactly that. The table says why the other marks are kept."""
    before = lake.files()
    shown = lakegc.output(lake.sandbox.settings, "retire", lake.repository, "--older-than", "10d")

    assert lake.files() == before
    assert "it ended 39 days ago" in shown
    assert "marks are retired after 10 days" in shown
    assert f"To retire them: lakegc retire {lake.repository} --older-than 10d --apply\n" in shown

    shown = lakegc.output(lake.sandbox.settings, "retire", lake.repository, "--older-than", "10d", "--apply")
    assert "2 marks retired: " in shown
    assert [lake.record(f"m{number}").state for number in range(1, 5)] == [
        MarkState.RETIRED, MarkState.RETIRED, MarkState.MARKED, MarkState.MARKED,
    ]  # fmt: skip


def test_retiring_marks_also_removes_their_partitions(lakegc: Lakegc, lake: OldMarks) -> None:
    """Partitions of marks that another deployment retired earlier are also removed, but not those of kept marks."""
    keys = [f"{lake.repository}:m{number}" for number in range(1, 5)]
    lakegc.in_memory.add_dynamic_partitions(str(PARTITIONS.name), keys)
    lake.retire(10 * timedelta(days=1), ("m1",))
    lakegc.output(lake.sandbox.settings, "retire", lake.repository, "--older-than", "10d", "--apply")
    partitions = lakegc.in_memory.get_dynamic_partitions(str(PARTITIONS.name))

    assert [key for key in keys if key in partitions] == keys[2:]


def test_without_the_option_the_age_comes_from_the_settings(lakegc: Lakegc, lake: OldMarks) -> None:
    """Without the setting as well, the command is refused. So is an age without a unit."""
    plain = lake.sandbox.settings
    lakegc(plain, "retire", lake.repository).stopped(2, "--older-than 90d", "LAKEGC_RETIRE_AFTER")
    lakegc(plain, "retire", lake.repository, "--older-than", "90").stopped(2, "--older-than: '90' is not a duration")
    (found,) = document(lakegc, {**plain, "retire_after": "35d"}, lake.repository)["repositories"]

    assert [mark["action"] for mark in found["marks"]] == ["retire", "keep", "keep", "keep"]
    assert found["marks"][0]["files"] > 0
    assert found["marks"][0]["bytes"] > 0


def test_all_repositories_are_processed_even_if_one_is_busy_and_another_is_unreadable(
    lakegc: Lakegc, sandbox: Sandbox, lake: OldMarks
) -> None:
    """The command then fails because of the unreadable repository. If neither the option nor `retire_after` is set,
    repositories are left alone, and the output names them."""
    busy, broken = (OldMarks(sandbox, sandbox.create(f"all-{kind}").id) for kind in ("busy", "broken"))
    for marks in (busy, broken):
        for number, age in enumerate((40, 3, 2), 1):
            marks.add(f"m{number}", age=age)
    hold_lease(busy.target.place.store(), "m3")
    sandbox.fail("all-broken", 503)
    settings = {**sandbox.settings, "retry_total_s": "0", "repositories_include": f"all-*,{lake.repository}"}
    outcome = lakegc(settings, "retire", "--all", "--older-than", "10d", "--apply", "--format", "json")
    sandbox.fail("all-broken", None)
    found = {entry["repository"]: entry for entry in json.loads(outcome.out)["repositories"]}

    assert (outcome.code, "all-broken" in outcome.err) == (4, True)
    assert found[lake.repository]["retired"] == ["m1", "m2"]
    assert (found["all-busy"]["retired"], "holds the lease" in found["all-busy"]["busy"]) == ([], True)
    assert found["all-broken"]["error"] != ""
    shown = lakegc.output(settings, "retire", "--all")
    assert f"Left alone, because retire_after isn't set: all-broken, all-busy, {lake.repository}." in shown
    shown = lakegc.output(settings, "retire", "--all", "--older-than", "10d")
    assert "To retire them: lakegc retire --all --older-than 10d --apply\n" in shown


@pytest.mark.parametrize("arguments", [(), ("lake", "--all")])
def test_exactly_one_of_a_repository_and_the_option_all_has_to_be_given(
    lakegc: Lakegc, sandbox: Sandbox, arguments: tuple[str, ...]
) -> None:
    lakegc(sandbox.settings, "retire", *arguments, "--older-than", "10d").stopped(2, "--all")


def test_named_marks_that_were_retired_earlier_are_reported_as_already_retired(lakegc: Lakegc, lake: OldMarks) -> None:
    lake.retire(10 * timedelta(days=1))
    shown = lakegc.output(lake.sandbox.settings, "retire", lake.repository, "m1", "m3", "--older-than", "10d")

    assert "Already retired: m1.\n" in shown
    assert "m4" not in shown
