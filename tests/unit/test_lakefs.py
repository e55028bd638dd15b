"""How the client reads a server's responses, tested with an HTTP server that each test scripts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.responses import Response

from spark_resources.errors import DamagedData, Forbidden, Interrupted, LakegcError, NotFound, Unavailable, WrongUsage
from spark_resources.lakefs import Change, LakeFS, RefsDump, ServedObject, UncommittedLists
from spark_resources.lakefs.branch_diff import whole_diff
from spark_resources.lakefs.pagination import MAX_PAGE_SIZE
from spark_resources.model import Commit, Rules
from tests.support.replay_server import serving
from tests.support.scripted_lakefs import (
    NO_CALL,
    NO_RULES,
    REPOSITORY,
    Script,
    Scripted,
    page,
    ref,
    reply,
    settings,
    stats,
)


@pytest.fixture
def script() -> Script:
    return Script().on("GET lake", reply(200, REPOSITORY))


@pytest.fixture
def lake(script: Script) -> Iterator[LakeFS]:
    with serving(script) as endpoint:
        yield LakeFS(settings(endpoint))


# --- pages ------------------------------------------------------------------------------------------------------------


def test_branches_from_all_pages_are_read(script: Script, lake: LakeFS) -> None:
    """Each page is requested from the offset at which the previous one ended. Hidden branches are included."""
    script.on("GET lake/branches", page([ref("a", "1"), ref("b", "2")], "b"), page([ref("c", "3")]))

    assert lake.branches("lake") == {"a": "1", "b": "2", "c": "3"}
    received = [query for _, query, _ in script.received]
    assert [query.get("after") for query in received] == ["", "b"]
    assert {query["show_hidden"].lower() for query in received} == {"true"}


def test_an_empty_page_is_an_empty_listing(script: Script, lake: LakeFS) -> None:
    script.on("GET lake/tags", page([]))

    assert lake.tags("lake") == {}


@pytest.mark.parametrize(
    "broken",
    [
        reply(200, {"results": [ref("a")]}),
        reply(200, {"pagination": {"has_more": False, "next_offset": "", "results": 1, "max_per_page": 1000}}),
        reply(200, {"pagination": {"next_offset": "", "results": 1, "max_per_page": 1000}, "results": [ref("a")]}),
        reply(200, {"pagination": {"has_more": True, "results": 1, "max_per_page": 1000}, "results": [ref("a")]}),
        reply(200, {"pagination": {"has_more": False, "next_offset": "", "results": 2}, "results": [ref("a")]}),
        reply(200, {"pagination": {"has_more": False, "next_offset": "", "results": 1}, "results": [{"id": "a"}]}),
        reply(200, {"pagination": {"has_more": False, "next_offset": "", "results": 1}, "results": [ref("a", "")]}),
        reply(200, {"pagination": {"has_more": False, "next_offset": "", "results": 0}, "results": None}),
        reply(200, []),
        reply(200, None),
        Response(b"", media_type="application/json"),
        Response(b'{"results": [', media_type="application/json"),
    ],
)
def test_a_malformed_page_raises_an_error(script: Script, lake: LakeFS, broken: Response) -> None:
    """The page lacks a field or has fewer results than it announces, so it could be read as empty or as the last
    page."""
    script.on("GET lake/branches", broken)

    with pytest.raises(DamagedData) as raised:
        lake.branches("lake")
    assert raised.value.invariant == 3


def test_a_repeated_offset_raises_an_error(script: Script, lake: LakeFS) -> None:
    """The listing would end early or never."""
    script.on("GET lake/branches", page([ref("a")], "a"), page([ref("b")], "b"), page([ref("a")], "a"))

    with pytest.raises(DamagedData, match="twice"):
        lake.branches("lake")


def test_a_next_offset_equal_to_the_requested_one_raises_an_error(script: Script, lake: LakeFS) -> None:
    """Otherwise, the same page would be read forever."""
    script.on("GET lake/tags", page([ref("a")], "a"), page([ref("b")], "a"))

    with pytest.raises(DamagedData, match="no offset for the next one"):
        lake.tags("lake")


def test_a_failed_page_fails_the_listing(script: Script, lake: LakeFS) -> None:
    """The pages before the failed one are not the whole listing."""
    script.on("GET lake/branches", page([ref("a")], "a"), reply(500, {"message": "kv store"}))

    with pytest.raises(Unavailable, match="kv store"):
        lake.branches("lake")


def test_repositories_and_commits_from_all_pages_are_read(script: Script, lake: LakeFS) -> None:
    """Repositories and commits come in pages of different forms."""
    script.on("GET /repositories", page([REPOSITORY], "lake"), page([REPOSITORY | {"id": "other"}]))
    script.on("GET lake/refs/main/commits", page([commit("2", ["1"])], "2"), page([commit("1", [])]))

    assert [repository.id for repository in lake.repositories()] == ["lake", "other"]
    assert [(commit.id, commit.parents) for commit in lake.log("lake", "main")] == [("2", ("1",)), ("1", ())]


# --- what responses say -----------------------------------------------------------------------------------------------


def commit(commit_id: str, parents: list[str], **changed: Any) -> dict[str, Any]:
    return {
        "id": commit_id,
        "parents": parents,
        "committer": "me",
        "message": "m",
        "creation_date": 1795239712,
        "meta_range_id": "",
        "metadata": {"k": "v"},
        "generation": 2,
        "version": 1,
    } | changed


def test_every_field_of_a_commit_is_read(script: Script, lake: LakeFS) -> None:
    """The commit's date is a time in UTC."""
    script.on("GET lake/commits/c1", reply(200, commit("c1", ["p1", "p2"], version=0)))

    expected = Commit(
        id="c1",
        parents=("p1", "p2"),
        created=datetime(2026, 11, 21, 5, 41, 52, tzinfo=UTC),
        metarange_id="",
        version=0,
        generation=2,
        committer="me",
        message="m",
        metadata={"k": "v"},
    )
    assert lake.commit("lake", "c1") == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"id": ""},
        {"meta_range_id": None},
        {"creation_date": "1795239712"},
        {"creation_date": True},
        {"creation_date": 10**18},
        {"parents": "p1"},
        {"parents": [""]},
        {"parents": ["p1", "p2"], "version": None},
    ],
)
def test_a_commit_with_a_missing_or_mistyped_field_raises_an_error(
    script: Script, lake: LakeFS, changed: dict[str, Any]
) -> None:
    """A merge without a version is also an error, because its main parent can't be determined."""
    script.on("GET lake/commits/c1", reply(200, commit("c1", []) | changed))

    with pytest.raises(DamagedData):
        lake.commit("lake", "c1")


