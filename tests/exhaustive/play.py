"""One run of a mark and its sweep with given events: a finding of the search can be repeated, with or without a
safeguard, and compared with a real run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tests.exhaustive.explore import Event, Exploration, Scope
from tests.exhaustive.invisible import LOST
from tests.exhaustive.operations import Operation
from tests.exhaustive.program import NEXT, STOPPED, Step
from tests.exhaustive.scenarios import SCENARIOS
from tests.exhaustive.server import Answer, Question
from tests.exhaustive.world import STORED, World, bit


@dataclass
class Outcome:
    """How a run ended: the `expired` objects of its mark (None if it stopped before), those that its sweep `deleted`,
    those `lost`, and the world at the end. `taken` has the names of the steps, `left` the events that never came."""

    expired: int | None = None
    deleted: int = 0
    lost: int = 0
    stopped: bool = False
    world: World | None = None
    taken: list[str] = field(default_factory=list)
    left: list[Event] = field(default_factory=list)


def play(scenario: str, scope: Scope, events: Sequence[Event], without: Collection[str] = ()) -> Outcome:
    """Run a scenario's mark and sweep; each event happens at the next step of its name."""
    return Player(Exploration(SCENARIOS[scenario], scope, without), events).run()


class Player:
    def __init__(self, exploration: Exploration, events: Sequence[Event]) -> None:
        self.exploration, self.waiting, self.outcome = exploration, list(events), Outcome()
        self.world, self.memory = exploration.start, exploration.beginning()

    def run(self) -> Outcome:
        collector, position = self.exploration.collector, 0
        while position < len(collector.steps):
            step = collector.steps[position]
            if step.ask(self.memory) is None:
                position += 1
                continue
            self.outcome.taken.append(step.name)
            label = self.take(step)
            if label == STOPPED:
                self.outcome.stopped = True
                break
            position = position + 1 if label == NEXT else collector.labels[label]
        if self.outcome.expired is None and not self.outcome.stopped:
            self.outcome.expired = 0  # no expired object is left before the mark ends
        self.outcome.left = self.waiting
        self.outcome.world = self.exploration.universe.worlds[self.world]
        return self.outcome

    def take(self, step: Step) -> str:
        """Apply the operations before a step, then take the step, with the wrong response that is due at it."""
        server, wrong = self.exploration.server, ""
        self.before(step.name)
        while self.waiting and self.waiting[0].step == step.name and not wrong:
            what = self.waiting.pop(0).what
            if isinstance(what, str):
                wrong = what
            else:
                self.operate(what)
        question = step.ask(self.memory)
        assert question is not None
        answer = server.answer(question, self.world)
        self.measure(step, answer)
        if wrong:
            answer = next(
                wrong_answer.answer
                for wrong_answer in step.wrong(self.memory, answer)
                if wrong_answer.sentence == wrong
            )
        self.memory, label = step.take(self.memory, self.answered(step, question, answer))
        return label

    def before(self, name: str) -> None:
        """A hook for other events before a step."""

    def answered(self, step: Step, question: Question, answer: Answer) -> Answer:
        """A hook that may replace the right response."""
        return answer

    def operate(self, operation: Operation) -> None:
        """Carry out a writer's operation, if it is possible now."""
        for successor in self.exploration.successors(self.world):
            if successor.operation == operation:
                self.memory = self.exploration.remember(self.memory, self.world, successor)
                self.world = successor.world
                return

    def measure(self, step: Step, answer: Answer) -> None:
        if not step.ends and step.deletes < 0:
            return
        judged = self.exploration.judge(step, self.memory, answer)
        self.outcome.lost |= sum(bit(address) for address, why in judged.items() if why == LOST)
        if step.ends:
            self.outcome.expired = self.memory.candidates
        else:
            self.outcome.deleted |= bit(step.deletes) if answer[0] in STORED else 0
            self.world = self.exploration.without_object(self.world, step.deletes)
