"""Watch other repositories while a round deletes: objects of this repository that they start to
reference are live (invariant 1).

As in a mark, all tables count, whichever commit refers to them: a commit may be an ancestor of a head, have any
date, or have lost its branch before heads were listed. So the tables of a repository are listed when a round first
checks it, whenever it has a new head, and every minute. Tables that the last re-verification didn't list are read.
If there are many repositories, they take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.other_repositories import (
    OtherRepositories,
    UnreadRepositories,
    branch_heads,
    entries_of,
    inside_keys,
    list_other_repositories,
    recording_unread,
    tables_of,
    unreleased,
)
from lakegc_assets.rules.brakes import unread_repositories_in
from lakegc_assets.sweep.newly_retained import TooManyChanges
from spark_resources import sstable
from spark_resources.errors import Unavailable, full_stop
from spark_resources.lakefs.ranges import prefetched_tables
from spark_resources.mark_store.lease import boottime_s
from spark_resources.stores.place import Place

REPOSITORIES_PER_TURN = 32
TABLES_INTERVAL_S = 60.0  # pause between listings of the tables of a repository without a new head
MAX_OTHERS_DELAY_S = 60.0  # how long deletes continue while other repositories can't be listed
MAX_TABLES = 3_000  # new tables per repository; reading them takes some 20 seconds
MAX_ENTRIES = 10_000_000  # in these tables; decoding them takes seconds

KeysByTable = dict[str, pa.Array]  # keys in this namespace, by the id of the table that contains them


@dataclass(slots=True)
class FailureTime:
    """How long failed requests have delayed the current cycle through the other repositories, in seconds of a monotonic
    clock. The delays of several turns add up, because each of them delays the repositories that come last."""

    _succeeded_at: float = 0.0
    _in_earlier_turns: float = 0.0

    def succeeded(self, ready_at: float, now: float, *, cycle_is_over: bool) -> None:
        """Record that a turn succeeded. `ready_at` is its beginning minus the usual pause between two turns, which
        without failures is the end of the previous turn."""
        delay = self._in_earlier_turns + max(0.0, ready_at - self._succeeded_at)
        self._succeeded_at, self._in_earlier_turns = now, 0.0 if cycle_is_over else delay

    def seconds(self, now: float) -> float:
        return self._in_earlier_turns + now - self._succeeded_at


@dataclass(slots=True)
class OtherHeads:
    """Reads new tables of other repositories under one re-verification (`run`, finished), in any number of rounds.
    Thread-safe, because a check from a previous round may still be running.

    `known` are the heads that the re-verification covers, and those seen since.
    """

    run: MarkRun
    known: set[tuple[str, str]]
    _keys_by_table: KeysByTable = field(default_factory=dict)
    _places: dict[str, Place] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)
    _listed_at: dict[tuple[str, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, run: MarkRun) -> OtherHeads:
        return cls(run, set(run.other_repositories.heads))

    def begin_round(self) -> None:
        """Begin a cycle through all repositories, in which the tables of each are listed again."""
        with self._lock:
            self._listed_at.clear()
            self._waiting = []

    @property
    def has_waiting(self) -> bool:
        """Whether the current cycle has repositories left."""
        return bool(self._waiting)

    def check_next(self, keep: Callable[[pa.Array], None]) -> None:
        """Check the repositories whose turn it is: pass to `keep` the keys in this namespace that their new tables
        contain.

        Raises `TooManyChanges` before anything is kept if a repository has too many new tables or entries. Raises
        `Unavailable` if a repository can't be read and isn't released, after the keys from the others were kept. In
        both cases the next call checks the same repositories again.
        """
        with self._lock:
            unread: UnreadRepositories = {}
            if not self._waiting:
                listing = list_other_repositories(self.run)
                self._places, self._waiting = listing.places, sorted(listing.places)
                unread |= listing.unread
            turn = self._waiting[:REPOSITORIES_PER_TURN]
            started = boottime_s()
            heads = {(repository, head) for repository, _, head in branch_heads(self.run, turn, unread)}
            due = self._due(heads, started)
            new_keys = self._read(due, unread)
            self._keys_by_table |= new_keys
            if new_keys:
                keep(pc.unique(pa.concat_arrays([*new_keys.values()])))
            for repository in sorted(unreleased(self.run, unread)):
                why = unread[repository]
                raise Unavailable(
                    f"repository {repository} may refer to objects of the marked repository and can't be read: "
                    f"{full_stop(why)} Run the same command again when that repository can be read."
                )
            self.known |= heads
            self._listed_at |= dict.fromkeys(map(self._with_namespace, due), started)
            self._waiting = self._waiting[len(turn) :]

    def _due(self, heads: Collection[tuple[str, str]], now: float) -> list[str]:
        """The repositories whose tables must be listed now. One without a head isn't among them: it was deleted or
        can't be read."""
        threshold = now - TABLES_INTERVAL_S
        return sorted(
            {
                repository
                for repository, head in heads
                if (repository, head) not in self.known
                or self._listed_at.get(self._with_namespace(repository), threshold) <= threshold
            }
        )

    def _with_namespace(self, repository: str) -> tuple[str, str]:
        """A repository and its namespace, because a repository that was recreated under the same name has different
        tables."""
        return repository, self._places[repository].namespace.uri

    def _read(self, repositories: Sequence[str], unread: UnreadRepositories) -> KeysByTable:
        """The keys in this namespace by table, read from those tables of these repositories that neither the
        re-verification nor an earlier check read."""
        keys_by_table: KeysByTable = {}
        tables = tables_of(
            self.run,
            OtherRepositories({repository: self._places[repository] for repository in repositories}, unread=unread),
        )
        if (listed := self.run.other_repositories.tables) is not None:
            tables = tables.filter(pc.invert(pc.is_in(tables["table_id"], value_set=listed)))
        unread_before = unread_repositories_in(self.run.mark.record)
        for repository in pc.unique(tables["repository"]).to_pylist():
            ids = tables.filter(pc.equal(tables["repository"], repository))["table_id"].to_pylist()
            new = [
                table_id for table_id in ids if table_id not in self._keys_by_table and table_id not in keys_by_table
            ]
            try:
                self._read_tables(repository, new, keys_by_table, unread)
            except TooManyChanges as error:
                if repository not in unread_before:  # otherwise, the re-verification didn't read its tables
                    raise
                unread.setdefault(repository, str(error))
        return keys_by_table

    def _read_tables(
        self, repository: str, ids: Sequence[str], keys_by_table: KeysByTable, unread: UnreadRepositories
    ) -> None:
        """Add the keys in each table to `keys_by_table`. A damaged table doesn't hide what the others contain."""
        place, namespace, entries, size = self._places[repository], self.run.place.namespace, 0, 0
        if len(ids) > MAX_TABLES:
            raise TooManyChanges(
                f"repository {repository} has {len(ids):,} new tables, too many to read while deleting"
            )
        with recording_unread(repository, unread):
            for table_id, data in prefetched_tables(place, ids, referrer=f"a commit of {repository}"):
                with recording_unread(repository, unread):
                    size += len(data)
                    entries += sstable.read_properties(data, name=table_id).count
                    if entries > MAX_ENTRIES:
                        raise TooManyChanges(
                            f"the new tables of repository {repository} have more than {MAX_ENTRIES:,} entries, too "
                            "many to read while deleting"
                        )
                    decoder = sstable.default_decoder(size)
                    keys_by_table[table_id] = inside_keys(entries_of(data, table_id, place, decoder), namespace)
