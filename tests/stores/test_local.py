"""Special cases of a local folder: paths that lead out of its root, links, files that aren't objects, and a clock that
was set."""

from __future__ import annotations

import contextlib
import fcntl
import json
import multiprocessing
import os
import resource
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from spark_resources.errors import Forbidden, LakegcError, NotFound, Refused, Unavailable, WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import Store, StoreSettings, open_store
from spark_resources.stores.base import Changed, Deletion
from spark_resources.stores.local import files
from tests.support.store_providers import all_keys


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "local" / "ns").mkdir(parents=True)
    return tmp_path / "local" / "ns"


@pytest.fixture
def store(root: Path) -> Store:
    return opened(root)


def opened(root: Path) -> Store:
    return open_store(Namespace.parse(f"local://{root.name}"), StoreSettings(local_path=str(root.parent)))


@pytest.mark.parametrize(
    "key", ["../secret", "data/../../secret", "..", "/etc/passwd", "data/./x", ".lakegc-tmp/lock", "data/.lakegc-tmp/x"]
)
def test_a_key_that_leads_out_of_the_root_is_refused(store: Store, root: Path, key: str) -> None:
    """Every method refuses such a key, and keys of lakegc's own working files."""
    secret = root.parent / "secret"
    secret.write_bytes(b"secret")
    store.write("data/x", b"")

    for act in (
        lambda: store.read(key),
        lambda: store.stat(key),
        lambda: store.write(key, b"mine"),
        lambda: store.write_if_absent(key, b"mine"),
        lambda: store.copy(key, "copy"),
        lambda: store.copy("data/x", key),
    ):
        with pytest.raises(WrongUsage):
            act()
    assert store.delete_many([key])[0].deletion is Deletion.FAILED
    assert secret.read_bytes() == b"secret"


def test_symlinks_are_neither_listed_nor_followed(store: Store, root: Path) -> None:
    """Links to files and folders are counted as unreadable."""
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "x").write_bytes(b"secret")
    (root / "data").mkdir()
    (root / "data" / "folder").symlink_to(outside)
    (root / "data" / "file").symlink_to(outside / "x")
    (root / "data" / "dangling").symlink_to(outside / "none")

    pages = list(store.pages(""))

    assert [entry.key for page in pages for entry in page.objects] == []
    assert sum(page.unreadable_names for page in pages) == 3
    assert all_keys(store, "data/", delimiter="/") == []
    for key in ("data/folder/x", "data/file", "data/dangling", "data/folder/new"):
        for act in (
            lambda key=key: store.read(key),
            lambda key=key: store.stat(key),
            lambda key=key: store.write(key, b"mine"),
            lambda key=key: store.write_if_absent(key, b"mine"),
            lambda key=key: store.copy(key, "copy"),
        ):
            with pytest.raises(Refused, match="symbolic link"):
                act()
        assert store.delete_many([key])[0].deletion is Deletion.FAILED
    assert (outside / "x").read_bytes() == b"secret"
    assert [path.name for path in outside.iterdir()] == ["x"]


@pytest.mark.parametrize("name", ["linked", "outside-by/inner"])
def test_a_namespace_behind_a_symlink_is_refused(root: Path, name: str) -> None:
    """Every method refuses a link in place of the namespace's folder or of a folder between it and the configured
    path."""
    outside = root.parent.parent / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "x").write_bytes(b"secret")
    (root.parent / "linked").symlink_to(outside / "inner")
    (root.parent / "outside-by").symlink_to(outside)
    store = open_store(Namespace.parse(f"local://{name}"), StoreSettings(local_path=str(root.parent)))

    for act in (
        lambda: list(store.pages("")),
        lambda: store.read("x"),
        lambda: store.stat("x"),
        lambda: store.write("y", b"mine"),
        lambda: store.write_if_absent("y", b"mine"),
        lambda: store.copy("x", "y"),
    ):
        with pytest.raises(Refused, match="symbolic link"):
            act()
    assert store.delete_many(["x"])[0].deletion is Deletion.FAILED
    assert [path.name for path in (outside / "inner").iterdir()] == ["x"]


def test_the_configured_path_may_be_a_symlink(root: Path) -> None:
    """The operator chose the configured path, which may lead to another disk."""
    (root.parent.parent / "by-link").symlink_to(root.parent)
    store = open_store(Namespace.parse("local://ns"), StoreSettings(local_path=str(root.parent.parent / "by-link")))

    store.write("data/x", b"")

    assert all_keys(opened(root)) == ["data/x"]


