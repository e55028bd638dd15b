"""The sandbox's operations on branches and commits, requested with the real `lakefs-sdk`: responses, statuses, and live
objects."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from lakefs_sdk import ApiException, Configuration, models
from lakefs_sdk.client import LakeFSClient

from spark_resources.lakefs_sandbox import Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.gc_api import dump_refs
from spark_resources.model import AddressType

THEN = datetime(2022, 3, 31, 12, tzinfo=UTC)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    with Sandbox(tmp_path / "sandbox") as running:
        running.create("lake")
        yield running


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    return sandbox.repository("lake")


@pytest.fixture
def api(sandbox: Sandbox) -> Any:
    login = {"username": sandbox.access_key_id, "password": sandbox.secret_access_key}
    return LakeFSClient(Configuration(host=f"{sandbox.endpoint_url}/api/v1", **login))


def refused(status: int, message: str = "") -> Any:
    return pytest.raises(ApiException, check=lambda e: e.status == status and message in str(e.body))


def committed(lake: SandboxRepository, branch: str, **values: bytes | None) -> str:
    """Commit these paths, deleting those with None, and return the id of the commit."""
    for path, data in values.items():
        if data is None:
            lake.delete(branch, [path])
        else:
            lake.put(branch, path, data)
    return lake.commit(branch, f"changes on {branch}").id


def served(lake: SandboxRepository, ref: str) -> dict[str, bytes]:
    page, _ = lake.listing(ref, amount=1000)
    return {e.path.decode(): lake.read(ref, e.path.decode())[1] for e in page if not isinstance(e, str)}


# --- reset ------------------------------------------------------------------------------------------------------------


def test_a_reset_restores_only_the_given_paths(api: Any, lake: SandboxRepository) -> None:
    """A reset restores one path, a prefix or all paths. Other changes stay."""
    committed(lake, "main", **{"a": b"1", "a/b": b"1", "c": b"1"})
    for path in ("a", "a/b", "a/new", "b"):
        lake.put("main", path, b"2")
    lake.delete("main", ["c"])
    reset = api.branches_api.reset_branch
    reset("lake", "main", models.ResetCreation(type="object", path="a"))
    reset("lake", "main", models.ResetCreation(type="object", path="never"))
    assert served(lake, "main") == {"a": b"1", "a/b": b"2", "a/new": b"2", "b": b"2"}
    reset("lake", "main", models.ResetCreation(type="common_prefix", path="a/"))
    assert served(lake, "main") == {"a": b"1", "a/b": b"1", "b": b"2"}
    reset("lake", "main", models.ResetCreation(type="object", path="c"))
    assert served(lake, "main")["c"] == b"1"
    reset("lake", "main", models.ResetCreation(type="reset"))
    assert served(lake, "main") == {"a": b"1", "a/b": b"1", "c": b"1"}
    with refused(404, "branch not found"):
        reset("lake", "gone", models.ResetCreation(type="reset"))


def test_resetting_a_path_with_identical_content_keeps_its_new_address(api: Any, lake: SandboxRepository) -> None:
    """The server sees no change to reset, so the new address is still served."""
    committed(lake, "main", a=b"1")
    again = lake.put("main", "a", b"1")
    api.branches_api.reset_branch("lake", "main", models.ResetCreation(type="object", path="a"))
    assert lake.stat("main", "a").address == again.address
    api.branches_api.reset_branch("lake", "main", models.ResetCreation(type="reset"))
    assert lake.stat("main", "a").address != again.address


def test_a_hard_reset_leaves_a_dangling_commit(api: Any, lake: SandboxRepository) -> None:
    """The branch then points to the other commit. The commit that it left is still dumped. A branch with staged changes
    gets a 400."""
    first = committed(lake, "main", a=b"1")
    second = committed(lake, "main", a=b"2")
    lake.put("main", "b", b"staged")
    with refused(400, "dirty branch"):
        api.experimental_api.hard_reset_branch("lake", "main", first)
    lake.reset("main")
    with refused(404):
        api.experimental_api.hard_reset_branch("lake", "main", "gone")
    api.experimental_api.hard_reset_branch("lake", "main", "main~1")
    assert api.branches_api.get_branch("lake", "main").commit_id == first
    assert second in {commit.id for commit in lake.commits()}
    assert dump_refs(lake)["commits_meta_range_id"]
    assert served(lake, "main") == {"a": b"1"}


# --- revert and cherry-pick -------------------------------------------------------------------------------------------


def test_a_revert_undoes_the_changes_of_one_commit(api: Any, lake: SandboxRepository) -> None:
    """The revert restores the previous addresses and keeps later changes. It is refused if it conflicts with later
    changes."""
    committed(lake, "main", a=b"1", b=b"1")
    before = lake.stat("main", "a").address
    undone = committed(lake, "main", a=b"2", c=b"2")
    committed(lake, "main", b=b"3")
    api.branches_api.revert_branch("lake", "main", models.RevertCreation(ref=undone, parent_number=0))
    revert = next(iter(lake.log("main")))
    assert (served(lake, "main"), lake.stat("main", "a").address) == ({"a": b"1", "b": b"3"}, before)
    assert (revert.message, dict(revert.metadata), len(revert.parents)) == (f"Revert {undone}", {}, 1)
    with refused(400, "no changes"):
        api.branches_api.revert_branch("lake", "main", models.RevertCreation(ref=undone, parent_number=0))
    changed = committed(lake, "main", b=b"4")
    committed(lake, "main", b=b"5")
    with refused(409, "conflict found"):
        api.branches_api.revert_branch("lake", "main", models.RevertCreation(ref=changed, parent_number=0))
    with refused(404):
        api.branches_api.revert_branch("lake", "main", models.RevertCreation(ref="gone", parent_number=0))


def test_a_merge_is_reverted_relative_to_the_given_parent(api: Any, lake: SandboxRepository) -> None:
    """Without the number of a parent, the revert gets a 409, and with a wrong number a 400."""
    committed(lake, "main", a=b"1")
    lake.create_branch("dev", "main")
    committed(lake, "dev", d=b"dev")
    committed(lake, "main", m=b"main")
    lake.merge("dev", "main")
    for number, status in ((0, 409), (3, 400)):
        with refused(status, "parent"):
            api.branches_api.revert_branch("lake", "main", models.RevertCreation(ref="main", parent_number=number))
    overrides = models.CommitOverrides(message="out again", metadata={"team": "ml"})
    creation = models.RevertCreation(ref="main", parent_number=1, commit_overrides=overrides)
    api.branches_api.revert_branch("lake", "main", creation)
    revert = next(iter(lake.log("main")))
    assert (revert.message, dict(revert.metadata)) == ("out again", {"team": "ml"})
    assert served(lake, "main") == {"a": b"1", "m": b"main"}


def test_a_cherry_pick_applies_the_changes_of_one_commit(api: Any, lake: SandboxRepository) -> None:
    """The new commit has the message of the picked commit and names it as its origin. For a merge, the number of a
    parent is required."""
    committed(lake, "main", a=b"1")
    lake.create_branch("dev", "main")
    committed(lake, "dev", other=b"dev")
    lake.put("dev", "d", b"dev")
    picked = lake.commit("dev", "wanted", metadata={"team": "ml"})
    pick = api.branches_api.cherry_pick
    result = pick("lake", "main", models.CherryPickCreation(ref=picked.id))
    assert served(lake, "main") == {"a": b"1", "d": b"dev"}
    assert (result.message, result.parents, result.id) == (
        "wanted", [lake.commit_of(result.id).parents[0]], lake.branch("main").commit_id,
    )  # fmt: skip
    assert result.metadata == {"team": "ml", "cherry-pick-origin": picked.id, "cherry-pick-committer": "admin"}
    merge = lake.merge("dev", "main", allow_empty=True)
    lake.create_branch("late", picked.id)
    with refused(400, "parent number"):
        pick("lake", "late", models.CherryPickCreation(ref=merge.id))
    lake.put("late", "dirty", b"")
    with refused(400, "dirty branch"):
        pick("lake", "late", models.CherryPickCreation(ref=picked.id))


# --- objects that are there already -----------------------------------------------------------------------------------


def test_a_copy_has_its_own_object_and_a_shallow_copy_shares_that_of_its_source(
    api: Any, lake: SandboxRepository
) -> None:
    """A shallow copy of another branch's object gets a 400."""
    source = lake.put("main", "a", b"1", metadata={"team": "ml"})
    copy = api.objects_api.copy_object
    whole = copy("lake", "main", "b", models.ObjectCopyCreation(src_path="a"))
    shallow = copy("lake", "main", "c", models.ObjectCopyCreation(src_path="a", src_ref="main", shallow=True))
    copy("lake", "main", "d", models.ObjectCopyCreation(src_path="c", shallow=True))
    address = lake.physical_address(source)
    assert (whole.path, whole.metadata, whole.checksum) == ("b", {"team": "ml"}, hashlib.md5(b"1").hexdigest())
    assert (whole.physical_address == address, shallow.physical_address == address) == (False, True)
    assert served(lake, "main") == dict.fromkeys("abcd", b"1")
    for path in "cd":
        assert lake.stat("main", path).metadata == {"team": "ml", "::lakefs::shallow-copy": "a"}
    lake.create_branch("dev", "main")
    with refused(400, "cannot clone"):
        copy("lake", "dev", "x", models.ObjectCopyCreation(src_path="a", src_ref="main", shallow=True))
    assert copy("lake", "dev", "x", models.ObjectCopyCreation(src_path="a", src_ref="main")).path == "x"
    with refused(404):
        copy("lake", "main", "x", models.ObjectCopyCreation(src_path="gone"))


