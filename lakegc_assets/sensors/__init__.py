"""The sensors of the code location, one module each. All are off until they are turned on in Dagster's UI."""

from lakegc_assets.sensors.approvals import approved_sweeps
from lakegc_assets.sensors.notifications import notifications
from lakegc_assets.sensors.repositories import new_repositories

SENSORS = [new_repositories, approved_sweeps, notifications]