@pytest.mark.parametrize("name", ["lock", ""])
def test_a_symlink_in_place_of_a_working_folder_or_lock_is_refused(store: Store, root: Path, name: str) -> None:
    """No file is created behind the link."""
    outside = root.parent / "outside"
    outside.mkdir()
    hidden = root / ".lakegc-tmp"
    if name:
        hidden.mkdir()
    (hidden / name).symlink_to(outside / name)

    with pytest.raises(Refused, match="symbolic link"):
        store.write("data/x", b"")
    assert list(outside.iterdir()) == []


_SEGMENTS = ["..", ".", "", "a", "A", "folder", "link", "loop", "x" * 255, "x" * 256, "é" * 127, "é" * 128, "nul\0"]
_NAMES = ["...", "outside", "secret", ".lakegc-tmp", "lock", "\n", "~", "%2e%2e", "..\\..", "\u2025", "C:"]
_keys = st.lists(st.sampled_from([*_SEGMENTS, *_NAMES]), min_size=1, max_size=5).map("/".join)


def test_no_generated_path_leads_out_of_the_root(store: Store, root: Path) -> None:
    """No file outside is read, listed, changed, created or deleted."""
    outside = root.parent / "outside"
    outside.mkdir()
    for name in ("secret", "a", "lock"):
        (outside / name).write_bytes(b"secret")
    (root / "link").symlink_to(outside)
    (root / "folder").mkdir()
    (root / "folder" / "link").symlink_to("../../outside/secret")
    (root / "loop").symlink_to(root)

    def world() -> tuple[dict[Path, bytes], set[Path]]:
        return {path: path.read_bytes() for path in outside.rglob("*")}, set(root.parent.iterdir())

    before = world()

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(_keys)
    @example("link/secret")
    @example("loop/../../outside/a")
    def run(key: str) -> None:
        for act in (
            lambda: store.write(key, b"mine"),
            lambda: store.write_if_absent(key, b"mine"),
            lambda: store.copy(key, "copy"),
            lambda: store.copy("copy", key),
            lambda: store.read(key),
        ):
            with contextlib.suppress(LakegcError):
                assert act() != b"secret"
        with contextlib.suppress(LakegcError):
            for prefix in (key, key + "/"):
                assert all(listed.startswith(prefix) for listed in all_keys(store, prefix))
        [result] = store.delete_many([key])
        assert result.key == key

        assert world() == before
        assert b"secret" not in {store.read(listed) for listed in all_keys(store)}

    run()


def test_keys_longer_than_path_max_are_stored_in_full(store: Store, root: Path) -> None:
    """A few file descriptors suffice."""
    deep = "/".join(["data", *["d" * 200] * 25, "x"])
    many = "/".join(["data", *["d"] * 300, "x"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for key in (deep, many):
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 60, hard))
        try:
            store.write(key, b"far down")
            assert store.read(key) == b"far down"
            assert store.stat(key).size == 8
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert set(all_keys(store)) == {deep, many}
    assert {result.deletion for result in store.delete_many([deep, many])} == {Deletion.DELETED}
    assert all_keys(store) == []
    assert not (root / "data").exists()


def test_keys_that_differ_in_case_are_different_objects(store: Store) -> None:
    """Keys are compared by their bytes."""
    store.write("data/X", b"upper")
    for other in ("data/x", "DATA/X", "Data/X"):
        with pytest.raises(NotFound):
            store.read(other)
        assert store.delete_many([other])[0].deletion is Deletion.ALREADY_GONE
    assert all_keys(store) == ["data/X"]


def test_pipes_and_names_that_are_not_utf8_are_counted_but_not_listed(store: Store, root: Path) -> None:
    """The objects beside them are listed."""
    (root / "data").mkdir()
    for name in (b"latin-\xe9", b"b\xff"):
        Path(os.fsdecode(os.fsencode(root / "data") + b"/" + name)).write_bytes(b"")
    os.mkfifo(root / "data" / "pipe")
    store.write("data/x", b"")

    pages = list(store.pages("data/", page_size=1))

    assert [entry.key for page in pages for entry in page.objects] == ["data/x"]
    assert sum(page.unreadable_names for page in pages) == 3
    with pytest.raises(NotFound):
        store.read("data/pipe")
    assert store.delete_many(["data/pipe"])[0].deletion is Deletion.FAILED


def test_a_key_that_would_be_both_file_and_folder_is_refused(store: Store) -> None:
    """The existing object stays unchanged."""
    store.write("data/x", b"object")
    store.write("data/folder/y", b"inside")

    for key in ("data/x/z", "data/folder", "data"):
        with pytest.raises(WrongUsage, match="can't be a key"):
            store.write(key, b"")
        with pytest.raises(WrongUsage, match="can't be a key"):
            store.write_if_absent(key, b"")
        assert store.delete_many([key])[0].deletion is Deletion.ALREADY_GONE
    assert all_keys(store) == ["data/folder/y", "data/x"]


