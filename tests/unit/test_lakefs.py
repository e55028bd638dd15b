"""What the client makes of a server's answers, against a real HTTP server that is scripted by each test."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from starlette.responses import Response

from spark_resources.errors import DamagedData, Forbidden, Interrupted, LakegcError, NotThere, Unavailable, WrongUsage
from spark_resources.lakefs import Change, LakeFS, RefsDump, Served, UncommittedLists
from spark_resources.lakefs.asking import LARGEST_PAGE
from spark_resources.lakefs.diffs import whole_diff
from spark_resources.model import Commit, Rules
from tests.recordings.replay import serving
from tests.scripted import NO_CALL, NO_RULES, REPO, REPOSITORY, Script, Scripted, page, ref, said, settings, stats


@pytest.fixture
def script() -> Script:
    return Script().on("GET lake", said(200, REPOSITORY))


@pytest.fixture
def lake(script: Script) -> Iterator[LakeFS]:
    with serving(script) as endpoint:
        yield LakeFS(settings(endpoint))


# --- pages ----------------------------------------------------------------------------------------------------------


def test_a_branch_on_a_later_page_is_lost(script: Script, lake: LakeFS) -> None:
    """Branches of all pages are read, each page asked for from where the last one ended, with hidden branches."""
    script.on("GET lake/branches", page([ref("a", "1"), ref("b", "2")], "b"), page([ref("c", "3")]))

    assert lake.branches("lake") == {"a": "1", "b": "2", "c": "3"}
    asked = [query for _, query, _ in script.asked]
    assert [query.get("after") for query in asked] == ["", "b"]
    assert {query["show_hidden"].lower() for query in asked} == {"true"}


def test_an_empty_repository_list_is_taken_for_an_error(script: Script, lake: LakeFS) -> None:
    """A page that announces no result and holds none is an empty listing."""
    script.on("GET lake/tags", page([]))

    assert lake.tags("lake") == {}


@pytest.mark.parametrize(
    "broken",
    [
        said(200, {"results": [ref("a")]}),
        said(200, {"pagination": {"has_more": False, "next_offset": "", "results": 1, "max_per_page": 1000}}),
        said(200, {"pagination": {"next_offset": "", "results": 1, "max_per_page": 1000}, "results": [ref("a")]}),
        said(200, {"pagination": {"has_more": True, "results": 1, "max_per_page": 1000}, "results": [ref("a")]}),
        said(200, {"pagination": {"has_more": False, "next_offset": "", "results": 2}, "results": [ref("a")]}),
        said(200, {"pagination": {"has_more": False, "next_offset": "", "results": 1}, "results": [{"id": "a"}]}),
        said(200, {"pagination": {"has_more": False, "next_offset": "", "results": 1}, "results": [ref("a", "")]}),
        said(200, {"pagination": {"has_more": False, "next_offset": "", "results": 0}, "results": None}),
        said(200, []),
        said(200, None),
        Response(b"", media_type="application/json"),
        Response(b'{"results": [', media_type="application/json"),
    ],
)
def test_a_malformed_page_is_read_as_empty_or_last(script: Script, lake: LakeFS, broken: Response) -> None:
    """A page that lacks what the API promises, or holds fewer results than it announces, raises."""
    script.on("GET lake/branches", broken)

    with pytest.raises(DamagedData) as raised:
        lake.branches("lake")
    assert raised.value.invariant == 3


def test_paging_goes_round_in_circles(script: Script, lake: LakeFS) -> None:
    """An offset that comes a second time raises instead of ending or repeating the listing."""
    script.on("GET lake/branches", page([ref("a")], "a"), page([ref("b")], "b"), page([ref("a")], "a"))

    with pytest.raises(DamagedData, match="twice"):
        lake.branches("lake")


def test_a_page_says_go_on_from_where_you_are(script: Script, lake: LakeFS) -> None:
    """A next offset equal to the one that was asked for raises."""
    script.on("GET lake/tags", page([ref("a")], "a"), page([ref("b")], "a"))

    with pytest.raises(DamagedData, match="from where on"):
        lake.tags("lake")


def test_a_lost_page_ends_the_listing(script: Script, lake: LakeFS) -> None:
    """A page that can't be had raises, however many came before it."""
    script.on("GET lake/branches", page([ref("a")], "a"), said(500, {"message": "kv store"}))

    with pytest.raises(Unavailable, match="kv store"):
        lake.branches("lake")


