"""`lakegc doctor` reports what is broken, says what to do, changes nothing, and never shows a secret."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lakegc_assets.doctor.checks import Checks
from lakegc_assets.doctor.examination import Surroundings, examine
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import OWNER_KEY
from spark_resources.stores.probe import RECORD_KEY
from tests.support.command_line import Lakegc
from tests.support.mark_runs import target_of
from tests.support.s3_servers import READER_ACCESS_KEY, READER_SECRET_KEY, SeaweedFS, free_port
from tests.support.tampering_proxy import TamperingProxy, tampering_proxy

GIB = 1 << 30


@dataclass(frozen=True)
class Report:
    """The exit code and findings of one run of the command."""

    code: int
    checks: dict[str, dict[str, str]]
    output: str

    def names(self, status: str) -> set[str]:
        """The checks with a status."""
        return {name for name, check in self.checks.items() if check["status"] == status}

    def text(self, name: str) -> str:
        return f"{self.checks[name]['found']} {self.checks[name]['advice']}"


@pytest.fixture
def doctor(lakegc: Lakegc) -> Any:
    def run(settings: dict[str, str], *arguments: str) -> Report:
        outcome = lakegc(settings, "doctor", *arguments, "--format", "json")
        document = json.loads(outcome.out)
        checks = {f"{check['group']}: {check['name']}": check for check in document["checks"]}
        assert len(checks) == len(document["checks"])
        assert document["fine"] == (outcome.code == 0) == (document["counts"]["problem"] == 0)
        return Report(outcome.code, checks, outcome.out + outcome.err)

    return run


@pytest.fixture
def proxy(sandbox: Sandbox) -> Iterator[TamperingProxy]:
    with tampering_proxy(sandbox.endpoint_url) as server:
        yield server


@pytest.fixture
def behind(sandbox: Sandbox, proxy: TamperingProxy) -> dict[str, str]:
    """The settings for the sandbox behind the proxy."""
    return {**sandbox.settings, "endpoint_url": proxy.endpoint}


@pytest.fixture
def name(sandbox: Sandbox, name: str) -> str:
    """The repository of this test, with a committed object."""
    lake = sandbox.repository(name)
    lake.put("main", "a", b"content")
    lake.commit("main", "first")
    return name


# --- set-ups that work ----------------------------------------------------------------------------------------------


def test_a_working_setup_has_no_problem_and_its_namespace_is_left_unchanged(
    doctor: Any, sandbox: Sandbox, name: str
) -> None:
    """The permission to delete users' objects is never tried."""
    folder = sandbox.local_path / name

    def files() -> dict[str, bytes]:
        found = (file for file in folder.rglob("*") if file.is_file() and ".lakegc-tmp" not in file.parts)
        return {str(file.relative_to(folder)): file.read_bytes() for file in found}

    before = files()
    report = doctor(sandbox.settings, name)

    assert report.code == 0
    assert report.names("problem") == set()
    assert report.checks["permissions to mark: write and delete lakegc's files"]["status"] == "ok"
    assert report.checks["permissions to sweep: delete objects"]["status"] == "not tried"
    assert files() == before


def test_the_table_shows_each_area_with_its_findings_and_advice(lakegc: Lakegc, sandbox: Sandbox, name: str) -> None:
    output = " ".join(re.findall(r"[^│┃\s]+", lakegc.output(sandbox.settings, "doctor", name)))

    for words in (
        "machine",
        "Java",
        "folders",
        "permissions to sweep",
        "Set rules with lakegc rules",
        "folder is written to. A sweep with --quarantine",
        "0 problems",
    ):
        assert words in output


def test_spark_is_started_only_on_request(doctor: Any, sandbox: Sandbox) -> None:
    assert "not started, because --spark wasn't passed" in doctor({}).text("machine: Spark")
    assert "on executors" in doctor(sandbox.settings, "--spark").text("machine: Spark")


# --- broken set-ups -------------------------------------------------------------------------------------------------


def test_an_unreachable_server_is_reported(doctor: Any, sandbox: Sandbox, name: str) -> None:
    """Checks that need the server are skipped; all others are made."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    report = doctor({**sandbox.settings, "endpoint_url": endpoint}, name)

    assert report.code == 1
    assert report.names("problem") == {"lakeFS server: connection"}
    assert endpoint in report.text("lakeFS server: connection")
    assert "repository: all" in report.names("not tried")
    assert report.checks["machine: Java"]["status"] == "ok"


def test_a_server_that_accepts_connections_but_never_responds_is_reported_as_timed_out(
    doctor: Any, sandbox: Sandbox, name: str
) -> None:
    """The server accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        report = doctor({**sandbox.settings, "endpoint_url": endpoint, "read_timeout_s": "0.2"}, name)

    assert report.names("problem") == {"lakeFS server: connection"}
    assert "timed out" in report.text("lakeFS server: connection")