def test_every_field_of_a_repository_is_read(script: Script, lake: LakeFS) -> None:
    """The fields include its namespace, default branch and creation date."""
    repository = lake.repository("lake")

    assert (repository.id, repository.storage_namespace, repository.default_branch) == (
        "lake",
        "s3://bucket/lake",
        "main",
    )
    assert (repository.read_only, repository.storage_id) == (False, "")
    assert repository.created == datetime(2026, 11, 21, 5, 41, 52, tzinfo=UTC)
    assert repository.namespace().path == "lake"


def test_the_storage_id_selects_one_of_several_block_stores(script: Script, lake: LakeFS) -> None:
    """An unknown id is wrong usage."""
    several = [{"blockstore_type": "s3", "blockstore_id": "a"}, {"blockstore_type": "gs", "blockstore_id": "b"}]
    script.on(
        "GET /config",
        reply(200, {"storage_config_list": several, "version_config": {"version": "1.2.3"}}),
    )

    server = lake.config()

    assert (server.blockstore("b"), server.version) == ("gs", "1.2.3")
    with pytest.raises(WrongUsage, match="'c'"):
        server.blockstore("c")


def test_the_empty_storage_id_selects_the_only_block_store(script: Script, lake: LakeFS) -> None:
    """A server with one block store gives it no id."""
    script.on("GET /config", reply(200, {"storage_config": {"blockstore_type": "local"}, "storage_config_list": []}))

    assert lake.config().blockstore("") == "local"


