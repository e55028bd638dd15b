"""One repository of a soak: requests to the sandbox, and what its branches and retained commits refer to.

What a request changed is read back from the server, so that a request without a response is no special case: the server
knows whether it was done. The content of each object is what this process has sent.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from spark_resources.lakefs_sandbox.sandbox import ACCESS_KEY_ID, SECRET_ACCESS_KEY
from tests.soak.world import BUCKET, PREFIX
from tests.support import oracle
from tests.support.s3_servers import S3Server

DEFAULT_DAYS, BRANCH_DAYS = 7, {"main": 14}
"""The retention rules. The branch with the longest retention is never deleted, so that no expired commit is retained
again: lakeFS can't bring back the objects of such a commit, and neither can lakegc."""
ATTEMPTS_S = 300
View = dict[str, str]  # path → key of the object


class NoResponse(Exception):
    """Raised if it isn't known whether a request was done: no response, or an error of the server."""


class RefusedByLakeFS(Exception):
    """Raised if the server refused a request."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status


class Client:
    """Requests to the sandbox."""

    def __init__(self, endpoint: str) -> None:
        self._base = f"{endpoint}/api/v1"
        self._headers = urllib3.make_headers(basic_auth=f"{ACCESS_KEY_ID}:{SECRET_ACCESS_KEY}")
        self._pool = urllib3.PoolManager(retries=False, maxsize=8, timeout=urllib3.Timeout(120))

    def bytes(self, method: str, path: str, /, *, body: Any = None, **query: Any) -> bytes:
        url = f"{self._base}{quote(path)}?{urlencode(query)}"
        headers = dict(self._headers)
        if body is not None and not isinstance(body, bytes):
            body, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        elif body is not None:
            headers["Content-Type"] = "application/octet-stream"
        try:
            response = self._pool.request(method, url, body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise NoResponse(f"{method} {path}: {type(error).__name__}") from None
        if response.status >= 500:
            raise NoResponse(f"{method} {path}: {response.status} {response.data[:200]!r}")
        if response.status >= 400:
            raise RefusedByLakeFS(response.status, f"{method} {path} {query}: {response.data[:300]!r}")
        return response.data

    def json(self, method: str, path: str, /, *, body: Any = None, **query: Any) -> Any:
        data = self.bytes(method, path, body=body, **query)
        return json.loads(data) if data else None

    def all(self, path: str, /, **query: Any) -> list[dict[str, Any]]:
        """All results of a list."""
        results: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self.json("GET", path, amount=1000, after=after, **query)
            results += page["results"]
            if not page["pagination"]["has_more"]:
                return results
            after = page["pagination"]["next_offset"]


@dataclass
class Lake:
    """One repository, and the state that its writer knows."""

    client: Client
    store: S3Server
    name: str
    contents: dict[str, bytes] = field(default_factory=dict)  # by key
    sent: set[bytes] = field(default_factory=set)
    heads: dict[str, str] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    commits: dict[str, oracle.C] = field(default_factory=dict)
    trees: dict[str, View] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/repositories/{self.name}"

    def key(self, address: str) -> str:
        root = f"s3://{BUCKET}/{PREFIX}/{self.name}/"
        if not address.startswith(root):
            raise ValueError(f"an address outside: {address}")
        return address.removeprefix(root)

    def create(self) -> None:
        self.client.json(
            "POST",
            "/repositories",
            body={"name": self.name, "storage_namespace": f"s3://{BUCKET}/{PREFIX}/{self.name}"},
        )
        rules = [{"branch_id": branch, "retention_days": days} for branch, days in BRANCH_DAYS.items()]
        self.client.json(
            "PUT",
            f"{self.path}/settings/gc_rules",
            body={"default_retention_days": DEFAULT_DAYS, "branches": rules},
        )
        self.read_branches()

    # --- what the server knows --------------------------------------------------------------------------------------

    def read_branches(self) -> None:
        """Read every branch and every new commit from the server, again and again until all are read."""
        limit = time.monotonic() + ATTEMPTS_S
        while True:
            try:
                branches = {found["id"]: found["commit_id"] for found in self.client.all(f"{self.path}/branches")}
                for head in branches.values():
                    self._read_commits(head)
                self.views = {branch: self._view(branch) for branch in branches}
                self.heads = branches
                return
            except NoResponse:
                if time.monotonic() > limit:
                    raise
                time.sleep(1)

    def read_branch(self, branch: str) -> None:
        """Read one branch and its new commits from the server. Raises `NoResponse`."""
        self.heads[branch] = self.client.json("GET", f"{self.path}/branches/{branch}")["commit_id"]
        self._read_commits(self.heads[branch])
        self.views[branch] = self._view(branch)

    def _read_commits(self, commit_id: str) -> None:
        commits, trees, waiting = dict[str, oracle.C](), dict[str, View](), [commit_id]
        while waiting:
            commit_id = waiting.pop()
            if commit_id not in self.commits and commit_id not in commits:
                found = self.client.json("GET", f"{self.path}/commits/{commit_id}")
                parents = tuple(found["parents"])
                commits[commit_id] = oracle.C(parents, found["creation_date"] * oracle.SECOND, found["version"])
                trees[commit_id] = self._view(commit_id)
                waiting += parents
        self.commits |= commits
        self.trees |= trees

    def _view(self, ref: str) -> View:
        listed = self.client.all(f"{self.path}/refs/{ref}/objects/ls")
        return {entry["path"]: self.key(entry["physical_address"]) for entry in listed}

    # --- what is live -----------------------------------------------------------------------------------------------

    def retained(self) -> set[str]:
        claims = oracle.claims(self.commits, self.heads, DEFAULT_DAYS, BRANCH_DAYS)
        return oracle.retained(claims, int(time.time()) * oracle.SECOND)

    def live(self) -> set[str]:
        """The keys of all objects that a branch serves or that a retained commit refers to."""
        views = [*self.views.values(), *(self.trees[commit] for commit in self.retained())]
        return {key for view in views for key in view.values()}

    def stored(self) -> set[str]:
        """Every key of the namespace, from the store itself."""
        root = f"{PREFIX}/{self.name}/"
        pages = self.store.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=root)
        return {found["Key"].removeprefix(root) for page in pages for found in page.get("Contents", [])}

    def is_clean(self, branch: str) -> bool:
        return self.views[branch] == self.trees[self.heads[branch]]

    def check(self, ref: str, path: str, key: str) -> str | None:
        """Read an object through lakeFS. Returns what is wrong, if anything. Raises `NoResponse`."""
        try:
            data = self.client.bytes("GET", f"{self.path}/refs/{ref}/objects", path=path)
        except RefusedByLakeFS as error:
            return f"{self.name}/{ref}/{path} ({key}) can't be read: {error}"
        known = self.contents.get(key)
        if known is None and data in self.sent:  # its upload had no response
            self.contents[key] = known = data
        return None if data == known else f"{self.name}/{ref}/{path} ({key}) has other bytes: {data[:80]!r}"
