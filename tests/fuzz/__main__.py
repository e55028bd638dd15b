"""Run targets for a stated time each, print their executions, and save inputs that don't have the property.

    python -m tests.fuzz --seconds 60                  # all targets
    python -m tests.fuzz records parquet --seconds 600
    python -m tests.fuzz --replay records FILE         # one input again, with its traceback

Tables are decoded as plain Python. The inputs that were found are then decoded by the compiled code, with and without
its checks of bounds, which have to agree as well.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.replay import main as replay

MAX_INPUT = 1 << 16  # bytes
MAX_MEMORY_MB = 4_096
COMPILED = ("table-files", "table-blocks")


@dataclass(frozen=True)
class Run:
    """One run of a target: its executions, and the lines and branches of lakegc that they reached."""

    name: str
    executions: int
    coverage: int
    features: int
    violation: str = ""


def fuzz(name: str, corpus: Path, seconds: int, seed: int) -> Run:
    """Fuzz a target for some seconds in a separate process."""
    options = {
        "max_total_time": seconds,
        "timeout": 2 * seconds + 600,  # `one_target` has its own limit, in CPU time
        "seed": seed,
        "max_len": MAX_INPUT,
        "rss_limit_mb": MAX_MEMORY_MB,
        "report_slow_units": 2 * seconds + 600,
        "print_final_stats": 1,
    }
    command = [sys.executable, "-m", "tests.fuzz.one_target", name, str(corpus)]
    command += [f"-{option}={value}" for option, value in options.items()]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    (corpus / "log.txt").write_text(done.stdout + done.stderr)
    units = re.findall(r"stat::number_of_executed_units: (\d+)", done.stderr)
    last = re.findall(r"#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)", done.stderr)
    executions, coverage, features = map(int, last[-1]) if last else (0, 0, 0)
    violation = "" if done.returncode == 0 else f"exit {done.returncode}, see {corpus}/log.txt"
    return Run(name, int(units[-1]) if units else executions, coverage, features, violation)


def replay_compiled(name: str, corpus: Path) -> str:
    """Check the corpus with the compiled decoder, without and with checks of bounds; returns what is wrong, or ""."""
    for bounds in ("0", "1"):
        cache = corpus.parent / f"numba-{bounds}"
        environment = {
            **os.environ,
            "NUMBA_DISABLE_JIT": "0",
            "NUMBA_BOUNDSCHECK": bounds,
            "NUMBA_CACHE_DIR": str(cache),
        }
        command = [sys.executable, "-m", "tests.fuzz.replay", name, str(corpus / "seeds"), str(corpus / "found")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"compiled, with NUMBA_BOUNDSCHECK={bounds}: {(done.stdout + done.stderr)[-2000:]}"
    return ""


def _run(name: str, folder: Path, seconds: int, seed: int) -> Run:
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    run = fuzz(name, corpus, seconds, seed)
    if name in COMPILED and not run.violation and (wrong := replay_compiled(name, corpus)):
        return Run(name, run.executions, run.coverage, run.features, wrong)
    return run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n", 1)[0] if __doc__ else ""
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="targets at once (default: %(default)s)")
    parser.add_argument("--corpus", type=Path, help="a folder for inputs, to continue later (default: a new one)")
    parser.add_argument("--seed", type=int, default=1, help="of the first random choices (default: %(default)s)")
    parser.add_argument("--replay", nargs="+", metavar=("TARGET", "FILE"), help="only check these inputs")
    given = parser.parse_args()
    if given.replay:
        replay(given.replay[0], [Path(path) for path in given.replay[1:]])
        return 0
    names = given.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    folder = given.corpus or Path(tempfile.mkdtemp(prefix="lakegc-fuzz-"))
    print(f"inputs: {folder}\n\n{'target':<16}{'executions':>12}{'coverage':>10}{'features':>10}", flush=True)
    failed = False
    with ThreadPoolExecutor(given.processes) as pool:
        for run in pool.map(lambda name: _run(name, folder, given.seconds, given.seed), names):
            print(
                f"{run.name:<16}{run.executions:>12,}{run.coverage:>10,}{run.features:>10,}  {run.violation}",
                flush=True,
            )
            failed |= bool(run.violation)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
