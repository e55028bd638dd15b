"""Which objects branches serve at the probed paths. The result is complete and exact, or unclear where it isn't certain
(invariant 2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakegc_assets.mark import path_probes
from lakegc_assets.mark.path_probes import (
    PATHS_PER_BATCH,
    addresses_at_inexact_paths,
    not_utf8_message,
    probe_batches,
    served_addresses,
    served_batch,
)
from spark_resources.errors import DamagedData, Forbidden, LakegcError, NotFound, Refused, Unavailable
from spark_resources.lakefs import LakeFS, LakeFSSettings, ServedObject, ServedPage
from spark_resources.lakefs_sandbox.ref_views import as_text
from spark_resources.model import SERVED, Namespace

NAMESPACE = Namespace.parse("s3://bucket/lake")


@dataclass
class Branches:
    """A server that serves the given entries in the order of the paths' bytes. A page may have fewer entries than
    requested."""

    served: dict[str, dict[str, str]]
    largest_page: int = 1000
    empty_pages: int = 0  # so many pages at the start are empty and announce more
    failing: dict[str, LakegcError] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)  # the requested size of each page
    listed: list[str] = field(default_factory=list)  # branches in addition to those that serve objects
    settings: LakeFSSettings = field(default_factory=lambda: LakeFSSettings("http://h", "a", "s"))
    exists: bool = True  # whether the repository exists
    lists_repository: bool = True

    def list_objects(self, repository: str, branch: str, *, after: str = "", amount: int = 1000) -> ServedPage:
        self._called(repository, branch)
        self.amounts.append(amount)
        behind = [path for path in in_byte_order(self.served[branch]) if path.encode() > after.encode()]
        if self.empty_pages > 0 and behind:
            self.empty_pages -= 1
            return ServedPage((), behind[0])
        page = behind[: min(amount, self.largest_page)]
        objects = tuple(ServedObject(path, self.served[branch][path], 1, "") for path in page)
        return ServedPage(objects, page[-1] if len(behind) > len(page) else None)

    def stat(self, repository: str, branch: str, path: str) -> ServedObject | None:
        self._called(repository, branch)
        address = self.served[branch].get(path)
        return None if address is None else ServedObject(path, address, 1, "")

    def branches(self, repository: str) -> dict[str, str]:
        assert repository == "lake"
        if not self.exists:
            raise NotFound("there is no repository lake")
        return dict.fromkeys([*self.served, *self.listed], "head")

    def repositories_on(self, server: str) -> list[Any]:
        assert server == ""
        return [SimpleNamespace(id=name) for name in ("other", *["lake"] * self.lists_repository)]

    def _called(self, repository: str, branch: str) -> None:
        assert repository == "lake"
        self.requested.append(branch)
        if branch not in self.served:
            raise NotFound(f"there is no branch {branch}")
        if branch in self.failing:
            raise self.failing[branch]

    def as_lakefs(self) -> LakeFS:
        return cast(LakeFS, self)


@dataclass
class Moving(Branches):
    """After the first page, the object at one path is moved to another one."""

    source: str = ""
    destination: str = ""

    def list_objects(self, repository: str, branch: str, *, after: str = "", amount: int = 1000) -> ServedPage:
        page = super().list_objects(repository, branch, after=after, amount=amount)
        if self.source in self.served[branch]:
            self.served[branch][self.destination] = self.served[branch].pop(self.source)
        return page


def in_byte_order(paths: Any) -> list[str]:
    return sorted(paths, key=str.encode)


def address(number: int) -> str:
    return f"s3://bucket/lake/data/s/{number}"


def rows(branch: str, paths: Sequence[str], *, size: int = 1) -> list[dict[str, Any]]:
    return [{"repository": "lake", "branch": branch, "path": path, "size": size} for path in paths]


# paths that sort differently as bytes than as UTF-16 or for a reader: astral, private use, NUL, newline, slashes
letters = st.sampled_from(["a", "b", "/", "-", "0", "\0", "\n", "\x7f", "é", "\uffee", "\U0001f600"])
paths = st.text(letters, min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    there=st.dictionaries(paths, st.integers(0, 10**6).map(address), max_size=30),
    requested=st.sets(paths, min_size=1, max_size=25),
    page=st.integers(1, 40),
    empty_pages=st.integers(0, 3),
    per_path=st.sampled_from([1, 2, 8]),
)
def test_every_path_probe_returns_what_the_branch_serves(
    there: dict[str, str], requested: set[str], page: int, empty_pages: int, per_path: int
) -> None:
    """The results don't depend on the sizes of pages, whether the server or the prober chooses them."""
    wanted = in_byte_order({*requested, *list(there)[:10]})
    server = Branches({"main": there}, largest_page=page, empty_pages=empty_pages)
    with mock.patch.object(path_probes, "ENTRIES_PER_PATH", per_path):
        served = served_addresses(server.as_lakefs(), "lake", "main", wanted)
    assert served == {path: there.get(path) for path in wanted}


