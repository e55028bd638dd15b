"""Mutation testing: change the rules and readings in thousands of ways, and list every change that no test detects.

`python -m tests.mutation.run [pattern …]` tests all mutants, or those whose names match a pattern, and prints a table
by module. It fails if a mutant survives that `survivors.toml` doesn't explain, or if an explained one no longer
survives. `pyproject.toml` configures what is mutated, and which tests run. Results are kept in `mutants/`, so an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutmut.mutation.data import SourceFileMutationData
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import orig_function_and_class_names_from_key

EXPLAINED = Path(__file__).with_name("survivors.toml")
NOTICED = {"killed", "timeout", "segfault", "caught by type check"}
NOT_RUN = {"not checked", "skipped"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutant: its module and function, its status after the run, and the lines that it changes."""

    module: str
    function: str
    status: str
    change: str

    def __str__(self) -> str:
        return f"{self.module}.{self.function}: {self.change}"


def mutants() -> Iterator[Mutant]:
    """Every mutant of the last run. Only those that no test detected have a `change`."""
    for path in walk_mutatable_files():
        results = SourceFileMutationData(path=path)
        results.load()
        for name, exit_code in results.exit_code_by_key.items():
            function, of_class = orig_function_and_class_names_from_key(name)
            status = status_by_exit_code[exit_code]
            change = "" if status in NOTICED | NOT_RUN else change_of(name, path)
            full_name = f"{of_class}.{function}" if of_class else function
            yield Mutant(path.with_suffix("").as_posix().replace("/", "."), full_name, status, change)


def change_of(name: str, path: Path) -> str:
    """The lines that a mutant changes, or those that it removes."""
    lines = get_diff_for_mutant(name, path=path).splitlines()[2:]
    added, removed = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "+-")
    return " ".join(added) or f"without {' '.join(removed)}"


@dataclass(frozen=True, slots=True)
class Explanations:
    """Why mutants may survive: by mutant, and by function if only whole marks and sweeps reach it."""

    by_mutant: Mapping[str, str]
    by_function: Mapping[str, str]

    @classmethod
    def load(cls) -> Explanations:
        groups = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["survivors"]
        return cls(
            *(
                {name: group["why"] for group in groups for name in group.get(kind, ())}
                for kind in ("mutants", "functions")
            )
        )

    def covers(self, mutant: Mutant) -> bool:
        return str(mutant) in self.by_mutant or f"{mutant.module}.{mutant.function}" in self.by_function


def report(found: Sequence[Mutant], explanations: Explanations) -> list[str]:
    """Print the table by module. Returns the mistakes in the explanations, one per line."""
    by_module: dict[str, Counter[str]] = {}
    for mutant in found:
        counts = by_module.setdefault(mutant.module, Counter())
        kind = "killed" if mutant.status in NOTICED else "not run" if mutant.status in NOT_RUN else "surviving"
        counts.update((kind, "mutants"))
        if kind == "surviving":
            counts.update(("explained",) if explanations.covers(mutant) else ())
    print(
        "| module | mutants | killed | surviving | of them explained | not run |\n| --- | --: | --: | --: | --: | --: |"
    )
    columns = ("mutants", "killed", "surviving", "explained", "not run")
    for module, counts in [*sorted(by_module.items()), ("all", sum(by_module.values(), Counter()))]:
        print(f"| `{module}` | {' | '.join(f'{counts[name]:,}' for name in columns)} |")
    survivors = [mutant for mutant in found if mutant.status not in NOTICED | NOT_RUN]
    known = {*map(str, survivors), *(f"{mutant.module}.{mutant.function}" for mutant in survivors)}
    complete = not any(mutant.status in NOT_RUN for mutant in found)
    outdated = [name for name in (*explanations.by_mutant, *explanations.by_function) if complete and name not in known]
    return [
        *(f"survives unexplained: {mutant}" for mutant in survivors if not explanations.covers(mutant)),
        *(f"explained, but doesn't survive: {name}" for name in outdated),
    ]


def main(patterns: Sequence[str]) -> int:
    run = [sys.executable, "-m", "mutmut", "run", "--max-children", "2", *patterns]
    if (code := subprocess.run(run, check=False).returncode) != 0:
        return code
    wrong = report(list(mutants()), Explanations.load())
    print("", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
