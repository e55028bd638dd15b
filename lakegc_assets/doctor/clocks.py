"""Checks of the clocks: ages are wrong if those of the store, the server and this machine differ."""

from __future__ import annotations

from datetime import datetime, timedelta

from lakegc_assets.doctor.findings import Result, ok, warning
from lakegc_assets.formatting import duration
from lakegc_assets.mark.context import Clocks

GROUP = "clocks"


def all_clocks(clocks: Clocks, max_skew: timedelta, repository: str) -> Result:
    """Compares the clocks of store, server and machine. Raises `Refused` if they differ by more than a mark allows."""
    clocks.check(max_skew, repository)
    readings = (clocks.store, clocks.server, clocks.machine)
    difference = max(readings) - min(readings)
    return ok(f"store, server and machine differ by {duration(difference)} (allowed: {duration(max_skew)})")


def server_clock(server: datetime, machine: datetime, max_skew: timedelta) -> Result:
    """Compares the clocks of a server and this machine. Used if no repository, and so no store, is given."""
    difference = abs(server - machine)
    text = f"server and machine differ by {duration(difference)} (allowed: {duration(max_skew)})"
    if difference <= max_skew:
        return ok(f"{text}; to check the store's clock, pass a repository")
    return warning(f"{text}: marks will be refused.", "Synchronize the clocks (NTP).")
