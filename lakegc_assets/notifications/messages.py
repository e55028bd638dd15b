"""Notifications, and their form in JSON and for Slack. Pure.

They contain numbers and names of repositories and marks, but never secrets, keys of objects or the text of an error,
which may contain secrets and keys: the receiver may be outside the organization.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lakegc_assets.formatting import escaped_name, is_or_are, plural, size
from spark_resources.identifiers import Event, Partition
from spark_resources.model import Outcome

BODY_VERSION = 1
SIGNATURE_HEADER = "X-Lakegc-Signature"


@dataclass(frozen=True, slots=True)
class Notification:
    """One event. `time` is Dagster's, `numbers` are counts and sizes in bytes, and `run_id` is the run in Dagster.

    `command` is the next command of lakegc, as its arguments.
    """

    event: Event
    partition: Partition
    time: datetime
    run_id: str
    summary: str
    command: tuple[str, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The same for each delivery of one event, so that receivers can ignore repetitions."""
        return f"{self.run_id}/{self.event}"

    @property
    def next_command(self) -> str:
        return shlex.join(("lakegc", *self.command))


def json_body(notification: Notification, owners: Sequence[str]) -> bytes:
    """The documented JSON document. ASCII only: control and non-ASCII characters are escaped."""
    return json.dumps(
        {
            "version": BODY_VERSION,
            "id": notification.id,
            "event": notification.event.value,
            "repository": notification.partition.repository,
            "mark": notification.partition.mark_id,
            "time": notification.time.astimezone(UTC).isoformat(timespec="seconds"),
            "owners": list(owners),
            "summary": notification.summary,
            "numbers": dict(notification.numbers),
            "next": notification.next_command,
            "run": notification.run_id,
        }
    ).encode()


def slack_body(notification: Notification, owners: Sequence[str]) -> bytes:
    """A message for Slack and compatible receivers. Names can't contain links or mentions, which begin with `<`."""
    who = f" Owners: {', '.join(owners)}." if owners else ""
    text = f"{notification.summary}{who} Next: `{notification.next_command}`"
    return json.dumps({"text": html.escape(escaped_name(text), quote=False)}).encode()


def signature(body: bytes, secret: str) -> str:
    """The value of SIGNATURE_HEADER: HMAC-SHA-256 over the exact bytes of the body."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


# --- the notification of each event -----------------------------------------------------------------------------------


def approval_waiting(
    partition: Partition, time: datetime, run_id: str, *, objects: int, expired_bytes: int
) -> Notification:
    repository, mark_id = partition.repository, partition.mark_id
    return Notification(
        Event.APPROVAL_WAITING, partition, time, run_id,
        f"Mark {mark_id} of {repository} is waiting for approval: {plural(objects, 'object')}, {size(expired_bytes)}.",
        ("review", repository, mark_id), {"objects": objects, "bytes": expired_bytes},
    )  # fmt: skip


def brakes_tripped(
    partition: Partition, time: datetime, run_id: str, *, names: Sequence[str], objects: int, expired_bytes: int
) -> Notification:
    repository, mark_id = partition.repository, partition.mark_id
    return Notification(
        Event.BRAKES_TRIPPED, partition, time, run_id,
        f"Mark {mark_id} of {repository} trips {plural(len(names), 'brake')} ({', '.join(names)}): "
        f"{plural(objects, 'object')}, {size(expired_bytes)}. Find out why before anyone approves the mark.",
        ("review", repository, mark_id), {"objects": objects, "bytes": expired_bytes, "brakes": len(names)},
    )  # fmt: skip


def run_failed(partition: Partition, time: datetime, run_id: str, *, job: str, error: str) -> Notification:
    """`error` is the name of the error's class; "" if it isn't one of lakegc's."""
    what = f" ({error})" if error else ""
    return Notification(
        Event.RUN_FAILED, partition, time, run_id,
        f"The run '{job}' of mark {partition.mark_id} of {partition.repository} failed{what}. The reason is in "
        f"Dagster, in run {run_id}.",
        ("status", partition.repository),
    )  # fmt: skip


def swept(
    partition: Partition, time: datetime, run_id: str, *, objects: Mapping[str, int], sizes: Mapping[str, int],
    late: int,
) -> Notification:  # fmt: skip
    """`objects` and `sizes` are the report's, by outcome; `late` objects became live while being deleted."""
    removed = (Outcome.DELETED.value, Outcome.QUARANTINED.value)
    count, total = (sum(counts.get(name, 0) for name in removed) for counts in (objects, sizes))
    failed, rescued = objects.get(Outcome.FAILED.value, 0), objects.get(Outcome.RESCUED.value, 0)
    counts = ", ".join(f"{number:,} {outcome}" for outcome, number in sorted(objects.items())) or "nothing to do"
    problems = (
        f" {plural(late, 'object')} became live while being deleted, and {is_or_are(late)} now missing for readers."
        if late
        else ""
    )
    return Notification(
        Event.SWEPT, partition, time, run_id,
        f"The sweep of mark {partition.mark_id} of {partition.repository} ended "
        f"{'with failures' if failed or late else 'successfully'}: {counts}; {size(total)} removed.{problems}",
        ("report", partition.repository, partition.mark_id),
        {"objects": count, "bytes": total, "failed": failed, "rescued": rescued, "late": late},
    )  # fmt: skip
