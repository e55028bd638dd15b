"""The checks of `lakegc doctor`, one by one, with given inputs."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import dagster as dg
import pytest
from dagster._daemon.types import DaemonHeartbeat

from lakegc_assets.doctor import configuration, dagster_instance, machine, server, store
from lakegc_assets.doctor.checks import Check, Checks
from lakegc_assets.doctor.findings import Status, ok
from spark_resources.lakefs import LakeFSSettings
from spark_resources.lakefs.responses import ServerConfig
from spark_resources.settings import Settings
from spark_resources.stores.base import Capabilities, DeleteEffect
from tests.unit.test_java import fake_java

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)


def test_a_check_that_takes_too_long_is_a_problem_and_the_others_are_reported() -> None:
    released = threading.Event()
    checks = Checks()
    hanging = Check("group", "hanging", lambda: ok(str(released.wait(60))), limit_s=0.05)
    try:
        outcomes = checks.run_in_parallel([hanging, Check("group", "quick", lambda: ok("done"))])
    finally:
        released.set()

    assert [outcome.finding.status for outcome in outcomes] == [Status.PROBLEM, Status.OK]
    assert "no result within 0.05 seconds" in checks.findings[0].result.found


def test_checks_run_at_the_same_time() -> None:
    both = threading.Barrier(2)
    waiting = [Check("group", name, lambda: ok(str(both.wait(30)))) for name in ("a", "b")]

    assert [outcome.finding.status for outcome in Checks().run_in_parallel(waiting)] == [Status.OK, Status.OK]


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("0.86.0", Status.PROBLEM), ("0.87.1", Status.OK), ("v1.4.0", Status.OK), ("1.86.0-rc1", Status.OK),
        ("sandbox-0.1.0", Status.OK), ("dev-0.1", Status.OK), ("", Status.OK),
    ],
)  # fmt: skip
def test_releases_that_cannot_list_staged_objects_are_a_problem(version: str, status: Status) -> None:
    """A version that isn't a release number can't be compared, and is accepted."""
    assert server.version(ServerConfig({"": "s3"}, version)).status is status


@pytest.mark.parametrize(
    ("endpoint", "options", "status"),
    [
        ("http://localhost:8000", {}, Status.OK), ("http://127.0.0.1", {}, Status.OK),
        ("http://lake.example.com", {}, Status.WARNING), ("https://lake.example.com", {}, Status.OK),
        ("https://lake.example.com", {"verify_tls": False}, Status.WARNING),
        ("https://lake.example.com", {"ca_bundle": "/nowhere.pem"}, Status.PROBLEM),
    ],
)  # fmt: skip
def test_an_unprotected_connection_is_a_warning_and_a_missing_ca_bundle_is_a_problem(
    endpoint: str, options: dict[str, object], status: Status
) -> None:
    settings = LakeFSSettings(endpoint, "id", "secret", **options)  # type: ignore[arg-type]

    assert server.tls(settings).status is status


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[4]", "local[*]", "local[*,3]", "local-cluster[2,1,1024]", "yarn", "k8s://https://host:6443"),
        *("spark://host:7077", "spark://a:7077,b:7077"),
    ],
)
def test_every_form_of_a_spark_master_is_accepted(master: str) -> None:
    assert machine.spark_master(master).status is Status.OK


@pytest.mark.parametrize("master", ["", "local[", "local[x]", "spark://host", "host:7077", "http://host:7077", "YARN"])
def test_other_texts_for_the_spark_master_are_a_problem(master: str) -> None:
    assert machine.spark_master(master).status is Status.PROBLEM


@pytest.mark.parametrize(("version", "status"), [("17.0.1", Status.OK), ("25.0.1", Status.WARNING)])
def test_a_java_version_newer_than_the_supported_ones_is_a_warning(
    tmp_path: Path, version: str, status: Status
) -> None:
    assert machine.java(fake_java(tmp_path, f'openjdk version "{version}"')).status is status


def test_the_supported_python_versions_are_those_of_the_package() -> None:
    (oldest, newest) = machine.SUPPORTED_PYTHON

    assert metadata.metadata("lakegc")["Requires-Python"] == f"<3.{newest[1] + 1},>=3.{oldest[1]}"
    assert machine.python((3, 10)).status is machine.python((3, 15)).status is Status.PROBLEM
    assert machine.python((3, 11)).status is machine.python((3, 14)).status is Status.OK


def test_a_missing_package_is_reported() -> None:
    found = machine.packages(("pyarrow", "no-such-package"))

    assert found.status is Status.PROBLEM
    assert "no-such-package" in found.found


def test_a_decoder_that_cannot_be_compiled_or_cached_is_a_warning() -> None:
    def missing() -> bool:
        raise ImportError("no numba")

    def nowhere() -> Path:
        raise OSError("read-only")

    assert machine.compiled_decoder(missing, lambda: Path("/cache")).status is Status.WARNING
    assert machine.compiled_decoder(lambda: False, nowhere).status is Status.WARNING
    assert "/cache" in machine.compiled_decoder(lambda: False, lambda: Path("/cache")).found


def test_the_memory_limit_of_a_container_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("1073741824\n")
    (tmp_path / "none").write_text("max\n")

    assert machine.container_memory_limit(tmp_path / "limit") == 1 << 30
    assert machine.container_memory_limit(tmp_path / "none") is None
    assert machine.container_memory_limit(tmp_path / "missing") is None


def test_a_lack_of_conditional_writes_is_a_problem_but_only_a_warning_for_a_single_deployment() -> None:
    known = store.KnownCapabilities(Capabilities(conditional_writes=False), "probed now")

    assert store.conditional_writes(known, single_deployment=False).status is Status.PROBLEM
    assert store.conditional_writes(known, single_deployment=True).status is Status.WARNING
    assert store.conditional_writes(None, single_deployment=False).status is Status.NOT_TRIED


@pytest.mark.parametrize("effect", DeleteEffect)
def test_deletes_that_are_not_known_to_be_final_are_a_warning(effect: DeleteEffect) -> None:
    expected = Status.OK if effect is DeleteEffect.FINAL else Status.WARNING

    assert store.deletes("s3", effect).status is expected


def test_a_daemon_without_a_recent_heartbeat_is_a_warning(tmp_path: Path) -> None:
    """A home folder without an instance isn't touched."""
    assert dagster_instance.daemon(tmp_path, NOW).status is Status.NOT_TRIED
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    assert "no daemon has run yet" in dagster_instance.daemon(tmp_path, NOW).found
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        instance.add_daemon_heartbeat(DaemonHeartbeat(NOW.timestamp(), "SCHEDULER", "id", []))

    assert dagster_instance.daemon(tmp_path, NOW + timedelta(minutes=1)).status is Status.OK
    late = dagster_instance.daemon(tmp_path, NOW + timedelta(hours=2))
    assert late.status is Status.WARNING
    assert "2 hours ago" in late.found


def test_no_configured_secret_is_shown(tmp_path: Path) -> None:
    """Secrets are hidden in whatever a library writes into its messages, and wherever the secret is configured."""
    (tmp_path / ".lakectl.yaml").write_text("credentials:\n  secret_access_key: from-lakectl\n")
    environ = {
        "LAKEGC_S3_SECRET_ACCESS_KEY": "of-the-store",
        "LAKEGC_WEBHOOK_URL": "https://hooks.example.com/secret-path",
        "LAKEGC_SIGNING_KEY": "ef" * 32,
        "LAKEGC_RETIRED_SIGNING_KEYS": f"{'ab' * 32},{'cd' * 32}",
        "LAKEGC_SPARK_CONF": '{"fs.azure.account.key": "of-spark", "spark.app.name": "visible"}',
        "AWS_SECRET_ACCESS_KEY": "from-the-chain",
    }
    secrets = configuration.secrets_of(environ, Settings.load(environ, tmp_path))
    shown = configuration.without_secrets(
        f"from-lakectl of-the-store https://hooks.example.com/secret-path {'cd' * 32} of-spark from-the-chain visible",
        secrets,
    )

    assert shown == " ".join(["(secret)"] * 6 + ["visible"])
