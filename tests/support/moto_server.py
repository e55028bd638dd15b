"""moto's server, which answers one request at a time: `python -m tests.support.moto_server PORT`.

With one thread per request, moto checks for the key of a conditional write and then writes, so two writers can both
succeed. The tests need moto's exact keys and also reliable conditional writes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.server import MotoRequestHandler
from werkzeug.serving import run_simple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def one_at_a_time(application: WSGIApplication) -> WSGIApplication:
    turn = threading.Lock()

    def respond(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        with turn:
            return application(environ, start_response)

    return respond


if __name__ == "__main__":
    application = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=MotoRequestHandler)
