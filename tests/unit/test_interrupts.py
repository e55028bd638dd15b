"""Interrupts that Python would ignore."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, time
from lakegc_assets.cli.interrupts import raise_lost_interrupts

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # Python raises the interrupt here, and ignores it

raise_lost_interrupts()
Finalized()
try:
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_during_a_finalizer_is_not_lost() -> None:
    """Otherwise, Ctrl-C would print a traceback, and the command would continue."""
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)

    assert (process.stdout, process.stderr) == ("interrupted\n", "")
