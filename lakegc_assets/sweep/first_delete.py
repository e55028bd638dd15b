"""The first delete of a sweep: a single approved object, with every check of a round.

Credentials may suffice for lakegc's own folder but not for objects. If the store refuses the first delete because of
missing permissions, it would refuse them all, so the sweep ends there. The test object is always an approved one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from lakegc_assets.sweep.context import Reverification, SweepRun
from lakegc_assets.sweep.delete_rounds import Tally, delete_check, expiry_time, run_round
from lakegc_assets.sweep.head_watch import HeadWatch
from spark_resources.deleting.lookup import Lookup
from spark_resources.deleting.sweep_task import Action
from spark_resources.errors import Forbidden
from spark_resources.model import PENDING, RECEIPTS, Outcome
from spark_resources.spark.tasks import Rows, Tasks, first_rows
from spark_resources.stores.permissions import MISSING_PERMISSIONS, delete_permission, identity

MAX_LOOKED_UP = 100  # objects; the first one that is unchanged since the mark is deleted


@dataclass(frozen=True, slots=True)
class FirstDelete:
    """The outcome of the first delete. `address` is None if all objects that were looked up have changed since the
    mark, or if no delete could be sent in time: it is then still unknown whether the permissions suffice."""

    address: str | None = None
    tally: Tally = field(default_factory=Tally)


def delete_first(
    run: SweepRun, garbage: Rows, action: Action, verification: Reverification, heads: HeadWatch
) -> FirstDelete:
    """Delete or quarantine the first of these objects (columns of PENDING) that is unchanged since the mark, if there
    is one among the first MAX_LOOKED_UP. Raises `Forbidden` if the store reports missing permissions.

    The object gets a receipt like any other, so if it fails, running the command again retries it.
    """
    rows = first_rows(garbage, ["slice", "address"], MAX_LOOKED_UP).select(PENDING.names).cast(PENDING)
    unchanged = delete_check(run)(rows, Lookup(run.store).look_up(rows)).unchanged.slice(0, 1)
    if not len(unchanged):
        return FirstDelete()
    single = Tasks.of(run.spark, unchanged.cast(PENDING))
    tally = run_round(run, single, action, run.receipts, verification.number, expiry_time(run, verification), 1, heads)
    if not tally.total:
        return FirstDelete(tally=tally)
    if tally.objects[Outcome.FAILED.value]:
        refuse_missing_permissions(run, action, receipts_of_round(run, verification.number))
    return FirstDelete(unchanged["address"][0].as_py(), tally)


def receipts_of_round(run: SweepRun, number: int) -> pa.Table:
    tables = [run.receipts.read(key) for key in run.receipts.keys("receipt", f"{number:04d}/")]
    return pa.concat_tables([RECEIPTS.empty_table(), *tables])


def refuse_missing_permissions(run: SweepRun, action: Action, receipts: pa.Table) -> None:
    """Raise `Forbidden` if the receipt of a failed object has one of the store's codes for missing permissions."""
    failed = [row for row in receipts.to_pylist() if row["outcome"] == Outcome.FAILED.value]
    refused = [row for row in failed if row["code"] in MISSING_PERMISSIONS]
    if not refused:
        return
    place, record, example = run.place, run.mark.record, refused[0]
    scheme = place.namespace.uri.partition("://")[0]
    quarantine = action is Action.QUARANTINE
    verb = "quarantine" if quarantine else "delete"
    also = " and permission to write under _lakefs/retention/gc/quarantine/" if quarantine else ""
    response = " ".join(filter(None, (example["code"], example["why"]))).rstrip(".")
    raise Forbidden(
        f"the store refused to {verb} {example['address']!r}, the first object of the sweep of mark {record.mark_id} "
        f"of {record.repository}: {response}. A permission is missing in {run.store.where} for "
        f"{identity(scheme, place.settings)}. Required: {delete_permission(scheme)}{also}. Grant the permission, or "
        f"set other credentials, and run the same command again: lakegc sweep {record.repository} {record.mark_id}"
        f"{' --quarantine' if quarantine else ''}. No other delete was sent, and nothing was deleted."
    )
