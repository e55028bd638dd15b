"""`lakegc demo` with its objects in an object store, on a real server, and the commands that it suggests typing next.

In CI that is SeaweedFS; LAKEGC_LONG_TESTS=1 has each kind of object store that lakegc knows. `.ci/run` also runs the
demo with its objects in a folder, as somebody without settings does.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import platformdirs
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from lakegc_assets.notifications.run_events import notifications_of
from lakegc_assets.rules.brakes import BrakeLimits, brakes
from spark_resources.identifiers import Event
from spark_resources.mark_store.record import MarkRecord
from spark_resources.settings import Settings
from spark_resources.spark.session import SMALL_DATA_SETTINGS
from tests.support.command_line import Lakegc
from tests.support.store_providers import Provider, all_keys

LAKEGC = str(Path(sys.executable).with_name("lakegc"))
SECRET = "a-spark-key-for-nobodys-eyes"
LIMIT_S = 240
STORES = ("seaweedfs", "gcs", "azure")
pytestmark = pytest.mark.parametrize(
    "provider", STORES if os.environ.get("LAKEGC_LONG_TESTS") else STORES[:1], indirect=True
)


def as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"LAKEGC_{name.upper()}": value for name, value in settings.items()}


def fresh(home: Path) -> dict[str, str]:
    """The environment of somebody without settings, but with the existing caches of this machine."""
    own_prefixes = ("LAKEGC_", "LAKECTL_", "AWS_", "DAGSTER_", "XDG_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(own_prefixes)}
    return {
        **variables,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(platformdirs.user_cache_path()),
        "TMPDIR": str(home.parent),
    }


def as_settings(provider: Provider) -> dict[str, str]:
    """The settings that open a store, as texts."""
    fields = {name: getattr(provider.settings, name) for name in provider.settings.model_fields_set}
    named = {name: value for name, value in fields.items() if name.startswith(("s3_", "azure_", "gcs_"))}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value) for name, value in named.items()
    }


@dataclass(frozen=True)
class Demo:
    """The output of the demo, the folder of its sandbox, and the place of its objects."""

    home: Path
    done: subprocess.CompletedProcess[str]
    provider: Provider
    place: str

    @property
    def folder(self) -> Path:
        (printed,) = re.findall(r"lakegc sandbox up --folder (\S+) --store", self.done.stdout)
        return Path(printed)

    def table(self, title: str) -> list[list[str]]:
        """The rows of one of the demo's tables, cell by cell."""
        rows = self.done.stdout.split(title)[1].split("└")[0].splitlines()
        return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows if row.startswith("│")]


