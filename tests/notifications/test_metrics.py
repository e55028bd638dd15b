"""Metrics: what is computed from records, and the file and the push gateway that they are written to."""

from __future__ import annotations

import multiprocessing
import re
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakegc_assets.backup.manifest import Backup, Subject
from lakegc_assets.notifications import metrics_file
from lakegc_assets.notifications.gauges import Gauge, backup_gauges, repository_gauges
from lakegc_assets.notifications.metrics import families, publish_backup, publish_repository
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.sweep.report import Report, report_key
from spark_resources.errors import LakegcError
from spark_resources.mark_store.record import StepRecord
from spark_resources.model import MarkState, Namespace
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.finished_marks import COUNTS, START, finished_mark, finished_record
from tests.support.webhook_receiver import receiver

LIMITS = BrakeLimits.of(Settings())
SOON = START + timedelta(minutes=10)
WRITES = 15
NAMES = re.compile(r"lakegc_[a-z_]*(_objects|_bytes|_seconds|_tripped|_waiting)")


def report(mark_id: str = "m1", **changes: Any) -> Report:
    known: dict[str, Any] = {
        "mark_id": mark_id, "repository": "lake", "digest": "d", "by": "Ada", "began": START,
        "ended": START + timedelta(minutes=2), "approved": 4,
        "objects": {"deleted": 2, "failed": 1, "rescued": 1}, "sizes": {"deleted": 20, "failed": 1, "rescued": 1},
        "seconds": 1.0, "requests": 1, "attempts": 3, "verifications": (START,), "late": (), "late_objects": 0,
    }  # fmt: skip
    return Report(**{**known, **changes})


def backup() -> Backup:
    return Backup(
        Subject("lake", START.isoformat(), "local://lake", "m1", None, "d"), "Ada", START, SOON, 3,
        {"copied": 3}, {"copied": 30}, 1.5, {"folder": "f/", "sha256": "a", "rows": 3, "bytes": 1},
    )  # fmt: skip


def values(gauges: list[Gauge]) -> dict[str, float]:
    return {gauge.name: gauge.value for gauge in gauges}


# --- computing --------------------------------------------------------------------------------------------------------


def test_metrics_cover_the_newest_mark_and_all_marks_that_wait_for_approval() -> None:
    old = finished_record("old", start=START - timedelta(days=30))  # too old to be approved
    swept = finished_record("swept", start=START - timedelta(days=1), state=MarkState.SWEPT)
    empty = finished_record(
        "empty", start=START - timedelta(days=3), counts={**COUNTS, "expired": 0, "expired_bytes": 0}
    )
    steps = {"namespace_slices": StepRecord(START + timedelta(minutes=1), START + timedelta(minutes=2))}
    newest = finished_record("new", start=START, steps=steps, counts={**COUNTS, "expired": 90_000})
    earlier = finished_record("earlier", start=START - timedelta(days=2))
    found = values(repository_gauges([newest, old, swept, empty, earlier], [], LIMITS, now=SOON))

    assert found["lakegc_last_mark_timestamp_seconds"] == (START + timedelta(minutes=9)).timestamp()
    assert found["lakegc_last_mark_duration_seconds"] == 8 * 60
    assert found["lakegc_last_mark_stored_objects"] == 100_000
    assert found["lakegc_last_mark_expired_objects"] == 90_000
    assert found["lakegc_last_mark_kept_bytes"] == 900_000
    assert found["lakegc_last_mark_live_objects"] == 80_000
    assert found["lakegc_last_mark_brakes_tripped"] == 1  # the share
    assert found["lakegc_marks_waiting"] == 2


def test_metrics_cover_the_newest_sweep_and_what_all_sweeps_freed() -> None:
    purged = report("m0", ended=START - timedelta(days=3), objects={"purged": 5}, sizes={"purged": 500})
    found = values(repository_gauges([], [report(), purged], LIMITS, now=SOON))

    assert found["lakegc_last_sweep_duration_seconds"] == 120
    assert found["lakegc_last_sweep_deleted_objects"] == 2
    assert found["lakegc_last_sweep_failed_objects"] == 1
    assert found["lakegc_last_sweep_rescued_objects"] == 1
    assert (found["lakegc_freed_objects"], found["lakegc_freed_bytes"]) == (7, 520)
    assert "lakegc_marks_waiting" not in found


