"""The sandbox's HTTP server: routes, authentication, error responses, and the clock's time in every response."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import datetime

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from spark_resources.lakefs_sandbox import (
    routes_commits,
    routes_gc,
    routes_objects,
    routes_repositories,
    routes_staging,
)
from spark_resources.lakefs_sandbox.catalog import Catalog
from spark_resources.lakefs_sandbox.errors import Problem, missing_permission
from spark_resources.lakefs_sandbox.http_calls import (
    Call,
    Handler,
    Options,
    error_response,
    http_date,
    is_authenticated,
)

API = "/api/v1"
ROUTES = (
    *routes_repositories.ROUTES,
    *routes_commits.ROUTES,
    *routes_objects.ROUTES,
    *routes_staging.ROUTES,
    *routes_gc.ROUTES,
)
_PUBLIC_PATHS = frozenset({f"{API}/healthcheck", f"{API}/setup_lakefs"})

_log = logging.getLogger(__name__)
_Endpoint = Callable[[Request], Awaitable[Response]]


def application(catalog: Catalog, options: Options) -> Starlette:
    """The server's application. Handlers run in threads; each gets a request with its whole body."""

    def endpoint(handler: Handler) -> _Endpoint:
        async def handle(request: Request) -> Response:
            started = time.perf_counter()
            body = await request.body()
            call = Call(catalog, options, request.path_params, request.query_params, request.headers, body)
            response = await run_in_threadpool(_respond, handler, call, request.url.path)
            now = catalog.clock.now()
            response.headers["Date"] = http_date(now)
            if options.request_log is not None:
                milliseconds = (time.perf_counter() - started) * 1000
                options.request_log(_log_line(now, request, response.status_code, milliseconds))
            return response

        return handle

    async def handle_unknown(request: Request, _: Exception) -> Response:
        return await endpoint(_no_route)(request)

    # HEAD first: in Starlette, a route for GET also handles HEAD.
    ordered_routes = sorted(ROUTES, key=lambda route: route.method != "HEAD")
    routes = [
        StarletteRoute(API + route.path, endpoint(route.handler), methods=[route.method]) for route in ordered_routes
    ]
    return Starlette(routes=routes, exception_handlers={404: handle_unknown, 405: handle_unknown})


def _respond(handler: Handler, call: Call, path: str) -> Response:
    try:
        if path not in _PUBLIC_PATHS and not is_authenticated(call.headers, call.options):
            raise Problem(401, "error authenticating request")
        if (status := call.options.failure_statuses.get(call.path.get("repository", ""))) is not None:
            raise missing_permission() if status == 401 else Problem(status, "the sandbox was set to fail this request")
        return handler(call)
    except Problem as problem:
        return error_response(problem)
    except Exception as error:  # as on a real server, only this request fails
        _log.exception("%s", path)
        return error_response(Problem(500, str(error) or type(error).__name__))


def _log_line(now: datetime, request: Request, status: int, milliseconds: float) -> str:
    """Time, method, path as sent, status and milliseconds. The path is escaped, so this is always one line."""
    query = request.scope["query_string"].decode("latin-1")
    path = request.scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
    return f"{now:%Y-%m-%dT%H:%M:%S.%f}Z {request.method} {path} {status} {milliseconds:.1f}"


def _no_route(call: Call) -> Response:
    raise Problem(404, "invalid API endpoint")
