"""Whole workflows with a signing key: forged marks are never a base, ranges of signed marks aren't read again, and the
key never leaves lakegc's own process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakegc_assets.mark.committed_addresses import trusted_record
from lakegc_assets.sweep.preconditions import SweepOptions
from lakegc_assets.sweep.quarantine import read_quarantine
from spark_resources.deleting.receipts import Receipts
from spark_resources.errors import Refused, Untrusted
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.hold_file import parse_hold
from spark_resources.mark_store.holds import HOLDS_KEY, add_hold, newest_recorded
from spark_resources.mark_store.mark import Mark, mark_folder
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, quick_environment, target_of
from tests.sweep.test_forged_marks import Lake

OLD, NEW = "4b" * 32, "c3" * 32


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with Sandbox(tmp_path / "sandbox") as sandbox:
        lake = Lake(sandbox)
        lake.settings["signing_key"] = OLD
        yield lake


def unsigned(lake: Lake) -> Any:
    return target_of(lake.sandbox.settings, "lake").place


def test_a_mark_is_full_if_its_base_mark_is_forged(lake: Lake, tmp_path: Path) -> None:
    """Without the key, an attacker can make all checksums match, but not the signature. The mark records why it is
    full."""
    lake.mark("m1")
    lake.days(2)
    record, copy_of_record = lake.repository.objects.file(mark_folder("m1") + "mark.json"), tmp_path / "kept.json"
    shutil.copy2(record, copy_of_record)  # keeps its time
    lake.drop("m1", unsigned(lake))

    full = lake.mark("m2")
    assert (full.record.is_incremental, full.expired) == (False, {lake.garbage})
    assert full.record.basis["why"].startswith("mark m1 isn't signed")
    named = Marker().mark(lake.settings, "lake", "m3", replace(ANY_AGE, since="m1"))
    assert (named.record.is_incremental, named.record.basis["why"]) == (False, "mark m1 isn't signed with a known key")

    shutil.copy2(copy_of_record, record)  # its signature is valid, but it names files that have been replaced
    again = Marker().mark(lake.settings, "lake", "m4", replace(ANY_AGE, since="m1"))
    assert (again.record.is_incremental, again.expired) == (False, {lake.garbage})
    assert "changed after it was written" in again.record.basis["why"]


def test_the_ranges_of_a_signed_base_mark_are_not_read_again(lake: Lake, tmp_path: Path) -> None:
    """The base mark was signed with a key that has since been retired. The sweep reads no range that either mark
    read."""
    lake.mark("m1")
    lake.days(2)
    lake.settings |= {"signing_key": NEW, "retired_signing_keys": OLD}

    assert lake.mark("m2").expired == {lake.garbage}
    with pytest.raises(Untrusted, match="LAKEGC_RETIRED_SIGNING_KEYS"):
        Mark.open(target_of({**lake.settings, "retired_signing_keys": "d4" * 32}, "lake").place, "m1")
    Sweeper().approve(lake.settings, "lake", "m2")
    place = target_of(lake.settings, "lake").place
    add_hold(place, parse_hold({"id": "h1", "owner": "ada", "reason": "audit", "prefix": "data/none/"}))
    report = Sweeper().sweep(lake.settings, "lake", "m2", SweepOptions(quarantine=True))

    recorded = newest_recorded(place)
    assert (recorded.number, recorded.ids) == (1, ("h1",))  # removing the hold now would be detected
    mark = Mark.open(place, "m2")
    assert mark.record.is_incremental
    assert trusted_record(mark) == mark
    assert report.objects == {"quarantined": 1}
    verification = Mark.open(place, "m2", root=f"{mark_folder('m2')}verifications/0001/").record
    assert verification.step("committed_addresses").facts["ranges"] > 0
    assert verification.step("committed_addresses").facts["bytes_read"] == 0

    signed_list = lake.repository.objects.file(mark_folder("m2") + "sweep.json")
    elsewhere = signed_list.rename(tmp_path / "sweep.json")
    with pytest.raises(Refused, match="no signed list"):
        Sweeper().purge(lake.settings, "lake", "m2")
    elsewhere.rename(signed_list)
    assert Sweeper().purge(lake.settings, "lake", "m2").objects == {"purged": 1}
    assert list(Receipts(place, mark_folder("m2") + "undone/").keys("receipt"))
    assert read_quarantine(place, report).purged == 1
    signed_list.with_name("quarantine.json").write_text('{"format": 1, "objects": {}}')
    with pytest.raises(Untrusted, match="isn't signed"):
        read_quarantine(place, report)


def test_a_sweep_is_refused_if_a_hold_added_after_the_approval_was_removed_by_hand(lake: Lake) -> None:
    """No mark used the hold. Adding it therefore also records it in each mark that may be swept."""
    assert lake.mark("m1", full=True).expired == set()
    lake.days(2)
    assert lake.mark("m2", full=True).expired == {lake.garbage}
    Sweeper().approve(lake.settings, "lake", "m2")
    place = target_of(lake.settings, "lake").place
    add_hold(place, parse_hold({"id": "h1", "owner": "ada", "reason": "audit", "prefix": "data/"}))
    file = lake.repository.objects.file(HOLDS_KEY)
    moved_file = file.rename(file.with_name("kept.yaml"))

    with pytest.raises(Untrusted, match=r"doesn't exist.*h1.*it was deleted"):
        Sweeper().sweep(lake.settings, "lake", "m2", SweepOptions())
    assert lake.stored(lake.garbage)

    moved_file.rename(file)
    assert Sweeper().sweep(lake.settings, "lake", "m2", SweepOptions()).objects == {"rescued": 1}


def test_the_signing_key_is_in_no_file_log_or_metadata(tmp_path: Path, lakegc_by_dagster: Lakegc) -> None:
    """The search covers the namespace, Dagster's own records and the output of commands, even after failures."""
    lakegc = lakegc_by_dagster
    with Sandbox(tmp_path / "sandbox") as sandbox:
        lake = sandbox.create("lake")
        lake.put("main", "a", b"old")
        lake.put("main", "a", b"new")
        lake.commit("main", "a")
        sandbox.set_clock(sandbox.now() + timedelta(days=2))
        settings = {**sandbox.settings, "signing_key": NEW, "retired_signing_keys": OLD}
        outputs = [lakegc(settings, "mark", "lake", "--mark-id", "m1", "--format", "json", *NO_AGE)]
        digest = json.loads(outputs[0].out)["digest"]
        outputs.append(lakegc(settings, "approve", "lake", "m1", "--yes", "--digest", digest))
        outputs.append(lakegc(settings, "sweep", "lake", "m1", "--quarantine"))
        record = sandbox.local_path / "lake" / mark_folder("m1") / "mark.json"
        record.write_bytes(record.read_bytes().replace(b"quarantine", b"somewhere!"))
        outputs += [lakegc(settings, *command) for command in (("status", "lake"), ("config", "check"), ("doctor",))]
        assert [output.code for output in outputs[:3]] == [0, 0, 0], outputs
    written = [file for folder in (tmp_path, lakegc.home) for file in folder.rglob("*") if file.is_file()]

    assert len(written) > 50
    for text in (OLD, NEW, bytes.fromhex(OLD).decode("latin-1"), bytes.fromhex(NEW).decode("latin-1")):
        assert not any(text in printed for output in outputs for printed in (output.out, output.err))
        assert not [file for file in written if text.encode("latin-1") in file.read_bytes()]


