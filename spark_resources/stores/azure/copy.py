"""Copying a blob on Azure's side. It may go on after the answer, so that its end is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError

from spark_resources.errors import Unavailable

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient

LONGEST_S = 600.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 5.0


def copy_blob(
    source: BlobClient, target: BlobClient, tag: str, *, token: str = "", where: str,
    longest: float = LONGEST_S, seconds: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> None:  # fmt: skip
    """Copy the blob that still has this tag, with its metadata, and wait until that is done.

    `token` is the SAS token that the source has to be read by, if there is one: the request's own isn't taken for it.
    Raises the library's errors, and `Unavailable` for a copy that fails, or isn't done in `longest` seconds.
    """
    answer: dict[str, Any] = target.start_copy_from_url(
        f"{source.url}?{token}" if token else source.url,
        source_etag=tag,
        source_match_condition=MatchConditions.IfNotModified,
    )
    copy, status, reason = answer["copy_id"], str(answer["copy_status"]), ""
    until, pause = seconds() + longest, _FIRST_WAIT_S
    while status == "pending" and seconds() < until:
        wait(pause)
        pause = min(_LONGEST_WAIT_S, pause * 2)
        state = target.get_blob_properties().copy
        if state.id != copy:
            raise Unavailable(f"{target.blob_name!r} in {where} was overwritten while something was copied there")
        status, reason = str(state.status), state.status_description or ""
    if status == "pending":
        _stop(target, copy)
        raise Unavailable(f"{source.blob_name!r} in {where} was not copied in {longest:.0f} seconds. Try again.")
    if status != "success":
        raise Unavailable(
            f"{source.blob_name!r} in {where} could not be copied: it ended as {status} {reason}".rstrip()
        )


def _stop(target: BlobClient, copy: str) -> None:
    with suppress(AzureError):  # it has just ended, or it ends later: whoever asked is told that it isn't done
        target.abort_copy(copy)