def test_wrong_server_credentials_are_reported_without_being_shown(doctor: Any, sandbox: Sandbox, name: str) -> None:
    report = doctor({**sandbox.settings, "secret_access_key": "wrong-and-secret"}, name)

    assert report.names("problem") == {"lakeFS server: credentials"}
    assert "does not accept the credentials" in report.text("lakeFS server: credentials")
    assert "variable LAKEGC_SECRET_ACCESS_KEY" in report.text("configuration: lakeFS credentials")
    assert "wrong-and-secret" not in report.output


def test_missing_credentials_are_reported(doctor: Any, sandbox: Sandbox, name: str) -> None:
    report = doctor({"endpoint_url": sandbox.endpoint_url}, name)

    assert report.names("problem") == {"configuration: lakeFS credentials"}
    assert "set LAKEGC_ACCESS_KEY_ID" in report.text("configuration: lakeFS credentials")


def test_an_unknown_variable_is_reported_with_a_suggestion_and_hides_no_other_finding(
    doctor: Any, sandbox: Sandbox, name: str
) -> None:
    report = doctor({**sandbox.settings, "minimum_age": "2d", "min_agee": "2d"}, name)

    assert report.names("problem") == {"configuration: variables"}
    assert "LAKEGC_MIN_AGEE is not a lakegc setting" in report.text("configuration: variables")
    assert "Did you mean LAKEGC_MIN_AGE?" in report.text("configuration: variables")
    assert report.checks["permissions to mark: fs:ListBranches"]["status"] == "ok"


def test_an_invalid_setting_is_reported(doctor: Any, sandbox: Sandbox, name: str) -> None:
    report = doctor({**sandbox.settings, "min_age": "soon"}, name)

    assert report.names("problem") == {"configuration: settings"}
    assert "LAKEGC_MIN_AGE is 'soon'" in report.text("configuration: settings")


