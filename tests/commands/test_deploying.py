"""The examples in `docs/deploying`: each is valid for the tool that reads it, and agrees with lakegc and the others."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from packaging.specifiers import SpecifierSet

from lakegc_assets.cli import commands
from lakegc_assets.cli.dagster_runs import LOCATION
from spark_resources.settings import Settings
from tests.support.postgres import Postgres

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "deploying"
KUBERNETES = "1.33"
INSTALLED = {
    "/etc/lakegc/workspace.yaml": EXAMPLES / "workspace.yaml",
    "/opt/lakegc/workspace.yaml": ROOT / "workspace.yaml",
}
POSTGRES = set(Postgres(1).environment())
SECRET = re.compile(r"PASSWORD|SECRET|SIGNING_KEY|TOKEN")


def load(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))


def services() -> dict[str, Any]:
    found: dict[str, Any] = load("compose.yaml")["services"]
    return found


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")))


def pods() -> dict[str, dict[str, Any]]:
    """The specification of each deployment's pod, by name."""
    deployments = (part for part in kubernetes() if part["kind"] == "Deployment")
    return {part["metadata"]["name"]: part["spec"]["template"]["spec"] for part in deployments}


def containers() -> dict[str, dict[str, Any]]:
    return {name: container for name, pod in pods().items() for container in pod["containers"]}


def units() -> list[Path]:
    return sorted([*EXAMPLES.glob("*.service"), *EXAMPLES.glob("*.timer")])


def skip_with_warning(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=2)
    pytest.skip(sentence)


# --- each example, checked by its own tool ----------------------------------------------------------------------------


