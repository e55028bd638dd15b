"""The settings of the connection to each lakeFS server, as a frozen, picklable value."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from spark_resources.errors import WrongUsage
from spark_resources.identifiers import server_variable
from spark_resources.stores.retry import RetryPolicy

if TYPE_CHECKING:
    from spark_resources.settings import Settings
    from spark_resources.settings.servers import ServerSettings

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
    `probe_requests` is the number of path probes that one task sends concurrently. `server` is the server's name, "" if
    it is the only one.
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
    server: str = ""

    def __post_init__(self) -> None:
        api_address(self.endpoint_url)

    @property
    def endpoint_setting(self) -> str:
        """Where the endpoint is configured, for messages."""
        if self.server:
            return f"endpoint_url of server {self.server} in the fleet file"
        return "LAKEGC_ENDPOINT_URL, or server.endpoint_url in ~/.lakectl.yaml"

    @property
    def credentials_setting(self) -> str:
        """Where the credentials are configured, for messages."""
        if self.server:
            variable = server_variable(self.server, "secret_access_key")
            return f"access_key_id of server {self.server} in the fleet file, and {variable}"
        return "LAKEGC_ACCESS_KEY_ID, LAKEGC_SECRET_ACCESS_KEY, or ~/.lakectl.yaml"

    @property
    def ca_bundle_setting(self) -> str:
        """The setting with the certificate authority, for messages."""
        return f"ca_bundle in [servers.{self.server}] of the fleet file" if self.server else "LAKEGC_CA_BUNDLE"

    @classmethod
    def of(cls, settings: Settings) -> tuple[LakeFSSettings, ...]:
        """The settings of each server. Raises `WrongUsage`, with advice, if one of them is missing."""
        if not settings.servers:
            return (_single_server_settings(settings),)
        found = tuple(_named_server_settings(settings, server, name) for name, server in settings.servers.items())
        # names of repositories don't include the server if there is only one
        return found if len(found) > 1 else (replace(found[0], server=""),)


def _single_server_settings(settings: Settings) -> LakeFSSettings:
    if settings.endpoint_url is None:
        raise WrongUsage(
            "no lakeFS server is configured: set LAKEGC_ENDPOINT_URL, for example to http://localhost:8000, "
            "or server.endpoint_url in ~/.lakectl.yaml"
        )
    if missing := _missing_credential(settings):
        raise WrongUsage(
            f"no {missing} for the lakeFS server {settings.endpoint_url} is configured: "
            f"set LAKEGC_{missing.upper()}, or credentials.{missing} in ~/.lakectl.yaml"
        )
    return _complete(settings, settings)


def _named_server_settings(settings: Settings, server: ServerSettings, name: str) -> LakeFSSettings:
    if missing := _missing_credential(server):
        section = f", or access_key_id in [servers.{name}]" if missing == "access_key_id" else ""
        raise WrongUsage(
            f"no {missing} for the lakeFS server {name} is configured: set {server_variable(name, missing)}{section}"
        )
    return _complete(settings, server, name)


def _missing_credential(server: Settings | ServerSettings) -> str | None:
    """The name of the credential that a server's settings lack; None if they have both."""
    if server.access_key_id is None:
        return "access_key_id"
    return "secret_access_key" if server.secret_access_key is None else None


def _complete(settings: Settings, server: Settings | ServerSettings, name: str = "") -> LakeFSSettings:
    """The complete settings of one server, with the timeouts, retries and concurrency that apply to all servers."""
    assert server.endpoint_url is not None
    assert server.access_key_id is not None
    assert server.secret_access_key is not None
    return LakeFSSettings(
        endpoint_url=server.endpoint_url,
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key.get_secret_value(),
        ca_bundle=server.ca_bundle,
        verify_tls=server.verify_tls,
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s,
        slow_read_timeout_s=settings.slow_read_timeout_s or max(settings.read_timeout_s, SLOW_READ_TIMEOUT_S),
        task_timeout_s=settings.task_timeout_s,
        retry=settings.retry_policy(),
        probe_requests=settings.probe_requests,
        server=name,
    )