@given(requested=st.lists(paths, min_size=1, max_size=25, unique=True), page=st.integers(1, 5))
def test_paths_in_any_order_get_the_results_of_the_right_page(requested: list[str], page: int) -> None:
    """A page ends at one path. Paths that sort after it are probed again, wherever they are in the list."""
    there = {path: address(number) for number, path in enumerate(requested)}
    server = Branches({"main": there}, largest_page=page)
    assert served_addresses(server.as_lakefs(), "lake", "main", requested) == there


def test_an_empty_page_that_announces_more_does_not_mean_absence() -> None:
    """The paths may be on a later page."""
    there = {f"p{number}": address(number) for number in range(8)}
    server = Branches({"main": there}, empty_pages=1)
    assert served_addresses(server.as_lakefs(), "lake", "main", sorted(there)) == there


@pytest.mark.parametrize(("paths", "requests"), [(3, 3), (4, 1), (900, 1), (1500, 2)])
def test_many_neighboring_paths_are_probed_by_page_and_a_few_one_by_one(paths: int, requests: int) -> None:
    """A page begins right before the first path, wherever that is on the branch."""
    there = {f"p{number:05}": address(number) for number in range(5000)}
    server, requested = Branches({"main": there}), list(there)[3000 : 3000 + paths]

    assert served_addresses(server.as_lakefs(), "lake", "main", requested) == {path: there[path] for path in requested}
    assert len(server.requested) == requests


def test_a_few_neighboring_paths_request_a_small_page_and_a_whole_one_if_that_does_not_cover_all() -> None:
    there = {f"p{number:05}": address(number) for number in range(5000)}
    for requested, amounts in (
        (sorted(there)[:20], [160]),
        (sorted(there)[:1000:20], [400, 1000]),
        (sorted(there)[:1000], [1000]),
    ):
        server = Branches({"main": there})
        assert served_addresses(server.as_lakefs(), "lake", "main", requested) == {p: there[p] for p in requested}
        assert server.amounts == amounts


def test_an_object_moved_after_a_small_page_is_found() -> None:
    """It moves from a path that the small page doesn't cover to one that it covers: only the whole page has both."""
    there = {f"p{number:05}": address(number) for number in range(100) if number != 1}
    server = Moving({"main": there}, source="p00090", destination="p00001")
    served = served_addresses(server.as_lakefs(), "lake", "main", ["p00000", "p00001", "p00002", "p00090"])
    assert address(90) in served.values()


@pytest.mark.parametrize(
    "error",
    [Unavailable("gone"), Forbidden("no")],
    ids=lambda e: type(e).__name__,
)
def test_a_path_probe_that_fails_is_unclear(error: LakegcError) -> None:
    """The probes after the first failure are also unclear. Their candidates are kept."""
    server = Branches({"a": {"p": address(1)}, "b": {}, "c": {"p": address(3)}}, failing={"b": error})
    requested = [*rows("a", ["p"]), *rows("b", ["p", "q"]), *rows("c", ["p"])]
    results = [row for batch in probe_batches(requested, server.as_lakefs(), NAMESPACE) for row in batch.to_pylist()]
    assert [(row["branch"], row["path"], row["address"], row["unclear"]) for row in results] == [
        ("a", "p", "data/s/1", None),
        ("b", "p", None, str(error)),
        ("b", "q", None, str(error)),
        ("c", "p", None, str(error)),
    ]
    assert server.requested == ["a", "b"]  # a server that is down must not get a million requests


def probe_results(server: Branches, requested: Sequence[dict[str, Any]]) -> list[tuple[str, str | None, bool]]:
    """The branch and address of each probe, and whether the result is clear."""
    batches = probe_batches(requested, server.as_lakefs(), NAMESPACE)
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["branch"], row["address"], row["unclear"] is None) for row in rows]


