"""The brakes as asset checks: who approves a mark in Dagster's UI reads the same numbers as on a terminal.

A brake that has tripped is a warning: the mark is sound, and its approval has to name the brake. All are measured from
the mark's record in the namespace, in one step.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import warnings
from collections.abc import Iterator

import dagster as dg

from lakegc_assets import assets
from lakegc_assets.brakes import BRAKES, Brake, BrakeLimits, brakes
from lakegc_assets.marking.resource import MarksResource
from spark_resources.errors import LakegcError

PROMISES = {
    "share": "The part of the repository that would go is no larger than allowed.",
    "bytes": "No more bytes would go than allowed.",
    "count": "No more objects would go than allowed.",
    "jump": "No more would go than allowed against the previous mark.",
    "live": "Much of the repository is live, as in the previous mark.",
    "listing": "As much is stored as the previous mark would leave.",
    "others": "All repositories that may refer to objects here were looked into.",
    "age": "The mark is young enough to be swept.",
}


def spec(name: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        f"brake_{name}",
        asset=assets.expired_set,
        description=f"{PROMISES[name]} (invariant 9)",
        blocking=False,
        partitions_def=assets.PARTITIONS,
    )


def as_result(brake: Brake) -> dg.AssetCheckResult:
    how = (
        f"write 'release {brake.name}: because …' into the approval in sweep_approval, or "
        f"lakegc approve REPOSITORY MARK --release {brake.name} --because 'why this is right'"
    )
    return dg.AssetCheckResult(
        passed=not brake.tripped,
        asset_key=assets.expired_set.key,
        check_name=f"brake_{brake.name}",
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Tripped: {brake.why}. To sweep it all the same: {how}" if brake.tripped else brake.why,
        metadata={
            "bound": brake.bound,
            "measured": "nothing to compare with" if brake.measured is None else brake.measured,
        },
    )


def unmeasured(name: str, why: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=False, asset_key=assets.expired_set.key, check_name=f"brake_{name}", description=why
    )


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.PreviewWarning)  # of partitions for checks, which the snapshot test watches

    @dg.multi_asset_check(name="brakes", specs=[spec(name) for name in BRAKES])
    def check_brakes(context: dg.AssetCheckExecutionContext, marks: MarksResource) -> Iterator[dg.AssetCheckResult]:
        """Every brake of the partition's mark, by the bounds that are configured now."""
        try:
            limits = BrakeLimits.of(marks.settings())
            found = brakes(marks.record(context.partition_key), limits, now=marks.store_time(context.partition_key))
        except LakegcError as error:
            yield from (unmeasured(name, str(error)) for name in BRAKES)
            return
        yield from map(as_result, found)


BRAKE_CHECKS = [check_brakes]