def test_folders_that_become_empty_are_removed_up_to_the_root(store: Store, root: Path) -> None:
    """A folder with an object stays, as does the root."""
    store.write("data/a/b/x", b"")
    store.write("data/a/y", b"")

    store.delete_many(["data/a/b/x"])

    assert not (root / "data" / "a" / "b").exists()
    assert (root / "data" / "a").exists()

    store.delete_many(["data/a/y"])

    assert not (root / "data").exists()
    assert root.exists()


def test_empty_folders_are_not_listed_as_prefixes(store: Store, root: Path) -> None:
    """The empty folders may be nested."""
    (root / "data" / "empty" / "deeper").mkdir(parents=True)
    store.write("data/full/x", b"")

    [page] = store.pages("data/", delimiter="/")

    assert list(page.prefixes) == ["data/full/"]


def test_unfinished_writes_are_not_listed(store: Store, root: Path) -> None:
    """A killed writer leaves a file behind, which doesn't block other writers."""
    store.write("data/x", b"whole")
    (root / ".lakegc-tmp" / f"{os.getpid()}-1-1").write_bytes(b"half")

    store.write("data/y", b"")

    assert all_keys(store) == ["data/x", "data/y"]
    assert all_keys(store, ".lakegc-tmp/") == []
    assert [page.prefixes for page in store.pages("", delimiter="/")] == [["data/"]]


def test_working_files_of_an_inner_namespace_are_not_listed(store: Store, root: Path) -> None:
    """The objects of the inner namespace are listed."""
    (root / "inner").mkdir()
    inner = open_store(Namespace.parse("local://ns/inner"), StoreSettings(local_path=str(root.parent)))
    inner.write("data/x", b"")

    assert all_keys(store) == ["inner/data/x"]


def test_writes_are_dated_by_the_sandboxs_clock(root: Path) -> None:
    """The store's time, its offset and the dates agree."""
    (root.parent / ".clock").write_text(json.dumps({"offset_seconds": -86_400.5}))
    store = opened(root)

    store.write("data/x", b"")
    store.copy("data/x", "data/y")

    assert store.clock_offset == timedelta(seconds=-86_400.5)
    assert abs(store.now() - (datetime.now(UTC) - timedelta(seconds=86_400.5))) < timedelta(seconds=2)
    for key in ("data/x", "data/y"):
        assert timedelta(0) <= store.now() - store.stat(key).modified < timedelta(seconds=2)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"offset_seconds": "soon"}', '{"offset_seconds": 1e300}'])
def test_a_damaged_clock_file_raises_an_error(root: Path, content: str) -> None:
    """A wrong clock would make young objects look old."""
    store = opened(root)
    (root.parent / ".clock").write_text(content)

    with pytest.raises(Unavailable, match="offset_seconds"):
        store.now()
    with pytest.raises(Unavailable, match="offset_seconds"):
        store.write("data/x", b"")


def test_listing_a_folder_without_permission_raises_an_error(store: Store, root: Path) -> None:
    """If the folder were skipped, the listing would just be shorter."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    store.write("data/x", b"")
    os.seteuid(65_534)
    try:
        with pytest.raises(Forbidden):
            list(store.pages(""))
        with pytest.raises(Forbidden):
            store.read("data/x")
        with pytest.raises(Forbidden):
            store.write("data/y", b"")
    finally:
        os.seteuid(0)


def _count(root: str, times: int) -> None:
    store = opened(Path(root))
    while times:
        data, tag = store.read_with_tag("counter")
        try:
            store.replace_if_unchanged("counter", str(int(data) + 1).encode(), tag)
        except Changed:
            continue
        times -= 1


def test_conditional_replaces_are_atomic_across_processes(store: Store, root: Path) -> None:
    """Several processes increment a counter, and no increment is lost."""
    store.write("counter", b"0")
    spawned = multiprocessing.get_context("spawn")
    processes = [spawned.Process(target=_count, args=(str(root), 20)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert store.read("counter") == b"60"
    assert [path.name for path in (root / ".lakegc-tmp").iterdir()] == ["lock"]


def test_the_error_about_a_lock_that_another_process_does_not_release_names_the_lock(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hangs while it holds the lock, for example on a network file system, must not block all others
    silently."""
    store.write("data/x", b"old")
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.05)
    with (root / ".lakegc-tmp" / "lock").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        with pytest.raises(Unavailable, match=r"has held the lock \.lakegc-tmp/lock for .* end it if it hangs"):
            store.write("data/x", b"new")
        assert store.delete_many(["data/x"])[0].deletion is Deletion.FAILED
    assert store.read("data/x") == b"old"
    store.write("data/x", b"new")
