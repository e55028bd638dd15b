"""The settings of lakegc: what there is to set (`settings`), and the file for a fleet (`fleet_file`)."""

from spark_resources.settings.settings import (
    ADDITIVE_SETTINGS,
    DEFAULT_MARK_CRON,
    RENAMED,
    Settings,
    has_json_logs,
    parse_duration,
    refuse_unknown_variables,
    unknown_variables,
)

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