def test_a_branch_deleted_while_it_is_probed_serves_nothing() -> None:
    """A second listing of branches doesn't contain the branch. Its remaining probes are dropped; those of all other
    branches are still sent."""
    server = Branches({"a": {"p": address(1)}, "c": {"p": address(3)}})
    requested = [
        *rows("a", ["p"]),
        *rows("gone", [f"p{number:04}" for number in range(PATHS_PER_BATCH + 1)]),
        *rows("c", ["p"]),
    ]

    results = probe_results(server, requested)

    assert results[0] == ("a", "data/s/1", True)
    assert set(results[1:-1]) == {("gone", None, True)}
    assert results[-1] == ("c", "data/s/3", True)
    assert server.requested.count("gone") <= PATHS_PER_BATCH  # the remaining paths are not requested


def test_a_branch_that_is_listed_but_not_found_is_unclear() -> None:
    """The two results contradict each other, for all paths of the branch; other branches are not affected."""
    server = Branches({"a": {"p": address(1)}, "c": {"p": address(3)}}, listed=["b"])
    many = [f"p{number:04}" for number in range(PATHS_PER_BATCH + 1)]

    results = probe_results(server, [*rows("a", ["p"]), *rows("b", many), *rows("c", ["p"])])

    assert results == [("a", "data/s/1", True), *[("b", None, False)] * len(many), ("c", "data/s/3", True)]
    assert server.requested.count("b") == 2  # once more after branches were listed


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_repository_deleted_while_it_is_probed_serves_nothing_if_a_listing_confirms_it(is_listed: bool) -> None:
    """Without that confirmation, the result is unclear."""
    server = Branches({"a": {"p": address(1)}}, exists=False, lists_repository=is_listed)

    results = probe_results(server, [*rows("a", ["p"]), *rows("b", ["p"]), *rows("c", ["p"])])

    assert results == [("a", "data/s/1", True), ("b", None, not is_listed), ("c", None, not is_listed)]
    assert server.requested == (["a", "b"] if is_listed else ["a", "b", "c"])


def test_a_branch_recreated_while_it_is_probed_is_probed_again() -> None:
    """The branch was deleted and created again under its name between two requests, so it may serve other objects."""

    class Recreated(Branches):
        def branches(self, repository: str) -> dict[str, str]:
            self.served["b"] = {"p": address(2)}
            return super().branches(repository)

    server = Recreated({"a": {"p": address(1)}})

    assert probe_results(server, [*rows("a", ["p"]), *rows("b", ["p"])]) == [
        ("a", "data/s/1", True),
        ("b", "data/s/2", True),
    ]


def test_a_branch_that_is_deleted_again_while_it_is_probed_serves_nothing() -> None:
    """The branch is still listed at first, but no longer when the second probe doesn't find it either."""

    class DeletedAgain(Branches):
        def branches(self, repository: str) -> dict[str, str]:
            heads = super().branches(repository)
            self.listed = []
            return heads

    server = DeletedAgain({"a": {"p": address(1)}}, listed=["b"])

    assert probe_results(server, rows("b", ["p", "q"])) == [("b", None, True)] * 2
    assert server.requested == ["b", "b"]


def test_a_path_without_a_result_is_unclear() -> None:
    """Candidates that it may serve are kept."""
    (row,) = served_batch(rows("main", ["p"]), {"q": address(1)}, None, NAMESPACE).to_pylist()

    assert (row["address"], row["unclear"]) == (None, "the server returned no result")


def test_a_second_listing_that_fails_leaves_the_branch_unclear() -> None:
    """It is unknown whether the branch was deleted, so any object that it may serve is kept. The repository's other
    branches are no longer tried."""

    class Unlisted(Branches):
        def branches(self, repository: str) -> dict[str, str]:
            raise Unavailable("gone")

    server = Unlisted({"a": {}})
    requested = [*rows("b", ["p"]), *rows("c", ["p"])]
    results = [row for batch in probe_batches(requested, server.as_lakefs(), NAMESPACE) for row in batch.to_pylist()]

    assert [(row["branch"], row["address"], row["unclear"]) for row in results] == [
        ("b", None, "gone"), ("c", None, "gone"),
    ]  # fmt: skip
    assert server.requested == ["b"]


def test_a_damaged_response_stops_the_mark() -> None:
    """No other response of such a server can be trusted either."""
    server = Branches({"main": {}}, failing={"main": DamagedData("no JSON")})
    with pytest.raises(DamagedData):
        list(probe_batches(rows("main", ["p"]), server.as_lakefs(), NAMESPACE))


