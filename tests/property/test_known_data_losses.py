"""Losses and near losses in other collectors: each test shows that lakegc handles the same situation.

Each test names the public report of its loss. Cases that another test already covers are in the folder of their
subject; the tests here need a whole mark, or belong to no other folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakegc_assets.mark.full_listing import all_parts, candidates_in, split_parts
from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.mark.retained_commits import verified_commit
from lakegc_assets.progress import listening
from lakegc_assets.resources import MarksResource
from lakegc_assets.rules import garbage as rule
from spark_resources.errors import DamagedData, LakegcError
from spark_resources.lakefs.resource import LakeFSResource
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.mark_store.mark import Mark
from spark_resources.model import ADDRESSES, STORED_OBJECTS, AddressType, Commit, MarkState, Namespace, Rules
from spark_resources.spark.task_report import TaskReport
from spark_resources.sstable import Entry, commit_id
from spark_resources.stores.base import Capabilities
from spark_resources.stores.place import Place
from spark_resources.stores.settings import StoreSettings
from tests.support.mark_runs import ANY_AGE, Marked, Marker, SharedSpark, Sweeper, environment, target_of
from tests.support.sweep_tasks import Task, task
from tests.support.tampering_proxy import tampering_proxy

__all__ = ["task"]


def garbage(lake: SandboxRepository, name: str) -> Entry:
    """An object of the namespace that nothing refers to, unless the test makes something refer to it."""
    entry = lake.put("main", name, f"bytes of {name}".encode())
    lake.delete("main", [name])
    return entry


def days_before(moment: datetime, days: int) -> datetime:
    return moment - timedelta(days=days)


# --- marks of repositories in which every object is referred to in a way that somebody once overlooked ---------------


class Killed(BaseException):
    """Ends a mark halfway, as a signal would: none of lakegc's code catches it."""


@dataclass(frozen=True)
class Quiet:
    """A repository, marked once by a mark that was killed and then by another one, and its objects by kind.

    The first of its commits is expired; the second is retained and no branch's head, so that no reader requests it. For
    each message of the first mark, `killed` has the mark's state in the namespace, and why it could not be approved.
    `log_lines` are the requests that the server received and the messages of the second mark, in order.
    """

    lake: SandboxRepository
    second: Commit
    mark: Marked
    killed: Sequence[tuple[str, MarkState, str]]
    log_lines: Sequence[str]
    garbage: set[str]
    readded: Entry
    spelled: dict[str, str]
    copied: dict[str, str]


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quiet]:
    log_lines: list[str] = []
    with Sandbox(tmp_path_factory.mktemp("quiet"), request_log=log_lines.append) as sandbox:
        lake, now = sandbox.create("lake"), sandbox.now()
        settings = {**sandbox.settings, "trusted_repositories": "*"}
        set_rules(lake, Rules(7))
        readded = lake.put("main", "readded", b"readded")
        once = lake.put("main", "copied once", b"copied and committed")
        lake.commit("main", "first", date=days_before(now, 60))
        spelled = spellings(lake, sandbox.local_path, "committed")
        lake.delete("main", ["readded"])
        lake.stage("main", [replace(readded, metadata={"added": "again"})])
        lake.copy("main", "copy of once", "copied once", shallow=True)
        lake.delete("main", ["copied once"])
        second = lake.commit("main", "second", date=days_before(now, 40))
        lake.delete("main", [entry.path.decode() for entry in lake.listing(second.id)[0] if isinstance(entry, Entry)])
        lake.put("main", "last", b"the head has nothing else")
        lake.commit("main", "third", date=days_before(now, 1))
        spelled |= spellings(lake, sandbox.local_path, "staged")
        again = lake.put("main", "copied again", b"copied and staged")
        lake.copy("main", "copy of again", "copied again", shallow=True)
        lake.delete("main", ["copied again"])
        copied = {"copy of once": once.address, "copy of again": again.address}
        free = {garbage(lake, f"garbage {number}").address for number in range(2)}
        killed = killed_at(settings, "writing the expired set")
        log_lines.clear()
        with listening(log_lines.append):
            mark = Marker().mark(settings, "lake", "m1", ANY_AGE)
        yield Quiet(lake, second, mark, killed, list(log_lines), free, readded, spelled, copied)


