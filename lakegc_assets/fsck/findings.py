"""The results of a check: findings, what needs the affected data, and what could not be verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from spark_resources.errors import LakegcError, NotFound, Unavailable


class Problem(StrEnum):
    MISSING = "missing"
    DAMAGED = "damaged"  # it exists, but doesn't match its id
    UNREADABLE = "unreadable"  # it could not be read


@dataclass(frozen=True, slots=True)
class Dependents:
    """The commits and branches that need a table, commit or object.

    `commits` names the first few; `commit_count` and `retained` count all. `branches` are those whose head needs it, so
    their readers are affected now; `history_of` are branches that need it further back in their history.
    """

    commits: tuple[str, ...] = ()
    commit_count: int = 0
    retained: int = 0
    branches: tuple[str, ...] = ()
    history_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `what` is the kind of thing that `id` names: a commit, a metarange, a range, a dump, …"""

    what: str
    id: str
    problem: Problem
    why: str
    needed_by: Dependents = Dependents()


@dataclass(frozen=True, slots=True)
class LostObject:
    """A live address that the store lacks, with a path that refers to it if one is known, and what needs it."""

    address: str
    path: str | None
    committed: bool
    staged: bool
    needed_by: Dependents = Dependents()


COUNT_NAMES = (
    *("commits", "logged_commits", "dump_tables", "metaranges", "ranges", "entries", "other_tables", "bytes"),
    *("live", "live_committed", "live_staged", "outside", "listed", "bytes_listed"),
)
"""The counts in `Report.verified`: `bytes` are those of tables, `listed` are stored objects."""


@dataclass(slots=True)
class Report:
    """The result of a check. `lost` are the first of `lost_count` objects, `unknown_files` the first of `unknown_count`
    files, and `verified` are counts by kind.

    `not_verified` are sentences about checks that permissions or the repository prevented; `hints` explain what several
    findings together may mean. `verifying_seconds` is the part of `seconds` in which tables were verified and objects
    listed.
    """

    repository: str
    namespace: str
    findings: list[Finding] = field(default_factory=list)
    lost: list[LostObject] = field(default_factory=list)
    lost_count: int = 0
    lost_branches: tuple[str, ...] = ()
    unknown_files: list[str] = field(default_factory=list)
    unknown_count: int = 0
    misnamed_files: list[Finding] = field(default_factory=list)
    not_verified: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    verified: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNT_NAMES, 0))
    seconds: float = 0.0
    verifying_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Bytes of tables verified per second."""
        return self.verified["bytes"] / self.verifying_seconds if self.verifying_seconds else 0.0

    @property
    def is_sound(self) -> bool:
        return not self.findings and not self.lost_count

    def count(self, counts: Mapping[str, int]) -> None:
        for name, number in counts.items():
            self.verified[name] = self.verified.get(name, 0) + number

    def add_finding(self, what: str, thing_id: str, error: LakegcError, needed_by: Dependents = Dependents()) -> None:
        """Record a finding with the reason given by this error."""
        self.findings.append(Finding(what, thing_id, problem_of(error), reason_of(error), needed_by))


def problem_of(error: LakegcError) -> Problem:
    if isinstance(error, NotFound):
        return Problem.MISSING
    return Problem.UNREADABLE if isinstance(error, Unavailable) else Problem.DAMAGED


def reason_of(error: LakegcError) -> str:
    """The reason for an error, without the advice for marks. An error about a table has the reason in its cause."""
    return str(error.__cause__ or error)