def test_the_configuration_of_an_older_server_is_read_with_two_calls(script: Script, lake: LakeFS) -> None:
    """An older server lacks the single call for its configuration."""
    script.on("GET /config/storage", reply(200, {"blockstore_type": "s3"}))
    script.on("GET /config/version", reply(200, {"version": "0.90.0"}))

    server = lake.config()

    assert (server.blockstore(""), server.version) == ("s3", "0.90.0")


# --- rules ------------------------------------------------------------------------------------------------------------


def test_rules_without_branches_are_read(script: Script, lake: LakeFS) -> None:
    """`branches: null` is what the server writes if no branch has a rule of its own."""
    script.on("GET lake/settings/gc_rules", reply(200, {"default_retention_days": 5, "branches": None}))

    assert lake.rules("lake") == Rules(5, {})


def test_each_rule_of_a_branch_is_read_with_its_days(script: Script, lake: LakeFS) -> None:
    """Zero days are a valid rule."""
    branches = [{"branch_id": "main", "retention_days": 21}, {"branch_id": "dev", "retention_days": 0}]
    script.on("GET lake/settings/gc_rules", reply(200, {"default_retention_days": 5, "branches": branches}))

    assert lake.rules("lake") == Rules(5, {"main": 21, "dev": 0})


@pytest.mark.parametrize(
    "broken",
    [
        {"branches": []},
        {"default_retention_days": "5", "branches": []},
        {"default_retention_days": -1, "branches": []},
        {"default_retention_days": 5, "branches": [{"branch_id": "main"}]},
        {"default_retention_days": 5, "branches": [{"branch_id": "main", "retention_days": days} for days in (1, 9)]},
    ],
)
def test_malformed_rules_raise_an_error(script: Script, lake: LakeFS, broken: Any) -> None:
    """A number is missing or negative, or a branch is named twice. A guess could expire commits that should be
    retained."""
    script.on("GET lake/settings/gc_rules", reply(200, broken))

    with pytest.raises(DamagedData):
        lake.rules("lake")


def test_a_404_means_no_rules_only_if_the_repository_exists(script: Script, lake: LakeFS) -> None:
    """The server answers 404 in both cases."""
    script.on("GET lake/settings/gc_rules", reply(404, {"message": "not found"}))
    assert lake.rules("lake") is None

    script.on("GET lake", reply(404, {"message": "repository not found"}))
    with pytest.raises(NotFound, match="repository"):
        lake.rules("lake")


@pytest.mark.parametrize(
    "response", [reply(404, NO_CALL), reply(404, {}), Response(b"nope", 404, media_type="text/plain")]
)
def test_a_404_that_is_not_about_rules_raises_an_error(script: Script, lake: LakeFS, response: Response) -> None:
    """A proxy, or a server without the call, says nothing about the rules."""
    script.on("GET lake/settings/gc_rules", response)

    with pytest.raises(Unavailable) as raised:
        lake.rules("lake")
    assert not isinstance(raised.value, NotFound)


# --- the list of retained commits -------------------------------------------------------------------------------------

LOCATION = "s3://bucket/lake/_lakefs/retention/gc/commits/run_id=r/commits.csv"
PREPARED = {"run_id": "r", "gc_commits_location": LOCATION, "gc_addresses_location": "s3://bucket/lake/x/"}
ASYNC, STATUS, SYNC = (
    "POST lake/gc/prepare_commits/async",
    "GET lake/gc/prepare_commits/status",
    "POST lake/gc/prepare_commits",
)


def test_a_task_is_polled_until_it_is_completed(script: Script, lake: LakeFS) -> None:
    """Progress is reported while it runs."""
    running = reply(200, {"task_id": "t", "completed": False})
    script.on(ASYNC, reply(202, {"id": "t"}))
    script.on(STATUS, running, running, reply(200, {"task_id": "t", "completed": True, "result": PREPARED}))
    waited: list[float] = []

    assert lake.prepare_commits("lake", progress=waited.append) == LOCATION
    first, second = waited
    assert first >= 0.001
    assert second >= first + 0.001
    assert script.received[-1][1] == {"id": "t"}


