"""Deleting blobs: exactly one result per key, whatever Azure responds."""

from __future__ import annotations

import email
import email.policy
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from azure.core.exceptions import AzureError, HttpResponseError

from spark_resources.errors import WrongUsage
from spark_resources.stores.azure.client import TRANSIENT_ERROR_CODES, code_of, is_transient, message_of
from spark_resources.stores.base import NOT_SENT, ONE_BY_ONE_TIMEOUT_S, PARSE_ERRORS, DeleteResult, Deletion
from spark_resources.stores.retry import TRANSIENT_STATUSES

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

BATCH = 256  # the maximum number of blobs in one request
_BATCHES_UNSUPPORTED = frozenset({405, 501})
_THROTTLED = frozenset({408, 429})

_ToResult = Callable[[str], DeleteResult]


def delete_keys(
    client: ContainerClient, keys: Sequence[str], *, to_full_key: Callable[[str], str], batch_size: int,
    on_batches_unsupported: Callable[[], None] = lambda: None, monotonic: Callable[[], float] = time.monotonic,
) -> list[DeleteResult]:  # fmt: skip
    """Delete keys. Returns one result per key, in the given order, and never raises for a store error.

    A duplicate key is deleted once. `on_batches_unsupported` is called if the account turns out not to support batches.
    If a batch has to be deleted blob by blob, requests are started for at most ONE_BY_ONE_TIMEOUT_S seconds; the
    remaining keys fail with the code NotSent and may be retried.
    """
    results: dict[str, DeleteResult] = {}
    key_of: dict[str, str] = {}  # by full name in the container
    for key in dict.fromkeys(keys):
        try:
            key_of[to_full_key(key)] = key
        except WrongUsage as error:
            results[key] = DeleteResult(key, Deletion.FAILED, "InvalidKey", str(error))
    for chunk in _chunks(list(key_of), min(batch_size, BATCH)):
        if batch_size == 1:
            responses = {chunk[0]: _delete_one(client, chunk[0])}
        else:
            responses = _Batch(client, chunk, on_batches_unsupported, monotonic).responses()
        results.update((key_of[name], to_result(key_of[name])) for name, to_result in responses.items())
    return [results[key] for key in keys]


def _delete_one(client: ContainerClient, name: str) -> _ToResult:
    try:
        client.delete_blob(name, delete_snapshots="include")
    except AzureError as error:
        return _failure(error)
    except PARSE_ERRORS as error:
        return _failed_with(type(error).__name__, str(error), transient=False)
    return _deleted


# --- batches --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Batch:
    """One request for many blobs. If it is refused as a whole, a single delete shows whether batches are the reason."""

    client: ContainerClient
    names: Sequence[str]
    on_batches_unsupported: Callable[[], None]
    monotonic: Callable[[], float]

    def responses(self) -> dict[str, _ToResult]:
        batch_responses: list[SubResponses] = []

        def record_response(response: Any) -> None:
            http = response.http_response
            batch_responses.append(sub_responses(http.headers.get("Content-Type", ""), http.body()))

        deadline = self.monotonic() + ONE_BY_ONE_TIMEOUT_S
        try:
            self.client.delete_blobs(
                *self.names, delete_snapshots="include", raise_on_any_failure=False, raw_response_hook=record_response
            )
        except HttpResponseError as error:
            return self._results_if_refused(error.status_code or 0, _failure(error), deadline)
        except AzureError as error:
            return dict.fromkeys(self.names, _failure(error))
        except Exception:  # the library failed to parse the response, which `record_response` already has
            if not batch_responses:
                raise
        responses = batch_responses[-1] if batch_responses else SubResponses({}, None)
        if responses.whole_batch is not None and not responses.by_number:
            return self._results_if_refused(responses.whole_batch.status, responses.whole_batch.to_result(), deadline)
        no_result = _failed_with(
            "NoAnswer",
            "the store's response has no clear result for this blob, so it may or may not have been deleted",
            transient=True,
        )
        by_number = {number: response.to_result() for number, response in responses.by_number.items()}
        return {name: by_number.get(number, no_result) for number, name in enumerate(self.names)}

    def _results_if_refused(self, status: int, to_result: _ToResult, deadline: float) -> dict[str, _ToResult]:
        if status in _THROTTLED or not (400 <= status < 500 or status in _BATCHES_UNSUPPORTED):
            return dict.fromkeys(self.names, to_result)
        not_sent = _failed_with(
            NOT_SENT,
            "the store refused the batch, and there wasn't enough time to delete all blobs individually",
            transient=True,
        )
        if self.monotonic() >= deadline:
            return dict.fromkeys(self.names, not_sent)
        first, *others = self.names
        first_to_result = _delete_one(self.client, first)
        if first_to_result(first).deletion is Deletion.FAILED:
            return {first: first_to_result} | dict.fromkeys(others, to_result)
        code = to_result(first).code.lower()
        if status in _BATCHES_UNSUPPORTED or "notsupported" in code or "notyetsupported" in code:
            self.on_batches_unsupported()
        rest = {name: _delete_one(self.client, name) if self.monotonic() < deadline else not_sent for name in others}
        return {first: first_to_result} | rest