@pytest.fixture(scope="module")
def demo(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The demo, run with an empty home folder."""
    home = tmp_path_factory.mktemp("nobody") / "home"
    home.mkdir()
    conf = json.dumps({**SMALL_DATA_SETTINGS, "spark.hadoop.fs.s3a.secret.key": SECRET})
    own = {"LAKEGC_SPARK_CONF": conf, "LAKEGC_METRICS_FILE": str(home.parent / "lakegc.prom")}
    env = {**fresh(home), **as_variables(as_settings(provider)), **own}
    place = provider.uri()
    command = [LAKEGC, "demo", "--store", place]
    completed = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return Demo(home, completed, provider, place)


def test_the_demo_expires_the_six_objects_of_the_documented_example(demo: Demo) -> None:
    """The objects are five versions of a file that was overwritten repeatedly, and a file that was deleted on dev."""
    assert demo.done.returncode == 0, demo.done.stderr
    paths = sorted(row[0] for row in demo.table("Expired objects"))
    addresses = [row[3] for row in demo.table("Expired objects")]

    assert paths == ["dev/added-03-14.txt", *["overwritten-every-time.txt"] * 5]
    assert set(addresses) <= set(all_keys(demo.provider.open(f"{demo.place}/worked-example")))
    assert "\n6 of 20 objects are expired (" in demo.done.stdout


def test_the_demo_sweeps_and_restores_all_six_objects(demo: Demo) -> None:
    """Retained files are still readable byte for byte, expired ones return 410, and the backup brings them back."""
    assert "re-verified and swept: 6 deleted, out of 6 approved." in demo.done.stdout
    assert "files of retained commits are intact, byte for byte, and 0 are not; 6 of 6" in demo.done.stdout
    assert "Backed up 6 of 6 objects" in demo.done.stdout
    assert "Restored from the backup: 6 of 6 objects are readable again, byte for byte." in demo.done.stdout


def test_the_runs_of_the_demo_cause_notifications(demo: Demo) -> None:
    with dg.DagsterInstance.from_config(str(demo.folder / "dagster")) as instance:
        runs = reversed(instance.get_runs())
        found = [notification for run in runs for notification in notifications_of(instance, run)]

    assert [notification.event for notification in found] == [Event.APPROVAL_WAITING, Event.SWEPT]
    assert [notification.numbers["objects"] for notification in found] == [6, 6]
    assert len({notification.numbers["bytes"] for notification in found}) == 1
    assert found[1].numbers["failed"] == 0


def test_the_runs_of_the_demo_write_metrics(demo: Demo) -> None:
    text = (demo.home.parent / "lakegc.prom").read_text(encoding="utf-8")
    values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}

    assert values["lakegc_last_mark_expired_objects"] == values["lakegc_freed_objects"] == 6
    assert values["lakegc_last_backup_objects"] == values["lakegc_last_sweep_deleted_objects"] == 6
    assert values["lakegc_last_mark_duration_seconds"] > 0
    assert values["lakegc_marks_waiting"] == 0
    assert "metrics" not in demo.done.stderr


def test_commits_are_retained_and_expired_as_documented(demo: Demo) -> None:
    """On main, 03-09, 03-12, 03-18, the merge and 03-26 are retained; on dev, 03-23."""
    verdicts = {row[1]: (row[0], row[2]) for row in demo.table("Commits")}

    assert {name for name, (_, verdict) in verdicts.items() if verdict == "retained"} == {
        "main: 2022-03-09",
        "main: 2022-03-12",
        "main: 2022-03-18",
        "merge of dev",
        "main: 2022-03-26",
        "dev: 2022-03-23",
    }
    assert {name for name, (_, verdict) in verdicts.items() if verdict == "expired"} == {
        "Repository created",
        "main: 2022-02-27",
        "main: 2022-03-01",
        "dev: 2022-03-14",
        "dev: 2022-03-16",
        "dev: 2022-03-20",
    }
    assert all(name.endswith(day) for name, (day, _) in verdicts.items() if ": " in name)


def test_the_demo_writes_only_to_its_own_folder_and_reveals_no_secret(demo: Demo) -> None:
    """No secret from the environment is written or printed."""
    files = [path for path in demo.folder.rglob("*") if path.is_file()]

    assert list(demo.home.iterdir()) == []
    assert SECRET not in demo.done.stdout + demo.done.stderr
    assert [str(path) for path in files if SECRET.encode() in path.read_bytes()] == []
    assert all(line.startswith("lakegc: [") for line in demo.done.stderr.splitlines())


def printed_until(process: subprocess.Popen[bytes], words: str) -> str:
    """The output of a process up to the given words. Fails if the process ends first or takes too long."""
    assert process.stdout is not None
    text, limit = "", time.monotonic() + LIMIT_S
    while words not in text:
        assert select.select([process.stdout], [], [], max(0, limit - time.monotonic()))[0], text
        piece = os.read(process.stdout.fileno(), 65536).decode()
        assert piece, text
        text += piece
    return text


def settings_in(text: str) -> Mapping[str, str]:
    """The settings that are printed for other terminals, by their names."""
    return {name.lower(): value for name, value in re.findall(r"^  export LAKEGC_(\w+)=(\S+)$", text, re.MULTILINE)}


def test_the_commands_that_the_demo_prints_work(demo: Demo, lakegc: Lakegc) -> None:
    """The sandbox serves at the printed address and exits cleanly, and with the printed settings the mark is found."""
    command = [LAKEGC, "sandbox", "up", "--folder", str(demo.folder), "--store", demo.place, "--port", "0"]
    env = {**fresh(demo.home), **as_variables(as_settings(demo.provider))}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            settings = settings_in(printed_until(process, "Press Ctrl-C"))
            with urllib.request.urlopen(f"{settings['endpoint_url']}/api/v1/healthcheck", timeout=60) as response:
                assert response.status < 300
            together = {**as_settings(demo.provider), **settings}
            listed = lakegc.output(together, "review", "worked-example", "demo", "--list")
            totals = json.loads(lakegc.output(together, "review", "worked-example", "--format", "json"))
            process.terminate()
            rest, errors = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()

    assert {"endpoint_url", "access_key_id", "secret_access_key"} <= set(settings)
    assert len(listed.splitlines()) == totals["objects"] == 6
    assert (process.returncode, errors) == (0, b"")
    assert rest.decode().strip().endswith("stopped")


def test_a_second_demo_in_the_same_place_is_refused(demo: Demo, lakegc: Lakegc, tmp_path: Path) -> None:
    second = lakegc(as_settings(demo.provider), "demo", "--folder", str(tmp_path / "second"), "--store", demo.place)

    second.stopped(2, "needs an empty location", demo.place)


def test_no_brake_trips_in_the_demo(demo: Demo) -> None:
    """The six expired objects of its twenty are the first that expire in this repository."""
    store = demo.provider.open(f"{demo.place}/worked-example")
    record = MarkRecord.from_json(store.read("_lakefs/retention/gc/lakegc/demo/mark.json"), "the demo's mark")
    finished = record.finished
    assert finished is not None

    assert (record.counts["expired"], record.counts["candidates"], record.previous) == (6, 20, None)
    assert [brake.why for brake in brakes(record, BrakeLimits.of(Settings()), now=finished) if brake.tripped] == []
