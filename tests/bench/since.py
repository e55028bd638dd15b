"""The requests of an incremental mark to the store, compared with those of a full mark at the same moment.

    uv run python -m tests.bench.since --size L --folder /tmp/bench

Copies the generated repository once, marks and sweeps it, and replaces a share of its live objects in `--commits`
commits on `main`, each of which replaces its part in a single range. Then an incremental and a full mark are made,
which must find the same set. Requests and bytes are the store's own counts, phase by phase.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from spark_resources.lakefs_sandbox.state import BranchRecord
from spark_resources.sstable import read_ranges
from tests.bench import names
from tests.bench.generate import built, committed, folder_of, size_of
from tests.bench.history import History
from tests.bench.mark import (
    ASKING,
    LISTING,
    METARANGES,
    RANGES,
    REASONS,
    Made,
    Measured,
    count_rates,
    expired_in,
    finished_mark,
    forget_marks,
    lakegc,
    options_of,
    run,
    show,
)
from tests.bench.names import Bytes, Numbers
from tests.bench.sizes import SIZES
from tests.bench.stores import REPOSITORY, Serving
from tests.bench.tables import path_of, written_range

COUNTED = {"listing": (LISTING,), "ranges": (METARANGES, RANGES, REASONS, ASKING)}


@dataclass(frozen=True)
class Grown(History):
    """A history with additional objects in new slices, written at a given time (seconds)."""

    more: int = 0
    at: int = 0

    def addresses(self, objects: Numbers) -> Bytes:
        end = self.firsts["end"]
        if (objects < end).all():
            return super().addresses(objects)
        rows = np.empty((len(objects), names.ADDRESS), dtype=np.uint8)
        old = objects < end
        rows[old] = super().addresses(objects[old])
        new = objects[~old]
        a_slice = max(end // self.size.slices, 1)
        opened = np.arange(-(-self.more // a_slice), dtype=np.int64) + self.at
        rows[~old] = names.addresses(new, np.full(len(new), self.at), names.slice_names(opened)[(new - end) // a_slice])
        return rows

    def sizes(self, objects: Numbers) -> Numbers:
        return np.where(objects < self.firsts["end"], super().sizes(objects), names.sizes(objects))


def change(served: Serving, before: Made, grown: Grown, commits: int) -> None:
    """Commit the new objects to `main`. Each commit adds an equal share to the next range."""
    state, size = served.sandbox._catalog.state, grown.size
    parts = np.array_split(np.arange(grown.more, dtype=np.int64) + grown.firsts["end"], commits)
    branch = state.branch(REPOSITORY, "main")
    parent = state.commit(REPOSITORY, branch.commit_id) if branch else None
    if parent is None:
        raise SystemExit("the repository has no branch main")
    table = before.place.store().read(f"_lakefs/{parent.metarange_id}")
    refs = list(read_ranges(table, name=parent.metarange_id))
    for number, objects in enumerate(parts):
        keys = [key.decode() for key in names.texts(grown.addresses(objects))]
        served.objects.fill(zip(keys, grown.sizes(objects).tolist(), [grown.at] * len(keys), strict=True))
        place = number % size.ranges
        *_, version = grown.versions(0, place)
        numbers = version.objects.copy()
        numbers[np.linspace(0, size.entries - 1, len(objects)).astype(np.int64)] = objects
        ref, table = written_range(grown, [path_of(0, place, slot) for slot in range(size.entries)], numbers)
        served.tables.put(f"_lakefs/{table.id}", table.data)
        refs = [*refs[:place], ref, *refs[place + 1 :]]
        made_at = datetime.fromtimestamp(grown.at + number, UTC)
        parent = committed(served.tables, refs, parent.id, made_at, parent.generation + 1, f"change {number}")
        with state.write_transaction():
            state.put_commit(REPOSITORY, parent)
            state.put_branch(REPOSITORY, BranchRecord("main", parent.id))


def marked(served: Serving, folder: Path, options: Sequence[str], title: str) -> tuple[Measured, Made]:
    """Run a mark, measure it, and print the result."""
    mark_id = f"since-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    measured = run(served, mark_id, options, folder / "dagster")
    mark = finished_mark(served, mark_id)
    count_rates(measured, mark)
    show(measured, f"{title}: {mark.fact('expired_set', 'expired'):,} expire")
    return measured, mark


def used(measured: Measured, kind: str, name: str) -> float:
    return sum(float(getattr(measured.phases[phase], name)) for phase in COUNTED[kind] if phase in measured.phases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="M")
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--commits", type=int, default=1)
    parser.add_argument("--folder", type=Path, required=True)
    chosen = parser.parse_args()
    size = size_of(chosen.size, 1)
    source, folder = (folder_of(chosen.folder, size, kind) for kind in ("s3", "s3-changed"))
    with built(source, size, "s3", print):
        pass
    if not folder.exists():
        shutil.copytree(source, folder.with_suffix(".part"), ignore=shutil.ignore_patterns("*.sock"))
        folder.with_suffix(".part").rename(folder)
    with built(folder, size, "s3", print) as (served, history):
        options, home = options_of("s3", folder), folder / "dagster"
        forget_marks(served)
        _, before = marked(served, folder, [*options, "--full"], f"{size.name}, the first mark")
        if not (folder / "swept").exists():
            approve = ["approve", REPOSITORY, before.mark.record.mark_id, "--yes", "--digest"]
            lakegc(served, [*approve, str(before.mark.record.digest)], home)
            lakegc(served, ["sweep", REPOSITORY, before.mark.record.mark_id], home)
            (folder / "swept").touch()
        grown = Grown(history.size, history.now, round(size.base * chosen.share), int(time.time()))
        change(served, before, grown, chosen.commits)
        optimized, mark = marked(served, folder, options, f"{size.name}, {grown.more:,} objects changed")
        clean, wanted = marked(served, folder, [*options, "--full"], f"{size.name}, everything looked at")
        if not mark.mark.record.is_incremental or expired_in(mark) != expired_in(wanted):
            raise SystemExit("the optimized mark isn't one, or found another set than the clean one")
        for kind, name in (("listing", "lists"), ("ranges", "requests"), ("ranges", "bytes")):
            incremental, all_of_it = used(optimized, kind, name), used(clean, kind, name)
            print(f"{kind}, {name}: {incremental:,.0f} of {all_of_it:,.0f}, {incremental / all_of_it:.1%}")
        print(f"seconds: {optimized.seconds:.1f} of {clean.seconds:.1f}, {optimized.seconds / clean.seconds:.1%}")


if __name__ == "__main__":
    main()
