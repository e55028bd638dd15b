"""The README and the pages of `docs/`: links lead somewhere, lines are short, and names are those of the code."""

from __future__ import annotations

import functools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import lakegc_assets.mark
import lakegc_assets.sweep
from lakegc_assets.cli import commands as cli
from spark_resources.mark_store.hold_file import parse_holds
from spark_resources.settings import Settings
from tests.support.documented_commands import PAGES, README, ROOT, shown_commands, usage_error

PAGES_WITH_MODULE_NAMES = {"architecture.md", "contributing.md"}
PACKAGES = ("lakegc_assets", "spark_resources")
NAMES = [page.name for page in PAGES]
LONGEST_LINE, LONGEST_README, LONGEST_PARAGRAPH = 120, 250, 6
NOT_OURS = {
    "--py-files", "--packages",  # Spark's
    "--include", "--files-from", "--files-from-raw", "--no-traverse", "--ignore-existing",  # rclone's
    "--config", "--cache-dir", "--parallelism", "--presign",  # the standalone collector's
    "--select", "--partition", "--tags",  # Dagster's
    "--check", "--no-dev", "--extra", "--group",  # ruff's, uv's
    "--now", "--read-only",  # systemctl's, dagster-webserver's
    "--objects", "--commits", "--runs", "--size", "--factor", "--pairs",  # of benchmarks
    "--latency", "--limits", "--in-flight", "--files", "--repositories", "--marks", "--postgres",
    "--operations", "--faults", "--mark", "--scenario", "--without", "--processes", "--progress",  # of the model
    "--seed", "--minutes", "--seconds", "--corpus", "--replay",
}  # fmt: skip

# one process for all, so that the imports of tests are done once
COLLECT = """
import json, sys
import pytest

options = ["-n", "0", "-p", "no:cacheprovider", "-q", "--collect-only"]
print(json.dumps([int(pytest.main([*options, *run])) for run in json.load(sys.stdin)]))
"""

a_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """A page without its fenced code."""
    return re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub generates from a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    """The relative targets of links and pictures, including those of references."""
    inline = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    for target in [*inline, *re.findall(r"^\[[^\]]+\]: (\S+)$", prose(page), re.MULTILINE)]:
        if "://" not in target:
            yield target


def paragraphs(page: Path) -> Iterator[list[str]]:
    """The lines of each paragraph and each item of a list, without code, tables and headings."""
    lines: list[str] = []
    for line in [*prose(page).splitlines(), ""]:
        apart = not line.strip() or line.startswith(("|", "#", "    ")) or re.match(r"- |\d+\. ", line)
        if apart and lines:
            yield lines
            lines = []
        if line.strip() and not line.startswith(("|", "#", "    ")):
            lines.append(line)


