"""The commands on marks made without Spark: refusals, reports, and marks of the reference collector."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from lakegc_assets.backup.context import marked_set
from lakegc_assets.backup.destination import parse_place, refuse_overlap
from lakegc_assets.backup.manifest import SCHEMA, begin, listed_objects, read_backup
from lakegc_assets.mark.context import Target
from spark_resources.errors import Forbidden, Refused
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.mark_store.holds import HOLDS_KEY
from spark_resources.mark_store.lease import LEASE_KEY
from spark_resources.mark_store.mark import GC_ROOT, MARKS_ROOT, Mark
from spark_resources.model import MarkState, Namespace, Outcome
from spark_resources.spark.datasets import all_rows, write_rows
from spark_resources.stores import StoreSettings
from spark_resources.stores.place import Place
from tests.approval.conftest import Lake as ApprovalLake
from tests.approval.conftest import lake as approval_lake
from tests.approval.conftest import sandbox
from tests.approval.test_foreign_marks import LAYOUTS, SUMMARY, write_foreign_mark
from tests.commands.test_reports import swept
from tests.support.command_line import Lakegc
from tests.support.finished_marks import START, finished_record
from tests.support.store_providers import replying

__all__ = ["approval_lake", "sandbox"]
lake = approval_lake
ADDRESSES = ("data/s/a", "data/s/two\nlines", "legacy", "data/s/deep/er")


def write_objects(lake: ApprovalLake, addresses: Sequence[str], content: bytes = b"1", when: datetime = START) -> None:
    """Write objects that match the marks of these tests: one byte, fifty days old."""
    for address in addresses:
        lake.place.store().write(address, content)
        time = when.timestamp() - 50 * 86_400
        os.utime(lake.folder / address, (time, time))


class Commands:
    """Runs commands on one repository; returns their JSON, or checks that they fail."""

    def __init__(self, lake: ApprovalLake, lakegc: Lakegc) -> None:
        self.lake, self._lakegc = lake, lakegc

    def __call__(self, command: str, *arguments: str) -> Any:
        settings = self.lake.sandbox.settings
        return json.loads(self._lakegc.output(settings, command, self.lake.name, *arguments, "--format", "json"))

    def text(self, command: str, *arguments: str, **settings: str) -> str:
        """What a command prints for people."""
        return self._lakegc.output({**self.lake.sandbox.settings, **settings}, command, self.lake.name, *arguments)

    def fails(self, code: int, words: Sequence[str], command: str, *arguments: str, **settings: str) -> None:
        known = {**self.lake.sandbox.settings, **settings}
        outcome = self._lakegc(known, command, self.lake.name, *arguments)
        assert outcome.code == code, outcome.err
        for word in words:
            assert word in outcome.err, outcome.err
        assert "Traceback" not in outcome.err


@pytest.fixture
def commands(lake: ApprovalLake, lakegc: Lakegc) -> Commands:
    return Commands(lake, lakegc)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# --- there and back ---------------------------------------------------------------------------------------------------


def test_an_incomplete_backup_has_no_summary_and_cannot_be_restored(
    commands: Commands, lake: ApprovalLake, tmp_path: Path
) -> None:
    """The error names the object that couldn't be copied. Once the cause is removed, the same command completes the
    backup."""
    to, folder = str(tmp_path / "to"), tmp_path / "to" / lake.name / "m1"
    lake.add_mark(ADDRESSES)
    write_objects(lake, ADDRESSES)
    (folder / "objects" / "data" / "s").mkdir(parents=True)
    (folder / "objects" / "data" / "s" / "a").write_bytes(b"2")
    commands.fails(4, ["1 of 4 objects", "'data/s/a'", "a different object already exists"], "backup", "m1", to)

    assert "backup.json" not in files(folder)
    commands.fails(1, ["no complete backup", "backup.json"], "restore", "m1", to)
    (folder / "objects" / "data" / "s" / "a").unlink()
    outcome = commands("backup", "m1", to)
    assert outcome["objects"] == {"copied": 4}
    assert (outcome["marked"], outcome["subject"]["digest"]) == (4, lake.record().digest)


def test_a_destination_with_a_backup_of_a_different_set_under_the_same_mark_id_is_refused(
    commands: Commands, lake: ApprovalLake, tmp_path: Path
) -> None:
    """An earlier mark may have had the same id."""
    to = str(tmp_path / "to")
    lake.add_mark(ADDRESSES)
    write_objects(lake, ADDRESSES)
    subject = marked_set(lake.target, "m1").subject
    begin(parse_place(to, create_folder(to)), f"{lake.name}/m1/", replace(subject, digest="f" * 64))

    commands.fails(3, ["a different set"], "backup", "m1", to)


def create_folder(to: str) -> StoreSettings:
    Path(to).mkdir()
    return StoreSettings()


def test_a_backup_counts_vanished_and_changed_objects_and_a_restore_reports_keys_without_a_copy(
    commands: Commands, lake: ApprovalLake, lakegc: Lakegc, tmp_path: Path
) -> None:
    """The other given keys are restored. A prefix without any copies is refused. A backup into which nothing was copied
    fails, and no restore is offered."""
    to = str(tmp_path / "to")
    lake.add_mark(ADDRESSES)
    write_objects(lake, ADDRESSES[1:3])
    write_objects(lake, ADDRESSES[3:], b"22")
    outcome = commands("backup", "m1", to)
    for address in ADDRESSES[1:3]:
        (lake.folder / address).unlink()
    wanted = tmp_path / "keys"
    wanted.write_text("data/s/a\nlegacy\ndata/s/never\n")
    commands.fails(
        4,
        ["2 requested but not in the backup", "'data/s/a'", "'data/s/never'"],
        "restore",
        "m1",
        to,
        "--keys",
        str(wanted),
    )
    by_keys = lake.place.store().read("legacy")
    commands.fails(2, ["'lega/'", "review --list"], "restore", "m1", to, "--prefix", "lega/")
    by_prefix = commands("restore", "m1", to, "--prefix", "data/s/t")
    by_prefix_content = lake.place.store().read("data/s/two\nlines")
    write_objects(lake, ADDRESSES, b"22")
    nothing = lakegc(lake.sandbox.settings, "backup", lake.name, "m1", str(tmp_path / "other"))

    assert outcome["objects"] == {"changed": 1, "copied": 2, "vanished": 1}
    assert by_keys == b"1"
    assert by_prefix["objects"] == {"copied": 1}
    assert by_prefix_content == b"1"
    assert nothing.code == 4
    assert "4 changed. Nothing was copied, because every object changed" in nothing.err
    assert f"Make a new mark: lakegc mark {lake.name}" in nothing.err
    assert "lakegc restore" not in nothing.out


def test_a_restore_drill_reports_altered_copies_and_leaves_nothing_behind(
    commands: Commands, lake: ApprovalLake, tmp_path: Path
) -> None:
    """A sample is restored to a scratch location, compared and removed; nothing else is touched. After a sweep without
    quarantine, `undo` names the command that restores from the configured backup."""
    to, scratch = str(tmp_path / "to"), tmp_path / "scratch"
    swept(lake, dict.fromkeys(ADDRESSES, (Outcome.DELETED, "")))
    write_objects(lake, ADDRESSES)
    commands("backup", "m1", to)
    (lake.folder / "legacy").unlink()
    before = files(lake.folder)
    first = commands("restore", "m1", to, "--drill", "4", "--scratch", str(scratch))
    copy = tmp_path / "to" / lake.name / "m1" / "objects" / "legacy"
    copy.write_bytes(b"9")
    commands.fails(4, ["'legacy'", "altered"], "restore", "m1", to, "--drill", "4", "--scratch", str(scratch))

    assert first["same"] == {
        "the original, byte for byte": 3, "the SHA-256 recorded when it was copied": 1
    }  # fmt: skip
    assert {name for name in files(scratch) if "lakegc-drill" in name} == set()
    assert files(lake.folder) == before
    undone = commands.text("undo", "m1", backup_to=to)
    assert f"To restore what is missing from the backup: lakegc restore {lake.name} m1 {to}\n" in undone


@pytest.mark.parametrize("layout", LAYOUTS)
def test_foreign_marks_of_each_layout_are_backed_up_and_restored(
    commands: Commands, lake: ApprovalLake, tmp_path: Path, layout: str
) -> None:
    """Objects younger than the mark's cutoff count as changed after the mark."""
    folder = write_foreign_mark(lake, layout, ("data/s/a", "data/s/b"), ("data/right-here", "legacy", "data/s/gone"),
                   summary={**SUMMARY, "cutoff_time": lake.now.isoformat()})  # fmt: skip
    write_objects(lake, ("data/s/a", "data/right-here", "legacy"), b"12", lake.now)
    os.utime(lake.folder / "data/s/b", (lake.now.timestamp() + 90_000,) * 2)
    to, name = str(tmp_path / "to"), f"{layout}/t1" if "/" not in layout else "t1"
    outcome = commands("backup", name, to)
    (lake.folder / "data/right-here").unlink()
    restored = commands("restore", "t1", to)

    assert outcome["objects"] == {"changed": 1, "copied": 3, "vanished": 1}
    assert outcome["subject"]["layout"] == layout
    assert restored["objects"] == {"already there": 2, "copied": 1}
    assert lake.place.store().read("data/right-here") == b"12"
    assert folder


