"""Holds in the settings: they are parsed like those in a namespace's file, and combined with them."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_resources.errors import Refused, WrongUsage
from spark_resources.mark_store.hold_file import Hold, parse_configured_holds, parse_hold, parse_holds
from spark_resources.mark_store.holds import Holds
from spark_resources.mark_store.record import newest_holds
from spark_resources.settings import Settings

WHOSE = {"owner": "ada", "reason": "because"}
RELEASES = {"id": "releases", "tags": "v*", **WHOSE}
LEGAL = {"id": "legal", "commits": {"legal": "hold"}, **WHOSE}


def in_file(*holds: dict[str, Any]) -> Holds:
    return Holds(parse(*holds), "5e" * 32 if holds else "")


def parse(*tables: dict[str, Any]) -> tuple[Hold, ...]:
    return parse_configured_holds(tables, "lakegc.toml")


def test_toml_values_mean_the_same_as_text_in_a_holds_file() -> None:
    """TOML has numbers, booleans, dates and times; a holds file has only text."""
    tables = tomllib.loads("""
        holds = [
          {id = "a", tags = "v*", history = true, owner = "ada", reason = "because", until = 2027-06-30},
          {id = "b", branches = "exp-*", days = 90, owner = "ada", reason = "because", until = 2027-06-30T12:00:00Z},
          {id = "c", commits = {legal = "hold"}, owner = "ada", reason = "because"},
        ]""")["holds"]
    file = b"""holds:
      - {id: a, tags: "v*", history: true, owner: ada, reason: because, until: 2027-06-30}
      - {id: b, branches: "exp-*", days: 90, owner: ada, reason: because, until: "2027-06-30T12:00:00+00:00"}
      - {id: c, commits: {legal: hold}, owner: ada, reason: because}
    """
    assert parse(*tables) == parse_holds(file, "holds.yaml")


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ([{"id": "x", **WHOSE}], "the hold 'x' in lakegc.toml is invalid: .*exactly one of"),
        ([{"tags": "v*", **WHOSE}], "a hold without an id in lakegc.toml is invalid: .*id"),
        ([{**RELEASES, "untill": "2027-01-01"}], "the hold 'releases' in lakegc.toml is invalid: .*untill"),
        ([{**RELEASES, "tags": 3.5}], "the hold 'releases' in lakegc.toml is invalid"),
        ([RELEASES, {**RELEASES, "tags": "w*"}], "lakegc.toml has two different holds with the id 'releases'"),
    ],
)
def test_the_error_about_an_invalid_hold_in_the_settings_identifies_the_hold(
    tables: list[dict[str, Any]], expected: str
) -> None:
    with pytest.raises(WrongUsage, match=expected):
        parse(*tables)


def test_the_end_of_a_hold_must_have_a_time_zone() -> None:
    until = tomllib.loads("until = 2027-06-30T12:00:00")["until"]

    with pytest.raises(WrongUsage, match=r"the hold 'releases' in lakegc.toml is invalid: .* has no time zone"):
        parse({**RELEASES, "until": until})


def test_holds_from_the_file_and_from_the_settings_apply_together() -> None:
    combined = in_file(RELEASES).with_configured(parse(LEGAL), "holds.yaml")

    assert combined.ids == ("releases", "legal")
    assert combined.ids_in_file == ("releases",)
    assert combined.record_fields()["configured"] == ["legal"]


def test_without_additional_holds_in_the_settings_the_holds_are_those_of_the_file() -> None:
    """A mark that was made before holds could be configured can therefore still be approved and swept."""
    file = in_file(RELEASES)

    assert file.with_configured((), "holds.yaml") == file
    assert file.with_configured(parse(RELEASES), "holds.yaml") == file
    assert file.record_fields() == {"sha256": file.sha256, "ids": ["releases"]}


def test_the_hash_depends_on_the_holds_and_not_on_their_order() -> None:
    """An approval compares the hash to detect changes."""
    holds, shuffled = [RELEASES, LEGAL, {"id": "x", "prefix": "data/x", **WHOSE}], random.Random(1)

    def combined(tables: Sequence[dict[str, Any]]) -> Holds:
        return in_file().with_configured(parse(*tables), "holds.yaml")

    whole = combined(holds).sha256
    assert {combined(shuffled.sample(holds, 3)).sha256 for _ in range(5)} == {whole}
    others = [combined(holds[1:]), combined([{**RELEASES, "tags": "w*"}, *holds[1:]]), in_file(*holds), in_file()]
    assert whole not in {other.sha256 for other in others}


def test_different_holds_with_the_same_id_are_refused() -> None:
    with pytest.raises(
        Refused, match=r"the hold 'releases' in holds\.yaml differs from the one with the same id"
    ) as raised:
        in_file(RELEASES).with_configured(parse({**RELEASES, "tags": "w*"}), "holds.yaml")
    assert raised.value.invariant == 3


def test_holds_from_the_settings_are_not_recorded_as_part_of_the_signed_file() -> None:
    """Otherwise, they would seem to be missing from the file whenever it is signed again."""
    combined = replace(in_file(RELEASES), number=4).with_configured(parse(LEGAL), "holds.yaml")

    record = SimpleNamespace(holds=combined.record_fields())
    assert newest_holds(record) == (4, ("releases",))  # type: ignore[arg-type]


def test_all_matching_sections_and_the_environment_variable_add_holds(tmp_path: Path) -> None:
    """A section can't remove a hold that applies to all repositories."""
    (tmp_path / "lakegc.toml").write_text("""
        holds = [{id = "all", tags = "v*", owner = "ada", reason = "because"}]
        [repositories."lake-*"]
        holds = [{id = "lakes", tags = "v*", owner = "ada", reason = "because"}]
        [repositories."*-main"]
        holds = [{id = "mains", tags = "v*", owner = "ada", reason = "because"}]
        [repositories.lake-main]
        holds = [{id = "main", tags = "v*", owner = "ada", reason = "because"}]
    """)
    environ = {"LAKEGC_HOLDS": '[{"id": "now", "tags": "v*", "owner": "ada", "reason": "because"}]'}

    def ids(repository: str | None, **environ: str) -> list[str]:
        settings = Settings.load(environ, Path("/nonexistent"), repository=repository, directory=tmp_path)
        return sorted(parse_hold(table).id for table in settings.holds)

    assert ids("lake-main") == ["all", "lakes", "main", "mains"]
    assert ids("lake-a") == ["all", "lakes"]
    assert ids(None) == ["all"]
    assert ids("other", **environ) == ["all", "now"]


@pytest.mark.parametrize("content", ['holds = "releases"', "holds = [1]", "[holds]\nid = 1"])
def test_holds_that_are_not_a_list_of_tables_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "lakegc.toml").write_text(content)

    with pytest.raises(WrongUsage, match=r"holds in .*: expected a list of tables"):
        Settings.load({}, Path("/nonexistent"), directory=tmp_path)


@pytest.mark.parametrize("text", ["null", "5", "{}", '""', '[{"id": "a", "tags": "v*", "tags": "w*"}]', "[" * 5000])
def test_an_environment_variable_that_is_not_a_list_of_tables_is_refused(tmp_path: Path, text: str) -> None:
    """A table that has a field twice is also refused, even together with a fleet file: nothing is dropped
    silently."""
    (tmp_path / "lakegc.toml").write_text('holds = [{id = "all", tags = "v*", owner = "ada", reason = "because"}]')

    with pytest.raises(WrongUsage, match="variable LAKEGC_HOLDS is invalid: expected a list of tables"):
        Settings.load({"LAKEGC_HOLDS": text}, Path("/nonexistent"), directory=tmp_path)
