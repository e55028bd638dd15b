from __future__ import annotations

from tests.exhaustive import operations


def table(loss) -> str:
    lines = [f"{loss.scenario}: lost {loss.objects:b} at {loss.at}"]
    for event in loss.events:
        what = event.what if isinstance(event.what, str) else operations.sentence(event.what)
        lines.append(f"  before/at step {event.before} [{event.step}]: {what}")
    return "\n".join(lines)