def linked(api: Any, path: str, location: str, **fields: Any) -> Any:
    staging = models.StagingLocation(physical_address=location)
    metadata = models.StagingMetadata(staging=staging, checksum='"abc"', size_bytes=1, **fields)
    return api.staging_api.link_physical_address("lake", "main", path, metadata)


def test_only_the_address_issued_for_a_path_can_be_linked_to_it(
    sandbox: Sandbox, api: Any, lake: SandboxRepository
) -> None:
    """The address of another path, or one without its token, gets a 400."""
    location = api.staging_api.get_physical_address("lake", "main", "a b").physical_address
    assert re.fullmatch(
        rf"local://{re.escape(str(sandbox.local_path))}/lake/data/[0-9a-v]{{20}}/[0-9a-v]{{20}},[\w-]{{43}}", location
    )
    file = Path(location.removeprefix("local://"))
    file.parent.mkdir(parents=True)
    file.write_bytes(b"1")
    for path, wrong in (("other", location), ("a b", location.partition(",")[0]), ("a b", location[:-1])):
        with refused(400, "address"):
            linked(api, path, wrong)
    assert served(lake, "main") == {}
    stats = linked(api, "a b", location, user_metadata={"team": "ml"}, content_type="text/csv")
    assert (stats.checksum, stats.size_bytes, stats.metadata, stats.physical_address) == (
        "abc", 1, {"team": "ml"}, location,
    )  # fmt: skip
    assert served(lake, "main") == {"a b": b"1"}
    # With the local adapter the server keeps the announced address unchanged (formats §4).
    assert (lake.stat("main", "a b").address_type, lake.stat("main", "a b").address) == (AddressType.FULL, location)


