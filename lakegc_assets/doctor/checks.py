"""Runs checks. A check that fails, in whatever way, becomes a finding and never stops the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lakegc_assets.doctor.findings import Finding, Result, Status, not_tried, problem
from spark_resources.errors import LakegcError, full_stop

TIME_LIMIT_S = 10.0  # for a check over the network


def as_is(result: Result) -> Result:
    return result


@dataclass(frozen=True, slots=True)
class Check:
    """One check: `inspect` returns what it found, and `judge` turns that into a result, without reading anything.

    An error that either of them raises is a problem. `limit_s` is the time after which `run_in_parallel` gives up.
    """

    group: str
    name: str
    inspect: Callable[[], Any]
    judge: Callable[[Any], Result] = as_is
    limit_s: float = TIME_LIMIT_S


@dataclass(frozen=True, slots=True)
class Outcome:
    """The finding of a check, and what its `inspect` returned, or the error that ended the check."""

    finding: Finding
    value: Any = None
    error: Exception | None = None

    @property
    def is_problem(self) -> bool:
        return self.finding.status is Status.PROBLEM


@dataclass(slots=True)
class Checks:
    """Runs checks and collects their findings, in the order of the checks.

    `on_unexpected` gets each error that isn't lakegc's own, for debugging.
    """

    on_unexpected: Callable[[Exception], None] = lambda error: None
    findings: list[Finding] = field(default_factory=list)

    def run(self, check: Check) -> Outcome:
        """Run one check in this thread, without a time limit."""
        return self._collected([self._outcome(check)])[0]

    def run_in_parallel(self, checks: Sequence[Check]) -> list[Outcome]:
        """Run checks in one thread each. A check that exceeds its time limit is a problem; its thread ends with the
        process."""
        outcomes: list[Outcome | None] = [None] * len(checks)

        def run_at(index: int) -> None:
            outcomes[index] = self._outcome(checks[index])

        threads = [threading.Thread(target=partial(run_at, index), daemon=True) for index in range(len(checks))]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread, check in zip(threads, checks, strict=True):
            thread.join(max(0.0, started + check.limit_s - time.monotonic()))
        return self._collected([outcome or _timed_out(check) for outcome, check in zip(outcomes, checks, strict=True)])

    def skip(self, group: str, names: Iterable[str], why: str) -> None:
        """Report that checks were not tried."""
        self.findings += [Finding(group, name, not_tried(why)) for name in names]

    def report(self, group: str, name: str, result: Result) -> None:
        self.findings.append(Finding(group, name, result))

    def _collected(self, outcomes: list[Outcome]) -> list[Outcome]:
        self.findings += [outcome.finding for outcome in outcomes]
        return outcomes

    def _outcome(self, check: Check) -> Outcome:
        result: Result
        failure: Exception
        try:
            value = check.inspect()
            return Outcome(Finding(check.group, check.name, check.judge(value)), value)
        except LakegcError as error:
            result, failure = problem(str(error)), error
        except Exception as error:
            self.on_unexpected(error)
            text = f"unexpected error: {type(error).__name__}: {full_stop(error)}"
            advice = (
                "If the message doesn't explain the problem, run the command again with --debug, and report the "
                "traceback."
            )
            result, failure = problem(text, advice), error
        return Outcome(Finding(check.group, check.name, result), error=failure)


def _timed_out(check: Check) -> Outcome:
    result = problem(
        f"no result within {check.limit_s:g} seconds.",
        "Check the network, name resolution and proxies between this machine and the server or store, then try again.",
    )
    return Outcome(Finding(check.group, check.name, result))
