"""Every command of the README and of `docs/`, as written: it is either run here in a sandbox, or a list says which
other test runs it, or why it is only parsed.

Pages are read in the order in which the README lists them. A command that several pages show is run once.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.mark import MARKS_ROOT
from spark_resources.model import Rules, default_mark_id
from spark_resources.settings import Settings
from tests.approval.test_commands import Terminal
from tests.commands.test_deploying import parse, program
from tests.support.command_line import Lakegc, Outcome
from tests.support.documented_commands import PAGES, README, ROOT, commands_of, shown_commands
from tests.support.mark_runs import environment

REPOSITORY, PATH = "my-repository", "reports/totals.csv"

PLACEHOLDERS = {
    "REPO": REPOSITORY,
    "example": REPOSITORY,
    "MARK": "{mark}",  # the newest mark, or the name of a new one, or the one that was backed up
    "[MARK]": "{mark}",
    "PATH": PATH,
    "ADDRESS": "{address}",
    "PLACE": "{folder}/backups",
    "s3://bucket/backups": "{folder}/backups",
    "FILE": "{folder}/{file}",  # the rules that a page shows, or the addresses of known losses
    "short.yaml": "{folder}/short.yaml",
    "long.yaml": "{folder}/long.yaml",
    "2027-06-30": "{next_year}",
}
"""What replaces each placeholder in a command. Everything else is passed as it is written."""

RUN_ELSEWHERE = {
    r"python3 -m venv \.uv && .*": ".ci/run runs these two, as the README has them",
    r"lakegc demo --store URI": "tests/commands/test_demo.py",
    r"lakegc sandbox up": "serves until it is stopped: tests/unit/test_sandbox_up.py",
    r"lakegc sandbox up --store s3://bucket/prefix": "tests/unit/test_sandbox_stores.py",
    r"lakegc ui": "serves until it is stopped: tests/ui/test_ui.py",
    r"lakegc [\w-]+ mine( .*)?": "tests/commands/test_readme.py, on the repository that the page's Python makes",
    r"lakegc \w+ losses( .*)?": "tests/commands/test_why_not_the_reference.py, as for mine",
    r"rclone (cat|copy) .*lake:.*": "tests/backup/test_rclone.py",
    r"python -c 'import dagster .*|dagster (asset|job) .*": "tests/dagster/test_dagster_commands.py",
    r"\.uv/bin/uv run (ruff|mypy|lint-imports).*": ".ci/run",
}
"""Which test runs commands, by their patterns."""

RUN_BY_HAND = r"(nice )?\.uv/bin/uv run (--group fuzz )?python -m tests\..*|tests\.\w+\.\w+ .*"
ONLY_PARSED = {
    r"export \w+=.*": "it sets a variable: those of lakegc are checked as settings, below",
    r"(/home/hadoop/environment/bin/)lakegc mark my-repository": "on EMR",
    r"lakegc mark my-repository --inventory s3://.*": "needs an inventory in S3",
    r"conda(-pack)? .*": "packs an environment for a cluster",
    r"docker compose .*": "Docker; tests/commands/test_deploying.py validates the file",
    r"kubectl .*": "Kubernetes; tests/commands/test_deploying.py validates the file",
    r"systemctl enable .*": "systemd; tests/commands/test_deploying.py verifies the units",
    r"dagster(-daemon)? (dev|instance|api|liveness-check).*": "serves, or needs Postgres; parsed by Dagster, below",
    r"\.uv/bin/uv sync --no-dev --extra \w+": "it would change the environment of the tests; the extra exists, below",
    r"pip install 'lakegc\[\w+\]'": "the same",
    r"apt-get install \w+": "installs a package of Debian, which .ci/run does",
    r"(LAKEGC_\w+=\S+ )?\.uv/bin/uv run pytest .*": "tests: tests/commands/test_docs.py collects them",
    RUN_BY_HAND: "takes minutes; module and options exist, below",
    r"python -m tests\.\w+": "takes minutes; its options are in other commands",
    r"rclone (copy|copy --files-from|cat --include '\*\.txt'|-P)": "names what lakegc replaces",
    r"lakectl gc set-config": "lakectl is a program of lakeFS",
    r"\.uv/bin/uv run( --no-dev)?( lakegc| python)?": "a prefix, or an interpreter",
}
"""Why commands are only parsed, by their patterns."""

ON_THIS_MACHINE = r"(cp|install) .*"
"""Commands of the shell that are run with another root folder, and as this user."""

SETTINGS = {
    "lakegc backup REPO MARK": {"backup_to": "{folder}/backups"},
    "lakegc holds REPO sign": {"signing_key": "5e" * 32},
    "LAKEGC_CONFIG=lakegc.toml lakegc config check": {"config": f"{ROOT}/docs/deploying/lakegc.toml"},
    "LAKEGC_CONFIG=lakegc.toml lakegc config check lake-main": {"config": f"{ROOT}/docs/deploying/lakegc.toml"},
}
"""The settings that commands need, besides those of the sandbox."""
TYPED = {"approve": "approve", "purge": "purge", "rules": "set", "holds": "sign"}
"""What somebody types when a command asks."""

NEEDS = {
    "approve": "marked",
    "revoke": "approved",
    "sweep": "approved",
    "report": "swept",
    "undo": "quarantined",
    "purge": "quarantined",
    "what-if": "current",
}
"""The state that the newest mark must be in, for commands that a page may show where it isn't. A mark is current unless
the holds have changed since."""
TO_REACH = {
    "current": "lakegc mark my-repository",
    "marked": "lakegc mark my-repository",
    "approved": "lakegc approve my-repository MARK",
    "swept": "lakegc sweep my-repository MARK",
    "quarantined": "lakegc sweep my-repository MARK --quarantine",
}
"""The command that is run before, to bring the newest mark into a state."""
AFTER = {"mark": "marked", "approve": "approved", "revoke": "marked", "sweep": "swept", "holds": "none"}
"""The state after a command. Other commands don't change it."""


