"""The logger of Dagster's runs on stderr: Dagster's own with escaped messages, or lines of JSON if the setting
`log_format` is json."""

# no `from __future__ import annotations` here: Dagster reads the annotations of configs and resources
import logging
import os
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from lakegc_assets.formatting import escaped_name
from lakegc_assets.notifications.log_lines import json_line
from lakegc_assets.partitions import PARTITION_TAG
from lakegc_assets.progress import RunFields
from spark_resources.errors import LakegcError
from spark_resources.host.user_folders import home_folder
from spark_resources.identifiers import Partition
from spark_resources.settings import has_json_logs

_CONFIG = {
    "log_level": dg.Field(str, is_required=False, default_value="INFO", description="the lowest level that is shown"),
    "name": dg.Field(str, is_required=False, default_value="dagster", description="the name of the logger"),
}


class JsonFormatter(logging.Formatter):
    """Formats a record of a Dagster run as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        known: dict[str, Any] = getattr(record, "dagster_meta", {})
        message = known.get("orig_message") or record.getMessage()
        about = fields_of(known.get("run_id"), (known.get("job_tags") or {}).get(PARTITION_TAG, ""))
        return json_line(datetime.fromtimestamp(record.created, UTC), record.levelname, message, about)


def escape_message(record: logging.LogRecord) -> bool:
    """A logging filter that escapes messages and drops none. Messages can contain keys and texts from servers, which
    could control the terminal; Dagster adds its colors later."""
    record.msg, record.args = "\n".join(map(escaped_name, record.getMessage().split("\n"))), None
    return True


def fields_of(run_id: str | None, partition_key: str) -> RunFields:
    try:
        partition = Partition.parse(partition_key)
    except LakegcError:
        return RunFields(run_id)
    return RunFields(run_id, partition.repository, partition.mark_id)


@dg.logger(_CONFIG, description="Lines on stderr, in the format that the setting log_format selects.")
def console(context: dg.InitLoggerContext) -> logging.Logger:
    if not has_json_logs(os.environ, home_folder()):
        found: logging.Logger = dg.colored_console_logger.logger_fn(context)
        for existing in found.handlers:
            existing.addFilter(escape_message)
        return found
    logger = logging.getLoggerClass()(context.logger_config["name"], context.logger_config["log_level"].upper())
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger
