"""The sandbox's HTTP API, called with the real `lakefs-sdk`: the response of each operation, and what it refuses."""

from __future__ import annotations

import hashlib
import threading
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lakefs_sdk import ApiException, Configuration, models
from lakefs_sdk.client import LakeFSClient

from spark_resources.lakefs_sandbox import Sandbox

REPOSITORY = "lake"


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox") as running:
        running.create(REPOSITORY)
        yield running


def client(sandbox: Sandbox, *, secret: str | None = None) -> Any:
    return LakeFSClient(
        Configuration(
            host=f"{sandbox.endpoint_url}/api/v1",
            username=sandbox.access_key_id,
            password=sandbox.secret_access_key if secret is None else secret,
        )
    )


@pytest.fixture
def api(sandbox: Sandbox) -> Any:
    return client(sandbox)


def upload(api: Any, tmp_path: Path, path: str, data: bytes, *, branch: str = "main") -> Any:
    source = tmp_path / hashlib.sha256(data).hexdigest()
    source.write_bytes(data)
    return api.objects_api.upload_object(REPOSITORY, branch, path, content=str(source))


def commit(api: Any, message: str = "a commit", *, branch: str = "main", **fields: Any) -> Any:
    return api.commits_api.commit(REPOSITORY, branch, models.CommitCreation(message=message, **fields))


def refused(status: int, message: str = "") -> Any:
    """Expect an API error with this status, whose body is a message with these words."""
    return pytest.raises(ApiException, check=lambda e: e.status == status and message in str(e.body))


def raw(
    sandbox: Sandbox, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    login = b64encode(f"{sandbox.access_key_id}:{sandbox.secret_access_key}".encode()).decode()
    request = urllib.request.Request(
        f"{sandbox.endpoint_url}/api/v1{path}",
        data=body,
        method=method,
        headers={"Authorization": f"Basic {login}"}
        | {name.replace("_", "-"): value for name, value in headers.items()},
    )
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, response.read(), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), dict(error.headers)


# --- the server and its repositories ----------------------------------------------------------------------------------


def test_the_configuration_reports_the_local_block_store(api: Any) -> None:
    """The version is the sandbox's, and the response of the health check is empty."""
    assert api.config_api.get_config().storage_config.blockstore_type == "local"
    assert api.internal_api.get_lake_fs_version().version.startswith("sandbox-")
    assert api.health_check_api.health_check() is None


def test_wrong_and_missing_credentials_are_refused(sandbox: Sandbox) -> None:
    """Every call except the health check answers 401 with a message."""
    stranger = client(sandbox, secret="guessed")
    with refused(401, "error authenticating request"):
        stranger.repositories_api.get_repository(REPOSITORY)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{sandbox.endpoint_url}/api/v1/repositories")
    with urllib.request.urlopen(f"{sandbox.endpoint_url}/api/v1/healthcheck") as response:
        assert response.status == 204


def test_a_new_repository_is_listed_until_it_is_deleted(sandbox: Sandbox, api: Any) -> None:
    """The namespace has the file that claims it for the repository."""
    created = api.repositories_api.create_repository(
        models.RepositoryCreation(name="other", storage_namespace="local://deep/other", default_branch="trunk")
    )
    assert (created.id, created.storage_namespace, created.default_branch) == ("other", "local://deep/other", "trunk")
    assert [repository.id for repository in api.repositories_api.list_repositories().results] == [REPOSITORY, "other"]
    assert (sandbox.local_path / "deep/other/_lakefs/dummy").is_file()
    api.repositories_api.delete_repository("other")
    with refused(404, "repository not found"):
        api.repositories_api.get_repository("other")


@pytest.mark.parametrize(
    ("name", "namespace", "status", "message"),
    [
        (REPOSITORY, "local://elsewhere", 409, "not unique"),
        ("second", f"local://{REPOSITORY}", 400, "already in use"),
        ("second", "s3://bucket/second", 400, "must match"),
        ("second", "local://../outside", 400, "traversal"),
        ("Second", "local://second", 400, "invalid value"),
    ],
)
def test_a_repository_with_an_invalid_name_or_namespace_is_not_created(
    sandbox: Sandbox, name: str, namespace: str, status: int, message: str
) -> None:
    """A name in use gets a 409. An invalid name, a namespace in use, and a namespace of another store get a 400."""
    body = f'{{"name": "{name}", "storage_namespace": "{namespace}"}}'.encode()
    answered, response, _ = raw(sandbox, "POST", "/repositories", body)
    assert (answered, message in response.decode()) == (status, True), response


