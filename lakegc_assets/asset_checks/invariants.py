"""The invariants as asset checks, for display. Each re-measures an invariant that its asset has enforced.

A check reads the mark's record in the namespace and enforces nothing: an asset that violates an invariant fails before
its checks run.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import functools
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

import dagster as dg

from lakegc_assets import partitions
from lakegc_assets.assets import mark, review
from lakegc_assets.mark.options import arguments_to_repeat
from lakegc_assets.resources import MarksResource
from lakegc_assets.rules.brakes import unread_repositories_in
from lakegc_assets.rules.incremental import late_uploads
from spark_resources.errors import LakegcError
from spark_resources.mark_store.record import CHAIN, MarkRecord, check_order

Measurement = tuple[bool, Mapping[str, Any]]
"""Whether an invariant holds, and the metadata to show."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One check: its asset, name, invariant number (if any), what holds (`promise`), what that protects against
    (`danger`), and its measurement of a record.

    `violation` is the message that is shown if the check fails, and says what to do.
    """

    asset: dg.AssetsDefinition
    name: str
    number: int | None
    promise: str
    danger: str
    measure: Callable[[MarkRecord], Measurement]
    violation: str = "This mark isn't trustworthy. Don't approve it: make a new one."

    @property
    def description(self) -> str:
        return f"{self.promise} Protects against {self.danger}. If this check fails: {self.violation}"


def clocks_agree(record: MarkRecord) -> Measurement:
    times = [datetime.fromisoformat(text) for text in record.clocks.values()]
    return len(times) == 3, {"seconds_apart": (max(times) - min(times)).total_seconds(), **record.clocks}


def inside_only(record: MarkRecord) -> Measurement:
    facts = record.step("namespace_slices").facts
    return True, {"objects": facts["objects"], "not_candidates": facts["not_candidates"]}


def read_twice(record: MarkRecord) -> Measurement:
    facts = record.step("uncommitted_addresses").facts
    readings = {part: facts.get(part, {}) for part in ("first", "second")}
    return all("files" in counts for counts in readings.values()), {
        f"{part}.{name}": value for part, counts in readings.items() for name, value in counts.items()
    }


def heads_retained(record: MarkRecord) -> Measurement:
    facts = record.step("retained_commits").facts
    return facts["retained"] >= 1, {name: facts[name] for name in ("branches", "retained", "expired")}


def ranges_whole(record: MarkRecord) -> Measurement:
    facts = record.step("committed_addresses").facts
    return True, {name: facts[name] for name in ("ranges", "entries", "outside", "bytes_read")}


def others_read(record: MarkRecord) -> Measurement:
    committed = record.step("committed_addresses").facts["elsewhere"]
    staged = record.step("uncommitted_addresses").facts
    staged_counts = [staged.get(part, {}) for part in ("first_elsewhere", "second_elsewhere")]
    unread_repositories = unread_repositories_in(record)
    all_read = not unread_repositories and (
        not committed["repositories"] or all("branches" in counts for counts in staged_counts)
    )
    return all_read, {
        "repositories": len(committed["repositories"]),
        "trusted": ", ".join(committed["trusted"]),
        "unread": "; ".join(f"{name}: {why}" for name, why in sorted(unread_repositories.items())),
        "branches": staged_counts[0].get("branches", 0),
        "tables": committed["tables"],
        "addresses_here": committed["addresses"] + max(counts.get("addresses", 0) for counts in staged_counts),
    }


def read_in_order(record: MarkRecord) -> Measurement:
    check_order(record, before="expired_set")
    steps = [(name, record.step(name)) for name in CHAIN]
    is_in_order = all(first.number < second.number for (_, first), (_, second) in pairwise(steps))
    return is_in_order, {name: f"{step.started.isoformat()} to {step.finished.isoformat()}" for name, step in steps}


def live_is_listed(record: MarkRecord) -> Measurement:
    facts = record.step("expired_set").facts
    names = ("live_inside", "live_not_listed", "live_lost", "live_lost_accepted")
    return facts["live_lost"] == facts["live_lost_accepted"], {name: facts[name] for name in names}


def identical_content_probed(record: MarkRecord) -> Measurement:
    facts = record.step("expired_set").facts
    names = ("probes", "not_probed", "probes_failed", "kept_by_probes")
    why = {"unclear": "; ".join(facts.get("unclear", []))}
    return facts["not_probed"] == 0 and facts["probes_failed"] == 0, {name: facts[name] for name in names} | why


def young_kept(record: MarkRecord) -> Measurement:
    facts = record.step("expired_set").facts
    return record.cutoff <= record.start, {
        "start": record.start.isoformat(),
        "cutoff": record.cutoff.isoformat(),
        "young": facts["young"],
    }


def nothing_missed(record: MarkRecord) -> Measurement:
    facts = record.step("expired_set").facts
    basis = "since " + ", ".join(record.basis["chain"]) if record.is_incremental else f"full: {record.basis['why']}"
    metadata = {"made": basis, "missed": facts.get("missed", 0), "unknown": facts.get("missed_unknown", "")}
    if record.is_incremental:
        command = shlex.join(["lakegc", "mark", record.repository, "--full", *arguments_to_repeat(record)])
        metadata["not_looked_for"] = f"{late_uploads(record)} To make it now: {command}"
    return metadata["missed"] == 0, metadata | {"names": ", ".join(facts.get("missed_names", []))}


INVARIANTS = [
    Invariant(
        mark.namespace_slices,
        "clocks_agree",
        6,
        "The clocks of the store, the server and this machine agree.",
        "deleting an object that is being written, because a wrong clock makes it look old",
        clocks_agree,
    ),
    Invariant(
        mark.namespace_slices,
        "inside_only",
        5,
        "Only data/ and legacy root objects are listed.",
        "deleting lakeFS's own files",
        inside_only,
    ),
    Invariant(
        mark.uncommitted_addresses,
        "read_twice",
        2,
        "Staged changes were read twice, in full.",
        "missing a file that is renamed while the list is read",
        read_twice,
    ),
    Invariant(
        mark.retained_commits,
        "heads_retained",
        2,
        "Every branch head is retained.",
        "deleting what readers of a branch see",
        heads_retained,
    ),
    Invariant(
        mark.committed_addresses,
        "ranges_whole",
        4,
        "Every range was read completely and passed its checksums.",
        "mistaking an object for garbage because its address couldn't be read",
        ranges_whole,
    ),
    Invariant(
        mark.committed_addresses,
        "others_read",
        5,
        "References from other repositories to objects of this repository were read.",
        "deleting objects that only another repository needs",
        others_read,
        violation="Some other repositories could not be read (see 'unread'). Objects of this repository that only they "
        "reference may be listed as expired. Grant lakegc access to them or, if they reference nothing in "
        "this repository, name them in LAKEGC_TRUSTED_REPOSITORIES. Then make a new mark.",
    ),
    Invariant(
        review.expired_set,
        "read_in_order",
        2,
        "The listing was read first, then staged changes, then commits.",
        "missing an object that was committed between two readings",
        read_in_order,
    ),
    Invariant(
        review.expired_set,
        "live_is_listed",
        3,
        "The store lists every live address.",
        "trusting an incomplete listing, and overlooking lost data",
        live_is_listed,
        violation="Live objects are missing, and no one has accepted them as lost: either data is gone, or the listing "
        "was incomplete. Find out which before anything is deleted.",
    ),
    Invariant(
        review.expired_set,
        "identical_content_probed",
        2,
        "Paths were probed on every branch for identical content staged again.",
        "deleting an object that a branch serves although it is on no list",
        identical_content_probed,
        violation="Some paths were not probed (see 'not_probed'), or their probes failed ('probes_failed'). Their "
        "objects were kept: the mark is safe, but may omit some garbage. Raise LAKEGC_MAX_PROBES for the next "
        "mark, or check the server's responses ('unclear').",
    ),
    Invariant(
        review.expired_set,
        "nothing_missed",
        None,
        "Incremental marks miss nothing, as confirmed by the next full mark.",
        "garbage that incremental marks would never find",
        nothing_missed,
        violation="Objects were added to an old slice; lakeFS itself never does that. These objects (see 'names') were "
        "kept until this full mark found them. Nothing was lost. If this happens again, lower "
        "LAKEGC_FULL_EVERY.",
    ),
    Invariant(
        review.expired_set,
        "young_kept",
        6,
        "Nothing younger than the cutoff is expired.",
        "deleting an upload that is about to be committed",
        young_kept,
    ),
]


def as_checks(asset: dg.AssetsDefinition, invariants: Sequence[Invariant]) -> dg.AssetChecksDefinition:
    """The checks of one asset, in one step: each step of a run costs Dagster more than the check itself."""

    @dg.multi_asset_check(
        name=f"invariants_of_{asset.key.to_python_identifier()}",
        specs=[
            dg.AssetCheckSpec(
                invariant.name,
                asset=asset,
                description=invariant.description,
                blocking=False,
                partitions_def=partitions.PARTITIONS,
            )
            for invariant in invariants
        ],
    )
    def check(context: dg.AssetCheckExecutionContext, marks: MarksResource) -> Iterator[dg.AssetCheckResult]:
        """Each invariant, measured from the record of the partition's mark."""
        record = functools.cache(lambda: marks.record(context.partition_key))
        for invariant in invariants:
            yield measured_result(invariant, record)

    return check


def measured_result(invariant: Invariant, record: Callable[[], MarkRecord]) -> dg.AssetCheckResult:
    """The result of one check. It fails if the record can't be read or lacks the facts."""
    try:
        passed, metadata = invariant.measure(record())
        description = None if passed else invariant.violation
    except LakegcError as error:
        passed, metadata, description = False, {}, str(error)
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=invariant.asset.key,
        check_name=invariant.name,
        description=description,
        metadata={name: as_shown(value) for name, value in metadata.items()},
    )


def as_shown(value: object) -> str:
    """A measured value as text: Dagster plots numbers, and most of these are always the same."""
    return f"{value:,}" if isinstance(value, int | float) else str(value) or "none"


with warnings.catch_warnings():
    warnings.simplefilter("ignore", dg.PreviewWarning)  # for partitioned checks; the snapshot test covers them
    MARK_CHECKS = [
        as_checks(asset, [invariant for invariant in INVARIANTS if invariant.asset is asset])
        for asset in dict.fromkeys(invariant.asset for invariant in INVARIANTS)
    ]
