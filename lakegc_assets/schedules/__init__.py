"""The schedules of the code location, one module each. All are off until they are turned on in Dagster's UI."""

from lakegc_assets.schedules.freshness import check_freshness
from lakegc_assets.schedules.marks import mark_repositories
from lakegc_assets.schedules.retirement import retire_old_marks

SCHEDULES = [mark_repositories, check_freshness, retire_old_marks]