def test_an_invalid_fleet_file_is_reported(doctor: Any, sandbox: Sandbox, name: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[repositories."lake-*"]\nbrake_shares = 0.1\n')
    report = doctor({**sandbox.settings, "config": str(file)}, name)

    assert report.names("problem") == {"configuration: fleet file"}
    assert "brake_shares" in report.text("configuration: fleet file")
    assert str(file) in report.text("configuration: fleet file")


def test_a_missing_java_installation_is_reported_with_the_folder_in_java_home(
    doctor: Any, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    report = doctor(sandbox.settings)

    assert report.names("problem") == {"machine: Java"}
    assert str(tmp_path) in report.text("machine: Java")
    assert "openjdk-17" in report.text("machine: Java")


def test_an_invalid_spark_master_is_reported(doctor: Any, sandbox: Sandbox) -> None:
    report = doctor({**sandbox.settings, "spark_master": "localhost:7077"})

    assert report.names("problem") == {"machine: Spark"}
    assert "spark://host:port" in report.text("machine: Spark")


def test_an_unwritable_dagster_home_is_reported(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = Lakegc(tmp_path / "file" / "home")(sandbox.settings, "doctor", "--format", "json")

    assert outcome.code == 1
    assert "1 problem (folders: Dagster's home)" in outcome.err
    assert "set DAGSTER_HOME to another folder" in outcome.out


def test_an_unwritable_home_folder_is_only_a_warning(sandbox: Sandbox, tmp_path: Path) -> None:
    """lakegc uses temporary folders instead."""
    (tmp_path / "file").touch()
    places = {"XDG_CACHE_HOME": str(tmp_path / "file" / "cache"), "XDG_DATA_HOME": str(tmp_path / "file" / "data")}
    with mock.patch.dict(os.environ, places):
        findings = examine(None, surroundings(sandbox), Checks(), lambda _: None)
    found = {finding.name: finding.status for finding in findings if finding.group == "folders"}

    assert found == {"temporary files": "ok", "cache": "warning", "Dagster's home": "warning"}


def test_clocks_that_differ_are_reported(doctor: Any, proxy: TamperingProxy, behind: dict[str, str], name: str) -> None:
    proxy.date_offset = timedelta(hours=2)
    report = doctor(behind, name)

    assert report.names("problem") == {"clocks: clocks"}
    assert "the lakeFS server" in report.text("clocks: clocks")
    assert "NTP" in report.text("clocks: clocks")
    assert doctor(behind).names("warning") == {"clocks: clocks"}  # without the store's clock


def test_a_read_only_repository_is_reported(
    doctor: Any, proxy: TamperingProxy, behind: dict[str, str], name: str
) -> None:
    proxy.after(f"/{name}", lambda response: response.update(read_only=True))
    report = doctor(behind, name)

    assert report.names("problem") == {"repository: writable"}
    assert "read-only" in report.text("repository: writable")


def test_a_missing_repository_is_reported_with_the_most_similar_one(doctor: Any, sandbox: Sandbox, pond: str) -> None:
    report = doctor(sandbox.settings, "pondd")

    assert report.names("problem") == {"repository: exists"}
    assert report.text("repository: exists").strip().endswith(f"Did you mean {pond}?")


def test_a_namespace_that_does_not_match_the_block_store_is_reported_and_not_written_to(
    doctor: Any, proxy: TamperingProxy, behind: dict[str, str], name: str
) -> None:
    proxy.after(f"/{name}", lambda response: response.update(storage_namespace=f"s3://bucket/{name}"))
    report = doctor(behind, name)

    assert report.names("problem") == {"repository: block store"}
    assert "store: all" in report.names("not tried")


def test_a_namespace_owned_by_another_repository_is_reported(doctor: Any, sandbox: Sandbox, name: str) -> None:
    owner = {"format": 1, "repository": "somebody-else", "created": "2026-01-01T00:00:00+00:00"}
    target_of(sandbox.settings, name).place.store().write(OWNER_KEY, json.dumps(owner).encode())
    report = doctor(sandbox.settings, name)

    assert report.names("problem") == {"repository: owner"}
    assert "somebody-else" in report.text("repository: owner")


@pytest.mark.parametrize(
    ("call", "permission"),
    [
        ("/branches", "fs:ListBranches"),
        ("/settings/gc_rules", "retention:GetGarbageCollectionRules"),
        ("/diff", "fs:ListObjects"),
    ],
)
def test_a_missing_permission_to_mark_is_reported_for_sweeps_too(
    doctor: Any, proxy: TamperingProxy, behind: dict[str, str], name: str, call: str, permission: str
) -> None:
    proxy.refused[call] = 403
    report = doctor(behind, name)

    assert report.names("problem") == {f"permissions to mark: {permission}", "permissions to sweep: lakeFS"}
    assert permission in report.text(f"permissions to mark: {permission}")
    assert permission in report.text("permissions to sweep: lakeFS")


def test_a_permission_that_a_mark_can_do_without_is_a_warning(
    doctor: Any, proxy: TamperingProxy, behind: dict[str, str], name: str
) -> None:
    proxy.refused["/tags"] = 403
    report = doctor(behind, name)

    assert report.code == 0
    assert report.checks["permissions to mark: fs:ListTags"]["status"] == "warning"
    assert "commit graph" in report.text("permissions to mark: fs:ListTags")


# --- stores ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_bucket(
    seaweedfs: SeaweedFS, proxy: TamperingProxy, behind: dict[str, str], name: str
) -> tuple[dict[str, str], str]:
    """Settings with which a repository seems to be in a bucket that doesn't exist yet, and the bucket."""
    bucket = f"doctor-{name}"
    proxy.after("/config", lambda response: response["storage_config"].update(blockstore_type="s3"))
    proxy.after(f"/{name}", lambda response: response.update(storage_namespace=f"s3://{bucket}/lake"))
    settings = {
        "s3_endpoint_url": seaweedfs.endpoint_url,
        "s3_region": "us-east-1",
        "s3_access_key_id": seaweedfs.access_key,
        "s3_secret_access_key": seaweedfs.secret_key,
    }
    return {**behind, **settings}, bucket


def test_a_missing_bucket_is_reported(doctor: Any, in_bucket: tuple[dict[str, str], str], name: str) -> None:
    settings, bucket = in_bucket
    report = doctor(settings, name)

    assert report.names("problem") == {"permissions to mark: list data/"}
    assert bucket in report.text("permissions to mark: list data/")
    assert "store: conditional writes" in report.names("not tried")


def test_credentials_that_may_only_read_the_store_are_reported(
    doctor: Any, in_bucket: tuple[dict[str, str], str], seaweedfs: SeaweedFS, name: str
) -> None:
    """A probe needs to write, so the capabilities stay unknown."""
    settings, bucket = in_bucket
    seaweedfs.make_bucket(bucket)
    seaweedfs.client().put_object(Bucket=bucket, Key="lake/_lakefs/dummy", Body=b"dummy")
    reader = {"s3_access_key_id": READER_ACCESS_KEY, "s3_secret_access_key": READER_SECRET_KEY}
    report = doctor({**settings, **reader}, name)

    assert report.names("problem") == {"permissions to mark: write and delete lakegc's files"}
    assert "AccessDenied" in report.text("permissions to mark: write and delete lakegc's files")
    assert {"store: capabilities", "store: conditional writes"} <= report.names("not tried")
    assert report.checks["permissions to mark: read _lakefs/"]["status"] == "ok"
    assert "s3:DeleteObject" in report.text("permissions to sweep: delete objects")
    assert READER_SECRET_KEY not in report.output


def test_credentials_that_the_store_refuses_are_reported_without_being_shown(
    doctor: Any, in_bucket: tuple[dict[str, str], str], seaweedfs: SeaweedFS, name: str
) -> None:
    settings, bucket = in_bucket
    seaweedfs.make_bucket(bucket)
    report = doctor({**settings, "s3_secret_access_key": "wrong-and-secret"}, name)

    assert report.code == 1
    assert "permissions to mark: list data/" in report.names("problem")
    assert "SignatureDoesNotMatch" in report.text("permissions to mark: list data/")
    assert "wrong-and-secret" not in report.output


def record(endpoint: str) -> dict[str, Any]:
    """What a probe of this endpoint would have recorded a moment ago, because a real probe of SeaweedFS takes
    seconds."""
    capabilities = {
        "byte_order": False, "conditional_writes": True, "reports_missing_deletes": False, "time_resolution": 1.0,
        "delete_batch": 1000, "md5_etags": True, "ramp": None, "unholdable": ["empty segment"],
    }  # fmt: skip
    return {"format": 1, "endpoint": endpoint, "probed": datetime.now(UTC).isoformat(), "capabilities": capabilities}


def test_the_recorded_capabilities_of_a_store_are_used_and_nothing_is_left_in_the_bucket(
    doctor: Any, in_bucket: tuple[dict[str, str], str], seaweedfs: SeaweedFS, name: str
) -> None:
    settings, bucket = in_bucket
    seaweedfs.make_bucket(bucket)
    place = target_of(settings, name).place
    place.store().write(RECORD_KEY, json.dumps(record(seaweedfs.endpoint_url)).encode())
    report = doctor(settings, name)

    assert report.names("problem") == set()
    text = report.text("store: capabilities")
    assert "lists in byte order: no" in text
    assert "(recorded by an earlier probe)" in text
    assert report.checks["store: conditional writes"]["status"] == "ok"
    assert [listed.key for page in place.store().pages("") for listed in page.objects] == [RECORD_KEY]


# --- without a command line -----------------------------------------------------------------------------------------


def surroundings(sandbox: Sandbox, **changes: Any) -> Surroundings:
    given: dict[str, Any] = {
        "environ": {"PATH": "/usr/bin:/bin", **sandbox.environment},
        "home": Path("/nonexistent"),
        "now": lambda: datetime.now(UTC),
        "free_bytes": lambda _: 100 * GIB,
        "memory_bytes": 16 * GIB,
        "memory_limit": None,
        "token": "0123456789abcdef",
    }
    return Surroundings(**{**given, **changes})


def problems(sandbox: Sandbox, name: str | None = None, **changes: Any) -> dict[str, str]:
    findings = examine(name, surroundings(sandbox, **changes), Checks(), lambda _: None)
    return {
        f"{finding.group}: {finding.name}": f"{finding.result.found} {finding.result.advice}"
        for finding in findings
        if finding.status == "problem"
    }


def test_a_full_disk_is_reported_for_each_folder(sandbox: Sandbox) -> None:
    found = problems(sandbox, free_bytes=lambda _: 4096)

    assert set(found) == {"folders: temporary files", "folders: cache", "folders: Dagster's home"}
    assert "4.0 KiB free; at least 256.0 MiB are needed" in found["folders: temporary files"]


def test_a_container_with_too_little_memory_is_reported(sandbox: Sandbox) -> None:
    found = problems(sandbox, memory_limit=GIB // 2)

    assert set(found) == {"machine: memory"}
    assert "512.0 MiB of the machine's 16.0 GiB" in found["machine: memory"]


def test_the_machines_clock_is_compared_with_the_store_and_the_server(sandbox: Sandbox, name: str) -> None:
    found = problems(sandbox, name, now=lambda: datetime.now(UTC) - timedelta(hours=1))

    assert set(found) == {"clocks: clocks"}
    assert "this machine says" in found["clocks: clocks"]


def test_an_unexpected_error_is_reported_without_secrets_and_stops_no_other_check(sandbox: Sandbox) -> None:
    """Messages of libraries may contain anything."""

    def fail(_: Path) -> int:
        raise ZeroDivisionError(f"cannot divide by {sandbox.secret_access_key}")

    found = problems(sandbox, free_bytes=fail)

    assert set(found) == {"folders: temporary files", "folders: cache", "folders: Dagster's home"}
    assert "unexpected error: ZeroDivisionError: cannot divide by (secret)." in found["folders: cache"]