def test_an_address_can_be_linked_for_24_hours(sandbox: Sandbox, api: Any) -> None:
    """The sandbox's clock decides."""
    sandbox.set_clock(THEN)
    location = api.staging_api.get_physical_address("lake", "main", "a").physical_address
    sandbox.set_clock(THEN + timedelta(hours=23, minutes=59))
    assert linked(api, "a", location).path == "a"
    sandbox.set_clock(THEN + timedelta(hours=24, minutes=1))
    with refused(400, "link address expired"):
        linked(api, "a", location)


def test_a_staged_address_is_relative_under_data_and_full_otherwise(
    sandbox: Sandbox, api: Any, lake: SandboxRepository
) -> None:
    """An address of another store gets a 400."""
    outside = f"local://{sandbox.local_path}/elsewhere/x"

    def staged(path: str, address: str) -> Any:
        creation = models.ObjectStageCreation(
            physical_address=address, checksum="abc", size_bytes=3, mtime=1_600_000_000, metadata={"team": "ml"}
        )
        return api.internal_api.stage_object("lake", "main", path, creation)

    assert staged("a", outside).physical_address == outside
    staged("b", "local://lake/data/s/i")
    staged("c", "local://lake/legacy")
    entries = {path: lake.stat("main", path) for path in "abc"}
    assert {path: (entry.address_type, entry.address) for path, entry in entries.items()} == {
        "a": (AddressType.FULL, outside),
        "b": (AddressType.RELATIVE, "data/s/i"),
        "c": (AddressType.FULL, "local://lake/legacy"),
    }
    assert entries["a"].last_modified == datetime.fromtimestamp(1_600_000_000, UTC)
    with refused(400, "not valid for block adapter"):
        staged("d", "s3://bucket/x")
    with refused(410, "No data"):
        api.objects_api.get_object("lake", "main", "a")
    api.experimental_api.update_object_user_metadata(
        "lake", "main", "a", models.UpdateObjectUserMetadata(set={"x": "y"})
    )
    assert (lake.stat("main", "a").metadata, lake.stat("main", "a").address) == ({"x": "y"}, outside)


