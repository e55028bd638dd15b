"""Reading a branch's staged changes path by path gives all of them or an error. The server's list is requested again if
it may lack some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakegc_assets.mark.path_probes import PATHS_PER_BATCH
from lakegc_assets.mark.uncommitted_readings import (
    MAX_TRIES,
    NO_LIST,
    list_staged,
    reported_files,
    staged_addresses,
    why_list_again,
)
from spark_resources.errors import DamagedData, Forbidden, Interrupted, LakegcError, NotFound, Refused, Unavailable
from spark_resources.lakefs import LakeFS, LakeFSSettings, ServedObject, ServedPage, UncommittedLists
from spark_resources.lakefs.branch_diff import whole_diff
from spark_resources.lakefs.responses import REPLACEMENT_CHARACTER, Change
from spark_resources.model import Namespace
from spark_resources.spark.datasets import Dataset
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings


@dataclass
class Branch:
    """A server with the branch `main` of `lake`: its changes by path, and the address that it serves at each path."""

    changes: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    uncommitted: dict[str, str] | None = None  # changes that only the uncommitted diff shows
    errors: list[LakegcError | None] = field(default_factory=list)  # how the first diffs end, after their changes
    exists: bool = True
    asked: list[str] = field(default_factory=list)
    settings: LakeFSSettings = field(default_factory=lambda: LakeFSSettings("http://h", "a", "s"))
    where: str = "http://h"

    def staged_diff(self, repository: str, branch: str) -> Iterator[Change]:
        assert (repository, branch) == ("lake", "main")
        self.asked.append("staged")
        yield from (Change(path=path, type=kind) for path, kind in self.changes.items())
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    def uncommitted_diff(self, repository: str, branch: str) -> Iterator[Change]:
        assert (repository, branch) == ("lake", "main")
        self.asked.append("uncommitted")
        changes = self.changes if self.uncommitted is None else self.uncommitted
        yield from (Change(path=path, type=kind) for path, kind in changes.items())

    def branches(self, repository: str) -> dict[str, str]:
        assert repository == "lake"
        return {"main": "head"} if self.exists else {"dev": "head"}

    def stat(self, repository: str, branch: str, path: str) -> ServedObject | None:
        assert (repository, branch) == ("lake", "main")
        return ServedObject(path, self.served[path], 1, "") if path in self.served else None

    def list_objects(
        self, repository: str, branch: str, *, prefix: str = "", after: str = "", amount: int = 1000
    ) -> ServedPage:
        assert (repository, branch) == ("lake", "main")
        paths = sorted((path for path in self.served if path.startswith(prefix)), key=str.encode)
        behind = [path for path in paths if path.encode() > after.encode()]
        objects = tuple(ServedObject(path, self.served[path], 1, "") for path in behind[:amount])
        return ServedPage(objects, behind[amount - 1] if len(behind) > amount else None)

    def as_lakefs(self) -> LakeFS:
        return cast(LakeFS, self)


def staged(server: Branch) -> list[str]:
    return sorted(staged_addresses(server.as_lakefs(), "lake", "main"))


def paths(count: int) -> list[str]:
    return [f"p/{number:05}" for number in range(count)]


def test_the_address_at_each_added_or_changed_path_is_staged() -> None:
    """Every address is read, even if there are more paths than are probed at once. A path that was removed or isn't
    served any more has no address."""
    changes = dict.fromkeys(paths(2 * PATHS_PER_BATCH + 7), "added") | {
        "changed": "changed",
        "removed": "removed",
        "gone": "added",
    }
    served = {
        path: f"address of {path}" for path in [*paths(2 * PATHS_PER_BATCH + 7), "changed", "removed", "unchanged"]
    }

    addresses = staged(Branch(changes, served))

    assert addresses == sorted(f"address of {path}" for path in [*paths(2 * PATHS_PER_BATCH + 7), "changed"])


def test_a_changed_path_that_is_not_utf8_stands_for_every_path_that_it_may_be() -> None:
    """The server can't show such a path exactly; none of the objects there may be missed."""
    inexact = [f"p{REPLACEMENT_CHARACTER}", f"p{REPLACEMENT_CHARACTER}/x"]
    served = {path: f"address of {path}" for path in (*inexact, "pa", "q")}

    addresses = staged(Branch({inexact[0]: "added"}, served))

    assert set(addresses) == {f"address of {path}" for path in inexact}


def test_a_branch_that_was_deleted_has_nothing_staged() -> None:
    """Once the branch is no longer listed, the server isn't asked about it again."""
    server = Branch(errors=[NotFound("no branch main")], exists=False)

    assert staged(server) == []
    assert server.asked == ["staged"]


def test_a_branch_that_was_not_found_but_is_still_listed_is_read_again_from_the_beginning() -> None:
    """The branch may have been deleted and created again. Even the last attempt can succeed."""
    served = {path: f"address of {path}" for path in paths(3)}
    changes = dict.fromkeys(paths(3), "added")
    server = Branch(changes, served, errors=[NotFound("no branch main")] * (MAX_TRIES - 1))

    assert set(staged(server)) == {f"address of {path}" for path in paths(3)}
    assert server.asked == ["staged"] * MAX_TRIES


def test_a_branch_that_is_listed_but_repeatedly_not_found_raises_an_error() -> None:
    """The branch's staged objects are unknown, so it doesn't count as deleted."""
    server = Branch(errors=[NotFound("no branch main")] * MAX_TRIES)

    with pytest.raises(NotFound):
        staged(server)
    assert server.asked == ["staged"] * MAX_TRIES


