"""Review foreign marks. They record addresses only: sizes and times are those in the store today, and the reasons for
expiry are unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.approval.verify_files import foreign_files
from lakegc_assets.cli.console import print_command, print_sentence, size
from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.mark import Servers
from lakegc_assets.cli.object_list import list_rows
from lakegc_assets.cli.status import foreign_state, made_by
from lakegc_assets.cli.tables import show_totals, totals_document
from lakegc_assets.formatting import is_or_are, plural
from lakegc_assets.mark.context import Target
from lakegc_assets.mark.totals import Totals, count_totals
from spark_resources.mark_store.foreign_expired_set import objects_of, reference_mark
from spark_resources.mark_store.foreign_layouts import ReferenceMark
from spark_resources.mark_store.mark import own_mark_ids

KINDS = ("age", "slice")  # paths and reasons are not known


@dataclass(frozen=True, slots=True)
class ForeignReview:
    """A mark of the reference collector in a repository's namespace."""

    target: Target
    mark: ReferenceMark

    @property
    def repository(self) -> str:
        return self.target.repository.id

    def tables(self) -> Iterator[pa.Table]:
        """The objects of the mark, folder by folder."""
        return objects_of(self.target.place, self.mark)


def find_foreign_mark(repository: str, name: str) -> ForeignReview | None:
    """The foreign mark with this id or `layout/id`; None if the mark is lakegc's or doesn't exist."""
    if name == "latest":  # stands for lakegc's own marks only
        return None
    target = Servers.configured().target(repository)
    mark = reference_mark(target.place, name, own_ids=own_mark_ids(target.place))
    return ForeignReview(target, mark) if mark is not None else None


def show(foreign: ForeignReview, *, list_all: bool, output_format: str) -> None:
    if list_all:
        list_rows(foreign.tables(), foreign.mark.written, output_format)
        return
    totals, missing = Totals(), 0
    for table in foreign.tables():
        stored = table.filter(pc.is_valid(table["size"]))
        missing += len(table) - len(stored)
        totals.add(count_totals(stored, start=foreign.mark.written))
    digest = foreign_files(foreign.target, foreign.mark).digest
    if output_format == "json":
        print_text(json.dumps(document(foreign, totals, missing) | {"digest": digest}, indent=1))
    else:
        show_foreign(foreign, totals, missing, digest)


def show_foreign(foreign: ForeignReview, totals: Totals, missing: int, digest: str) -> None:
    mark = foreign.mark
    print_sentence(
        f"Mark {mark.mark_id} of {foreign.repository}, made by {made_by(mark)}, {foreign_state(mark)}: "
        f"{plural(totals.whole.objects + missing, 'object')} expired. {totals.whole.objects:,} of them "
        f"({size(totals.whole.bytes)}) {is_or_are(totals.whole.objects)} in the store, and {missing:,} "
        f"{is_or_are(missing)} not."
    )
    recorded = (mark.summary or {}).get("num_deleted_objects")
    if isinstance(recorded, int) and recorded != totals.whole.objects + missing:
        print_sentence(f"Its summary reports {plural(recorded, 'object')}, which doesn't match its files.")
    for kind in KINDS:
        show_totals(totals, kind)
    print_sentence(
        "This is a foreign mark. It records addresses only: sizes and times are the current ones in the store, and the "
        "reasons are unknown."
    )
    print_command("Make a mark with lakegc to see reasons", command("mark", foreign.repository))
    print_sentence(f"Digest: {digest}")
    print_command("Next", command("approve", foreign.repository, f"{mark.layout}/{mark.mark_id}"))


def document(foreign: ForeignReview, totals: Totals, missing: int) -> dict[str, Any]:
    mark = foreign.mark
    return {
        "repository": foreign.repository,
        "mark_id": mark.mark_id,
        "state": foreign_state(mark),
        "by": made_by(mark),
        "layout": mark.layout,
        "summary": mark.summary,
        **totals_document(totals, KINDS),
        "objects": totals.whole.objects + missing,
        "not_in_the_store": missing,
    }