def test_a_task_that_is_not_done_in_time_raises_an_error(script: Script, lake: LakeFS) -> None:
    script.on(ASYNC, reply(202, {"id": "t"})).on(STATUS, reply(200, {"task_id": "t", "completed": False}))

    with pytest.raises(Unavailable, match="did not finish within"):
        lake.prepare_commits("lake")


@pytest.mark.parametrize(
    "status",
    [
        {"task_id": "t", "completed": True},
        {"task_id": "t", "completed": True, "result": {"run_id": "r"}},
        {"task_id": "t", "completed": True, "result": PREPARED | {"gc_commits_location": ""}},
        {"task_id": "t"},
    ],
)
def test_a_task_without_a_state_or_a_completed_one_without_a_result_raises_an_error(
    script: Script, lake: LakeFS, status: Any
) -> None:
    """A missing location doesn't mean that there are no rules."""
    script.on(ASYNC, reply(202, {"id": "t"})).on(STATUS, reply(200, status))

    with pytest.raises(DamagedData):
        lake.prepare_commits("lake")


def test_a_failed_task_raises_an_error_with_the_servers_message(script: Script, lake: LakeFS) -> None:
    """Only the server's explicit message means that there are no rules."""
    script.on(ASYNC, reply(202, {"id": "t"}))
    script.on(STATUS, reply(200, {"task_id": "t", "completed": True, "error": {"message": "disk full"}}))

    with pytest.raises(Unavailable, match="disk full"):
        lake.prepare_commits("lake")


@pytest.mark.parametrize(
    ("responses", "calls"),
    [
        ({ASYNC: reply(404, NO_RULES)}, [ASYNC]),
        (
            {
                ASYNC: reply(202, {"id": "t"}),
                STATUS: reply(200, {"completed": True, "error": NO_RULES}),
            },
            [ASYNC, STATUS],
        ),
        ({ASYNC: reply(404, NO_CALL), SYNC: reply(404, NO_RULES)}, [ASYNC, SYNC]),
    ],
    ids=["at once", "by the task", "by the older call"],
)
def test_a_repository_without_rules_has_no_list_of_commits(
    script: Script, lake: LakeFS, responses: dict[str, Response], calls: list[str]
) -> None:
    """The server says this in three forms. None of them is a reason to try another call."""
    for call, response in responses.items():
        script.on(call, response)

    assert lake.prepare_commits("lake") is None
    assert script.calls() == calls


@pytest.mark.parametrize("status", [404, 405, 501])
def test_commits_of_an_older_server_are_listed_with_the_synchronous_call(
    script: Script, lake: LakeFS, status: int
) -> None:
    """An older server has no call that lists commits in the background."""
    script.on(ASYNC, reply(status, NO_CALL)).on(SYNC, reply(201, PREPARED))

    assert lake.prepare_commits("lake") == LOCATION
    assert script.calls() == [ASYNC, SYNC]


@pytest.mark.parametrize(
    ("status", "error"), [(400, Unavailable), (401, Forbidden), (403, Forbidden), (500, Unavailable)]
)
def test_the_older_call_is_not_tried_if_the_newer_one_fails(
    script: Script, lake: LakeFS, status: int, error: type[LakegcError]
) -> None:
    """The older call is used only if the server doesn't have the newer one."""
    script.on(ASYNC, reply(status, {"message": "no"})).on(SYNC, reply(201, PREPARED))

    with pytest.raises(error):
        lake.prepare_commits("lake")
    assert SYNC not in script.calls()


def test_listing_the_commits_of_a_missing_repository_raises_an_error(script: Script, lake: LakeFS) -> None:
    """The asynchronous and the synchronous call are both answered with 404."""
    for call in (ASYNC, SYNC):
        script.on(call, reply(404, {"message": "repository not found"}))

    with pytest.raises(NotFound):
        lake.prepare_commits("lake")


# --- the lists of staged objects --------------------------------------------------------------------------------------