def test_metrics_leave_out_marks_of_an_earlier_format() -> None:
    record = finished_record()
    object.__setattr__(record, "format", 1)

    assert repository_gauges([record], [], LIMITS, now=SOON) == []


def test_metric_names_are_unique_and_follow_the_conventions_of_prometheus() -> None:
    """Units are suffixes. `_total` is only for counters, and lakegc's metrics are gauges."""
    gauges = [*repository_gauges([finished_record()], [report()], LIMITS, now=SOON), *backup_gauges(backup())]

    assert [gauge.name for gauge in gauges if not NAMES.fullmatch(gauge.name)] == []
    assert len({gauge.name for gauge in gauges}) == len(gauges)


def test_exactly_the_documented_metrics_are_published() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = "".join(re.findall(r"^\| `lakegc_.*$", page, re.MULTILINE))
    gauges = [*repository_gauges([finished_record()], [report()], LIMITS, now=SOON), *backup_gauges(backup())]

    assert set(re.findall(r"`(lakegc_\w+)`", rows)) == {family.name for family in families(gauges, "lake").collect()}


# --- the file ---------------------------------------------------------------------------------------------------------


def series(path: Path) -> dict[tuple[str, str], float]:
    """The values in the file, by name and repository."""
    text = path.read_text(encoding="utf-8")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, sample.labels.get("repository", "")): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def write(path: Path, repository: str, value: float, name: str = "lakegc_marks_waiting") -> None:
    metrics_file.update(path, repository, families([Gauge(name, "help", value)], repository))


def test_a_run_keeps_the_series_of_other_repositories_and_other_metrics(tmp_path: Path) -> None:
    path = tmp_path / "lakegc.prom"
    write(path, "lake-a", 1)
    write(path, "lake-a", 7, "lakegc_last_backup_objects")
    write(path, "lake-b", 2)
    write(path, "lake-a", 3)

    assert series(path) == {
        ("lakegc_build_info", ""): 1,
        ("lakegc_last_backup_objects", "lake-a"): 7,
        ("lakegc_marks_waiting", "lake-a"): 3,
        ("lakegc_marks_waiting", "lake-b"): 2,
    }
    assert path.read_text(encoding="utf-8").count("# TYPE lakegc_marks_waiting gauge\n") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"lakegc.prom", "lakegc.prom.lock"}


def write_often(path: Path, name: str, start: Any) -> None:
    start.wait(30)
    for number in range(WRITES):
        write(path, f"{name}-{number}", number)


