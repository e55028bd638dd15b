"""A mark, full or incremental, from its beginning to its approval."""

from __future__ import annotations

from collections.abc import Sequence

from spark_resources.mark_store.record import CHAIN
from tests.exhaustive import decisions
from tests.exhaustive.decisions import Read
from tests.exhaustive.memory import Memory, Since, begun
from tests.exhaustive.program import NEXT, NOTHING, STOPPED, Ask, GoWrong, Take, Wrong
from tests.exhaustive.reasons_to_keep import ReasonsToKeep
from tests.exhaustive.server import Answer
from tests.exhaustive.world import (
    BITS,
    NEW,
    OLD,
    OURS,
    STORED,
    addresses,
    bit,
)


class Marking(ReasonsToKeep):
    """A mark: the listing, everything that may be live, and the decision, in the order of `CHAIN`."""

    def mark(self) -> None:
        """Listing, staged, commits, other repositories' tables, and the reasons to keep what is left."""
        with self.within("mark"):
            self.step("begins", ("begin",), self.begin_mark)
            parts = {
                "namespace_slices": self.list_store,
                "uncommitted_addresses": self.read_uncommitted,
                "retained_commits": self.read_commits,
                "committed_addresses": self.read_ranges,
                "expired_set": self.keep,
            }
            order = list(CHAIN)
            if not self.has("staged before commits"):
                order[1], order[2] = order[2], order[1]
            if not self.has("the listing first"):
                order.insert(order.index("expired_set") - 1, order.pop(0))
            for asset in order:
                parts[asset]()
            self.step("is finished", ("truth",), lambda memory, _: (memory, NEXT), ends=True)
            self.step("is approved", ("begin",), self.approve)

    def begin_mark(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        rules, on_hold, absence = answer
        return Memory(absence=begun(0, absence, Since.MARK), earlier=memory.earlier, rules=rules, held=on_hold), NEXT

    def list_store(self) -> None:
        if self.incremental:
            self.find_no_longer_retained()
        for folder in range(int(self.incremental), decisions.SLICES):

            def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
                old, young = answer & (1 << BITS) - 1, answer >> BITS
                candidates = memory.candidates | old | young
                return memory._replace(candidates=candidates, young=memory.young | young), NEXT

            self.step(f"lists slice {folder} of the store", ("listing", folder), take, self.wrong_listing(folder))
        if self.incremental:
            for address in range(len(self.universe.contents)):
                self.step(f"looks up object {address}", self.ask_compared(address), self.find(address))

    def wrong_listing(self, folder: int) -> GoWrong:
        """A listing of the store that ends early, or that shows what was there before."""

        def wrong(memory: Memory, answer: Answer) -> Sequence[Wrong]:
            before = self.server.answer(("listing", folder), memory.earlier) if memory.earlier >= 0 else answer
            return [
                *([Wrong("truncated list", "the store's listing ends early", 0)] if answer else ()),
                *(
                    [Wrong("stale listing", "the store lists what was there before", before)]
                    if before != answer
                    else ()
                ),
            ]

        return wrong

    # --- an incremental mark ----------------------------------------------------------------------------------------

    def find_no_longer_retained(self) -> None:
        """Look up the objects that were live at the base mark and no longer are, and those that were then stored and
        uncommitted."""
        self.step("reads the base mark", NOTHING, self.read_base, self.forge_base)
        self.step("heads, before the listing", ("branches", OURS), self.keep_number("before"))
        self.step("dump of all commits, before the listing", ("dump",), self.choose_lookups)

    def read_base(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        return memory._replace(forged=answer), NEXT

    def forge_base(self, memory: Memory, answer: Answer) -> Sequence[Wrong]:
        """Anyone who can write to the namespace can take an address out of the base mark's files."""
        return [
            Wrong(
                "forged base",
                f"the base mark's record of a range was altered: object {address} is missing",
                bit(address),
            )
            for address in addresses(self.in_trees(self.base_trees))
        ]

    def choose_lookups(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        heads = self.value(memory.before)
        read = Read(heads, answer, frozenset(), heads, frozenset(), memory.rules)
        trees = {self.universe.commits[commit].tree for commit in self.retention.decide(read).retained}
        stored = sum(bit(address) for address, kind in enumerate(self.universe.worlds[0].stored) if kind == OLD)
        never = stored & ~self.in_trees(self.base_trees)
        return memory._replace(compared=never | self.in_trees(self.base_trees - trees) & ~memory.forged, before=0), NEXT

    def ask_compared(self, address: int) -> Ask:
        is_listed = decisions.slice_of(address) > 0
        return lambda memory: None if is_listed or not memory.compared & bit(address) else ("stored", address)

    def find(self, address: int) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            here, young = (bit(address) if answer in kinds else 0 for kinds in (STORED, (NEW,)))
            return memory._replace(candidates=memory.candidates | here, young=memory.young | young), NEXT

        return take

    # --- approval ---------------------------------------------------------------------------------------------------

    def approve(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        """Only with the rules and holds with which the mark was made. Here, nobody releases an unread repository."""
        rules, on_hold, _ = answer
        same = (rules, on_hold) == (memory.rules, memory.held) or not self.has("rules and holds stay the same")
        if not same or (memory.unread and self.has("an unread repository counts")):
            return memory, STOPPED
        return memory, NEXT
