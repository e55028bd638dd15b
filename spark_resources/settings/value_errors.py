"""Errors about values of settings: the source of the value, the value itself unless it may be secret, and the expected
form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from spark_resources.errors import WrongUsage
from spark_resources.identifiers import Event
from spark_resources.records.signing import KEY_FORMAT

if TYPE_CHECKING:
    from spark_resources.settings.settings import Settings

_EXPECTED = {
    "endpoint_url": "http(s)://host[:port], with or without /api/v1, without a user name or password",
    "s3_endpoint_url": "http(s)://host[:port], without a user name or password",
    "azure_endpoint_url": "http(s)://account.host or http(s)://host[:port]/account, without a user name or password",
    "gcs_endpoint_url": "http(s)://host[:port], without a user name or password",
    "min_age": "a duration such as 24h, 90m or 1d12h",
    "max_clock_skew": "a duration such as 5m or 90s",
    "max_missing": "a whole number, 0 or more",
    "max_probes": "a whole number, 0 or more",
    "full_every": "a whole number, 0 or more: 1 makes every mark a full one",
    "trusted_repositories": "comma-separated shell patterns of repository ids, such as scratch-*,archive; * for all",
    **dict.fromkeys(
        ("brake_share", "brake_first_share", "brake_live", "brake_listing"), "a fraction from 0 to 1, such as 0.3"
    ),
    **dict.fromkeys(("brake_gib", "brake_jump"), "a number, 0 or more"),
    **dict.fromkeys(("brake_count", "brake_jump_least"), "a whole number, 0 or more"),
    "auto_approve_max_share": "a fraction from 0 to 1, such as 0.01",
    "auto_approve_min_age": "a duration such as 30d",
    "auto_approve_wait": "a duration such as 24h, at most 365d",
    "backup_to": "the URI of a bucket, container or folder (no user name, password or query), or a folder path",
    "price_per_gb_month": "a number, 0 or more, such as 0.023",
    "brake_age": "a duration such as 7d or 36h",
    "verification_age": "a duration such as 30m",
    "head_check_interval_s": "a number of seconds above 0, at most 60",
    "retry_total_s": "a number of seconds from 0 to 86400; 0 means no retries",
    "signing_key": KEY_FORMAT,
    "retired_signing_keys": f"comma-separated keys, each of {KEY_FORMAT}",
    **dict.fromkeys(("probe_requests", "listing_requests", "reading_requests"), "a whole number from 1 to 256"),
    **dict.fromkeys(("parallelism", "shuffle_partitions"), "a whole number from 1 to 100000"),
    "repositories_include": "comma-separated shell patterns of repository ids, such as lake-*,archive",
    "repositories_exclude": "comma-separated shell patterns of repository ids, such as test-*",
    "mark_cron": "a cron schedule in UTC, such as 0 3 * * *",
    "holds": "a list of tables, each with the fields of a hold, such as id, owner, reason and prefix",
    **dict.fromkeys(("approval_reminder", "mark_max_age", "sweep_max_age"), "a duration such as 2d or 36h"),
    **dict.fromkeys(("retire_after", "purge_after"), "a duration such as 90d, at least 1d"),
    "mark_scope": "unified, committed or uncommitted",
    "webhook_url": "http(s)://host[:port]/path, without a user name or password",
    "webhook_format": "json or slack",
    "notify": f"comma-separated shell patterns of events, which are {', '.join(Event)}; * for all",
    "metrics_file": "an absolute path that ends with .prom, as the node exporter requires",
    "metrics_push_url": "http(s)://host[:port], without a user name or password",
    "log_format": "text or json",
    "spark_conf": 'a JSON object of strings, such as {"spark.executor.memory": "4g"}',
}


def refuse_booleans_as_numbers(cls: type[Settings], values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Raise `WrongUsage` for `true` or `false` where a number is expected: `brake_share = true` would mean 1, which
    disables the brake."""
    for name, value in values.items():
        if isinstance(value, bool) and "bool" not in str(cls.model_fields[name].annotation):
            shown = "true" if value else "false"
            raise WrongUsage(f"{origins[name]} is '{shown}': expected {expected_form(cls, name)}")


def validation_error(
    cls: type[Settings], error: ValidationError, values: Mapping[str, Any], origins: Mapping[str, str]
) -> WrongUsage:
    """An error with one sentence per setting: its source, its value (unless secret), and the expected form."""
    sentences = []
    for name in dict.fromkeys(str(detail["loc"][0]) for detail in error.errors(include_input=False, include_url=False)):
        value = "" if may_have_secret(cls, name) else f" is '{values.get(name)}'"
        sentences.append(f"{origins.get(name, name)}{value or ' is invalid'}: expected {expected_form(cls, name)}")
    return WrongUsage("; ".join(sentences))


def may_have_secret(cls: type[Settings], name: str) -> bool:
    """Whether a value of this setting may have a secret in it, such as a URL with a password."""
    return cls.is_secret(name, "") or name in ("spark_conf", "backup_to") or name.endswith("_url")


def expected_form(cls: type[Settings], name: str) -> str:
    if name in _EXPECTED:
        return _EXPECTED[name]
    if name.endswith("_s"):
        return "a number of seconds above 0, at most 86400"
    return "true or false" if "bool" in str(cls.model_fields[name].annotation) else "non-empty text"
