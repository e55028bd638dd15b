"""A loss for people: its steps, and the tables of `docs/safety.md`.

uv run python -m tests.exhaustive.traces            # renew the tables of docs/safety.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.exhaustive import operations
from tests.exhaustive.explore import Loss
from tests.exhaustive.invisible import INVISIBLE
from tests.exhaustive.safeguards import SAFEGUARDS, Safeguard, smallest_loss
from tests.exhaustive.scenarios import SCENARIOS
from tests.exhaustive.world import addresses

PAGE = Path(__file__).parents[2] / "docs" / "safety.md"
BEGIN, END = "<!-- {} -->", "<!-- end of {} -->"
INVARIANTS = {
    1: "Re-verified, up to the delete",
    2: "Order, and everything more than once",
    5: "Inside only",
    6: "Young is kept",
    7: "Approved means this set",
    8: "Re-verified by what can't be forged",
    10: "Receipts and retries",
}


def table(loss: Loss) -> str:
    """A loss as lines of text."""
    lines = [f"{loss.scenario}: {SCENARIOS[loss.scenario].description}"]
    return "\n".join([*lines, *(f"  {number}. {step}" for number, step in enumerate(steps(loss), 1))])


def steps(loss: Loss) -> Iterator[str]:
    """The events of a loss, each with lakegc's step at that moment, and the step at which the object is lost."""
    for event in loss.events:
        if isinstance(event.what, str):
            yield f"{event.what} *(at {event.step})*"
        else:
            yield f"{operations.sentence(event.what)} *(before {event.step})*"
    objects = " and ".join(f"object {address}" for address in addresses(loss.objects))
    consequence = "expires, and is live" if loss.at.endswith("is finished") else "is deleted, and is live"
    yield f"{objects} {consequence}"


# --- the page -------------------------------------------------------------------------------------------------------


def safeguards_table() -> str:
    """For each safeguard, the smallest loss without it."""
    rows = ["| safeguard | without it, in this world | step by step |", "| --- | --- | --- |"]
    for invariant, heading in INVARIANTS.items():
        rows.append(f"| **{heading}** | | |")
        rows += [row(safeguard) for safeguard in SAFEGUARDS if safeguard.invariant == invariant]
    return "\n".join(rows)


def row(safeguard: Safeguard) -> str:
    scenario = SCENARIOS[safeguard.scenario].description
    if safeguard.overlap:
        return f"| {safeguard.what} | nothing is lost: other safeguards prevent it | {safeguard.overlap} |"
    loss = smallest_loss(safeguard)
    assert loss is not None, f"nothing is lost without '{safeguard.name}'"
    cell = "<br>".join(f"{number}. {step}" for number, step in enumerate(steps(loss), 1))
    also = f" Also left out: {', '.join(safeguard.also)}." if safeguard.also else ""
    return f"| {safeguard.what}{also} | {scenario} | {cell} |"


def invisible_table() -> str:
    rows = ["| a live object is lost if | why no collector can see it | what an operator does |", "| --- | --- | --- |"]
    return "\n".join([*rows, *(f"| {excuse.how} | {excuse.why} | {excuse.remedy} |" for excuse in INVISIBLE)])


def with_tables(page: str) -> str:
    """The page with its tables as they are now."""
    for name, text in (("safeguards", safeguards_table()), ("invisible losses", invisible_table())):
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        assert after or rest.endswith(end), f"{name} has no place on the page"
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def main() -> int:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