def test_an_import_replaces_everything_under_its_destination(
    sandbox: Sandbox, api: Any, lake: SandboxRepository
) -> None:
    """The import commits full addresses outside the namespace, and changes no other path."""
    committed(lake, "main", **{"in/old": b"1", "other": b"1"})
    folder = sandbox.local_path / "outside/deep"
    folder.mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_bytes(name.encode())
    source = f"local://{sandbox.local_path}/outside/"

    def run(**location: str) -> Any:
        creation = models.ImportCreation(
            paths=[models.ImportLocation(**location)], commit=models.CommitCreation(message="bring in")
        )
        return api.import_api.import_status("lake", "main", api.import_api.import_start("lake", "main", creation).id)

    status = run(type="common_prefix", path=source, destination="in/")
    assert (status.completed, status.ingested_objects, status.error) == (True, 2, None)
    assert status.commit.id == lake.branch("main").commit_id
    assert (status.commit.message, status.commit.metadata) == ("bring in", {".lakefs.merge.strategy": "source-wins"})
    assert served(lake, "main") == {"in/deep/a": b"a", "in/deep/b": b"b", "other": b"1"}
    assert lake.stat("main", "in/deep/a").address == f"{source}deep/a"
    assert run(type="object", path=f"{source}deep/b", destination="one").ingested_objects == 1
    assert served(lake, "main")["one"] == b"b"
    missing = run(type="object", path=f"{source}deep/c", destination="two")
    assert (missing.completed, "no object" in missing.error.message) == (False, True)
    for path in ("local://lake/data/", f"local://{sandbox.local_path}/", f"local://{sandbox.local_path}/lake/data/"):
        with refused(400, "namespace"):
            run(type="common_prefix", path=path, destination="in/")
    with refused(404):
        api.import_api.import_status("lake", "main", "never")
    assert run(type="common_prefix", path="local:///etc/", destination="in/").error is not None


# --- differences ------------------------------------------------------------------------------------------------------


def diff(api: Any, left: str, right: str, **options: Any) -> list[tuple[str, str]]:
    """Every difference with its kind, page by page."""
    differences: list[tuple[str, str]] = []
    after = ""
    while True:
        page = api.refs_api.diff_refs("lake", left, right, amount=2, after=after, **options)
        differences += [(change.path, change.type) for change in page.results]
        if not page.pagination.has_more:
            return differences
        after = page.pagination.next_offset


def test_a_three_dot_diff_starts_from_the_merge_base_and_a_two_dot_diff_from_the_left_ref(
    api: Any, lake: SandboxRepository
) -> None:
    """A three-dot diff shows the changes since the two refs diverged, including conflicts."""
    committed(lake, "main", a=b"1", b=b"1", c=b"1", d=b"1", same=b"1")
    lake.create_branch("dev", "main")
    committed(lake, "main", a=b"main", d=b"main", m=b"main")
    committed(lake, "dev", **{"a": b"dev", "b": b"dev", "c": None, "x/1": b"dev", "x/2": b"dev"})
    moved = lake.put("dev", "same", b"1")
    assert moved.address != lake.stat("main", "same").address
    assert diff(api, "main", "dev") == [
        ("a", "conflict"), ("b", "changed"), ("c", "removed"), ("x/1", "added"), ("x/2", "added"),
    ]  # fmt: skip
    assert diff(api, "main", "dev", delimiter="/")[-1] == ("x/", "prefix_changed")
    assert diff(api, "main", "dev", prefix="x/") == [("x/1", "added"), ("x/2", "added")]
    assert diff(api, "main", "dev", type="two_dot") == [
        ("a", "changed"), ("b", "changed"), ("c", "removed"), ("d", "changed"), ("m", "removed"),
        ("x/1", "added"), ("x/2", "added"),
    ]  # fmt: skip
    base = api.refs_api.find_merge_base("lake", "dev", "main")
    assert (base.source_commit_id, base.destination_commit_id) == (
        lake.branch("dev").commit_id, lake.branch("main").commit_id,
    )  # fmt: skip
    assert lake.commit_of(base.base_commit_id).generation == 2


