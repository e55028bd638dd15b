"""Group `mark`: four assets, each computed once per repository and mark, in the order that keeps data safe.

The order is the safety rule of the whole system. Objects are listed first and references are read afterwards, so a
later step can only find *more* references to these objects. An object that moves from staging to a commit in the
meantime is seen by at least one of the later steps. Each asset depends on the one before it in `CHAIN`, the only
place that defines the order.
"""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources

import dagster as dg
from pydantic import Field

from lakegc_assets.assets.owners import OWNERS
from lakegc_assets.assets.results import (
    MaterializeResults,
    reporting_failures,
    yielding_to_lease_holder,
)
from lakegc_assets.mark import committed_addresses as committed
from lakegc_assets.mark import namespace_slices as slices
from lakegc_assets.mark import retained_commits as retained
from lakegc_assets.mark import uncommitted_addresses as uncommitted
from lakegc_assets.mark.metadata import step_result
from lakegc_assets.mark.options import MarkOptions, checked_losses, parse_inventory_taken, parse_min_age
from lakegc_assets.partitions import PARTITIONS
from lakegc_assets.resources import MarksResource
from spark_resources.errors import WrongUsage
from spark_resources.mark_store.record import CHAIN
from spark_resources.model import ADDRESSES, COMMIT_VERDICTS, RANGE_ADDRESSES, STORED_OBJECTS, Scope


def previous_asset(name: str) -> dg.AssetKey:
    """The key of the asset that a mark computes right before this one."""
    return dg.AssetKey(CHAIN[CHAIN.index(name) - 1])


class MarkConfig(dg.Config):
    """The options of one mark. The first asset takes them, and the mark records them."""

    scope: Scope = Field(
        default=Scope.UNIFIED,
        description="unified: every stored object; committed: objects that only expired commits refer to; "
        "uncommitted: objects that no commit refers to",
    )
    min_age: str = Field(
        default="", description="keep objects younger than this by the store's clock, e.g. 24h; empty: as configured"
    )
    allow_young: bool = Field(
        default=False, description="allow a minimum age below 24h; only safe while nothing is being written"
    )
    accept_missing: list[str] = Field(default=[], description="live addresses that are known to be lost")
    inventory: str = Field(
        default="",
        description="read this list of objects instead of listing the bucket: s3://…/manifest.json of S3 "
        "Inventory, or Parquet or CSV with key, size, time and checksum",
    )
    inventory_taken: str = Field(
        default="", description="start time of an inventory without a manifest, e.g. 2026-11-21T00:00:00Z"
    )

    since: str = Field(
        default="",
        description="the finished mark on which to base an incremental mark, which reads only what may have changed "
        "since then; empty: the newest one",
    )
    full: bool = Field(default=False, description="make a full mark even if an incremental one is possible")
    clean: bool | None = Field(default=None, description="former name of full; refused")

    def options(self) -> MarkOptions:
        """Parse the options of a mark. Raises `WrongUsage` for invalid ones."""
        if self.clean is not None:
            raise WrongUsage(
                "the option 'clean' was renamed to 'full': set 'full' in the run's config, and leave out 'clean'"
            )
        min_age, missing = parse_min_age(self.min_age), checked_losses(self.accept_missing)
        inventory_taken = parse_inventory_taken(self.inventory_taken, self.inventory)
        return MarkOptions(
            self.scope, min_age, self.allow_young, missing, self.inventory, inventory_taken, self.since, self.full
        )