class World:
    """A sandbox with one repository, in which documented commands are run one after the other."""

    def __init__(self, sandbox: Sandbox, folder: Path, lakegc: Lakegc) -> None:
        self._sandbox, self._folder, self._lakegc = sandbox, folder, lakegc
        self._state, self._newest, self._backed_up = "none", "", ""
        self._begun = sandbox.now()
        self._marks: set[str] = set()
        self._ended: dict[str, Outcome] = {}
        self._lake = sandbox.create(REPOSITORY)
        for number in range(60):  # so many that no brake trips
            self._lake.put("main", f"kept/{number}", b"kept" * 10)
        self._address = self._lake.put("main", PATH, b"totals").address
        self._lake.commit("main", "first")
        set_rules(self._lake, Rules(30))
        operations = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
        [rules] = re.findall(r"^```yaml\n(default_retention_days.*?)^```$", operations, re.MULTILINE | re.DOTALL)
        for name in ("rules.yaml", "short.yaml", "long.yaml"):
            (folder / name).write_text(rules)
        (folder / "lost.txt").write_text("data/s/lost\n")

    def ended(self, command: str) -> Outcome:
        """How a command ended, after all that are shown before it."""
        for shown in to_run():
            if shown not in self._ended:
                self.reach(NEEDS.get(name_of(shown), self._state))
                self._ended[shown] = self._run(shown)
            if shown == command:
                break
        return self._ended[command]

    def reach(self, state: str) -> None:
        """Bring the newest mark into a state, or a new one if this one is past it."""
        if state == self._state or (state == "current" and self._state != "none"):
            return
        if needed := NEEDS.get(name_of(TO_REACH[state])):
            self.reach(needed)
        ended = self._run(TO_REACH[state])
        assert ended.code == 0, f"{TO_REACH[state]}: {ended.err}"

    def _run(self, command: str) -> Outcome:
        name = name_of(command)
        if name == "mark":
            self._overwrite_an_object()
            self._begun += timedelta(seconds=1)
        settings = {setting: self._filled_in(value, command) for setting, value in SETTINGS.get(command, {}).items()}
        [words] = shown_commands([command])
        arguments = [self._filled_in(PLACEHOLDERS.get(word, ""), command) or word for word in words]
        with (
            mock.patch("sys.stdin", Terminal(f"{TYPED.get(name, '')}\n")),
            # the id is the current second, in which another mark may have begun
            mock.patch("lakegc_assets.cli.commands.default_mark_id", return_value=default_mark_id(self._begun)),
        ):
            ended = self._lakegc({**self._sandbox.settings, **settings}, *arguments)
        if ended.code == 0:
            self._note(name, command)
        return ended

    def _filled_in(self, text: str, command: str) -> str:
        return text.format(
            mark="new" if "--mark-id" in command else self._backed_up if " restore " in command else self._newest,
            address=self._address,
            folder=self._folder,
            file="lost.txt" if "--accept-missing" in command else "rules.yaml",
            next_year=f"{self._sandbox.now() + timedelta(days=365):%Y-%m-%d}",
        )

    def _note(self, name: str, command: str) -> None:
        if name == "mark":
            folder = self._sandbox.local_path / REPOSITORY / MARKS_ROOT
            marks = {record.parent.name for record in folder.glob("*/mark.json")}
            [self._newest], self._marks = marks - self._marks, marks
        if name == "backup":
            self._backed_up = self._newest
        self._state = "quarantined" if "--quarantine" in command else AFTER.get(name, self._state)

    def _overwrite_an_object(self) -> None:
        """Leave an object that was overwritten before it was committed. Everything new is made three days old, because
        the commands on the pages don't lower the minimum age."""
        for content in (os.urandom(8), b"kept"):
            self._lake.put("main", "overwritten", content)
        yesterday, old = (self._sandbox.now() - timedelta(days=days) for days in (1, 3))
        for file in (self._sandbox.local_path / REPOSITORY / "data").rglob("*"):
            if file.is_file() and file.stat().st_mtime > yesterday.timestamp():
                os.utime(file, times=(old.timestamp(), old.timestamp()))

    def run_python(self, block: str) -> dict[str, Any]:
        """Run Python with the sandbox's settings. Returns the names that it defines."""
        names: dict[str, Any] = {}
        with environment(self._sandbox.settings):
            exec(block, names)
        return names