UNCOMMITTED = "POST lake/gc/prepare_uncommited"
STAGED = "s3://bucket/lake/_lakefs/retention/gc/uncommitted/r/uncommitted/"


def staged(location: str = STAGED, token: str | None = None, run_id: str = "r") -> Response:
    body = {"run_id": run_id, "gc_uncommitted_location": location}
    return reply(201, body if token is None else body | {"continuation_token": token})


def test_every_page_of_staged_objects_is_requested(script: Script, lake: LakeFS) -> None:
    """Each page is requested with the token and run of the previous one. Each page with a location announces one
    file."""
    script.on(UNCOMMITTED, staged(token="t1"), staged("", token="t2"), staged(token=""))

    assert lake.prepare_uncommitted("lake") == UncommittedLists("r", {STAGED: 2}, pages=3)
    bodies = [body or {} for _, _, body in script.received]
    assert bodies == [{}, {"continuation_token": "t1", "run_id": "r"}, {"continuation_token": "t2", "run_id": "r"}]


def test_a_page_of_staged_objects_with_an_empty_location_has_no_file(script: Script, lake: LakeFS) -> None:
    """The code that reads the lists decides whether really nothing is staged (formats §2)."""
    script.on(UNCOMMITTED, staged(""))

    lists = lake.prepare_uncommitted("lake")

    assert (lists.locations, lists.files, lists.pages) == ((), 0, 1)


@pytest.mark.parametrize(
    "pages",
    [
        [staged(token="t"), staged(token="t")],
        [staged(token="t"), staged(token="u"), staged(token="t")],
        [staged(token="t"), staged(run_id="other")],
        [reply(201, {"run_id": "r"})],
        [reply(201, {"gc_uncommitted_location": STAGED})],
        [reply(201, {"run_id": "r", "gc_uncommitted_location": STAGED, "continuation_token": 7})],
    ],
    ids=["token twice", "tokens in a circle", "another run", "no location", "no run", "token that is no text"],
)
def test_inconsistent_or_incomplete_pages_of_staged_objects_raise_an_error(
    script: Script, lake: LakeFS, pages: list[Scripted]
) -> None:
    """A token is repeated, the run changes, or a field is missing."""
    script.on(UNCOMMITTED, *pages)

    with pytest.raises(DamagedData) as raised:
        lake.prepare_uncommitted("lake")
    assert raised.value.invariant == 3


def test_a_failed_page_of_staged_objects_raises_an_error(script: Script, lake: LakeFS) -> None:
    """The pages before it are not the whole list."""
    script.on(UNCOMMITTED, staged(token="t"), reply(400, {"message": "invalid continuation token"}))

    with pytest.raises(Unavailable, match="invalid continuation token"):
        lake.prepare_uncommitted("lake")


def test_a_server_without_the_call_for_staged_objects_raises_an_error(script: Script, lake: LakeFS) -> None:
    """The error says which version has the call. A missing repository is a different error."""
    script.on(UNCOMMITTED, reply(404, NO_CALL))
    with pytest.raises(Unavailable, match=r"0\.87"):
        lake.prepare_uncommitted("lake")

    script.on("GET lake", reply(404, {"message": "repository not found"}))
    with pytest.raises(NotFound):
        lake.prepare_uncommitted("lake")


def test_a_list_interrupted_by_the_deletion_of_a_branch_is_retryable(script: Script, lake: LakeFS) -> None:
    """The server then answers 404, as an old server would, but the list can be requested again."""
    script.on(UNCOMMITTED, staged(token="t"), reply(404, {"message": "branch not found"}))

    with pytest.raises(Interrupted):
        lake.prepare_uncommitted("lake")


def test_the_error_about_a_read_only_repository_says_that_it_is_read_only(script: Script, lake: LakeFS) -> None:
    """The server answers 403, as it does for a missing permission."""
    script.on(UNCOMMITTED, reply(403, {"message": "read-only repository"}))

    with pytest.raises(Forbidden, match="the repository is read-only"):
        lake.prepare_uncommitted("lake")


# --- the dump of references -------------------------------------------------------------------------------------------

