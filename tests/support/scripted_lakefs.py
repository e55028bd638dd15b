"""A lakeFS server whose responses a test scripts, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from spark_resources.lakefs import LakeFSSettings
from tests.support.retry_policies import no_wait_policy

SECRET = "a-very-secret-key"
REPO = "/api/v1/repositories/lake"
DATE = "Sat, 21 Nov 2026 08:50:00 GMT"

REPOSITORY = {
    "id": "lake",
    "storage_namespace": "s3://bucket/lake",
    "default_branch": "main",
    "read_only": False,
    "storage_id": "",
    "creation_date": 1795239712,
}
NO_RULES = {"message": "get gc rules: not found"}
NO_CALL = {"message": "invalid API endpoint"}


async def hang(request: Request) -> Response:
    """Send no response until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return Response()


def reply(status: int, body: Any, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse(body, status, headers)


def short(_: Request) -> Response:
    """A response whose body is shorter than its Content-Length."""
    return Response(b'{"results": []', headers={"Content-Length": "1000"}, media_type="application/json")


Scripted = Response | Callable[[Request], Any]


@dataclass
class Script:
    """Sends the scripted responses in order and repeats the last one. Records the requests."""

    responses: dict[str, list[Scripted]] = field(default_factory=dict)
    received: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)

    def on(self, call: str, *responses: Scripted) -> Script:
        """Script the responses to a call. `call` is the method and the path below the API, such as `GET /config`;
        `lake` stands for the repository's path."""
        method, path = call.split(" ")
        path = path.replace("lake", REPO, 1) if path.startswith("lake") else f"/api/v1{path}"
        self.responses[f"{method} {path}"] = list(responses)
        return self

    def calls(self) -> list[str]:
        return [call.replace(REPO, "lake") for call, _, _ in self.received]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        call = f"{request.method} {request.url.path}"
        body = await request.body()
        self.received.append((call, dict(request.query_params), json.loads(body) if body else None))
        remaining = self.responses.get(call, [reply(404, NO_CALL)])
        response = remaining.pop(0) if len(remaining) > 1 else remaining[0]
        if callable(response) and not isinstance(response, Response):
            response = await response(request) if response is hang else response(request)
        if "date" not in response.headers:
            response.headers["Date"] = DATE
        await response(scope, receive, send)


def settings(endpoint: str) -> LakeFSSettings:
    return LakeFSSettings(
        endpoint,
        "AKIATEST",
        SECRET,
        retry=no_wait_policy(3),
        first_poll_wait_s=0.001,
        longest_poll_wait_s=0.001,
        task_timeout_s=0.5,
        read_timeout_s=5,
        slow_read_timeout_s=5,
    )


def page(results: list[Any], next_offset: str = "") -> Response:
    pagination = {
        "has_more": bool(next_offset),
        "next_offset": next_offset,
        "results": len(results),
        "max_per_page": 1000,
    }
    return reply(200, {"pagination": pagination, "results": results})


def ref(name: str, commit: str = "c") -> dict[str, str]:
    return {"id": name, "commit_id": commit}


def stats(path: str, **changed: Any) -> dict[str, Any]:
    return {
        "path": path,
        "path_type": "object",
        "physical_address": f"s3://bucket/lake/data/s/{path}",
        "size_bytes": 3,
        "checksum": "c0ffee",
        "mtime": 1795239712,
    } | changed