def test_repositories_and_log_stop_after_a_page(script: Script, lake: LakeFS) -> None:
    """Repositories and commits are read over all pages."""
    script.on("GET /repositories", page([REPOSITORY], "lake"), page([REPOSITORY | {"id": "other"}]))
    script.on("GET lake/refs/main/commits", page([commit("2", ["1"])], "2"), page([commit("1", [])]))

    assert [each.id for each in lake.repositories()] == ["lake", "other"]
    assert [(each.id, each.parents) for each in lake.log("lake", "main")] == [("2", ("1",)), ("1", ())]


# --- what answers say -----------------------------------------------------------------------------------------------


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


def test_a_commit_loses_a_field(script: Script, lake: LakeFS) -> None:
    """Every field of a commit arrives, its date as a time in UTC."""
    script.on("GET lake/commits/c1", said(200, commit("c1", ["p1", "p2"], version=0)))

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
def test_a_commit_with_a_strange_field_is_used(script: Script, lake: LakeFS, changed: dict[str, Any]) -> None:
    """A commit with a field missing or of another type raises; so does a merge that doesn't tell its main parent."""
    script.on("GET lake/commits/c1", said(200, commit("c1", []) | changed))

    with pytest.raises(DamagedData):
        lake.commit("lake", "c1")


def test_a_repository_is_misread(script: Script, lake: LakeFS) -> None:
    """A repository tells its namespace, default branch and creation date."""
    found = lake.repository("lake")

    assert (found.id, found.storage_namespace, found.default_branch) == ("lake", "s3://bucket/lake", "main")
    assert (found.read_only, found.storage_id) == (False, "")
    assert found.created == datetime(2026, 11, 21, 5, 41, 52, tzinfo=UTC)
    assert found.namespace().path == "lake"


def test_the_wrong_block_store_is_taken(script: Script, lake: LakeFS) -> None:
    """With several block stores the storage id selects one; an unknown id raises."""
    several = [{"blockstore_type": "s3", "blockstore_id": "a"}, {"blockstore_type": "gs", "blockstore_id": "b"}]
    script.on(
        "GET /config",
        said(200, {"storage_config_list": several, "version_config": {"version": "1.2.3"}}),
    )

    server = lake.config()

    assert (server.blockstore("b"), server.version) == ("gs", "1.2.3")
    with pytest.raises(WrongUsage, match="'c'"):
        server.blockstore("c")


def test_one_block_store_has_no_id(script: Script, lake: LakeFS) -> None:
    """With one block store, the empty storage id selects it."""
    script.on("GET /config", said(200, {"storage_config": {"blockstore_type": "local"}, "storage_config_list": []}))

    assert lake.config().blockstore("") == "local"


def test_an_older_server_has_no_configuration(script: Script, lake: LakeFS) -> None:
    """A server without the one call for its configuration is asked by the two older ones."""
    script.on("GET /config/storage", said(200, {"blockstore_type": "s3"}))
    script.on("GET /config/version", said(200, {"version": "0.90.0"}))

    server = lake.config()

    assert (server.blockstore(""), server.version) == ("s3", "0.90.0")


# --- rules ----------------------------------------------------------------------------------------------------------


def test_rules_without_branches_break(script: Script, lake: LakeFS) -> None:
    """`branches: null` is what the server writes for no branch of its own."""
    script.on("GET lake/settings/gc_rules", said(200, {"default_retention_days": 5, "branches": None}))

    assert lake.rules("lake") == Rules(5, {})


