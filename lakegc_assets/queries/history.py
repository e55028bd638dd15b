"""What a finished mark recorded about its repository: the basis of every query.

Queries read only the files of marks and the repository's immutable tables. They request nothing from the server but the
repository's location, unless a query says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark import commit_graph, holds_in_force, listed_objects
from lakegc_assets.mark.context import Graph, Limits, MarkRun, find_target
from lakegc_assets.mark.mark_chain import ADDRESSES, RANGES, UNREADABLE, MarkChain, can_be_base, rows_of
from lakegc_assets.mark.metaranges import RecordedRanges
from lakegc_assets.mark.retained_commits import HEADS_PART, with_earlier_heads
from lakegc_assets.progress import publish
from lakegc_assets.rules.holds import NamedCommit, References, commits_on_hold, with_holds
from lakegc_assets.rules.holds import in_force as holds_that_apply
from lakegc_assets.rules.retention import Reason, Verdict, commit_verdicts, with_server_list
from spark_resources.errors import NotFound, Refused, WrongUsage, full_stop
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.ranges import metarange_reader, metarange_tasks, range_number
from spark_resources.mark_store.hold_file import Hold
from spark_resources.mark_store.holds import read_holds_of_any_version
from spark_resources.mark_store.mark import Mark, marks
from spark_resources.mark_store.record import MarkRecord, finished_at, refuse_earlier_format, refuse_retired
from spark_resources.model import (
    COMMIT_VERDICTS,
    HEADS,
    METARANGE_RANGES,
    RANGE_ADDRESSES,
    RANGE_REFS,
    STORED_OBJECTS,
    TAGS,
    Partition,
    Rules,
    Scope,
    check_mark_id,
)
from spark_resources.settings import Settings
from spark_resources.spark.arrow_shuffle import Input
from spark_resources.spark.datasets import Dataset
from spark_resources.spark.tasks import Tasks
from spark_resources.stores.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATEST, THREADS = "latest", 4


class Recorded(Enum):
    """Stands for what the mark recorded, as the default of parameters for which None is a value."""

    RULES = "the rules that the mark recorded"


@dataclass(frozen=True)
class History:
    """A finished mark and the earlier marks that it is based on.

    `run` gives the functions of `lakegc_assets.mark` access to the mark's files. Its mark is finished, so no step can
    change it.
    """

    run: MarkRun

    @property
    def mark(self) -> Mark:
        return self.run.mark

    @property
    def record(self) -> MarkRecord:
        return self.run.mark.record

    @property
    def repository(self) -> str:
        """The repository's name, as in commands and in requests to the server."""
        return self.run.partition.repository

    @property
    def place(self) -> Place:
        return self.run.place

    @cached_property
    def chain(self) -> MarkChain:
        """The earlier marks that an incremental mark is based on; empty for a full mark.

        Raises `Refused` if one of them can no longer be read.
        """
        if not self.record.is_incremental:
            return MarkChain.of_full(self.run)
        try:
            return MarkChain.recorded(self.run)
        except UNREADABLE as error:
            raise Refused(
                f"mark {self.record.mark_id} of {self.repository} is incremental, and an earlier mark that it is based "
                f"on can't be read: {full_stop(str(error))} Make a new mark with --full."
            ) from error

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The mark and those of its chain, newest first."""
        return (self.mark, *self.chain.marks)

    # --- commits ----------------------------------------------------------------------------------------------------

    @cached_property
    def verdicts(self) -> pa.Table:
        """The mark's verdict on every commit that it knew (COMMIT_VERDICTS)."""
        rows = self.run.rows("retained_commits", COMMIT_VERDICTS)
        return pa.Table.from_pylist(rows, schema=COMMIT_VERDICTS)

    @cached_property
    def commits(self) -> Graph:
        """Every commit that the mark knew. Raises `Refused` if it didn't record them."""
        if not commit_graph.has_graph(self.mark):
            raise Refused(
                f"mark {self.record.mark_id} of {self.repository} was made by an earlier version of lakegc, "
                "which didn't record the commit graph. Make a new mark."
            )
        return commit_graph.recorded_graph(self.mark)

    @cached_property
    def heads(self) -> frozenset[tuple[str, str]]:
        """Each branch with its head, as read before and after the server prepared its list: a branch that moved in
        between occurs twice."""
        return frozenset(
            (row["branch"], row["commit_id"]) for row in self.run.rows("retained_commits", HEADS, HEADS_PART)
        )

    @cached_property
    def tags(self) -> frozenset[NamedCommit]:
        """The tags with their commits; empty unless a hold refers to tags."""
        part = holds_in_force.TAGS_PART
        return frozenset((row["tag"], row["commit_id"]) for row in self.run.rows("retained_commits", TAGS, part))

    @cached_property
    def holds(self) -> tuple[Hold, ...]:
        """The holds that the mark used, without those that had expired. Raises `Refused` if the holds have changed
        since then."""
        current = read_holds_of_any_version(self.place, self.run.target.configured_holds)
        if current.sha256 != self.record.holds["sha256"]:
            raise Refused(
                f"the holds of {self.repository} were changed after mark {self.record.mark_id} was made, so what its "
                "holds kept isn't known. Make a new mark."
            )
        return holds_that_apply(current.holds, self.record.server_now)

    def verdicts_with(
        self,
        *,
        heads: Collection[tuple[str, str]] | None = None,
        tags: Collection[NamedCommit] | None = None,
        rules: Rules | Recorded | None = Recorded.RULES,
        holds: Iterable[Hold] | None = None,
    ) -> list[Verdict]:
        """The verdict on every commit, sorted by id, if the repository had had these heads, tags, rules and holds at
        the time of the mark; by default, those that the mark recorded.

        Commits that only the server's list retained stay retained, because lakegc doesn't know why the server lists
        them.
        """
        heads = self.heads if heads is None else heads
        tags = self.tags if tags is None else tags
        rules = self.record.rules if isinstance(rules, Recorded) else rules
        holds = self.holds if holds is None else tuple(holds)
        now = self.record.server_now
        first, last = self._snapshots(heads)
        verdicts = commit_verdicts(self.commits.values(), last, rules, now=now)
        verdicts = with_server_list(verdicts, self.retained_by_server_only)
        verdicts = with_earlier_heads(verdicts, first, self.commits)
        on_hold = commits_on_hold(holds, self.commits, References((first, last), tags), rules, now=now)
        return with_holds(verdicts, on_hold)

    @cached_property
    def on_hold(self) -> frozenset[str]:
        """The commits that holds retain, whether or not the rules do."""
        first, last = self._snapshots(self.heads)
        references, now = References((first, last), self.tags), self.record.server_now
        return frozenset(commits_on_hold(self.holds, self.commits, references, self.record.rules, now=now))

    @staticmethod
    def _snapshots(heads: Collection[tuple[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
        """Two maps of branches to heads that together have all of these pairs."""
        return dict(sorted(heads)), dict(sorted(heads, reverse=True))

    @cached_property
    def retained_by_server_only(self) -> list[tuple[str, str]]:
        """The commits that no known rule retained but the server's list did, each with its metarange."""
        rows = self.verdicts.filter(pc.equal(self.verdicts["reason"], Reason.SERVER.value))
        return list(zip(rows["commit_id"].to_pylist(), rows["metarange_id"].to_pylist(), strict=True))

    # --- ranges -----------------------------------------------------------------------------------------------------

    @cached_property
    def recorded_ranges(self) -> RecordedRanges:
        """The metaranges and ranges that the mark and its chain read."""
        return RecordedRanges.of(self.run, self.chain)

    def ranges_of(self, metaranges: Collection[str]) -> pa.Table:
        """The ranges of these metaranges (METARANGE_RANGES). Metaranges that no mark recorded, such as those of expired
        commits, are read from the store."""
        wanted = set(metaranges) - {""}
        known = wanted & self.recorded_ranges.metaranges
        tasks = metarange_tasks(self.run.spark, sorted(wanted - known))
        read = tasks.collected(metarange_reader(self.place), METARANGE_RANGES)
        return pa.concat_tables([self.recorded_ranges.ranges_by_metarange(known), read])

    @cached_property
    def metaranges(self) -> frozenset[str]:
        """The metaranges of all commits that the mark knew."""
        return frozenset(self.verdicts["metarange_id"].to_pylist()) - {""}

    @cached_property
    def unrecorded_metaranges(self) -> list[str]:
        """The metaranges that no mark recorded, such as those of expired commits."""
        return sorted(self.metaranges - self.recorded_ranges.metaranges)

    @cached_property
    def unrecorded_ranges(self) -> pa.Table:
        """The ranges in `unrecorded_metaranges` (METARANGE_RANGES), read in this process."""
        tasks = in_threads(self.run, pa.table({"metarange_id": pa.array(self.unrecorded_metaranges, pa.string())}))
        return tasks.collected(metarange_reader(self.place), METARANGE_RANGES)

    @cached_property
    def live_ranges(self) -> Mapping[int, dict[str, object]]:
        """The ranges that counted as committed in the mark (rows of RANGE_REFS), by the number that stands for the
        range in datasets of RANGE_ADDRESSES."""
        return {range_number(row["range_id"]): row for row in rows_of(self.mark, RANGES, RANGE_REFS)}

    @property
    def address_datasets(self) -> list[Dataset]:
        """The datasets with the addresses of every range that the marks read (RANGE_ADDRESSES), including ranges that
        are no longer live."""
        return [mark.dataset(*ADDRESSES) for mark in self.marks]

    def addresses_in(self, name: str, ranges: Collection[int]) -> Input:
        """The addresses in these ranges, given by their numbers, as an input to co-group (RANGE_ADDRESSES)."""
        range_numbers = pa.array(sorted(ranges), pa.int64())

        def select(table: pa.Table) -> pa.Table:
            return table.filter(pc.is_in(table["range"], value_set=range_numbers))

        return Input.selected(name, self.place, self.address_datasets, RANGE_ADDRESSES, RANGE_ADDRESSES, select)

    # --- stored objects ---------------------------------------------------------------------------------------------

    @property
    def stored_datasets(self) -> list[Dataset]:
        """The datasets with the objects that the mark and its chain listed (STORED_OBJECTS), newest first. An object
        may be in several of them, and objects that only earlier marks listed may have been deleted since then."""
        return [dataset for mark in self.marks for dataset in listed_objects.datasets(self.reading(mark))]

    def stored(self, name: str) -> Input:
        """All rows of `stored_datasets`, as an input to co-group."""
        return Input.whole(name, self.place, self.stored_datasets, STORED_OBJECTS)

    def reading(self, mark: Mark) -> MarkRun:
        """A run to read the files of another mark of the chain."""
        return replace(self.run, mark=mark)

    def refuse_unless_complete(self, query: str) -> None:
        """Raise `Refused` unless the mark knows every commit and every stored object, as `query` needs."""
        if not can_be_base(self.run):
            raise Refused(
                f"{query} needs a mark that knows every commit and object, but mark {self.record.mark_id} of "
                f"{self.repository} has the scope '{self.record.scope}', and the commit graph "
                f"{'was' if self.run.mark.record.step('retained_commits').facts['graph'] else 'could not be'} read. "
                f"Make a mark with the scope '{Scope.UNIFIED}' and with credentials that are permitted to dump "
                "references."
            )


def in_threads(run: MarkRun, rows: pa.Table) -> Tasks:
    """These rows in a few tasks that this process runs in threads. Starting Spark would take longer than the work."""
    size = max(-(-len(rows) // THREADS), 1)
    pieces = [rows.slice(offset, size) for offset in range(0, len(rows), size)]
    return Tasks(run.spark, rows.schema, pieces, max_on_driver=THREADS)


# --- opening --------------------------------------------------------------------------------------------------------


def open_history(
    lakefs: LakeFS,
    settings: Settings,
    repository: str,
    mark_id: str = LATEST,
    *,
    spark: Callable[[], SparkSession],
) -> History:
    """Open a finished mark for queries; `latest` is the newest one, of the scope `unified` if there is one.

    Raises `NotFound` if there is no such mark, `WrongUsage` if it isn't finished, `Retired` if it was retired,
    `Refused` if an earlier version of lakegc made it, and the errors of `find_target`.
    """
    target = find_target(lakefs, repository, settings)
    name = newest_mark(target.place, repository) if mark_id == LATEST else check_mark_id(mark_id)
    mark = Mark.open(target.place, name)
    refuse_retired(mark.record)
    if mark.record.finished is None:
        reason = f": {mark.record.failure}" if mark.record.failure else ""
        problem = full_stop(f"mark {name} of {repository} is not finished ({mark.record.state}){reason}")
        raise WrongUsage(f"{problem} To list the marks: lakegc status {repository}")
    refuse_earlier_format(mark.record, "queried")
    limits = Limits(missing=0, probes=0, trusted=settings.trusted_repositories)
    return History(MarkRun(Partition.of(repository, name), target, mark, lakefs, spark, limits, publish))


def newest_mark(place: Place, repository: str) -> str:
    """The id of the newest finished mark, of the scope `unified` if there is one. Raises `NotFound` if there is
    none."""
    finished = [record for record in marks(place) if record.finished is not None]
    if not finished:
        raise NotFound(
            f"{repository} has no finished mark, so nothing is known yet. To make one: lakegc mark {repository}"
        )
    return max(finished, key=lambda record: (record.scope is Scope.UNIFIED, finished_at(record))).mark_id