def test_a_read_only_repository_refuses_every_write(sandbox: Sandbox, api: Any, tmp_path: Path) -> None:
    """Uploads, commits, new branches and all prepare calls get a 403."""
    api.repositories_api.create_repository(
        models.RepositoryCreation(name=REPOSITORY + "-ro", storage_namespace="local://ro", read_only=True)
    )
    for method, path, body in (
        ("POST", "/branches/main/objects?path=a", b"x"),
        ("POST", "/branches/main/commits", b'{"message": "m"}'),
        ("POST", "/branches", b'{"name": "dev", "source": "main"}'),
        ("POST", "/gc/prepare_commits", b""),
        ("POST", "/gc/prepare_commits/async", b""),
        ("POST", "/gc/prepare_uncommited", b"{}"),
    ):
        status, message, _ = raw(sandbox, method, f"/repositories/{REPOSITORY}-ro{path}", body)
        assert (status, message) == (403, b'{"message":"read-only repository"}'), path


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nowhere"),
        ("PUT", f"/repositories/{REPOSITORY}/refs/restore"),
        ("PATCH", "/repositories"),
    ],
)
def test_an_unknown_operation_gets_a_404_with_the_message_of_lakefs(sandbox: Sandbox, method: str, path: str) -> None:
    """The response is JSON, not a web page."""
    status, message, _ = raw(sandbox, method, path, b"{}" if method != "GET" else None)
    assert (status, message) == (404, b'{"message":"invalid API endpoint"}')


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"message": 1}', b"{}", b'{"message": "m", "date": -1}', b"\xff"])
def test_a_request_with_an_invalid_body_gets_a_400_and_changes_nothing(sandbox: Sandbox, body: bytes) -> None:
    """The body isn't JSON, or it has a field that is missing or of the wrong type."""
    lake = sandbox.repository(REPOSITORY)
    lake.put("main", "a", b"1")
    head = lake.branch("main").commit_id
    status, message, _ = raw(sandbox, "POST", f"/repositories/{REPOSITORY}/branches/main/commits", body)
    assert (status, b"request body has an error" in message) == (400, True), message
    assert lake.branch("main").commit_id == head


# --- branches and tags ------------------------------------------------------------------------------------------------


def test_pages_list_every_branch_once_and_in_order(api: Any) -> None:
    """A prefix selects branches. Hidden branches are listed only on request."""
    for name, hidden in (("dev-1", False), ("dev-2", True), ("dev-3", False), ("stage", False)):
        api.branches_api.create_branch(REPOSITORY, models.BranchCreation(name=name, source="main", hidden=hidden))
    names, after = [], ""
    while True:
        page = api.branches_api.list_branches(REPOSITORY, amount=2, after=after, show_hidden=True)
        names += [branch.id for branch in page.results]
        if not page.pagination.has_more:
            break
        after = page.pagination.next_offset
    assert names == ["dev-1", "dev-2", "dev-3", "main", "stage"]
    selected = api.branches_api.list_branches(REPOSITORY, prefix="dev")
    assert [branch.id for branch in selected.results] == ["dev-1", "dev-3"]


def test_a_new_branch_or_tag_points_to_the_commit_of_its_source(api: Any, tmp_path: Path) -> None:
    """The branch and the tag stay at that commit. A deleted branch or tag gets a 404."""
    upload(api, tmp_path, "a", b"1")
    first = commit(api)
    assert api.branches_api.create_branch(REPOSITORY, models.BranchCreation(name="dev", source="main")) == first.id
    tag = api.tags_api.create_tag(REPOSITORY, models.TagCreation(id="v1", ref="main"))
    upload(api, tmp_path, "a", b"2")
    second = commit(api)
    assert (tag.commit_id, api.tags_api.get_tag(REPOSITORY, "v1").commit_id) == (first.id, first.id)
    assert api.branches_api.get_branch(REPOSITORY, "dev").commit_id == first.id
    assert api.branches_api.get_branch(REPOSITORY, "main").commit_id == second.id
    assert [tag.id for tag in api.tags_api.list_tags(REPOSITORY).results] == ["v1"]
    api.branches_api.delete_branch(REPOSITORY, "dev")
    api.tags_api.delete_tag(REPOSITORY, "v1")
    with refused(404, "branch not found"):
        api.branches_api.get_branch(REPOSITORY, "dev")
    with refused(404, "tag not found"):
        api.tags_api.get_tag(REPOSITORY, "v1")