@dataclass(frozen=True, slots=True)
class SubResponse:
    """The response to one request within a batch."""

    status: int
    code: str
    message: str

    def to_result(self) -> _ToResult:
        if self.status in (200, 202):
            return _deleted
        transient = self.status in TRANSIENT_STATUSES or self.code in TRANSIENT_ERROR_CODES
        return _failed_or_gone(self.status, self.code, self.message, transient=transient)


@dataclass(frozen=True, slots=True)
class SubResponses:
    """Responses by request number, and the response to the batch as a whole, if any."""

    by_number: dict[int, SubResponse]
    whole_batch: SubResponse | None


def sub_responses(content_type: str, body: bytes) -> SubResponses:
    """The responses within a batch response, by the request number that each contains, because their order may differ.

    Numbers that occur twice and unreadable parts are left out: the outcome of those requests is unknown.
    """
    head = f"Content-Type: {content_type}\r\n\r\n".encode(errors="replace")
    parts = email.message_from_bytes(head + body, policy=email.policy.HTTP).get_payload()
    by_number: dict[int, SubResponse] = {}
    repeated: set[int] = set()
    whole_batch: SubResponse | None = None
    for part in parts if isinstance(parts, list) else []:
        response = _sub_response(part) if isinstance(part, Message) else None
        number = str(part.get("Content-ID", "")).strip() if isinstance(part, Message) else ""
        if response is None:
            continue
        if not number.isascii() or not number.isdigit():
            whole_batch = response if response.status >= 400 else whole_batch
            continue
        if int(number) in by_number:
            repeated.add(int(number))
        by_number[int(number)] = response
    return SubResponses({number: by_number[number] for number in by_number.keys() - repeated}, whole_batch)


def _sub_response(part: Message) -> SubResponse | None:
    raw = part.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return None
    line, _, rest = raw.lstrip().partition(b"\r\n")
    fields = line.split(maxsplit=2)
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/") or not fields[1].isdigit():
        return None
    response = email.message_from_bytes(rest, policy=email.policy.HTTP)
    content = response.get_payload(decode=True)
    code, message = _error_in(content if isinstance(content, bytes) else b"")
    return SubResponse(int(fields[1]), str(response.get("x-ms-error-code") or code or int(fields[1])).strip(), message)


def _error_in(content: bytes) -> tuple[str, str]:
    """Code and message of an XML error document; empty strings if there is none."""
    try:
        root = ElementTree.fromstring(content.decode("utf-8-sig", errors="replace").strip())
    except ElementTree.ParseError:
        return "", ""
    message = (root.findtext("Message") or "").strip()
    return root.findtext("Code") or "", message.splitlines()[0] if message else ""


# --- results --------------------------------------------------------------------------------------------------------


def _deleted(key: str) -> DeleteResult:
    return DeleteResult(key, Deletion.DELETED)


def _failed_with(code: str, message: str, *, transient: bool) -> _ToResult:
    return lambda key: DeleteResult(key, Deletion.FAILED, code, message, transient)


def _failed_or_gone(status: int, code: str, message: str, *, transient: bool) -> _ToResult:
    """The result for an error response. A blob is reported as already gone only if Azure's own code says so.

    A plain 404 may come from a missing container or another server.
    """
    if status == 404 and code == "BlobNotFound":
        return lambda key: DeleteResult(key, Deletion.ALREADY_GONE)
    return _failed_with(code, message, transient=transient)


def _failure(error: AzureError) -> _ToResult:
    status = error.status_code if isinstance(error, HttpResponseError) else 0
    return _failed_or_gone(status or 0, code_of(error), message_of(error), transient=is_transient(error))


def _chunks(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
