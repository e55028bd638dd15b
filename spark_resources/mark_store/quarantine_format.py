"""The file `quarantine.json` in a mark's folder: how many quarantined objects were restored or purged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from spark_resources.errors import DamagedData, NotFound
from spark_resources.mark_store.mark import MARKS_ROOT
from spark_resources.records.json_records import check_format
from spark_resources.records.model import Count, Record, require_format
from spark_resources.stores.base import folders_in
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

QUARANTINE_NAME = "quarantine.json"
QUARANTINE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class QuarantineCounts(Record):
    """How many quarantined objects were restored or purged since the sweep, by outcome."""

    objects: Mapping[str, Count]
    format: Annotated[int, require_format(QUARANTINE_FORMAT)] = QUARANTINE_FORMAT

    @classmethod
    def damaged_error(cls, where: str, why: str) -> DamagedData:
        return DamagedData(
            f"{where} is not a valid record of a quarantine ({why}). Delete it: the next undo or purge "
            "writes it again.",
            invariant=10,
        )


def refuse_unknown_quarantine_format(place: Place) -> None:
    """Raise `UnknownFormat` if a newer version of lakegc wrote the `quarantine.json` of any mark in this namespace.

    Sends one request per mark. A file that isn't JSON is ignored here; lists of marks and reports mention it.
    """
    records, store = place.records(), place.store()

    def check(key: str) -> None:
        with suppress(NotFound, ValueError, RecursionError):
            document = json.loads(records.read_untrusted(key)[0])
            check_format(document.get("format") if isinstance(document, dict) else None, QUARANTINE_FORMAT,
                         f"{store.where}/{key}")  # fmt: skip

    list(fetch_in_parallel([folder + QUARANTINE_NAME for folder in folders_in(store, MARKS_ROOT)], check))
