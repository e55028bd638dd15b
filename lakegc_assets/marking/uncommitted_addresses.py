"""`uncommitted_addresses`: what is staged on any branch, read after the listing and twice in full (invariant 2)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.incremental import union
from lakegc_assets.marking import other_repositories
from lakegc_assets.marking.run import MarkRun, step
from spark_resources.datasets import Batches, Counts, Dataset, write_produced, write_rows
from spark_resources.entries import inside_addresses
from spark_resources.errors import DamagedData, NotThere
from spark_resources.gc_lists import read_uncommitted_file
from spark_resources.lakefs import LakeFS, UncommittedLists
from spark_resources.model import ADDRESSES, AddressType
from spark_resources.model import Place as Where
from spark_resources.tasks import id_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ASSET = "uncommitted_addresses"
READINGS = ("first", "second")  # a rename during one scan hides an address from it, but not from the next
SPELLINGS = ("first_spellings", "second_spellings")  # the same, path by path, where lists leave full addresses out


def parts(*, local_adapter: bool) -> tuple[str, ...]:
    """The parts of the dataset, whose union is live."""
    return (*READINGS, *SPELLINGS) if local_adapter else READINGS


def read_uncommitted(run: MarkRun) -> None:
    """Read the server's lists of staged addresses twice; where full addresses can hide, ask every changed path, too."""
    with step(run, ASSET) as notes:
        for part in READINGS:
            run.say(f"reading what is staged ({part} time)")
            lists = run.lakefs.prepare_uncommitted(run.partition.repository)
            dataset, counts = read_lists(run, lists, run.mark.folder(ASSET, part))
            notes.wrote(dataset, part)
            notes.facts[part] = {"pages": lists.pages, "files": lists.files, "addresses": dataset.rows, **counts}
        for part in SPELLINGS if run.local_adapter else ():
            run.say("asking for the full addresses of changed paths")
            dataset, counts = changed_paths(run, run.mark.folder(ASSET, part))
            notes.wrote(dataset, part)
            notes.facts[part] = {"addresses": dataset.rows, **counts}
        other_repositories.read_staged(run, notes)


def read_lists(run: MarkRun, lists: UncommittedLists, folder: str) -> tuple[Dataset, Counts]:
    """All files of one reading. Raises `DamagedData` where they are fewer than the pages that announced one."""
    keys = [key for location, files in lists.files_by_location.items() for key in files_of(run, location, files)]
    place = run.place
    if not keys:  # announced so, page by page
        return write_rows(place, folder, [], ADDRESSES), {}

    def produce(batches: Batches, counts: Counts) -> Batches:
        for key in (key for batch in batches for key in batch.column(0).to_pylist()):
            listed = read_uncommitted_file(place.store().read(key), where=f"{place.store().where}/{key}")
            addresses = listed.column("physical_address").combine_chunks()
            kinds = pa.repeat(pa.scalar(int(AddressType.BY_PREFIX), pa.int8()), len(addresses))
            inside, outside = inside_addresses(addresses, kinds, place.namespace)
            counts["outside"] = counts.get("outside", 0) + outside
            yield pa.RecordBatch.from_arrays([inside], schema=ADDRESSES)

    return write_produced(id_tasks(run.spark(), "key", keys, batch=1), produce, place, folder, ADDRESSES)


def files_of(run: MarkRun, location: str, announced: int) -> list[str]:
    """The keys of the files at an announced location, at least as many as were announced (invariant 3)."""
    folder = run.place.namespace.key(location).rstrip("/") + "/"
    found = [one.key for page in run.store.pages(folder) for one in page.objects]
    if len(found) < announced:
        raise DamagedData(
            f"the server announced {announced} files with staged addresses at {location}, and {len(found)} are there. "
            "What is staged can't be told, so nothing can be collected. Run it again; if it stays so, check that "
            "lakegc and the server see the same store.",
            invariant=3,
        )
    return found


def changed_paths(run: MarkRun, folder: str) -> tuple[Dataset, Counts]:
    """The addresses that branches serve at every path of their uncommitted diff.

    The server's list leaves out full addresses that it holds to be outside the namespace (formats §2): on the local
    adapter, wrongly.
    """
    branches = sorted(run.lakefs.branches(run.partition.repository))
    place, lakefs, repository = run.place, run.lakefs, run.partition.repository

    def produce(batches: Batches, counts: Counts) -> Batches:
        for branch in (branch for batch in batches for branch in batch.column(0).to_pylist()):
            addresses = list(served_at_changes(lakefs, repository, branch))
            counts["asked"] = counts.get("asked", 0) + len(addresses)
            inside = []
            for address in addresses:
                where, key = place.namespace.place_of_answer(address)
                if where is Where.CONFLICT:
                    place.namespace.check_elsewhere(address)
                elif where is Where.INSIDE:
                    inside.append(key)
            yield pa.RecordBatch.from_arrays([pa.array(inside, pa.string())], schema=ADDRESSES)

    return write_produced(id_tasks(run.spark(), "branch", branches, batch=1), produce, place, folder, ADDRESSES)


def served_at_changes(lakefs: LakeFS, repository: str, branch: str) -> Iterator[str]:
    """The physical addresses at the added and changed paths of a branch; none where the branch is gone by now."""
    try:
        paths = [change.path for change in lakefs.uncommitted_diff(repository, branch) if change.type != "removed"]
        with ThreadPoolExecutor(max_workers=lakefs.settings.asking_requests) as pool:
            for served in pool.map(lambda path: lakefs.stat(repository, branch, path), paths):
                if served is not None:
                    yield served.physical_address
    except NotThere:
        if branch in lakefs.branches(repository):
            raise


def read_live(run: MarkRun) -> DataFrame:
    """All addresses that any reading of what is staged gave (column address)."""
    return union([run.read(ASSET, ADDRESSES, part) for part in parts(local_adapter=run.local_adapter)])
