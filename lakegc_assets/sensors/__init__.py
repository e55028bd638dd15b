"""The sensors of the code location, one module each. All are off until they are turned on in Dagster's UI."""

from lakegc_assets.sensors import auto_approvals
from lakegc_assets.sensors.approvals import approved_sweeps
from lakegc_assets.sensors.failed_sweeps import resumed_sweeps
from lakegc_assets.sensors.notifications import notifications
from lakegc_assets.sensors.repositories import new_repositories
from lakegc_assets.sensors.waiting_marks import waiting_marks

SENSORS = [
    new_repositories,
    waiting_marks,
    auto_approvals.auto_approvals,
    approved_sweeps,
    resumed_sweeps,
    notifications,
]
