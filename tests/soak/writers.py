"""Writers: random operations on a repository, one after the other, and reads of what is live between them."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable

from botocore.exceptions import BotoCoreError, ClientError

from tests.soak.lake import Lake, NoResponse, RefusedByLakeFS
from tests.soak.world import World
from tests.support.s3_servers import S3Server

PATHS = [f"{folder}/{number:02}" for folder in ("events", "tables/a", "tables/b") for number in range(12)]
DAYS_AGO = (0, 1, 3, 5, 9, 20, 40)
HALF_A_DAY_S = 43_200  # no commit expires while a soak runs: ages are whole days and a half
BRANCHES = ("dev", "exp", "rel", "fix")
PAUSE_S = (0.1, 2.0)
LINK_LIMIT_S = 20  # an object without a link may be deleted after two minutes: after a day, as shown to lakegc


class Writer(threading.Thread):
    """The only writer of one repository, so that it knows what every branch serves."""

    def __init__(self, world: World, lake: Lake, store: S3Server, seed: str) -> None:
        super().__init__(name=f"writer of {lake.name}", daemon=True)
        self._world, self._lake, self._store = world, lake, store
        self._random, self._number = random.Random(seed), 0

    def run(self) -> None:
        while self._world.wait(self._random.uniform(*PAUSE_S)):
            operation = self._random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
            try:
                done = operation(self)
                self._world.record.count(f"operation: {operation.__name__}", int(done))
            except NoResponse:
                self._world.record.count("operations without a response")
                self._read_branches()
            except RefusedByLakeFS as error:
                self._world.record.count("operations that lakeFS refused")
                self._world.record.message(f"lakeFS: {str(error)[:120]}")
                self._read_branches()

    def _read_branches(self) -> None:
        try:
            self._lake.read_branches()
        except (NoResponse, RefusedByLakeFS) as error:
            self._world.record.problem(f"{self._lake.name} can't be read by its writer: {error}")

    # --- choices ----------------------------------------------------------------------------------------------------

    def _branch(self) -> str:
        return self._random.choice(sorted(self._lake.heads))

    def _at(self, branch: str) -> str:
        return f"{self._lake.path}/branches/{branch}"

    def _content(self) -> bytes:
        self._number += 1
        text = f"{self._lake.name} {self._number} ".encode() * self._random.choice((1, 1, 1, 40, 4000))
        self._lake.sent.add(text)
        return text

    def _put(self, branch: str, path: str, content: bytes) -> bool:
        stats = self._lake.client.json("POST", f"{self._at(branch)}/objects", body=content, path=path)
        self._remember(branch, path, stats["physical_address"], content)
        return True

    def _remember(self, branch: str, path: str, address: str, content: bytes) -> None:
        key = self._lake.key(address)
        self._lake.contents[key] = content
        self._lake.views[branch][path] = key

    # --- operations: each returns whether there was something to do -------------------------------------------------

    def upload(self) -> bool:
        return self._put(self._branch(), self._random.choice(PATHS), self._content())

    def upload_the_same_again(self) -> bool:
        """As a job does that writes its result again: the newer object is live until a commit."""
        branch = self._branch()
        paths = [path for path, key in self._lake.views[branch].items() if key in self._lake.contents]
        if not paths:
            return False
        path = self._random.choice(paths)
        return self._put(branch, path, self._lake.contents[self._lake.views[branch][path]])

    def upload_and_link(self) -> bool:
        """Upload to an address of lakeFS, and usually link it. An address that was never linked is garbage."""
        branch, path, content = self._branch(), self._random.choice(PATHS), self._content()
        backing = f"{self._at(branch)}/staging/backing"
        address = self._lake.client.json("GET", backing, path=path)["physical_address"]
        began = time.monotonic()
        self._upload(address, content)
        if self._random.random() < 0.2 or time.monotonic() - began > LINK_LIMIT_S:
            return True
        body = {"staging": {"physical_address": address}, "size_bytes": len(content),
                "checksum": hashlib.md5(content, usedforsecurity=False).hexdigest()}  # fmt: skip
        self._lake.client.json("PUT", backing, body=body, path=path)
        self._remember(branch, path, address, content)
        return True

    def _upload(self, address: str, content: bytes) -> None:
        """Put an object into the store without lakeFS."""
        bucket, _, key = address.removeprefix("s3://").partition("/")
        try:
            self._store.client().put_object(Bucket=bucket, Key=key, Body=content)
        except (ClientError, BotoCoreError) as error:
            raise NoResponse(str(error)) from None

    def delete(self) -> bool:
        branch = self._branch()
        if not self._lake.views[branch]:
            return False
        path = self._random.choice(sorted(self._lake.views[branch]))
        self._lake.client.bytes("DELETE", f"{self._at(branch)}/objects", path=path)
        del self._lake.views[branch][path]
        return True

    def copy(self) -> bool:
        """Copy an object to another path: the copy is a new object."""
        branch = self._branch()
        if not (view := self._lake.views[branch]):
            return False
        source, to = self._random.choice(sorted(view)), self._random.choice(PATHS)
        self._lake.client.json("POST", f"{self._at(branch)}/objects/copy", body={"src_path": source}, dest_path=to)
        self._lake.read_branch(branch)
        return True

    def move_to_another_branch(self) -> bool:
        """Stage an object of one branch on another one, then delete it from the first. Each object moves only once."""
        source, to = self._branch(), self._branch()
        view = self._lake.views[source]
        paths = sorted(path for path in view if not path.startswith("moved/") and view[path] in self._lake.contents)
        if source == to or not paths:
            return False
        path = self._random.choice(paths)
        stats = self._lake.client.json("GET", f"{self._lake.path}/refs/{source}/objects/stat", path=path)
        body = {name: stats[name] for name in ("physical_address", "size_bytes", "checksum")}
        self._lake.client.json("PUT", f"{self._at(to)}/objects", body=body, path=f"moved/{path}")
        self._lake.views[to][f"moved/{path}"] = view[path]
        self._lake.client.bytes("DELETE", f"{self._at(source)}/objects", path=path)
        del view[path]
        return True

    def commit(self) -> bool:
        return self._commit(self._branch())

    def _commit(self, branch: str) -> bool:
        if self._lake.is_clean(branch):
            return False
        date = int(time.time()) - self._random.choice(DAYS_AGO) * 86_400 - HALF_A_DAY_S
        self._lake.client.json("POST", f"{self._at(branch)}/commits", body={"message": "a change", "date": date})
        self._lake.read_branch(branch)
        return True

    def reset(self) -> bool:
        """Drop what is staged."""
        branch = self._branch()
        if self._lake.is_clean(branch):
            return False
        self._lake.client.bytes("PUT", self._at(branch), body={"type": "reset"})
        self._lake.read_branch(branch)
        return True

    def create_branch(self) -> bool:
        free = sorted(set(BRANCHES) - self._lake.heads.keys())
        if not free:
            return False
        name = self._random.choice(free)
        body = {"name": name, "source": self._branch()}
        self._lake.client.bytes("POST", f"{self._lake.path}/branches", body=body)
        self._lake.read_branch(name)
        return True

    def delete_branch(self) -> bool:
        branch = self._branch()
        if branch == "main":
            return False
        self._lake.client.bytes("DELETE", self._at(branch))
        del self._lake.heads[branch], self._lake.views[branch]
        return True

    def merge(self) -> bool:
        source, to = self._branch(), self._branch()
        if source == to:
            return False
        self._commit(source)
        self._commit(to)
        merge = f"{self._lake.path}/refs/{source}/merge/{to}"
        self._lake.client.json("POST", merge, body={"message": "a merge", "strategy": "source-wins"})
        self._lake.read_branch(to)
        return True

    def tag(self) -> bool:
        self._number += 1
        body = {"id": f"t{self._number}", "ref": self._lake.heads[self._branch()]}
        self._lake.client.json("POST", f"{self._lake.path}/tags", body=body)
        return True

    def revert(self) -> bool:
        """Revert the head of a branch, if its parent is retained: otherwise its objects may be gone."""
        branch = self._branch()
        head = self._lake.heads[branch]
        parents = self._lake.commits[head].parents
        if len(parents) != 1 or parents[0] not in self._lake.retained() or not self._lake.is_clean(branch):
            return False
        self._lake.client.bytes("POST", f"{self._at(branch)}/revert", body={"ref": head, "parent_number": 0})
        self._lake.read_branch(branch)
        return True

    def read_a_branch(self) -> bool:
        branch = self._branch()
        return self._read(branch, self._lake.views[branch])

    def read_a_commit(self) -> bool:
        commit = self._random.choice(sorted(self._lake.retained()))
        return self._read(commit, self._lake.trees[commit])

    def list_the_store(self) -> bool:
        """Check that everything live is in the store."""
        if lost := self._lake.live() - self._lake.stored():
            self._world.record.problem(f"{self._lake.name}: {len(lost)} live objects are lost: {sorted(lost)[:5]}")
        return True

    def _read(self, ref: str, view: dict[str, str]) -> bool:
        if not view:
            return False
        path = self._random.choice(sorted(view))
        if wrong := self._lake.check(ref, path, view[path]):
            self._world.record.problem(wrong)
        return True


OPERATIONS: dict[Callable[[Writer], bool], int] = {
    Writer.upload: 30, Writer.upload_the_same_again: 6, Writer.upload_and_link: 12, Writer.delete: 8, Writer.copy: 3,
    Writer.move_to_another_branch: 5, Writer.commit: 12, Writer.reset: 1, Writer.create_branch: 4,
    Writer.delete_branch: 3, Writer.merge: 3, Writer.tag: 1, Writer.revert: 2, Writer.read_a_branch: 16,
    Writer.read_a_commit: 16, Writer.list_the_store: 8,
}  # fmt: skip
"""The operations, each with how often it is chosen."""
