"""`lakegc sandbox up`: a lakeFS-compatible server on this machine."""

# no `from __future__ import annotations` here: Typer reads the annotations of commands
import os
import signal
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from lakegc_assets.cli.escaping import print_text
from lakegc_assets.cli.invocation import command
from lakegc_assets.cli.options import StoreOption
from spark_resources.host.user_folders import home_folder

sandbox_app = typer.Typer(help="Run a local lakeFS-compatible server to experiment with.", no_args_is_help=True)


@sandbox_app.command()
def up(
    folder: Annotated[Path, typer.Option(help="folder for the data of the sandbox")] = Path("lakegc-sandbox"),
    port: Annotated[int, typer.Option(help="port on 127.0.0.1; 0 picks a free port")] = 8000,
    store: Annotated[str | None, StoreOption] = None,
    request_log: Annotated[
        str, typer.Option(metavar="FILE", help="log one line per request to this file; '-' is stderr")
    ] = "",
) -> None:
    """Run a sandbox until Ctrl-C. Prints the settings for other terminals."""
    from spark_resources.lakefs_sandbox import Sandbox, StorePlace
    from spark_resources.settings import Settings

    place = StorePlace(store, Settings.load(os.environ, home_folder()).store_settings()) if store else None
    with ExitStack() as stack:
        log_message = None
        if request_log:
            to_stderr = request_log == "-"
            log = sys.stderr if to_stderr else stack.enter_context(Path(request_log).open("a", encoding="utf-8"))
            log_message = partial(print_text, file=log)
        sandbox = stack.enter_context(Sandbox(folder, port=port, place=place, request_log=log_message))
        objects_text = f", objects under {store}" if store else ""
        print_text(f"lakeFS sandbox at {sandbox.endpoint_url}, in\n{sandbox.root}{objects_text}\n")
        print_text("For lakectl, in ~/.lakectl.yaml:\n")
        for line in sandbox.lakectl_configuration.splitlines():
            print_text(f"  {line}")
        print_text("\nFor lakegc and lakefs-sdk, in another terminal:\n")
        for name, value in sandbox.environment.items():
            print_text(f"  export {name}={value}")
        print_text(f"\nThen list the marks:\n\n  {command('status')}\n")
        print_text("Press Ctrl-C to stop the sandbox; its data is kept.")
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # sent by service managers and containers
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print_text("stopped")
