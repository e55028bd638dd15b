"""`lakegc` on a terminal: the same jobs as in the Dagster UI, for people and for scripts.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused by an invariant or brake, 4 finished with failures,
130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import typer

from lakegc_assets.cli.commands import app
from lakegc_assets.cli.escaping import EscapedOutput, is_json, print_error, print_json_line, print_log, show_warnings
from lakegc_assets.cli.interrupts import raise_lost_interrupts
from lakegc_assets.cli.invocation import as_invoked, command, command_names
from lakegc_assets.progress import RunFields, set_run_fields
from spark_resources.errors import LakegcError
from spark_resources.host.failure_kinds import message_of


def main(arguments: list[str] | None = None) -> None:
    """The entry point of the command `lakegc`."""
    show_warnings()
    raise_lost_interrupts()
    gc.set_threshold(50_000)  # imports make many objects and no garbage, so the default of 700 slows down every command
    code = run(arguments, has_own_process=True)
    gc.freeze()  # otherwise Python garbage-collects all imported modules at exit, which takes a second
    sys.exit(code)


# click's class or Typer's own copy of it, depending on the version of Typer
_UsageError: Any = typer.BadParameter.__mro__[1]


INTERRUPTED = 130  # as in shells, and Typer's exit code for Ctrl-C
RESUMABLE = frozenset({"sweep", "backup", "restore", "undo", "purge", "retire"})
"""Commands that resume when they are run again."""


@dataclass
class Invocation:
    """One invocation of lakegc: whether it has its own process, and which command its arguments name."""

    has_own_process: bool
    command: str = ""


def run(arguments: list[str] | None = None, *, has_own_process: bool = False) -> int:
    """Run a command and return its exit code; errors become one message on stderr.

    With `has_own_process`, a command may leave threads or Spark running until the process ends.
    """
    invocation = Invocation(has_own_process)
    set_run_fields(RunFields())
    try:
        result = app(arguments, standalone_mode=False, obj=invocation)
        if result == INTERRUPTED:
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except LakegcError as error:
        return _report_failure(message_of(error), error.exit_code)
    except typer.Exit as stop:
        return stop.exit_code
    except _UsageError as error:
        if is_json():
            return _report_failure(error.format_message(), 2)
        error.show(EscapedOutput())
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return _report_failure(
            interrupted_message(invocation.command, sys.argv[1:] if arguments is None else arguments), INTERRUPTED
        )
    except BrokenPipeError:
        return 1
    except Exception as error:
        return _report_failure(message_of(error), 1)


def interrupted_message(name: str, arguments: list[str]) -> str:
    """The message after Ctrl-C, with the next step."""
    if name in RESUMABLE:
        return f"interrupted. Progress is saved; run the same command again to resume:\n  {command(*arguments)}"
    return "interrupted. Nothing was deleted. Run the command again." if name == "mark" else "interrupted"


def _report_failure(message: str, code: int) -> int:
    if os.environ.get("LAKEGC_DEBUG"):
        if is_json():
            print_json_line(traceback.format_exc(), level="DEBUG")
        else:
            print_error(traceback.format_exc())
    print_log(as_invoked(message, command_names(app)), level="ERROR", color="red" if code == 1 else "yellow")
    return code
