"""`uncommitted_addresses`: what is staged on any branch, read after the listing and twice in full (invariant 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakegc_assets.incremental import union
from lakegc_assets.marking import other_repositories
from lakegc_assets.marking.run import MarkRun, step
from lakegc_assets.marking.uncommitted_readings import read_staged
from spark_resources.model import ADDRESSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from spark_resources.datasets import Dataset

ASSET = "uncommitted_addresses"
READINGS = ("first", "second")  # a rename during one scan hides an address from it, but not from the next
SPELLINGS = ("first_spellings", "second_spellings")  # the same, path by path, where lists can't be relied on


def read_uncommitted(run: MarkRun) -> None:
    """Read what is staged twice, and what is staged in other repositories."""
    with step(run, ASSET) as notes:
        known = list(run.staged_before)
        for part, diff_part in zip(READINGS, SPELLINGS, strict=True):
            run.say(f"reading what is staged ({part} time)")
            reading = read_staged(run, ASSET, part, diff_part, known)
            reading.record(notes)
            notes.facts |= reading.facts
            known += reading.datasets.values()
        other_repositories.read_staged(run, notes)


def datasets(run: MarkRun) -> list[Dataset]:
    """What any reading of what is staged gave, other repositories aside: all of it is live."""
    needed = (*READINGS, *(SPELLINGS if run.target.pages_diffs else ()))
    recorded = parts(run.mark.record.step(ASSET).datasets)
    return [run.mark.dataset(ASSET, part) for part in dict.fromkeys((*needed, *recorded))]


def parts(recorded: Iterable[str]) -> list[str]:
    """The parts of a recorded step that are about the repository itself."""
    return [part for part in recorded if part not in other_repositories.STAGED_PARTS]


def read_live(run: MarkRun) -> DataFrame:
    """All addresses that any reading of what is staged gave (column address)."""
    return union([run.read_dataset(one, ADDRESSES) for one in datasets(run)])