DUMP, SUBMIT, DUMP_STATUS = "PUT lake/refs/dump", "POST lake/dump", "GET lake/dump"
DUMPED = {"branches_meta_range_id": "b", "commits_meta_range_id": "c", "tags_meta_range_id": "t"}


def test_the_ids_of_the_tables_of_a_dump_are_not_mixed_up(script: Script, lake: LakeFS) -> None:
    script.on(DUMP, reply(201, DUMPED))

    assert lake.dump_refs("lake") == RefsDump(branches="b", commits="c", tags="t")


def test_a_newer_server_dumps_references_in_the_background(script: Script, lake: LakeFS) -> None:
    """If the server no longer has the direct call, a dump is submitted and polled."""
    script.on(DUMP, reply(404, NO_CALL)).on(SUBMIT, reply(202, {"id": "t"}))
    script.on(
        DUMP_STATUS,
        reply(200, {"id": "t", "done": False}),
        reply(200, {"id": "t", "done": True, "refs": DUMPED}),
    )

    assert lake.dump_refs("lake") == RefsDump(branches="b", commits="c", tags="t")
    assert script.received[-1][1] == {"task_id": "t"}


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501])
def test_no_dump_is_returned_if_the_server_or_the_credentials_do_not_allow_one(
    script: Script, lake: LakeFS, status: int
) -> None:
    """The repository can be read in other ways."""
    for call in (DUMP, SUBMIT):
        script.on(call, reply(status, {"message": "no"}))

    assert lake.dump_refs("lake") is None


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (reply(401, {"message": "who?"}), Forbidden),
        (reply(404, {"message": "repository not found"}), NotFound),
    ],
)
def test_an_unreadable_repository_is_not_mistaken_for_a_missing_dump(
    script: Script, lake: LakeFS, response: Response, error: type[LakegcError]
) -> None:
    """Wrong credentials and a missing repository are errors."""
    script.on(DUMP, response).on(SUBMIT, response).on("GET lake", response)

    with pytest.raises(error):
        lake.dump_refs("lake")


@pytest.mark.parametrize("response", [reply(500, {"message": "kv"}), reply(201, {"branches_meta_range_id": "b"})])
def test_a_failed_or_incomplete_dump_raises_an_error(script: Script, lake: LakeFS, response: Response) -> None:
    """An incomplete dump lacks a table."""
    script.on(DUMP, response)

    with pytest.raises((Unavailable, DamagedData)):
        lake.dump_refs("lake")


def test_a_dump_that_fails_in_the_background_raises_an_error(script: Script, lake: LakeFS) -> None:
    """The error has the server's message."""
    script.on(DUMP, reply(405, NO_CALL)).on(SUBMIT, reply(202, {"id": "t"}))
    script.on(DUMP_STATUS, reply(200, {"id": "t", "done": True, "error": "no space"}))

    with pytest.raises(Unavailable, match="no space"):
        lake.dump_refs("lake")


# --- what branches serve ----------------------------------------------------------------------------------------------

STAT = "GET lake/refs/main/objects/stat"
LS = "GET lake/refs/main/objects/ls"


@pytest.mark.parametrize("path", ["a", "we ird/obj %2F + é", "a//b", "dir/", "x&y=1#z?", "ä\n"])
def test_a_path_is_requested_exactly_as_it_is(script: Script, lake: LakeFS, path: str) -> None:
    """The server returns what any reader of the branch gets."""
    script.on(STAT, reply(200, stats(path)))

    expected = ServedObject(path, f"s3://bucket/lake/data/s/{path}", 3, "c0ffee")
    assert lake.stat("lake", "main", path) == expected
    assert script.received[0][1]["path"] == path
    assert script.received[0][1]["presign"].lower() == "false"