def code(page: Path) -> Iterator[str]:
    """Each line of code blocks, and each code span."""
    for block in re.findall(r"^```\w*\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL):
        yield from block.splitlines()
    yield from re.findall(r"^    (.+)$", prose(page), re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", prose(page))


def commands_named(page: Path) -> set[str]:
    """The commands of lakegc that a page's code names."""
    matches = (re.match(r"(?:\S+/)?lakegc (?:--set \S+ )?([a-z]\S*)", line.strip()) for line in code(page))
    return {match.group(1) for match in matches if match is not None}


def commands() -> dict[str, typer.main.click.Command]:
    return dict(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]


def options() -> set[str]:
    """Every option of every command."""
    every = [typer.main.get_command(cli.app), *commands().values()]
    every += [inner for command in commands().values() for inner in getattr(command, "commands", {}).values()]
    return {name for command in every for parameter in command.params for name in parameter.opts}


@a_page
def test_every_relative_link_and_anchor_has_a_target(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("page", PAGES[1:], ids=NAMES[1:])
def test_each_page_begins_with_links_to_its_sections(page: Path) -> None:
    beginning, *sections = prose(page).split("\n## ")

    assert re.findall(r"\[([^\]]+)\]\(#", beginning) == [section.partition("\n")[0] for section in sections]


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in links(README)}

    assert {f"docs/{page.name}" for page in PAGES[1:]} <= linked


def test_the_readme_is_short() -> None:
    lines = text(README).splitlines()

    assert len(lines) <= LONGEST_README
    assert [line for line in lines if len(line) > LONGEST_LINE] == []


@a_page
def test_lines_and_paragraphs_are_short(page: Path) -> None:
    """Rows of tables may be longer: Markdown can't break them."""
    lines = [line for line in text(page).splitlines() if not line.startswith("|")]

    assert [line for line in lines if len(line) > LONGEST_LINE] == []
    assert [paragraph for paragraph in paragraphs(page) if len(paragraph) > LONGEST_PARAGRAPH] == []


def test_fleet_files_and_holds_on_the_pages_are_valid(tmp_path: Path) -> None:
    fleet_files = re.findall(r"^```toml\n(.*?)^```$", text(ROOT / "docs" / "settings.md"), re.MULTILINE | re.DOTALL)
    [holds] = re.findall(r"^```yaml\n(.*?)^```$", text(ROOT / "docs" / "how-it-decides.md"), re.MULTILINE | re.DOTALL)
    for content in fleet_files:
        (tmp_path / "lakegc.toml").write_text(content, encoding="utf-8")
        assert Settings.fleet_file({}, tmp_path)

    assert len(fleet_files) == 2
    assert len(parse_holds(holds.encode(), "the page")) == 5


@a_page
def test_environment_variables_named_on_a_page_belong_to_existing_settings(page: Path) -> None:
    variables = set(re.findall(r"LAKEGC_([A-Z0-9_]*[A-Z0-9])\b", text(page)))
    of_tests = ("TEST_", "MODEL_", "RANDOM_", "ALL_", "LONG_", "RECORDINGS", "INCREMENTAL_MARKS")
    of_pages = ("S3", "CONFIG", "SERVERS_")
    strange = {name for name in variables if name.lower() not in Settings.model_fields}

    assert [name for name in sorted(strange) if not name.startswith((*of_tests, *of_pages))] == []


def test_every_invariant_that_is_cited_by_number_is_explained() -> None:
    listed = set(re.findall(r"^\| (\d+) \| \[", text(ROOT / "docs" / "how-it-decides.md"), re.MULTILINE))
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    mentions = [mention for path in modules for mention in re.findall(r"invariants?[ =](\d[\d, and]*)", text(path))]
    named = {number for mention in mentions for number in re.findall(r"\d+", mention)}

    assert named == listed


@a_page
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    assert commands_named(page) <= commands().keys()


def test_every_command_is_named_on_a_page() -> None:
    assert set.union(*map(commands_named, PAGES)) == commands().keys()


@a_page
def test_the_command_line_accepts_every_command_that_a_page_shows(page: Path) -> None:
    """A span with only a command's name is a mention of it."""
    shown = [arguments for arguments in shown_commands(list(code(page))) if len(arguments) > 1]

    assert [error for error in map(usage_error, shown) if error is not None] == []


@a_page
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    named = {option for line in code(page) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", line)}

    assert named - options() - NOT_OURS == set()


@pytest.mark.parametrize("package", [lakegc_assets.mark, lakegc_assets.sweep], ids=["mark", "sweep"])
def test_the_docstring_of_each_package_names_all_of_its_modules(package: ModuleType) -> None:
    modules = {path.stem for folder in package.__path__ for path in Path(folder).glob("*.py")} - {"__init__"}
    named = set(re.findall(r"\w+", package.__doc__ or ""))

    assert modules - named == set()
    assert {name for name in named if "_" in name} - modules == set()


def test_every_documented_pytest_command_selects_tests() -> None:
    """A `-k` that names a renamed test fails here."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text(ROOT / "docs" / "contributing.md"), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    runs = [shlex.split(line.partition("run pytest ")[2]) for line in lines if "run pytest " in line]
    collected = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=ROOT, input=json.dumps(runs), capture_output=True, text=True, check=False
    )

    assert len(runs) >= 5
    assert collected.returncode == 0, collected.stderr
    ended = json.loads(collected.stdout.splitlines()[-1])
    assert [shlex.join(run) for run, code in zip(runs, ended, strict=True) if code] == [], collected.stdout


def test_each_promise_of_the_readme_has_a_test() -> None:
    promised = text(README).partition("## What it promises")[2].partition("\n## ")[0]
    kept = text(ROOT / "docs" / "safety.md").partition("## Promises and their tests")[2].partition("\n## ")[0]
    named, tested = (re.findall(r"^\| ([A-Z][^|]+) \| (.*) \|$", section, re.MULTILINE) for section in (promised, kept))

    assert [promise for promise, _ in tested] == [promise for promise, _ in named]
    assert [promise for promise, tests in tested if not re.search(r"`test_\w+`", tests)] == []


@a_page
def test_tests_named_on_a_page_exist(page: Path) -> None:
    """A page may claim that a test shows something."""
    named = set(re.findall(r"`(test_\w+)`", text(page)))

    assert named - names_of_tests() == set()


@functools.cache
def names_of_tests() -> frozenset[str]:
    modules = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for module in modules for name in re.findall(r"^def (test_\w+)\(", module, re.MULTILINE))


@a_page
def test_modules_named_on_a_page_exist_and_only_two_pages_name_modules(page: Path) -> None:
    """A contributor who moves a module learns from this which pages to change."""
    paths = re.findall(r"(?<![\w/.])(?:lakegc_assets|spark_resources|tests)/[\w/.-]*\w/?", text(page))
    modules = [name.replace(".", "/") + ".py" for name in re.findall(r"\btests\.\w+\.\w+", text(page))]

    assert [path for path in [*paths, *modules] if not (ROOT / path).exists()] == []
    assert page.name in PAGES_WITH_MODULE_NAMES or [*paths, *modules] == []


@a_page
def test_no_page_has_merge_conflict_markers(page: Path) -> None:
    marks = ("<<<<<<< ", "=======", ">>>>>>> ")
    assert [line for line in text(page).splitlines() if line.startswith(marks)] == []