SEEN_IN_SPARK = """
import json, os, sys
from pathlib import Path
from spark_resources.spark.session import start_session
spark = start_session(json.loads(sys.argv[1]))
def look(batches):
    import os, pyarrow as pa
    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([json.dumps(dict(os.environ))])], ["seen"])
rows = spark.range(0, 1, 1, 1).mapInArrow(look, "seen string").collect()
jvm = Path("/proc", str(spark.sparkContext._gateway.proc.pid))
seen = [row["seen"] for row in rows] + [(jvm / name).read_bytes().decode("latin-1") for name in ("environ", "cmdline")]
conf = [str(spark.sparkContext.getConf().getAll()), str(spark.sparkContext._jvm.System.getenv())]
print(json.dumps([len(os.environ["LAKEGC_SIGNING_KEY"]), *seen, *conf]))
spark.stop()
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="environments are read in Linux's /proc")
def test_neither_the_jvm_nor_its_workers_get_the_signing_key(tmp_path: Path) -> None:
    """The JVM inherits lakegc's environment and passes it on to its workers. Either could write the key into logs."""
    environment = {**os.environ, **quick_environment({"signing_key": NEW, "retired_signing_keys": OLD})}
    settings = json.dumps({"spark.master": "local[1]"})
    outputs = subprocess.run(
        [sys.executable, "-c", SEEN_IN_SPARK, settings], env={**environment, "LEFT": "as it was"},
        capture_output=True, text=True, timeout=120, check=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    own, *environments = json.loads(outputs.stdout)

    assert own == len(NEW)
    assert sum("as it was" in environment for environment in environments) >= 3  # worker, JVM's process, JVM
    assert not any(key in environment for key in (OLD, NEW) for environment in environments)
