"""Retire the old marks of several repositories, one after another. A problem with one doesn't hold up the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from lakegc_assets.progress import LogMessage
from lakegc_assets.retirement.retire import Retirements, open_target, plan, retire
from spark_resources.errors import LakegcError
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.lease import LeaseHeld
from spark_resources.settings import Settings


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was decided about the marks of a repository, or done with them. `retirements` is None if retirement isn't
    configured (`is_off`), if another run is working on the repository (`busy` says which), or after an `error`."""

    repository: str
    retirements: Retirements | None = None
    is_off: bool = False
    busy: str = ""
    error: str = ""

    def sentence(self) -> str:
        """What was done, for logs."""
        if self.error:
            return f"retiring marks of {self.repository} failed: {self.error}"
        if self.busy:
            return f"{self.repository} was skipped: {self.busy}"
        if self.is_off or self.retirements is None:
            return f"{self.repository}: retire_after isn't set"
        retired = ", ".join(self.retirements.applied)
        return f"{self.repository}: {f'retired {retired}' if retired else 'no mark to retire'}"


def retire_all(
    lakefs: LakeFS,
    repositories: Iterable[str],
    settings_of: Callable[[str], Settings],
    older_than: timedelta | None = None,
    *,
    apply: bool,
    log_message: LogMessage = lambda _: None,
) -> Iterator[Outcome]:
    """Retire the old marks of each repository if `apply` is set; otherwise only plan it.

    `older_than` overrides the setting `retire_after`; a repository with neither is left alone.
    """
    for repository in repositories:
        try:
            settings = settings_of(repository)
            after = settings.retire_after if older_than is None else older_than
            if after is None:
                yield Outcome(repository, is_off=True)
                continue
            target = open_target(lakefs, repository, settings)
            yield Outcome(
                repository,
                retire(target, lakefs, settings, after, log_message=log_message) if apply else plan(target, after),
            )
        except LeaseHeld as error:
            yield Outcome(repository, busy=str(error))
        except LakegcError as error:
            yield Outcome(repository, error=str(error))