def diff(server: Branch) -> list[str]:
    return [change.path for change in whole_diff(server.as_lakefs(), "lake", "main")]


def test_all_changes_on_a_branch_are_read_in_one_diff() -> None:
    """If the diff is empty, the uncommitted diff has to confirm it."""
    some = Branch({"a": "added", "b": "removed"})
    none = Branch({})

    assert (diff(some), some.asked) == (["a", "b"], ["staged"])
    assert (diff(none), none.asked) == ([], ["staged", "uncommitted"])


def test_changes_that_only_the_uncommitted_diff_shows_raise_an_error() -> None:
    """The diff of staged data may have ended early without an error. A change staged between the two diffs is found by
    the next attempt."""
    server = Branch({}, uncommitted={"a": "added"})

    with pytest.raises(Unavailable, match=r"shows uncommitted changes on 'main' in repository 'lake'"):
        diff(server)
    assert server.asked == ["staged", "uncommitted"] * 3


@pytest.mark.parametrize(
    ("changes", "position"), [({"a": "added", "b": "added"}, "can't be read after 'b', so"), ({}, "can't be read, so")]
)
def test_the_error_about_an_unreadable_diff_says_where_it_ends(changes: dict[str, str], position: str) -> None:
    """The error names the branch and, if there is one, the last path before the unreadable record."""
    with pytest.raises(Unavailable, match=f"on 'main' in repository 'lake' {position}.*Cause: a damaged record"):
        diff(Branch(changes, errors=[Unavailable("a damaged record")]))


@pytest.mark.parametrize("error", [NotFound("no such branch"), Forbidden("not allowed")])
def test_a_missing_branch_and_missing_permissions_raise_their_own_errors(error: LakegcError) -> None:
    """The caller distinguishes them by the class of the error."""
    with pytest.raises(type(error), match=f"^{error}$"):
        diff(Branch(errors=[error]))


# --- the server's list ----------------------------------------------------------------------------------------------


DELETED = "a branch was deleted while the server listed staged addresses"
LOST = "the server's list of staged addresses has a page without a file, although objects are staged"


@pytest.mark.parametrize(
    ("pages", "files", "rows", "again"),
    [
        (0, 0, 0, DELETED), (0, 0, 5, DELETED),
        (1, 1, 5, ""), (1, 1, 0, ""), (3, 3, 0, ""),
        (1, 0, 0, ""), (1, 0, 1, LOST),
        (2, 0, 0, LOST), (2, 1, 0, LOST), (2, 1, 5, LOST),
    ],
)  # fmt: skip
def test_a_list_is_requested_again_if_it_was_interrupted_or_lacks_the_file_of_a_page(
    pages: int, files: int, rows: int, again: str
) -> None:
    """The server may have lost the file, and staged objects with it. Only a single page without a file is accepted, and
    only while nothing is staged."""
    lists = UncommittedLists("run", {"s3://b/lists/": files} if files else {}, pages)
    changed = cast(Dataset, SimpleNamespace(rows=rows))

    assert why_list_again(lists, changed) == again


def test_a_list_interrupted_by_the_deletion_of_a_branch_is_not_used() -> None:
    """The interrupted list has no usable pages, so it is requested again. Other errors are not hidden."""
    whole = UncommittedLists("run", {}, 1)

    def run_with(answer: Any) -> Any:
        def prepare(repository: str) -> Any:
            assert repository == "lake"
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(
            lakefs=SimpleNamespace(prepare_uncommitted=prepare), partition=SimpleNamespace(repository="lake")
        )

    assert list_staged(run_with(whole)) is whole
    assert list_staged(run_with(Interrupted("a branch was deleted"))) is NO_LIST
    assert (NO_LIST.pages, NO_LIST.files) == (0, 0)
    with pytest.raises(Unavailable):
        list_staged(run_with(Unavailable("503")))


def run_at(folder: Path, keys: Sequence[str]) -> Any:
    """A run whose namespace has files with these keys."""
    (folder / "lake").mkdir()
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(folder)))
    for key in keys:
        place.store().write(key, b"")
    return SimpleNamespace(place=place, store=place.store())


@pytest.mark.parametrize("slash", ["", "/"])
def test_every_file_of_the_list_at_a_reported_location_is_read(tmp_path: Path, slash: str) -> None:
    """Files beyond the reported number are also read, but no file outside the location."""
    run = run_at(tmp_path, ["_lakefs/lists/rX/a", "_lakefs/lists/rX/b", "_lakefs/lists/rX1/c", "_lakefs/lists/r/d"])

    for announced in (0, 1, 2):
        files = reported_files(run, f"local://lake/_lakefs/lists/rX{slash}", announced)
        assert sorted(files) == ["_lakefs/lists/rX/a", "_lakefs/lists/rX/b"]


def test_fewer_files_than_were_reported_raise_an_error(tmp_path: Path) -> None:
    """The missing file may name live objects."""
    run = run_at(tmp_path, ["_lakefs/lists/r1/a"])

    with pytest.raises(DamagedData, match="reported 2 files") as damaged:
        reported_files(run, "local://lake/_lakefs/lists/r1/", 2)
    assert damaged.value.invariant == 3
    with pytest.raises(Refused):
        reported_files(run, "local://elsewhere/_lakefs/lists/r1/", 0)
