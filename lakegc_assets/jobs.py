"""The jobs: mark, approve, back up and sweep, each for one partition; checks and retirements in all repositories. Each
runs in one process."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources

import os
from collections.abc import Mapping

import dagster as dg
from pydantic import Field

from lakegc_assets.approval.approve import approve
from lakegc_assets.approval.parse_request import MIN_DIGEST_CHARACTERS, complete_digest
from lakegc_assets.approval.proposals import ApprovalRequest, Proposal, propose
from lakegc_assets.asset_checks.freshness import FRESHNESS_CHECKS
from lakegc_assets.assets.approval_events import materialization
from lakegc_assets.assets.backup import backup
from lakegc_assets.assets.mark import committed_addresses, namespace_slices, retained_commits, uncommitted_addresses
from lakegc_assets.assets.results import reporting_failures
from lakegc_assets.assets.review import expired_set
from lakegc_assets.assets.sweep import sweep_report
from lakegc_assets.mark.repository_selection import list_repositories, select_repositories
from lakegc_assets.partitions import (
    CREATED_TAG,
    PARTITIONS,
    REPOSITORY_TAG,
    TAGGED_CONFIG,
    console_config,
    repository_tag,
)
from lakegc_assets.progress import publishing_logger
from lakegc_assets.resources import MarksResource
from lakegc_assets.retirement.fleet import retire_all
from lakegc_assets.retirement.old_quarantines import Purged, purge_all
from lakegc_assets.retirement.retired_partitions import remove_partitions
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.sweep.preconditions import partition_and_target
from spark_resources.errors import LakegcError, full_stop
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import Repository
from spark_resources.mark_store.approval import Approval
from spark_resources.mark_store.record import CHAIN
from spark_resources.model import Partition
from spark_resources.settings import Settings

APPROVED_IN_UI = "Dagster's UI"


class ApproveConfig(dg.Config):
    """The approval of one mark."""

    by: str = Field(description="your name, as the approver")
    digest: str = Field(
        description=f"digest of the set that you reviewed, at least its first {MIN_DIGEST_CHARACTERS} characters; the "
        "expired_set asset shows it"
    )
    release: dict[str, str] = Field(
        default={}, description="brakes to release, each with a reason, such as {share: old experiments}"
    )
    layout: str = Field(
        default="",
        description="layout of a mark of the reference collector, for example unified, if several layouts have a mark "
        "with this id",
    )


@dg.op(description="Writes the approval into the namespace, or fails and names the unmet precondition.")
def give_approval(context: dg.OpExecutionContext, config: ApproveConfig, marks: MarksResource) -> None:
    with reporting_failures():
        proposal, granted = approve_mark(context.partition_key, config, marks)
    context.log_event(materialization(context.partition_key, proposal, granted))


def approve_mark(partition_key: str, config: ApproveConfig, marks: MarksResource) -> tuple[Proposal, Approval]:
    """Approve the mark of a partition, and return its proposal and the approval.

    Raises the errors of `propose`, `complete_digest` and `approve`; no approval is written in that case.
    """
    partition, target = partition_and_target(marks, partition_key)
    now, settings = target.place.store().now(), marks.settings(partition.repository)
    name = f"{config.layout}/{partition.mark_id}" if config.layout else partition.mark_id
    proposal = propose(target, name, now=now)
    request = ApprovalRequest(
        who=config.by,
        how=APPROVED_IN_UI,
        when=now,
        released=config.release,
        digest=complete_digest(config.digest, proposal.digest),
    )
    limits, lakefs = BrakeLimits.of(settings), marks.lakefs.client()
    granted = approve(proposal, request, lakefs, limits, now=now, single_deployment=settings.single_deployment)
    return proposal, granted


MARK_ASSETS = sorted(
    [namespace_slices, uncommitted_addresses, retained_commits, committed_addresses, expired_set],
    key=lambda asset: CHAIN.index(asset.key.to_user_string()),
)
"""The assets of a mark, in the order in which they are computed (`CHAIN`)."""
FLEET_CHECKS = dg.AssetSelection.checks(*FRESHNESS_CHECKS)
"""The checks that concern all repositories, so that runs for one partition leave them out."""


mark_job = dg.define_asset_job(
    "mark",
    selection=dg.AssetSelection.assets(*MARK_ASSETS) - FLEET_CHECKS,
    config=TAGGED_CONFIG,
    executor_def=dg.in_process_executor,
    description="""Finds the expired objects of one lakeFS repository, with reasons. **It deletes nothing.**

To make a mark: **Materialize all**, then add a partition `repository:mark_id`, for example `lake:20261121T085000Z`: the
repository's id and an id for this mark, by convention the time in UTC. The five assets run one after another in one
process. A failed mark can be resumed from the asset that failed; a finished one is never changed, so the
next mark needs a new id.

The options of a mark are those of the first asset. To set any, hold Shift while clicking *Materialize all*, for
example:

    ops:
      namespace_slices:
        config:
          min_age: 48h
          scope: COMMITTED

All options are described on the page of *namespace_slices*, under *Config*: *scope*, *min_age*, *allow_young*,
*accept_missing*, *inventory*, *inventory_taken*, *since* and *full* (formerly *clean*).""",
)
APPROVE_TEMPLATE = {"ops": {give_approval.name: {"config": {"by": "", "digest": "", "release": {}}}}}


@dg.job(
    name="approve",
    partitions_def=PARTITIONS,
    config=dg.PartitionedConfig(
        PARTITIONS,
        run_config_for_partition_key_fn=lambda _: {**APPROVE_TEMPLATE, **console_config(os.environ)},
        tags_for_partition_key_fn=repository_tag,
    ),
    executor_def=dg.in_process_executor,
    description="""Approves one expired set, so that a sweep may delete it. **It deletes nothing itself.**

