"""What the sweeps of other marks have removed since this mark began.

An interrupted attempt leaves intents without receipts. If such an object is gone, it counts as deleted by that attempt,
unless the sweep of another mark has a receipt for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.sweep.context import SweepRun
from lakegc_assets.sweep.report import read_report_if_intact
from spark_resources.deleting.receipts import Receipts
from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.mark import folder_ids, mark_folder
from spark_resources.model import RECEIPTS
from spark_resources.spark.arrow_shuffle import Input, InputFile
from spark_resources.stores.prefetch import fetch_in_parallel

REMOVED_BY_OTHERS = "receipts of other sweeps"
"""The name of this input of a co-group by address."""


def removed_by_others(run: SweepRun) -> Input:
    """The receipts (RECEIPTS) of objects that other sweeps have deleted or quarantined since this mark began. `why`
    names the mark. Unless this sweep was interrupted, nothing is read."""
    files = list(_receipt_files(run)) if run.receipts.have_unfinished() else []
    return Input.of_files(REMOVED_BY_OTHERS, files, RECEIPTS, reduce=sweep_outcomes.earliest)


def _receipt_files(run: SweepRun) -> Iterator[InputFile]:
    since, place = run.mark.record.start, run.place

    def files(mark_id: str) -> list[InputFile]:
        report = read_report_if_intact(place, mark_id)
        if report is not None and report.ended < since:
            return []
        return Receipts(place, mark_folder(mark_id) + "receipts/").files("receipt")

    others = [mark_id for mark_id in folder_ids(run.store) if mark_id != run.mark.record.mark_id]
    for mark_id, found in zip(others, fetch_in_parallel(others, files), strict=True):
        select = partial(_removed_since, since, mark_id)
        yield from (InputFile(file.rows, partial(_read_if_intact, file), select) for file in found)


def _read_if_intact(file: InputFile) -> pa.Table:
    try:
        return file.read().select(RECEIPTS.names)
    except (DamagedData, NotFound):  # the files of another mark must not make this sweep fail
        return RECEIPTS.empty_table()


def _removed_since(since: datetime, mark_id: str, receipts: pa.Table) -> pa.Table:
    is_later = pc.greater_equal(receipts["at"], pa.scalar(since, RECEIPTS.field("at").type))
    rows = receipts.filter(pc.and_(is_later, sweep_outcomes.is_one_of(receipts["outcome"], sweep_outcomes.TAKEN)))
    why = pc.binary_join_element_wise(f"the sweep of mark {mark_id}", rows["outcome"], "it", " ")
    return rows.set_column(rows.schema.get_field_index("why"), RECEIPTS.field("why"), why)