def test_a_batch_that_fails_halfway_is_unclear_as_a_whole() -> None:
    """Results from before the failure don't count."""

    class FailingAtQ(Branches):
        def stat(self, repository: str, branch: str, path: str) -> ServedObject | None:
            if path == "q":
                raise Unavailable("gone")
            return super().stat(repository, branch, path)

    server = FailingAtQ({"main": {"p": address(1), "q": address(2)}})
    batches = probe_batches(rows("main", ["p", "q"]), server.as_lakefs(), NAMESPACE)
    assert [row["unclear"] for batch in batches for row in batch.to_pylist()] == ["gone", "gone"]


def test_a_served_address_in_another_spelling_of_the_namespace_stops_the_mark() -> None:
    """The address is neither placed outside nor left unclear."""
    server = Branches({"main": {"p": "s3a://bucket//lake/data/s/1"}})
    with pytest.raises(Refused, match="differs from the namespace"):
        list(probe_batches(rows("main", ["p"]), server.as_lakefs(), NAMESPACE))


@pytest.mark.parametrize("key", ["data/we ird/obj %2F + é", "data/a%20b", "data/a?x", "data/100%"])
def test_a_served_address_is_the_key_byte_for_byte(key: str) -> None:
    """A key with % or ? comes from a relative entry and is shown after the namespace. The object is live, and the
    address is no conflict."""
    server = Branches({"main": {"p": f"{NAMESPACE.uri}/{key}"}})
    (batch,) = probe_batches(rows("main", ["p"]), server.as_lakefs(), NAMESPACE)
    assert batch["address"].to_pylist() == [key]
    assert batch.schema == SERVED


def test_a_served_address_outside_the_namespace_matches_no_key() -> None:
    """The branch serves an imported object there."""
    server = Branches({"main": {"p": "s3://elsewhere/data/s/1"}})
    (batch,) = probe_batches(rows("main", ["p"]), server.as_lakefs(), NAMESPACE)
    assert batch.to_pylist() == [{**rows("main", ["p"])[0], "address": None, "unclear": None}]
    assert batch.schema == SERVED


def test_a_path_with_several_sizes_is_probed_once_with_a_result_for_each() -> None:
    """Two heads of a branch can have different sizes at a path."""
    server = Branches({"main": {"p": address(1)}})
    requested = [*rows("main", ["p"], size=1), *rows("main", ["p"], size=2)]
    results = [row for batch in probe_batches(requested, server.as_lakefs(), NAMESPACE) for row in batch.to_pylist()]
    assert [(row["size"], row["address"]) for row in results] == [(1, "data/s/1"), (2, "data/s/1")]
    assert server.requested == ["main"]


def test_more_paths_than_fit_into_a_batch_all_get_results() -> None:
    """No result is lost between two batches of a branch, or between two branches."""
    there = {f"p{number:05}": address(number) for number in range(PATHS_PER_BATCH + 7)}
    server = Branches({"main": there, "other": {}}, largest_page=90)
    requested = [*rows("main", sorted(there)), *rows("other", sorted(there))]
    batches = list(probe_batches(requested, server.as_lakefs(), NAMESPACE))
    results = [row for batch in batches for row in batch.to_pylist()]
    assert [batch.num_rows for batch in batches] == [PATHS_PER_BATCH, 7] * 2
    assert len(results) == len(requested)
    assert all(row["unclear"] is None for row in results)
    assert {row["path"]: row["address"] for row in results if row["branch"] == "main"} == {
        path: full.removeprefix("s3://bucket/lake/") for path, full in there.items()
    }
    assert {row["address"] for row in results if row["branch"] == "other"} == {None}


# --- paths that are not UTF-8 -----------------------------------------------------------------------------------------


@dataclass
class NonUtf8Branches(Branches):
    """A server whose paths are bytes. Its JSON shows U+FFFD for each byte that is not UTF-8, but pages follow the order
    of the bytes."""

    at: dict[bytes, str] = field(default_factory=dict)
    pages_requested: list[tuple[str, str, int]] = field(default_factory=list)

    def list_objects(
        self, repository: str, branch: str, *, after: str = "", amount: int = 1000, prefix: str = ""
    ) -> ServedPage:
        assert (repository, branch) == ("lake", "main")
        self.pages_requested.append((prefix, after, amount))
        start = prefix.encode()
        behind = sorted(path for path in self.at if path > after.encode() and path.startswith(start))
        page = behind[: min(amount, self.largest_page)]
        objects = tuple(ServedObject(as_text(path), self.at[path], 1, "") for path in page)
        return ServedPage(objects, as_text(page[-1]) if len(behind) > len(page) else None)

    def stat(self, repository: str, branch: str, path: str) -> ServedObject | None:
        address = self.at.get(path.encode())
        return None if address is None else ServedObject(path, address, 1, "")


