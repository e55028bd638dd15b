"""Tokens are never sent to another machine without encryption: anyone who can read the network could use them."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from spark_resources.errors import WrongUsage


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_unencrypted_token(endpoint: str, setting: str, token: str) -> None:
    """Raise `WrongUsage` for an http:// endpoint on another machine. `token` says what would be sent there."""
    parts = urlsplit(endpoint)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise WrongUsage(
            f"{setting} begins with http://, so {token} would be sent unencrypted to {parts.hostname}. Set an address "
            "that begins with https://."
        )
