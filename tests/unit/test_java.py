"""Java is found in the same way as Spark finds it, its version is checked, and an unsuitable version is refused with
advice."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from spark_resources.errors import LakegcWarning, WrongUsage
from spark_resources.spark.java import check_java, java_version

PROPERTIES = "Picked up JAVA_TOOL_OPTIONS: -Dsome.version=9\n"
ANSWERS = {
    'openjdk version "1.8.0_392"': 8,
    'java version "1.8.0_202"': 8,
    'openjdk version "11.0.21" 2023-10-17': 11,
    'openjdk version "17.0.15" 2025-04-15': 17,
    'openjdk version "17-ea" 2021-09-14': 17,
    'openjdk version "21" 2023-09-19': 21,
    PROPERTIES + 'openjdk version "21.0.5" 2024-10-15 LTS': 21,
}


def fake_java(folder: Path, says: str, *, exits: int = 0) -> dict[str, str]:
    """An environment whose PATH contains only a `java` that prints this text to stderr, as Java prints its version."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "output").write_text(f"{says}\nOpenJDK Runtime Environment (build …)\n")
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n/bin/cat '{folder}/output' >&2\nexit {exits}\n")
    java.chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(("says", "version"), ANSWERS.items())
def test_the_major_version_is_read_from_every_form_of_output(tmp_path: Path, says: str, version: int) -> None:
    """Old Java versions call themselves `1.8`."""
    assert java_version(fake_java(tmp_path, says)) == version


@pytest.mark.parametrize("says", ['openjdk version "1.8.0_392"', 'openjdk version "11.0.21" 2023-10-17'])
def test_a_java_version_that_is_too_old_is_refused_with_advice(tmp_path: Path, says: str) -> None:
    """If lakegc didn't refuse it, Spark would fail later with a stack trace."""
    with pytest.raises(WrongUsage, match=r"needs Java 17 or 21, but found Java (8|11)\. Install .*apt-get.*adoptium"):
        check_java(fake_java(tmp_path, says))


@pytest.mark.parametrize("version", [17, 21])
def test_a_supported_java_version_is_accepted_without_a_warning(tmp_path: Path, version: int) -> None:
    """The supported versions are those that the message asks for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_java(fake_java(tmp_path, f'openjdk version "{version}.0.1"')) == version


def test_a_java_version_newer_than_21_is_accepted_with_a_warning(tmp_path: Path) -> None:
    """Spark may run on it or end in a stack trace. The warning says what to install in that case."""
    warning = (
        r"^Java 25 is newer than the versions that lakegc supports \(17 and 21\)\. If .* install .* JAVA_HOME to it\.$"
    )
    with pytest.warns(LakegcWarning, match=warning):
        assert check_java(fake_java(tmp_path, 'openjdk version "25.0.1" 2025-10-21 LTS')) == 25


def test_the_warning_about_a_newer_java_version_is_one_line(tmp_path: Path) -> None:
    """`lakegc` prints the warning like an error, without the source line that caused it, and continues."""
    environ = fake_java(tmp_path / "bin", 'openjdk version "25.0.1" 2025-10-21 LTS')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    lakegc = Path(sys.executable).with_name("lakegc")
    ended = subprocess.run(
        [lakegc, "demo", "--folder", tmp_path / "full"], env={**environ, "HOME": str(tmp_path)}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    lines = ended.stderr.splitlines()

    assert lines[0].startswith("lakegc: Java 25 is newer than the versions that lakegc supports")
    assert lines[1:] == [f"lakegc: {tmp_path}/full is not empty. Choose a new folder for the demo's sandbox."]


def test_without_java_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    """The message says that there is no Java and how to get one."""
    with pytest.raises(WrongUsage, match=r"none was found\. Install a Java runtime.*openjdk-17"):
        check_java({"PATH": str(tmp_path)})


def test_a_java_command_that_prints_no_version_counts_as_missing(tmp_path: Path) -> None:
    """Some systems have a placeholder instead of Java."""
    environ = fake_java(tmp_path, "Unable to locate a Java Runtime.", exits=1)
    with pytest.raises(WrongUsage, match="none was found"):
        check_java(environ)


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    """Spark does the same; if JAVA_HOME has no Java, the message names it."""
    environ = fake_java(tmp_path / "path", 'openjdk version "21"')
    fake_java(tmp_path / "home" / "bin", 'openjdk version "11.0.2"')

    assert java_version({**environ, "JAVA_HOME": str(tmp_path / "home")}) == 11
    with pytest.raises(WrongUsage, match=r"none was found in JAVA_HOME \(/nowhere/jdk\)"):
        check_java({**environ, "JAVA_HOME": "/nowhere/jdk"})


def test_the_demo_refuses_an_unsupported_java_version_before_it_creates_anything(tmp_path: Path) -> None:
    """The message is one line, and the exit code is 2."""
    (tmp_path / "home").mkdir()
    (tmp_path / "made").mkdir()
    environ = {
        **fake_java(tmp_path / "bin", 'openjdk version "1.8.0_392"'),
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "made"),
    }
    lakegc = Path(sys.executable).with_name("lakegc")
    ended = subprocess.run([lakegc, "demo"], env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert ended.stderr.startswith("lakegc: lakegc needs Java 17 or 21, but found Java 8. Install"), ended.stderr
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert not [*(tmp_path / "made").iterdir(), *(tmp_path / "home").iterdir()]