def name_of(command: str) -> str:
    """The name of a command of lakegc, after options of the whole program."""
    [words] = shown_commands([command])
    return next(word for word in words if not word.startswith("-") and "=" not in word)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, lakegc: Lakegc) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("documented")
    with Sandbox(folder / "sandbox") as sandbox:
        yield World(sandbox, folder, lakegc)


def documented() -> dict[str, str]:
    """Each command, with the name of the page that shows it first."""
    pages = README.read_text(encoding="utf-8").partition("## Documentation")[2]
    order = [README.name, *re.findall(r"\(docs/([\w-]+\.md)\)", pages)]
    found: dict[str, str] = {}
    for page in sorted(PAGES, key=lambda page: order.index(page.name)):
        for command in commands_of(page.read_text(encoding="utf-8")):
            found.setdefault(command, page.name)
    return found


COMMANDS = documented()
LISTED = {**RUN_ELSEWHERE, **ONLY_PARSED, ON_THIS_MACHINE: "here"}


def matching(pattern: str) -> list[str]:
    return [command for command in COMMANDS if re.fullmatch(pattern, command)]


def unlisted() -> list[str]:
    """The commands of other programs that are in no list."""
    others = [command for command in COMMANDS if not list(shown_commands([command]))]
    return [command for command in others if not any(re.fullmatch(pattern, command) for pattern in LISTED)]