def test_rules_of_branches_are_mixed_up(script: Script, lake: LakeFS) -> None:
    """Each branch keeps its own days."""
    branches = [{"branch_id": "main", "retention_days": 21}, {"branch_id": "dev", "retention_days": 0}]
    script.on("GET lake/settings/gc_rules", said(200, {"default_retention_days": 5, "branches": branches}))

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
def test_malformed_rules_are_guessed(script: Script, lake: LakeFS, broken: Any) -> None:
    """Rules that lack a number, hold a negative one, or name a branch twice raise."""
    script.on("GET lake/settings/gc_rules", said(200, broken))

    with pytest.raises(DamagedData):
        lake.rules("lake")


def test_no_rules_and_no_repository_look_alike(script: Script, lake: LakeFS) -> None:
    """A 404 means no rules only where the repository itself is there."""
    script.on("GET lake/settings/gc_rules", said(404, {"message": "not found"}))
    assert lake.rules("lake") is None

    script.on("GET lake", said(404, {"message": "repository not found"}))
    with pytest.raises(NotThere, match="repository"):
        lake.rules("lake")


@pytest.mark.parametrize("answer", [said(404, NO_CALL), said(404, {}), Response(b"nope", 404, media_type="text/plain")])
def test_a_404_of_something_else_means_no_rules(script: Script, lake: LakeFS, answer: Response) -> None:
    """A 404 that isn't lakeFS's word about the rules is no answer to the question."""
    script.on("GET lake/settings/gc_rules", answer)

    with pytest.raises(Unavailable) as raised:
        lake.rules("lake")
    assert not isinstance(raised.value, NotThere)


# --- the list of retained commits -----------------------------------------------------------------------------------

LOCATION = "s3://bucket/lake/_lakefs/retention/gc/commits/run_id=r/commits.csv"
PREPARED = {"run_id": "r", "gc_commits_location": LOCATION, "gc_addresses_location": "s3://bucket/lake/x/"}
ASYNC, STATUS, SYNC = (
    "POST lake/gc/prepare_commits/async",
    "GET lake/gc/prepare_commits/status",
    "POST lake/gc/prepare_commits",
)


def test_a_running_task_is_taken_for_done(script: Script, lake: LakeFS) -> None:
    """The task is polled until the server calls it completed; progress is told while it runs."""
    running = said(200, {"task_id": "t", "completed": False})
    script.on(ASYNC, said(202, {"id": "t"}))
    script.on(STATUS, running, running, said(200, {"task_id": "t", "completed": True, "result": PREPARED}))
    waited: list[float] = []

    assert lake.prepare_commits("lake", progress=waited.append) == LOCATION
    assert waited == [pytest.approx(0.001), pytest.approx(0.002)]
    assert script.asked[-1][1] == {"id": "t"}


def test_a_task_is_waited_for_without_end(script: Script, lake: LakeFS) -> None:
    """A task that is not done in time raises."""
    script.on(ASYNC, said(202, {"id": "t"})).on(STATUS, said(200, {"task_id": "t", "completed": False}))

    with pytest.raises(Unavailable, match="not done"):
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
def test_a_task_without_result_means_no_rules(script: Script, lake: LakeFS, status: Any) -> None:
    """A completed task that names neither location nor error raises."""
    script.on(ASYNC, said(202, {"id": "t"})).on(STATUS, said(200, status))

    with pytest.raises(DamagedData):
        lake.prepare_commits("lake")


