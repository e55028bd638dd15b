"""Checks of the configuration: unknown environment variables, the fleet file, invalid settings, and where credentials
come from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from lakegc_assets.doctor.findings import Result, ok
from lakegc_assets.formatting import plural
from spark_resources.identifiers import SERVER_VARIABLES
from spark_resources.lakefs import LakeFSSettings
from spark_resources.mark_store.hold_file import parse_configured_holds
from spark_resources.settings import Settings, refuse_unknown_variables, unknown_variables
from spark_resources.stores.settings import StoreSettings

GROUP = "configuration"
SECRET_VARIABLES = ("LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
SHORTEST_SECRET = 4  # a shorter value would remove parts of words from the output


def variables(environ: Mapping[str, str]) -> Result:
    """lakegc's environment variables. Raises `WrongUsage` if one isn't a setting."""
    refuse_unknown_variables(environ)
    count = sum(name.startswith("LAKEGC_") for name in environ)
    return ok(f"{plural(count, 'LAKEGC_* environment variable')}, all known")


def known_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without unknown LAKEGC_* variables, so that these don't hide what else is wrong."""
    unknown = set(unknown_variables(environ))
    return {name: value for name, value in environ.items() if name not in unknown}


def fleet_file(environ: Mapping[str, str], repository: str | None) -> Result:
    """The fleet file. Raises `WrongUsage` if a section of it is invalid."""
    fleet = Settings.fleet_file(environ)
    if fleet is None:
        return ok("none: LAKEGC_CONFIG isn't set, and the working directory has no lakegc.toml")
    for pattern, section in fleet.sections.items():
        parse_configured_holds(section.get("holds", ()), f'[repositories."{pattern}"] of {fleet.path}')
    names = "" if repository is None else ", ".join(fleet.matching(repository)) or "none"
    matching = "" if repository is None else f"; sections that match {repository}: {names}"
    return ok(f"{fleet.path}, {plural(len(fleet.sections), 'section')}{matching}")


def load_settings(environ: Mapping[str, str], home: Path, repository: str | None) -> Settings:
    """The settings that apply to a repository. Raises `WrongUsage` if one is invalid."""
    settings = Settings.load(environ, home, repository=repository)
    parse_configured_holds(settings.holds, settings.origins.get("holds", ""))
    return settings


def valid_settings(settings: Settings) -> Result:
    return ok(f"{plural(len(settings.origins), 'setting')}, all valid")


def server_credentials(settings: Settings) -> Result:
    """The servers and their credentials, with their origins. Raises `WrongUsage` if one is missing."""
    servers, origins = LakeFSSettings.of(settings), settings.origins
    if settings.servers:
        named = zip(settings.servers, servers, strict=True)
        shown = [f"{name}: {server.endpoint_url}, access key id {server.access_key_id}" for name, server in named]
        return ok(f"{'; '.join(shown)} (from {origins['servers']} and environment variables)")
    (server,) = servers
    return ok(
        f"{server.endpoint_url} ({origins.get('endpoint_url')}); access key id {server.access_key_id} "
        f"({origins.get('access_key_id')}); secret access key ({origins.get('secret_access_key')})"
    )


def store_credentials(settings: Settings) -> Result:
    """The origins of the store's settings. Values that aren't secret are shown."""
    given = [name for name in StoreSettings.model_fields if name in settings.origins]
    if not given:
        return ok("no settings: the provider's default credential chain applies")
    secret = StoreSettings.secret_names()
    values = {name: "" if name in secret else f" {getattr(settings, name)}" for name in given}
    return ok("; ".join(f"{name}{values[name]} ({settings.origins[name]})" for name in given))


def secrets_of(environ: Mapping[str, str], settings: Settings | None) -> set[str]:
    """The values that no output may contain, whatever a library writes into its messages."""
    names = {f"LAKEGC_{name.upper()}" for name in Settings.model_fields if Settings.is_secret(name, "")}
    secret = {environ[name] for name in (*names, *SECRET_VARIABLES) if name in environ}
    secret_names = (
        name for name in environ if name.startswith(SERVER_VARIABLES) and name.endswith("_SECRET_ACCESS_KEY")
    )
    secret |= {environ[name] for name in secret_names}
    if settings is not None:
        values = [getattr(settings, name) for name in Settings.model_fields]
        flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
        secret |= {item.get_secret_value() for item in flat if isinstance(item, SecretStr)}
        secret |= {text for name, text in settings.spark_conf.items() if Settings.is_secret("spark_conf", name)}
    return {value for value in secret if len(value) >= SHORTEST_SECRET}


def without_secrets(text: str, secrets: set[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "(secret)")
    return text
