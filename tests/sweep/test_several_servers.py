"""Repositories of several lakeFS servers, which the fleet file names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lakegc_assets.mark.repository_selection import list_repositories
from lakegc_assets.rules.brakes import unread_repositories_in
from lakegc_assets.sweep.preconditions import SweepOptions
from lakegc_assets.sweep.report import read_report
from spark_resources.errors import Refused, WrongUsage
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.mark import OWNER_KEY, mark_folder
from spark_resources.model import AddressType
from spark_resources.settings import Settings
from spark_resources.sstable import Entry
from tests.support.command_line import Lakegc
from tests.support.fleet_files import fleet_of
from tests.support.mark_runs import ANY_AGE, Marked, Marker, Sweeper, quick_environment


@dataclass
class Servers:
    """Two sandboxes, `prod` and `lab`, each with a repository `lake`, and a fleet file with both."""

    prod: Sandbox
    lab: Sandbox
    settings: dict[str, str]

    @property
    def lake(self) -> SandboxRepository:
        return self.prod.repository("lake")

    def client(self) -> LakeFS:
        return LakeFS(*LakeFSSettings.of(Settings.load(quick_environment(self.settings), Path("/nonexistent"))))

    def mark(self, repository: str = "prod/lake", mark_id: str = "m1") -> Marked:
        return Marker().mark(self.settings, repository, mark_id, ANY_AGE)

    def only_prod(self) -> dict[str, str]:
        """Settings with which `prod` is the only server."""
        return {**self.prod.settings, "retry_total_s": "0"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with Sandbox(tmp_path / "prod") as prod, Sandbox(tmp_path / "lab") as lab:
        prod.create("lake")
        lab.create("lake", storage_namespace="local://lab-lake")
        for sandbox in (prod, lab):
            sandbox.repository("lake").put("main", "kept", b"kept")
            sandbox.repository("lake").commit("main", "kept")
        yield Servers(prod, lab, fleet_of(tmp_path / "lakegc.toml", prod=prod, lab=lab))


def garbage(lake: SandboxRepository, name: str) -> Entry:
    entry = lake.put("main", name, name.encode())
    lake.delete("main", [name])
    return entry


def stage(lake: SandboxRepository, entry: Entry, address: str) -> None:
    lake.stage("main", [replace(entry, path=b"imported", address=address, address_type=AddressType.FULL)])


def test_each_repository_is_read_from_its_own_server(servers: Servers) -> None:
    client = servers.client()
    servers.lab.repository("lake").create_branch("dev", "main")

    assert [repository.id for repository in client.repositories()] == ["prod/lake", "lab/lake"]
    assert set(client.branches("lab/lake")) == {"main", "dev"}
    assert set(client.branches("prod/lake")) == {"main"}
    with pytest.raises(WrongUsage, match=r"'lake' doesn't say which server it is on \(prod, lab\)"):
        client.branches("lake")
    with pytest.raises(WrongUsage, match="there is no server 'test' for 'test/lake': prod, lab are configured"):
        client.branches("test/lake")


def test_objects_to_which_a_repository_of_another_server_refers_are_kept(servers: Servers) -> None:
    imported, nobodys = garbage(servers.lake, "imported"), garbage(servers.lake, "nobody's")
    stage(servers.lab.repository("lake"), imported, f"local://lake/{imported.address}")

    marked = servers.mark()

    assert marked.expired == {nobodys.address}
    assert marked.record.repository == "prod/lake"


def test_a_sweep_rescues_objects_to_which_a_repository_of_another_server_has_come_to_refer(servers: Servers) -> None:
    imported, nobodys = garbage(servers.lake, "imported"), garbage(servers.lake, "nobody's")
    assert servers.mark().expired == {imported.address, nobodys.address}
    Sweeper().approve(servers.settings, "prod/lake", "m1")
    stage(servers.lab.repository("lake"), imported, f"local://lake/{imported.address}")

    report = Sweeper().sweep(servers.settings, "prod/lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1, "rescued": 1}
    assert servers.lake.objects.file(imported.address).exists()


def test_records_in_the_namespace_have_the_id_without_the_server(servers: Servers) -> None:
    """A deployment that knows the server by a different name, or as its only one, therefore finds its marks."""
    entry, files = garbage(servers.lake, "unused"), servers.lake.objects
    marked = servers.mark()
    Sweeper().approve(servers.settings, "prod/lake", "m1")

    assert json.loads(files.file(OWNER_KEY).read_bytes())["repository"] == "lake"
    assert json.loads(files.file(mark_folder("m1") + "mark.json").read_bytes())["repository"] == "lake"
    assert read_report(marked.target.place, "m1") is None
    Sweeper().sweep(servers.settings, "prod/lake", "m1", SweepOptions())
    assert json.loads(files.file(mark_folder("m1") + "sweep.json").read_bytes())["repository"] == "lake"
    report = read_report(marked.target.place, "m1")
    assert report is not None
    assert report.repository == "prod/lake"
    assert not files.file(entry.address).exists()
    again = Marker().mark(servers.only_prod(), "lake", "m2", ANY_AGE)
    assert again.record.repository == "lake"
    assert again.record.previous is not None
    assert again.record.previous["mark_id"] == "m1"


def test_a_sweep_is_refused_if_the_settings_lack_a_server_that_the_mark_considered(servers: Servers) -> None:
    entry = garbage(servers.lake, "unused")
    servers.mark()
    Sweeper().approve(servers.settings, "prod/lake", "m1")

    with pytest.raises(Refused, match="servers in the settings that are missing now: lab, prod"):
        Sweeper().sweep(servers.only_prod(), "lake", "m1", SweepOptions())

    assert servers.lake.objects.file(entry.address).exists()


def test_the_repositories_of_a_server_that_does_not_respond_count_as_unread(servers: Servers) -> None:
    """The mark continues and keeps the objects to which the server's repositories were known to refer. Its sweep needs
    a release."""
    imported, nobodys = garbage(servers.lake, "imported"), garbage(servers.lake, "nobody's")
    stage(servers.lab.repository("lake"), imported, f"local://lake/{imported.address}")
    servers.mark(mark_id="m0")
    servers.lab.stop()

    marked = servers.mark()

    assert marked.expired == {nobodys.address}
    assert "repositories of server lab could not be listed" in unread_repositories_in(marked.record)["lab/*"]
    listed, failures = list_repositories(servers.client())
    assert [repository.id for repository in listed] == ["prod/lake"]
    assert list(failures) == ["lab"]


def test_a_mark_whose_settings_lack_a_server_did_not_read_the_repositories_there(servers: Servers) -> None:
    """For example, the mark was made in a folder without the fleet file. What earlier marks found there still counts
    while the server doesn't respond."""
    imported, nobodys = garbage(servers.lake, "imported"), garbage(servers.lake, "nobody's")
    stage(servers.lab.repository("lake"), imported, f"local://lake/{imported.address}")
    servers.mark(mark_id="m0")
    alone = Marker().mark(servers.only_prod(), "lake", "m1", ANY_AGE)
    assert alone.expired == {imported.address, nobodys.address}
    servers.lab.fail("", 503)

    marked = servers.mark(mark_id="m2")

    assert marked.expired == {nobodys.address}
    with pytest.raises(Refused, match=r"mark m1 of prod/lake was made without servers .* now: lab"):
        Sweeper().approve(servers.settings, "prod/lake", "m1")