# --- what is refused --------------------------------------------------------------------------------------------------


PLANTED = (
    HOLDS_KEY,
    f"{MARKS_ROOT}m2/mark.json",
    f"{MARKS_ROOT}m2/approval.json",
    f"{GC_ROOT}unified/t1/summary.json",
    "data/../_lakefs/settings/x",
)


def add_to_backup(lake: ApprovalLake, to: str, *addresses: str) -> None:
    """Add objects to a backup's list, and make its summary agree. Their copies are those of the first object."""
    place, folder = parse_place(to, StoreSettings()), f"{lake.name}/m1/"
    backup = read_backup(place, folder)
    assert backup is not None
    rows = all_rows(place, listed_objects(place, backup), SCHEMA)
    rows += [{**rows[0], "address": address} for address in addresses]
    dataset = write_rows(place, backup.dataset["folder"], rows, SCHEMA)
    added = {"copied": backup.objects["copied"] + len(addresses)}
    altered = replace(backup, marked=len(rows), objects=added, dataset=dataset.name_for_record())
    place.store().write(f"{folder}backup.json", altered.to_json())


def test_keys_that_no_mark_can_contain_are_not_restored(commands: Commands, lake: ApprovalLake, tmp_path: Path) -> None:
    """A backup's list of objects isn't signed. Anyone who can write to it could plant marks, approvals, holds,
    summaries of marks, or objects that other tools mistake for those."""
    to, listed = str(tmp_path / "to"), tmp_path / "keys"
    lake.add_mark(ADDRESSES)
    write_objects(lake, ADDRESSES)
    commands("backup", "m1", to)
    add_to_backup(lake, to, *PLANTED)
    for address in ADDRESSES:
        (lake.folder / address).unlink()
    before = files(lake.folder)
    commands.fails(3, [repr(PLANTED[0]), f"{lake.name}/m1/", "Nothing was restored"], "restore", "m1", to)
    for number, planted in enumerate(PLANTED):
        listed.write_text(f"{planted}\n")
        chosen = ["--prefix", planted] if number % 2 else ["--keys", str(listed)]
        commands.fails(3, [repr(planted), f"{lake.name}/m1/", "Nothing was restored"], "restore", "m1", to, *chosen)

    assert files(lake.folder) - before == {LEASE_KEY}
    assert commands("restore", "m1", to, "--prefix", "data/s/")["objects"] == {"copied": 3}