def test_processes_that_write_at_the_same_time_lose_no_series(tmp_path: Path) -> None:
    path, context = tmp_path / "lakegc.prom", multiprocessing.get_context("fork")
    names, start = ("lake-a", "lake-b", "lake-c"), context.Barrier(3)
    processes = [context.Process(target=write_often, args=(path, name, start)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0, 0]
    written = {("lakegc_marks_waiting", f"{name}-{number}") for name in names for number in range(WRITES)}
    assert written <= series(path).keys()


@pytest.mark.parametrize("content", [b"root:x:0:0:root:/root:/bin/bash\n", b"\xff\xfe\x00", b'{"json": 1}'])
def test_a_file_without_metrics_is_not_overwritten(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "passwd.prom"
    path.write_bytes(content)
    with pytest.raises(LakegcError, match="is not a metrics file, so it wasn't overwritten"):
        write(path, "lake", 1)

    assert path.read_bytes() == content


def test_a_missing_folder_for_the_metrics_raises_an_error_and_is_not_created(tmp_path: Path) -> None:
    with pytest.raises(LakegcError, match=r"doesn't exist\. Create it, or correct LAKEGC_METRICS_FILE"):
        write(tmp_path / "missing" / "lakegc.prom", "lake", 1)

    assert list(tmp_path.iterdir()) == []


def test_the_error_for_an_unwritable_file_says_what_to_do(tmp_path: Path) -> None:
    """A folder in place of the file can't be written by any user, not even root."""
    (tmp_path / "lakegc.prom").mkdir()
    with pytest.raises(LakegcError, match=r"can't be written: Is a directory\. Make the folder writable"):
        write(tmp_path / "lakegc.prom", "lake", 1)


def test_waiting_too_long_for_the_lock_of_the_file_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_file, "LOCK_TIMEOUT_S", 0.1)
    path = tmp_path / "lakegc.prom"
    with metrics_file.FileLock(f"{path}.lock"), pytest.raises(LakegcError, match="another process has been writing"):
        write(path, "lake", 1)


# --- publishing -------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """The namespace of a repository, in a folder."""
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def test_the_metrics_of_a_namespace_are_published_even_if_one_record_is_damaged(place: Place, tmp_path: Path) -> None:
    finished_mark(place, ["data/a"], "m1")
    place.records().write(report_key("m1"), report().to_json())
    finished_mark(place, ["data/b"], "m2").move_to(MarkState.APPROVED)
    place.store().write("_lakefs/retention/gc/lakegc/m3/mark.json", b"not JSON")
    place.store().write("_lakefs/retention/gc/lakegc/foreign/sweep.json", b"not JSON")
    warnings: list[str] = []
    path = tmp_path / "lakegc.prom"
    publish_repository(place, "lake", Settings(metrics_file=str(path)), warnings.append)

    assert warnings == []
    assert series(path)["lakegc_last_mark_expired_objects", "lake"] == 1


def test_the_gateway_gets_the_metrics_in_a_group_for_the_repository() -> None:
    """If there are several servers, the label includes the server's name, although the backup's own record has only the
    repository's id."""
    warnings: list[str] = []
    with receiver() as gateway:
        publish_backup(backup(), "lab/lake", Settings(metrics_push_url=gateway.url), warnings.append)
        [request] = gateway.received

    assert warnings == []
    assert (request.method, request.path.partition("/metrics/")[2]) == (
        "POST",
        "job/lakegc/repository@base64/bGFiL2xha2U=",
    )
    assert b'lakegc_last_backup_bytes{repository="lab/lake"} 30.0\n' in request.body


@pytest.mark.parametrize("status", [400, 500])
def test_a_failing_gateway_causes_only_a_warning(status: int) -> None:
    warnings: list[str] = []
    with receiver() as gateway:
        gateway.statuses = [status]
        publish_backup(backup(), "lake", Settings(metrics_push_url=gateway.url), warnings.append)

    [warning] = warnings
    assert f"HTTP Error {status}" in warning
    assert "Check LAKEGC_METRICS_PUSH_URL" in warning


def test_failures_to_publish_metrics_are_warnings_and_do_not_stop_a_run(place: Place, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        unreachable = f"http://127.0.0.1:{server.getsockname()[1]}"
    settings = Settings(metrics_file=str(tmp_path / "missing" / "lakegc.prom"), metrics_push_url=unreachable)
    warnings: list[str] = []
    publish_repository(place, "lake", settings, warnings.append)
    (tmp_path / "lake").rename(tmp_path / "gone")
    publish_repository(place, "lake", settings, warnings.append)

    assert [warning.partition(":")[0] for warning in warnings[:2]] == [
        "The metrics of lake were not written",
        "The metrics of lake were not pushed to http",
    ]
    assert "could not be computed" in warnings[2]


def test_without_the_settings_for_metrics_nothing_is_read_or_written(tmp_path: Path) -> None:
    missing = Place(Namespace.parse("local://gone"), StoreSettings(local_path=str(tmp_path)))
    warnings: list[str] = []
    publish_repository(missing, "lake", Settings(), warnings.append)

    assert warnings == []
