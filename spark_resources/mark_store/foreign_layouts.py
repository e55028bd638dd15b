"""The reference collector's layouts, so that each tool can read the other's marks (formats §5).

This module doesn't write `summary.json`, because its presence alone lets the reference collector sweep a mark without
re-verification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.errors import NotFound
from spark_resources.mark_store.mark import GC_ROOT, reference_folder
from spark_resources.model import ADDRESSES
from spark_resources.records.json_records import read_json
from spark_resources.spark.datasets import Output, parquet_output
from spark_resources.stores.place import Place

# lines that rclone's --files-from would misread: it trims whitespace (including Unicode's) at both ends, and treats
# lines that start with # or ; as comments
_BLANK = r"[\s\v\x{85}\p{Z}]"
_UNSAFE_LINE = rf"[\r\n]|^{_BLANK}|{_BLANK}$|^[#;]"


def reference_outputs(mark_id: str) -> list[Output]:
    """The expired set in the reference collector's layout: `deleted/` (Parquet) and `deleted.text/`."""
    folder = reference_folder(mark_id)
    return [parquet_output(folder + "deleted/", ADDRESSES), Output(folder + "deleted.text/", ".txt", _encode_lines)]


def _encode_lines(table: pa.Table) -> tuple[bytes, int]:
    """The addresses, one per line, without those that rclone would misread; and the number of lines."""
    addresses = table.column("address")
    safe = addresses.filter(pc.invert(pc.match_substring_regex(addresses, _UNSAFE_LINE)))
    return "".join(f"{address}\n" for address in safe.to_pylist()).encode(), len(safe)


# --- reading the reference collector's marks --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReferenceMark:
    """A mark of the reference collector. `written` is the time of its newest file, by the store's clock.

    `summary` is the content of its last file, summary.json: None if the file is missing, {} if it is unreadable.
    """

    mark_id: str
    layout: str
    folder: str
    files: tuple[str, ...]
    summary: dict[str, object] | None
    written: datetime


_LAYOUTS = {
    "unified": re.compile(rf"^{GC_ROOT}unified/([^/]+)/deleted/([^/_.][^/]*\.parquet)\Z"),
    "uncommitted": re.compile(rf"^{GC_ROOT}uncommitted/([^/]+)/deleted/([^/_.][^/]*\.parquet)\Z"),
    "committed": re.compile(rf"^{GC_ROOT}addresses/mark_id=([^/]+)/([^/_.][^/]*\.parquet)\Z"),
    "committed before 0.4": re.compile(rf"^{GC_ROOT}addresses/run_id=([^/]+)/([^/_.][^/]*\.parquet)\Z"),
}
LAYOUTS_WITH_SUMMARY = frozenset({"unified", "uncommitted"})
_ROOTS = ("unified/", "uncommitted/", "addresses/")


def reference_marks(place: Place, *, own_ids: frozenset[str]) -> Iterator[ReferenceMark]:
    """The reference collector's marks, in all layouts. `own_ids` are the ids of lakegc's marks, which are left out."""
    files_by_mark: dict[tuple[str, str], list[tuple[str, datetime]]] = {}
    for page in (page for root in _ROOTS for page in place.store().pages(GC_ROOT + root)):
        for listed in page.objects:
            for layout, pattern in _LAYOUTS.items():
                if (match := pattern.match(listed.key)) and match.group(1) not in own_ids:
                    files_by_mark.setdefault((layout, match.group(1)), []).append((listed.key, listed.modified))
    for (layout, mark_id), files in sorted(files_by_mark.items()):
        keys = tuple(sorted(key for key, _ in files))
        folder = keys[0].rsplit("/", 1)[0] + "/"
        yield ReferenceMark(mark_id, layout, folder, keys, _summary(place, folder), max(time for _, time in files))


def _summary(place: Place, folder: str) -> dict[str, object] | None:
    key = folder.removesuffix("deleted/") + "summary.json"
    try:
        summary = read_json(place.store().read(key))
    except NotFound:
        return None
    except ValueError:
        return {}
    return summary if isinstance(summary, dict) else {}