def spellings(lake: SandboxRepository, configured: Path, where: str) -> dict[str, str]:
    """Objects that are staged by one form of address each: the form by the key."""
    roots = ("", "local://lake/", f"local://{configured}/lake/")
    forms = [(root, kind) for root in roots for kind in (AddressType.BY_PREFIX, AddressType.FULL) if root or not kind]
    by_name = {}
    for root, kind in [*forms, ("", AddressType.RELATIVE)]:
        entry = garbage(lake, f"{where} {kind} {root}")
        lake.stage("main", [replace(entry, address=root + entry.address, address_type=kind)])
        by_name[entry.address] = f"{where}, {kind.name}, {root or 'relative'}"
    return by_name


def killed_at(settings: dict[str, str], last: str) -> list[tuple[str, MarkState, str]]:
    """The state in the namespace at each message of a mark m0 that is killed at its last one."""
    states: list[tuple[str, MarkState, str]] = []
    place = target_of(settings, "lake").place

    def look(sentence: str) -> None:
        with pytest.raises(LakegcError) as refused:
            Sweeper().approve(settings, "lake", "m0")
        states.append((sentence, Mark.open(place, "m0").record.state, str(refused.value)))
        if sentence == last:
            raise Killed

    with listening(look), pytest.raises(Killed):
        Marker().mark(settings, "lake", "m0", ANY_AGE)
    return states


def test_an_address_that_is_deleted_and_added_again_is_live(quiet: Quiet) -> None:
    """A retained commit has it again, though the commit that first had it has expired.

    apache/iceberg#17304, apache/iceberg#2131
    """
    expired = {verdict["message"] for verdict in quiet.mark.verdicts() if not verdict["retained"]}
    assert "first" in expired
    assert "second" not in expired
    assert quiet.lake.stat(quiet.second.id, "readded").address == quiet.readded.address
    assert quiet.readded.address not in quiet.mark.expired
    assert quiet.garbage <= quiet.mark.expired


def test_an_address_is_live_in_whatever_form_it_is_referenced(quiet: Quiet) -> None:
    """Whether staged or committed, and whether relative, after either full form of the namespace, or by prefix, it is
    the same object.

    treeverse/lakeFS#4658, treeverse/lakeFS#4698
    """
    assert len(quiet.spelled) == 12
    assert [quiet.spelled[address] for address in sorted(quiet.mark.expired & quiet.spelled.keys())] == []
    assert quiet.garbage <= quiet.mark.expired


def test_an_object_whose_source_path_is_deleted_stays_live_because_of_its_shallow_copy(quiet: Quiet) -> None:
    """A shallow copy, committed or staged, keeps the object that it shares when the source path is deleted.

    treeverse/lakeFS#10199
    """
    where = {"copy of once": quiet.second.id, "copy of again": "main"}
    assert {path: quiet.lake.stat(ref, path).address for path, ref in where.items()} == quiet.copied
    assert not set(quiet.copied.values()) & quiet.mark.expired
    assert quiet.garbage <= quiet.mark.expired


def test_staged_addresses_are_read_before_commits_and_once_more_at_the_end(quiet: Quiet) -> None:
    """Staged addresses are read after the listing and before any commit, twice, and once more after all commits.

    treeverse/lakeFS: design/accepted/gc_plus/uncommitted-gc.md
    """
    names = {
        "listing the folder": "listing",
        "/gc/prepare_uncommited ": "staged",
        "/refs/dump ": "graph",
        "/gc/prepare_commits/async ": "commits",
        " ranges with ": "ranges",
        "probing branches": "served",
    }
    order = [name for line in quiet.log_lines for words, name in names.items() if words in line]
    first, last = order.index("graph"), len(order) - order[::-1].index("commits")

    assert order[:first] == ["listing", "staged", "staged"]
    assert order[first:last] == ["graph", "commits"]
    assert [name for name in order[last:] if name != "served"] == ["ranges", "staged", "graph"]


def test_a_mark_killed_between_any_two_steps_stays_unfinished_and_blocks_no_later_mark(quiet: Quiet) -> None:
    """The killed mark can't be approved; the next mark starts from scratch, and is complete.

    kopia/kopia#3563, kopia/kopia#4769
    """
    assert len(quiet.killed) > 10
    assert {state for _, state, _ in quiet.killed} == {MarkState.MARKING}
    assert [why for _, _, why in quiet.killed if "not finished" not in why] == []
    record = Mark.open(quiet.mark.target.place, "m0").record
    assert (record.state, record.finished, record.digest) == (MarkState.MARKING, None, None)
    assert quiet.mark.record.state is MarkState.MARKED
    assert quiet.mark.expired == quiet.garbage


# --- marks of a repository that others write to ----------------------------------------------------------------------


