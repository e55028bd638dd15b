"""Finds Java, the only requirement apart from Python, and advises on how to install it."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path

from spark_resources.errors import LakegcWarning, WrongUsage
from spark_resources.records.signing import without_signing_keys

JAVA_VERSIONS = (17, 21)


def java_command(environ: Mapping[str, str]) -> Path | None:
    """The `java` that Spark would start, whether or not it exists; None if neither JAVA_HOME nor PATH specifies one."""
    home = environ.get("JAVA_HOME")
    command = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH"))
    return Path(command) if command else None


def java_version(environ: Mapping[str, str]) -> int | None:
    """The major version of the Java runtime that Spark would start; None if there is no runtime or it reports no
    version."""
    command = java_command(environ)
    if command is None:
        return None
    try:
        output = subprocess.run(
            [command, "-version"], env=without_signing_keys(environ), capture_output=True, text=True, timeout=30,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output.stderr + output.stdout)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def check_java(environ: Mapping[str, str]) -> int:
    """The version of the Java runtime that Spark would start. Warns if it is newer than the supported ones.

    Raises `WrongUsage`, with advice on how to install a supported one, if there is no runtime or it is too old.
    """
    version = supported_java(environ)
    if version > JAVA_VERSIONS[-1]:
        warnings.warn(
            f"Java {version} is newer than the versions that lakegc supports (17 and 21). If Spark fails, install one "
            "of these and set JAVA_HOME to it.",
            LakegcWarning,
            stacklevel=1,
        )
    return version


def supported_java(environ: Mapping[str, str]) -> int:
    """Like `check_java`, but without the warning."""
    version = java_version(environ)
    advice = (
        "Install a Java runtime, for example 'apt-get install openjdk-17-jre-headless', "
        "'dnf install java-17-openjdk-headless' or 'brew install openjdk@17' "
        "(or from https://adoptium.net), and set JAVA_HOME if several are installed."
    )
    if version is None:
        home = environ.get("JAVA_HOME")
        where = f" in JAVA_HOME ({home})" if home else ""
        raise WrongUsage(f"lakegc needs Java 17 or 21, but none was found{where}. {advice}")
    if version < JAVA_VERSIONS[0]:
        raise WrongUsage(f"lakegc needs Java 17 or 21, but found Java {version}. {advice}")
    return version
