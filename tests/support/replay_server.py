"""Replays a recording of a real server (formats §7): its API over HTTP, and its objects in a real store.

The server's clock is set to `recorded_at`. The objects have the times of their upload, by the store's clock.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import socket
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from spark_resources.lakefs_sandbox.server_thread import ServerThread
from spark_resources.model import Commit, Namespace
from spark_resources.sstable import ENTRY_SCHEMA, read_commits, read_entries, read_ranges
from spark_resources.stores.base import Store
from tests.support.clocks import wait_until_passed
from tests.support.s3_servers import S3Server

ACCESS_KEY_ID = "AKIAREPLAY"
SECRET_ACCESS_KEY = "replayed-secret"

_PLAIN_KEY = re.compile(r"[\w.,-]+(/[\w.,-]+)*", re.ASCII)


# --- what was recorded ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recording:
    """A recording in one folder."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def meta(self) -> dict[str, Any]:
        return dict(json.loads((self.path / "meta.json").read_text()))

    @property
    def repository(self) -> str:
        return str(self.meta["repository"])

    @property
    def recorded_at(self) -> datetime:
        return datetime.fromtimestamp(self.meta["recorded_at"], UTC)

    @cached_property
    def namespace(self) -> Namespace:
        return Namespace.parse(self.meta["storage_namespace"])

    def api(self, name: str) -> Any:
        """The content of `api/<name>.json`, or None if it was not recorded."""
        file = self.path / "api" / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def recorded_bytes(self, key: str) -> bytes:
        """The bytes of an object. Raises `FileNotFoundError` if they were not recorded."""
        return (self.path / "namespace" / key).read_bytes()

    @cached_property
    def listing(self) -> dict[str, int]:
        """Every stored object before the mark's own outputs, with its size in bytes."""
        with (self.path / "listing.csv").open(newline="", encoding="utf-8") as file:
            return {row["key"]: int(row["size"]) for row in csv.DictReader(file)}

    def expired(self) -> set[str]:
        """The true expired set of a mark with scope unified, minimum age 0 and no holds."""
        return set((self.path / "expected" / "expired.txt").read_bytes().decode().split("\n")) - {""}

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """Every object of the namespace: recorded bytes, or filler of the recorded size that is different for each
        object."""
        root = self.path / "namespace"
        recorded = {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}
        for key in sorted(recorded | set(self.listing)):
            yield key, self.recorded_bytes(key) if key in recorded else _filler(key, self.listing[key])


def load_recording(path: Path) -> Recording:
    """The recording in a folder. Raises `FileNotFoundError` if there is none."""
    recording = Recording(Path(path))
    _ = recording.meta
    return recording


