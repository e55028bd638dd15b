"""Checks of Dagster's home: the daemon, which runs schedules and sensors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import platformdirs

from lakegc_assets.doctor.findings import Result, not_tried, ok, warning
from lakegc_assets.formatting import age
from spark_resources.host.user_folders import NAME

GROUP = "Dagster"
HEARTBEAT_VALID_FOR = timedelta(minutes=5)  # a daemon writes one every 30 seconds
START = "Start a daemon with 'lakegc ui'."


def is_configured(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("DAGSTER_HOME", "").strip())


def home_of(environ: Mapping[str, str]) -> Path:
    """The folder of Dagster's history, which might not exist: `DAGSTER_HOME`, or lakegc's own folder."""
    if is_configured(environ):
        return Path(environ["DAGSTER_HOME"].strip()).expanduser()
    return platformdirs.user_data_path(NAME) / "dagster"


def daemon(home: Path, now: datetime) -> Result:
    """When the daemon of a home last sent a heartbeat. Creates no instance."""
    if not (home / "dagster.yaml").is_file():
        return not_tried(f"{home} has no Dagster instance yet. The first mark creates it.")
    with dg.DagsterInstance.from_config(str(home)) as instance:
        heartbeats = list(instance.get_daemon_heartbeats().values())
    if not heartbeats:
        return ok(f"no daemon has run yet. Schedules and sensors need one. {START}")
    latest = max(heartbeats, key=lambda heartbeat: heartbeat.timestamp)
    since = now - datetime.fromtimestamp(latest.timestamp, UTC)
    if since > HEARTBEAT_VALID_FOR:
        return warning(
            f"the daemon's last heartbeat was {age(since)} ago: schedules and sensors aren't running.", START
        )
    failed = sorted(str(beat.daemon_type) for beat in heartbeats if beat.errors)
    if failed:
        return warning(
            f"running, but with errors: {', '.join(failed)}.",
            "Look at the errors in the UI, under Deployment > Daemons.",
        )
    return ok(f"running; last heartbeat {age(since)} ago")
