"""Watch branch heads while a round deletes, and keep the objects that new heads reach (invariant 1).

Heads are listed every few seconds. If there is a new head, the ranges of all newly retained commits are read
immediately, and no task deletes the objects in them; the next re-verification then rescues these objects. If there are
too many to pass to every task, or if rules or holds have changed, the round ends instead. To find commits that
no branch reaches, all commits are dumped before a round and every minute. Dumps and the heads of other repositories are
read by separate threads, because they take the server longer, and the heads of this repository must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.retained_commits import ASSET, HEADS_PART, dumped_graph
from lakegc_assets.progress import LogMessage
from lakegc_assets.sweep.context import SweepRun, Verified
from lakegc_assets.sweep.newly_retained import NewlyRetained, TooManyChanges, changed_branches, changes_in_words
from lakegc_assets.sweep.other_head_watch import MAX_OTHERS_DELAY_S, FailureTime, OtherHeads
from spark_resources import sstable
from spark_resources.deleting.permit import PermitIssuer, permit_duration
from spark_resources.errors import LakegcError, Unavailable, capitalized, full_stop
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.ranges import Ref, address_batches, check_all_read, decoder_for, prefetched_tables
from spark_resources.mark_store.lease import boottime_s
from spark_resources.model import COMMIT_VERDICTS, HEADS, RANGE_REFS
from spark_resources.spark.datasets import all_rows
from spark_resources.spark.task_report import TaskReport
from spark_resources.stores.place import Place

COMMITTED, RANGES_PART = "committed_addresses", "ranges"
DUMP_INTERVAL_S = 60.0  # minimum pause between two dumps of all commits
DUMP_PAUSE_FACTOR = 10.0  # the pause is at least this many times as long as the last dump took
MAX_DUMP_DELAY_S = 300.0  # how long deletes continue while dumps fail
MAX_ENTRIES = 500_000  # in newly read ranges, per re-verification; every task holds their addresses in memory


def verified_ranges_and_commits(run: MarkRun) -> Verified:
    """The commits and ranges of a finished re-verification, including the ranges that the approved mark had read."""
    verdicts = run.rows(ASSET, COMMIT_VERDICTS)
    commits = {row["commit_id"] for row in verdicts if row["retained"]}
    commits |= {row["commit_id"] for row in run.rows(ASSET, HEADS, HEADS_PART)}
    manifest = all_rows(run.place, run.mark.dataset(COMMITTED, RANGES_PART), RANGE_REFS)
    range_ids = pa.array([row["range_id"] for row in manifest], pa.string())
    trusted = pa.array([], pa.string()) if run.trusted_ranges is None else run.trusted_ranges
    return Verified(frozenset(commits), pa.concat_arrays([range_ids, trusted]), run)


@dataclass(slots=True)
class HeadWatch:
    """Watches which objects become live after a re-verification, round by round, and renews the permit of the tasks as
    long as it can. Objects that one round keeps are also kept by later rounds under the same re-verification.

    `ranges` are the ids of the ranges whose addresses are already kept. `failure` is the reason why the last listing
    failed, "" if it succeeded; `fault` is an unexpected error that ended the watch. `moved` is set once the repository
    has changed in a way that the re-verification doesn't cover, so objects may be left for the next one.
    `newly_retained` finds newly retained commits, `others` new heads and tables of other repositories; both are None
    for a sweep without a re-verification. `expires_s` is when the re-verification expires, by this machine's monotonic
    clock: no permit is granted from then on, even if the store's clock was set back.
    """

    repository: str
    place: Place
    lakefs: LakeFS
    ranges: pa.Array
    interval: timedelta
    log_message: LogMessage
    newly_retained: NewlyRetained | None = None
    others: OtherHeads | None = None
    expires_s: float = float("inf")
    failure: str = ""
    fault: Exception | None = None
    moved: bool = False
    _permit: PermitIssuer | None = None
    _became_live: list[pa.Array] = field(default_factory=list)
    _entries: int = 0  # in the ranges read so far
    _dump_due_at: float = 0.0
    _dump_failure: str = ""
    _keeps_dumped_objects: bool = True  # whether the objects of all commits in the last dump are kept
    _others_failure: str = ""
    _others_delay: FailureTime = field(default_factory=FailureTime)
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, run: SweepRun, verified: Verified) -> HeadWatch:
        inner = verified.run
        return cls(
            run.partition.repository,
            run.place,
            run.lakefs,
            verified.ranges,
            run.limits.head_check_interval,
            run.log_message,
            None if inner is None else NewlyRetained.of(inner, verified.commits),
            None if inner is None else OtherHeads.of(inner),
            verified.started_s + run.limits.verification_age.total_seconds(),
        )

    @contextmanager
    def during(self, permit: PermitIssuer) -> Iterator[HeadWatch]:
        """Watch while a round runs. Raises the errors of the first listings, and any unexpected error that ended the
        watch."""
        self._permit, self._ended, self.failure = permit, threading.Event(), ""
        if self._became_live:
            permit.exclude(pa.concat_arrays(self._became_live))
        self.list_all_others()
        self.dump_commits()
        self.check_heads()
        threads = [
            threading.Thread(target=self._watch, args=(check, record_failure), name="lakegc-heads", daemon=True)
            for check, record_failure in (
                (self.check_heads, self._record_failure),
                (self.dump_commits, self._record_dump_failure),
                (self.list_other_heads, self._record_others_failure),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join(timeout=30)
            with suppress(LakegcError):  # harmless: the permit expires anyway
                permit.stop("the round has ended")
        if self.fault is not None:
            raise self.fault

    @property
    def permit(self) -> PermitIssuer:
        assert self._permit is not None, "only while a round runs"
        return self._permit

    def check_heads(self) -> None:
        """List the heads once, keep the objects that they reach, and renew the permit.

        Raises the error of a failed request, and `Unavailable` if the last dump of commits is too old, if the objects
        of its new commits aren't kept yet, or if the heads of other repositories could not be listed in time.
        """
        if self.permit.is_stopped:
            return
        if boottime_s() >= self.expires_s:
            self.permit.stop("the last re-verification of these objects is too old")
            return
        started_at = self.place.store().now()
        with self._stopping_if_too_much(), self._lock:
            self._list_heads()
            self._refuse_if_late()
            # under the lock, so that no dump has paused the permit since the check
            self.permit.grant(started_at + permit_duration(self.interval))

    def _refuse_if_late(self) -> None:
        """Raise `Unavailable` if the other threads have gone too long without a result for deletes to continue."""
        if not self._keeps_dumped_objects:
            raise Unavailable(
                f"the objects of new commits of {self.repository} could not be read yet. {self._dump_failure}".strip()
            )
        if self.newly_retained is not None and boottime_s() > self._dump_due_at + MAX_DUMP_DELAY_S:
            raise Unavailable(
                f"no dump of the commits of {self.repository} has succeeded in the last few minutes. "
                f"{self._dump_failure}".strip()
            )
        if self.others is not None and self._others_delay.seconds(boottime_s()) > MAX_OTHERS_DELAY_S:
            raise Unavailable(
                "listing the heads of other repositories has been failing for over a minute. "
                f"{self._others_failure}".strip()
            )

    def dump_commits(self) -> None:
        """If a dump is due, keep the objects of commits that no branch reaches. Raises the error of a failed
        request."""
        if self.newly_retained is None or self.permit.is_stopped or boottime_s() < self._dump_due_at:
            return
        started = boottime_s()
        dumped = dumped_graph(self.newly_retained.run)
        with self._stopping_if_too_much(), self._lock:
            if dumped is not None and (commits := self.newly_retained.commits_of(dumped)):
                self._keeps_dumped_objects = False
                self._keep_newly_retained(commits, "there are new commits on no branch")
                self.newly_retained.add(self.newly_retained.branches, commits)
            self._keeps_dumped_objects = True
        self._dump_due_at = started + max(DUMP_INTERVAL_S, DUMP_PAUSE_FACTOR * (boottime_s() - started))

    def list_all_others(self) -> None:
        """List the heads and tables of all other repositories before the first permit of a round."""
        if self.others is not None:
            self.others.begin_round()
            self.list_other_heads()
            while self.others.has_waiting and not self.permit.is_stopped:
                self.list_other_heads()

    def list_other_heads(self) -> None:
        """List the heads of the next few other repositories, and keep the objects to which their new tables refer.

        Raises the error of a failed request.
        """
        if self.others is None or self.permit.is_stopped:
            return
        started = boottime_s()
        with self._stopping_if_too_much():
            self.others.check_next(self._keep_referenced)
            pause = self.interval.total_seconds()
            self._others_delay.succeeded(started - pause, boottime_s(), cycle_is_over=not self.others.has_waiting)
            self._others_failure = ""

    def _keep_referenced(self, keys: pa.Array) -> None:
        if len(keys):
            self.moved = True
            self._exclude(keys)
            self.log_message("objects of this repository that new tables of other repositories refer to are kept")

    def _watch(self, check: Callable[[], None], record_failure: Callable[[str], None]) -> None:
        while not self._ended.wait(self.interval.total_seconds()):
            try:
                check()
                record_failure("")
            except LakegcError as error:
                record_failure(str(error))  # harmless: the permit expires anyway
            except Exception as error:  # a bug in lakegc: stop all deletes and fail the round
                self.fault = error
                with suppress(LakegcError):
                    self.permit.stop(f"{type(error).__name__}: {error}")
                return

    def _record_failure(self, why: str) -> None:
        self.failure = why

    def _record_dump_failure(self, why: str) -> None:
        self._dump_failure = why

    def _record_others_failure(self, why: str) -> None:
        self._others_failure = why

    def _stop(self, why: str) -> None:
        self.log_message(f"{capitalized(full_stop(why))} Deleting pauses until the mark is re-verified.")
        self.permit.stop(why)

    @contextmanager
    def _stopping_if_too_much(self) -> Iterator[None]:
        """End the round if only a re-verification can determine what is live."""
        try:
            yield
        except TooManyChanges as error:
            self.moved = True
            self._stop(str(error))

    def _exclude(self, keys: pa.Array) -> None:
        """Keep these objects in this round and in the next ones under the same re-verification."""
        self._became_live.append(keys)
        self.permit.exclude(keys)

    def _list_heads(self) -> None:
        """List the heads, and keep the objects of newly retained commits, in ranges that were not read before. Raises
        `TooManyChanges` if rules or holds have changed, or if there is too much to read."""
        branches = self.lakefs.branches(self.repository)
        if self.newly_retained is None:
            return
        self.newly_retained.refuse_changes()
        if not (changed := changed_branches(self.newly_retained.branches, branches)):
            return
        commits = self.newly_retained.commits(branches)
        self._keep_newly_retained(commits, changes_in_words(changed))
        self.newly_retained.add(branches, commits)

    def _keep_newly_retained(self, commits: set[str], cause: str) -> None:
        """Keep the objects of these newly retained commits, in ranges that were not read before. `cause` is a clause
        for messages. Raises `TooManyChanges` if there is too much to read."""
        if not commits or self.newly_retained is None:
            return
        self.permit.pause()
        self.moved = True
        refs = self._unread_ranges(
            sorted({self.newly_retained.graph[commit_id].metarange_id for commit_id in commits} - {""})
        )
        self._entries += sum(int(ref["entries"]) for ref in refs)
        if self._entries > MAX_ENTRIES:
            raise TooManyChanges(
                f"{cause}: {self._entries:,} new entries would have to be read, but at most {MAX_ENTRIES:,} can be "
                "read while deleting"
            )
        if refs:
            self._exclude(self._addresses(refs))
            self.log_message(f"{cause}: newly retained objects are kept")
        self.ranges = pa.concat_arrays([self.ranges, pa.array([ref["range_id"] for ref in refs], pa.string())])

    def _unread_ranges(self, metaranges: Sequence[str]) -> list[Ref]:
        """The distinct ranges of these metaranges that have not been read yet (rows of RANGE_REFS)."""
        refs_by_id: dict[str, Ref] = {}
        for name, data in prefetched_tables(self.place, metaranges, referrer="a new branch head"):
            for ref in sstable.read_verified_ranges(data, name=name):
                row = (ref.id, ref.count, ref.min_key, ref.max_key)
                refs_by_id[ref.id] = dict(zip(RANGE_REFS.names, row, strict=True))
        ids = pa.array(list(refs_by_id), pa.string())
        unread = ids.filter(pc.invert(pc.is_in(ids, value_set=self.ranges)))
        return [refs_by_id[range_id] for range_id in unread.to_pylist()]

    def _addresses(self, refs: Sequence[Ref]) -> pa.Array:
        report = TaskReport()
        parts = [keys for _, keys, _ in address_batches(self.place, refs, report, decoder_for(refs))]
        check_all_read(report, ranges=len(refs), entries=sum(int(ref["entries"]) for ref in refs))
        return pc.unique(pa.chunked_array(parts, pa.string()))
