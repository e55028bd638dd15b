"""The signed record `table_notes.json` of a namespace. It lists the datasets in which marks noted what tables contain
(TABLE_NOTES), for the marks of other repositories.

Without a signing key there are no notes: anyone who can write to one namespace could otherwise claim that a table has
no addresses in another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from spark_resources.errors import DamagedData, LakegcError
from spark_resources.mark_store.mark import MARKS_ROOT
from spark_resources.records.model import AsInJson, Record, require_format
from spark_resources.spark.datasets import Dataset, DatasetName, open_dataset
from spark_resources.stores.place import Place

TABLE_NOTES_KEY = MARKS_ROOT + "table_notes.json"
TABLE_NOTES_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TableNotes(Record):
    """The datasets with notes, oldest first, in the folders of the marks that wrote them."""

    datasets: AsInJson[tuple[DatasetName, ...]]
    format: Annotated[int, require_format(TABLE_NOTES_FORMAT)] = TABLE_NOTES_FORMAT

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(f"{where} is not a valid record of notes on tables ({why}). It is not used.")


def read_table_notes(place: Place) -> list[Dataset]:
    """The datasets with notes in a namespace, without those that can't be read.

    Empty if no signing key is set, or if the record is missing, unreadable, unsigned or of another format: reading the
    tables themselves is always safe.
    """
    datasets: list[Dataset] = []
    if place.seal is None:
        return datasets
    with suppress(LakegcError):
        record = TableNotes.from_json(place.records().read(TABLE_NOTES_KEY), f"{place.store().where}/{TABLE_NOTES_KEY}")
        for name in record.datasets:
            with suppress(LakegcError):
                datasets.append(open_dataset(place, name["folder"], sha256=name["sha256"]))
    return datasets


def write_table_notes(place: Place, datasets: Sequence[Dataset]) -> None:
    """Replace the record. Callers must hold the namespace's lease."""
    place.records().write(
        TABLE_NOTES_KEY, TableNotes(tuple(dataset.name_for_record() for dataset in datasets)).to_json()
    )
