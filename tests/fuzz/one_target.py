"""Fuzz one target in this process, with coverage of lakegc's own code. The command in `__main__` starts it.

libFuzzer, which atheris embeds, ends the process at the first input without the property, and saves that input.
"""

from __future__ import annotations

import faulthandler
import logging
import resource
import signal
import sys
import warnings
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["lakegc_assets", "spark_resources"]):
    from tests.fuzz.all_targets import TARGETS
    from tests.fuzz.target import Violation

MAX_MEMORY = 3 << 30  # bytes: an allocation beyond it raises MemoryError
MAX_CPU_S = 10  # seconds of this process for one input
MAX_S = 300  # seconds by the clock: compiled code that hangs can't be interrupted, only ended


def main(name: str, corpus: Path, options: list[str]) -> None:
    """Fuzz a target. Inputs that reach new code are added to the folder `corpus`."""
    target = TARGETS[name]
    warnings.simplefilter("error", RuntimeWarning)  # numpy's, for a number that overflows in a loop of the decoder
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    seeds = corpus / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (seeds / f"{number:04d}").write_bytes(seed)
    found = corpus / "found"
    found.mkdir(exist_ok=True)

    def check(data: bytes) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
        faulthandler.dump_traceback_later(MAX_S, exit=True)
        try:
            target.check(data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            faulthandler.cancel_dump_traceback_later()

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return target.mutate(bytes(data), random)[:max_size]

    def time_out(*_: object) -> None:
        raise Violation(f"it takes more than {MAX_CPU_S} seconds")

    signal.signal(signal.SIGVTALRM, time_out)
    for number, kind in enumerate(target.kinds):
        target.check(bytes([number]) + kind.seeds()[0])  # imports what is imported later, without a limit of time
    arguments = [sys.argv[0], str(found), str(seeds), f"-artifact_prefix={corpus}/violation-", *options]
    atheris.Setup(arguments, check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
