"""Ctrl-C at a moment at which Python can't raise it."""

from __future__ import annotations

import signal
import sys
import threading


def raise_lost_interrupts() -> None:
    """From now on, raise an interrupt again if it came during a finalizer, where Python only reports and ignores it."""
    sys.unraisablehook = _interrupt_again


def _interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    # while Dagster runs a job, its handler of Ctrl-C raises another subclass of BaseException
    if issubclass(unraisable.exc_type, Exception | SystemExit | GeneratorExit):
        sys.__unraisablehook__(unraisable)
        return
    # later, from another thread: Python would ignore it in this function, too
    main_thread = threading.main_thread().ident or 0
    timer = threading.Timer(0.05, signal.pthread_kill, (main_thread, signal.SIGINT))
    timer.daemon = True
    timer.start()
