"""The bytes of every record in a namespace. Records of earlier versions are hashed, signed and compared, so their bytes
must not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakegc_assets.backup.manifest import BEGUN, Backup, Subject, begin
from lakegc_assets.sweep import undo
from lakegc_assets.sweep.report import Report
from spark_resources.deleting.receipts import NUMBERED, Receipts, receipt_rows
from spark_resources.host.processes import ProcessIdentity
from spark_resources.mark_store.announcement import Announcement, Revocation
from spark_resources.mark_store.approval import Approval, ApprovalEnd, PolicyTerms
from spark_resources.mark_store.lease import Holder
from spark_resources.mark_store.mark import OWNER_KEY, claim_namespace
from spark_resources.mark_store.record import FULL_MARK, MarkRecord, Retirement, StepRecord, digest_of
from spark_resources.model import MarkState, Namespace, Outcome, Rules, Scope
from spark_resources.records.json_records import record_bytes
from spark_resources.records.signing import Seal, SigningKey, SigningKeys
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import Dataset, DatasetName, File
from spark_resources.spark.persistence import Persisted
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from spark_resources.stores.probe import RECORD_KEY, recorded_capabilities
from spark_resources.stores.settings import StoreSettings

RECORDED = Path(__file__).with_name("record_bytes")
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1, microseconds=5)


def recorded(name: str) -> bytes:
    return (RECORDED / f"{name}.json").read_bytes()


# --- records with a class ---------------------------------------------------------------------------------------------


def step(number: int) -> StepRecord:
    datasets = {
        "": {"sha256": f"{number:064x}", "rows": number, "bytes": 10 * number},
        "deleted": {"sha256": "e" * 64, "rows": 0, "bytes": 0},
    }
    return StepRecord(
        NOON, LATER, number, datasets, {"rows": number, "kept": [1, "é", None, 0.5], "young": {"a": True}}
    )


FINISHED = MarkRecord(
    mark_id="m1",
    state=MarkState.MARKED,
    repository="lake",
    repository_created=NOON - timedelta(days=100),
    namespace="s3://lake/é",
    scope=Scope.UNIFIED,
    min_age=timedelta(hours=24, milliseconds=500),
    start=NOON,
    cutoff=NOON.astimezone(timezone(timedelta(hours=-11))),
    server_now=LATER,
    rules=Rules(21, {"main": 21, "dev": 7}),
    by="ann@host",
    versions={"lakegc": "1", "lakeFS": "1.80.0"},
    clocks={"store": NOON.isoformat()},
    accepted_missing=("data/lost", "data/lost, \n too"),
    holds={"sha256": "f" * 64, "ids": ["one"], "number": 3, "seen": {"number": 4, "ids": ["one", "two"]}},
    steps={"namespace_slices": step(1), "expired_set": step(2)},
    finished=LATER,
    digest="d" * 64,
    counts={"expired": 3},
    previous={"mark_id": "m0", "counts": {"expired": 2}, "unreadable": []},
    approval="a" * 64,
    inventory={"where": "s3://i", "taken": NOON.isoformat(), "files": 2, "sha256": "b" * 64},
    basis={
        **FULL_MARK, "incremental": True, "chain": ["m0"], "digests": ["c" * 64], "full_in": 2, "spellings": ["local://x"],
    },
)  # fmt: skip
BEGUN_MARK = replace(
    FINISHED, state=MarkState.FAILED, rules=None, accepted_missing=(), holds={"sha256": "", "ids": []}, steps={},
    finished=None, digest=None, counts={}, previous=None, approval=None, failure='a: "é"\n\x1b[31m', inventory=None,
    basis=FULL_MARK,
)  # fmt: skip
GIVEN = Approval("m1", None, "d" * 64, "Ada", "lakegc approve", NOON, LATER, {"share": "é"}, True)
REVOKED = replace(
    GIVEN, layout="unified", for_reference=False, ended=ApprovalEnd(how="revoked", who="Bob", when=LATER.isoformat())
)
BY_POLICY = replace(GIVEN, policy=PolicyTerms(sha256="e" * 64, quarantine=True, backup_to=None))
POLICY_SHA256 = hashlib.sha256("é".encode()).hexdigest()
ANNOUNCEMENT = Announcement("m1", "d" * 64, "é", POLICY_SHA256, NOON, LATER)
HOLDER = Holder('"ann"\n', "m1", "t", LATER, ProcessIdentity("boot", "pid:[1]", 12, 345), 30.5)
SUBJECT = Subject("lake", NOON.isoformat(), "s3://lake", "m1", None, "d" * 64)
BACKUP = Backup(
    SUBJECT, "Ada", NOON, LATER, 3, {"copied": 2, "cold": 1}, {"copied": 20, "cold": 5}, 1.25,
    {"folder": "backup/m1/objects/", "sha256": "a" * 64, "rows": 3, "bytes": 100},
)  # fmt: skip
REPORT = Report(
    mark_id="m1",
    repository="lake",
    digest="d" * 64,
    by="Ada",
    began=NOON,
    ended=LATER,
    approved=3,
    objects={"deleted": 2, "failed": 1},
    sizes={"deleted": 20, "failed": 1},
    seconds=0.25,
    requests=1,
    attempts=3,
    verifications=(NOON, LATER),
    late=("data/é",),
    late_objects=1,
    quarantine=True,
    taken=2,
    dataset={"folder": "m1/sweep_report/", "sha256": "a" * 64, "rows": 3, "bytes": 100},
    deleting="batch",
    unread={"pond": "permission denied"},
    refusals=({"code": "AccessDenied", "why": "…", "objects": 1, "example": "data/a"},),
)

RECORDS: dict[str, Any] = {
    "mark": FINISHED,
    "mark_begun": BEGUN_MARK,
    "mark_retired": replace(
        FINISHED,
        state=MarkState.RETIRED,
        retired=Retirement(
            when=LATER.isoformat(), who="ann@host (process 7)", state="swept", files=12, bytes=34_567, done=True
        ),
    ),
    "approval": GIVEN,
    "approval_revoked": REVOKED,
    "approval_by_policy": BY_POLICY,
    "approval_with_holds": replace(
        GIVEN, layout="unified", for_reference=False, configured_holds=("legal", "releases")
    ),
    "approval_with_servers": replace(GIVEN, layout="unified", for_reference=False, servers=("lab", "prod")),
    "announcement": ANNOUNCEMENT,
    "announcement_revoked": replace(ANNOUNCEMENT, revoked=Revocation(who="Bob", when=LATER.isoformat())),
    "lease": HOLDER,
    "lease_without_process": Holder("ann", "m1", "t", NOON),
    "backup": BACKUP,
    "sweep": REPORT,
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_recorded_bytes(name: str) -> None:
    """Writing the record gives these bytes, and reading them gives the record."""
    record = RECORDS[name]

    assert record.to_json() == recorded(name)
    assert type(record).from_json(recorded(name), "here") == record


def test_the_digests_in_approvals_and_marks_have_the_recorded_values() -> None:
    """The digests depend on the bytes of whole records or of their parts."""
    hashes = {
        "mark": digest_of(FINISHED),
        "begun": digest_of(BEGUN_MARK),
        "approval": GIVEN.sha256,
        "files": FILES.sha256,
    }

    assert hashes == json.loads(recorded("digests"))


# --- records that functions write -------------------------------------------------------------------------------------

FILES = Dataset("m1/a/", (File("0.parquet", 2, 10, "a" * 64), File("é.parquet", 0, 3, "b" * 64)))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def owner(place: Place) -> str:
    claim_namespace(place, "lake", NOON.astimezone(timezone(timedelta(hours=5))))
    return OWNER_KEY


def backup_begun(place: Place) -> str:
    begin(place, "backup/m1/", SUBJECT)
    return f"backup/m1/{BEGUN}"


def files(place: Place) -> str:
    place.store().write("m1/a/_files.json", FILES.files_json())
    return "m1/a/_files.json"


def counts(place: Place) -> str:
    """The counts at the end of an undo, from its receipts."""
    undone = Receipts(place, "undone/")
    objects = pa.table({"address": ["a", "b", "c"], "size": [1, 1, 1]})
    outcomes = pa.array([Outcome.RESTORED, Outcome.RESTORED, Outcome.PURGED], pa.string())
    undone.write("receipt", 1, "0", receipt_rows(objects, outcome=outcomes, at=NOON))
    run: Any = SimpleNamespace(
        undone=undone, spark=lambda: None, persist=Persisted(), place=place,
        mark=SimpleNamespace(record=SimpleNamespace(mark_id="m1")),
        outcomes=lambda name, receipts: Input.of_files(name, receipts.files("receipt"), NUMBERED),
    )  # fmt: skip
    undo.write_quarantine_counts(run)
    return "_lakefs/retention/gc/lakegc/m1/quarantine.json"


WRITERS: dict[str, Callable[[Place], str]] = {
    "owner": owner, "backup_begun": backup_begun, "files": files, "quarantine": counts
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_a_function_writes_has_the_recorded_bytes(place: Place, name: str) -> None:
    key = WRITERS[name](place)

    assert place.store().read(key) == recorded(name)


def test_a_record_of_capabilities_has_the_recorded_bytes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capabilities are read again instead of being probed again: another probe might give other results."""
    capabilities = Capabilities(
        byte_order=False, time_resolution=timedelta(milliseconds=1), ramp=1000.0, unsupported_keys=frozenset({"b", "a"})
    )
    probed = iter([capabilities])
    monkeypatch.setattr("spark_resources.stores.probe.probe", lambda *_: next(probed))
    store = place.store()
    monkeypatch.setattr(type(store), "now", lambda _: NOON)

    assert [recorded_capabilities(store, "https://here", token=token) for token in ("one", "two")] == [
        capabilities,
        capabilities,
    ]
    assert store.read(RECORD_KEY) == recorded("store")


