"""The paths to probe on branches of other repositories (invariant 2; formats §2, §4).

On these branches, too, no list contains a staged object with the same content as the committed one at its path, yet the
branch serves the staged address, which may be in this namespace. So each branch is probed at every path where an entry
of its head, in any namespace, has the size of an unreferenced object. The ranges of all heads are read for this, except
those that have no such size according to a signed note.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.formatting import plural
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.earlier_references import FACTS
from lakegc_assets.mark.head_paths import (
    BRANCH_HEADS,
    PATHS_OR_UNREAD,
    RANGES,
    Heads,
    Tables,
    pairs_in,
    read_paths,
    read_ranges,
    with_metaranges,
    without_unread,
)
from lakegc_assets.mark.other_repositories import (
    OtherRepositories,
    UnreadRepositories,
    all_table_notes,
    branch_heads,
    list_other_repositories,
    recording_unread,
    report_unread,
)
from lakegc_assets.mark.path_probes import ignoring_deleted
from lakegc_assets.rules.path_probes import SizeSet
from spark_resources.spark.tasks import Batches, Rows, collected


def paths_to_probe(run: MarkRun, notes: StepNotes, sizes: SizeSet, seen: set[tuple[str, str, str]]) -> Rows | None:
    """The paths to probe in other repositories (PATHS_TO_PROBE), possibly with duplicates; None if there are none.

    `sizes` are the sizes of unreferenced objects. Heads (repository, branch, commit) in `seen` are not read again, and
    new heads are added to it. Records which repositories could not be read, and raises `Refused` like `report_unread`.
    """
    listing = list_other_repositories(run)
    heads = heads_of(run, listing, seen)
    paths = paths_with_size(run, notes, listing, heads, sizes) if len(heads) else None
    facts = notes.facts.setdefault(FACTS, {"branches": 0, "unread": {}})
    report_unread(
        run, {repository: why for repository, why in listing.unread.items() if repository not in facts["unread"]}
    )
    facts["branches"] += len(heads)
    facts["unread"] = {**listing.unread, **facts["unread"]}
    return paths


def heads_of(run: MarkRun, listing: OtherRepositories, seen: set[tuple[str, str, str]]) -> pa.Table:
    """The branch heads of other repositories that are not in `seen`, with their metaranges (BRANCH_HEADS). Leaves out
    heads without a metarange and those that can't be read; records which repositories could not be read. Adds all heads
    to `seen`."""
    lakefs, unread = run.lakefs, listing.unread

    def metarange(head: tuple[str, str]) -> str:
        repository, commit_id = head
        with recording_unread(repository, unread), ignoring_deleted(lakefs, repository):
            return lakefs.commit(repository, commit_id).metarange_id
        return ""

    heads = [head for head in branch_heads(run, sorted(listing.places), unread) if head not in seen]
    seen.update(heads)
    commits = sorted({(repository, commit_id) for repository, _, commit_id in heads})
    with ThreadPoolExecutor(max_workers=lakefs.settings.probe_requests) as pool:
        metaranges = dict(zip(commits, pool.map(metarange, commits), strict=True))
    rows = [
        {"repository": repository, "branch": branch, "metarange_id": metaranges[repository, commit_id]}
        for repository, branch, commit_id in heads
    ]
    table = pa.Table.from_pylist(rows, schema=BRANCH_HEADS)
    return table.filter(pc.not_equal(table["metarange_id"], ""))


def paths_with_size(
    run: MarkRun, notes: StepNotes, listing: OtherRepositories, heads: pa.Table, sizes: SizeSet
) -> Rows | None:
    """The paths of these heads (BRANCH_HEADS) at which an entry has one of these sizes (PATHS_TO_PROBE); None if no
    range can have such an entry. Records which repositories could not be read."""
    run.log_message(
        f"reading the heads of {plural(len(heads), 'branch')} of {plural(len(listing.places), 'other repository')}"
    )
    by_metarange, tables = Heads.of(heads), Tables(listing.places, recording_unread)
    ranges_or_unread = read_ranges(run, by_metarange.metaranges, tables)
    record_unread(ranges_or_unread, listing.unread)
    found = ranges_or_unread.filter(pc.is_valid(ranges_or_unread["range_id"])).select(RANGES.names).cast(RANGES)
    if len(found):
        without_size = all_table_notes(run, listing).without_size(pc.unique(found["range_id"]), sizes)
        found = found.filter(pc.invert(pc.is_in(found["range_id"], value_set=without_size)))
    refs = found.drop_columns("metaranges")
    distinct = refs.group_by(refs.column_names, use_threads=False).aggregate([]).cast(refs.schema)
    notes.facts["ranges_of_other_heads"] = notes.facts.get("ranges_of_other_heads", 0) + len(distinct)
    if not len(distinct):
        return None
    paths = run.persist(read_paths(run, with_metaranges(distinct, pairs_in(found)), by_metarange, sizes, tables))
    record_unread(collected(paths, unread_rows, PATHS_OR_UNREAD), listing.unread)
    return without_unread(paths)


def unread_rows(batches: Batches) -> Batches:
    return (batch.filter(pc.is_valid(batch.column("unread"))) for batch in batches)


def record_unread(rows: pa.Table, unread: UnreadRepositories) -> None:
    failed = rows.filter(pc.is_valid(rows["unread"])).select(["repository", "unread"])
    for row in failed.sort_by([("repository", "ascending"), ("unread", "ascending")]).to_pylist():
        unread.setdefault(row["repository"], row["unread"])
