"""Watch heads of other repositories while a round deletes: objects here that they reach are live (invariant 1).

A table that was listed for the last re-verification was read then, whichever commit refers to it. Only the other
tables of a new head have to be read. If there are many repositories, they are listed in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.mark.context import MarkRun
from lakegc_assets.mark.other_repositories import Unread, heads_in, inside_keys, others, reading_of, unreleased
from lakegc_assets.mark.path_probes import unless_gone
from spark_resources import sstable
from spark_resources.errors import LakegcError, Unavailable
from spark_resources.lakefs.ranges import read_table
from spark_resources.stores.place import Place

AT_A_TIME = 32  # repositories
MOST_ENTRIES = 10_000_000  # of one head in tables not read before: seconds of work


class TooMuch(LakegcError):
    """Raised when a new head reaches more entries than can be read while a round waits."""


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

    def look(self) -> pa.Array:
        """The keys in this namespace that new heads of the repositories next in turn reach in tables not read before.

        Raises `Unavailable` if a repository can't be read and isn't released, `TooMuch` for a head that reaches too
        many entries.
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

    def _reached(self, repository: str, commit_id: str, unread: Unread) -> pa.Array:
        place, namespace, needed_by = self._places[repository], self.run.place.namespace, f"a head of {repository}"
        keys = [pa.array([], pa.string())]
        with reading_of(repository, unread), unless_gone(self.run.lakefs, repository):
            metarange = self.run.lakefs.commit(repository, commit_id).metarange_id
            data = read_table(place, metarange, needed_by=needed_by) if metarange else b""
            found = sstable.read_proven_ranges(data, name=metarange) if data else []
            read = self._read_before(ref.id for ref in found)
            refs = [ref for ref in found if ref.id not in read]
            entries = sum(ref.count for ref in refs)
            if entries > MOST_ENTRIES:
                raise TooMuch(f"repository {repository} has a new head with {entries:,} entries that nobody read yet")
            for ref in refs:
                data = read_table(place, ref.id, needed_by=needed_by)
                keys.append(inside_keys(data, ref.id, place, namespace, sstable.default_decoder(len(data))))
        return pa.concat_arrays(keys)

    def _read_before(self, tables: Iterable[str]) -> set[str]:
        """The subset of the tables that the re-verification listed."""
        listed, ids = self.run.elsewhere.tables, pa.array(tables, pa.string())
        return set() if listed is None else set(ids.filter(pc.is_in(ids, value_set=listed)).to_pylist())
