"""How long a sweep of a synthetic repository takes, by phase, with a distant store.

    uv run python -m tests.bench.sweep --size M --store s3 --latency 0.03 --folder /tmp/bench

Approves the newest mark that `mark` made of the repository with the same options, and sweeps it as a user does. Each
response of the store is delayed by `--latency` seconds. In the end, none of the approved keys may be left.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from spark_resources.mark_store.mark import marks
from tests.bench.generate import built, folder_of, size_of
from tests.bench.mark import DELETING, finished_mark, lakegc, show
from tests.bench.sizes import SIZES
from tests.bench.stores import REPOSITORY
from tests.support.store_proxy import store_proxy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="M")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--store", choices=("s3", "inventory"), default="s3")
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--report", type=Path)
    chosen = parser.parse_args()
    size = size_of(chosen.size, chosen.factor)
    folder = folder_of(chosen.folder, size, chosen.store)
    home = folder / "dagster"
    with built(folder, size, chosen.store, print) as (served, _):
        assert served.store is not None
        newest = max(marks(served.place()), key=lambda record: record.start)
        mark = finished_mark(served, newest.mark_id)
        expired = mark.fact("expired_set", "expired")
        approve = ["approve", REPOSITORY, newest.mark_id, "--yes", "--digest", str(newest.digest)]
        lakegc(served, approve, home)
        with store_proxy(served.store.endpoint_url) as proxy:
            proxy.latency_s = chosen.latency
            far = {"LAKEGC_S3_ENDPOINT_URL": proxy.endpoint}
            measured = lakegc(served, ["sweep", REPOSITORY, newest.mark_id], home, far)
        deleting = measured.phases[DELETING]
        deleting.count, deleting.unit = expired, "objects"
        left = sum(len(page.objects) for page in served.place().store().pages("data/"))
        title = f"sweep of {size.name}: {expired:,} objects, responses {chosen.latency * 1000:g} ms late, {left:,} left"
        show(measured, title, chosen.report)


if __name__ == "__main__":
    main()
