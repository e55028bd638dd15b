"""How long a mark of a synthetic repository takes, by phase, compared with the minimum for each part.

    uv run python -m tests.bench.mark --size M --store s3 --folder /tmp/bench

Writes the repository into the folder once (`generate`), then runs `lakegc mark` as a user does, in its own process, and
compares the expired set with the known one. For each phase it reports: seconds, processor seconds of lakegc's processes
and of the store, requests to the store and to the lakeFS server, bytes, and peak memory. The limits of listing,
decoding, joining and writing are measured in the same run. `--runs` repeats the mark, `--limits no` skips the limits,
and `--report FILE` saves the tables as Markdown.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from rich.console import Console  # noqa: TID251
from rich.table import Table

from spark_resources.mark_store.mark import Mark
from spark_resources.model import EXPIRED_OBJECTS, RANGE_REFS
from spark_resources.spark.datasets import all_rows, file_batches
from spark_resources.stores.place import Place
from spark_resources.stores.probe import RECORD_KEY
from spark_resources.stores.retry import delete_own_files
from tests.bench import limits
from tests.bench.generate import built, folder_of, known, size_of
from tests.bench.history import History
from tests.bench.processes import JAVA, REST, WORKER, Watch, processor_seconds
from tests.bench.sizes import SIZES
from tests.bench.stores import BUCKET, REPOSITORY, STORES, Serving

MARKS = "_lakefs/retention/gc/"
AT_ONCE = 8  # requests of each process that lists for the limit
MIB, GIB = 1 << 20, 1 << 30
_PROGRESS_LINE = re.compile(r"\[ *[\d.]+ s\] (.*)")
_METRIC = re.compile(
    rf'^SeaweedFS_s3_(request_total|bucket_traffic_(?:sent|received)_bytes_total){{bucket="{BUCKET}"([^}}]*)}} (\S+)',
    re.M,
)
START, SPARK, LISTING, JOIN, WRITING = "Python and Dagster", "Java, Spark, first worker", "listing", "join", "writing"
RANGES, METARANGES, REASONS = "ranges", "metaranges", "reasons: expired ranges"
ASKING, DELETING = "asking branches", "deleting"
_PHASES = (
    (r"starting", START),
    (r"listing |reading [\d,]+ files?", SPARK),
    (r"searching for changes|including objects that may|looking up [\d,]+ obj", LISTING),
    (r"listed |[\d,]+ of [\d,]+ objects of the inv", "what is staged, twice"),
    (r"reading staged addresses", "what is staged, twice"),
    (r"reading the commit graph|waiting for|[\d,]+ of [\d,]+ commits", "commits"),
    (r"reading the metaranges", METARANGES),
    (r"reading [\d,]+ ranges?", RANGES),
    (r"comparing", JOIN),
    (r"determining expiry reasons", REASONS),
    (r"probing branches", ASKING),
    (r"reading once more", "staged and commits again"),
    (r"writing the expired", WRITING),
    (r".* may go$", "ending"),
    (r"re-verified", "re-verified"),
    (r"deleting |[\d,]+ of [\d,]+ objects done", DELETING),
)


def phase_of(sentence: str) -> str:
    return next((phase for pattern, phase in _PHASES if re.match(pattern, sentence)), sentence)


# --- measuring --------------------------------------------------------------------------------------------------------


USED = ("processor", "store", "requests", "lists", "bytes", "calls")
"""What is counted beside the time: `lists` of the requests list keys; `bytes` are those of objects, not of lists."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All counters at one moment: the time, and the resources used and bytes sent so far."""

    at: float
    processor: float = 0.0
    store: float = 0.0
    requests: float = 0.0
    lists: float = 0.0
    bytes: float = 0.0
    calls: int = 0


