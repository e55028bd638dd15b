"""How small records are written as JSON, so that the same record is the same bytes, and how their times are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def record_bytes(plain: Mapping[str, Any]) -> bytes:
    """A record as a file has it; times in UTC. Raises `TypeError` for what has no place in JSON."""
    return json.dumps(plain, indent=1, sort_keys=True, default=_as_text).encode()


def _as_text(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"{value!r} does not belong into a record")


def time_of(text: str) -> datetime:
    """A time of a record, in UTC. Raises `ValueError` for what isn't one, or has no zone."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"the time {text} has no zone")
    return found.astimezone(UTC)
