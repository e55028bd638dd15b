"""What sweeps, undos, purges and restores did with some addresses, from their reports, receipts and logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.queries.addresses import EXPIRED_SET, rows_of
from lakegc_assets.rules import sweep_outcomes
from lakegc_assets.rules.garbage import first_of_each
from lakegc_assets.sweep.report import read_report_if_intact
from spark_resources.copying.copy_log import LOGGED, CopyStatus, Log
from spark_resources.deleting.receipts import NUMBERED, Receipts, receipt_rows
from spark_resources.errors import DamagedData, LakegcError, NotFound, Retired
from spark_resources.mark_store.files import RESTORED_FOLDER
from spark_resources.mark_store.mark import Mark, folder_ids, mark_folder
from spark_resources.mark_store.record import refuse_retired
from spark_resources.model import EXPIRED_OBJECTS, RECEIPTS
from spark_resources.spark.datasets import all_batches, open_dataset
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

RESTORED_FROM_BACKUP = "restored from a backup"
"""The outcome of an object that `lakegc restore` copied back. An object that is restored from quarantine is `restored`,
as in its receipt."""
OUTCOMES = pa.schema(
    [
        pa.field("mark_id", pa.string(), nullable=False),
        *RECEIPTS,
        pa.field("receipt", pa.string(), nullable=False),  # the folder with the receipt, a key of the namespace
    ]
)


@dataclass(frozen=True, slots=True)
class SweepOutcomes:
    """The outcomes of these addresses in all marks (`rows`, OUTCOMES, in the order in which they happened), and the
    marks whose outcomes can't be read (`unreadable`), each with the reason. The outcomes of a retired mark are gone."""

    rows: pa.Table
    unreadable: dict[str, str]


def outcomes_of(place: Place, addresses: pa.Array) -> SweepOutcomes:
    """What every sweep, undo, purge and restore in this namespace did with these addresses."""
    unreadable: dict[str, str] = {}

    def read(mark_id: str) -> pa.Table:
        try:
            return pa.concat_tables([OUTCOMES.empty_table(), *mark_outcomes(place, mark_id, addresses)])
        except (DamagedData, NotFound) as error:
            unreadable[mark_id] = why_unreadable(place, mark_id, error)
            return OUTCOMES.empty_table()

    tables = list(fetch_in_parallel(folder_ids(place.store()), read))
    rows = pa.concat_tables([OUTCOMES.empty_table(), *tables])
    return SweepOutcomes(rows.sort_by([("address", "ascending"), ("at", "ascending")]), unreadable)


def why_unreadable(place: Place, mark_id: str, error: LakegcError) -> str:
    """Why the outcomes of a mark's sweep can't be read: it was retired, or this error."""
    try:
        refuse_retired(Mark.open(place, mark_id).record)
    except Retired as retired:
        return str(retired)
    except LakegcError:
        pass
    return str(error)


def mark_outcomes(place: Place, mark_id: str, addresses: pa.Array) -> Iterator[pa.Table]:
    """The outcomes (OUTCOMES) in the sweep of one mark, if there was one, and in later undos, purges and restores."""
    folder, report = mark_folder(mark_id), read_report_if_intact(place, mark_id)
    if report is not None and report.dataset["folder"]:
        dataset = open_dataset(place, report.dataset["folder"], sha256=report.dataset["sha256"])
        for table in all_batches(place, dataset, RECEIPTS):
            yield with_mark(matching(table, addresses), mark_id, dataset.folder)
    for subfolder in ("undone/",) if report is not None else ("receipts/", "undone/"):
        files = Receipts(place, folder + subfolder).files("receipt")
        tables = [matching(file.read(), addresses) for file in files]
        last = sweep_outcomes.latest(pa.concat_tables([NUMBERED.empty_table(), *tables]))
        yield with_mark(last.select(RECEIPTS.names), mark_id, folder + subfolder)
    yield with_mark(restored_rows(place, folder + RESTORED_FOLDER, addresses), mark_id, folder + RESTORED_FOLDER)


def restored_rows(place: Place, folder: str, addresses: pa.Array) -> pa.Table:
    """The objects at these addresses that were restored from a backup, according to the log in this folder (RECEIPTS).
    The last restore of each counts."""
    log = Log(place, folder)
    tables = [matching(log.read(key), addresses) for key in log.keys()]  # noqa: SIM118 - it isn't a mapping
    logged = pa.concat_tables([LOGGED.empty_table(), *tables])
    copied = logged.filter(pc.equal(logged["outcome"], CopyStatus.COPIED.value))
    last = first_of_each(copied.sort_by([("address", "ascending"), ("at", "descending")]), "address")
    return receipt_rows(last, at=last["at"], outcome=RESTORED_FROM_BACKUP, attempts=1)


def matching(rows: pa.Table, addresses: pa.Array) -> pa.Table:
    return rows.filter(pc.is_in(rows["address"], value_set=addresses))


def with_mark(receipts: pa.Table, mark_id: str, folder: str) -> pa.Table:
    names = [pa.repeat(pa.scalar(name, pa.string()), len(receipts)) for name in (mark_id, folder)]
    return pa.table([names[0], *receipts.columns, names[1]], schema=OUTCOMES)


def expired_rows(place: Place, mark_ids: Sequence[str], addresses: pa.Array) -> pa.Table:
    """The rows of these addresses in the expired sets of these marks (EXPIRED_OBJECTS), which say why the objects
    expired. Sets that can't be read are left out; foreign and retired marks have none."""

    def read(mark_id: str) -> pa.Table:
        try:
            return rows_of(Mark.open(place, mark_id), EXPIRED_SET, "", EXPIRED_OBJECTS, addresses)
        except LakegcError:
            return EXPIRED_OBJECTS.empty_table()

    return pa.concat_tables([EXPIRED_OBJECTS.empty_table(), *fetch_in_parallel(mark_ids, read)])
