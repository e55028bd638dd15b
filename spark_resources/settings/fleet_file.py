"""The fleet file, `lakegc.toml`: settings for all repositories, and sections that override them for some of them.

    min_age = "48h"                   # any setting: for all repositories

    [repositories."lake-*"]           # a shell pattern of repository ids
    brake_share = 0.1

    [repositories.lake-main]          # an id takes precedence over patterns
    brake_share = 0.02

Only its structure is checked here; `Settings` checks the values.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from pathlib import Path
from typing import Any

from spark_resources.errors import WrongUsage, did_you_mean
from spark_resources.identifiers import lakefs_id, matches_repository
from spark_resources.settings.servers import SECTION as SERVERS
from spark_resources.settings.servers import read_servers

VARIABLE = "LAKEGC_CONFIG"
NAME = "lakegc.toml"
SECTIONS = "repositories"
_POSSIBLE_PATTERN = re.compile(r"(?!-)(?:[a-z0-9*?-]|\[!?[a-z0-9-]+\])+")
_EMPTY_RANGE = "(?!)"  # in a translated pattern


@dataclass(frozen=True, slots=True)
class KnownSettings:
    """The settings that the names in a fleet file are checked against.

    `settings` are all of them. Those that are `secret` are refused in the file, and those that apply to the whole
    `process` in its sections. `renamed` has the new name for each former name. `additive` settings are lists to which
    each section that applies adds.
    """

    settings: Collection[str]
    secret: Collection[str] = ()
    process: Collection[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    additive: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The values of a fleet file: for all repositories, by pattern, and by server, each by the name of its setting."""

    path: Path
    shared: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    additive: Collection[str] = ()
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def values(self, repository: str | None) -> dict[str, tuple[Any, str]]:
        """The values that apply to a repository, each with its origin; None: those for all repositories.

        The section with the repository's name takes precedence over the one with its id, that one over sections with
        matching patterns, and those over the values for all repositories. With a single server, name and id are the
        same. Additive lists have the items of all of them. Raises `WrongUsage` if two patterns give the repository
        different values for the same setting.
        """
        found = {name: (value, f"{name} in {self.path}") for name, value in self.shared.items()}
        if repository is None:
            return found
        by_name = self.section(lakefs_id(repository)) | self.section(repository)
        return found | self._from_patterns(repository, by_name) | by_name | self._added(repository)

    def matching(self, repository: str) -> list[str]:
        """The patterns of the sections that apply to a repository, in the order of the file."""
        return [pattern for pattern in self.sections if matches_repository(repository, pattern)]

    def section(self, pattern: str) -> dict[str, tuple[Any, str]]:
        """The values of one section, each with its origin; empty if there is no such section."""
        origin = f'in [{SECTIONS}."{pattern}"] of {self.path}'
        return {name: (value, f"{name} {origin}") for name, value in self.sections.get(pattern, {}).items()}

    def _added(self, repository: str) -> dict[str, tuple[Any, str]]:
        parts = [self.shared, *(self.sections[pattern] for pattern in self.matching(repository))]
        return {
            name: ([item for part in parts for item in part.get(name, ())], f"{name} in {self.path}")
            for name in self.additive
            if any(name in part for part in parts)
        }

    def _from_patterns(self, repository: str, by_name: Collection[str]) -> dict[str, tuple[Any, str]]:
        """The values in sections with matching patterns. Contradictory values are refused, except for settings in the
        repository's own section (`by_name`), and for additive ones."""
        found: dict[str, tuple[Any, str]] = {}
        for pattern in self.matching(repository):
            for name, (value, origin) in self.section(pattern).items():
                differs = name in found and found[name][0] != value
                if differs and name not in by_name and name not in self.additive:
                    raise WrongUsage(
                        f"{found[name][1]} is {found[name][0]!r}, but {origin} is {value!r}, and both sections match "
                        f'{repository}. Set {name} in a section [{SECTIONS}."{repository}"], or change a pattern.'
                    )
                found[name] = value, origin
        return found


def find_fleet_file(environ: Mapping[str, str], directory: Path) -> Path | None:
    """The path in LAKEGC_CONFIG, or `lakegc.toml` in a directory if it exists.

    Raises `WrongUsage` if the variable names a file that doesn't exist, or if `lakegc.toml` isn't a file, such as a
    link whose target is missing: without the file, its holds and limits would silently not apply. Also raises
    `WrongUsage` if another user could have written `lakegc.toml`.
    """
    directory = directory.absolute()
    if named := environ.get(VARIABLE, "").strip():
        path = directory / named
        if not _is_file(path):
            raise WrongUsage(f"{VARIABLE} is {named}, which is not a file. Correct the path, or unset the variable.")
        return path
    path = directory / NAME
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # the folder can't be entered, so it isn't known whether there is one
        pass
    if not _is_file(path):
        raise WrongUsage(
            f"{path} is not a readable file, so lakegc can't tell which settings apply. Correct or remove it, or set "
            f"{VARIABLE} to another file."
        )
    _refuse_planted_file(path)
    return path