def test_a_failed_task_means_no_rules(script: Script, lake: LakeFS) -> None:
    """An error of the task raises with the server's words."""
    script.on(ASYNC, said(202, {"id": "t"}))
    script.on(STATUS, said(200, {"task_id": "t", "completed": True, "error": {"message": "disk full"}}))

    with pytest.raises(Unavailable, match="disk full"):
        lake.prepare_commits("lake")


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        ({ASYNC: said(404, NO_RULES)}, [ASYNC]),
        (
            {ASYNC: said(202, {"id": "t"}), STATUS: said(200, {"completed": True, "error": NO_RULES})},
            [ASYNC, STATUS],
        ),
        ({ASYNC: said(404, NO_CALL), SYNC: said(404, NO_RULES)}, [ASYNC, SYNC]),
    ],
    ids=["at once", "by the task", "by the older call"],
)
def test_no_rules_are_an_error(script: Script, lake: LakeFS, answers: dict[str, Response], calls: list[str]) -> None:
    """A repository without rules gives None in each of the three forms, and is no reason to ask in another form."""
    for call, answer in answers.items():
        script.on(call, answer)

    assert lake.prepare_commits("lake") is None
    assert script.calls() == calls


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_older_server_can_not_list_commits(script: Script, lake: LakeFS, status: int) -> None:
    """Where the server hasn't got the task form, the synchronous call is used."""
    script.on(ASYNC, said(status, NO_CALL)).on(SYNC, said(201, PREPARED))

    assert lake.prepare_commits("lake") == LOCATION
    assert script.calls() == [ASYNC, SYNC]


@pytest.mark.parametrize(
    ("status", "error"), [(400, Unavailable), (401, Forbidden), (403, Forbidden), (500, Unavailable)]
)
def test_an_error_falls_back_to_the_older_call(
    script: Script, lake: LakeFS, status: int, error: type[LakegcError]
) -> None:
    """Only a call that isn't there is replaced by the older one; an error of it raises."""
    script.on(ASYNC, said(status, {"message": "no"})).on(SYNC, said(201, PREPARED))

    with pytest.raises(error):
        lake.prepare_commits("lake")
    assert SYNC not in script.calls()


def test_a_missing_repository_means_no_rules(script: Script, lake: LakeFS) -> None:
    """A repository that isn't there raises, whatever form of the call says so."""
    for call in (ASYNC, SYNC):
        script.on(call, said(404, {"message": "repository not found"}))

    with pytest.raises(NotThere):
        lake.prepare_commits("lake")


# --- the lists of staged objects ------------------------------------------------------------------------------------

UNCOMMITTED = "POST lake/gc/prepare_uncommited"
STAGED = "s3://bucket/lake/_lakefs/retention/gc/uncommitted/r/uncommitted/"


def staged(location: str = STAGED, token: str | None = None, run_id: str = "r") -> Response:
    body = {"run_id": run_id, "gc_uncommitted_location": location}
    return said(201, body if token is None else body | {"continuation_token": token})


def test_a_page_of_staged_objects_is_lost(script: Script, lake: LakeFS) -> None:
    """Every page is asked for with the token and run of the last; every page with a location announces one file."""
    script.on(UNCOMMITTED, staged(token="t1"), staged("", token="t2"), staged(token=""))

    assert lake.prepare_uncommitted("lake") == UncommittedLists("r", {STAGED: 2}, pages=3)
    bodies = [body or {} for _, _, body in script.asked]
    assert bodies == [{}, {"continuation_token": "t1", "run_id": "r"}, {"continuation_token": "t2", "run_id": "r"}]


def test_nothing_staged_is_an_error(script: Script, lake: LakeFS) -> None:
    """A page with an empty location is the server's word that nothing is staged; readers compare it (formats §2)."""
    script.on(UNCOMMITTED, staged(""))

    lists = lake.prepare_uncommitted("lake")

    assert (lists.locations, lists.files, lists.pages) == ((), 0, 1)


@pytest.mark.parametrize(
    "pages",
    [
        [staged(token="t"), staged(token="t")],
        [staged(token="t"), staged(token="u"), staged(token="t")],
        [staged(token="t"), staged(run_id="other")],
        [said(201, {"run_id": "r"})],
        [said(201, {"gc_uncommitted_location": STAGED})],
        [said(201, {"run_id": "r", "gc_uncommitted_location": STAGED, "continuation_token": 7})],
    ],
    ids=["token twice", "tokens in a circle", "another run", "no location", "no run", "strange token"],
)
def test_strange_pages_of_staged_objects_are_believed(script: Script, lake: LakeFS, pages: list[Scripted]) -> None:
    """A repeated token, a change of run or a page without its fields raises."""
    script.on(UNCOMMITTED, *pages)

    with pytest.raises(DamagedData) as raised:
        lake.prepare_uncommitted("lake")
    assert raised.value.invariant == 3


