"""Watch other repositories while a round deletes: objects here that they come to refer to are live (invariant 1).

Tables count, whatever commit refers to them, as in a mark: a commit may be an ancestor of a head, have any date, or
have lost its branch before heads were listed. So the tables of a repository are listed when a round first checks it,
when it has a new head, and every minute. Those that the last re-verification didn't list are read. If there are many
repositories, they take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.other_repositories import (
    Others,
    Unread,
    heads_in,
    inside_keys,
    others,
    reading_of,
    tables_of,
    unreleased,
)
from lakegc_assets.rules.brakes import unread_in
from lakegc_assets.sweep.newly_retained import TooMuchChanged
from spark_resources import sstable
from spark_resources.errors import Unavailable
from spark_resources.lakefs.ranges import prefetched_tables
from spark_resources.mark_store.lease import boottime_s
from spark_resources.stores.place import Place

AT_A_TIME = 32  # repositories
TABLES_EVERY_S = 60.0  # how long the tables of a repository without a new head aren't listed again
OTHERS_LATE_S = 60.0  # how long deletes continue though other repositories can't be listed
MOST_TABLES = 3_000  # not read before, of one repository: some 20 seconds of work
MOST_ENTRIES = 10_000_000  # of these tables: seconds of work

Found = dict[str, pa.Array]  # the keys in this namespace by the table that contains them


@dataclass(slots=True)
class FailureTime:
    """How long failed requests have delayed the current cycle through other repositories, in seconds of a clock that
    only moves forward. Delays of several turns add up, because they all delay the repositories that come last."""

    _succeeded_at: float = 0.0
    _in_earlier_turns: float = 0.0

    def succeeded(self, ready_at: float, now: float, *, cycle_is_over: bool) -> None:
        """Record that a turn succeeded. `ready_at` is its beginning, less the usual pause between two turns: without
        failures, that is when the turn before ended."""
        delay = self._in_earlier_turns + max(0.0, ready_at - self._succeeded_at)
        self._succeeded_at, self._in_earlier_turns = now, 0.0 if cycle_is_over else delay

    def seconds(self, now: float) -> float:
        return self._in_earlier_turns + now - self._succeeded_at


@dataclass(slots=True)
class OtherHeads:
    """Reads new tables of other repositories under one re-verification (`run`, finished), in any number of rounds.
    Thread-safe: a check of a round that has ended may still be running.

    `known` are the heads that the re-verification covers, and those seen since.
    """

    run: MarkRun
    known: set[tuple[str, str]]
    _found: Found = field(default_factory=dict)
    _places: dict[str, Place] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)
    _listed_at: dict[tuple[str, str], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, run: MarkRun) -> OtherHeads:
        return cls(run, set(run.elsewhere.heads))

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
        """Pass to `keep` the keys in this namespace that new tables of the repositories next in turn contain.

        Raises `TooMuchChanged` for a repository with too many new tables or entries, before anything is kept. Raises
        `Unavailable` if one can't be read and isn't released, after what the others contain is kept. The next call then
        checks the same repositories again.
        """
        with self._lock:
            unread: Unread = {}
            if not self._waiting:
                listing = others(self.run)
                self._places, self._waiting = listing.places, sorted(listing.places)
                unread |= listing.unread
            turn = self._waiting[:AT_A_TIME]
            began = boottime_s()
            heads = {(repository, head) for repository, _, head in heads_in(self.run, turn, unread)}
            due = self._due(heads, began)
            found = self._read(due, unread)
            self._found |= found
            if found:
                keep(pc.unique(pa.concat_arrays([*found.values()])))
            for repository in sorted(unreleased(self.run, unread)):
                why = unread[repository]
                raise Unavailable(f"repository {repository} may refer to objects here and can't be read: {why}")
            self.known |= heads
            self._listed_at |= dict.fromkeys(map(self._where, due), began)
            self._waiting = self._waiting[len(turn) :]

    def _due(self, heads: Collection[tuple[str, str]], now: float) -> list[str]:
        """The repositories whose tables have to be listed now. One without any head was deleted or can't be read."""
        late = now - TABLES_EVERY_S
        return sorted(
            {
                repository
                for repository, head in heads
                if (repository, head) not in self.known or self._listed_at.get(self._where(repository), late) <= late
            }
        )

    def _where(self, repository: str) -> tuple[str, str]:
        """A repository and its namespace: one that was created again under the same name has other tables."""
        return repository, self._places[repository].namespace.uri

    def _read(self, repositories: Sequence[str], unread: Unread) -> Found:
        """Read the tables of these repositories that neither the re-verification nor an earlier check read."""
        found: Found = {}
        placed = tables_of(self.run, Others({each: self._places[each] for each in repositories}, unread=unread))
        if (listed := self.run.elsewhere.tables) is not None:
            placed = placed.filter(pc.invert(pc.is_in(placed["table_id"], value_set=listed)))
        released = unread_in(self.run.mark.record)
        for repository in pc.unique(placed["repository"]).to_pylist():
            ids = placed.filter(pc.equal(placed["repository"], repository))["table_id"].to_pylist()
            new = [one for one in ids if one not in self._found and one not in found]
            try:
                self._read_tables(repository, new, found, unread)
            except TooMuchChanged as error:
                if repository not in released:  # the re-verification read none of the tables of a released one
                    raise
                unread.setdefault(repository, str(error))
        return found

    def _read_tables(self, repository: str, ids: Sequence[str], found: Found, unread: Unread) -> None:
        """Add the keys in each of these tables to `found`. Tables that are damaged don't hide what others contain."""
        place, namespace, entries, size = self._places[repository], self.run.place.namespace, 0, 0
        if len(ids) > MOST_TABLES:
            raise TooMuchChanged(f"repository {repository} has {len(ids):,} new tables that have not been read")
        with reading_of(repository, unread):
            for table_id, data in prefetched_tables(place, ids, referrer=f"a commit of {repository}"):
                with reading_of(repository, unread):
                    size += len(data)
                    entries += sstable.read_properties(data, name=table_id).count
                    if entries > MOST_ENTRIES:
                        raise TooMuchChanged(
                            f"repository {repository} has new tables with more than {MOST_ENTRIES:,} entries"
                        )
                    found[table_id] = inside_keys(data, table_id, place, namespace, sstable.default_decoder(size))
