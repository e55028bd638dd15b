"""A server between lakegc and the sandbox that answers single requests wrongly, as the model's server does.

A request is identified by what it asks, in the model's terms, and by how many of its kind came before it in the same
mark or sweep. The model's run and the real one therefore mean the same request.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from tests.exhaustive.server import Question
from tests.exhaustive.world import BRANCHES, OURS, PATHS
from tests.support.replay_server import serving
from tests.support.tampering_proxy import TamperingProxy

REPOSITORIES = ("lake", "other")
LIST, DIFF, STAT, HEADS = "list", "diff", "stat", "heads"


class Asked(NamedTuple):
    """A request: the server's list of staged objects, the diff of a branch, a path of a branch, or all branches."""

    kind: str
    repository: int = OURS
    branch: int = -1
    path: int = -1


class Nth(NamedTuple):
    """The n-th request of its kind, from 1."""

    asked: Asked
    number: int


def asked_by(step: str, question: Question) -> Asked | None:
    """The request that a step of the model begins; None if it is part of an earlier request, or sends another one."""
    if step.endswith(": the list is requested"):
        return Asked(LIST)
    match question:
        case ("change", repository, branch, 0):
            return Asked(DIFF, repository, branch)
        case ("stat", repository, branch, path):
            return Asked(STAT, repository, branch, path)
        case ("branches", repository):
            return Asked(HEADS, repository)
    return None


def part_of(step: str, question: Question) -> Asked | None:
    """The request that a step of the model belongs to, whether or not it begins it."""
    if question[0] == "listed" or step.endswith(": the server answers with its list"):
        return Asked(LIST)
    if question[0] == "change":
        return Asked(DIFF, *question[1:3])
    return asked_by(step, question)


def asked_over_http(method: str, path: str, query: Mapping[str, str]) -> Asked | None:
    """The model's request that a request of lakegc stands for; None for any other."""
    match = re.fullmatch(r"/api/v1/repositories/(\w+)/(.*)", path)
    if match is None or match[1] not in REPOSITORIES:
        return None
    repository, rest = REPOSITORIES.index(match[1]), match[2]
    if (method, rest) == ("POST", "gc/prepare_uncommited"):
        return Asked(LIST)
    if (method, rest) == ("GET", "branches"):
        return Asked(HEADS, repository)
    if diff := re.fullmatch(r"refs/(\w+)@/diff/\1\$", rest):
        return Asked(DIFF, repository, _branch(diff[1]))
    if stat := re.fullmatch(r"refs/(\w+)/objects/stat", rest):
        return Asked(STAT, repository, _branch(stat[1]), PATHS.index(query["path"]))
    return None


def _branch(name: str) -> int:
    return BRANCHES[OURS].index(name)


WrongAnswer = Callable[[Callable[[], Response]], Response]
"""Gives the wrong response to a request, from a function that has it answered rightly."""


def refused(status: int, message: str) -> WrongAnswer:
    return lambda _: Response(json.dumps({"message": message}), status, media_type="application/json")


def no_branch(_: Callable[[], Response]) -> Response:
    return refused(404, "branch not found")(_)


def empty_list(right: Callable[[], Response]) -> Response:
    """A page without a location, as when a branch was deleted while the server scanned (formats §2)."""
    response = right()
    return with_body(response, {**json.loads(bytes(response.body)), "gc_uncommitted_location": ""})


def with_heads(heads: Mapping[str, str], right: Response) -> Response:
    """A listing of branches with other heads."""
    results = [{"id": name, "commit_id": head} for name, head in sorted(heads.items())]
    pagination = {"has_more": False, "max_per_page": 1000, "next_offset": "", "results": len(results)}
    return with_body(right, {"pagination": pagination, "results": results})


def with_body(right: Response, body: Mapping[str, Any]) -> Response:
    """The response with another body."""
    headers = {name: value for name, value in right.headers.items() if name != "content-length"}
    return Response(json.dumps(body), right.status_code, headers)


class FaultyServer(TamperingProxy):
    """Forwards to the sandbox. `planned` are the wrong responses, each of which is removed once it has been sent.

    A 404 for a path whose branch exists is also sent for the listing with which a client confirms it.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.planned: dict[Nth, WrongAnswer] = {}
        self.counted: Counter[Asked] = Counter()
        self._unconfirmed: set[str] = set()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count requests from now on."""
        self.counted.clear()

    def _forward(self, request: Request, body: bytes) -> Response:
        path, query = request.url.path, request.query_params
        wrong = self._wrong(asked_over_http(request.method, path, query), path, query)

        def right() -> Response:
            return super(FaultyServer, self)._forward(request, body)

        return right() if wrong is None else wrong(right)

    def _wrong(self, asked: Asked | None, path: str, query: Mapping[str, str]) -> WrongAnswer | None:
        with self._lock:
            if path.endswith("/objects/ls") and (listing := f"{path}?{query.get('prefix')}") in self._unconfirmed:
                self._unconfirmed.remove(listing)
                return no_branch
            if asked is None:
                return None
            self.counted[asked] += 1
            wrong = self.planned.pop(Nth(asked, self.counted[asked]), None)
            if asked.kind == STAT and wrong is no_branch:
                self._unconfirmed.add(f"{path.removesuffix('stat')}ls?{query['path']}")
            return wrong


@contextmanager
def faulty_server(upstream: str) -> Iterator[FaultyServer]:
    server: Any = FaultyServer(upstream)
    with serving(server) as endpoint:
        server.endpoint = endpoint
        yield server