@functools.cache
def to_run() -> list[str]:
    """The commands in no list, without those that differ from an earlier one only in the names of placeholders."""
    listed = {command for pattern in LISTED for command in matching(pattern)}
    listed |= set(unlisted())
    distinct: dict[str, str] = {}
    for command in COMMANDS:
        words = (PLACEHOLDERS.get(word, word) for word in command.split())
        if command not in listed:
            distinct.setdefault(" ".join(words), command)
    return list(distinct.values())


@pytest.mark.parametrize("command", to_run(), ids=lambda command: f"{COMMANDS[command]}: {command}")
def test_a_documented_command_succeeds(world: World, command: str) -> None:
    """New commands on pages are also run here, unless they are added to one of the lists."""
    ended = world.ended(command)

    assert ended.code == 0, ended.err
    assert ended.out.strip()


def test_every_command_of_another_program_is_in_a_list() -> None:
    """If this fails, add the command to one of the lists above, and test it."""
    assert unlisted() == []


@pytest.mark.parametrize("pattern", LISTED)
def test_each_listed_command_is_on_a_page_and_its_test_exists(pattern: str) -> None:
    named = re.findall(r"(?:tests|\.ci)/[\w/.]*\w", LISTED[pattern])

    assert matching(pattern)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_files_for_systemd_are_installed_as_shown(tmp_path: Path) -> None:
    """Here, they are installed below a different root, and owned by this user instead of `lakegc`."""
    for folder in ("etc/systemd/system", "var/lib"):
        (tmp_path / folder).mkdir(parents=True)
    for command in matching(ON_THIS_MACHINE):
        here = re.sub(r" /(etc|var)/", rf" {tmp_path}/\1/", command).replace("-o lakegc", f"-o {getpass.getuser()}")
        subprocess.run(here, shell=True, check=True, cwd=ROOT, timeout=60)

    installed = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    units = {path.name for path in (ROOT / "docs" / "deploying").glob("lakegc-*")}
    assert installed == {
        *(f"etc/systemd/system/{unit}" for unit in units),
        *("etc/lakegc/lakegc.toml", "etc/lakegc/lakegc.env", "var/lib/lakegc/dagster/dagster.yaml"),
    }
    assert (tmp_path / "etc/lakegc/lakegc.env").stat().st_mode & 0o777 == 0o600


def test_exported_variables_of_lakegc_are_valid_settings() -> None:
    exported = [shlex.split(command)[1].partition("=") for command in matching("export LAKEGC_.*")]

    assert len(exported) >= 5
    for name, _, value in exported:
        settings = Settings.load({name: value}, Path("/nonexistent"), directory=Path("/nonexistent"))
        assert f"variable {name}" in settings.origins.values()


@pytest.mark.parametrize("command", matching("dagster(-daemon)? (dev|instance|api|liveness-check).*"))
def test_commands_of_dagster_are_accepted_by_dagster(command: str) -> None:
    name, *arguments = command.split()
    parse(program(name), name, [*arguments, *(["-p", "4000"] if "health-check" in command else [])])


@pytest.mark.parametrize("command", matching(RUN_BY_HAND))
def test_modules_that_are_run_by_hand_have_the_documented_options(command: str) -> None:
    [module] = re.findall(r"tests(?:\.\w+)+", command)
    path = ROOT / module.replace(".", "/")
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    options = re.findall(r" (--[\w-]+)", command.partition(module)[2])

    assert "__main__" in source
    assert [option for option in options if f'"{option}"' not in source] == []


def test_documented_extras_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [extra for command in COMMANDS for extra in re.findall(r"--extra (\w+)|lakegc\[(\w+)\]", command)]

    assert {"".join(names) for names in extras} == {"azure", "gcs", "postgres"}
    assert {"".join(names) for names in extras} <= project["optional-dependencies"].keys()


def test_the_functions_for_notebooks_work_as_shown(world: World) -> None:
    """The addresses in the example are placeholders that no object has."""
    questions = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```$", questions, re.MULTILINE | re.DOTALL)
    world.reach("current")
    names = world.run_python(block)

    assert names["totals"].num_rows == 2
    assert names["answers"]["decision"].to_pylist() == ["not stored"] * 2