def test_a_signed_record_has_the_recorded_bytes() -> None:
    """The signature depends on the bytes of the record."""
    seal = Seal.of(
        SigningKeys(SigningKey.parse("0123456789abcdef" * 4)), repository="lake", created=NOON, namespace="s3://lake"
    )
    signature = seal.sign("m1/mark.json", FINISHED.to_json(), written=LATER)

    assert record_bytes({"record": json.loads(FINISHED.to_json()), "signed": signature.to_dict()}) == recorded("signed")


# --- what earlier versions wrote --------------------------------------------------------------------------------------


def test_leases_of_earlier_versions_are_read() -> None:
    """The first leases lacked the format, the process and the time of tasks. Other versions may add fields."""
    plain = {"who": "ann", "mark_id": "m1", "token": "t", "until": "2026-11-21T13:00:00+01:00"}

    assert Holder.from_json(json.dumps(plain).encode(), "here") == Holder("ann", "m1", "t", NOON)
    assert Holder.from_json(json.dumps({**plain, "host": "h"}).encode(), "here") == Holder("ann", "m1", "t", NOON)


def test_reports_of_the_first_format_are_read() -> None:
    """Such reports have another name for re-verifications, and lack later fields."""
    later = ("verifications", "quarantine", "taken", "dataset", "deleting", "unread", "refusals")
    plain = json.loads(REPORT.to_json())
    first = {name: value for name, value in plain.items() if name not in later}
    first |= {"proofs": plain["verifications"], "format": 1}

    report = Report.from_json(json.dumps(first).encode(), "here")

    assert report == replace(
        REPORT,
        quarantine=False,
        taken=0,
        dataset=DatasetName(folder="", sha256="", rows=0, bytes=0),
        deleting="",
        unread={},
        refusals=(),
    )
    assert report.format == 2


def test_every_recorded_file_is_used_by_a_test() -> None:
    names = {*RECORDS, *WRITERS, "digests", "store", "signed"}

    assert {path.stem for path in RECORDED.iterdir()} == names