def test_a_two_dot_diff_to_staged_data_shows_the_staged_changes(api: Any, lake: SandboxRepository) -> None:
    """The right ref is the branch's name followed by a dollar sign."""
    committed(lake, "main", a=b"1", b=b"1", c=b"1", d=b"1")
    lake.create_branch("dev", "main")
    committed(lake, "dev", b=b"2", c=b"2", e=b"2", f=b"2")
    for path, data in {"a": b"1", "c": b"1", "d": b"3", "e": b"3", "g": b"3"}.items():
        lake.put("dev", path, data)
    lake.delete("dev", ["f"])
    assert diff(api, "dev@", "dev$", type="two_dot") == [
        ("c", "changed"), ("d", "changed"), ("e", "changed"), ("f", "removed"), ("g", "added"),
    ]  # fmt: skip
    assert diff(api, "main", "dev$", type="two_dot") == [
        ("b", "changed"), ("d", "changed"), ("e", "added"), ("g", "added"),
    ]  # fmt: skip
    with refused(400, "invalid value"):
        diff(api, "main", f"{lake.branch('dev').commit_id}$", type="two_dot")


@pytest.mark.parametrize("amount", [1, 2, 100])
def test_changes_grouped_by_a_delimiter_list_each_prefix_once(api: Any, lake: SandboxRepository, amount: int) -> None:
    """The size of pages doesn't matter."""
    for path in ("a-b", "a/1", "a/2", "b", "c/d/e"):
        lake.put("main", path, b"1")
    grouped, after = [], ""
    while True:
        page = api.branches_api.diff_branch("lake", "main", amount=amount, after=after, delimiter="/")
        grouped += [(change.path, change.path_type) for change in page.results]
        if not page.pagination.has_more:
            break
        after = page.pagination.next_offset
    assert grouped == [("a-b", "object"), ("a/", "common_prefix"), ("b", "object"), ("c/", "common_prefix")]


def test_a_log_filtered_by_paths_is_refused(api: Any) -> None:
    """If the filter were ignored, a client would mistake the whole log for that of the paths."""
    with refused(501, "objects"):
        api.refs_api.log_commits("lake", "main", objects=["a"])


# --- what the operator sees -------------------------------------------------------------------------------------------


def test_the_request_log_has_one_line_for_each_request(tmp_path: Path) -> None:
    """Each line has the time, the method, the path as sent, the status and the milliseconds. Refused requests are also
    logged."""
    lines: list[str] = []
    with Sandbox(tmp_path / "sandbox", request_log=lines.append) as sandbox:
        sandbox.set_clock(THEN)
        sandbox.create("lake")
        login = {"username": sandbox.access_key_id, "password": sandbox.secret_access_key}
        api: Any = LakeFSClient(Configuration(host=f"{sandbox.endpoint_url}/api/v1", **login))
        api.health_check_api.health_check()
        with refused(404):
            api.objects_api.stat_object("lake", "main", "a\nb c")
        with refused(404):
            api.repositories_api.get_repository("gone")
    expected = [
        ("GET /api/v1/healthcheck", 204),
        ("GET /api/v1/repositories/lake/refs/main/objects/stat?path=a%0Ab%20c", 404),
        ("GET /api/v1/repositories/gone", 404),
    ]
    assert len(lines) == len(expected)
    for line, (request, status) in zip(lines, expected, strict=True):
        assert re.fullmatch(rf"2022-03-31T12:00:\d\d\.\d{{6}}Z {re.escape(request)} {status} \d+\.\d", line), line


def test_the_configuration_for_lakectl_has_this_sandboxs_endpoint_and_keys(sandbox: Sandbox) -> None:
    assert yaml.safe_load(sandbox.lakectl_configuration) == {
        "credentials": {"access_key_id": sandbox.access_key_id, "secret_access_key": sandbox.secret_access_key},
        "server": {"endpoint_url": f"{sandbox.endpoint_url}/api/v1"},
    }
