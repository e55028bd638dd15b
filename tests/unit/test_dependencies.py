"""What lakegc depends on: versions that hold at both ends, and licences that were looked at."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BOUNDS = {one.name: one.specifier for one in map(Requirement, PROJECT["project"]["dependencies"])}


def locked(name: str) -> Version:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    [found] = [one["version"] for one in lock["package"] if one["name"] == name]
    return Version(found)


def test_lakefs_sdk_is_taken_only_while_it_is_under_the_apache_licence() -> None:
    """From 1.87 on it is under BUSL-1.1, which forbids offering it as a service."""
    for version, taken in (("1.71.0", False), ("1.72.0", True), ("1.86.0", True), ("1.87.0", False), ("2.0.0", False)):
        assert (version in BOUNDS["lakefs-sdk"]) == taken, version
    assert locked("lakefs-sdk") in BOUNDS["lakefs-sdk"]


def test_an_urllib3_that_lakegc_does_not_work_with_is_not_taken() -> None:
    """Its retries and decoding are relied on as they are from 2.6.3 on."""
    assert "2.6.2" not in BOUNDS["urllib3"]
    assert "2.6.3" in BOUNDS["urllib3"]


def test_ci_tries_the_lowest_versions_and_looks_at_the_licences_of_the_lock() -> None:
    """Only permitted licences are listed, so a new one stops it."""
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "--resolution lowest-direct ." in steps
    assert "uv run pip-licenses" in steps
    allowed = PROJECT["tool"]["pip-licenses"]["allow-only"].split(";")
    assert "Apache-2.0" in allowed
    assert not [one for one in allowed if "BUSL" in one or "GPL" in one]
