"""The JSON records and the holds file of a namespace, as its readers read them from a store.

Each is refused with an error that names the file, or its value equals what is read after it was written again. With a
signing key, a record that wasn't signed with it is never read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

from lakegc_assets.backup import manifest
from lakegc_assets.sweep import quarantine
from lakegc_assets.sweep.report import read_report, report_key
from spark_resources.deleting.permit import Permit
from spark_resources.errors import DamagedData
from spark_resources.mark_store import holds
from spark_resources.mark_store.announcement import announcement_key, read_announcement
from spark_resources.mark_store.approval import approval_key, read_approval
from spark_resources.mark_store.foreign_layouts import reference_marks
from spark_resources.mark_store.history import HISTORY_KEY, History, read_history
from spark_resources.mark_store.lease import LEASE_KEY, current_holder
from spark_resources.mark_store.mark import MARKS_ROOT, OWNER_KEY, each_mark, refuse_foreign_namespace
from spark_resources.mark_store.quarantine_format import QUARANTINE_NAME, refuse_unknown_quarantine_format
from spark_resources.mark_store.rules_history import RULES_HISTORY_KEY, RulesChange, RulesHistory, read_rules_history
from spark_resources.mark_store.table_notes import TABLE_NOTES_KEY, TableNotes, read_table_notes
from spark_resources.model import Rules
from spark_resources.records.json_records import record_bytes
from spark_resources.records.model import Record
from spark_resources.records.signing import Seal, SigningKey, SigningKeys
from spark_resources.spark.datasets import LIST_NAME, Dataset, File, open_dataset
from spark_resources.stores.place import Place
from spark_resources.stores.probe import RECORD_KEY, read_record
from tests.fuzz import namespace
from tests.fuzz.mutations import mutate_bytes, mutate_json
from tests.fuzz.target import Kind, Target, require, value_or_refusal

RECORDED = Path(__file__).parents[1] / "unit" / "record_bytes"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
MARK = f"{MARKS_ROOT}m1/"
SEAL = Seal.of(
    SigningKeys(SigningKey.parse("0123456789abcdef" * 4)), repository="lake", created=NOON, namespace="local://lake"
)
SECRET = b"secret"
Read = Callable[[Place], Any]


def _check(key: str, read: Read, is_signed: bool, data: bytes) -> None:
    namespace.put(key, data)
    try:
        value = value_or_refusal(partial(read, namespace.place()), key)
        _require_same_after_writing(value, key)
        if is_signed:
            signed = value_or_refusal(partial(read, replace(namespace.place(), seal=SEAL)), key)
            require(not signed, f"a record without a valid signature was read: {signed!r}")
    finally:
        namespace.path_of(key).unlink()


def _require_same_after_writing(value: Any, key: str) -> None:
    if isinstance(value, Record):
        again = type(value).from_json(value.to_json(), key)
        require(again == value, f"{value!r} is another value after it was written again: {again!r}")


# --- readers that give or do something else than a record -------------------------------------------------------------


def _mark(place: Place) -> Any:
    return next((record for _, record in each_mark(place) if isinstance(record, Record)), None)


def _announcement(place: Place) -> Any:
    stored = read_announcement(place, "m1")
    return None if stored is None else stored.announcement


def _owner(place: Place) -> None:
    refuse_foreign_namespace(place, "lake", NOON)


def _capabilities(place: Place) -> Any:
    found = read_record(place.store(), "https://here", NOON, place.seal)
    if found is not None:
        flags = (found.byte_order, found.conditional_writes, found.reports_missing_deletes, found.md5_etags)
        require(all(isinstance(flag, bool) for flag in flags), f"capabilities that aren't flags: {found}")
        require(type(found.delete_batch) is int, f"a batch of {found.delete_batch!r} keys")
        require(found.ramp is None or found.ramp > 0, f"a ramp of {found.ramp!r}")
        require(all(isinstance(name, str) for name in found.unsupported_keys), f"keys {found.unsupported_keys!r}")
    return found


def _reference_summary(place: Place) -> None:
    namespace.put("_lakefs/retention/gc/unified/m1/deleted/0.parquet", b"")
    for mark in reference_marks(place, own_ids=frozenset()):
        require(mark.summary is None or isinstance(mark.summary, dict), f"a summary {mark.summary!r}")


def _files(place: Place) -> Any:
    dataset = open_dataset(place, f"{MARK}a/")
    for file in dataset.files:
        fits = type(file.name) is str and type(file.rows) is int and type(file.size) is int and type(file.sha256) is str
        require(fits and file.rows >= 0 and file.size >= 0, f"a list of files with {file!r}")
        require("/" not in file.name, f"a list of files with a file elsewhere: {file!r}")
    return dataset


def _quarantine(place: Place) -> None:
    refuse_unknown_quarantine_format(place)


def _quarantine_counts(place: Place) -> Any:
    class _Report:
        mark_id, objects = "m1", {"quarantined": 3}

    found = quarantine.read_quarantine(place, _Report())  # type: ignore[arg-type]
    require(isinstance(found.left, int) and found.in_words, f"{found!r} is no count")


def _holds(place: Place) -> Any:
    found = holds.read_holds(place)
    for hold in found.holds:
        require(hold.what and hold.fields(), f"{hold!r} has no description")
    return found.holds


def _begun(place: Place) -> Any:
    key = f"backup/m1/{manifest.BEGUN}"
    store = place.store()
    return manifest.Begun.from_json(store.read(key), f"{store.where}/{key}")


def _check_permit(data: bytes) -> None:
    """No permit without the right secret is accepted, and any content that has it is read or refused."""
    with suppress(DamagedData):
        permit = Permit.from_json(data, "here", SECRET, "key")
        require(permit.to_json(SECRET, "key") == _permits()[0], "a forged permit was accepted")


@cache
def _permits() -> list[bytes]:
    return [Permit(NOON, ("a" * 64,), "").to_json(SECRET, "key")]


# --- the target -------------------------------------------------------------------------------------------------------


def _recorded(*names: str) -> list[bytes]:
    records = [(RECORDED / f"{name}.json").read_bytes() for name in names]
    return [*records, *(_signed(record) for record in records[:1])]


def _signed(record: bytes) -> bytes:
    """The record in an envelope with a signature for another file."""
    signature = SEAL.sign("another/key", record, written=NOON)
    return record_bytes({"record": json.loads(record), "signed": signature.to_dict()})


def _history() -> list[bytes]:
    plain = {"mark_id": "m1", "finished": NOON.isoformat(), "candidates": 9, "candidate_bytes": 9, "expired": 1,
             "expired_bytes": 1}  # fmt: skip
    sweep = {"mark_id": "m1", "ended": NOON.isoformat(), "objects": 1, "bytes": 2}
    document = {"format": 1, "marks": [plain], "sweeps": [sweep], "freed": {"m1": {"objects": 1, "bytes": 2}}}
    return [History().to_json(), record_bytes(document)]


def _rules_history() -> list[bytes]:
    change = RulesChange(who="ann", when=NOON, before=None, after=Rules(21, {"main": 7}))
    return [RulesHistory((change, change)).to_json(), RulesHistory().to_json()]


def _table_notes() -> list[bytes]:
    dataset = Dataset(f"{MARK}notes/", (File("0.parquet", 2, 10, "a" * 64),))
    return [TableNotes((dataset.name_for_record(),)).to_json()]


HOLDS = b"""\
# ours, reviewed
holds:
  - id: releases
    tags: "v*"
    history: true
    owner: ada@example.org
    reason: |
      signed
    until: 2027-06-30
  - {id: legal, commits: {legal: no}, owner: ada, reason: yes}
  - id: reports
    paths: "reports/*.pdf"
    owner: ada
    reason: x # really