def _refuse_planted_file(path: Path) -> None:
    """Raise `WrongUsage` if another user could have put this file into the working directory, where it applies without
    being named: its settings choose the server that gets the credentials, and Spark's settings can run code."""
    status = path.stat()
    problem = (
        "belongs to another user"
        if status.st_uid not in (os.geteuid(), 0)
        else "can be changed by every user of this machine"
        if status.st_mode & stat.S_IWOTH
        else ""
    )
    if problem:
        raise WrongUsage(
            f"{path} {problem}, so lakegc doesn't load it automatically. If its settings are right, set {VARIABLE} to "
            "this path; otherwise run lakegc in another folder."
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def read_fleet_file(path: Path) -> str:
    """The text of a fleet file. Raises `WrongUsage` if it can't be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUsage(
            f"the fleet file {path} can't be read ({type(error).__name__}). It must be a readable UTF-8 file."
        ) from None


def parse_fleet_file(path: Path, text: str, known: KnownSettings) -> FleetFile:
    """Parse the text of a fleet file. Raises `WrongUsage`, naming the file, section and setting, if it isn't TOML, or
    has an unknown, renamed, secret or misplaced setting."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WrongUsage(f"the fleet file {path} is not valid TOML: {error}") from None
    except (ValueError, RecursionError):  # a number with thousands of digits, or nested lists
        raise WrongUsage(f"the fleet file {path} has a value that is too long or nested too deeply") from None
    sections, servers = content.pop(SECTIONS, {}), read_servers(content.pop(SERVERS, {}), path)
    if not isinstance(sections, dict) or not all(isinstance(section, dict) for section in sections.values()):
        raise WrongUsage(
            f"'{SECTIONS}' in the fleet file {path} must contain only sections: "
            f'[{SECTIONS}."PATTERN"], with the settings of the matching repositories below it'
        )
    _refuse_unusable(content, f"in {path}", known, shared=True)
    for pattern, section in sections.items():
        _refuse_pattern_without_matches(pattern, path, servers if len(servers) > 1 else ())
        _refuse_unusable(section, f'in [{SECTIONS}."{pattern}"] of {path}', known, shared=False)
    return FleetFile(path, content, sections, known.additive, servers)


def _refuse_pattern_without_matches(pattern: str, path: Path, servers: Collection[str]) -> None:
    """Raise `WrongUsage` for a pattern that matches no repository: its section would silently apply to none. `servers`
    are the names of several servers; empty if there is only one."""
    server, slash, ids = pattern.rpartition("/")
    if slash and not any(fnmatchcase(name, server) for name in servers):
        known = f"the servers are {', '.join(servers)}" if servers else "there is only one server"
        raise WrongUsage(
            f'[{SECTIONS}."{pattern}"] of {path} matches no repository: {known}. Before the slash, expected a '
            "server name or a pattern of server names."
        )
    if not _POSSIBLE_PATTERN.fullmatch(ids) or _EMPTY_RANGE in translate(ids):
        raise WrongUsage(
            f'[{SECTIONS}."{pattern}"] of {path} matches no repository: expected an id, or a shell pattern of ids such '
            "as lake-*. Ids consist of lower-case letters, digits and -. For several patterns, write several sections."
        )


def _refuse_unusable(values: Mapping[str, Any], where: str, known: KnownSettings, *, shared: bool) -> None:
    for name in values:
        if new := known.renamed.get(name):
            raise WrongUsage(f"the setting '{name}' is now called '{new}': rename it {where}")
        if name not in known.settings:
            names = known.settings if not shared else [*known.settings, SECTIONS, SERVERS]
            raise WrongUsage(f"{name} {where} is not a lakegc setting. {did_you_mean(name, names)}".rstrip())
        if name in known.secret:
            raise WrongUsage(
                f"{name} {where} is a secret, and a fleet file is shared and versioned: set the environment variable "
                f"LAKEGC_{name.upper()} instead"
            )
        if not shared and name in known.process:
            raise WrongUsage(
                f"{name} {where} applies to the whole process, not to individual repositories: move it above the "
                "sections"
            )
