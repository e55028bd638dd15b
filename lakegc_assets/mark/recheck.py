"""Find addresses that are live at the end of a mark but missing from the lists at its beginning (invariant 2).

No list contains a staged object with the same content as the committed one at its path; only a path probe finds it. If
it was moved to another path between the lists and the probe, neither finds it. So the lists are read once more at the
end.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import holds_in_force, other_repositories
from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.mark.keep_evidence import KeepEvidence, UndecidedObjects, evidence_at_addresses
from lakegc_assets.mark.mark_chain import MarkChain
from lakegc_assets.mark.retained_commits import dumped_graph
from lakegc_assets.mark.uncommitted_readings import read_staged
from lakegc_assets.rules import keep_reasons
from spark_resources.errors import Refused
from spark_resources.lakefs.ranges import address_reader, check_all_read, distinct_refs, range_tasks, write_ranges_of
from spark_resources.model import ADDRESSES, COMMIT_VERDICTS, RANGE_REFS, Commit
from spark_resources.spark.datasets import Dataset, all_batches, write_produced

ASSET = "expired_set"
STAGED_PART, DIFFS_PART = "staged_at_the_end", "diffs_at_the_end"
NEW_RANGES_PART, NEW_ADDRESSES_PART = "ranges_at_the_end", "addresses_at_the_end"  # of new commits, if there are any


def look_up(run: MarkRun, notes: StepNotes, objects: UndecidedObjects, chain: MarkChain) -> KeepEvidence | None:
    """The evidence that keeps the objects whose addresses are live at the end; None if there are no such addresses."""
    live = live_at_the_end(run, notes) if notes.facts["unreferenced"] else []
    if not any(dataset.rows for dataset in live):
        return None
    return evidence_at_addresses(keep_reasons.NEWLY_REFERENCED, run.place, live, ADDRESSES)


def live_at_the_end(run: MarkRun, notes: StepNotes) -> list[Dataset]:
    """Write the addresses that are staged now, and those of commits that were not retained before. Returns the datasets
    (ADDRESSES, with duplicates)."""
    run.log_message("reading once more: staged addresses, branch heads, new commits")
    return [*addresses_staged_now(run, notes), *addresses_of_new_commits(run, notes)]


def addresses_staged_now(run: MarkRun, notes: StepNotes) -> list[Dataset]:
    reading = read_staged(run, ASSET, STAGED_PART, DIFFS_PART)
    reading.record(notes)
    elsewhere = other_repositories.read_at_the_end(run, notes)
    return [*reading.datasets.values(), *elsewhere]


def addresses_of_new_commits(run: MarkRun, notes: StepNotes) -> list[Dataset]:
    """Write the addresses of commits that were not retained when commits were read but are now: heads, commits of tags
    covered by a hold, and every commit made since then, even if it is no longer on a branch, because young commits are
    live. Usually there are none, and nothing is written. Returns the datasets (ADDRESSES)."""
    repository, verdicts = run.partition.repository, run.rows("retained_commits", COMMIT_VERDICTS)
    retained = {row["commit_id"] for row in verdicts if row["retained"]}
    new_heads = sorted(
        {*run.lakefs.branches(repository).values(), *holds_in_force.newly_tagged_commits(run)} - retained
    )
    new_commits = commits_since(run, known={row["commit_id"] for row in verdicts})
    notes.facts |= {"new_heads": len(new_heads), "new_commits": len(new_commits)}
    metaranges = {run.lakefs.commit(repository, head).metarange_id for head in new_heads}
    metaranges |= {commit.metarange_id for commit in new_commits}
    if not metaranges - {""}:
        return []
    folder, ranges_folder = (run.mark.folder(ASSET, part) for part in (NEW_ADDRESSES_PART, NEW_RANGES_PART))
    (ranges,) = write_ranges_of(run.spark, run.place, sorted(metaranges - {""}), ranges_folder)
    refs = distinct_refs(pa.concat_tables([RANGE_REFS.empty_table(), *all_batches(run.place, ranges, RANGE_REFS)]))
    addresses, report = write_produced(
        range_tasks(run.spark, refs), address_reader(run.place), run.place, folder, ADDRESSES
    )
    check_all_read(report, ranges=len(refs), entries=pc.sum(refs["entries"], min_count=0).as_py())
    notes.add_dataset(ranges, NEW_RANGES_PART)
    notes.add_dataset(addresses, NEW_ADDRESSES_PART)
    return [addresses]


def commits_since(run: MarkRun, *, known: Collection[str]) -> list[Commit]:
    """The commits that were unknown when commits were read; empty if the graph couldn't be read then. Raises `Refused`
    if it can no longer be read."""
    if not run.mark.record.step("retained_commits").facts["graph"]:
        return []
    dumped = dumped_graph(run)
    if dumped is None:
        raise Refused(
            f"these credentials could read the commit graph of {run.partition.repository} when this mark began, but "
            "can no longer read it, so commits made since then are unknown. Make a new mark.",
            invariant=3,
        )
    return [commit for commit in dumped.values() if commit.id not in known]