def test_invalid_operations_on_branches_and_tags_are_refused(api: Any) -> None:
    """A name in use gets a 409, an invalid name a 400, an unknown source a 404, and deleting the default branch a
    403."""
    branch, tag = models.BranchCreation, models.TagCreation
    api.tags_api.create_tag(REPOSITORY, tag(id="v1", ref="main"))
    with refused(409, "branch already exists"):
        api.branches_api.create_branch(REPOSITORY, branch(name="main", source="main"))
    with refused(409, "conflict found"):
        api.branches_api.create_branch(REPOSITORY, branch(name="v1", source="main"))
    with refused(400, "branch id"):
        api.branches_api.create_branch(REPOSITORY, branch(name="-x", source="main"))
    with refused(404, "source reference 'gone'"):
        api.branches_api.create_branch(REPOSITORY, branch(name="dev", source="gone"))
    with refused(409, "tag already exists"):
        api.tags_api.create_tag(REPOSITORY, tag(id="v1", ref="main"))
    with refused(403, "default branch"):
        api.branches_api.delete_branch(REPOSITORY, "main")


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["a", "a b/c+d%2F.txt", "naïve/ключ", "//x/", "q?&=#.bin"])
@pytest.mark.parametrize(
    "data", [b"", b"\r\n--x\r\n\r\n\x00\xff", bytes(range(256)) * 300], ids=["none", "odd", "large"]
)
def test_an_upload_is_served_byte_for_byte_under_its_path(
    sandbox: Sandbox, api: Any, tmp_path: Path, path: str, data: bytes
) -> None:
    """The object's file lies at the address that its stat has."""
    uploaded = upload(api, tmp_path, path, data)
    assert bytes(api.objects_api.get_object(REPOSITORY, "main", path)) == data
    stat = api.objects_api.stat_object(REPOSITORY, "main", path)
    assert (stat.path, stat.size_bytes, stat.checksum) == (path, len(data), hashlib.md5(data).hexdigest())
    assert stat.physical_address == uploaded.physical_address
    assert stat.physical_address.startswith(f"local://{sandbox.local_path}/{REPOSITORY}/data/")
    assert Path(stat.physical_address.removeprefix("local://")).read_bytes() == data


def test_a_body_that_is_not_a_form_is_stored_as_the_object(sandbox: Sandbox, api: Any) -> None:
    """The object's content type and metadata are stored."""
    status, _, _ = raw(
        sandbox, "POST", f"/repositories/{REPOSITORY}/branches/main/objects?path=a%2Fb", b"--raw\r\n",
        Content_Type="text/csv", X_Lakefs_Meta_Team="ml",
    )  # fmt: skip
    assert status == 201
    stat = api.objects_api.stat_object(REPOSITORY, "main", "a/b")
    assert (stat.content_type, stat.metadata) == ("text/csv", {"team": "ml"})
    assert bytes(api.objects_api.get_object(REPOSITORY, "main", "a/b")) == b"--raw\r\n"


def test_a_range_of_bytes_is_served(sandbox: Sandbox, api: Any, tmp_path: Path) -> None:
    """The response is a 206 with the position of the range. A range outside the object gets a 416."""
    upload(api, tmp_path, "a", b"0123456789")
    path = f"/repositories/{REPOSITORY}/refs/main/objects?path=a"
    for byte_range, expected in (
        ("bytes=2-4", b"234"),
        ("bytes=7-", b"789"),
        ("bytes=-3", b"789"),
        ("bytes=8-99", b"89"),
    ):
        status, data, headers = raw(sandbox, "GET", path, Range=byte_range)
        assert (status, data) == (206, expected), byte_range
        assert headers["content-range"].endswith("/10")
    assert raw(sandbox, "GET", path, Range="bytes=10-12")[0] == 416


def test_an_object_whose_file_is_missing_is_distinguished_from_a_missing_path(api: Any, tmp_path: Path) -> None:
    """Reading the object gets a 410, but stat and head get a 200. A path that never existed gets a 404."""
    uploaded = upload(api, tmp_path, "a", b"1")
    Path(uploaded.physical_address.removeprefix("local://")).unlink()
    with refused(410, "No data"):
        api.objects_api.get_object(REPOSITORY, "main", "a")
    assert api.objects_api.stat_object(REPOSITORY, "main", "a").physical_address == uploaded.physical_address
    assert api.objects_api.head_object_with_http_info(REPOSITORY, "main", "a").status_code == 200
    for ask in (api.objects_api.get_object, api.objects_api.stat_object, api.objects_api.head_object):
        with refused(404):
            ask(REPOSITORY, "main", "b")


