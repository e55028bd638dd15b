"""The types of settings: their values in text, TOML or JSON, parsed and checked."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode

from spark_resources.identifiers import Event

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(w|d|h|m|s)")
_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `24h`, `90m`, `1d12h` or `0`. Raises `ValueError`, including if a number has no unit."""
    stripped = text.strip().lower()
    parts = _DURATION_PART.findall(stripped)
    if stripped == "0":
        return timedelta(0)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise ValueError(f"'{text}' is not a duration")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
    except OverflowError:
        raise ValueError(f"the duration '{text}' is too long") from None


def _duration(value: object) -> object:
    """A duration's text as a timedelta, or the timedelta itself. A number is refused, because its unit is unknown."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError("not a duration")


def _url(value: object) -> object:
    """An http(s) URL. A user name or password is refused, because messages would show it."""
    if isinstance(value, str) and re.fullmatch(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", value.strip()):
        return value.strip()
    raise ValueError("not an http(s) URL")


def _webhook(value: object) -> object:
    """An http(s) URL, which may have a query. A user name or password is refused, because it wouldn't be sent."""
    if isinstance(value, str) and re.fullmatch(r"https?://[^/?#@\s]+(/[^#\s]*)?", value.strip()):
        return value.strip()
    raise ValueError("not an http(s) URL")


def _metrics_file(value: str) -> str:
    """An absolute path that the node exporter reads. Raises `ValueError` for any other."""
    if not value.startswith("/") or not value.endswith(".prom"):
        raise ValueError("not an absolute path that ends with .prom")
    return value


def _event_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns that each match an event. Others are refused: a misspelled one would silently drop notifications."""
    for pattern in patterns:
        if not any(fnmatchcase(event, pattern) for event in Event):
            raise ValueError(f"no event matches {pattern}")
    return patterns


def _destination(value: str) -> str:
    """A destination for backups. Secrets in its URI are refused, because messages would show them."""
    if re.match(r"https?://[^?#@]*[?#@]|[^/]*://[^/@]*:[^/@]*@", value.strip(), re.IGNORECASE):
        raise ValueError("it has a user name, a password or a query")
    return value


def _cron(value: object) -> object:
    """A cron expression with five fields. Raises `ValueError` if it isn't one."""
    if not isinstance(value, str):
        raise ValueError("not a cron expression")
    try:
        CronSim(value, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ValueError(str(error)) from None
    return value


def _split_list(value: object) -> object:
    """The parts of a text (patterns or keys), which are separated by commas or spaces; any other value unchanged."""
    return tuple(re.findall(r"[^,\s]+", value)) if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(0))]
Days = Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(days=1))]
Wait = Annotated[timedelta, BeforeValidator(_duration), Field(ge=timedelta(0), le=timedelta(days=365))]
Url = Annotated[str, BeforeValidator(_url)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
RetrySeconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
HeadCheck = Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)]
Requests = Annotated[int, Field(ge=1, le=256)]
Tasks = Annotated[int, Field(ge=1, le=100_000)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1)]
Cron = Annotated[str, BeforeValidator(_cron)]
Destination = Annotated[Name, AfterValidator(_destination)]
Secret = Annotated[SecretStr, Field(min_length=1)]
Patterns = Annotated[tuple[Name, ...], NoDecode, BeforeValidator(_split_list)]
SecretTexts = Annotated[tuple[Secret, ...], NoDecode, BeforeValidator(_split_list)]
Webhook = Annotated[SecretStr, BeforeValidator(_webhook)]
MetricsFile = Annotated[Name, AfterValidator(_metrics_file)]
Events = Annotated[Patterns, AfterValidator(_event_patterns)]
