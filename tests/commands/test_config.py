"""`lakegc config check`: the settings that apply, where each comes from, and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import Lakegc, dagster_home, lakegc

__all__ = ["dagster_home", "lakegc"]

FLEET = """
min_age = "48h"
[repositories."lake-*"]
brake_share = 0.1
"""


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, str]:
    """Settings that name a fleet file, with a secret in an environment variable."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    return {"config": str(tmp_path / "fleet.toml"), "signing_key": "5e" * 32}


def test_the_values_for_a_repository_are_shown_with_their_origins(lakegc: Lakegc, fleet: dict[str, str]) -> None:
    """Sections for other repositories are left out, and secrets aren't shown."""
    lake = json.loads(lakegc.output(fleet, "config", "check", "lake-a", "--format", "json"))
    other = json.loads(lakegc.output(fleet, "config", "check", "other", "--format", "json"))

    assert lake["sections"] == ["lake-*"]
    assert lake["settings"]["brake_share"] == {
        "value": "0.1",
        "origin": f'brake_share in [repositories."lake-*"] of {fleet["config"]}',
    }
    assert lake["settings"]["min_age"]["value"] == "2 days"
    assert lake["settings"]["signing_key"]["origin"] == "variable LAKEGC_SIGNING_KEY"
    assert "5e5e" not in str(lake)
    assert "brake_share" not in other["settings"]


def test_an_invalid_section_for_another_repository_fails_the_check(
    lakegc: Lakegc, fleet: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "fleet.toml").write_text(f"{FLEET}mark_cron = 'nightly'\n")

    lakegc(fleet, "config", "check", "other").stopped(
        2, "mark_cron", 'repositories."lake-*"', "expected a cron schedule"
    )


def test_a_check_without_a_fleet_file_says_so_and_names_the_variable_that_sets_one(lakegc: Lakegc) -> None:
    output = lakegc.output({}, "config", "check", "--defaults")

    assert "There is no fleet file" in output
    assert "LAKEGC_CONFIG" in output
    assert "mark_cron" in output


def test_holds_with_dates_are_shown(lakegc: Lakegc, fleet: dict[str, str], tmp_path: Path) -> None:
    """TOML has dates, which JSON doesn't."""
    hold = '{id = "releases", tags = "v*", owner = "ada", reason = "because", until = 2027-06-30}'
    (tmp_path / "fleet.toml").write_text(f"holds = [{hold}]\n{FLEET}")
    shown = json.loads(lakegc.output(fleet, "config", "check", "lake-a", "--format", "json"))

    assert '"until": "2027-06-30"' in shown["settings"]["holds"]["value"]


def test_spark_settings_with_a_secret_are_not_shown(lakegc: Lakegc) -> None:
    for name, value in {
        "spark.a.private.key": "hush",
        "spark.a": "https://user:hush@host",
        "spark.a.pwd": "hush",
    }.items():
        settings = {"spark_conf": json.dumps({name: value})}
        for output in ("table", "json"):
            assert "hush" not in lakegc.output(settings, "config", "check", "--defaults", "--format", output)
