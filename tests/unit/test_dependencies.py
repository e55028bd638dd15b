"""lakegc's dependencies: ranges of versions that work at both ends, and licenses that were checked."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BOUNDS = {
    requirement.name: requirement.specifier for requirement in map(Requirement, PROJECT["project"]["dependencies"])
}


def locked(name: str) -> Version:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    [version] = [package["version"] for package in lock["package"] if package["name"] == name]
    return Version(version)


def test_lakefs_sdk_is_allowed_only_while_it_is_under_the_apache_license() -> None:
    """Since version 1.87, the package has been under BUSL-1.1, which forbids offering it as a service."""
    for version, allowed in (
        ("1.71.0", False),
        ("1.72.0", True),
        ("1.86.0", True),
        ("1.87.0", False),
        ("2.0.0", False),
    ):
        assert (version in BOUNDS["lakefs-sdk"]) == allowed, version
    assert locked("lakefs-sdk") in BOUNDS["lakefs-sdk"]


def test_incompatible_versions_of_urllib3_are_excluded() -> None:
    """lakegc relies on urllib3's retries and decoding as they work since 2.6.3."""
    assert "2.6.2" not in BOUNDS["urllib3"]
    assert "2.6.3" in BOUNDS["urllib3"]


def test_ci_tests_the_lowest_versions_and_checks_the_licenses_of_locked_packages() -> None:
    """CI accepts listed licenses only, so a dependency with a new license fails it."""
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    assert "--resolution lowest-direct --override" in steps
    assert "\\\n    -r pyproject.toml --extra azure --extra gcs --extra postgres\n" in steps
    assert "uv run pip-licenses" in steps
    allowed = PROJECT["tool"]["pip-licenses"]["allow-only"].split(";")
    assert "Apache-2.0" in allowed
    assert not [name for name in allowed if "BUSL" in name or "GPL" in name]


def test_uvs_default_environment_includes_every_extra() -> None:
    """`uv run` installs the default groups; `--no-dev` leaves out only the group dev. Only a team needs Postgres."""
    groups = PROJECT["dependency-groups"]

    assert set(PROJECT["project"]["optional-dependencies"]) == {"azure", "gcs", "postgres"}
    assert groups["stores"] == ["lakegc[azure,gcs]"]
    assert "lakegc[postgres]" in groups["dev"]
    assert PROJECT["tool"]["uv"]["default-groups"] == ["dev", "stores"]


def test_the_only_package_whose_license_is_not_checked_is_psycopg2() -> None:
    """The package is under the LGPL with exceptions, and installed only with the extra for Postgres."""
    assert PROJECT["tool"]["pip-licenses"]["ignore-packages"] == ["psycopg2-binary"]
    assert PROJECT["project"]["optional-dependencies"]["postgres"] == ["dagster-postgres>=0.29,<1"]
    assert "psycopg2" not in str(PROJECT["project"]["dependencies"])


OPENED = """
import sys
for name in {missing}:
    sys.modules[name] = None  # as if it weren't installed
from spark_resources.errors import WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import StoreSettings, open_store
try:
    print(open_store(Namespace.parse({uri!r}), StoreSettings({settings})))
except WrongUsage as error:
    print(error)
"""


def opened(uri: str, missing: list[str], settings: str = "") -> str:
    """The result of opening a store in a process that lacks some packages."""
    code = OPENED.format(uri=uri, missing=missing, settings=settings)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize(
    ("uri", "missing", "extra"),
    [
        ("gs://bucket/lake", "google.auth", "gcs"),
        ("https://account.blob.core.windows.net/container/lake", "azure.storage.blob", "azure"),
        ("https://account.blob.core.windows.net/container/lake", "azure.identity", "azure"),
    ],
)
def test_the_error_about_a_providers_missing_package_names_the_extra(uri: str, missing: str, extra: str) -> None:
    """The error names the package as well as the extra."""
    output = opened(uri, [missing])

    assert missing in output
    assert f"pip install 'lakegc[{extra}]'" in output


def test_other_stores_work_without_the_extras(tmp_path: Path) -> None:
    output = opened("local://lake", ["google.auth", "azure", "requests"], f"local_path={str(tmp_path)!r}")
    assert "LocalStore" in output
    assert "S3Store" in opened("s3://bucket/lake", ["google.auth", "azure"])
