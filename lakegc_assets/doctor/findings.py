"""What a check reports: what it found, whether that is fine, and what to do if it isn't."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # lakegc works, but not as well or as safely as it could
    PROBLEM = "problem"  # lakegc, or a part of it, doesn't work
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found. `advice` is what to do next; it is empty if there is nothing to do, or if `found` is an
    error's message, which has its own advice."""

    status: Status
    found: str
    advice: str = ""

    @property
    def text(self) -> str:
        """What was found and what to do, as sentences."""
        ended = self.found if self.found.endswith((".", "?", "!")) else f"{self.found}."
        return f"{ended} {self.advice}" if self.advice else self.found


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, by the check's group and name."""

    group: str
    name: str
    result: Result

    @property
    def status(self) -> Status:
        return self.result.status


def ok(found: str) -> Result:
    return Result(Status.OK, found)


def warning(found: str, advice: str = "") -> Result:
    return Result(Status.WARNING, found, advice)


def problem(found: str, advice: str = "") -> Result:
    return Result(Status.PROBLEM, found, advice)


def not_tried(why: str, advice: str = "") -> Result:
    return Result(Status.NOT_TRIED, why, advice)
