"""Which retention a change to the rules shortens: the only part of such a change that can lead to deletes. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_resources.model import Rules


@dataclass(frozen=True, slots=True)
class Shortened:
    """A shorter retention in days, for a branch or for everything without a rule of its own (None). `before` is None if
    there were no rules, that is, if nothing expired."""

    branch: str | None
    before: int | None
    after: int


def shortened(before: Rules | None, after: Rules, branches: Iterable[str]) -> list[Shortened]:
    """The retention that becomes shorter: the default first, which also applies to dangling commits, then the branches
    among these that have a rule of their own before or after, sorted."""
    changes = [Shortened(None, before.default_days if before else None, after.default_days)]
    own = after.branch_days.keys() | (before.branch_days.keys() if before else ())
    changes += [
        Shortened(branch, before.days(branch) if before else None, after.days(branch))
        for branch in sorted(own & set(branches))
    ]
    return [change for change in changes if change.before is None or change.after < change.before]
