"""Marks as a Dagster resource, which opens a partition's mark for a step and holds the repository's lease for the
run."""

# no `from __future__ import annotations` here: Dagster reads the annotations of resources

import os
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from dagster import ConfigurableResource, InitResourceContext, ResourceDependency
from pydantic import PrivateAttr

from lakegc_assets.mark import inventory_listing
from lakegc_assets.mark.context import (
    Limits,
    MarkRun,
    Target,
    find_target,
    read_clocks,
    user_and_machine,
    versions,
    with_probed_capabilities,
)
from lakegc_assets.mark.options import MarkOptions, check_min_age, refuse_contradictions
from lakegc_assets.mark.preconditions import (
    refuse_different_basis,
    refuse_different_repository,
    refuse_overlap,
    refuse_read_only,
)
from lakegc_assets.progress import LogMessage, publish, publishing_logger
from lakegc_assets.rules.incremental import basis_of
from spark_resources.host.processes import interrupt_on_termination
from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs import LakeFS
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.mark_store.holds import read_holds
from spark_resources.mark_store.lease import Lease, take_lease
from spark_resources.mark_store.mark import Mark, claim_namespace, finished_marks
from spark_resources.mark_store.quarantine_format import refuse_unknown_quarantine_format
from spark_resources.mark_store.record import FULL_MARK, MarkRecord
from spark_resources.model import MarkState, Partition, cutoff_for
from spark_resources.settings import Settings
from spark_resources.spark.resource import SparkResource
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings


class MarksResource(ConfigurableResource["MarksResource"]):
    """Opens marks, with the settings from `LAKEGC_*` environment variables and the fleet file (see
    `spark_resources.settings`)."""

    lakefs: ResourceDependency[LakeFSResource]
    spark: ResourceDependency[SparkResource]

    _lease: Lease | None = PrivateAttr(default=None)
    _capabilities: dict[Place, Capabilities | None] = PrivateAttr(default_factory=dict)
    _store_settings: dict[tuple[str, ...], StoreSettings] = PrivateAttr(default_factory=dict)

    def refuse_finished(self, partition_key: str) -> None:
        """Raise `NothingToDo` if the mark is finished. Called before options, clocks or the lease are checked,
        because a finished mark never changes, even if something else is wrong with the request."""
        partition = Partition.parse(partition_key)
        place = find_target(self.lakefs.client(), partition.repository, self.settings(partition.repository)).place
        if Mark.exists(place, partition.mark_id):
            Mark.open(place, partition.mark_id).check_unfinished()

    def begin(self, partition_key: str, options: MarkOptions, log_message: LogMessage) -> MarkRun:
        """Begin the mark of a partition, or resume it if it is unfinished. Takes the lease.

        Raises `Refused` if the namespace, the clocks, the lease or the minimum age forbids the mark (invariants 5, 6,
        11, 12), `WrongUsage` for contradictory options.
        """
        partition, lakefs = Partition.parse(partition_key), self.lakefs.client()
        settings = self.settings(partition.repository)
        refuse_contradictions(options)
        min_age = check_min_age(settings.min_age if options.min_age is None else options.min_age, options)
        target = find_target(lakefs, partition.repository, settings)
        refuse_read_only(target.repository)
        refuse_overlap(target, lakefs)
        target = self._with_capabilities(target)
        clocks = read_clocks(target.place.store(), lakefs, target.repository.server, lambda: datetime.now(UTC))
        clocks.check(settings.max_clock_skew, partition.repository)
        self.ensure_lease(partition, target, settings)
        inventory, start = self._inventory(options, target, clocks.store, settings)
        claim_namespace(target.place, target.repository.id, target.repository.created)
        refuse_unknown_quarantine_format(target.place)
        record = MarkRecord(
            mark_id=partition.mark_id,
            state=MarkState.MARKING,
            repository=target.repository.id,
            repository_created=target.repository.created,
            namespace=target.place.namespace.uri,
            scope=options.scope,
            min_age=min_age,
            start=start,
            cutoff=cutoff_for(start, min_age),
            server_now=clocks.server,
            rules=lakefs.rules(partition.repository),
            by=user_and_machine(),
            versions=versions(),
            clocks=clocks.for_record(),
            accepted_missing=options.accept_missing,
            holds=read_holds(target.place, target.configured_holds).record_fields(),
            inventory=inventory,
        )
        record = replace(record, basis={**FULL_MARK, "spellings": sorted(target.place.namespace.aliases)})
        known = finished_marks(target.place)
        basis = basis_of(
            record, [mark.record for mark in known.finished], untrusted=known.untrusted,
            since=options.since, full=options.full, every=settings.full_every,
        )  # fmt: skip
        record = replace(record, basis=basis)
        mark = Mark.begin(target.place, record)
        refuse_different_basis(mark.record, options)
        return self._run(partition, target, mark, lakefs, log_message)

    def resume(self, partition_key: str, log_message: LogMessage) -> MarkRun:
        """Open a partition's unfinished mark for its next step. Takes the lease unless this run already holds it."""
        partition, lakefs = Partition.parse(partition_key), self.lakefs.client()
        settings = self.settings(partition.repository)
        target = self._with_capabilities(find_target(lakefs, partition.repository, settings))
        mark = Mark.open(target.place, partition.mark_id)
        mark.check_unfinished()
        self.ensure_lease(partition, target, settings)
        refuse_different_repository(mark.record, target)
        return self._run(partition, target, mark, lakefs, log_message)

    def record(self, partition_key: str) -> MarkRecord:
        """The current record of a partition's mark, read from the namespace."""
        partition = Partition.parse(partition_key)
        target = find_target(self.lakefs.client(), partition.repository, self.settings(partition.repository))
        return Mark.open(target.place, partition.mark_id).record

    def store_time(self, partition_key: str) -> datetime:
        """The current time by the clock of the store that contains a partition's mark."""
        repository = Partition.parse(partition_key).repository
        return find_target(self.lakefs.client(), repository, self.settings(repository)).place.store().now()

    def settings(self, repository: str) -> Settings:
        """The settings that apply to a repository."""
        return Settings.load(os.environ, home_folder(), repository=repository)

    def store_settings(self, repository: str) -> StoreSettings:
        """The settings for the store of a repository. They are loaded once per run for all repositories to which the
        same sections of the fleet file apply, because a mark needs those of every other repository."""
        fleet = Settings.fleet_file(os.environ)
        sections = () if fleet is None else tuple(fleet.matching(repository))
        if sections not in self._store_settings:
            self._store_settings[sections] = self.settings(repository).store_settings()
        return self._store_settings[sections]

    def ensure_lease(self, partition: Partition, target: Target, settings: Settings) -> Lease:
        """Take the repository's lease once per run, and return it. Raises `Refused` if another run holds it, or if it
        was lost after this run had taken it."""
        if self._lease is None:
            interrupt_on_termination()
            self._lease = take_lease(
                target.place.store(),
                who=user_and_machine(),
                mark_id=partition.mark_id,
                token=secrets.token_hex(16),
                single_deployment=settings.single_deployment,
                log_message=publish,
            )
        self._lease.check()
        return self._lease

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        self.release()

    def release(self) -> None:
        """Release the lease, if one was taken."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def _inventory(
        self, options: MarkOptions, target: Target, now: datetime, settings: Settings
    ) -> tuple[dict[str, Any] | None, datetime]:
        """What a mark records about its inventory (None without one), and the mark's start: `now` (by the store's
        clock), or the time at which the inventory was taken, if that is earlier."""
        if not options.inventory:
            return None, now
        inventory = inventory_listing.inventory_for_mark(
            options.inventory, options.inventory_taken, target, now=now, skew=settings.max_clock_skew
        )
        return inventory.record_fields(), min(now, inventory.taken)

    def _with_capabilities(self, target: Target) -> Target:
        """The target with the capabilities of its store, which are looked up once per run."""
        unprobed = target.place
        if unprobed not in self._capabilities:
            self._capabilities[unprobed] = with_probed_capabilities(target).place.capabilities
        return replace(target, place=replace(unprobed, capabilities=self._capabilities[unprobed]))

    def _run(
        self, partition: Partition, target: Target, mark: Mark, lakefs: LakeFS, log_message: LogMessage
    ) -> MarkRun:
        limits = self.limits(partition.repository)
        return MarkRun(
            partition, target, mark, lakefs, self.session, limits, publishing_logger(log_message),
            store_settings_of=self.store_settings,
        )  # fmt: skip

    def limits(self, repository: str) -> Limits:
        settings = self.settings(repository)
        return Limits(
            settings.max_clock_skew,
            settings.max_missing,
            settings.max_probes,
            settings.trusted_repositories,
            settings.require_other_repositories,
        )

    def session(self) -> Any:
        """The run's Spark session, started on first use."""
        return self.spark.spark_session