def test_a_404_means_that_nothing_is_served_only_if_the_branch_exists(script: Script, lake: LakeFS) -> None:
    """The server answers 404 in both cases. If the branch is missing, listing it is also answered with 404."""
    script.on(STAT, reply(404, {"message": "not found"})).on(LS, page([stats("a/b")], "a/b"))
    assert lake.stat("lake", "main", "a") is None
    assert [(query["prefix"], query["amount"]) for call, query, _ in script.received if call.endswith("/ls")] == [
        ("a", "1")
    ]

    script.on(LS, page([]))
    assert lake.stat("lake", "main", "a") is None

    script.on(LS, reply(404, {"message": "not found"}))
    with pytest.raises(NotFound, match="'main' in repository 'lake'"):
        lake.stat("lake", "main", "a")


def test_a_listed_object_counts_as_served_despite_a_404(script: Script, lake: LakeFS) -> None:
    """A gateway may answer 404 in place of the server, with JSON of its own."""
    script.on(STAT, reply(404, {"message": "no route"})).on(LS, page([stats("a")], "a"))

    entry = lake.stat("lake", "main", "a")

    assert entry is not None
    assert (entry.path, entry.physical_address) == ("a", stats("a")["physical_address"])


@pytest.mark.parametrize("listed", [page([], "a"), page([stats("0")], "0"), reply(503, {"message": "slow down"})])
def test_a_404_that_the_listing_does_not_confirm_raises_an_error(
    script: Script, lake: LakeFS, listed: Response
) -> None:
    """An empty page that announces more pages doesn't confirm the 404, and neither does a page of other paths or an
    error."""
    script.on(STAT, reply(404, {"message": "not found"})).on(LS, listed)

    with pytest.raises(Unavailable):
        lake.stat("lake", "main", "a")


@pytest.mark.parametrize(
    "response",
    [
        reply(404, NO_CALL),
        reply(404, {}),
        Response(b"<html>gone</html>", 404, media_type="text/html"),
        reply(403, {"message": "no"}),
        reply(410, {"message": "expired"}),
        reply(500, {"message": "kv"}),
        reply(503, {"message": "slow down"}),
    ],
)
def test_an_unclear_response_raises_an_error_and_never_means_absence(
    script: Script, lake: LakeFS, response: Response
) -> None:
    """Only lakeFS's explicit message means that the branch doesn't have the object."""
    script.on(STAT, response).on(LS, page([]))

    with pytest.raises(Unavailable):
        lake.stat("lake", "main", "a")


@pytest.mark.parametrize(
    "changed", [{"size_bytes": None}, {"physical_address": ""}, {"checksum": None}, {"path": "b"}, {"size_bytes": "3"}]
)
def test_an_object_with_a_missing_or_mistyped_field_raises_an_error(
    script: Script, lake: LakeFS, changed: dict[str, Any]
) -> None:
    """A response about another path is also an error."""
    script.on(STAT, reply(200, stats("a") | changed))

    with pytest.raises(DamagedData):
        lake.stat("lake", "main", "a")


def test_a_path_that_is_not_utf8_raises_an_error_with_an_escaped_path(lake: LakeFS) -> None:
    """Such a path can't be requested, so it is unknown whether it is served."""
    with pytest.raises(Unavailable) as raised:
        lake.stat("lake", "main", "a\udcff")
    str(raised.value).encode()


def test_a_page_of_served_objects_has_the_offset_of_the_next_one(script: Script, lake: LakeFS) -> None:
    """The last page has no next offset."""
    script.on(LS, page([stats("a"), stats("b")], "b"), page([stats("c")]))

    first = lake.list_objects("lake", "main", amount=2, prefix="x")
    last = lake.list_objects("lake", "main", after="b")

    assert ([entry.path for entry in first.objects], first.next_after) == (["a", "b"], "b")
    assert ([entry.path for entry in last.objects], last.next_after) == (["c"], None)
    queries = [query for _, query, _ in script.received]
    assert [(query["after"], query["amount"], query["prefix"]) for query in queries] == [
        ("", "2", "x"),
        ("b", str(MAX_PAGE_SIZE), ""),
    ]
    assert all("delimiter" not in query for query in queries)