"""


def _holds_files() -> list[bytes]:
    signature = SEAL.sign(holds.HOLDS_KEY, HOLDS, written=NOON)
    return [HOLDS, b"", HOLDS + holds.SIGNED + json.dumps(signature.to_dict()).encode() + b"\n"]


def _kind(
    name: str,
    key: str,
    read: Read,
    seeds: Callable[[], Sequence[bytes]],
    *,
    is_signed: bool = True,
    mutate: Callable[[bytes, Random], bytes] = mutate_json,
) -> Kind:
    return Kind(name, seeds, partial(_check, key, read, is_signed), mutate)


KINDS = [
    _kind("mark", f"{MARK}mark.json", _mark, partial(_recorded, "mark", "mark_begun", "mark_retired")),
    _kind("approval", approval_key("m1"), lambda place: read_approval(place, "m1"),
          partial(_recorded, "approval", "approval_revoked", "approval_by_policy", "approval_with_holds")),
    _kind("announcement", announcement_key("m1"), _announcement,
          partial(_recorded, "announcement", "announcement_revoked")),
    _kind("lease", LEASE_KEY, lambda place: current_holder(place.store()),
          partial(_recorded, "lease", "lease_without_process"), is_signed=False),
    _kind("owner", OWNER_KEY, _owner, partial(_recorded, "owner"), is_signed=False),
    _kind("holds", holds.HOLDS_KEY, _holds, _holds_files, mutate=mutate_bytes),
    _kind("report", report_key("m1"), lambda place: read_report(place, "m1"), partial(_recorded, "sweep")),
    _kind("quarantine", f"{MARK}{QUARANTINE_NAME}", _quarantine, partial(_recorded, "quarantine"), is_signed=False),
    _kind("quarantine counts", f"{MARK}{QUARANTINE_NAME}", _quarantine_counts, partial(_recorded, "quarantine")),
    _kind("history", HISTORY_KEY, read_history, _history),
    _kind("history of rules", RULES_HISTORY_KEY, read_rules_history, _rules_history),
    _kind("notes on tables", TABLE_NOTES_KEY, lambda place: read_table_notes(replace(place, seal=SEAL)), _table_notes),
    _kind("backup", f"backup/m1/{manifest.SUMMARY}", lambda place: manifest.read_backup(place, "backup/m1/"),
          partial(_recorded, "backup"), is_signed=False),
    _kind("begun backup", f"backup/m1/{manifest.BEGUN}", _begun, partial(_recorded, "backup_begun"), is_signed=False),
    _kind("capabilities", RECORD_KEY, _capabilities, partial(_recorded, "store")),
    _kind("reference's summary", "_lakefs/retention/gc/unified/m1/summary.json", _reference_summary,
          lambda: [b'{"success":true,"run_id":"m1","num_deleted_objects":3}'], is_signed=False),
    _kind("list of files", f"{MARK}a/{LIST_NAME}", _files, partial(_recorded, "files"), is_signed=False),
    Kind("permit", _permits, _check_permit, mutate_json),
]  # fmt: skip
TARGETS = [Target("records", KINDS)]