def test_an_upload_to_a_missing_branch_or_to_a_path_that_must_be_new_is_refused(api: Any, tmp_path: Path) -> None:
    """A missing branch or repository gets a 404, and a path that must not exist, but does, a 412."""
    with refused(404, "branch not found"):
        upload(api, tmp_path, "a", b"1", branch="gone")
    upload(api, tmp_path, "a", b"1")
    source = tmp_path / "again"
    source.write_bytes(b"2")
    with refused(412, "path already exists"):
        api.objects_api.upload_object(REPOSITORY, "main", "a", if_none_match="*", content=str(source))
    with refused(404, "repository not found"):
        api.objects_api.stat_object("gone", "main", "a")


def test_a_deleted_path_is_not_served(api: Any, tmp_path: Path) -> None:
    """Committed and staged paths are hidden on that branch at once; deleting a path that doesn't exist succeeds."""
    for path in ("a", "b", "c", "d"):
        upload(api, tmp_path, path, path.encode())
    commit(api)
    upload(api, tmp_path, "e", b"staged only")
    api.objects_api.delete_object(REPOSITORY, "main", "a")
    errors = api.objects_api.delete_objects(REPOSITORY, "main", models.PathList(paths=["b", "e", "never"])).errors
    assert errors == []
    assert [entry.path for entry in api.objects_api.list_objects(REPOSITORY, "main").results] == ["c", "d"]
    assert [entry.path for entry in api.objects_api.list_objects(REPOSITORY, "main@").results] == ["a", "b", "c", "d"]
    with refused(404):
        api.objects_api.get_object(REPOSITORY, "main", "e")


def listed(api: Any, ref: str = "main", **options: Any) -> list[str]:
    """Every path of a listing, page by page."""
    paths: list[str] = []
    after = ""
    while True:
        page = api.objects_api.list_objects(REPOSITORY, ref, after=after, **options)
        paths += [entry.path for entry in page.results]
        if not page.pagination.has_more:
            return paths
        after = page.pagination.next_offset


@pytest.mark.parametrize("amount", [1, 2, 3, 100])
def test_a_listing_has_every_path_once_for_any_page_size(api: Any, tmp_path: Path, amount: int) -> None:
    """The listing shows staged over committed data, in byte order, with and without a delimiter."""
    for path in ("a/1", "a/2", "a-b", "b", "c/d/e", "é"):
        upload(api, tmp_path, path, path.encode())
    commit(api)
    for path in ("0", "a/1", "a/3", "c/f", "zz/1"):
        upload(api, tmp_path, path, b"new")
    api.objects_api.delete_object(REPOSITORY, "main", "a/2")
    assert listed(api, amount=amount) == ["0", "a-b", "a/1", "a/3", "b", "c/d/e", "c/f", "zz/1", "é"]
    assert listed(api, amount=amount, delimiter="/") == ["0", "a-b", "a/", "b", "c/", "zz/", "é"]
    assert listed(api, amount=amount, prefix="c/", delimiter="/") == ["c/d/", "c/f"]
    assert listed(api, amount=amount, prefix="a") == ["a-b", "a/1", "a/3"]
    assert listed(api, "main@", amount=amount, prefix="a/") == ["a/1", "a/2"]


def test_concurrent_uploads_are_all_served(api: Any, sandbox: Sandbox) -> None:
    """Eight threads upload forty objects, with commits in between."""
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            for number in range(5):
                path = urllib.parse.quote(f"w{worker}/{number}", safe="")
                target = f"/repositories/{REPOSITORY}/branches/main/objects?path={path}"
                assert raw(sandbox, "POST", target, f"{worker}-{number}".encode())[0] == 201
                if number == 2:
                    body = b'{"message": "between", "allow_empty": true}'
                    assert raw(sandbox, "POST", f"/repositories/{REPOSITORY}/branches/main/commits", body)[0] == 201
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    commit(api, allow_empty=True)
    page = api.objects_api.list_objects(REPOSITORY, "main@").results
    assert {entry.path for entry in page} == {f"w{worker}/{number}" for worker in range(8) for number in range(5)}
    assert len({entry.physical_address for entry in page}) == 40
    assert all(
        Path(entry.physical_address.removeprefix("local://")).read_text() == entry.path[1:].replace("/", "-")
        for entry in page
    )
