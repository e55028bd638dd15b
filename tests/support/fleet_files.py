"""Fleet files that name several sandboxes as servers."""

from __future__ import annotations

from pathlib import Path

from spark_resources.lakefs_sandbox import Sandbox


def fleet_of(path: Path, **sandboxes: Sandbox) -> dict[str, str]:
    """Write a fleet file with these sandboxes. Returns the settings that are given in variables."""
    variables = {"config": str(path), "retry_total_s": "0"}
    sections = []
    for name, sandbox in sandboxes.items():
        sections.append(
            f'[servers.{name}]\nendpoint_url = "{sandbox.endpoint_url}"\naccess_key_id = "{sandbox.access_key_id}"\n'
            f'[repositories."{name}/*"]\nlocal_path = "{sandbox.settings["local_path"]}"\n'
        )
        variables[f"servers_{name}_secret_access_key"] = sandbox.secret_access_key
    path.write_text("".join(sections))
    return variables