def test_a_release_of_one_server_does_not_cover_another(servers: Servers, tmp_path: Path) -> None:
    """A sweep stops if a server doesn't respond, unless that server is the one that the mark couldn't list and that the
    approval released. A single repository that was also released doesn't stop the sweep either."""
    entry = garbage(servers.lake, "unused")
    servers.prod.create("broken")
    with Sandbox(tmp_path / "test") as test:
        settings = fleet_of(tmp_path / "three.toml", prod=servers.prod, lab=servers.lab, test=test)
        servers.prod.fail("broken", 503)
        servers.lab.fail("", 503)
        marked = Marker().mark(settings, "prod/lake", "m1", ANY_AGE)
        assert set(unread_repositories_in(marked.record)) == {"lab/*", "prod/broken"}
        Sweeper().approve(settings, "prod/lake", "m1")
        test.fail("", 503)

        with pytest.raises(Refused, match=r"other repositories of server test may .*--release 'others/test/\*'"):
            Sweeper().sweep(settings, "prod/lake", "m1", SweepOptions())
        assert servers.lake.objects.file(entry.address).exists()

        test.fail("", None)
        report = Sweeper().sweep(settings, "prod/lake", "m1", SweepOptions())

    assert report.objects == {"deleted": 1}


def test_a_mark_whose_servers_change_before_it_is_finished_is_refused(servers: Servers, tmp_path: Path) -> None:
    """The mark would have read the staged changes of a server's repositories, but not their commits."""
    with Sandbox(tmp_path / "test") as test:
        three = fleet_of(tmp_path / "three.toml", prod=servers.prod, lab=servers.lab, test=test)
        Marker().steps(three, "prod/lake", "m1", ANY_AGE, ["namespace_slices", "uncommitted_addresses"])

    with pytest.raises(Refused, match=r"\(then: lab, prod, test; now: lab, prod\)"):
        Marker().steps(servers.settings, "prod/lake", "m1", ANY_AGE, ["retained_commits", "committed_addresses"])


def test_another_repository_with_contradictory_settings_counts_as_unread(servers: Servers, tmp_path: Path) -> None:
    """Only the marks of that repository are refused."""
    with (tmp_path / "lakegc.toml").open("a") as file:
        file.write('[repositories."lab/la*"]\nbrake_share = 0.1\n[repositories."lab/l*"]\nbrake_share = 0.2\n')

    assert "both sections match lab/lake" in unread_repositories_in(servers.mark().record)["lab/lake"]


def test_a_mark_is_refused_if_namespaces_of_different_servers_overlap(servers: Servers) -> None:
    servers.lab.create("copy", storage_namespace="local://lake/inside")

    with pytest.raises(Refused, match=r"prod/lake overlaps local://lake/inside of lab/copy"):
        servers.mark()


def test_commands_name_the_server_of_a_repository(servers: Servers, lakegc: Lakegc) -> None:
    garbage(servers.lake, "unused")

    marked = lakegc.output(servers.settings, "mark", "prod/lake", "--mark-id", "m1", "--min-age", "0", "--allow-young")
    status = lakegc.output(servers.settings, "status")
    review = lakegc.output(servers.settings, "review", "prod/lake", "m1")

    assert "lakegc review prod/lake m1" in marked
    assert "lab/lake" in status
    assert "lakegc review prod/lake m1" in status
    assert "lakegc approve prod/lake m1" in review
    lakegc(servers.settings, "mark", "lake").stopped(2, "doesn't say which server")
