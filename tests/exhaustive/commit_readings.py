"""The readings of commits: rules, heads, dump and the server's list, and the tables of the other repository."""

from __future__ import annotations

from tests.exhaustive.decisions import Read
from tests.exhaustive.memory import Memory
from tests.exhaustive.program import NEXT, STOPPED, Take
from tests.exhaustive.server import NO_ANSWER, Answer
from tests.exhaustive.staged_readings import StagedReadings
from tests.exhaustive.world import OTHER, OURS


class CommitReadings(StagedReadings):
    """The committed objects, by lakegc's rule and by the server's list."""

    def read_commits(self) -> None:
        """Rules, heads, tags, dump, the server's list, heads and tags again, rules again."""
        with self.within(f"{self.part}commits"):
            self.check_rules("before")
            self.step("heads", ("branches", OURS), self.keep_number("before"), self.wrong_branches(OURS))
            self.step("tags", ("tags",), lambda memory, answer: (memory._replace(tags=self.tagged(answer)), NEXT))
            if self.dump:
                self.step("dump of all commits", ("dump",), self.keep_number("dumped"))
            self.step("the server's list of retained commits", ("server_list",), self.keep_number("listed"))
            self.step("heads again", ("branches", OURS), self.keep_number("after"), self.wrong_branches(OURS))
            self.step("tags again", ("tags",), self.decide_commits)
            self.check_rules("after")

    def tagged(self, answer: int) -> int:
        return self.number(frozenset() if answer < 0 else frozenset([answer]))

    def check_rules(self, when: str) -> None:
        """The rules and holds must still be those with which the mark or re-verification began."""
        for what, field in (("rules", "rules"), ("holds", "held")):
            self.step(f"the {what}, {when}", (what,), self.same_as(field))

    def same_as(self, field: str) -> Take:
        def take(memory: Memory, answer: Answer) -> tuple[Memory, str]:
            if answer == getattr(memory, field) or not self.has("rules and holds stay the same"):
                return memory, NEXT
            return (memory, "sweep: re-verification") if memory.sweeping else (memory, STOPPED)

        return take

    def decide_commits(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        dumped: frozenset[int] | None = self.value(memory.dumped) if self.dump else None
        before, after = self.value(memory.before), self.value(memory.after)
        tags = self.value(memory.tags) | self.value(self.tagged(answer))
        if dumped is not None and not self.has("commits on no branch"):
            heads = [head for head in (*before, *after) if head >= 0]
            dumped = dumped & self.server.names.with_ancestors(heads)
        listed = self.value(memory.listed) if self.has("the server's list of commits") else frozenset()
        read = Read(before, dumped, listed, after, tags, memory.rules)
        decided = self.retention.decide(
            read, the_rule=self.has("the rule, not only the server's list"), heads_before=self.has("heads twice")
        )
        trees = frozenset(self.universe.commits[commit].tree for commit in decided.retained)
        memory = memory._replace(decided=self.number((decided, read)), before=0, after=0, dumped=0, listed=0, tags=0)
        if memory.sweeping:
            return memory._replace(live=memory.live | self.in_trees(trees - self.value(memory.proven))), NEXT
        known = self.base_trees if self.incremental else frozenset()
        trusted = known if self.has("earlier marks' ranges are read again") else frozenset()
        return memory._replace(
            live=memory.live | self.in_trees(trees - known),
            known_live=self.in_trees(trees & known) & ~memory.forged,
            proven=self.number(trees - trusted),
        ), NEXT

    def read_ranges(self) -> None:
        """Tables never change, so reading those of our repository needs no request."""
        if self.has_others and self.has("other repositories"):
            self.step("lists and reads the tables of the other repository", self.unless_unread(("tables",)),
                      self.read_tables, self.no_answer)  # fmt: skip

    def read_tables(self, memory: Memory, answer: Answer) -> tuple[Memory, str]:
        if answer == NO_ANSWER:
            return self.unreadable(memory, NEXT, OTHER)
        return memory._replace(live=memory.live | answer), NEXT
