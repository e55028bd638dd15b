"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import functools
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import typer.main
from alembic.config import Config
from alembic.script import ScriptDirectory
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from spark_resources.lakefs_sandbox import Sandbox
from tests.support import azurite as azurite_server
from tests.support import fake_gcs as gcs_server
from tests.support import s3_servers, store_providers
from tests.support.store_providers import Provider

settings.register_profile("lakegc", deadline=None)  # on a busy machine, any example can take long
settings.load_profile("lakegc")

# The longest modules, each that mostly waits followed by two that mostly compute, so that no core is idle.
LONGEST_FIRST = (
    "ui/test_ui.py", "recordings/test_recordings.py", "commands/test_fresh_process.py",
    "sweep/test_objects_that_become_live.py", "sweep/test_failures.py", "sweep/test_other_repositories.py",
    "cluster/test_standalone.py", "property/test_model.py", "backup/test_commands.py", "unit/test_session.py",
    "sweep/test_faults.py", "sweep/test_races.py", "sweep/test_path_probes.py",
    "outage/test_outages.py", "commands/test_documented_commands.py", "sweep/test_table_notes.py",
    "unit/test_requests_at_once.py", "commands/test_demo.py", "sweep/test_recorded_foreign_marks.py",
    "sweep/test_killed.py", "fault/test_staged_lists.py", "property/test_incremental_marks.py",
    "commands/test_interrupted_commands.py", "backup/test_backups.py", "stores/test_listing.py",
    "sweep/test_sweeps.py", "sweep/test_first_delete.py", "sweep/test_least_privilege.py", "recordings/test_holds.py",
    "dagster/test_fleet_over_time.py", "stores/test_keys.py", "property/test_model_of_sweeps.py",
)  # fmt: skip


WITHOUT_SPARK = (
    "approval/", "backup/test_copying.py", "backup/test_transfer.py", "cluster/", "commands/test_demo.py",
    "commands/test_fresh_process.py", "commands/test_interrupted_commands.py", "exhaustive/test_losses.py", "fuzz/",
    "notifications/", "property/test_retention.py", "property/test_sstable_property.py", "stores/", "ui/", "unit/",
)  # fmt: skip
"""Folders and modules whose tests need no Spark session in their own process, with these exceptions:"""
UNITS_WITH_SPARK = tuple(f"unit/test_{name}.py" for name in ("address_rules", "foreign_layouts", "sandbox_stores"))


SPARK_SESSIONS = 2


class FewerSparkSessions(LoadScopeScheduling):
    """Gives the modules that need a Spark session to the first two processes only, and the others to these when no such
    module is left. Measured: a session takes as much processor time as a tenth of all tests, most of it until Java has
    compiled what marks and sweeps run."""

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and not node.shutting_down and self._next_module(node) is None:
            node.shutdown()  # after the tests that it already has
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if module := self._next_module(node):
            self.workqueue.move_to_end(module, last=False)
        super()._assign_work_unit(node)

    def _next_module(self, node: WorkerController) -> str | None:
        has_session = self.nodes.index(node) < SPARK_SESSIONS
        suitable = (module for module in self.workqueue if needs_spark(module) is has_session)
        return next(suitable, next(iter(self.workqueue), None) if has_session else None)


def needs_spark(module: str) -> bool:
    name = module.removeprefix("tests/")
    return name in UNITS_WITH_SPARK or not name.startswith(WITHOUT_SPARK)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return FewerSparkSessions(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that take longest, so that all processes end at about the same time."""

    def place(item: pytest.Item) -> int:
        names = (number for number, name in enumerate(LONGEST_FIRST) if item.path.as_posix().endswith(name))
        return next(names, len(LONGEST_FIRST))

    items.sort(key=place)


def pytest_sessionstart() -> None:
    """Collect tests without garbage collection, which would find nothing and take four seconds in each process."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude modules and collected tests from garbage collection for good. Collect as rarely as the command line does:
    with Python's default, it took a twentieth of the tests' time."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _libraries_compute_once() -> Iterator[None]:
    """Keep what two libraries compute anew at each call, although it never changes in a process: Typer the command line
    with all options, at each command; Alembic the list of Dagster's database migrations, three times for each history
    that is opened. Together they took a twentieth of the tests' time."""
    with (
        mock.patch("typer.main.get_command", functools.cache(typer.main.get_command)),
        mock.patch.object(ScriptDirectory, "from_config", _remembering(ScriptDirectory.from_config)),
    ):
        yield


def _remembering(read: Callable[[Config], ScriptDirectory]) -> Callable[[Config], ScriptDirectory]:
    """`read`, with one result for all configurations of the same file and folder."""
    known: dict[tuple[str | None, str | None], ScriptDirectory] = {}

    def read_once(config: Config) -> ScriptDirectory:
        key = (config.config_file_name, config.get_main_option("script_location"))
        if key not in known:
            known[key] = read(config)
        return known[key]

    return read_once


@pytest.fixture(autouse=True)
def _no_repositories_of_earlier_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the repositories that a test created on a lakeFS server, which other tests may use, too: a mark reads all
    repositories of its server, so that each test would take longer than the one before."""
    server = request.getfixturevalue("sandbox") if "sandbox" in request.fixturenames else None
    if not isinstance(server, Sandbox):
        yield
        return
    known = server.names()
    yield
    for name in server.names() - known:
        server.delete(name)


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[s3_servers.SeaweedFS]:
    """One SeaweedFS server for the whole session; each test makes buckets of its own."""
    with s3_servers.seaweedfs() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[s3_servers.MotoServer]:
    """One moto S3 server for the whole session; each test makes buckets of its own."""
    with s3_servers.moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[gcs_server.FakeGCS]:
    """One fake-gcs-server for the whole session; each test makes buckets of its own. Skipped with a warning if there is
    no binary."""
    binary = gcs_server.binary()
    if binary is None:
        sentence = "no fake-gcs-server for this machine: nothing about Google Cloud Storage is tested"
        warnings.warn(sentence, stacklevel=1)
        pytest.skip(sentence)
    with gcs_server.fake_gcs(binary) as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[azurite_server.Azurite]:
    """One Azurite for the whole session; each test makes containers of its own."""
    with azurite_server.azurite() as server:
        yield server


@pytest.fixture(scope="session", params=["local", "seaweedfs", "moto", "gcs", "azure"])
def provider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Provider:
    """One kind of store, with its declared capabilities. A test that uses this runs once for each kind."""
    if request.param == "local":
        return store_providers.local(tmp_path_factory.mktemp("local"))
    if request.param == "seaweedfs":
        return store_providers.seaweedfs(request.getfixturevalue("seaweedfs"))
    if request.param == "gcs":
        account = os.environ.get(store_providers.REAL_GCS)
        return (
            store_providers.real_gcs(account) if account else store_providers.gcs(request.getfixturevalue("fake_gcs"))
        )
    if request.param == "azure":
        account = os.environ.get(store_providers.REAL_AZURE)
        return (
            store_providers.real_azure(account)
            if account
            else store_providers.azure(request.getfixturevalue("azurite"))
        )
    return store_providers.moto(request.getfixturevalue("moto_server"))