def test_a_backup_needs_a_finished_mark_a_destination_and_a_valid_bandwidth(
    commands: Commands, lake: ApprovalLake, tmp_path: Path
) -> None:
    """No object is written."""
    known = {"repository": lake.name, "repository_created": lake.target.repository.created}
    record = finished_record("m2", namespace=lake.place.namespace.uri, **known)
    Mark.begin(lake.place, replace(record, state=MarkState.MARKING, finished=None, digest=None, counts={}))
    to = tmp_path / "to"

    commands.fails(2, ["not finished"], "backup", "m2", str(to))
    commands.fails(2, ["no mark m3"], "backup", "m3", str(to))
    commands.fails(2, ["no backup destination"], "backup", "m2")
    commands.fails(2, ["--bandwidth fast"], "backup", "m2", str(to), "--bandwidth", "fast")
    assert not to.exists()


def test_a_backup_in_the_repositorys_own_namespace_is_refused(
    commands: Commands, lake: ApprovalLake, tmp_path: Path
) -> None:
    """Every spelling of the folder is refused, including one through a link. The namespace isn't touched."""
    lake.add_mark(ADDRESSES)
    link = tmp_path / "link"
    link.symlink_to(lake.folder)
    before = files(lake.folder)
    settings, no_others = lake.place.settings, cast(LakeFS, OtherRepositories())
    inside = (
        str(lake.folder), f"{lake.folder}/", f"{lake.folder}/data/backups", f"local://{lake.name}",
        f"local://{lake.name}//deep", f"local://{lake.folder}/x", f"file://{lake.folder}", str(link / "x"),
        f"{lake.folder.parent}/other/../{lake.name}/x", lake.folder.parent.as_posix() + f"//{lake.name}",
    )  # fmt: skip
    for to in inside:
        with pytest.raises(Refused, match="namespace"):
            refuse_overlap(parse_place(to, settings), lake.target, f"{lake.name}/m1/", no_others)
    commands.fails(3, ["namespace"], "backup", "m1", str(link / "x"))

    assert files(lake.folder) == before


