"""A proxy between lakegc and another server. A test can change responses before lakegc gets them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

import urllib3
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from tests.support.replay_server import serving

Hook = Callable[[Any], None]
_DROPPED_HEADERS = frozenset({"host", "connection", "transfer-encoding", "content-length", "server"})


class TamperingProxy:
    """Forwards to `upstream`. `date_offset` is added to the `Date` of each response; `dropped` headers are removed.

    `refused` maps ends of paths to statuses. Requests to such paths get that status, and are not forwarded.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream, self.endpoint = upstream, ""
        self.date_offset = timedelta(0)
        self.dropped: frozenset[str] = frozenset()
        self.refused: dict[str, int] = {}
        self._response_hooks: list[tuple[str, Hook]] = []
        self._request_hooks: list[tuple[str, Hook]] = []
        # as other proxies do: what a server can repeat is sent again if it closed an idle connection at that moment
        self._pool = urllib3.PoolManager(retries=urllib3.Retry(2, redirect=False, respect_retry_after_header=False))

    def after(self, call: str, hook: Hook) -> None:
        """Call `hook` with the JSON of each successful response to a path with this end. The hook may change the JSON
        in place."""
        self._response_hooks.append((call, hook))

    def before(self, call: str, hook: Hook) -> None:
        """Call `hook` with the query of each request to a path with this end, before it is forwarded."""
        self._request_hooks.append((call, hook))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        response = await run_in_threadpool(self._forward, request, await request.body())
        await response(scope, receive, send)

    def _forward(self, request: Request, body: bytes) -> Response:
        forwarded = {k: v for k, v in request.headers.items() if k not in _DROPPED_HEADERS | self.dropped}
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope["raw_path"].decode()
        for call, status in self.refused.items():
            if request.url.path.endswith(call):
                return Response(json.dumps({"message": "as planned"}), status, media_type="application/json")
        for call, hook in self._request_hooks:
            if request.url.path.endswith(call):
                hook(request.query_params)
        response = self._pool.request(request.method, self.upstream + path + query, body=body, headers=forwarded)
        data = response.data
        for call, hook in self._response_hooks:
            if request.url.path.endswith(call) and response.status < 300:
                record = json.loads(data)
                hook(record)
                data = json.dumps(record).encode()
        headers = {k: v for k, v in response.headers.items() if k.lower() not in _DROPPED_HEADERS}
        if "date" in response.headers:
            headers["date"] = format_datetime(
                parsedate_to_datetime(response.headers["date"]) + self.date_offset, usegmt=True
            )
            headers.pop("Date", None)
        return Response(data, response.status, headers)


@contextmanager
def tampering_proxy(upstream: str) -> Iterator[TamperingProxy]:
    forwarding = TamperingProxy(upstream)
    with serving(forwarding) as endpoint:
        forwarding.endpoint = endpoint
        yield forwarding
