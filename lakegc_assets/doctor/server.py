"""Checks of each lakeFS server: connection, credentials, version and TLS."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from lakegc_assets.doctor.findings import Result, ok, problem, warning
from spark_resources.lakefs import LakeFSSettings
from spark_resources.lakefs.responses import ServerConfig
from spark_resources.stores.plain_http import is_loopback

GROUP = "lakeFS server"
OLDEST_VERSION = (0, 87)  # earlier servers can't list staged objects
RELEASE = re.compile(r"v?(\d+)\.(\d+)(\.\d+)?\b")


def connection(endpoint_url: str, time: datetime) -> Result:
    return ok(f"{endpoint_url} responds; its clock says {time:%Y-%m-%d %H:%M:%S} UTC")


def credentials(access_key_id: str, server: ServerConfig) -> Result:
    """Whether the credentials are accepted: they are if the server returned its configuration."""
    kinds = ", ".join(sorted(set(server.blockstores.values())))
    return ok(f"access key id {access_key_id} is accepted; block store: {kinds}")


def version(server: ServerConfig) -> Result:
    oldest = f"{OLDEST_VERSION[0]}.{OLDEST_VERSION[1]}"
    release = RELEASE.match(server.version)
    if release is None:
        shown = server.version or "not reported"
        return ok(f"{shown}; not a release of lakeFS, so not compared with the oldest supported one ({oldest})")
    if (int(release[1]), int(release[2])) < OLDEST_VERSION:
        return problem(
            f"{server.version}: servers before {oldest} can't list staged objects, and without this list nothing can "
            "be collected.",
            "Upgrade the server.",
        )
    return ok(f"{server.version} (supported: {oldest} and later)")


def tls(settings: LakeFSSettings) -> Result:
    """How the connection is protected, according to the settings."""
    parts = urlsplit(settings.endpoint_url)
    if parts.scheme == "http":
        if is_loopback(parts.hostname or ""):
            return ok("plain HTTP, on this machine only")
        return warning(
            "plain HTTP: anyone on the network between this machine and the server can read the credentials.",
            "Use an https:// endpoint.",
        )
    if not settings.verify_tls:
        return warning(
            "HTTPS, but the server's certificate isn't verified (verify_tls is false).",
            "Set LAKEGC_CA_BUNDLE to your certificate authority's certificate instead.",
        )
    if settings.ca_bundle is not None and not Path(settings.ca_bundle).is_file():
        return problem(f"the certificate file {settings.ca_bundle} doesn't exist.", "Correct LAKEGC_CA_BUNDLE.")
    return ok(f"HTTPS, verified with the certificates of {settings.ca_bundle or 'the system'}")
