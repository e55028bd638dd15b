"""Several lakeFS servers: their sections in the fleet file, and the environment variables with their credentials.

[servers.prod]                    # repositories are then called prod/…, for example prod/lake-main
endpoint_url = "https://lakefs.example.com"
access_key_id = "AKIA…"           # the secret access key is in LAKEGC_SERVERS_PROD_SECRET_ACCESS_KEY
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spark_resources.errors import WrongUsage, did_you_mean
from spark_resources.identifiers import SERVER_VARIABLES, server_variable
from spark_resources.settings.value_types import Name, Secret, Url

SECTION = "servers"
NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")


class ServerSettings(BaseModel):
    """The settings of one of several servers. They have the same meaning and form as those of a single server."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    endpoint_url: Url
    access_key_id: Name | None = None
    secret_access_key: Secret | None = Field(default=None, repr=False)
    ca_bundle: Name | None = None
    verify_tls: bool = Field(default=True, strict=True)


SERVER_SETTINGS = tuple(ServerSettings.model_fields)


def variables_of(servers: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The environment variables for all settings of these servers, each with the server's name and the setting."""
    return {server_variable(server, setting): (server, setting) for server in servers for setting in SERVER_SETTINGS}


def read_servers(sections: object, path: Path) -> dict[str, dict[str, Any]]:
    """The settings in the sections of a fleet file, by server. Raises `WrongUsage`, naming server and setting, for an
    invalid name, an unknown setting, an invalid value or a secret."""
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise WrongUsage(
            f"'{SECTION}' in {path} must contain only sections: [{SECTION}.NAME], with that server's settings below it"
        )
    for name, section in sections.items():
        here = f"in [{SECTION}.{name}] of {path}"
        if not NAME.fullmatch(name):
            raise WrongUsage(
                f"[{SECTION}.{name}] of {path}: expected a server name of at most 32 lower-case letters, digits "
                "and -, beginning with a letter"
            )
        if "secret_access_key" in section:
            raise WrongUsage(
                f"secret_access_key {here} is a secret, and a fleet file is shared and versioned: set the environment "
                f"variable {server_variable(name, 'secret_access_key')} instead"
            )
        _validated(section, here)
    return {name: dict(section) for name, section in sections.items()}


def servers_from(sections: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str]) -> dict[str, ServerSettings]:
    """The settings of all servers, from the fleet file and from environment variables, which take precedence.
    Raises `WrongUsage` for an invalid variable, or for one that belongs to no server in the fleet file."""
    known = variables_of(sections)
    values = {name: dict(section) for name, section in sections.items()}
    for name in _given(environ):
        if name not in known:
            raise WrongUsage(f"variable {name} doesn't belong to a server in the fleet file. {_hint(name, known)}")
        server, setting = known[name]
        values[server][setting] = _from_text(setting, environ[name], name)
    return {
        name: _validated(section, f"of server {name} (in [{SECTION}.{name}] or a variable {SERVER_VARIABLES}…)")
        for name, section in values.items()
    }


def _given(environ: Mapping[str, str]) -> list[str]:
    return sorted(name for name, text in environ.items() if name.startswith(SERVER_VARIABLES) and text.strip())


def _hint(name: str, known: Mapping[str, object]) -> str:
    if not known:
        return f"The fleet file has no sections [{SECTION}.NAME]."
    return did_you_mean(name, known) or f"The variables of its servers are {', '.join(known)}."


def _from_text(setting: str, text: str, name: str) -> str | bool:
    if setting != "verify_tls":
        return text.strip()
    if text.strip().lower() not in ("true", "false", "1", "0"):
        raise WrongUsage(f"variable {name} is invalid: expected true or false")
    return text.strip().lower() in ("true", "1")


_EXPECTED = {
    "endpoint_url": "http(s)://host[:port], with or without /api/v1, without a user name or password",
    "verify_tls": "true or false",
}


def _validated(section: Mapping[str, Any], where: str) -> ServerSettings:
    """One server's settings. Raises `WrongUsage`, which shows no value, because addresses may contain passwords."""
    try:
        return ServerSettings.model_validate(dict(section))
    except ValidationError as error:
        details = error.errors(include_input=False, include_url=False)
    raise WrongUsage("; ".join(_sentence(str(detail["loc"][0]), detail["type"], where) for detail in details))


def _sentence(setting: str, kind: str, where: str) -> str:
    if kind == "extra_forbidden":
        return f"{setting} {where} is not a server setting. {did_you_mean(setting, SERVER_SETTINGS)}".rstrip()
    expected = _EXPECTED.get(setting, "non-empty text")
    return f"{setting} {where} is {'missing' if kind == 'missing' else 'invalid'}: expected {expected}"


def refuse_single_server(given: Mapping[str, str], servers: Sequence[str], where: str) -> None:
    """Raise `WrongUsage` if settings for a single server are also given (`given` has their origins): it would be
    unclear which of the servers they are for."""
    for name in SERVER_SETTINGS:
        if name in given:
            raise WrongUsage(
                f"{given[name]} is for a single lakeFS server, but {where} has several ({', '.join(servers)}): set "
                f"it in a section [{SECTION}.NAME], or in a variable such as {server_variable(servers[0], name)}"
            )
