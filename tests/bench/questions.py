"""How long a question takes on a large repository, each in its own process, as a user asks it.

    uv run python -m tests.bench.questions --size L --store s3 --folder /tmp/bench

Asks about the newest mark that `mark` made of the repository with the same options; makes one if there is none. Prints
the seconds of the fastest run, and processor seconds; the first line is what any command needs to start.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc

from spark_resources.mark_store.mark import Mark, marks
from spark_resources.mark_store.record import newest_finished
from spark_resources.model import EXPIRED_OBJECTS, NOT_RETAINED, RANGE_ADDRESSES
from spark_resources.spark.datasets import file_batches
from spark_resources.stores.place import Place
from tests.bench.generate import built, folder_of, size_of
from tests.bench.mark import lakegc, options_of, run
from tests.bench.sizes import SIZES
from tests.bench.stores import REPOSITORY, STORES


def examples(place: Place, mark_id: str, folder: Path) -> dict[str, tuple[str, ...]]:
    """A question of each kind: about a path, about live, expired and unknown addresses, and about the rules in files of
    this folder, which are written here."""
    mark = Mark.open(place, mark_id)

    def first(asset: str, part: str, schema: object, column: str) -> str:
        dataset = mark.dataset(asset, part)
        table = next(file_batches(place, dataset.folder, dataset.files[-1], schema))
        return str(table[column].filter(pc.is_valid(table[column]))[-1].as_py())

    path = first("expired_set", "", EXPIRED_OBJECTS, "path")
    shorter, longer = folder / "shorter.json", folder / "longer.json"
    for file, days in ((shorter, 1), (longer, 30)):
        file.write_text(json.dumps({"default_retention_days": days, "branches": []}))
    return {
        "explain: a path": ("explain", REPOSITORY, path, "--path"),
        "explain: an expired address": (
            "explain",
            REPOSITORY,
            first("expired_set", "not_retained", NOT_RETAINED, "address"),
        ),
        "explain: a live address": (
            "explain",
            REPOSITORY,
            first("committed_addresses", "addresses", RANGE_ADDRESSES, "address"),
        ),
        "pins": ("pins", REPOSITORY),
        "what-if: shorter": ("what-if", REPOSITORY, "--rules", str(shorter)),
        "what-if: shorter and longer": ("what-if", REPOSITORY, "--rules", str(shorter), "--rules", str(longer)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="L")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--store", choices=STORES, default="s3")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=2)
    chosen = parser.parse_args()
    size = size_of(chosen.size, chosen.factor)
    folder = folder_of(chosen.folder, size, chosen.store)
    with built(folder, size, chosen.store, print) as (served, _):
        newest = newest_finished(marks(served.place()))
        if newest is None:
            run(
                served, f"bench-{datetime.now(UTC):%Y%m%dT%H%M%S}", options_of(chosen.store, folder), folder / "dagster"
            )
            newest = newest_finished(marks(served.place()))
        assert newest is not None
        commands = {"start-up (status)": ("status", REPOSITORY), **examples(served.place(), newest.mark_id, folder)}
        for name, command in commands.items():
            runs = [lakegc(served, command, folder / "dagster") for _ in range(chosen.runs)]
            fastest = min(runs, key=lambda measured: measured.seconds)
            processor = min(measured.processor for measured in runs)
            print(f"{fastest.seconds:6.1f} s, {processor:6.1f} processor seconds: {name}", flush=True)


if __name__ == "__main__":
    main()
