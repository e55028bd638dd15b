"""The reference collector's own layouts, so that either tool can read the other's marks (formats §5).

`summary.json` is not written here: its presence alone lets the reference sweep a mark without any proof.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.datasets import Batches, Dataset, Place, arrow_to_spark, remove_folder, task_name, write_dataset
from spark_resources.errors import NotThere
from spark_resources.marks import GC_ROOT, reference_folder
from spark_resources.model import ADDRESSES
from spark_resources.executors import errors_from_executors, on_executor

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# a line that rclone's --files-from would read as something else: blanks at the ends are trimmed, # and ; begin comments
_UNSAFE_LINE = r"[\r\n]|^\s|\s$|^[#;]"


def write_reference_mark(expired: DataFrame, place: Place, mark_id: str) -> tuple[Dataset, int]:
    """Write `deleted/` (Parquet) and `deleted.text/` of an expired set; returns the Parquet and how many addresses
    the text can't hold."""
    folder = reference_folder(mark_id)
    dataset = write_dataset(expired, place, folder + "deleted/", ADDRESSES)
    remove_folder(place, folder + "deleted.text/")
    lines = write_lines(expired.select("address"), place, folder + "deleted.text/")
    return dataset, dataset.rows - lines


def write_lines(addresses: DataFrame, place: Place, folder: str) -> int:
    """Write a file of lines a task; returns how many addresses stand in them."""
    schema = pa.schema([("lines", pa.int64())])

    def run(batches: Batches) -> Batches:
        for number, batch in enumerate(batches):
            safe = batch.column(0).filter(pc.invert(pc.match_substring_regex(batch.column(0), _UNSAFE_LINE)))
            if len(safe):
                text = "".join(f"{address}\n" for address in safe.to_pylist())
                place.store().write(f"{folder}{task_name()}-{number:03d}.txt", text.encode())
            yield pa.RecordBatch.from_arrays([pa.array([len(safe)], pa.int64())], schema=schema)

    with errors_from_executors():
        written = addresses.mapInArrow(on_executor(run), arrow_to_spark(schema)).groupBy().sum("lines").collect()
    return int(written[0][0] or 0)


# --- reading what the reference left --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReferenceMark:
    """A mark of the reference collector. `summary` is what it wrote last, None where it didn't.

    `written` is the time of its newest file, by the store's clock.
    """

    mark_id: str
    layout: str
    folder: str
    files: tuple[str, ...]
    summary: dict[str, object] | None
    written: datetime


_LAYOUTS = {
    "unified": re.compile(rf"^{GC_ROOT}unified/([^/]+)/deleted/([^/_.][^/]*\.parquet)$"),
    "uncommitted": re.compile(rf"^{GC_ROOT}uncommitted/([^/]+)/deleted/([^/_.][^/]*\.parquet)$"),
    "committed": re.compile(rf"^{GC_ROOT}addresses/mark_id=([^/]+)/([^/_.][^/]*\.parquet)$"),
    "committed before 0.4": re.compile(rf"^{GC_ROOT}addresses/run_id=([^/]+)/([^/_.][^/]*\.parquet)$"),
}
_ROOTS = ("unified/", "uncommitted/", "addresses/")


def reference_marks(place: Place, *, ours: frozenset[str]) -> Iterator[ReferenceMark]:
    """The marks that the reference left in any of its layouts; `ours` are the ids of our own, which look alike."""
    found: dict[tuple[str, str], list[tuple[str, datetime]]] = {}
    for page in (page for root in _ROOTS for page in place.store().pages(GC_ROOT + root)):
        for one in page.objects:
            for layout, pattern in _LAYOUTS.items():
                if (match := pattern.match(one.key)) and match.group(1) not in ours:
                    found.setdefault((layout, match.group(1)), []).append((one.key, one.modified))
    for (layout, mark_id), files in sorted(found.items()):
        keys = tuple(sorted(key for key, _ in files))
        folder = keys[0].rsplit("/", 1)[0] + "/"
        yield ReferenceMark(mark_id, layout, folder, keys, _summary(place, folder), max(time for _, time in files))


def _summary(place: Place, folder: str) -> dict[str, object] | None:
    key = folder.removesuffix("deleted/") + "summary.json"
    try:
        found = json.loads(place.store().read(key))
    except NotThere:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

