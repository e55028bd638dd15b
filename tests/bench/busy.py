"""How the deletes of a sweep behave against a store that throttles.

    uv run python -m tests.bench.busy --objects 20000 --bears 1000

A proxy in front of SeaweedFS answers 503 to every batch of deletes beyond a given number of keys per second, as S3
does. Each second, one line shows how many keys were sent, how many of them were rejected, and the number of requests;
the last line shows the outcomes of the keys.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

from lakegc_assets.sweep.delete_rounds import run_round
from lakegc_assets.sweep.head_watch import HeadWatch
from spark_resources.deleting.sweep_task import Action
from spark_resources.spark.resource import SparkResource
from spark_resources.spark.tasks import Tasks, as_frame
from tests.bench.deleting import keys_of, upload
from tests.support.mark_runs import environment
from tests.support.s3_servers import seaweedfs
from tests.support.store_proxy import Fault, keys_in, kind_of, store_proxy
from tests.support.sweep_without_lakefs import BUCKET, NOTHING_NEW, approved, run_alone


class Throttle:
    """Rejects batches once the store has received its keys for the current second."""

    def __init__(self, keys_a_second: float) -> None:
        self.bears, self.room, self.at = keys_a_second, keys_a_second, time.monotonic()
        self.began, self.lock = self.at, threading.Lock()
        self.sent: Counter[int] = Counter()
        self.away: Counter[int] = Counter()
        self.requests: Counter[int] = Counter()

    def plan(self, method: str, path: str, body: bytes) -> Fault | None:
        if kind_of(method, path) != "delete":
            return None
        keys = len(keys_in(body))
        with self.lock:
            now = time.monotonic()
            self.room, self.at = min(self.bears, self.room + (now - self.at) * self.bears), now
            second = int(now - self.began)
            self.sent[second] += keys
            self.requests[second] += 1
            if self.room <= 0:
                self.away[second] += keys
                return Fault.BUSY
            self.room -= keys
            return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--objects", type=int, default=20_000)
    options.add_argument("--bears", type=float, default=1_000)
    chosen = options.parse_args()
    keys = keys_of(chosen.objects)
    with environment({}), seaweedfs() as server, store_proxy(server.endpoint_url) as proxy:
        server.make_bucket(BUCKET)
        upload(server, "busy/", keys)
        run = run_alone("busy", server.settings(s3_endpoint_url=proxy.endpoint), SparkResource())
        rows = as_frame(Tasks.of(run.spark, approved(run, keys))).persist()
        rows.count()
        throttle = Throttle(chosen.bears)
        proxy.plan = throttle.plan
        until = datetime.now(UTC) + timedelta(minutes=30)
        tally = run_round(run, rows, Action.DELETE, run.receipts, 1, until, len(keys), HeadWatch.of(run, NOTHING_NEW))
        proxy.plan = lambda *_: None
        run.lease.release()
    print("second   keys sent   turned away   requests")
    for second in sorted(throttle.sent):
        accepted, away, requests = throttle.sent[second], throttle.away[second], throttle.requests[second]
        print(f"{second:6}   {accepted:9,}   {away:11,}   {requests:8,}")
    total, away = sum(throttle.sent.values()), sum(throttle.away.values())
    print(
        f"{dict(tally.objects)}; {total:,} keys sent, {away / total:.0%} of them turned away, in {tally.seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
