"""The brakes as asset checks: an approver sees the same numbers in Dagster's UI as on a terminal.

A tripped brake is a warning: the mark is sound, but its approval has to release the brake by name. All brakes are
measured from the mark's record in the namespace, in one step.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import shlex
import warnings
from collections.abc import Iterator, Sequence

import dagster as dg

from lakegc_assets import partitions
from lakegc_assets.assets import review
from lakegc_assets.resources import MarksResource
from lakegc_assets.rules.brakes import BRAKES, Brake, BrakeLimits, brakes
from spark_resources.errors import LakegcError
from spark_resources.model import Partition

DESCRIPTIONS = {
    "share": "The expired share of the repository is within its limit. Protects against a wrong retention rule.",
    "bytes": "The number of expired bytes is within its limit. Protects against a wrong retention rule.",
    "count": "The number of expired objects is within its limit. Protects against a wrong retention rule.",
    "jump": "The increase in expired objects since the previous mark is within its limit. Protects against a shortened "
    "rule, or a branch that was deleted by mistake.",
    "live": "The number of live objects hasn't dropped sharply since the previous mark. Protects against a deleted "
    "branch or an incomplete reading of commits.",
    "listing": "The listing is about as large as the previous mark predicts. Protects against an incomplete listing.",
    "others": "All other repositories that may reference objects of this one were read. Protects against deleting what "
    "only another repository needs.",
    "age": "The mark is recent enough to be swept. Protects against deleting by outdated rules.",
}
WHEN_TRIPPED = (
    " If this brake trips: find out why, then release it with a reason, change the rules, or leave the mark alone."
)


def spec(name: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        f"brake_{name}",
        asset=review.expired_set,
        description=DESCRIPTIONS[name] + WHEN_TRIPPED,
        blocking=False,
        partitions_def=partitions.PARTITIONS,
    )


def check_result(name: str, brakes_of_check: Sequence[Brake]) -> dg.AssetCheckResult:
    """The result of one check: for one brake, or for `others`, which has a brake per repository that was not read."""
    tripped = [brake for brake in brakes_of_check if brake.tripped]
    measurements = [brake.measured for brake in brakes_of_check if brake.measured is not None]
    return dg.AssetCheckResult(
        passed=not tripped,
        asset_key=review.expired_set.key,
        check_name=f"brake_{name}",
        severity=dg.AssetCheckSeverity.WARN,
        description="\n".join(map(how_to_release, tripped)) or brakes_of_check[0].why,
        metadata={
            "bound": f"{brakes_of_check[0].bound:,g}",  # text, because Dagster plots numbers, and this one is constant
            "measured": round(sum(measurements), 3) if measurements else "nothing to compare with",
        },
    )


def how_to_release(brake: Brake) -> str:
    return (
        f"Tripped: {brake.why}. To sweep the mark anyway, release the brake: in the job 'approve' with "
        f"'release: {{{brake.name}: why this is right}}', or with "
        f"lakegc approve REPOSITORY MARK --release {shlex.quote(brake.name)} --because 'why this is right'"
    )


def failed_measurement(name: str, why: str) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=False, asset_key=review.expired_set.key, check_name=f"brake_{name}", description=why
    )


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.PreviewWarning)  # for partitioned checks; the snapshot test covers them

    @dg.multi_asset_check(name="brakes", specs=[spec(name) for name in BRAKES])
    def check_brakes(context: dg.AssetCheckExecutionContext, marks: MarksResource) -> Iterator[dg.AssetCheckResult]:
        """Every brake of the partition's mark, with the currently configured limits."""
        try:
            limits = BrakeLimits.of(marks.settings(Partition.parse(context.partition_key).repository))
            all_brakes = brakes(
                marks.record(context.partition_key), limits, now=marks.store_time(context.partition_key)
            )
        except LakegcError as error:
            yield from (failed_measurement(name, str(error)) for name in BRAKES)
            return
        for name in BRAKES:
            yield check_result(name, [brake for brake in all_brakes if brake.name.partition("/")[0] == name])


BRAKE_CHECKS = [check_brakes]