@dg.asset(
    group_name="mark",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    kinds={"pyspark", "parquet"},
    output_required=False,
)
def namespace_slices(context: dg.AssetExecutionContext, config: MarkConfig, marks: MarksResource) -> MaterializeResults:
    """Every stored object that may be collected: address, size, time and checksum, as the store lists them.

    **The system in short.** lakeFS adds branches and commits to a bucket. A file that is overwritten or deleted in
    lakeFS stays in the bucket, because some commit may still refer to it, and lakeFS itself removes nothing. lakegc
    finds the objects that nothing refers to any more. A *mark* is one scan of one repository: group **mark**
    collects what is stored and what is referred to, group **review** is what remains, for a person to review and
    approve, and group **sweep** deletes what was approved, and nothing else. The partition `repository:mark_id` names
    the repository and the scan.

    This must be the first step: an object that is written after it isn't on the list, so it can't be mistaken for
    garbage, no matter what the later steps see. It lists the repository's folder `data/` and legacy objects next to it,
    never lakeFS's own files. The step also compares the clocks of the store, the server and this machine, and takes the
    repository's lease, so that two marks of one repository never run concurrently.
    """
    with reporting_failures(context):
        marks.refuse_finished(context.partition_key)
        with yielding_to_lease_holder(context):
            run = marks.begin(context.partition_key, config.options(), context.log.info)
        slices.list_namespace(run)
        yield step_result(run, slices.ASSET, STORED_OBJECTS)


@dg.asset(
    group_name="mark",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[previous_asset("uncommitted_addresses")],
    kinds={"pyspark", "parquet"},
    output_required=False,
)
def uncommitted_addresses(context: dg.AssetExecutionContext, marks: MarksResource) -> MaterializeResults:
    """Every address that is staged on a branch and not committed, read twice. None of these objects is garbage.

    *Staged* changes were uploaded to a branch and aren't committed yet. No commit refers to them, but readers of
    the branch see them. The server lists them branch by branch. Files may be moved or renamed while it does, so the
    list is read twice in full, and an object that is in either reading is live.

    The list is read before the commits, so an object that is committed in between is on this list, among the committed
    addresses, or both.
    """
    with reporting_failures(context):
        run = marks.resume(context.partition_key, context.log.info)
        uncommitted.read_uncommitted(run)
        yield step_result(run, uncommitted.ASSET, ADDRESSES, part=uncommitted.READINGS[0])


@dg.asset(
    group_name="mark",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[previous_asset("retained_commits")],
    kinds={"parquet"},
    output_required=False,
)
def retained_commits(context: dg.AssetExecutionContext, marks: MarksResource) -> MaterializeResults:
    """Every commit with its verdict: retained or expired, by which branch and rule, and until when.

    A repository's *retention rules* say for how many days the history of each branch is kept. Commits that a rule still
    keeps, and the newest commit of every branch, are *retained*. The others are *expired*: their files are deleted if
    nothing else needs them. Without rules, every commit is retained. Commits that the rules expire but holds keep (by
    tag, say, or by metadata that marks legal evidence) are retained, too, with the names of those holds.

    The verdict is computed twice, by lakegc from the commit graph and by the server, and a commit is retained if either
    of them retains it. If lakegc isn't permitted to read the graph, the server's verdict is used, and the reason says
    so.
    """
    with reporting_failures(context):
        run = marks.resume(context.partition_key, context.log.info)
        retained.decide_commits(run)
        yield step_result(run, retained.ASSET, COMMIT_VERDICTS)


@dg.asset(
    group_name="mark",
    owners=OWNERS,
    partitions_def=PARTITIONS,
    deps=[previous_asset("committed_addresses")],
    kinds={"pyspark", "parquet"},
    output_required=False,
)
def committed_addresses(context: dg.AssetExecutionContext, marks: MarksResource) -> MaterializeResults:
    """Every address that a retained commit reaches. Each range of a commit is read once.

    A commit is a table of paths and their objects, split into files called *ranges*. A range that didn't change is
    shared between commits. All ranges of all retained commits are read on Spark's executors. Each is verified against
    its checksums and the commit's metadata. A missing or damaged range stops the mark, since an object whose address
    can't be read would look like garbage.
    """
    with reporting_failures(context):
        run = marks.resume(context.partition_key, context.log.info)
        committed.read_ranges(run)
        yield step_result(run, committed.ASSET, RANGE_ADDRESSES, part=committed.ADDRESSES_PART)
