"""A proxy between lakegc and a store. A test can make it break, repeat, delay or drop requests and responses.

Faults are sent in S3's form. A plan for another store must return whole responses.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import urllib3
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tests.support.replay_server import serving

_DROPPED_HEADERS = frozenset({"connection", "transfer-encoding", "content-length", "server", "keep-alive"})


class Fault(StrEnum):
    """The fault of one request."""

    BUSY = "503, and the request is not done"
    BROKEN = "500, and the request is not done"
    BROKEN_AFTER = "500 after the request is done"
    CUT = "the response is cut off in the middle"
    SLOW = "the response comes too late"
    HALF = "the response omits half of a batch"
    ERRORS = "half of a batch is deleted but reported as failed"
    DENIED = "every_nth key of a batch is refused"
    TWICE = "the request is forwarded twice"
    FULL = "the disk is full"


ERROR = "<?xml version='1.0'?><Error><Code>{}</Code><Message>as planned</Message></Error>"
RESPONSES = {
    Fault.BUSY: (503, ERROR.format("SlowDown")),
    Fault.BROKEN: (500, ERROR.format("InternalError")),
    Fault.FULL: (507, ERROR.format("XMinioStorageFull")),
}


@dataclass(frozen=True)
class CustomResponse:
    """A response that is sent instead of forwarding the request to the store."""

    status: int
    headers: dict[str, str]
    body: bytes


Plan = Callable[[str, str, bytes], Fault | CustomResponse | None]
"""Gets the method, path with query, and body of a request. Returns its fault or response, or None to forward it."""


@dataclass
class StoreProxy:
    """Forwards to `upstream`, with the faults that `plan` chooses. `seen` counts requests by kind.

    Each request is delayed by `latency_s`, with or without a fault.
    """

    upstream: str
    slow_s: float = 3.0
    latency_s: float = 0.0
    plan: Plan = lambda *_: None
    done: Callable[[str], None] = lambda _: None  # called with the kind of a request that the store has answered
    endpoint: str = ""
    seen: Counter[str] = field(default_factory=Counter)
    deletes_at: list[float] = field(default_factory=list)
    _pool: urllib3.PoolManager = field(default_factory=lambda: urllib3.PoolManager(retries=False, maxsize=32))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        status, headers, data, cut = await run_in_threadpool(self._respond, request, await request.body())
        headers = {k.lower(): v for k, v in headers.items()}
        fields = [(k.encode(), v.encode()) for k, v in headers.items() if k not in _DROPPED_HEADERS]
        length = len(data) if request.method != "HEAD" else int(headers.get("content-length", 0))
        fields.append((b"content-length", str(length + (1000 if cut else 0)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        if cut:
            await send({"type": "http.response.body", "body": data[: len(data) // 2], "more_body": True})
            raise ConnectionAbortedError("as planned")
        await send({"type": "http.response.body", "body": data})

    def _respond(self, request: Request, body: bytes) -> tuple[int, dict[str, str], bytes, bool]:
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope["raw_path"].decode() + query
        time.sleep(self.latency_s)
        with self._lock:
            self.seen[kind_of(request.method, path)] += 1
            if kind_of(request.method, path) == "delete":
                self.deletes_at.append(time.monotonic())
            fault = self.plan(request.method, path, body)
        if isinstance(fault, CustomResponse):
            return fault.status, fault.headers, fault.body, False
        if fault in RESPONSES:
            status, text = RESPONSES[fault]
            return status, {"content-type": "application/xml"}, text.encode(), False
        if fault is Fault.DENIED:
            return 200, {"content-type": "application/xml"}, delete_result(body, ok=False, code="AccessDenied"), False
        response = self._forward(request, path, body)
        if fault is Fault.TWICE:
            response = self._forward(request, path, body)
        if fault is Fault.BROKEN_AFTER:
            return 500, {"content-type": "application/xml"}, ERROR.format("InternalError").encode(), False
        if fault is Fault.SLOW:
            time.sleep(self.slow_s)
        self.done(kind_of(request.method, path))
        data = response.data
        if fault is Fault.HALF:
            data = halved(body, None)
        if fault is Fault.ERRORS:
            data = halved(body, "InternalError")
        return response.status, dict(response.headers), data, fault is Fault.CUT

    def _forward(self, request: Request, path: str, body: bytes) -> urllib3.BaseHTTPResponse:
        # the signature covers the Host header, so it is forwarded unchanged
        headers = {k: v for k, v in request.headers.items() if k not in ("connection", "content-length")}
        return self._pool.request(request.method, self.upstream + path, body=body, headers=headers)


def kind_of(method: str, path: str) -> str:
    """The kind of a request: list, delete, receipt, intent, lease, copy, read, write or lookup."""
    if method == "POST" and ("?delete" in path or "comp=batch" in path or path.startswith("/batch/")):
        return "delete"  # of many, on S3, Azure and Cloud Storage
    for word in ("receipt.parquet", "intent.parquet", "lease.json"):
        if word in path:
            return word.partition(".")[0] if method == "PUT" else f"read of a {word.partition('.')[0]}"
    if method == "GET" and "list-type=2" in path:
        return "list"
    return {"HEAD": "lookup", "GET": "read", "PUT": "write", "DELETE": "delete one"}.get(method, method)


def keys_in(body: bytes) -> list[str]:
    return re.findall(r"<Key>([^<]*)</Key>", body.decode())


def delete_result(body: bytes, *, ok: bool, code: str = "") -> bytes:
    """A batch delete response with the same result for every key."""
    element = "<Deleted><Key>{}</Key></Deleted>" if ok else f"<Error><Key>{{}}</Key><Code>{code}</Code></Error>"
    parts = "".join(element.format(key) for key in keys_in(body))
    return f"<?xml version='1.0'?><DeleteResult>{parts}</DeleteResult>".encode()


def halved(body: bytes, code: str | None) -> bytes:
    """A batch delete response that omits every second key, or has an error for it."""
    parts = []
    for number, key in enumerate(keys_in(body)):
        if number % 2 == 0:
            parts.append(f"<Deleted><Key>{key}</Key></Deleted>")
        elif code is not None:
            parts.append(f"<Error><Key>{key}</Key><Code>{code}</Code></Error>")
    return f"<?xml version='1.0'?><DeleteResult>{''.join(parts)}</DeleteResult>".encode()


def every_nth(nth: int, kind: str, fault: Fault, *, at_most: int = 10**9) -> Plan:
    """A plan that gives every n-th request of a kind this fault, up to a maximum number."""
    count, applied = [0], [0]

    def plan(method: str, path: str, _: bytes) -> Fault | None:
        if kind_of(method, path) != kind:
            return None
        count[0] += 1
        if count[0] % nth or applied[0] >= at_most:
            return None
        applied[0] += 1
        return fault

    return plan


@contextmanager
def store_proxy(upstream: str) -> Iterator[StoreProxy]:
    proxy = StoreProxy(upstream)
    with serving(proxy) as endpoint:
        proxy.endpoint = endpoint
        yield proxy
