"""Results that take several requests: listings by page, and tasks that are polled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spark_resources.errors import DamagedData, Unavailable, plural
from spark_resources.lakefs import responses
from spark_resources.lakefs.connection import ApiCall, Connection
from spark_resources.lakefs.responses import Body, Repository
from spark_resources.stores.polling import poll

Progress = Callable[[float], None]
"""Called while a server task runs, with the seconds waited so far."""

UNSUPPORTED_CALL_STATUSES = frozenset({404, 405, 501})
"""The statuses with which a server rejects a call that it doesn't support.

A 404 can also mean an unknown name: check its message, or look up the name.
"""

MAX_PAGE_SIZE = 1000


def repository(connection: Connection, name: str) -> Repository:
    call = ApiCall("RepositoriesApi", "get_repository", f"repository '{name}'", "fs:ReadRepository")
    return responses.repository(connection.body(call, repository=name))


def pages(connection: Connection, call: ApiCall, *, start: str = "", **arguments: Any) -> Iterator[list[Body]]:
    """Every page of a listing, starting after `start`. Raises `DamagedData` if the server repeats an offset."""
    offset = start
    seen: set[str] = set()
    while True:
        results, next_offset = page(connection, call, offset, MAX_PAGE_SIZE, **arguments)
        yield results
        if next_offset is None:
            return
        if next_offset in seen:
            raise DamagedData(
                f"{call.what}: the server returned the offset '{next_offset}' twice. Check the server's log.",
                invariant=3,
            )
        seen.add(next_offset)
        offset = next_offset


def page(
    connection: Connection, call: ApiCall, after: str, amount: int, **arguments: Any
) -> tuple[list[Body], str | None]:
    """One page of a listing, and the offset of the next page (None on the last page)."""
    body = connection.body(call, after=after, amount=amount, **arguments)
    results = body.objects("results")
    pagination = body.inner("pagination")
    if (stated_count := pagination.number("results")) != len(results):
        raise DamagedData(
            f"{call.what}: a page has {plural(len(results), 'result')}, but states that it has {stated_count}. Check "
            "the server's log.",
            invariant=3,
        )
    if not pagination.flag("has_more"):
        return results, None
    offset = pagination.maybe_text("next_offset")
    if not offset or offset == after:
        raise DamagedData(
            f"{call.what}: the server reports more pages, but returned no offset for the next one. Check the "
            "server's log.",
            invariant=3,
        )
    return results, offset


def poll_task(
    connection: Connection, call: ApiCall, done_field: str, progress: Progress | None, **arguments: Any
) -> Body:
    """Poll a task until the field `done_field` of its status is true. Returns the status.

    Raises `Unavailable` after `task_timeout_s` (a setting).
    """
    settings = connection.settings

    def status_if_done() -> Body | None:
        status = connection.body(call, **arguments)
        return status if status.flag(done_field) else None

    status = poll(
        status_if_done,
        timeout_s=settings.task_timeout_s,
        first_wait_s=settings.first_poll_wait_s,
        longest_wait_s=settings.longest_poll_wait_s,
        on_wait=progress or (lambda _: None),
    )
    if status is None:
        raise Unavailable(
            f"could not get {call.what} from lakeFS at {connection.where}: the task did not finish within "
            f"{plural(round(settings.task_timeout_s), 'second')}. Check the server's load and log, then try again."
        )
    return status