def test_the_compose_file_matches_the_compose_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    checked = subprocess.run([*command, EXAMPLES / "compose.yaml"], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("part", kubernetes(), ids=lambda part: f"{part['kind']} {part['metadata']['name']}")
def test_each_kubernetes_object_matches_the_kubernetes_schema(part: dict[str, Any]) -> None:
    kubernetes_validate.validate(part, KUBERNETES, strict=True)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """systemd-analyze only warns about an unknown key, so any output fails the test. The programs are replaced: they
    aren't installed where the units expect them."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        skip_with_warning("no systemd-analyze on this machine: the units of docs/deploying are not verified")
    for unit in units():
        content = re.sub(r"^(ExecStart=)/opt/lakegc\S+", r"\1/bin/true", unit.read_text(encoding="utf-8"), flags=re.M)
        (tmp_path / unit.name.replace("@", "@lake-main")).write_text(content)
    command = [str(analyze), "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)

    assert len(units()) == 4
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


def instructions() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The instructions of the Dockerfile, by Docker's own parser: name, flags and values."""
    if importlib.util.find_spec("dockerfile") is None:
        skip_with_warning("no package dockerfile for this machine: the Dockerfile of docs/deploying is not parsed")
    dockerfile = importlib.import_module("dockerfile")
    parsed = dockerfile.parse_file(str(EXAMPLES / "Dockerfile"))
    return [(line.cmd, line.flags, line.value) for line in parsed]


def test_the_image_is_built_from_the_lock_file_on_pinned_images_and_runs_without_privileges() -> None:
    lines = instructions()
    images = [value[0] for name, _, value in lines if name == "FROM"]
    copied = [path for name, flags, value in lines if name == "COPY" and not flags for path in value[:-1]]
    runs = [value[0] for name, _, value in lines if name == "RUN"]
    [python] = {match.group(1) for image in images if (match := re.match(r"python:([\d.]+)-", image))}

    assert all(re.search(r":.*\d", image) for image in images), images
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert python in SpecifierSet(re.findall(r'requires-python = "(.*)"', (ROOT / "pyproject.toml").read_text())[0])
    assert all("--locked --no-dev --extra postgres" in run for run in runs if "uv sync" in run)
    assert any("openjdk-17-jre" in run for run in runs)
    assert [value for name, _, value in lines if name == "USER"] == [("10001:10001",)]
    assert not any(name == "ADD" for name, _, _ in lines)


@pytest.mark.parametrize("repository", [None, "lake-a", "lake-main", "other"])
def test_the_fleet_file_is_valid_for_every_repository(repository: str | None) -> None:
    settings = Settings.load(
        {"LAKEGC_CONFIG": str(EXAMPLES / "lakegc.toml")}, Path("/nonexistent"), repository=repository
    )

    assert settings.brake_share == (0.02 if repository == "lake-main" else 0.2)
    assert (settings.backup_to is None) == (repository in (None, "other"))


# --- what they start, and with what ---------------------------------------------------------------------------------


def started() -> Iterator[tuple[str, list[str]]]:
    """Each command of lakegc or Dagster that the examples start, and where."""
    for name, service in services().items():
        if "lakegc" in service["image"]:
            yield f"compose.yaml: {name}", service["command"]
            yield f"compose.yaml: health of {name}", service["healthcheck"]["test"][1:]
    for name, container in containers().items():
        yield f"kubernetes.yaml: {name}", container["args"]
        if "exec" in container["livenessProbe"]:
            yield f"kubernetes.yaml: health of {name}", container["livenessProbe"]["exec"]["command"]
    for unit in EXAMPLES.glob("*.service"):
        [command] = re.findall(r"^ExecStart=/opt/lakegc/.venv/bin/(.*)$", unit.read_text(encoding="utf-8"), re.M)
        yield unit.name, shlex.split(command)


def program(name: str) -> Any:
    """The click command of a program."""
    if name == "lakegc":
        return typer.main.get_command(commands.app)
    module, attribute = {
        "dagster": ("dagster._cli", "create_dagster_cli"),
        "dagster-daemon": ("dagster._daemon.cli", "create_dagster_daemon_cli"),
        "dagster-webserver": ("dagster_webserver.cli", "create_dagster_webserver_cli"),
    }[name]
    return getattr(importlib.import_module(module), attribute)()


def parse(command: Any, name: str, arguments: Sequence[str]) -> None:
    """Parse arguments as the program does, without running anything. Raises click's error for any that it refuses."""
    context = command.make_context(name, list(arguments))
    if hasattr(command, "resolve_command"):
        inner, subcommand, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(subcommand, str(inner), rest)


@pytest.mark.parametrize("arguments", [pytest.param(command, id=where) for where, command in started()])
def test_every_command_that_an_example_starts_is_accepted_by_its_program(arguments: Sequence[str]) -> None:
    name, *rest = [str(INSTALLED.get(argument, argument)) for argument in arguments]
    if name == "python":
        compile(rest[1], "the health check", "exec")
    else:
        parse(program(name), name, rest)


def test_only_processes_that_run_lakegcs_code_have_its_secrets() -> None:
    with_files = {name for name, service in services().items() if "env_file" in service}
    with_secrets = {name for name, container in containers().items() if "envFrom" in container}

    assert with_files == with_secrets == {"code"}
    assert [value for service in services().values() for value in literal_secrets(service["environment"])] == []
    for container in containers().values():
        assert literal_secrets({entry["name"]: entry.get("value") for entry in container["env"]}) == []


def literal_secrets(environment: Mapping[str, Any]) -> list[str]:
    """The secrets that are written in the file itself, rather than in another file or a Kubernetes object."""
    secrets = {name: str(value) for name, value in environment.items() if SECRET.search(name) and value is not None}
    return [name for name, value in secrets.items() if not value.startswith("${")]


def test_all_processes_have_the_variables_for_the_database() -> None:
    needed = set(re.findall(r"env: (\w+)", (EXAMPLES / "dagster.yaml").read_text(encoding="utf-8")))

    assert needed == POSTGRES
    for name in ("code", "webserver", "daemon"):
        assert needed <= set(services()[name]["environment"])
        assert needed <= {entry["name"] for entry in containers()[name]["env"]}


def test_every_lakegc_variable_in_the_examples_belongs_to_a_setting() -> None:
    """lakegc refuses unknown variables."""
    text = "".join(path.read_text(encoding="utf-8") for path in EXAMPLES.iterdir())
    named = {name.lower() for name in re.findall(r"LAKEGC_([A-Z0-9_]*[A-Z0-9])\b", text)}

    assert named - {"config"} - set(Settings.model_fields) == set()


def test_the_web_server_is_reachable_only_from_its_own_machine_or_cluster() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]
    [listening] = re.findall(r"--host (\S+)", (EXAMPLES / "lakegc-webserver.service").read_text(encoding="utf-8"))

    assert ports == ["127.0.0.1:3000:3000"]
    assert listening == "127.0.0.1"
    assert {part["spec"]["type"] for part in kubernetes() if part["kind"] == "Service"} == {"ClusterIP"}
    assert "Ingress" not in {part["kind"] for part in kubernetes()}


def test_every_container_runs_without_privileges_and_with_a_read_only_file_system() -> None:
    for name in ("code", "webserver", "daemon"):
        service, pod = services()[name], pods()[name]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert pod["securityContext"]["runAsNonRoot"]
        [container] = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        assert {"requests", "limits"} <= set(container["resources"])
        assert container["livenessProbe"]


def test_the_examples_agree_with_each_other_and_with_lakegc() -> None:
    [location] = [entry["grpc_server"] for entry in load("workspace.yaml")["load_from"]]
    [fleet] = [part["data"] for part in kubernetes() if part["kind"] == "ConfigMap"]
    unit = (EXAMPLES / "lakegc-daemon.service").read_text(encoding="utf-8")

    assert location["location_name"] == LOCATION
    assert location["host"] in services()
    assert location["host"] in {part["metadata"]["name"] for part in kubernetes() if part["kind"] == "Service"}
    assert str(location["port"]) in services()["code"]["command"]
    assert containers()["code"]["args"] == services()["code"]["command"]
    assert fleet == {"lakegc.toml": (EXAMPLES / "lakegc.toml").read_text(encoding="utf-8")}
    assert os.path.commonpath(re.findall(r"=(/var/lib/\S+)", unit)) == "/var/lib/lakegc"


def test_the_page_on_deploying_links_every_example() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")

    assert [path.name for path in EXAMPLES.iterdir() if f"(deploying/{path.name})" not in page] == []
