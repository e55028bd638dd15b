"""Does the model find faults? This plants one fault at a time in a copy of the code, and runs the model on it.

    uv run python -m tests.property.planted            # all faults, one line each
    uv run python -m tests.property.planted "same bytes"

A fault that has to get past a second safeguard is planted in both, and its comment says so. The run is that of
`tests/property/test_model.py` with 2,000 steps, the same ones every time, unless LAKEGC_MODEL_STEPS says otherwise.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("lakegc_assets", "spark_resources", "tests", "pyproject.toml", "README.md")


class Edit(NamedTuple):
    file: str
    before: str
    after: str


NO_CLOSING_READ = Edit(
    "lakegc_assets/mark/recheck.py",
    '    live = live_at_the_end(run, notes) if notes.facts["unreferenced"] else []\n',
    "    live = []\n",
)
FAULTS: Mapping[str, tuple[Edit, ...]] = {
    # commits are read before staged objects, and lists aren't read again at the end
    "order of reads": (
        Edit(
            "spark_resources/mark_store/record.py",
            '    "uncommitted_addresses",\n    "retained_commits",\n',
            '    "retained_commits",\n    "uncommitted_addresses",\n',
        ),
        NO_CLOSING_READ,
    ),
    # the graph has only the commits that branches reach
    "dangling commits": (
        Edit(
            "lakegc_assets/mark/retained_commits.py",
            "            graph[commit.id] = verified_commit(commit)\n    return graph\n",
            "            graph[commit.id] = verified_commit(commit)\n"
            "    reached, waiting = {}, [*run.lakefs.branches(run.partition.repository).values()]\n"
            "    while waiting:\n"
            "        if (one := graph.get(waiting.pop())) is not None and one.id not in reached:\n"
            "            reached[one.id] = one\n"
            "            waiting += one.parents\n"
            "    return reached\n",
        ),
    ),
    # only the configured spelling of the namespace counts; other spellings are taken for another place
    "path forms": (
        Edit(
            "spark_resources/lakefs/ranges.py",
            "for root in (namespace.uri, *namespace.aliases):",
            "for root in (namespace.uri,):",
        ),
        Edit(
            "spark_resources/lakefs/ranges.py",
            "for address in rest.filter(ambiguous).to_pylist():",
            "for address in ():",
        ),
    ),
    # staged objects are read only once: no second list, no diff, no reading at the end
    "double reading": (
        Edit(
            "lakegc_assets/mark/uncommitted_addresses.py",
            'READINGS = ("first", "second")',
            'READINGS = ("first",)',
        ),
        Edit(
            "lakegc_assets/mark/uncommitted_addresses.py",
            'DIFFS = ("first_diffs", "second_diffs")',
            'DIFFS = ("first_diffs",)',
        ),
        Edit(
            "lakegc_assets/mark/uncommitted_readings.py",
            "    branches = sorted(run.lakefs.branches(run.partition.repository))\n",
            "    branches: list[str] = []\n",
        ),
        NO_CLOSING_READ,
    ),
    # the server's responses about objects of equal size are ignored
    "same bytes": (
        Edit(
            "lakegc_assets/mark/restaged_content.py",
            '    return evidence_from_probes(run, probed, unclear=bool(facts["unclear"])) if probed else None\n',
            "    return None\n",
        ),
    ),
    # only commits that the server lists are retained, not those that only the rule retains
    "union rule": (
        Edit(
            "lakegc_assets/rules/retention.py",
            "    return sorted(known.values(), key=lambda verdict: verdict.commit_id)\n\n\n# --- the rule",
            "    found = [replace(one, retained=one.server_listed) if listed else one for one in known.values()]\n"
            "    return sorted(found, key=lambda verdict: verdict.commit_id)\n\n\n# --- the rule",
        ),
    ),
    # objects that move at the end of a mark are missed
    "closing read": (NO_CLOSING_READ,),
}


def main(chosen: list[str]) -> int:
    if unknown := [name for name in chosen if name not in FAULTS]:
        raise SystemExit(f"there is no fault {unknown[0]!r}; the known ones are {', '.join(map(repr, FAULTS))}")
    missed = 0
    for name in chosen or list(FAULTS):
        began = time.monotonic()
        output = run(FAULTS[name])
        steps, marks = (found_after(output, what) for what in ("steps", "marks"))
        missed += steps is None
        verdict = f"found after {steps} steps, at mark {marks}" if steps is not None else "NOT FOUND"
        print(f"{name}: {verdict}, {time.monotonic() - began:.0f} s", flush=True)
        if steps is None:
            print("\n".join(line for line in output.splitlines() if line.startswith("E ")) or output[-3000:])
    return missed


def run(edits: tuple[Edit, ...]) -> str:
    """The output of the model's test on the code with these edits."""
    with tempfile.TemporaryDirectory() as copy:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(copy, name), ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy)
        for edit in edits:
            plant(Path(copy, edit.file), edit)
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "--timeout=0", "tests/property/test_model.py"]
        variables = {"LAKEGC_MODEL_STEPS": "2000", **os.environ, "PYTHONPATH": copy}
        completed = subprocess.run(command, cwd=copy, env=variables, capture_output=True, text=True, check=False)
        return completed.stdout + completed.stderr


def plant(file: Path, edit: Edit) -> None:
    text = file.read_text(encoding="utf-8")
    if text.count(edit.before) != 1:
        raise SystemExit(f"{edit.file} has changed: {edit.before!r} is there {text.count(edit.before)} times")
    file.write_text(text.replace(edit.before, edit.after), encoding="utf-8")


def found_after(output: str, what: str) -> str | None:
    match = re.search(rf"([\d,]+) {what} to the first find", output)
    return match.group(1) if match else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
