"""Times in HTTP headers and listings."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache


@lru_cache(maxsize=8192)
def http_time(text: str) -> datetime:
    """An HTTP date as a UTC time, in whole seconds. Raises `ValueError` if it is invalid or has no time zone."""
    try:
        time = parsedate_to_datetime(text)
        if time.tzinfo is None:
            raise ValueError(f"the time {text:.80} has no time zone")
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"the time {text:.80} is out of range") from error
