"""The owners of all assets in Dagster, from the setting `owners`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from spark_resources.settings import Settings

MAIL_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def configured_owners(environ: Mapping[str, str]) -> list[str]:
    """The owners of all repositories, as Dagster writes owners: mail addresses, and teams for all other names. Owners
    of single repositories aren't included: the pages of their marks name them. Raises `WrongUsage` if the fleet file is
    invalid."""
    fleet, variable = Settings.fleet_file(environ), environ.get("LAKEGC_OWNERS", "").strip()
    shared = fleet.shared.get("owners", ()) if fleet is not None else ()
    given = variable or shared
    names = given.split(",") if isinstance(given, str) else given
    return [as_owner(name.strip()) for name in dict.fromkeys(names) if name.strip()]


def as_owner(name: str) -> str:
    return name if MAIL_ADDRESS.fullmatch(name) else f"team:{name}"


OWNERS = configured_owners(os.environ)