On the *Launchpad*: choose the partition `repository:mark_id`, and fill in who you are (`by`) and the digest of the set
that you reviewed (`digest`, at least its first 12 characters; *expired_set* shows it). A brake that has tripped is
released by name, with a reason: `release: {share: the old experiments were deleted on purpose}`. Leave out `layout`:
it is only for marks of the reference collector, and only if several of its layouts have a mark with the same id. If a
precondition isn't met, the run fails immediately and nothing is approved.""",
)
def approve_job() -> None:
    give_approval()


sweep_job = dg.define_asset_job(
    "sweep",
    selection=dg.AssetSelection.assets(sweep_report) - FLEET_CHECKS,
    config=TAGGED_CONFIG,
    executor_def=dg.in_process_executor,
    description="""Deletes approved objects that are still garbage. **This job deletes.**

It takes one partition, `repository:mark_id`, whose mark was approved (see *sweep_approval*), re-verifies everything,
and reports on every object. An interrupted sweep resumes when it is launched again.

Dagster warns that *backup*, which comes before *sweep_report*, hasn't been materialized. Unless LAKEGC_BACKUP_TO is
set, no backup is needed: launch the sweep all the same.""",
)
backup_job = dg.define_asset_job(
    "back_up",
    selection=dg.AssetSelection.assets(backup),
    config=TAGGED_CONFIG,
    executor_def=dg.in_process_executor,
    description="""Copies one mark's expired objects to another bucket, container or folder. **It deletes nothing.**

It takes one partition, `repository:mark_id`; the destination is LAKEGC_BACKUP_TO, or `to` in its config. An
interrupted backup resumes when it is launched again.""",
)
backup_and_sweep_job = dg.define_asset_job(
    "back_up_and_sweep",
    selection=dg.AssetSelection.assets(backup, sweep_report) - FLEET_CHECKS,
    config=TAGGED_CONFIG,
    executor_def=dg.in_process_executor,
    description="""Backs up approved objects to LAKEGC_BACKUP_TO, then sweeps them. **This job deletes,
too**, but only objects that are in the backup.""",
)

freshness_job = dg.define_asset_job(
    "freshness",
    selection=FLEET_CHECKS,
    executor_def=dg.in_process_executor,
    description="""Checks whether every repository is marked and swept often enough. It changes nothing, and takes no
partition.""",
)


@dg.op(
    description="Retires old marks and purges old quarantines, repository by repository, as their settings say. A "
    "repository with a problem doesn't hold up the others: at the end, the run fails and names the repository."
)
def retire_and_purge(context: dg.OpExecutionContext, marks: MarksResource) -> None:
    log_message = publishing_logger(context.log.info)
    with reporting_failures():
        client = marks.lakefs.client()
        repositories, failures = list_repositories(client)
        selected = select_repositories(repositories, Settings.load(os.environ, home_folder()))
        names, problems = [repository.id for repository in selected], list(failures.values())
        for outcome in retire_all(client, names, marks.settings, apply=True, log_message=log_message):
            log_message(outcome.sentence())
            problems += [outcome.sentence()] if outcome.error else []
            if outcome.retirements is not None:
                retired = [*outcome.retirements.applied, *outcome.retirements.earlier]
                remove_partitions(context.instance, outcome.repository, retired)
        for repository, purged in purge_all(marks, names, log_message):
            sentence = f"{repository}: {purged}" if isinstance(purged, LakegcError) else purged.sentence(repository)
            log_message(sentence)
            if isinstance(purged, LakegcError) or purged.error:
                problems.append(sentence)
            else:
                context.log_event(purge_observation(repository, purged, sentence))
        if problems:
            raise LakegcError(" ".join(map(full_stop, problems)))


def purge_observation(repository: str, purged: Purged, sentence: str) -> dg.AssetObservation:
    """The event on the page of `sweep_report` that says what became of a quarantine."""
    key = str(Partition.of(repository, purged.mark_id))
    return dg.AssetObservation(sweep_report.key, partition=key, description=sentence, metadata=dict(purged.objects))


@dg.job(
    name="retire",
    executor_def=dg.in_process_executor,
    description="""Retires marks that are older than *retire_after* and that nothing needs any more, and purges
quarantines that are older than *purge_after*, in all selected repositories. It takes no partition. **It deletes objects
in quarantine**, after another re-verification, and lakegc's own files of old marks.""",
)
def retire_job() -> None:
    retire_and_purge()


def mark_request(repository: Repository, mark_id: str, run_key: str, tags: Mapping[str, str]) -> dg.RunRequest:
    """The request to mark a repository, with the configured scope. The caller has to add the partition to Dagster."""
    scope = Settings.load(os.environ, home_folder(), repository=repository.id).mark_scope
    return dg.RunRequest(
        run_key=run_key,
        run_config={
            "ops": {namespace_slices.op.name: {"config": {"scope": scope.name}}},
            **console_config(os.environ),
        },
        partition_key=str(Partition.of(repository.id, mark_id)),
        tags={REPOSITORY_TAG: repository.id, CREATED_TAG: repository.created.isoformat(), **tags},
    )
