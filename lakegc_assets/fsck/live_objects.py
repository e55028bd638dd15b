"""Live objects, and those that the store lacks: compares heads, retained commits and staged changes with a listing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from lakegc_assets.formatting import plural
from lakegc_assets.fsck.commit_graph import Graph
from lakegc_assets.fsck.findings import Report
from lakegc_assets.fsck.tables import OBSERVED_ADDRESSES, batch_of, finding_note, report_of
from lakegc_assets.mark.context import Target
from lakegc_assets.mark.path_probes import is_branch
from lakegc_assets.rules.retention import commit_verdicts
from spark_resources.errors import DamagedData, Forbidden, LakegcError
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.branch_diff import whole_diff
from spark_resources.lakefs.gc_lists import parse_commits_csv, read_uncommitted_file
from spark_resources.lakefs.ranges import addresses_inside
from spark_resources.model import DATA, ROOT, AddressType, Namespace
from spark_resources.model import Location as Where
from spark_resources.spark.partitioning import tasks_from_ids
from spark_resources.spark.task_report import TaskReport
from spark_resources.spark.tasks import Batches
from spark_resources.stores.base import folders_in
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TABLES = "_lakefs/"


# --- retained commits -----------------------------------------------------------------------------------------------


def live_metaranges(target: Target, lakefs: LakeFS, graph: Graph, report: Report, *, now: datetime) -> set[str]:
    """The metaranges of heads and of all commits retained by the rules or the server's list.

    `now` is by the lakeFS server's clock. Records the retained commits in the graph.
    """
    listed = retained_by_server(target, lakefs, report)
    retained = {*graph.heads.values()}
    try:
        verdicts = commit_verdicts(graph.commits.values(), graph.heads, lakefs.rules(target.repository.id), now=now)
        retained |= {verdict.commit_id for verdict in verdicts if verdict.retained}
    except LakegcError as error:
        report.not_verified.append(
            "Objects of commits that only the retention rules keep: the rules can't be applied to this commit graph "
            f"({error})"
        )
    for commit_id, metarange in listed.items():
        known = graph.commits.get(commit_id)
        if known is not None and known.metarange_id != metarange:
            why = f"its metarange is '{known.metarange_id}', but '{metarange}' in the server's list of retained commits"
            report.add_finding("commit", commit_id, DamagedData(why), graph.dependents([commit_id]))
    graph.retained = frozenset({*retained, *listed})
    return {
        *listed.values(),
        *(graph.commits[retained_id].metarange_id for retained_id in retained & graph.commits.keys()),
    } - {""}


def retained_by_server(target: Target, lakefs: LakeFS, report: Report) -> dict[str, str]:
    """The metaranges of the commits that the server retains, by commit id; empty without rules or a readable list."""
    if target.repository.read_only:
        report.not_verified.append(
            "Objects that only the server's list of retained commits keeps: the repository is read-only, so there is "
            "no such list."
        )
        return {}
    try:
        location = lakefs.prepare_commits(target.repository.id)
        if location is None:
            return {}
        data = target.place.store().read(target.place.namespace.key(location))
        return dict(parse_commits_csv(data, where=location))
    except Forbidden as error:
        report.not_verified.append(f"Objects that only the server's list of retained commits keeps: {error}")
    except LakegcError as error:
        report.add_finding("list of retained commits", target.repository.id, error)
    return {}


# --- staged ---------------------------------------------------------------------------------------------------------


def staged_addresses(
    spark: SparkSession, target: Target, lakefs: LakeFS, graph: Graph, report: Report
) -> list[DataFrame]:
    """Addresses staged on any branch, as OBSERVED_ADDRESSES: from each branch's changed paths, and from the server's
    list."""
    observed = [served_at_changed_paths(spark, target, lakefs, sorted(graph.heads))]
    if target.repository.read_only:  # the server makes no list for such a repository
        report.not_verified.append(
            "Staged objects that only the server's list names: the repository is read-only, so there is no such list."
        )
    else:
        observed.append(listed_as_staged(spark, target.place, staged_list_keys(target, lakefs, report)))
    return observed


def staged_list_keys(target: Target, lakefs: LakeFS, report: Report) -> list[str]:
    """The keys of the files in which the server lists staged addresses."""
    keys: list[str] = []
    try:
        lists = lakefs.prepare_uncommitted(target.repository.id)
        for location, announced in lists.files_by_location.items():
            folder = target.place.namespace.key(location).rstrip("/") + "/"
            files = [file.key for page in target.place.store().pages(folder) for file in page.objects]
            keys += files
            if len(files) < announced:
                missing_files = DamagedData(
                    f"the server reported {plural(announced, 'file')}, but the store has {len(files):,}. Check that "
                    "lakegc and the server use the same store."
                )
                report.add_finding("list of staged objects", location, missing_files)
    except Forbidden as error:
        report.not_verified.append(f"Staged objects: {error}")
    except LakegcError as error:
        report.add_finding("list of staged objects", target.repository.id, error)
    return keys


def listed_as_staged(spark: SparkSession, place: Place, keys: list[str]) -> DataFrame:
    """The addresses inside the namespace in these files of the server's list of staged objects, as
    OBSERVED_ADDRESSES."""

    def read(batches: Batches) -> Batches:
        report = TaskReport()
        for key in (key for batch in batches for key in batch.column(0).to_pylist()):
            try:
                listed = read_uncommitted_file(place.store().read(key), where=key).column("physical_address")
                kinds = pa.repeat(pa.scalar(int(AddressType.BY_PREFIX), pa.int8()), len(listed))
                inside, outside = addresses_inside(listed.combine_chunks(), kinds, place.namespace)
                yield batch_of(OBSERVED_ADDRESSES, address=inside, staged=True)
                report.count(outside=outside)
            except LakegcError as error:
                yield batch_of(OBSERVED_ADDRESSES, note=[finding_note("list of staged objects", key, error)])
        yield report_of("reading lists of staged objects", report)

    return tasks_from_ids(lambda: spark, "key", keys, batch_size=1, max_on_driver=0).mapped(
        read, OBSERVED_ADDRESSES
    )  # a list may have millions of rows


def served_at_changed_paths(spark: SparkSession, target: Target, lakefs: LakeFS, branches: list[str]) -> DataFrame:
    """The addresses that the server reports for the added and changed paths of these branches, as
    OBSERVED_ADDRESSES."""
    place, repository = target.place, target.repository.id

    def read(batches: Batches) -> Batches:
        for branch in (branch for batch in batches for branch in batch.column(0).to_pylist()):
            try:
                keys = [key for _, key in changed_paths(lakefs, repository, branch, place.namespace)]
                yield batch_of(OBSERVED_ADDRESSES, address=pa.array(keys, pa.string()), staged=True)
            except LakegcError as error:
                if not is_deleted(lakefs, repository, branch):
                    yield batch_of(OBSERVED_ADDRESSES, note=[finding_note("changes on branch", branch, error)])

    return tasks_from_ids(lambda: spark, "branch", branches, batch_size=1).mapped(read, OBSERVED_ADDRESSES)


def is_deleted(lakefs: LakeFS, repository: str, branch: str) -> bool:
    """Whether a branch was deleted since it was listed, so that it has no staged changes; False if that isn't known."""
    try:
        return not is_branch(lakefs, repository, branch)
    except LakegcError:
        return False


