"""Interrupts that Python would ignore."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, time
from lakegc_assets.cli.interrupts import raise_lost_interrupts

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # Python raises the interrupt here, and ignores it

class InterruptOfDagster(BaseException):
    pass

def raise_another(*_):
    raise InterruptOfDagster

# set in both cases, because a process that a script starts with `&` ignores Ctrl-C
is_dagsters = sys.argv[1] == "InterruptOfDagster"
signal.signal(signal.SIGINT, raise_another if is_dagsters else signal.default_int_handler)
raise_lost_interrupts()
Finalized()
try:
    time.sleep(20)
except BaseException as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "InterruptOfDagster"])
def test_an_interrupt_during_a_finalizer_is_not_lost(raised: str) -> None:
    """Otherwise, Ctrl-C would print a traceback, and the command would continue."""
    command = [sys.executable, "-c", PROGRAM, raised]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (process.stdout, process.stderr) == (f"{raised}\n", "")