def _filler(key: str, size: int) -> bytes:
    pattern = hashlib.sha256(key.encode()).hexdigest().encode()
    return (pattern * (size // len(pattern) + 1))[:size]


# --- its objects in a store -----------------------------------------------------------------------------------------


def upload_to_store(recording: Recording, store: Store) -> None:
    """Write every object, then wait until the store's clock is more than a second past the last write."""
    for key, data in recording.objects():
        store.write(key, data)
    wait_until_passed(store.now(), store.now)


def upload_to_s3(recording: Recording, client: Any) -> None:
    """Upload every object with a boto3 client, under the bucket and prefix of the recorded namespace. Creates the
    bucket."""
    bucket, prefix = recording.namespace.bucket, recording.namespace.path
    if bucket not in {existing["Name"] for existing in client.list_buckets()["Buckets"]}:
        client.create_bucket(Bucket=bucket)
    credentials = client._request_signer._credentials
    fast = S3Store(  # boto3 takes milliseconds of CPU time for each object
        bucket,
        prefix=prefix,
        region=client.meta.region_name,
        endpoint=client.meta.endpoint_url,
        access_key_id=credentials.access_key,
        secret_access_key=credentials.secret_key,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    def put(item: tuple[str, bytes]) -> None:
        key, data = item
        if _PLAIN_KEY.fullmatch(key):
            obstore.put(fast, key, data)
        else:  # which obstore may change
            client.put_object(Bucket=bucket, Key=f"{prefix}/{key}", Body=data)

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(put, recording.objects()):
            pass

    def now() -> datetime:
        headers = client.list_objects_v2(Bucket=bucket, MaxKeys=1)["ResponseMetadata"]["HTTPHeaders"]
        return parsedate_to_datetime(headers["date"])

    wait_until_passed(now(), now)


def settings_over(endpoint: str, server: S3Server) -> dict[str, str]:
    """Settings for a replayed server and for the S3 server to which its objects were uploaded."""
    return {
        "endpoint_url": endpoint,
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET_ACCESS_KEY,
        "s3_endpoint_url": server.endpoint_url,
        "s3_access_key_id": server.access_key,
        "s3_secret_access_key": server.secret_key,
        "s3_region": "us-east-1",
        "max_clock_skew": "5000w",  # the recorded server's clock is paused
    }


# --- its API --------------------------------------------------------------------------------------------------------

Handler = Callable[[Request], Awaitable[Response]]


class Replay:
    """Responds to each call with the recorded response; 501 if none was recorded."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._lock = threading.Lock()
        self._served: dict[str, list[dict[str, Any]]] = {}
        self._committed: dict[str, list[dict[str, Any]]] = {}  # by metarange

    def app(self) -> Starlette:
        in_repository = [
            Route("/", self._recorded("repository")),
            Route("/settings/gc_rules", self._recorded("gc_rules")),
            Route("/branches", self._listed("branches")),
            Route("/branches/{branch}", self._branch),
            Route("/branches/{branch}/diff", self._diff),
            Route("/refs/{branch}@/diff/{same}$", self._diff),
            Route("/tags", self._listed("tags")),
            Route("/gc/prepare_commits", self._recorded("prepare_commits"), methods=["POST"]),
            Route("/gc/prepare_commits/async", self._recorded("prepare_commits_async"), methods=["POST"]),
            Route("/gc/prepare_commits/status", self._commits_status),
            Route("/gc/prepare_uncommited", self._uncommitted, methods=["POST"]),
            Route("/refs/dump", self._recorded("refs_dump"), methods=["PUT"]),
            Route("/commits/{commit}", self._commit),
            Route("/refs/{ref}/commits", self._log),
            Route("/refs/{ref}/objects/stat", self._stat),
            Route("/refs/{ref}/objects/ls", self._list_objects),
        ]
        return Starlette(
            routes=[
                Route("/api/v1/config", self._recorded("config")),
                Route("/api/v1/repositories", self._repositories),
                Route("/api/v1/repositories/{repository}", self._checked(self._recorded("repository"))),
                Mount("/api/v1/repositories/{repository}", routes=_guarded(in_repository, self._checked)),
            ],
            middleware=[Middleware(_ServerClock, now=self.recording.recorded_at)],
            exception_handlers={404: _no_such_call, 405: _no_such_call},
        )

    def _checked(self, handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            if not _logged_in(request):
                return _error(401, "error authenticating request")
            if request.path_params.get("repository") != self.recording.repository:
                return _error(404, "repository not found")
            return await handler(request)

        return checked

    def _recorded(self, name: str) -> Handler:
        recorded = self.recording.api(name)

        async def handler(request: Request) -> Response:
            if recorded is None:
                return await _not_recorded(request)
            return JSONResponse(recorded["body"], recorded["status"])

        return handler

    def _listed(self, name: str) -> Handler:
        results = self.recording.api(name)["body"]["results"]

        async def handler(request: Request) -> Response:
            return _page(request, results, "id")

        return handler

    async def _repositories(self, request: Request) -> Response:
        return _page(request, [self.recording.api("repository")["body"]], "id")

    async def _branch(self, request: Request) -> Response:
        head = self._heads().get(request.path_params["branch"])
        if head is None:
            return _error(404, "not found")
        return JSONResponse({"id": request.path_params["branch"], "commit_id": head})

    async def _commits_status(self, request: Request) -> Response:
        status = self.recording.api("prepare_commits_status")
        if request.query_params.get("id") != status["body"]["task_id"]:
            return _error(404, "not found")
        return JSONResponse(status["body"], status["status"])

    async def _uncommitted(self, request: Request) -> Response:
        recorded = self.recording.api("prepare_uncommitted")
        requested = json.loads(await request.body() or b"{}").get("continuation_token")
        tokens = ["", *(page.get("continuation_token") for page in recorded["pages"][:-1])]
        if (requested or "") not in tokens:
            return _error(400, "invalid continuation token")
        return JSONResponse(recorded["pages"][tokens.index(requested or "")], recorded["status"])

    async def _commit(self, request: Request) -> Response:
        commit = self._commits.get(request.path_params["commit"])
        return JSONResponse(commit) if commit else _error(404, "not found")

    async def _log(self, request: Request) -> Response:
        ref = request.path_params["ref"]
        ids = self.recording.api("commits_reachable_from_branches")["log"].get(ref)
        if ids is None:
            if (start := self._resolve(ref)) is None:
                return _error(404, "not found")
            ids = _reachable_from(start, self._commits)
        return _page(request, [self._commits[commit] for commit in ids], "id", ordered=False)

    async def _stat(self, request: Request) -> Response:
        if (objects := self._objects(request.path_params["ref"])) is None:
            return _error(404, "not found")
        path = request.query_params.get("path", "")
        place = bisect_left(objects, path.encode(), key=lambda listed: listed["path"].encode())
        if place == len(objects) or objects[place]["path"] != path:
            return _error(404, "not found")
        return JSONResponse(objects[place])

    async def _diff(self, request: Request) -> Response:
        """The paths at which a branch serves content that differs from its head, or 404 if that was not recorded."""
        branch = request.path_params["branch"]
        head = self._heads().get(branch)
        if head is None or (served := self._objects(branch)) is None:
            return _error(404, "branch not found")
        before = {entry["path"]: entry for entry in self._committed_objects(self._commits[head]["meta_range_id"])}
        changes = [
            {"type": "changed" if entry["path"] in before else "added", "path": entry["path"], "path_type": "object"}
            for entry in served
            if _content(before.get(entry["path"])) != _content(entry)
        ]
        return _page(request, changes, "path")

    async def _list_objects(self, request: Request) -> Response:
        if (objects := self._objects(request.path_params["ref"])) is None:
            return _error(404, "not found")
        if request.query_params.get("delimiter"):
            return _error(501, "not recorded with a delimiter")
        return _page(request, objects, "path")

    # --- the data of the responses -----------------------------------------------------------------------------------

    def _heads(self) -> dict[str, str]:
        return {branch["id"]: branch["commit_id"] for branch in self.recording.api("branches")["body"]["results"]}

    def _resolve(self, ref: str) -> str | None:
        """The commit of a branch, a tag or a commit id."""
        tags = {tag["id"]: tag["commit_id"] for tag in self.recording.api("tags")["body"]["results"]}
        return self._heads().get(ref) or tags.get(ref) or (ref if ref in self._commits else None)

    @cached_property
    def _commits(self) -> dict[str, dict[str, Any]]:
        """Every commit by id: those reachable from branches, and those in the refs dump that no longer are."""
        commits = {commit["id"]: commit for commit in self.recording.api("commits_reachable_from_branches")["commits"]}
        dumped = self.recording.api("refs_dump")["body"]["commits_meta_range_id"]
        return {commit.id: _commit_body(commit) for commit in self._dumped_commits(dumped)} | commits

    def _dumped_commits(self, metarange_id: str) -> Iterator[Commit]:
        for part in read_ranges(self._table(metarange_id), name=metarange_id, entity="commit"):
            yield from read_commits(self._table(part.id), name=part.id)

    def _table(self, table_id: str) -> bytes:
        return self.recording.recorded_bytes(f"_lakefs/{table_id}")

    def _objects(self, ref: str) -> list[dict[str, Any]] | None:
        """The objects that a ref serves, ordered by path, or None if there is no such ref."""
        with self._lock:
            if ref not in self._served:
                objects = self._find_objects(ref)
                if objects is None:
                    return None
                self._served[ref] = sorted(objects, key=lambda entry: str(entry["path"]).encode())
            return self._served[ref]

    def _find_objects(self, ref: str) -> list[dict[str, Any]] | None:
        served = self.recording.api("objects_served_by_branches")
        if served is not None and ref in served["objects"]:
            return [{"path_type": "object", **entry} for entry in served["objects"][ref]]
        if (commit := self._resolve(ref)) is None:
            return None
        return self._committed_objects(self._commits[commit]["meta_range_id"])

    def _committed_objects(self, metarange_id: str) -> list[dict[str, Any]]:
        if metarange_id not in self._committed:
            parts = read_ranges(self._table(metarange_id), name=metarange_id) if metarange_id else []
            columns = ENTRY_SCHEMA.names
            self._committed[metarange_id] = [
                self._stats(entry)
                for part in parts
                for entry in read_entries(self._table(part.id), name=part.id, columns=columns).to_pylist()
            ]
        return self._committed[metarange_id]

    def _stats(self, entry: dict[str, Any]) -> dict[str, Any]:
        address = entry["address"]
        return {
            "path": entry["path"].decode(),
            "path_type": "object",
            "physical_address": address if "://" in address else f"{self.recording.namespace.uri}/{address}",
            "size_bytes": entry["size"],
            "checksum": entry["checksum"],
            "mtime": int(entry["last_modified"].timestamp()) if entry["last_modified"] else 0,
        }


def _content(stats: dict[str, Any] | None) -> object:
    return stats and (stats["checksum"], stats["size_bytes"])


def _guarded(routes: list[Route], guard: Callable[[Handler], Handler]) -> list[Route]:
    return [Route(route.path, guard(route.endpoint), methods=list(route.methods or ())) for route in routes]


class _ServerClock:
    """Adds the server's `Date`, which is always the time of the recording."""

    def __init__(self, app: Any, now: datetime) -> None:
        self._app = app
        self._date = format_datetime(now, usegmt=True).encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def dated(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"date", self._date)]
            await send(message)

        await self._app(scope, receive, dated)


def _page(request: Request, results: list[dict[str, Any]], name: str, *, ordered: bool = True) -> Response:
    """One page in lakeFS's form: `amount` results after the name `after`. Unordered results keep their order."""
    requested = int(request.query_params.get("amount", "100"))
    amount = requested if 0 < requested <= 1000 else 1000
    after = request.query_params.get("after", "")
    prefix = request.query_params.get("prefix", "")
    if ordered:
        begin = bisect_left(results, prefix.encode(), key=lambda result: result[name].encode())
        begin = max(
            begin, bisect_right(results, after.encode(), key=lambda result: result[name].encode()) if after else 0
        )
    else:
        begin = next((i + 1 for i, result in enumerate(results) if result[name] == after), 0)
    matching = [result for result in results[begin : begin + amount + 1] if result[name].startswith(prefix)]
    page, more = matching[:amount], len(matching) > amount
    pagination = {
        "has_more": more,
        "next_offset": page[-1][name] if more else "",
        "results": len(page),
        "max_per_page": 1000,
    }
    return JSONResponse({"pagination": pagination, "results": page})


def _reachable_from(start: str, commits: dict[str, dict[str, Any]]) -> list[str]:
    reachable: dict[str, None] = {}
    todo = [start]
    while todo:
        if (commit := todo.pop(0)) not in reachable:
            reachable[commit] = None
            todo.extend(commits[commit]["parents"])
    return list(reachable)


def _commit_body(commit: Commit) -> dict[str, Any]:
    return {
        "id": commit.id,
        "parents": list(commit.parents),
        "committer": commit.committer,
        "message": commit.message,
        "creation_date": int(commit.created.timestamp()),
        "meta_range_id": commit.metarange_id,
        "metadata": dict(commit.metadata),
        "generation": commit.generation,
        "version": commit.version,
    }


def _logged_in(request: Request) -> bool:
    expected = base64.b64encode(f"{ACCESS_KEY_ID}:{SECRET_ACCESS_KEY}".encode()).decode()
    return request.headers.get("authorization") == f"Basic {expected}"


def _error(status: int, message: str) -> Response:
    return JSONResponse({"message": message}, status)


async def _not_recorded(_: Request) -> Response:
    return _error(501, "not recorded")


async def _no_such_call(_: Request, error: Exception) -> Response:
    return _error(getattr(error, "status_code", 404), "invalid API endpoint")


# --- over HTTP ------------------------------------------------------------------------------------------------------


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """The address of an ASGI app that is served on a free loopback port while the context lasts.

    `options` are passed to uvicorn, for example a certificate. The app writes its own `Date` and `Server` headers, or
    none.
    """
    server = ServerThread(app, socket.create_server(("127.0.0.1", 0)), grace_s=0.1, log_level="error", **options)
    try:
        yield f"{'https' if 'ssl_certfile' in options else 'http'}://127.0.0.1:{server.port}"
    finally:
        server.stop()


@contextmanager
def replaying(recording: Recording) -> Iterator[str]:
    """The endpoint of a server that replays a recording for `ACCESS_KEY_ID` and `SECRET_ACCESS_KEY`."""
    with serving(Replay(recording).app()) as endpoint:
        yield endpoint
