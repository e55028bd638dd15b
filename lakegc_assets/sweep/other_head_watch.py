"""Watch heads of other repositories while a round deletes: objects here that they reach are live (invariant 1).

A table that was listed for the last re-verification was read then, whichever commit refers to it. Only the other
tables of a new head, and of new commits behind it, have to be read. If there are many repositories, they are listed in
turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.other_repositories import Unread, heads_in, inside_keys, others, reading_of, unreleased
from lakegc_assets.mark.path_probes import unless_gone
from spark_resources import sstable
from spark_resources.errors import LakegcError, Unavailable
from spark_resources.lakefs.ranges import read_table
from spark_resources.model import Commit
from spark_resources.sstable import RangeRef
from spark_resources.stores.place import Place

AT_A_TIME = 32  # repositories
MOST_ENTRIES = 10_000_000  # of one head in tables not read before: seconds of work
MOST_COMMITS = 1_000  # behind one head


class TooMuch(LakegcError):
    """Raised when a new head reaches more than can be read while a round waits."""


@dataclass(slots=True)
class OtherHeads:
    """Lists the heads of other repositories. `run` is the finished re-verification; `known` are the heads that it
    covers, and those read since."""

    run: MarkRun
    known: set[tuple[str, str]]
    _places: dict[str, Place] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: MarkRun) -> OtherHeads:
        return cls(run, set(run.elsewhere.heads))

    @property
    def waiting(self) -> bool:
        """Whether repositories are left in the present turn."""
        return bool(self._waiting)

    def begin_round(self) -> None:
        self._waiting = []

    def look(self) -> pa.Array:
        """The keys in this namespace that new heads of the repositories next in turn reach in tables not read before.

        Raises `Unavailable` if a repository can't be read and isn't released, `TooMuch` for a head that reaches too
        many entries or new commits.
        """
        unread: Unread = {}
        if not self._waiting:
            found = others(self.run)
            self._places, self._waiting = found.places, sorted(found.places)
            unread |= found.unread
        turn = self._waiting[:AT_A_TIME]
        heads = {(repository, head) for repository, _, head in heads_in(self.run, turn, unread)}
        keys = [self._reached(*head, unread) for head in sorted(heads - self.known)]
        for repository in sorted(unreleased(self.run, unread)):
            why = unread[repository]
            raise Unavailable(f"repository {repository} may refer to objects here, and can't be read: {why}")
        self.known |= heads
        self._waiting = self._waiting[len(turn) :]
        return pa.concat_arrays([pa.array([], pa.string()), *keys])

    def _reached(self, repository: str, head: str, unread: Unread) -> pa.Array:
        place, namespace = self._places[repository], self.run.place.namespace
        keys = [pa.array([], pa.string())]
        with reading_of(repository, unread), unless_gone(self.run.lakefs, repository):
            refs = self._unread_ranges(repository, head)
            entries = sum(ref.count for ref in refs)
            if entries > MOST_ENTRIES:
                raise TooMuch(f"repository {repository} has a new head with {entries:,} entries that nobody read yet")
            for ref in refs:
                data = read_table(place, ref.id, needed_by=f"a head of {repository}")
                keys.append(inside_keys(data, ref.id, place, namespace, sstable.default_decoder(len(data))))
        return pa.concat_arrays(keys)

    def _unread_ranges(self, repository: str, head: str) -> list[RangeRef]:
        """The distinct ranges not read before of a new head, and of the commits behind it that are new, too: those with
        such a range, or a date since the re-verification began. They are live, although no branch ends there."""
        since, found, seen, waiting = self.run.mark.record.server_now, dict[str, RangeRef](), {head}, [head]
        while waiting:
            commit = self.run.lakefs.commit(repository, waiting.pop())
            refs = self._unread_of(self._places[repository], commit)
            found |= {ref.id: ref for ref in refs}
            if refs or commit.created >= since:
                before = {one for one in commit.parents if (repository, one) not in self.known} - seen
                seen |= before
                waiting += sorted(before)
            if len(seen) > MOST_COMMITS:
                raise TooMuch(f"repository {repository} has a new head with more than {MOST_COMMITS:,} new commits")
        return list(found.values())

    def _unread_of(self, place: Place, commit: Commit) -> list[RangeRef]:
        """The ranges of a commit that the re-verification didn't list."""
        if not commit.metarange_id:
            return []
        data = read_table(place, commit.metarange_id, needed_by=f"commit {commit.id}")
        refs = sstable.read_proven_ranges(data, name=commit.metarange_id)
        listed, ids = self.run.elsewhere.tables, pa.array([ref.id for ref in refs], pa.string())
        read = set() if listed is None else set(ids.filter(pc.is_in(ids, value_set=listed)).to_pylist())
        return [ref for ref in refs if ref.id not in read]
