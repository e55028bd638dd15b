"""The owners of assets in Dagster, from the setting `owners`."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest

from lakegc_assets.assets.owners import configured_owners

FILE = 'owners = ["data-platform", "ada@example.org"]\n[repositories.lake]\nowners = "other"\n'


@pytest.mark.parametrize(
    ("variable", "owners"),
    [
        ("", ["team:data-platform", "ada@example.org"]),
        (" on call , ada@example.org,", ["team:on call", "ada@example.org"]),
    ],
)
def test_the_owners_set_for_all_repositories_own_the_assets(tmp_path: Path, variable: str, owners: list[str]) -> None:
    """The environment variable takes precedence over the fleet file unless it is empty. Dagster accepts the result."""
    file = tmp_path / "lakegc.toml"
    file.write_text(FILE)

    found = configured_owners({"LAKEGC_CONFIG": str(file), "LAKEGC_OWNERS": variable})

    assert found == owners
    assert dg.AssetSpec("a", owners=found).owners == owners


def test_the_owners_of_a_single_repository_do_not_own_the_assets(tmp_path: Path) -> None:
    file = tmp_path / "lakegc.toml"
    file.write_text('[repositories.lake]\nowners = "other"\n')

    assert configured_owners({"LAKEGC_CONFIG": str(file)}) == []
