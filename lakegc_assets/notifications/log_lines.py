"""Structured logs: one JSON object per line, with the run, repository and mark that the message is about."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from lakegc_assets.progress import RunFields


def json_line(time: datetime, level: str, message: str, about: RunFields) -> str:
    """One line in ASCII, so that no message can end it or control a terminal. Unknown fields are null."""
    fields = {"run": about.run_id, "repository": about.repository, "mark": about.mark_id}
    return json.dumps(
        {"time": time.astimezone(UTC).isoformat(timespec="milliseconds"), "level": level, "message": message, **fields}
    )