@dataclass
class Phase:
    """The cost of a phase. If it runs twice, the costs are added."""

    name: str
    seconds: float = 0.0
    processor: float = 0.0
    store: float = 0.0
    requests: float = 0.0
    lists: float = 0.0
    bytes: float = 0.0
    calls: int = 0
    peak: int = 0
    limit: float | None = None
    of_limit: str = ""
    count: int = 0
    unit: str = ""

    def add(self, begun: Reading, ended: Reading, peak: int) -> None:
        self.seconds += ended.at - begun.at
        for name in USED:
            setattr(self, name, getattr(self, name) + getattr(ended, name) - getattr(begun, name))
        self.peak = max(self.peak, peak)


@dataclass
class Measured:
    """One measured run: its phases in order, and peaks of memory."""

    phases: dict[str, Phase]
    seconds: float
    processor: float
    peaks: dict[str, int]
    load: float
    notes: list[str] = field(default_factory=list)


class Counters:
    """Reads all counters of a run."""

    def __init__(self, served: Serving, watch: Watch) -> None:
        self._served, self._watch = served, watch

    def read(self, at: float | None = None) -> Reading:
        now, requests, lists, received = at or time.monotonic(), 0.0, 0.0, 0.0
        if self._served.metrics_port:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{self._served.metrics_port}/metrics") as response:
                for name, labels, value in _METRIC.findall(response.read().decode()):
                    requests += float(value) if name == "request_total" else 0
                    lists += float(value) if 'type="LIST"' in labels else 0
                    received += float(value) if name != "request_total" else 0
        store = sum(processor_seconds(process) for process in self._served.processes)
        return Reading(now, self._watch.processor(), store, requests, lists, received, len(self._served.requests[0]))


def run(served: Serving, mark_id: str, options: Sequence[str], home: Path) -> Measured:
    """Run a mark. Raises `SystemExit` with its output if it fails."""
    return lakegc(served, ["mark", REPOSITORY, "--mark-id", mark_id, *options], home)


def lakegc(
    served: Serving, arguments: Sequence[str], home: Path, environment: Mapping[str, str] | None = None
) -> Measured:
    """Run a lakegc command and return its phases. Raises `SystemExit` with its output if it fails."""
    command = [str(Path(sys.executable).with_name("lakegc")), *arguments]
    load = os.getloadavg()[0]
    home.mkdir(exist_ok=True)
    environment = {**os.environ, **served.environment, "DAGSTER_HOME": str(home), **(environment or {})}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    watch = Watch(process.pid)
    counters = Counters(served, watch)
    first = last = Reading(time.monotonic())
    base = counters.read()
    first = last = replace(base, at=first.at, processor=0.0)
    phases: dict[str, Phase] = {}
    now, messages, split = START, [], False

    def close(reading: Reading, name: str) -> None:
        nonlocal last
        phases.setdefault(name, Phase(name)).add(last, reading, watch.since.get("all", 0))
        watch.since, last = {}, reading

    assert process.stderr is not None
    for line in process.stderr:
        messages.append(line)
        matched = _PROGRESS_LINE.search(line)
        if matched is None:
            continue
        reading, following = counters.read(), phase_of(matched[1])
        if now == SPARK and not split and watch.first_worker is not None:
            split = True
            at, used = max(last.at, watch.first_worker), max(last.processor, watch.at_first_worker)
            began = replace(last, at=at, processor=used)
            phases[SPARK] = Phase(SPARK)
            phases[SPARK].add(last, began, 0)
            last = began
            now = LISTING
        if following != now:
            close(reading, now)
            now = following
    code = process.wait()
    watch.stop()
    ended = counters.read()
    close(replace(ended, at=time.monotonic(), processor=max(watch.used, last.processor)), now)
    if code:
        raise SystemExit("".join(messages))
    return Measured(phases, last.at - first.at, sum(p.processor for p in phases.values()), dict(watch.peaks), load)


# --- what a mark made -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A finished mark and its place."""

    place: Place
    mark: Mark

    def fact(self, step: str, name: str) -> int:
        return int(self.mark.record.steps[step].facts.get(name, 0))


def finished_mark(served: Serving, mark_id: str) -> Made:
    place = served.place()
    return Made(place, Mark.open(place, mark_id))


def forget_marks(served: Serving) -> None:
    """Remove the marks of earlier runs, so that each mark is the first one. The probed capabilities of the store are
    kept."""
    store = served.place().store()
    keys = [f"{MARKS}{kind}/" for kind in ("lakegc", "unified", "uncommitted", "commits")]
    for prefix in keys:
        for page in store.pages(prefix):
            files_of_marks = (entry.key for entry in page.objects if entry.key != RECORD_KEY)
            delete_own_files(store, [key for key in files_of_marks if not key.endswith("/")])


def expired_in(found: Made) -> list[bytes]:
    """The addresses of the expired objects, in order."""
    dataset = found.mark.dataset("expired_set")
    batches = (
        file_batches(found.place, dataset.folder, file, EXPIRED_OBJECTS, columns=["address"]) for file in dataset.files
    )
    return sorted(
        address.encode() for tables in batches for table in tables for address in table["address"].to_pylist()
    )


def check(found: Made, history: History) -> int:
    """The number of expired objects. Raises `SystemExit` if they aren't the known ones."""
    addresses = expired_in(found)
    if addresses != known(history):
        wrong = set(addresses) ^ set(known(history))
        raise SystemExit(f"the expired set is wrong in {len(wrong):,} addresses, such as {sorted(wrong)[:3]}")
    return len(addresses)


# --- limits -----------------------------------------------------------------------------------------------------------


def limit_of_listing(served: Serving, history: History, folder: Path) -> float:
    """The seconds in which all keys can be listed without parsing them."""
    if served.store is None:
        root = served.sandbox.local_path / REPOSITORY
        listed, seconds = limits.by_all_cores(limits.files, [root / folder for folder in history.folders])
    elif (folder / "inventory").exists():
        listed, seconds = limits.by_all_cores(limits.inventory, sorted((folder / "inventory").iterdir()))
    else:
        prefixes = [served.prefix + folder for folder in history.folders]
        listing = partial(limits.raw, served.store, BUCKET, at_once=AT_ONCE)
        listed, seconds = limits.by_all_cores(listing, prefixes)
    if sum(listed) != history.firsts["end"]:
        raise SystemExit(f"the limit listed {sum(listed):,} keys of {history.firsts['end']:,}")
    return seconds


def add_limits(run: Measured, found: Made, served: Serving, history: History, folder: Path) -> None:
    """The limits of a run's phases, measured now."""
    phases, record = run.phases, found.mark.record
    phases[LISTING].limit = limit_of_listing(served, history, folder)
    phases[LISTING].of_limit = "responses not parsed" if served.store and served.metrics_port else "files"
    refs = all_rows(found.place, found.mark.dataset("committed_addresses", "ranges"), RANGE_REFS)
    tables = limits.fetched(found.place, [row["range_id"] for row in refs])
    entries, phases[RANGES].limit = limits.decoding(tables, proving=False)
    _, proving = limits.decoding(tables, proving=True)
    phases[RANGES].of_limit = "decoded from memory"
    run.notes.append(f"decoding and proving {entries:,} entries from memory: {proving:.2f} s")
    tables = {}
    live = [found.mark.dataset("committed_addresses", "addresses")]
    live += [found.mark.dataset("uncommitted_addresses", part) for part in ("first", "second")]
    stored = found.mark.dataset("namespace_slices")
    expired, seconds = limits.anti_join(found.place, stored, live, record.cutoff)
    run.notes.append(f"join and writing by plain pyarrow: {seconds:.2f} s for {expired:,} objects")
    phases[JOIN].limit, phases[JOIN].of_limit = seconds, "pyarrow, with writing"


def count_rates(run: Measured, found: Made) -> None:
    counts = (
        (LISTING, found.fact("namespace_slices", "objects"), "keys"),
        (METARANGES, found.fact("committed_addresses", "metaranges"), "metaranges"),
        (RANGES, found.fact("committed_addresses", "entries"), "entries"),
        (JOIN, found.fact("expired_set", "candidates") + found.fact("expired_set", "live_inside"), "rows"),
        (ASKING, found.fact("expired_set", "probes"), "paths"),
        (WRITING, found.fact("expired_set", "expired"), "objects"),
    )
    for name, count, unit in counts:
        if name in run.phases:
            run.phases[name].count, run.phases[name].unit = count, unit


# --- showing ----------------------------------------------------------------------------------------------------------

HEAD = (
    "phase",
    "seconds",
    "processor",
    "store's",
    "requests",
    "lists",
    "MB",
    "calls",
    "peak MiB",
    "a second",
    "limit",
    "ratio",
)


def rows(run: Measured) -> Iterator[list[str]]:
    for phase in [*run.phases.values(), None]:
        if phase is None:
            total = Phase("in all", run.seconds, peak=run.peaks["all"])
            for name in USED:
                setattr(total, name, sum(getattr(phase, name) for phase in run.phases.values()))
            phase = total  # noqa: PLW2901
        rate = f"{phase.count / phase.seconds:,.0f} {phase.unit}" if phase.count and phase.seconds else ""
        took = phase.seconds + (run.phases[WRITING].seconds if phase.name == JOIN and WRITING in run.phases else 0)
        limit = f"{phase.limit:.1f} ({phase.of_limit})" if phase.limit is not None else ""
        ratio = f"{took / phase.limit:.2f}" if phase.limit else ""
        used = (f"{number:.1f}" for number in (phase.seconds, phase.processor, phase.store))
        traffic = (f"{phase.requests:,.0f}", f"{phase.lists:,.0f}", f"{phase.bytes / 1e6:,.1f}", f"{phase.calls:,}")
        yield [phase.name, *used, *traffic, f"{phase.peak / MIB:,.0f}", rate, limit, ratio]


def show(run: Measured, title: str, report: Path | None = None) -> None:
    """Print a run's table. With a report, also append it there as Markdown."""
    table = Table(title=title, title_justify="left")
    for place, name in enumerate(HEAD):
        table.add_column(name, justify="right" if place else "left")
    lines = [f"| {' | '.join(HEAD)} |", "| --- |" + " ---: |" * (len(HEAD) - 1)]
    for row in rows(run):
        table.add_row(*row)
        lines.append(f"| {' | '.join(row)} |")
    Console(width=170).print(table)
    parts = ", ".join(f"{name} {run.peaks[name] / MIB:,.0f}" for name in (REST, JAVA, WORKER))
    notes = [f"peak memory in MiB: {parts}, all {run.peaks['all'] / MIB:,.0f}; load before {run.load:.2f}", *run.notes]
    for note in notes:
        print(note, flush=True)
    if report:
        with report.open("a") as file:
            file.write("\n".join([f"{title}\n", *lines, "", *notes, "", ""]))


def options_of(store: str, folder: Path) -> list[str]:
    if store == "local":
        return []
    young = ["--min-age", "0", "--allow-young"]  # the objects in the bucket were just written
    if store == "s3":
        return young
    as_of = datetime.fromtimestamp((folder / "objects.done").stat().st_mtime, UTC)
    return [
        *young,
        "--inventory",
        str(folder / "inventory"),
        "--inventory-taken",
        f"{as_of:%Y-%m-%dT%H:%M:%SZ}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="M")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--store", choices=STORES, default="s3")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--limits", choices=("yes", "no"), default="yes")
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args()
    size = size_of(chosen.size, chosen.factor)
    folder = folder_of(chosen.folder, size, chosen.store)
    with built(folder, size, chosen.store, print) as (served, history):
        options = options_of(chosen.store, folder)
        for _ in range(chosen.runs):
            forget_marks(served)
            mark_id = f"bench-{datetime.now(UTC):%Y%m%dT%H%M%S}"
            measured = run(served, mark_id, options, folder / "dagster")
            mark = finished_mark(served, mark_id)
            count_rates(measured, mark)
            expired = check(mark, history)
            if chosen.limits == "yes":
                add_limits(measured, mark, served, history, folder)
            title = f"{size.name} over {chosen.store}: {history.firsts['end']:,} objects, {expired:,} expire, as known"
            show(measured, title, chosen.report)


if __name__ == "__main__":
    main()