@dataclass
class ConcurrentWrites:
    """Writes by others, each run the first time that a request or a message of the mark contains its words."""

    waiting: dict[str, Callable[[], object]] = field(default_factory=dict)

    def heard(self, line: str) -> None:
        for words in [words for words in self.waiting if words in line]:
            self.waiting.pop(words)()


@dataclass(frozen=True)
class Busy:
    """A repository that was written to while it was marked, and objects of it by what became of them."""

    lake: SandboxRepository
    mark: Marked
    garbage: str
    landed: str
    renamed: str
    topic: str
    withdrawn: str


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Busy]:
    others = ConcurrentWrites()
    folder = tmp_path_factory.mktemp("busy")
    with Sandbox(folder, request_log=others.heard, uncommitted_page_size=1) as sandbox:
        lake, now = sandbox.create("lake"), sandbox.now()
        set_rules(lake, Rules(7))
        lake.put("main", "a", b"a")
        lake.commit("main", "first", date=days_before(now, 60))
        for branch in ("landing", "racing", "topic", "withdrawn"):
            lake.create_branch(branch, "main")
        withdrawn = lake.put("withdrawn", "staged", b"staged on a branch that goes")
        landed, free = garbage(lake, "landed"), garbage(lake, "garbage")
        lake.put("racing", "b", b"the first page ends here")
        renamed = lake.put("racing", "z", b"renamed and committed")
        topic = lake.put("topic", "t", b"of the topic alone")
        lake.commit("topic", "topic", date=days_before(now, 50))

        def land() -> None:
            lake.stage("landing", [replace(landed, path=b"landed")])
            lake.commit("landing", "landed")

        def rename() -> None:
            lake.copy("racing", "a copy", "z", shallow=True)
            lake.delete("racing", ["z"])

        others.waiting |= {
            "/gc/prepare_uncommited 201": rename,
            "staged addresses (second time)": lambda: lake.commit("racing", "the copy"),
            "/branches?": lambda: lake.delete_branch("withdrawn"),
            "/gc/prepare_commits/status": land,
            "reading the metaranges of retained commits": lambda: lake.delete_branch("topic"),
        }
        settings = {**sandbox.settings, "trusted_repositories": "*"}
        with listening(others.heard):
            mark = Marker().mark(settings, "lake", "m1", ANY_AGE)
        assert not others.waiting
        yield Busy(lake, mark, free.address, landed.address, renamed.address, topic.address, withdrawn.address)


def test_objects_of_a_commit_created_between_the_servers_list_and_the_walk_are_live(busy: Busy) -> None:
    """The commit is created after the list of commits was written, and before the commits are walked.

    treeverse/lakeFS#8282, treeverse/lakeFS#8261
    """
    assert busy.lake.stat("landing", "landed").address == busy.landed
    assert busy.landed not in busy.mark.expired
    assert busy.garbage in busy.mark.expired


def test_a_moved_object_that_is_on_no_list_is_live_because_of_its_commit(busy: Busy) -> None:
    """A shallow copy is made behind the cursor, the source is deleted ahead of the cursor, and the copy is committed.
    Commits are read after staged addresses.

    treeverse/lakeFS#5088
    """
    assert busy.lake.stat("racing", "a copy").address == busy.renamed
    assert busy.renamed not in busy.mark.expired
    assert busy.garbage in busy.mark.expired


def test_a_branch_deleted_during_a_mark_does_not_stop_it(busy: Busy) -> None:
    """The branch is deleted after branches were listed, and before its turn. What was staged on it when it was read is
    kept.

    treeverse/lakeFS#9772
    """
    assert "withdrawn" not in {branch.id for branch in busy.lake.branches()}
    assert busy.mark.record.state is MarkState.MARKED
    assert busy.withdrawn not in busy.mark.expired


def test_a_commit_that_was_a_branch_head_during_a_mark_is_retained(busy: Busy) -> None:
    """A later reading, which no longer finds the branch, only adds live objects.

    gitgitgadget/git#2219
    """
    assert "topic" not in {branch.id for branch in busy.lake.branches()}
    assert {verdict["message"] for verdict in busy.mark.verdicts() if verdict["retained"]} >= {"topic"}
    assert busy.topic not in busy.mark.expired
    assert busy.garbage in busy.mark.expired


# --- what a listing, a clock, a table and a store may say ------------------------------------------------------------


ALIEN = (
    "_lakefs/" + "ab" * 32, "_lakefs/retention/gc/rules/config.pb", "_lakefs/stats.puffin", "_delta_log/0.json",
    "metadata/snap-1.avro", "metadata/stats.puffin", "data-2/x", "database/x", "dummy", "folder/x",
)  # fmt: skip
KNOWN = ("data/direct", "data/slice/id", "data/slice/id,token", "data/!ab/c/slice/id", "data/_lakefs/id", "legacy")


