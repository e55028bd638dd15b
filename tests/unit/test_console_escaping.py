"""Text that lakegc prints never controls the terminal, whether it comes from a key, a holds file or a server."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from rich.table import Table
from starlette.responses import Response

from lakegc_assets.cli import main
from lakegc_assets.cli.console import EscapingConsole
from lakegc_assets.cli.escaping import EscapedOutput, print_error, print_text
from lakegc_assets.cli.object_list import list_rows
from lakegc_assets.cli.progress import show_progress
from spark_resources.model import EXPIRED_OBJECTS
from tests.support.command_line import check_terminal_safe
from tests.support.mark_runs import environment
from tests.support.replay_server import serving
from tests.support.scripted_lakefs import Script, reply

EVIL = "\x1b]0;title\x07\x1b[2Jall is well\x9b31m\u202e\r\u2028"


def on_a_terminal(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> str:
    """The output of `act` on a terminal, with stdout and stderr connected to it."""
    reader_end, terminal_end = pty.openpty()
    pieces: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(reader_end, pieces))
    reader.start()
    with os.fdopen(terminal_end, "w", encoding="utf-8", newline="") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        patched.setattr(sys, "stderr", stream)
        act()
    reader.join()
    os.close(reader_end)
    return b"".join(pieces).decode()


def read_all(terminal: int, pieces: list[bytes]) -> None:
    with suppress(OSError):  # a terminal raises this once nobody writes to it any more
        while piece := os.read(terminal, 1 << 16):
            pieces.append(piece)


def csv_of_a_key() -> None:
    row = dict.fromkeys(EXPIRED_OBJECTS.names) | {
        "address": f"data/{EVIL}\nx", "size": 1, "modified": datetime(2026, 1, 1, tzinfo=UTC), "reason": EVIL,
    }  # fmt: skip
    list_rows([pa.Table.from_pylist([row], schema=EXPIRED_OBJECTS)], datetime(2026, 2, 1, tzinfo=UTC), "csv")


def progress_of_a_key() -> None:
    with show_progress() as log_message:
        log_message(f"reading [/bold]{EVIL}")


def table_of_a_key() -> None:
    table = Table(title=EVIL, box=None)
    table.add_column("head")
    table.add_row(EVIL)
    EscapingConsole(no_color=True, highlight=False).print(table, EVIL, markup=False)


@pytest.mark.parametrize(
    "act",
    [
        lambda: print_text(f"held\n{EVIL}"),
        lambda: print_error(EVIL),
        lambda: EscapedOutput().write(EVIL),
        csv_of_a_key,
        table_of_a_key,
        progress_of_a_key,
    ],
    ids=["text", "message", "usage", "csv", "table", "progress"],
)
def test_printed_text_never_controls_the_terminal(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """A title, a cleared screen or hidden text could make a list of what will be deleted look different."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "400")
    output = on_a_terminal(monkeypatch, act)

    assert "all is well" in output
    for strange in ("\x1b]0;", "\x1b[2Jall", "\x07", "\x9b", "\u202e", "\u2028"):
        assert strange not in output


def test_csv_in_a_file_has_every_key_unescaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that reads the list needs exactly the keys of the store."""
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    csv_of_a_key()

    assert f'"data/{EVIL}\nx"' in out.getvalue()


@pytest.mark.parametrize("arguments", [["status", "lake"], ["status", "lake", "--no-\x1b[2Joption"]])
@pytest.mark.parametrize("debug", [False, True])
def test_text_from_a_server_or_an_argument_is_escaped_in_messages_and_tracebacks(
    capsys: pytest.CaptureFixture[str], arguments: list[str], debug: bool
) -> None:
    """A proxy or a server can write anything into an error; messages and tracebacks show it harmlessly."""
    body = json.dumps({"message": f"forbidden {EVIL}"}, ensure_ascii=False).encode()
    script = Script().on("GET /config", reply(200, {}))
    script.on("GET lake", Response(body, 403, media_type="application/json"))
    with serving(script) as endpoint:
        login = {"access_key_id": "AKIA", "secret_access_key": "s", "retry_total_s": "0"}
        with environment({"endpoint_url": endpoint, **login}):
            code = main.run([*(["--debug"] if debug else []), *arguments])

    printed = capsys.readouterr()
    assert code
    assert "all is well" in printed.err or "\\x1b[2Joption" in printed.err
    check_terminal_safe(printed.err + printed.out)
