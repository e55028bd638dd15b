"""The settings of the connection to a lakeFS server, as one frozen, picklable value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from spark_resources.errors import WrongUsage
from spark_resources.stores.retry import RetryPolicy

if TYPE_CHECKING:
    from spark_resources.settings import Settings

_BASE_PATH = "/api/v1"
SLOW_READ_TIMEOUT_S = 900.0


def api_address(endpoint_url: str) -> str:
    """The API's address, `…/api/v1`, for an endpoint with or without that path. Raises `WrongUsage` if invalid."""
    expected = "expected http(s)://host[:port], with or without /api/v1"
    try:
        parts = urlsplit(endpoint_url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    # The value is not shown: it may contain a password.
    if not usable or parts.query or parts.fragment:
        raise WrongUsage(f"the lakeFS endpoint is not a valid address: {expected}")
    if parts.username is not None or parts.password is not None:
        raise WrongUsage(
            f"the lakeFS endpoint contains a user name or password: {expected}. Set LAKEGC_ACCESS_KEY_ID and "
            "LAKEGC_SECRET_ACCESS_KEY instead"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(_BASE_PATH):
        path += _BASE_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


@dataclass(frozen=True, slots=True)
class LakeFSSettings:
    """Everything needed to build a client, on any machine. Times are in seconds; the repr doesn't show the secret.

    `retry` is the policy for retrying requests. `slow_read_timeout_s` applies to calls for which the server traverses
    the whole repository before it responds. `task_timeout_s` limits how long a task that traverses it in the background
    is polled. The waits between polls start short and double, because the task of a small repository takes 30 ms.
    `probe_requests` is the number of path probes that one task sends concurrently.
    """

    endpoint_url: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    ca_bundle: str | None = None
    verify_tls: bool = True
    connect_timeout_s: float = 10
    read_timeout_s: float = 60
    slow_read_timeout_s: float = SLOW_READ_TIMEOUT_S
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    first_poll_wait_s: float = 0.02
    longest_poll_wait_s: float = 2
    task_timeout_s: float = 6 * 3600
    probe_requests: int = 8

    def __post_init__(self) -> None:
        api_address(self.endpoint_url)

    @classmethod
    def of(cls, settings: Settings) -> LakeFSSettings:
        """The server part of the settings. Raises `WrongUsage`, with how to set it, if one is missing."""
        if settings.endpoint_url is None:
            raise WrongUsage(
                "no lakeFS server is configured: set LAKEGC_ENDPOINT_URL, for example to http://localhost:8000, "
                "or server.endpoint_url in ~/.lakectl.yaml"
            )
        if settings.access_key_id is None or settings.secret_access_key is None:
            missing = "access_key_id" if settings.access_key_id is None else "secret_access_key"
            raise WrongUsage(
                f"no {missing} for the lakeFS server {settings.endpoint_url} is configured: "
                f"set LAKEGC_{missing.upper()}, or credentials.{missing} in ~/.lakectl.yaml"
            )
        return cls(
            endpoint_url=settings.endpoint_url,
            access_key_id=settings.access_key_id,
            secret_access_key=settings.secret_access_key.get_secret_value(),
            ca_bundle=settings.ca_bundle,
            verify_tls=settings.verify_tls,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            slow_read_timeout_s=settings.slow_read_timeout_s or max(settings.read_timeout_s, SLOW_READ_TIMEOUT_S),
            task_timeout_s=settings.task_timeout_s,
            retry=settings.retry_policy(),
            probe_requests=settings.probe_requests,
        )
