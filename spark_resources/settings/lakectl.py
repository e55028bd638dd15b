"""The settings that lakectl has, too: the server and its credentials, from lakectl's environment variables and file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_resources.errors import WrongUsage

Source = dict[str, tuple[Any, str]]
"""Values with their origins, by the names of settings."""

# lakectl's environment variables, and the same settings in its file (as section, name)
_LAKECTL_VARIABLES = {
    "endpoint_url": "LAKECTL_SERVER_ENDPOINT_URL",
    "access_key_id": "LAKECTL_CREDENTIALS_ACCESS_KEY_ID",
    "secret_access_key": "LAKECTL_CREDENTIALS_SECRET_ACCESS_KEY",
}
_LAKECTL_FILE = {
    "endpoint_url": ("server", "endpoint_url"),
    "access_key_id": ("credentials", "access_key_id"),
    "secret_access_key": ("credentials", "secret_access_key"),
}


def lakectl_variables(environ: Mapping[str, str]) -> Source:
    return {
        name: (environ[variable], f"variable {variable}")
        for name, variable in _LAKECTL_VARIABLES.items()
        if environ.get(variable, "").strip()
    }


def lakectl_file(environ: Mapping[str, str], home: Path) -> Source:
    """The settings in lakectl's file. A missing file is an error only if a variable names it."""
    import yaml

    configured = environ.get("LAKECTL_CONFIG_FILE", "").strip()
    path = Path(configured) if configured else home / ".lakectl.yaml"
    # a home that doesn't exist or can't be entered has no such file
    if not configured and not os.access(home, os.X_OK):
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if configured:
            raise WrongUsage(f"LAKECTL_CONFIG_FILE is {path}, which doesn't exist. Correct or unset it.") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(
            f"lakectl's configuration {path} can't be read ({type(error).__name__}). It must be a readable UTF-8 file."
        ) from None
    except yaml.YAMLError:
        # The parser's message shows the line that it failed on, which may contain a secret.
        raise WrongUsage(
            f"lakectl's configuration {path} is not valid YAML. Run 'lakectl config' to write it again."
        ) from None
    values: Source = {}
    for name, (section, key) in _LAKECTL_FILE.items():
        part = content.get(section) if isinstance(content, dict) else None
        value = part.get(key) if isinstance(part, dict) else None
        if value not in (None, ""):
            values[name] = (value, f"{section}.{key} in {path}")
    return values
