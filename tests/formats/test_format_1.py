"""A namespace written by a version of lakegc whose marks had format 1: what still works, and what is refused with
advice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_resources.errors import Refused, UnknownFormat
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import EARLIER_FORMAT, RECORD_FORMAT, MarkRecord, digest_of
from tests.support.command_line import Lakegc
from tests.support.earlier_namespaces import REPOSITORY, record_file, unpacked
from tests.support.mark_runs import target_of

MARKS = ("swept", "approved", "marked")
ON_HOLD = "data/imported/one"
MARK_NEW = "Make a new mark: lakegc mark lake"


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A copy of the namespace for each test."""
    with unpacked(tmp_path / "sandbox") as server:
        yield server


def objects(sandbox: Sandbox) -> dict[str, bytes]:
    """Every file under `data/`, by its key."""
    namespace = sandbox.local_path / REPOSITORY
    return {
        str(path.relative_to(namespace)): path.read_bytes()
        for path in (namespace / "data").rglob("*")
        if path.is_file()
    }


def json_output(lakegc: Lakegc, sandbox: Sandbox, *arguments: str) -> Any:
    return json.loads(lakegc.output(sandbox.settings, *arguments, "--format", "json"))


def test_marks_of_format_1_are_listed_with_their_states(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """An operator who upgrades sees all marks."""
    rows = {row["mark_id"]: row for row in json_output(lakegc, sandbox, "status", REPOSITORY)["marks"]}

    assert {name: row["state"] for name, row in rows.items()} == dict(zip(MARKS, MARKS, strict=True))
    assert {name: row["expired"] for name, row in rows.items()} == {"swept": 4, "approved": 2, "marked": 3}
    assert rows["swept"]["outcome"] == "in quarantine"


@pytest.mark.parametrize("mark_id", MARKS)
def test_a_record_of_format_1_is_rewritten_unchanged(sandbox: Sandbox, mark_id: str) -> None:
    """The record keeps the names and the digest of its format, so that an approval can still be compared with it."""
    data = record_file(sandbox, f"{mark_id}/mark.json").read_bytes()
    record = MarkRecord.from_json(data, mark_id)

    assert record.format == EARLIER_FORMAT
    assert record.is_incremental == (mark_id != "swept")
    assert record.to_json() == data
    assert digest_of(record) == record.digest


def test_approving_a_mark_of_format_1_is_refused_with_advice(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """No file is written. An approval given by that version can still be revoked."""
    digest = target_record(sandbox, "marked").digest or ""
    outcome = lakegc(sandbox.settings, "approve", REPOSITORY, "marked", "--yes", "--digest", digest)

    made_by = "mark marked of lake was made by an earlier version of lakegc (format 1"
    outcome.stopped(3, made_by, "can't be approved", MARK_NEW)
    assert "undo" not in outcome.err
    assert not record_file(sandbox, "marked/approval.json").exists()
    assert "is not approved, and no policy will approve it" in lakegc.output(
        sandbox.settings, "revoke", REPOSITORY, "approved"
    )
    assert target_record(sandbox, "approved").state == "marked"


@pytest.mark.parametrize("mark_id", ["approved", "swept"])
def test_sweeping_a_mark_of_format_1_is_refused_with_advice(lakegc: Lakegc, sandbox: Sandbox, mark_id: str) -> None:
    """No object is deleted, although the mark was approved. If objects are in quarantine, the error names 'undo' and
    'purge'."""
    before = objects(sandbox)
    outcome = lakegc(sandbox.settings, "sweep", REPOSITORY, mark_id)

    outcome.stopped(3, f"mark {mark_id} of lake was made by an earlier version of lakegc", "can't be swept", MARK_NEW)
    assert ("lakegc purge lake swept" in outcome.err) == (mark_id == "swept")
    assert objects(sandbox) == before


def test_a_sweep_of_an_earlier_format_that_had_failures_is_not_resumed(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """The names of the files that a sweep reads and writes have changed since then."""
    alter(record_file(sandbox, "swept/mark.json"), lambda plain: {**plain, "state": "swept with failures"})

    lakegc(sandbox.settings, "sweep", REPOSITORY, "swept").stopped(
        3, "made by an earlier version of lakegc", "lakegc undo lake swept"
    )


def test_an_unfinished_mark_of_an_earlier_format_is_not_resumed(sandbox: Sandbox) -> None:
    """The mark's steps have other names."""
    alter(record_file(sandbox, "marked/mark.json"), lambda plain: {**plain, "state": "failed", "finished": None})
    mark = Mark.open(target_of(sandbox.settings, REPOSITORY).place, "marked")

    with pytest.raises(Refused, match=r"made by an earlier version of lakegc .* so it can't be resumed"):
        mark.check_unfinished()


@pytest.mark.parametrize("command", ["review", "diff"])
def test_reviewing_a_mark_or_comparing_two_marks_of_format_1_is_refused_with_advice(
    lakegc: Lakegc, sandbox: Sandbox, command: str
) -> None:
    """The names of what a mark writes have changed."""
    which = ("marked",) if command == "review" else ("approved", "marked")

    lakegc(sandbox.settings, command, REPOSITORY, *which).stopped(3, "made by an earlier version of lakegc", MARK_NEW)


def test_a_new_mark_after_marks_of_format_1_is_full_says_why_and_keeps_objects_on_hold(
    lakegc: Lakegc, sandbox: Sandbox
) -> None:
    """Marks of format 1 can't be a base, but brakes still compare with the newest one. The new mark is approved and
    swept like any other, and is the base of the next one."""
    table = lakegc.output(sandbox.settings, "mark", REPOSITORY, "--mark-id", "new")
    record = target_record(sandbox, "new")

    assert "full (mark marked was made by an earlier version of lakegc (format 1; now 2))" in " ".join(table.split())
    assert (record.format, record.is_incremental) == (RECORD_FORMAT, False)
    assert (record.previous or {})["mark_id"] == "marked"
    assert record.holds["ids"] == ["imported", "releases"]
    assert record.steps["expired_set"].facts["on_hold"]["imported"]["objects"] == 1
    review = json_output(lakegc, sandbox, "review", REPOSITORY, "new")
    assert review["mark_id"] == "new"
    lakegc.output(sandbox.settings, "diff", REPOSITORY, "marked", "new")
    lakegc.output(sandbox.settings, "approve", REPOSITORY, "new", "--yes", "--digest", record.digest or "")
    report = json_output(lakegc, sandbox, "sweep", REPOSITORY, "new")
    assert report["objects"] == {"deleted": 3}
    assert ON_HOLD in objects(sandbox)
    lakegc.output(sandbox.settings, "mark", REPOSITORY, "--mark-id", "next")
    assert target_record(sandbox, "next").basis["chain"] == ["new"]


def test_a_mark_with_a_chosen_base_of_format_1_is_full_and_says_why(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """The result is the same as without a chosen base."""
    lakegc.output(sandbox.settings, "mark", REPOSITORY, "--mark-id", "new", "--since", "approved")

    basis = target_record(sandbox, "new").basis
    assert (basis["incremental"], basis["chain"]) == (False, [])
    assert basis["why"] == "mark approved was made by an earlier version of lakegc (format 1; now 2)"


def test_undo_restores_objects_quarantined_by_an_earlier_version(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """The objects are restored byte for byte, and nothing else changes."""
    before = objects(sandbox)
    quarantined = quarantine(sandbox)
    lakegc.output(sandbox.settings, "undo", REPOSITORY, "swept")

    assert len(quarantined) == 4
    assert objects(sandbox) == before | quarantined
    assert quarantine(sandbox) == {}
    assert json_output(lakegc, sandbox, "status", REPOSITORY)["marks"][-1]["outcome"] == "undone"


def test_purge_deletes_objects_quarantined_by_an_earlier_version(lakegc: Lakegc, sandbox: Sandbox) -> None:
    """The objects are re-verified first; nothing else changes."""
    before = objects(sandbox)
    lakegc.output(sandbox.settings, "purge", REPOSITORY, "swept", "--yes")

    assert quarantine(sandbox) == {}
    assert objects(sandbox) == before
    verified = [path.read_bytes() for path in record_file(sandbox, "swept/verifications").glob("*/mark.json")]
    assert {MarkRecord.from_json(data, "").format for data in verified} == {RECORD_FORMAT}
    report = json_output(lakegc, sandbox, "report", REPOSITORY, "swept")
    assert report["objects"] == {"quarantined": 4}


def test_purge_restores_an_object_quarantined_by_an_earlier_version_that_is_live_again(
    lakegc: Lakegc, sandbox: Sandbox
) -> None:
    """A hold makes the object live. The others are purged."""
    quarantined = quarantine(sandbox)
    address = sorted(quarantined)[0]
    settings = sandbox.settings
    lakegc.output(settings, *f"holds lake add again --prefix {address} --owner ada --reason needed".split())
    lakegc.output(settings, "purge", REPOSITORY, "swept", "--yes")

    assert objects(sandbox)[address] == quarantined[address]
    assert len(quarantined.keys() - objects(sandbox).keys()) == 3


# --- what a newer version of lakegc writes ---------------------------------------------------------------------------


def write_newer_holds(sandbox: Sandbox) -> None:
    file = record_file(sandbox, "holds.yaml")
    file.write_bytes(b"format: 2\n" + file.read_bytes())


def with_newer_format(name: str) -> Callable[[Sandbox], None]:
    return lambda sandbox: alter(record_file(sandbox, name), lambda plain: {**plain, "format": 2})


def write_newer_quarantine(sandbox: Sandbox) -> None:
    record_file(sandbox, "swept/quarantine.json").write_text(json.dumps({"format": 2, "anything": []}))


PROTECTING = {
    "holds.yaml": write_newer_holds,
    "lease.json": with_newer_format("lease.json"),
    "owner.json": with_newer_format("owner.json"),
    "swept/quarantine.json": write_newer_quarantine,
}


def test_an_unknown_format_of_holds_lease_owner_or_quarantine_stops_marks_sweeps_and_purges(
    lakegc: Lakegc, sandbox: Sandbox
) -> None:
    """A newer version may give these files a different meaning, so nothing is deleted."""
    lakegc.output(sandbox.settings, "mark", REPOSITORY, "--mark-id", "new")
    digest = target_record(sandbox, "new").digest or ""
    lakegc.output(sandbox.settings, "approve", REPOSITORY, "new", "--yes", "--digest", digest)
    before, outcomes = (objects(sandbox), quarantine(sandbox)), {}
    for name, write_newer in PROTECTING.items():
        file = record_file(sandbox, name)
        known = file.read_bytes() if file.exists() else None
        write_newer(sandbox)
        written = files(sandbox)
        for command in (
            ("mark", REPOSITORY, "--mark-id", "next"),
            ("sweep", REPOSITORY, "new"),
            ("purge", REPOSITORY, "swept", "--yes"),
        ):
            outcomes[name, command[0]] = lakegc(sandbox.settings, *command)
        assert written.keys() - files(sandbox).keys() == set(), name
        file.unlink() if known is None else file.write_bytes(known)

    expected = {(name, command): 3 for name in PROTECTING for command in ("mark", "sweep", "purge")}
    assert {case: outcome.code for case, outcome in outcomes.items()} == expected
    for (name, _), outcome in outcomes.items():
        outcome.stopped(3, f"{Path(name).name} is of format", "Update lakegc")
    assert (objects(sandbox), quarantine(sandbox)) == before
    assert not record_file(sandbox, "next/mark.json").exists()


def test_a_mark_of_an_unknown_format_is_listed_but_neither_approved_swept_nor_undone(
    lakegc: Lakegc, sandbox: Sandbox
) -> None:
    """A newer version of lakegc made it. The next mark is full, and reports that it can't be compared with it."""
    alter(
        record_file(sandbox, "marked/mark.json"),
        lambda plain: {"format": 3, "said": "otherwise", "mark_id": plain["mark_id"]},
    )
    states = {row["mark_id"]: row["state"] for row in json_output(lakegc, sandbox, "status", REPOSITORY)["marks"]}
    place = target_of(sandbox.settings, REPOSITORY).place

    assert states == {"swept": "swept", "approved": "approved", "marked": "unknown format"}
    with pytest.raises(
        UnknownFormat, match=r"of format 3, but this version of lakegc supports 1 and 2\. Update lakegc"
    ):
        Mark.open(place, "marked")
    for command in ("sweep", "approve", "undo"):
        lakegc(sandbox.settings, command, REPOSITORY, "marked").stopped(3)
    lakegc.output(sandbox.settings, "mark", REPOSITORY, "--mark-id", "new")
    assert (target_record(sandbox, "new").previous or {})["unreadable"] == ["marked"]


# --- helpers --------------------------------------------------------------------------------------------------------


def alter(file: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Write a JSON record again as lakegc writes it."""
    file.write_text(json.dumps(change(json.loads(file.read_bytes())), indent=1, sort_keys=True))


def target_record(sandbox: Sandbox, mark_id: str) -> MarkRecord:
    return Mark.open(target_of(sandbox.settings, REPOSITORY).place, mark_id).record


def quarantine(sandbox: Sandbox) -> dict[str, bytes]:
    """The objects in quarantine, by their original keys."""
    folder = sandbox.local_path / REPOSITORY / "_lakefs/retention/gc/quarantine/swept"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def files(sandbox: Sandbox) -> dict[str, bytes]:
    """Every file in lakegc's folder of the namespace."""
    folder = record_file(sandbox, "")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
