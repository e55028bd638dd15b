"""`uncommitted_addresses`: the addresses staged on any branch, read after the listing, twice in full (invariant 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakegc_assets.mark import other_repositories
from lakegc_assets.mark.context import MarkRun, step
from lakegc_assets.mark.earlier_references import STAGED_PARTS
from lakegc_assets.mark.uncommitted_readings import read_staged

if TYPE_CHECKING:
    from spark_resources.spark.datasets import Dataset

ASSET = "uncommitted_addresses"
READINGS = ("first", "second")  # a rename during a scan can hide an address from that scan, not from the next
DIFFS = ("first_diffs", "second_diffs")  # the addresses of the same two reads, looked up path by path


def read_uncommitted(run: MarkRun) -> None:
    """Read the staged addresses twice, and then those staged in other repositories."""
    with step(run, ASSET) as notes:
        for part, diff_part in zip(READINGS, DIFFS, strict=True):
            run.log_message(f"reading staged addresses ({part} time)")
            reading = read_staged(run, ASSET, part, diff_part)
            reading.record(notes)
            notes.facts |= reading.facts
        other_repositories.read_staged(run, notes)


def datasets(run: MarkRun) -> list[Dataset]:
    """The datasets of all readings of staged addresses in this repository; all these addresses are live."""
    recorded = [part for part in run.mark.record.step(ASSET).datasets if part not in STAGED_PARTS]
    return [run.mark.dataset(ASSET, part) for part in dict.fromkeys((*READINGS, *DIFFS, *recorded))]
