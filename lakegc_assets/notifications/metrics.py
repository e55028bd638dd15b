"""Publish the metrics of a repository when a run ends: in a file for the node exporter, and to a push gateway.

A failure never fails the run: it is logged as a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from lakegc_assets.backup.manifest import Backup
from lakegc_assets.notifications import metrics_file
from lakegc_assets.notifications.gauges import Gauge, backup_gauges, repository_gauges
from lakegc_assets.notifications.metrics_file import LABEL, Families
from lakegc_assets.progress import LogMessage
from lakegc_assets.rules.brakes import BrakeLimits
from lakegc_assets.sweep.report import read_report_if_intact
from spark_resources.errors import full_stop
from spark_resources.mark_store.mark import finished_marks, folder_ids
from spark_resources.model import MarkState
from spark_resources.settings import Settings
from spark_resources.stores.place import Place
from spark_resources.stores.prefetch import fetch_in_parallel

JOB = "lakegc"
PUSH_TIMEOUT_S = 10.0
_SWEPT = (MarkState.SWEPT, MarkState.SWEPT_WITH_FAILURES, MarkState.SWEEPING, MarkState.RETIRED)


def publish_repository(place: Place, repository: str, settings: Settings, log_warning: LogMessage) -> None:
    """Publish the metrics of a repository's marks and sweeps, from the records in its namespace, to the destinations in
    the settings."""
    _publish(lambda: _gauges_from_records(place, settings), repository, settings, log_warning)


def publish_backup(backup: Backup, repository: str, settings: Settings, log_warning: LogMessage) -> None:
    """Publish the metrics of a repository's backup to the destinations in the settings. Unlike the backup's own record,
    `repository` includes the name of its server if there are several."""
    _publish(lambda: backup_gauges(backup), repository, settings, log_warning)


def _publish(
    compute: Callable[[], Sequence[Gauge]], repository: str, settings: Settings, log_warning: LogMessage
) -> None:
    """Compute metrics, and publish them in the file, at the push gateway, or both, as set. Errors are only logged."""
    if settings.metrics_file is None and settings.metrics_push_url is None:
        return
    try:
        gauges = compute()
    except Exception as error:  # metrics must not make a successful run fail
        log_warning(f"The metrics of {repository} could not be computed: {error}")
        return
    if settings.metrics_file is not None:
        try:
            metrics_file.update(Path(settings.metrics_file), repository, families(gauges, repository))
        except Exception as error:
            log_warning(f"The metrics of {repository} were not written: {error}")
    if settings.metrics_push_url is not None:
        try:
            push(settings.metrics_push_url, repository, families(gauges, repository))
        except Exception as error:
            log_warning(
                f"The metrics of {repository} were not pushed to {settings.metrics_push_url}: {full_stop(error)} "
                "Check LAKEGC_METRICS_PUSH_URL, and that the push gateway is running."
            )


def _gauges_from_records(place: Place, settings: Settings) -> list[Gauge]:
    records = [mark.record for mark in finished_marks(place).finished]
    not_swept = {record.mark_id for record in records if record.state not in _SWEPT}
    may_be_swept = [mark_id for mark_id in folder_ids(place.store()) if mark_id not in not_swept]  # or foreign
    read = partial(read_report_if_intact, place)
    reports = [report for report in fetch_in_parallel(may_be_swept, read) if report is not None]
    return repository_gauges(records, reports, BrakeLimits.of(settings), now=place.store().now())


def families(gauges: Sequence[Gauge], repository: str) -> Families:
    """Metrics in the form of prometheus_client, labeled with the repository, and one with lakegc's version."""
    from prometheus_client.core import GaugeMetricFamily

    build = GaugeMetricFamily("lakegc_build_info", "lakegc's version, as a label.", labels=["version"])
    build.add_metric([metadata.version("lakegc")], 1)
    found = [build]
    for gauge in gauges:
        family = GaugeMetricFamily(gauge.name, gauge.help, labels=[LABEL])
        family.add_metric([repository], gauge.value)
        found.append(family)
    return Families(tuple(found))


def push(url: str, repository: str, pushed: Families) -> None:
    """Push metrics to the gateway, in a group for each repository. Other metrics of the group are kept."""
    from prometheus_client import pushadd_to_gateway

    pushadd_to_gateway(url, job=JOB, registry=pushed, grouping_key={LABEL: repository}, timeout=PUSH_TIMEOUT_S)
