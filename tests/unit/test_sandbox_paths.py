"""The sandbox opens no file outside its folder, whatever a namespace, a key or an address contains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_resources.lakefs_sandbox import ImportSource, Problem, Sandbox, SandboxRepository
from spark_resources.lakefs_sandbox.catalog import Catalog
from spark_resources.model import AddressType
from spark_resources.sstable import Entry

SECRET = b"not the sandbox's"


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    (tmp_path / "secret").write_bytes(SECRET)
    sandbox = Sandbox(tmp_path / "sandbox")
    (sandbox.root / "secret").write_bytes(SECRET)
    yield sandbox
    sandbox.stop()


@pytest.fixture
def lake(sandbox: Sandbox) -> SandboxRepository:
    return sandbox.create("lake")


def refused(*statuses: int) -> Any:
    return pytest.raises(Problem, check=lambda problem: problem.status in statuses)


WAYS_OUT = [
    "../../secret",
    "data/../../../secret",
    "/../../secret",
    "//secret",
    "data/./../../../secret",
    "data/\0",
    "data/" + "x" * 300,
    "data/" + "x/" * 3000 + "y",
    "data//x",
    "",
]


@pytest.mark.parametrize("key", WAYS_OUT, ids=range(len(WAYS_OUT)))
def test_no_key_leads_out_of_the_folder(lake: SandboxRepository, sandbox: Sandbox, key: str) -> None:
    """Reading, copying and writing such a key is refused or finds no data, in every spelling."""
    spellings = {
        "relative": (key, AddressType.RELATIVE),
        "full": (f"local://lake/{key}", AddressType.FULL),
        "announced": (f"local://{sandbox.local_path}/lake/{key}", AddressType.FULL),
        "elsewhere": (f"local://{sandbox.local_path}/{key}", AddressType.FULL),
    }
    for path, (address, kind) in spellings.items():
        if address:
            lake.stage("main", [Entry(path.encode(), address, kind, size=1)])
            with refused(400, 410):
                lake.read("main", path)
            with refused(400, 410):
                lake.copy("main", "copy", path)
    with refused(400):
        lake.objects.write(key, b"overwritten")
    assert {path.read_bytes() for path in sandbox.root.parent.rglob("secret")} == {SECRET}


ELSEWHERE = ["local:///etc/passwd", "file:///etc/passwd", "s3://bucket/x", "local://", "/etc/passwd"]
NO_NAMESPACES = ["local://../x", "local://a/../../x", "local://a/./b", "local://a//b", "local://\0", "local:///"]


@pytest.mark.parametrize("address", ELSEWHERE)
def test_an_address_outside_the_folder_is_not_read(lake: SandboxRepository, address: str) -> None:
    """No object is imported from such an address either."""
    lake.stage("main", [Entry(b"a", address, AddressType.FULL, size=1)])
    with refused(400, 410):
        lake.read("main", "a")
    with refused(400):
        lake.import_objects("main", [ImportSource(address, "in/")])


def test_symbolic_links_are_not_followed(lake: SandboxRepository, sandbox: Sandbox, tmp_path: Path) -> None:
    """A link to a file or folder outside is never read, written through or imported."""
    inside = sandbox.local_path / "lake"
    (inside / "data").mkdir()
    (inside / "data/file").symlink_to(tmp_path / "secret")
    (inside / "data/folder").symlink_to(tmp_path)
    (sandbox.local_path / "elsewhere").symlink_to(tmp_path)
    for key in ("data/file", "data/folder/secret"):
        lake.stage("main", [Entry(key.encode(), key, AddressType.RELATIVE, size=1)])
        with refused(400):
            lake.read("main", key)
        with refused(400):
            lake.objects.write(key, b"overwritten")
    with refused(400):
        lake.import_objects("main", [ImportSource(f"local://{sandbox.local_path}/elsewhere/", "in/")])
    with refused(400):
        sandbox.create("other", storage_namespace="local://elsewhere/other")
    assert (tmp_path / "secret").read_bytes() == SECRET
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("namespace", NO_NAMESPACES)
def test_no_namespace_leads_out_of_the_folder(sandbox: Sandbox, namespace: str) -> None:
    """A repository is created below the folder or not at all."""
    before = sorted(sandbox.root.parent.iterdir())
    with refused(400):
        sandbox.create("other", storage_namespace=namespace)
    assert sorted(sandbox.root.parent.iterdir()) == before


def test_a_key_below_an_object_or_at_a_folder_is_refused(lake: SandboxRepository) -> None:
    """A file and a folder can't have the same name."""
    lake.objects.write("data/a", b"1")
    for key in ("data/a/b", "data"):
        with refused(400):
            lake.objects.write(key, b"2")
        assert not lake.objects.has(key)
    assert lake.objects.read("data/a") == b"1"


def test_a_namespace_of_another_block_store_is_refused(sandbox: Sandbox) -> None:
    """A sandbox with objects in a local folder can't have repositories in a bucket."""
    with refused(400):
        Catalog(sandbox.root).create("other", "s3://bucket/other")