def test_a_destination_without_write_access_is_refused_before_anything_is_copied(
    commands: Commands, lake: ApprovalLake, tmp_path: Path
) -> None:
    """The error states the reason."""
    lake.add_mark(ADDRESSES)
    file = tmp_path / "file"
    file.write_bytes(b"")
    commands.fails(1, ["can't be created"], "backup", "m1", str(file / "to"))
    body = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    with replying(403, body, {"Content-Type": "application/xml"}) as server:
        known = {"s3_endpoint_url": server.url, "s3_access_key_id": "any", "s3_secret_access_key": "any"}
        commands.fails(1, ["AccessDenied"], "backup", "m1", "s3://elsewhere/to", retry_total_s="0", **known)


class OtherRepositories:
    """Servers that have only the given repositories. Those of the server `hidden` can't be listed, for lack of
    permission."""

    def __init__(self, *others: Repository, servers: tuple[str, ...] = ("",), hidden: str | None = None) -> None:
        self._others, self._hidden, self.servers = others, hidden, servers

    def repositories_on(self, server: str) -> Iterator[Repository]:
        if server == self._hidden:
            raise Forbidden("no")
        return (other for other in self._others if other.server == server)


def repository(name: str, uri: str) -> Repository:
    return Repository(name, uri, "main", read_only=False, storage_id="", created=START)


@pytest.mark.parametrize(
    ("namespace", "blockstore", "inside", "outside"),
    [
        (
            "s3://bucket/lake", "s3",
            ["s3://bucket/lake", "s3://bucket/lake/", "s3://bucket//lake", "s3://bucket/lake/data", "s3://bucket/%6cake"],
            ["s3://bucket/lake-backups", "s3://bucket/backups", "s3://other/lake", "gs://bucket/lake", "s3://bucket"],
        ),
        ("s3://bucket/mine", "s3", ["s3://bucket", "s3://bucket/"], ["s3://bucket/x"]),
        (
            "https://account.blob.core.windows.net/c/lake", "azure",
            [
                "https://account.blob.core.windows.net/c/lake/x", "http://ACCOUNT.blob.core.windows.net/C/lake",
                "https://account-secondary.blob.core.windows.net/c/lake", "https://account.blob.core.windows.net/c//lake",
            ],
            ["https://account.blob.core.windows.net/c/lakes", "https://other.blob.core.windows.net/c/lake"],
        ),
    ],
)  # fmt: skip
def test_every_spelling_of_the_namespace_is_refused_as_a_backup_destination(
    namespace: str, blockstore: str, inside: list[str], outside: list[str]
) -> None:
    """A destination in which the backup's own folder would be in the namespace is also refused. Similar names of other
    places are accepted."""
    target = Target(repository("mine", namespace), blockstore, Place(Namespace.parse(namespace), StoreSettings()))
    no_others = cast(LakeFS, OtherRepositories())
    for uri in inside:
        with pytest.raises(Refused, match="namespace"):
            refuse_overlap(parse_place(uri, StoreSettings()), target, "mine/m1/", no_others)
    for uri in outside:
        refuse_overlap(parse_place(uri, StoreSettings()), target, "mine/m1/", no_others)


def test_a_backup_in_another_repositorys_namespace_is_refused() -> None:
    """The other repository's collector would delete the backup as garbage."""
    place = Place(Namespace.parse("s3://bucket/lake"), StoreSettings())
    others = cast(LakeFS, OtherRepositories(repository("other", "s3://bucket/other")))
    target = Target(repository("mine", "s3://bucket/lake"), "s3", place)

    with pytest.raises(Refused, match="other"):
        refuse_overlap(parse_place("s3://bucket/other/data/x", StoreSettings()), target, "mine/m1/", others)


def test_a_backup_in_the_namespace_of_another_servers_repository_is_refused(tmp_path: Path) -> None:
    """The destination is refused even if the repositories of the marked repository's own server can't be listed, and
    although each server's local adapter has its own folder."""
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path / "prod")), server="prod")
    target = Target(repository("prod/lake", "local://lake"), "local", place)
    lab = repository("lab/lake", "local://lake")
    servers = cast(LakeFS, OtherRepositories(lab, servers=("prod", "lab"), hidden="prod"))
    to = parse_place(str(tmp_path / "lab/lake/data/x"), StoreSettings())

    with pytest.raises(Refused, match="of lab/lake"):
        refuse_overlap(to, target, "lake/m1/", servers, lambda _: StoreSettings(local_path=str(tmp_path / "lab")))
