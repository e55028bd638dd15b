"""The settings of lakegc.

`settings` has all of them. Two of their sources have modules of their own: `fleet_file` and `lakectl`. `value_types`
parses values, and `value_errors` explains invalid ones.
"""

from spark_resources.settings.settings import (
    ADDITIVE_SETTINGS,
    DEFAULT_MARK_CRON,
    RENAMED,
    Settings,
    has_json_logs,
    refuse_unknown_variables,
    unknown_variables,
)
from spark_resources.settings.value_types import parse_duration

__all__ = [
    "ADDITIVE_SETTINGS",
    "DEFAULT_MARK_CRON",
    "RENAMED",
    "Settings",
    "has_json_logs",
    "parse_duration",
    "refuse_unknown_variables",
    "unknown_variables",
]