def test_a_failed_page_of_staged_objects_ends_the_list(script: Script, lake: LakeFS) -> None:
    """A later page that can't be had raises."""
    script.on(UNCOMMITTED, staged(token="t"), said(400, {"message": "invalid continuation token"}))

    with pytest.raises(Unavailable, match="invalid continuation token"):
        lake.prepare_uncommitted("lake")


def test_a_server_that_is_too_old_has_nothing_staged(script: Script, lake: LakeFS) -> None:
    """A server without the call raises and says which version has it; a missing repository is told apart."""
    script.on(UNCOMMITTED, said(404, NO_CALL))
    with pytest.raises(Unavailable, match=r"0\.87"):
        lake.prepare_uncommitted("lake")

    script.on("GET lake", said(404, {"message": "repository not found"}))
    with pytest.raises(NotThere):
        lake.prepare_uncommitted("lake")


def test_a_branch_that_is_deleted_during_the_list_is_told_from_an_old_server(script: Script, lake: LakeFS) -> None:
    """The server gives its list up then, with 404: it has to be asked again, and can be."""
    script.on(UNCOMMITTED, staged(token="t"), said(404, {"message": "branch not found"}))

    with pytest.raises(Interrupted):
        lake.prepare_uncommitted("lake")


def test_a_read_only_repository_is_called_a_missing_right(script: Script, lake: LakeFS) -> None:
    """The server's refusal to prepare lists in a read-only repository is said as such."""
    script.on(UNCOMMITTED, said(403, {"message": "read-only repository"}))

    with pytest.raises(Forbidden, match="because the repository is read-only"):
        lake.prepare_uncommitted("lake")


# --- the dump of references -----------------------------------------------------------------------------------------

DUMP, SUBMIT, DUMP_STATUS = "PUT lake/refs/dump", "POST lake/dump", "GET lake/dump"
DUMPED = {"branches_meta_range_id": "b", "commits_meta_range_id": "c", "tags_meta_range_id": "t"}


def test_a_dump_mixes_its_tables_up(script: Script, lake: LakeFS) -> None:
    """Each table keeps its name."""
    script.on(DUMP, said(201, DUMPED))

    assert lake.dump_refs("lake") == RefsDump(branches="b", commits="c", tags="t")


def test_a_newer_server_only_dumps_in_the_background(script: Script, lake: LakeFS) -> None:
    """Where the direct call is gone, a dump is submitted and polled."""
    script.on(DUMP, said(404, NO_CALL)).on(SUBMIT, said(202, {"id": "t"}))
    script.on(DUMP_STATUS, said(200, {"id": "t", "done": False}), said(200, {"id": "t", "done": True, "refs": DUMPED}))

    assert lake.dump_refs("lake") == RefsDump(branches="b", commits="c", tags="t")
    assert script.asked[-1][1] == {"task_id": "t"}


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501])
def test_a_dump_that_is_not_given_stops_everything(script: Script, lake: LakeFS, status: int) -> None:
    """A dump that these credentials or this server don't give is None, if the repository can be read otherwise."""
    for call in (DUMP, SUBMIT):
        script.on(call, said(status, {"message": "no"}))

    assert lake.dump_refs("lake") is None


@pytest.mark.parametrize(
    ("answer", "error"),
    [(said(401, {"message": "who?"}), Forbidden), (said(404, {"message": "repository not found"}), NotThere)],
)
def test_wrong_credentials_are_taken_for_a_missing_dump(
    script: Script, lake: LakeFS, answer: Response, error: type[LakegcError]
) -> None:
    """Where nothing of the repository can be read, it is not the dump alone that is missing."""
    script.on(DUMP, answer).on(SUBMIT, answer).on("GET lake", answer)

    with pytest.raises(error):
        lake.dump_refs("lake")


