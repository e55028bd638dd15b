"""Present a foreign mark (of the reference collector) as a record like lakegc's own, for the brakes to measure.

A foreign mark records addresses only. Sizes and totals come from a current listing of the store.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from lakegc_assets.mark.context import Target
from lakegc_assets.rules.addresses import is_candidate
from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.mark import Mark, mark_folder, previous_mark
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import DATA, ROOT, MarkState, Scope
from spark_resources.stores.base import Store

FOLDERS = (DATA, ROOT)  # everything that may be collected is under data/ or directly in the root
SWEEP_RECORD_FOLDER = "theirs/"  # in lakegc's folder for this mark id
ASSUMED_MIN_AGE = timedelta(hours=24)  # the reference collector's default


def sweep_record_root(mark_id: str) -> str:
    return mark_folder(mark_id) + SWEEP_RECORD_FOLDER


def open_sweep_record(target: Target, mark_id: str) -> Mark | None:
    """The record of a sweep of a foreign mark; None if lakegc never started a sweep of the mark."""
    try:
        return Mark.open(target.place, mark_id, root=sweep_record_root(mark_id))
    except NotFound:
        return None


def record_of_foreign_mark(target: Target, foreign: ReferenceMark, addresses: pa.ChunkedArray) -> MarkRecord:
    """A record of this mark with the counts that brakes measure. The mark's end is the time of its newest file.

    `live` counts all candidates in the store that aren't in the mark. Lists the namespace once.
    """
    newest = finished_at(target, foreign)
    record = MarkRecord(
        mark_id=foreign.mark_id,
        state=MarkState.MARKED,
        repository=target.repository.id,
        repository_created=target.repository.created,
        namespace=target.place.namespace.uri,
        scope=Scope.UNIFIED,
        min_age=timedelta(0),
        start=newest,
        cutoff=newest,
        server_now=newest,
        rules=None,
        by=f"the reference collector ({foreign.layout})",
        versions={},
        finished=newest,
        counts=count_objects(target, addresses),
    )
    return replace(record, previous=previous_mark(target.place, record))


def finished_at(target: Target, foreign: ReferenceMark) -> datetime:
    """The time of a foreign mark's newest file, including the summary, by the store's clock."""
    if foreign.summary is None:
        return foreign.written
    store = target.place.store()
    return max(foreign.written, store.stat(foreign.folder.removesuffix("deleted/") + "summary.json").modified)


def count_objects(target: Target, addresses: pa.ChunkedArray) -> dict[str, int]:
    """The `COUNTS` of the brakes for a mark with these addresses, from a new listing of the store."""
    marked = set(addresses.to_pylist())
    local, store = target.blockstore == "local", target.place.store()
    candidates = candidate_bytes = expired_stored = expired_bytes = 0
    for folder in FOLDERS:
        for page in store.pages(folder, delimiter=None if folder else "/"):
            for listed in page.objects:
                if is_candidate(listed.key, local_adapter=local):
                    is_expired = listed.key in marked
                    candidates, candidate_bytes = candidates + 1, candidate_bytes + listed.size
                    expired_stored += is_expired
                    expired_bytes += is_expired * listed.size
    return {
        "candidates": candidates,
        "candidate_bytes": candidate_bytes,
        "expired": len(marked),
        "expired_bytes": expired_bytes,
        "live": candidates - expired_stored,
    }


def cutoff_of(store: Store, foreign: ReferenceMark) -> datetime:
    """Objects modified after this time count as changed since the mark. It is the cutoff in the mark's summary, but no
    later than the time of the mark's oldest file; if the summary has no cutoff, it is 24 hours before that time.

    Raises `DamagedData` if the cutoff is not a time with a time zone.
    """
    cutoff = (foreign.summary or {}).get("cutoff_time")
    oldest = min(store.stat(key).modified for key in foreign.files)
    if cutoff is None:
        return oldest - ASSUMED_MIN_AGE
    try:
        parsed = datetime.fromisoformat(str(cutoff))
        if parsed.tzinfo is None:
            raise ValueError("it has no time zone")
        return min(parsed.astimezone(UTC), oldest)  # the approval's digest doesn't cover the summary
    except ValueError as error:
        raise DamagedData(
            f"the summary of mark {foreign.mark_id} has an invalid cutoff, {cutoff!r} ({error}), so objects newer "
            "than the mark can't be recognized. Make a new mark."
        ) from error
