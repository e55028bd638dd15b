"""The sensor that approves marks by the policies in the settings. It is off until it is turned on in Dagster's UI."""

# no `from __future__ import annotations` here: Dagster reads the annotations of schedules and sensors
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import dagster as dg

from lakegc_assets.approval.auto_approval import Decision, apply_policy
from lakegc_assets.assets.approval_events import DIGEST, report_approval, shown_digest
from lakegc_assets.assets.review import APPROVAL
from lakegc_assets.mark.context import with_probed_capabilities
from lakegc_assets.mark.repository_selection import list_repositories, select_repositories
from lakegc_assets.sensors.tick_budget import client_for_tick, target_for_tick
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.approval import Approval
from spark_resources.model import Partition
from spark_resources.settings import Settings

CONCURRENT_REPOSITORIES = 8
TICK_TIMEOUT_S = 30.0
"""How long a tick waits for its repositories. Those that take longer continue, and the next tick reports them."""

_running: dict[str, Future[Decision | None]] = {}
"""The repositories that an earlier tick began, so that none is decided twice at the same time."""


def decide(lakefs: LakeFS, repository: str) -> Decision | None:
    """Apply a repository's policy to its newest mark; None if it has no policy (`auto_approve`)."""
    if not Settings.load(os.environ, home_folder(), repository=repository).auto_approve:
        return None
    target, settings = target_for_tick(lakefs, repository)
    return apply_policy(with_probed_capabilities(target), lakefs, settings)


def decide_all(
    repositories: Iterable[str], decide_one: Callable[[str], Decision | None]
) -> dict[str, Decision | BaseException]:
    """Apply the policies of all repositories in parallel, so that none holds up the others. Returns the decision on
    each, or its error. Those without a policy, and those that take longer than TICK_TIMEOUT_S, are left out."""
    executor = ThreadPoolExecutor(max_workers=CONCURRENT_REPOSITORIES, thread_name_prefix="lakegc-auto-approval")
    for repository in repositories:
        if repository not in _running:
            _running[repository] = executor.submit(decide_one, repository)
    wait(_running.values(), timeout=TICK_TIMEOUT_S)
    executor.shutdown(wait=False, cancel_futures=True)
    results: dict[str, Decision | BaseException] = {}
    for repository, future in list(_running.items()):
        if not future.done():
            continue
        del _running[repository]
        if not future.cancelled() and (result := future.exception() or future.result()) is not None:
            results[repository] = result
    return results


def was_reported(instance: dg.DagsterInstance, partition: Partition, approval: Approval) -> bool:
    """Whether Dagster has the event of this approval, under any key of its partition: a second one would start a second
    sweep. Dagster doesn't have it if the daemon was killed after approving."""
    newest = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=APPROVAL, asset_partitions=partition.keys), limit=10
    ).records
    events = [event.asset_materialization for event in newest]
    shown = (shown_digest(approval), approval.digest)  # events of earlier versions have the whole digest
    return any(
        event is not None and DIGEST in event.metadata and event.metadata[DIGEST].value in shown for event in events
    )


def report_new(instance: dg.DagsterInstance, repository: str, decision: Decision) -> None:
    """Report an approval to Dagster, unless it has been reported."""
    if decision.proposal is None or decision.approval is None:
        return
    partition = Partition.of(repository, decision.approval.mark_id)
    if not was_reported(instance, partition, decision.approval):
        report_approval(instance, str(partition), decision.proposal, decision.approval)


@dg.sensor(
    minimum_interval_seconds=300,
    description="""Approves the newest mark of each repository that has auto_approve turned on, if the mark meets the
policy in the repository's auto_approve_… settings. It first announces the approval in the mark's folder, and waits
(auto_approve_wait, by default a day). `lakegc status` and `lakegc review` show what is announced, and `lakegc revoke`
withdraws it for good. When the approval is due, everything is checked again. The sensor approved_sweeps then starts the
sweep. Each tick says, for each repository, what was decided, and every condition that isn't met.""",
)
def auto_approvals(context: dg.SensorEvaluationContext, lakefs: LakeFSResource) -> dg.SkipReason:
    try:
        client = client_for_tick(lakefs)
        repositories, failures = list_repositories(client)
        selected = select_repositories(repositories, Settings.load(os.environ, home_folder()))
    except LakegcError as error:
        return dg.SkipReason(str(error))
    results = decide_all([repository.id for repository in selected], lambda name: decide(client, name))
    sentences, unexpected = list(failures.values()), []
    for repository, result in sorted(results.items()):
        try:
            if isinstance(result, BaseException):
                raise result
            sentences.append(f"{repository}: {result.sentence}")
            report_new(context.instance, repository, result)
        except LakegcError as error:
            sentences.append(f"{repository}: {error}")
            context.log.error(sentences[-1])
        except Exception as error:
            unexpected.append(error)
    if unexpected:
        raise unexpected[0]  # a bug fails the tick, but only after all other repositories
    sentences += [f"{repository}: still being checked" for repository in sorted(_running)]
    return dg.SkipReason("\n".join(sentences) or "No selected repository has auto_approve turned on.")