@pytest.mark.parametrize("answer", [said(500, {"message": "kv"}), said(201, {"branches_meta_range_id": "b"})])
def test_a_failed_dump_is_taken_for_a_missing_one(script: Script, lake: LakeFS, answer: Response) -> None:
    """A dump that failed, or lacks a table, raises."""
    script.on(DUMP, answer)

    with pytest.raises((Unavailable, DamagedData)):
        lake.dump_refs("lake")


def test_a_dump_that_fails_in_the_background_is_none(script: Script, lake: LakeFS) -> None:
    """An error of the submitted dump raises with the server's words."""
    script.on(DUMP, said(405, NO_CALL)).on(SUBMIT, said(202, {"id": "t"}))
    script.on(DUMP_STATUS, said(200, {"id": "t", "done": True, "error": "no space"}))

    with pytest.raises(Unavailable, match="no space"):
        lake.dump_refs("lake")


# --- what branches serve --------------------------------------------------------------------------------------------

STAT = "GET lake/refs/main/objects/stat"
LS = "GET lake/refs/main/objects/ls"


@pytest.mark.parametrize("path", ["a", "we ird/obj %2F + é", "a//b", "dir/", "x&y=1#z?", "ä\n"])
def test_a_path_is_asked_for_in_another_spelling(script: Script, lake: LakeFS, path: str) -> None:
    """The server is asked for exactly the path, and answers what a reader gets."""
    script.on(STAT, said(200, stats(path)))

    expected = Served(path, f"s3://bucket/lake/data/s/{path}", 3, "c0ffee")
    assert lake.stat("lake", "main", path) == expected
    assert script.asked[0][1]["path"] == path
    assert script.asked[0][1]["presign"].lower() == "false"


def test_a_missing_branch_serves_nothing(script: Script, lake: LakeFS) -> None:
    """A 404 means that nothing is there only if the branch itself is."""
    script.on(STAT, said(404, {"message": "not found"})).on("GET lake/branches/main", said(200, ref("main")))
    assert lake.stat("lake", "main", "a") is None

    script.on("GET lake/branches/main", said(404, {"message": "not found"}))
    with pytest.raises(NotThere, match="branch 'main'"):
        lake.stat("lake", "main", "a")


@pytest.mark.parametrize(
    "answer",
    [
        said(404, NO_CALL),
        said(404, {}),
        Response(b"<html>gone</html>", 404, media_type="text/html"),
        said(403, {"message": "no"}),
        said(410, {"message": "expired"}),
        said(500, {"message": "kv"}),
        said(503, {"message": "slow down"}),
    ],
)
def test_an_unclear_answer_says_that_nothing_is_served(script: Script, lake: LakeFS, answer: Response) -> None:
    """Without lakeFS's own clear word that nothing is there, the question is not answered."""
    script.on(STAT, answer).on("GET lake/branches/main", said(200, ref("main")))

    with pytest.raises(Unavailable):
        lake.stat("lake", "main", "a")


@pytest.mark.parametrize(
    "changed", [{"size_bytes": None}, {"physical_address": ""}, {"checksum": None}, {"path": "b"}, {"size_bytes": "3"}]
)
def test_half_an_object_is_served(script: Script, lake: LakeFS, changed: dict[str, Any]) -> None:
    """An answer without size, address or checksum, or about another path, raises."""
    script.on(STAT, said(200, stats("a") | changed))

    with pytest.raises(DamagedData):
        lake.stat("lake", "main", "a")


def test_a_path_that_is_not_text_breaks_the_client(lake: LakeFS) -> None:
    """A path that can't be put into a request is an unanswered question, said in printable words."""
    with pytest.raises(Unavailable) as raised:
        lake.stat("lake", "main", "a\udcff")
    str(raised.value).encode()