def changed_paths(lakefs: LakeFS, repository: str, branch: str, namespace: Namespace) -> Iterator[tuple[str, str]]:
    """The added and changed paths of a branch whose addresses are inside the namespace, each with its address."""
    paths = [change.path for change in whole_diff(lakefs, repository, branch) if change.type != "removed"]
    with ThreadPoolExecutor(max_workers=lakefs.settings.probe_requests) as pool:
        for path, served in zip(
            paths, pool.map(lambda path: lakefs.stat(repository, branch, path), paths), strict=True
        ):
            where, key = namespace.locate_reported(served.physical_address) if served else (Where.OUTSIDE, "")
            if where is Where.INSIDE:
                yield path, key


# --- stored ---------------------------------------------------------------------------------------------------------


def stored_addresses(spark: SparkSession, place: Place) -> DataFrame:
    """Everything that the store lists outside `_lakefs/`, as OBSERVED_ADDRESSES: live addresses may be in any
    folder."""
    store = place.store()
    folders = [folder for folder in folders_in(store, ROOT) if folder != TABLES]
    if DATA in folders:
        folders += folders_in(store, DATA)

    def read(batches: Batches) -> Batches:
        report = TaskReport()
        for folder in (folder for batch in batches for folder in batch.column(0).to_pylist()):
            for page in place.store().pages(folder, delimiter="/" if folder in (DATA, ROOT) else None):
                report.count(listed=len(page.objects), bytes_listed=sum(listed.size for listed in page.objects))
                yield batch_of(OBSERVED_ADDRESSES, address=[listed.key for listed in page.objects], listed=True)
        yield report_of("listing", report)

    # not on the driver, which would have to hold all objects of a large root folder
    return tasks_from_ids(lambda: spark, "folder", [ROOT, *folders], batch_size=1, max_on_driver=0).mapped(
        read, OBSERVED_ADDRESSES
    )


# --- comparison -----------------------------------------------------------------------------------------------------


def by_address(observed: DataFrame) -> DataFrame:
    """The distinct addresses and notes, with a flag for each input that contains them."""
    from pyspark.sql import functions as F

    flags: Iterator[Column] = (
        F.coalesce(F.max(name), F.lit(False)).alias(name) for name in ("listed", "committed", "staged")
    )
    return observed.groupBy("address", "note").agg(*flags)


def live_counts() -> dict[str, Column]:
    """Aggregates over the result of `by_address`: counts of live addresses, and of those that are not listed."""
    from pyspark.sql import functions as F

    is_address = F.col("note").isNull()
    return {
        "live_committed": F.count_if(is_address & F.col("committed")),
        "live_staged": F.count_if(is_address & F.col("staged")),
        "live": F.count_if(is_address & (F.col("committed") | F.col("staged"))),
        "not_listed": F.count_if(is_address & is_note_or_lost()),
    }


def is_note_or_lost() -> Column:
    """Whether a row is a task's note, or a live address missing from the listing."""
    from pyspark.sql import functions as F

    live = F.col("committed") | F.col("staged")
    return F.col("note").isNotNull() | (live & ~F.col("listed"))
