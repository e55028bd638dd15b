"""Server-side copy of a blob. Azure may finish the copy after the response, so its status is polled until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError

from spark_resources.errors import Unavailable, plural
from spark_resources.stores.polling import poll

if TYPE_CHECKING:
    from azure.storage.blob import BlobClient

TIMEOUT_S = 600.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 5.0


def copy_blob(
    source: BlobClient, target: BlobClient, tag: str, *, token: str = "", where: str,
    timeout_s: float = TIMEOUT_S, monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str | None:  # fmt: skip
    """Copy a blob with its metadata, provided the source still has this ETag, and wait until the copy is complete.

    Returns the ETag of the copy, or None if the store doesn't report it. `token` is the SAS token for reading the
    source, if any, because Azure does not use the request's own token for that. Raises the library's errors, and
    `Unavailable` for a copy that fails or takes longer than `timeout_s` seconds.
    """
    response: dict[str, Any] = target.start_copy_from_url(
        f"{source.url}?{token}" if token else source.url,
        source_etag=tag,
        source_match_condition=MatchConditions.IfNotModified,
    )
    copy_id, etag = response["copy_id"], response.get("etag")

    def final_status() -> tuple[str, str] | None:
        nonlocal etag
        properties = target.get_blob_properties()
        state, etag = properties.copy, properties.etag
        if state.id != copy_id:
            raise Unavailable(
                f"{target.blob_name!r} in {where} was overwritten while a blob was being copied to it. Try again."
            )
        return None if state.status == "pending" else (str(state.status), state.status_description or "")

    outcome: tuple[str, str] | None = (str(response["copy_status"]), "")
    if response["copy_status"] == "pending":
        outcome = poll(
            final_status, timeout_s=timeout_s, first_wait_s=_FIRST_WAIT_S, longest_wait_s=_LONGEST_WAIT_S,
            monotonic=monotonic, sleep=sleep,
        )  # fmt: skip
    if outcome is None:
        _abort(target, copy_id)
        raise Unavailable(
            f"{source.blob_name!r} in {where} was not copied within {plural(round(timeout_s), 'second')}. Try again."
        )
    status, description = outcome
    if status != "success":
        failure = f"the copy ended with status '{status}': {description}".rstrip(": ")
        raise Unavailable(f"{source.blob_name!r} in {where} could not be copied: {failure}")
    return etag or None


def _abort(target: BlobClient, copy_id: str) -> None:
    with suppress(AzureError):  # the copy may have ended just now, or may still succeed; the caller raises in any case
        target.abort_copy(copy_id)