bytes_of_paths = st.lists(st.sampled_from([b"a", "é".encode(), b"\x80", b"\xff", "\ufffd".encode()]), max_size=4)
raw_paths = bytes_of_paths.map(lambda parts: b"a" + b"".join(parts))


@settings(max_examples=300, deadline=None)
@given(
    there=st.dictionaries(raw_paths, st.integers(0, 10**6).map(address), max_size=20),
    requested=st.sets(raw_paths.map(lambda path: path.decode(errors="ignore")), min_size=1, max_size=20),
    page=st.integers(1, 6),
)
@example(there={b"a\x80": address(1), b"a\xc3\xa9": address(2)}, requested={"aé", "ab", "ac", "ad"}, page=1)
@example(there={b"a\xef\xbf\xbd": address(1), b"a\xff": address(2)}, requested={"a\ufffd", "a", "ab", "ac"}, page=6)
def test_a_path_that_is_not_utf8_hides_no_other_path(there: dict[bytes, str], requested: set[str], page: int) -> None:
    """The last path of a page may be shown in a form that sorts later than the path itself. Paths in between are not
    absent."""
    server = NonUtf8Branches({}, largest_page=page, at=there)

    served = served_addresses(server.as_lakefs(), "lake", "main", in_byte_order(requested))

    assert served == {path: there.get(path.encode()) for path in requested}


@given(there=st.dictionaries(raw_paths, st.integers(0, 10**6).map(address), max_size=20), page=st.integers(1, 6))
def test_every_address_at_a_path_that_is_not_utf8_is_found_or_the_mark_stops(
    there: dict[bytes, str], page: int
) -> None:
    """An object staged at such a path is live, although the path can't be requested."""
    server, paths = NonUtf8Branches({}, largest_page=page, at=there), [as_text(path) for path in there]
    hidden = {there[path] for path in there if path.decode(errors="ignore").encode() != path}
    try:
        addresses = set(addresses_at_inexact_paths(server.as_lakefs(), "lake", "main", paths))
    except Unavailable:
        assert page < len(there)
        return

    assert hidden <= addresses <= set(there.values())


def test_only_paths_that_an_inexact_path_may_stand_for_are_listed() -> None:
    """A folder with one such path may have a million others."""
    server = NonUtf8Branches({}, at={b"a\x80": address(1), b"ab": address(2), b"b\x80": address(3)})

    addresses = list(addresses_at_inexact_paths(server.as_lakefs(), "lake", "main", ["a\ufffd", "a\ufffd/x", "ab"]))

    assert addresses == [address(1)]
    assert server.pages_requested == [("a", "a\x7f", PATHS_PER_BATCH)]


def test_a_listing_that_makes_no_progress_at_inexact_paths_stops_the_mark() -> None:
    """The next page can only be requested after an exact path."""
    server = NonUtf8Branches({}, largest_page=1, at={b"a\x80": address(1), b"a\x81": address(2)})

    with pytest.raises(Unavailable, match=re.escape(repr("a\x7f"))):
        list(addresses_at_inexact_paths(server.as_lakefs(), "lake", "main", ["a\ufffd"]))


def test_an_entry_at_a_path_that_is_not_utf8_is_unclear_and_its_neighbors_are_probed() -> None:
    """The path can't be requested, so its candidates are kept. The mark still succeeds."""
    server = Branches({"main": {"p": address(1)}})
    rows_of_main: list[dict[str, Any]] = [{**rows("main", ["x"], size=4)[0], "path": None}, *rows("main", ["p"])]
    (batch,) = probe_batches(rows_of_main, server.as_lakefs(), NAMESPACE)

    assert batch["path"].to_pylist() == [None, "p"]
    assert batch["address"].to_pylist() == [None, "data/s/1"]
    assert batch["unclear"].to_pylist() == [not_utf8_message("lake", "main"), None]
    assert server.requested == ["main"]