@pytest.mark.parametrize("local_adapter", [True, False])
def test_unknown_object_kinds_are_never_candidates(tmp_path: Path, local_adapter: bool) -> None:
    """Keys that lakeFS doesn't give to objects aren't even listed, no matter what they are or who wrote them.

    projectnessie/nessie#9879, trinodb/trino#19965, apache/amoro#1959
    """
    (tmp_path / "lake").mkdir()
    place = Place(Namespace.parse("local://lake"), StoreSettings(local_path=str(tmp_path)))
    parts = ["0a1b2c-00001"]  # parts of an unfinished upload, where the local adapter stores them
    for key in [*ALIEN, *KNOWN, *parts]:
        place.store().write(key, b"x")
    listed = split_parts(place.store(), all_parts(place.store()), max_pieces=8)
    batches = candidates_in(place, listed, TaskReport(), local_adapter=local_adapter)
    candidates = [address for batch in batches for address in batch.column("address").to_pylist()]

    assert sorted(candidates) == sorted([*KNOWN, *([] if local_adapter else parts)])


def test_commits_of_an_unknown_version_stop_the_mark() -> None:
    """The rules of earlier versions might not apply to them.

    lance-format/lance#8956
    """
    known = Commit("", (), datetime(2026, 1, 1, tzinfo=UTC), "")
    known = replace(known, id=commit_id(known))
    assert verified_commit(known) == known
    with pytest.raises(DamagedData, match="has version 2, which this version of lakegc doesn't support"):
        verified_commit(replace(known, version=2))


def test_ages_are_measured_by_the_stores_clock(tmp_path: Path) -> None:
    """The store's clock is the one that dates objects, unlike the server's or this machine's.

    earth-mover/icechunk#2310
    """
    apart = timedelta(minutes=3)
    with Sandbox(tmp_path) as sandbox, tampering_proxy(sandbox.endpoint_url) as server:
        sandbox.create("lake")
        sandbox.set_clock(days_before(datetime.now(UTC), 30))
        server.date_offset = apart
        with environment({**sandbox.settings, "endpoint_url": server.endpoint}):
            marks = MarksResource(lakefs=LakeFSResource(), spark=SharedSpark())
            try:
                record = marks.begin("lake:m1", MarkOptions(), lambda _: None).mark.record
            finally:
                marks.release()
        now = sandbox.now()

    assert abs(now - record.start) < apart / 2
    assert record.cutoff == record.start - timedelta(hours=24)
    assert abs(now + apart - record.server_now) < apart / 2


def test_an_object_whose_time_in_whole_seconds_may_be_after_the_cutoff_is_kept() -> None:
    """If a store reports whole seconds, an object that may have been written right after the cutoff counts as young.

    earth-mover/icechunk#2368
    """
    cutoff, second = datetime(2026, 11, 20, 8, 50, 0, 500_000, UTC), timedelta(seconds=1)
    times = {
        "surely before": cutoff.replace(microsecond=0) - second,
        "maybe after": cutoff.replace(microsecond=0),
        "after": cutoff.replace(microsecond=0) + second,
    }
    rows = [
        {"address": name, "size": 1, "modified": modified, "checksum": None, "slice": "data/s/"}
        for name, modified in times.items()
    ]
    time_resolution, nothing = Capabilities().time_resolution, ADDRESSES.empty_table()
    stored = {rule.STORED: pa.Table.from_pylist(rows, schema=STORED_OBJECTS)}
    live = dict.fromkeys((rule.COMMITTED, rule.MAYBE_GONE, rule.UNCOMMITTED), nothing)
    status, counts = rule.reference_status(stored | live, cutoff, time_resolution)

    old = status.filter(pc.equal(status["status"], rule.Status.UNREFERENCED.value))
    assert old["address"].to_pylist() == ["surely before"]
    assert (counts["unreferenced"], counts["young"]) == (1, 2)


def test_an_object_written_after_the_listing_is_kept(task: Task) -> None:
    """An object that was written beside a listed object, or in its place, was not approved.

    apache/hudi#11600
    """
    rows = task.write("approved", "replaced")
    task.store.write("data/s/replaced", b"written when it was listed already")
    task.store.write("data/s/beside", b"x")
    counted = task.run(rows, task.config())

    assert counted == {"deleted": 1, "changed": 1}
    assert task.remaining() == {"replaced", "beside"}
    assert task.store.read("data/s/replaced") == b"written when it was listed already"
