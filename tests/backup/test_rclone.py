"""The documented rclone commands on a mark's text list, run exactly as shown: what they copy, and what they can't."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

from spark_resources.copying.copy_log import CopyStatus
from spark_resources.mark_store.foreign_layouts import reference_outputs
from spark_resources.mark_store.mark import reference_folder
from spark_resources.model import ADDRESSES, Namespace
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from tests.support.backup_tasks import Task, all_with, outcomes
from tests.support.s3_servers import SeaweedFS

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
BY_RCLONE = [
    "data/s/plain", "data/s/two words", "data/s/ lead", "data/s/#hash", "data/s/;semi", "data/s/a+b%2Fc",
    "data/s/ünï/код", "data/s/star*[x]{y}?", "data/s/quote\"'`$", "data/s/tab\there", "data/s/dot./end.",
    "data/s/~tilde", "data/s/nb\u00a0sp", "data/s/\u202erlo", "data/s/back%5C", "data/s/ sp /x", "- excl",
    "+ incl", "legacy", "data/s/deep/er/and/deeper", "data/s/:colon|pipe<>",
]  # fmt: skip
BY_LAKEGC_ONLY = ["data/s/trail ", " lead", "#root", ";root", "data/s/new\nline", "\u3000wide"]


def commands() -> list[str]:
    """The commands of the page on backups: for the list, the backup and the restore."""
    documented = re.findall(r"^(rclone .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(documented) == 3
    return [line.replace("MARK", "m1") for line in documented]


def run(command: str, server: SeaweedFS, folder: Path) -> None:
    remote = {
        "TYPE": "s3", "PROVIDER": "SeaweedFS", "ENDPOINT": server.endpoint_url, "ACCESS_KEY_ID": server.access_key,
        "SECRET_ACCESS_KEY": server.secret_key,
    }  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {"PATH": path, "HOME": str(folder), "RCLONE_CONFIG": os.devnull}
    environ |= {f"RCLONE_CONFIG_{name}_{key}": value for name in ("LAKE", "SAFE") for key, value in remote.items()}
    subprocess.run(command, shell=True, check=True, env=environ, cwd=folder, timeout=60)


def keys(place: Place) -> set[str]:
    listed = (stored.key for page in place.store().pages("") for stored in page.objects)
    return {key for key in listed if not key.startswith("_lakefs/")}


def test_the_documented_rclone_commands_copy_and_restore_every_key_of_the_text_list(
    seaweedfs: SeaweedFS, tmp_path: Path
) -> None:
    """The commands handle odd characters. Only lakegc copies objects whose keys the text list can't hold."""
    seaweedfs.make_bucket("bucket")
    seaweedfs.make_bucket("backups")
    capabilities = Capabilities(byte_order=False)
    lake, by_rclone, to = (
        Place(Namespace(uri), seaweedfs.settings(), capabilities)
        for uri in ("s3://bucket/repo", "s3://backups/repo/m1", "s3://backups/lakegc")
    )
    every = [*BY_RCLONE, *BY_LAKEGC_ONLY]
    task = Task(lake, to)
    for key in every:
        task.write(key, key.encode(), owner="ada")
    lines, count = reference_outputs("m1")[1].encode(pa.table({"address": every}, schema=ADDRESSES))
    folder = reference_folder("m1") + "deleted.text/"
    lake.store().write(f"{folder}part-00000.txt", lines)
    lake.store().write(f"{folder}_files.json", b"{}")
    listed, there, back = commands()
    run(listed, seaweedfs, tmp_path)
    run(there, seaweedfs, tmp_path)
    logged = task.back_up(task.mark_rows(every), resumed=False)
    lake.store().delete_many(BY_RCLONE)
    run(back, seaweedfs, tmp_path)

    assert count == len(BY_RCLONE)
    assert keys(by_rclone) == set(BY_RCLONE)
    assert keys(lake) == set(every)
    assert all(lake.store().read(key) == key.encode() for key in every)
    assert outcomes(logged) == all_with(every, CopyStatus.COPIED)