def test_served_objects_are_lost_between_pages(script: Script, lake: LakeFS) -> None:
    """A page tells where the next one begins, and the last one that it is the last."""
    script.on(LS, page([stats("a"), stats("b")], "b"), page([stats("c")]))

    first = lake.list_objects("lake", "main", amount=2, prefix="x")
    last = lake.list_objects("lake", "main", after="b")

    assert ([each.path for each in first.objects], first.next_after) == (["a", "b"], "b")
    assert ([each.path for each in last.objects], last.next_after) == (["c"], None)
    queries = [query for _, query, _ in script.asked]
    assert [(query["after"], query["amount"], query["prefix"]) for query in queries] == [
        ("", "2", "x"),
        ("b", str(LARGEST_PAGE), ""),
    ]
    assert all("delimiter" not in query for query in queries)


@pytest.mark.parametrize("paths", [["b", "a"], ["a", "a"], ["0"]])
def test_a_listing_out_of_order_is_believed(script: Script, lake: LakeFS, paths: list[str]) -> None:
    """A page that isn't in path order, or starts before where it was asked for, raises."""
    script.on(LS, page([stats(path) for path in paths]))

    with pytest.raises(DamagedData, match="out of order"):
        lake.list_objects("lake", "main", after="5" if paths == ["0"] else "")


def test_uncommitted_changes_are_lost_between_pages(script: Script, lake: LakeFS) -> None:
    """Every change of every page arrives with its kind; a kind that lakegc doesn't know raises."""
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


def test_a_diff_that_ends_early_is_read_to_its_real_end(script: Script, lake: LakeFS) -> None:
    """The server swallows a failed read and ends its diff. Where the branch has more, the diff is asked once more."""
    script.on("GET lake/branches/main/diff", changes("a"), changes("b"), changes())
    script.on("GET lake/refs/main/objects/ls", page([stats(path="b")]), page([stats(path="committed")]))

    assert [change.path for change in whole_diff(lake, "lake", "main")] == ["a", "b"]
    assert [query["after"] for call, query, _ in script.asked if call.endswith("/diff")] == ["", "a", "b"]


def test_the_end_of_a_diff_is_believed_where_the_branch_has_nothing_behind(script: Script, lake: LakeFS) -> None:
    """One look behind the last change is enough."""
    script.on("GET lake/branches/main/diff", changes("a", "b"))
    script.on("GET lake/refs/main/objects/ls", page([]))

    assert [change.path for change in whole_diff(lake, "lake", "main")] == ["a", "b"]
    assert [query["after"] for _, query, _ in script.asked] == ["", "b"]


def test_a_diff_is_refused_where_the_server_can_t_read_behind_its_end(script: Script, lake: LakeFS) -> None:
    """A staging record that can't be read ends the diff without an error, and fails the listing of the branch."""
    script.on("GET lake/branches/main/diff", changes("a"))
    script.on("GET lake/refs/main/objects/ls", said(500, {"message": "staging"}))

    with pytest.raises(Unavailable, match=r"end behind 'a', and .* may not be all that is staged"):
        list(whole_diff(lake, "lake", "main"))


# --- the clock ------------------------------------------------------------------------------------------------------


def test_the_machine_s_clock_is_taken_for_the_server_s(script: Script, lake: LakeFS) -> None:
    """The server's time is the `Date` of its answer, also beside answers to other questions."""
    script.on("GET /config", said(200, {}))

    assert lake.server_time() == datetime(2026, 11, 21, 8, 50, tzinfo=UTC)

    script.on("GET lake/tags", page([]))
    script.answers["GET " + REPO + "/tags"][0].headers["Date"] = "Sat, 21 Nov 2026 09:00:00 GMT"  # type: ignore[union-attr]
    lake.tags("lake")
    assert lake.last_date == datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


@pytest.mark.parametrize("date", ["", "yesterday"])
def test_an_unreadable_clock_is_guessed(script: Script, lake: LakeFS, date: str) -> None:
    """An answer without a readable `Date` raises."""
    script.on("GET /config", said(200, {}, {"Date": date}))

    with pytest.raises(Unavailable, match="Date"):
        lake.server_time()
