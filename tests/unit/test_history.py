"""The history of a namespace, from which the overview of all repositories is made."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lakegc_assets.cli.fleet import newest_marks
from lakegc_assets.sweep.history import known_history, record_mark, record_sweep
from lakegc_assets.sweep.report import Report, report_key
from spark_resources.mark_store.history import HISTORY_KEY, MAX_ENTRIES, FinishedSweep, Freed, History, read_history
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.model import MarkState, Namespace
from spark_resources.records.json_records import record_bytes
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.finished_marks import START, finished_record


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "lake").mkdir()
    return Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))


def no_warning(sentence: str) -> None:
    pytest.fail(sentence)


def write_mark(place: Place, mark_id: str, start: datetime = START) -> Mark:
    return Mark.begin(place, finished_record(mark_id, start=start))


def write_report(place: Place, mark_id: str, *, ended: datetime = START, **objects: int) -> None:
    """The report of a sweep with these outcomes, each object of which has ten bytes."""
    report = Report(
        mark_id=mark_id, repository="lake", digest="", by="ada@here", began=ended, ended=ended,
        approved=sum(objects.values()), objects=objects, sizes={name: 10 * count for name, count in objects.items()},
        seconds=1.0, requests=1, attempts=1, verifications=(), late=(), late_objects=0,
    )  # fmt: skip
    place.store().write(report_key(mark_id), report.to_json())


def test_a_history_keeps_only_the_newest_marks_and_sweeps_but_counts_what_all_sweeps_freed() -> None:
    """The file stays small, and old sweeps still count."""
    history = History()
    for day in range(MAX_ENTRIES + 10):
        then = START + timedelta(days=day)
        history = history.with_mark(finished_record(f"m{day}", start=then))
        history = history.with_sweep(FinishedSweep(f"m{day}", then, 1, 10))

    assert [mark.mark_id for mark in history.marks] == [f"m{day}" for day in range(10, MAX_ENTRIES + 10)]
    assert [sweep.mark_id for sweep in history.sweeps] == [f"m{day}" for day in range(10, MAX_ENTRIES + 10)]
    assert (history.freed_objects, history.freed_bytes) == (MAX_ENTRIES + 10, 10 * (MAX_ENTRIES + 10))


def test_a_sweep_that_is_retried_or_purged_counts_once(place: Place) -> None:
    """The newest outcome replaces the earlier one; a purge frees what was quarantined."""
    write_report(place, "m1", deleted=2, failed=3)
    record_sweep(place, "m1", no_warning)
    write_report(place, "m1", deleted=4, failed=1)
    record_sweep(place, "m1", no_warning)
    write_report(place, "m2", quarantined=7)
    record_sweep(place, "m2", no_warning)
    in_quarantine = read_history(place)
    place.store().write(f"{mark_folder('m2')}quarantine.json", record_bytes({"format": 1, "objects": {"purged": 7}}))
    record_sweep(place, "m2", no_warning)
    purged = read_history(place)
    write_report(place, "m3", quarantined=3)
    place.store().write(f"{mark_folder('m3')}quarantine.json", record_bytes({"format": 1, "objects": {"restored": 2}}))
    record_sweep(place, "m3", no_warning)
    partly_undone = read_history(place)

    assert in_quarantine is not None
    assert in_quarantine.freed == {"m1": Freed(4, 40), "m2": Freed(0, 0)}
    assert [(sweep.failed, sweep.quarantined) for sweep in in_quarantine.sweeps] == [(1, 0), (0, 7)]
    assert purged is not None
    assert purged.freed == {"m1": Freed(4, 40), "m2": Freed(7, 70)}
    assert partly_undone is not None
    assert (partly_undone.sweeps[-1].quarantined, partly_undone.sweeps[-1].restored) == (1, 2)


def test_a_missing_or_damaged_history_is_rebuilt_from_all_records(place: Place) -> None:
    """Marks and sweeps from before there was a history also count. Nobody has to repair the file."""
    for day, mark_id in enumerate(("m1", "m2")):
        write_mark(place, mark_id, START + timedelta(days=day))
        write_report(place, mark_id, ended=START + timedelta(days=day), deleted=3)
    collected = known_history(place)
    place.store().write(HISTORY_KEY, b'{"cut off')
    assert known_history(place) == collected

    record_mark(place, write_mark(place, "m3", START + timedelta(days=2)).record, no_warning)

    history = read_history(place)
    assert history is not None
    assert [mark.mark_id for mark in history.marks] == ["m1", "m2", "m3"]
    assert history.freed == {"m1": Freed(3, 30), "m2": Freed(3, 30)}


def test_a_history_of_an_earlier_version_which_does_not_count_restored_objects_is_read(place: Place) -> None:
    """It may have entries of sweeps whose records were removed."""
    history = History().with_sweep(FinishedSweep("m1", START, 1, 10))
    document = json.loads(history.to_json())
    del document["sweeps"][0]["restored"]
    place.store().write(HISTORY_KEY, json.dumps(document).encode())

    assert read_history(place) == history


def test_a_history_of_a_newer_version_is_left_unchanged_with_a_warning(place: Place) -> None:
    """The run continues, because the history is only for people."""
    written = record_bytes({"marks": [], "sweeps": [], "freed": {}, "format": 2})
    place.store().write(HISTORY_KEY, written)
    warnings: list[str] = []

    record_mark(place, write_mark(place, "m1").record, warnings.append)

    assert place.store().read(HISTORY_KEY) == written
    assert ["format 2" in sentence for sentence in warnings] == [True]
    assert [mark.mark_id for mark in known_history(place).marks] == ["m1"]


def test_unfinished_marks_are_not_in_the_history(place: Place) -> None:
    """Unfinished marks have no counts."""
    unfinished = finished_record("m1", state=MarkState.MARKING, finished=None, digest=None, counts={})

    assert History().with_mark(unfinished) == History()


def test_an_overview_reads_the_newest_mark_and_only_those_earlier_ones_without_a_successful_sweep(place: Place) -> None:
    """A repository may have hundreds of swept marks; what is left to do is in the others."""
    marks = {f"m{day}": write_mark(place, f"m{day}", START + timedelta(days=day)) for day in range(4)}
    history = History()
    for mark in marks.values():
        history = history.with_mark(mark.record)
    for mark_id, failed in (("m0", 0), ("m1", 2), ("m3", 0)):
        history = history.with_sweep(FinishedSweep(mark_id, START + timedelta(days=9), 1, 10, failed=failed))
    place.store().write(marks["m0"].key, b"unreadable")

    considered = newest_marks(place, history, now=START + timedelta(days=9))

    assert [seen.record.mark_id for seen in considered] == ["m3", "m2", "m1"]