@pytest.mark.parametrize("paths", [["b", "a"], ["a", "a"], ["0"]])
def test_a_listing_out_of_order_raises_an_error(script: Script, lake: LakeFS, paths: list[str]) -> None:
    """A listing that starts before the requested path is also an error."""
    script.on(LS, page([stats(path) for path in paths]))

    with pytest.raises(DamagedData, match="out of order"):
        lake.list_objects("lake", "main", after="5" if paths == ["0"] else "")


def test_uncommitted_changes_from_all_pages_are_read(script: Script, lake: LakeFS) -> None:
    """Each change has its kind. A kind that lakegc doesn't know is an error."""
    diff = "GET lake/branches/main/diff"
    added, removed = (
        {"type": kind, "path": path, "path_type": "object"} for kind, path in (("added", "a"), ("removed", "b"))
    )
    script.on(diff, page([added], "a"), page([removed]))

    assert list(lake.uncommitted_diff("lake", "main")) == [Change("added", "a"), Change("removed", "b")]

    script.on(diff, page([added | {"type": "moved"}]))
    with pytest.raises(DamagedData, match="moved"):
        list(lake.uncommitted_diff("lake", "main"))


def changes(*paths: str) -> Response:
    return page([{"type": "added", "path": path, "path_type": "object"} for path in paths])


STAGED_DIFF = "GET lake/refs/main@/diff/main$"
DIFF = "GET lake/branches/main/diff"


def test_staged_changes_are_the_difference_between_committed_and_staged_data(script: Script, lake: LakeFS) -> None:
    """The diff is read page by page. If it shows a change, no other request is needed."""
    script.on(STAGED_DIFF, page([{"type": "added", "path": "a", "path_type": "object"}], "a"), changes("b"))

    assert [change.path for change in whole_diff(lake, "lake", "main")] == ["a", "b"]
    assert [(query["after"], query["type"]) for _, query, _ in script.received] == [("", "two_dot"), ("a", "two_dot")]


def test_a_branch_has_nothing_staged_only_if_the_uncommitted_diff_agrees(script: Script, lake: LakeFS) -> None:
    """A change that is staged between the two diffs is found by reading the first diff again."""
    script.on(STAGED_DIFF, changes()).on(DIFF, changes())
    assert list(whole_diff(lake, "lake", "main")) == []

    script.on(STAGED_DIFF, changes(), changes("a", "b")).on(DIFF, changes("a"))
    assert [change.path for change in whole_diff(lake, "lake", "main")] == ["a", "b"]


def test_staged_changes_that_only_the_uncommitted_diff_shows_raise_an_error(script: Script, lake: LakeFS) -> None:
    """A server that mistakes staged data for committed data would show no changes. Its uncommitted diff could end early
    at an unreadable record."""
    script.on(STAGED_DIFF, changes())
    script.on(DIFF, changes("a"))

    with pytest.raises(Unavailable, match=r"none in the diff between 'main@' and 'main\$'.* Upgrade the server"):
        list(whole_diff(lake, "lake", "main"))


def test_a_diff_of_staged_changes_that_the_server_cannot_read_to_the_end_raises_an_error(
    script: Script, lake: LakeFS
) -> None:
    """The page with an unreadable staging record fails."""
    first = page([{"type": "added", "path": "a", "path_type": "object"}], "a")
    script.on(STAGED_DIFF, first, reply(500, {"message": "kv"}))

    with pytest.raises(Unavailable, match=r"can't be read after 'a', so some staged objects are unknown"):
        list(whole_diff(lake, "lake", "main"))


# --- the clock --------------------------------------------------------------------------------------------------------


def test_the_time_of_the_server_is_the_date_of_its_responses(script: Script, lake: LakeFS) -> None:
    """The date is taken from the response to any request, never from the clock of this machine."""
    script.on("GET /config", reply(200, {}))

    assert lake.server_time() == datetime(2026, 11, 21, 8, 50, tzinfo=UTC)


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_a_response_without_a_readable_date_raises_an_error(script: Script, lake: LakeFS, date: str) -> None:
    """The clock of this machine must not replace it."""
    script.on("GET /config", reply(200, {}, {"Date": date}))

    with pytest.raises(Unavailable, match="Date"):
        lake.server_time()
