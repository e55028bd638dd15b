"""A proxy between lakegc and another server: a test can change responses, or files, on the way."""

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
_NOT_FORWARDED = frozenset({"host", "connection", "transfer-encoding", "content-length", "server"})


class Between:
    """Forwards to `upstream`. `later` is added to the `Date` of each response; `dropped` headers never get through.

    Requests to paths that end as `refused` says are answered with that status, and not forwarded.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream, self.endpoint = upstream, ""
        self.later = timedelta(0)
        self.dropped: frozenset[str] = frozenset()
        self.refused: dict[str, int] = {}
        self._hooks: list[tuple[str, Hook]] = []
        self._early: list[tuple[str, Hook]] = []
        self._pool = urllib3.PoolManager(retries=False)

    def after(self, call: str, hook: Hook) -> None:
        """Let `hook` see, and change in place, the JSON of good responses to paths that end so."""
        self._hooks.append((call, hook))

    def before(self, call: str, hook: Hook) -> None:
        """Let `hook` see the query of requests to paths that end so, before they are forwarded."""
        self._early.append((call, hook))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        response = await run_in_threadpool(self._forward, request, await request.body())
        await response(scope, receive, send)

    def _forward(self, request: Request, body: bytes) -> Response:
        sent = {k: v for k, v in request.headers.items() if k not in _NOT_FORWARDED | self.dropped}
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope["raw_path"].decode()
        for call, status in self.refused.items():
            if request.url.path.endswith(call):
                return Response(json.dumps({"message": "as planned"}), status, media_type="application/json")
        for call, hook in self._early:
            if request.url.path.endswith(call):
                hook(request.query_params)
        found = self._pool.request(request.method, self.upstream + path + query, body=body, headers=sent)
        data = found.data
        for call, hook in self._hooks:
            if request.url.path.endswith(call) and found.status < 300:
                record = json.loads(data)
                hook(record)
                data = json.dumps(record).encode()
        headers = {k: v for k, v in found.headers.items() if k.lower() not in _NOT_FORWARDED}
        if "date" in found.headers:
            headers["date"] = format_datetime(parsedate_to_datetime(found.headers["date"]) + self.later, usegmt=True)
            headers.pop("Date", None)
        return Response(data, found.status, headers)


@contextmanager
def between(upstream: str) -> Iterator[Between]:
    forwarding = Between(upstream)
    with serving(forwarding) as endpoint:
        forwarding.endpoint = endpoint
        yield forwarding
