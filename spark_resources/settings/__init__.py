"""The settings of lakegc: what there is to set (`settings`), and the file for a fleet (`fleet_file`)."""

from spark_resources.settings.settings import DEFAULT_MARK_CRON, RENAMED, Settings, has_json_logs, parse_duration

__all__ = ["DEFAULT_MARK_CRON", "RENAMED", "Settings", "has_json_logs", "parse_duration"]
