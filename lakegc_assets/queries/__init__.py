"""Questions about a repository, answered from the files of its marks and sweeps. Nothing here changes anything.

For notebooks, each question is a function that returns an Arrow table:

    from lakegc_assets import queries

    queries.explain("my-repository", "reports/2026.csv")     # why the objects at a path are kept or gone
    queries.pins("my-repository").to_pandas()                # what only one branch, tag or commit keeps
    queries.what_if("my-repository", [today, other])[0]      # what other rules would expire (comparison.Variant)

Settings come from the same sources as those of the commands: LAKEGC_* environment variables, lakegc.toml,
~/.lakectl.yaml.

history      what a finished mark recorded: commits, ranges, addresses, stored objects, and decisions by other rules
addresses    what a mark decided about many addresses at once, and why
paths        which address a path has or had in which commit, and which branch serves it now
sweeps       what sweeps, undos and purges did with some addresses
explanation  all of that about one path or address
pinned       what only one branch, one tag on hold or one commit keeps
comparison   what other rules, dropped branches, a different minimum age or more holds would expire; with range_groups,
             recorded_inputs for what marks recorded, and grouping
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from lakegc_assets.queries.history import LATEST, History, open_history
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakegc_assets.queries.comparison import Variant

__all__ = ["explain", "opened", "pins", "what_if"]


@contextmanager
def opened(repository: str, mark: str = LATEST, *, environ: Mapping[str, str] = os.environ) -> Iterator[History]:
    """Open a finished mark of a repository. If a query is too large for one process, Spark is started, and stopped at
    the end.

    Raises the errors of `open_history`.
    """
    lakefs = LakeFS(*LakeFSSettings.of(Settings.load(environ, home_folder())))
    settings = Settings.load(environ, home_folder(), repository=repository)
    with ExitStack() as stack:

        @cache
        def session() -> SparkSession:
            from spark_resources.spark.resource import SparkResource  # slow to import, and rarely needed

            resource = SparkResource()
            stack.callback(resource.teardown_after_execution, None)  # type: ignore[arg-type]
            started: SparkSession = resource.spark_session
            return started

        yield open_history(lakefs, settings, repository, mark, spark=session)


def explain(
    repository: str, name: str, *, mark: str = LATEST, is_path: bool = False, is_address: bool = False
) -> pa.Table:
    """Why an object is kept, expired or gone: a row for an address, or for each address that a path has or had
    (`lakegc_assets.queries.explanation.EXPLANATIONS`).

    Raises `WrongUsage` if the name is both a path and an address, and neither `is_path` nor `is_address` is given;
    `NotFound` if it is neither.
    """
    from lakegc_assets.queries.explanation import explain_name

    with opened(repository, mark) as history:
        return explain_name(history, name, is_path=is_path, is_address=is_address).rows


def pins(repository: str, *, mark: str = LATEST) -> pa.Table:
    """What only one branch, one tag on hold or one commit of a repository keeps
    (`lakegc_assets.queries.pinned.PINS`), with the stale branch that keeps most bytes first.

    Raises `Refused` if the mark doesn't know every commit and object.
    """
    from lakegc_assets.queries.pinned import pins_of

    with opened(repository, mark) as history:
        return pins_of(history)


def what_if(repository: str, variants: Sequence[Variant], *, mark: str = LATEST) -> tuple[pa.Table, pa.Table]:
    """What each variant would expire, compared with the first one: a row for each variant, and a row for each variant
    and branch (`TOTALS` and `BY_BRANCH` of `lakegc_assets.queries.comparison`).

    Raises the errors of `lakegc_assets.queries.comparison.what_if`.
    """
    from lakegc_assets.queries import comparison

    with opened(repository, mark) as history:
        result = comparison.what_if(history, variants)
        return result.totals, result.by_branch
