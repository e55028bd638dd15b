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
from spark_resources.stores.azure.client import PASSING, code_of, is_transient, message_of
from spark_resources.stores.base import MALFORMED, NOT_SENT, ONE_BY_ONE_S, DeleteResult, Deletion
from spark_resources.stores.retry import PASSING_STATUS

if TYPE_CHECKING:
    from azure.storage.blob import ContainerClient

BATCH = 256  # the most blobs that one request may contain
_NEVER_BATCHES = frozenset({405, 501})
_TOO_MUCH = frozenset({408, 429})

_Answer = Callable[[str], DeleteResult]


def delete_keys(
    client: ContainerClient, wanted: Sequence[str], *, full: Callable[[str], str], batch: int,
    no_batches: Callable[[], None] = lambda: None, seconds: Callable[[], float] = time.monotonic,
) -> list[DeleteResult]:  # fmt: skip
    """One result per key, in the given order; a duplicate key is deleted once. Never raises for a store error.

    `no_batches` is called if the account turns out not to support batches. If a batch has to be deleted blob by blob,
    requests are started for at most ONE_BY_ONE_S seconds; the remaining keys fail with the code NotSent and may be
    retried.
    """
    results: dict[str, DeleteResult] = {}
    names: dict[str, str] = {}  # keys by full name in the container
    for key in dict.fromkeys(wanted):
        try:
            names[full(key)] = key
        except WrongUsage as error:
            results[key] = DeleteResult(key, Deletion.FAILED, "InvalidKey", str(error))
    for some in _chunks(list(names), min(batch, BATCH)):
        if batch == 1:
            answers = {some[0]: _delete_one(client, some[0])}
        else:
            answers = _Batch(client, some, no_batches, seconds).answers()
        results.update((names[name], answer(names[name])) for name, answer in answers.items())
    return [results[key] for key in wanted]


def _delete_one(client: ContainerClient, name: str) -> _Answer:
    try:
        client.delete_blob(name, delete_snapshots="include")
    except AzureError as error:
        return _because(error)
    except MALFORMED as error:
        return _with(type(error).__name__, str(error), transient=False)
    return _deleted


# --- batches --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Batch:
    """One request for many blobs. If it is refused as a whole, a single delete shows whether batches are the reason."""

    client: ContainerClient
    names: Sequence[str]
    no_batches: Callable[[], None]
    seconds: Callable[[], float]

    def answers(self) -> dict[str, _Answer]:
        seen: list[SubAnswers] = []

        def keep(response: Any) -> None:
            http = response.http_response
            seen.append(sub_answers(http.headers.get("Content-Type", ""), http.body()))

        until = self.seconds() + ONE_BY_ONE_S
        try:
            self.client.delete_blobs(
                *self.names, delete_snapshots="include", raise_on_any_failure=False, raw_response_hook=keep
            )
        except HttpResponseError as error:
            return self._refused(error.status_code or 0, _because(error), until)
        except AzureError as error:
            return dict.fromkeys(self.names, _because(error))
        except Exception:  # the library failed to parse the response, which `keep` already has
            if not seen:
                raise
        answers = seen[-1] if seen else SubAnswers({}, None)
        if answers.of_all is not None and not answers.by_number:
            return self._refused(answers.of_all.status, answers.of_all.answer(), until)
        silent = _with(
            "NoAnswer", "the store's response doesn't name this blob, so it may or may not be deleted", transient=True
        )
        by_number = {number: each.answer() for number, each in answers.by_number.items()}
        return {name: by_number.get(number, silent) for number, name in enumerate(self.names)}

    def _refused(self, status: int, answer: _Answer, until: float) -> dict[str, _Answer]:
        if status in _TOO_MUCH or not (400 <= status < 500 or status in _NEVER_BATCHES):
            return dict.fromkeys(self.names, answer)
        late = _with(
            NOT_SENT,
            "the store refused the batch, and there wasn't enough time to delete all blobs individually",
            transient=True,
        )
        if self.seconds() >= until:
            return dict.fromkeys(self.names, late)
        first, *others = self.names
        alone = _delete_one(self.client, first)
        if alone(first).deletion is Deletion.FAILED:
            return {first: alone} | dict.fromkeys(others, answer)
        code = answer(first).code.lower()
        if status in _NEVER_BATCHES or "notsupported" in code or "notyetsupported" in code:
            self.no_batches()
        rest = {name: _delete_one(self.client, name) if self.seconds() < until else late for name in others}
        return {first: alone} | rest


@dataclass(frozen=True, slots=True)
class SubAnswer:
    """The response to one request within a batch."""

    status: int
    code: str
    message: str

    def answer(self) -> _Answer:
        if self.status in (200, 202):
            return _deleted
        transient = self.status in PASSING_STATUS or self.code in PASSING
        return _failed_or_gone(self.status, self.code, self.message, transient=transient)


@dataclass(frozen=True, slots=True)
class SubAnswers:
    """Responses by request number, and the response to the batch as a whole, if any."""

    by_number: dict[int, SubAnswer]
    of_all: SubAnswer | None


def sub_answers(content_type: str, body: bytes) -> SubAnswers:
    """The responses within a batch response, by the request number that each contains: they may come in any order.

    A number that occurs twice is left out, and so is an unreadable part: the outcome of those requests is unknown.
    """
    head = f"Content-Type: {content_type}\r\n\r\n".encode(errors="replace")
    parts = email.message_from_bytes(head + body, policy=email.policy.HTTP).get_payload()
    by_number: dict[int, SubAnswer] = {}
    twice: set[int] = set()
    of_all: SubAnswer | None = None
    for part in parts if isinstance(parts, list) else []:
        found = _sub_answer(part) if isinstance(part, Message) else None
        number = str(part.get("Content-ID", "")).strip() if isinstance(part, Message) else ""
        if found is None:
            continue
        if not number.isascii() or not number.isdigit():
            of_all = found if found.status >= 400 else of_all
            continue
        if int(number) in by_number:
            twice.add(int(number))
        by_number[int(number)] = found
    return SubAnswers({number: each for number, each in by_number.items() if number not in twice}, of_all)


def _sub_answer(part: Message) -> SubAnswer | None:
    raw = part.get_payload(decode=True)
    if not isinstance(raw, bytes):
        return None
    line, _, rest = raw.lstrip().partition(b"\r\n")
    words = line.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        return None
    answer = email.message_from_bytes(rest, policy=email.policy.HTTP)
    content = answer.get_payload(decode=True)
    code, message = _error_in(content if isinstance(content, bytes) else b"")
    return SubAnswer(int(words[1]), str(answer.get("x-ms-error-code") or code or int(words[1])).strip(), message)


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


def _with(code: str, message: str, *, transient: bool) -> _Answer:
    return lambda key: DeleteResult(key, Deletion.FAILED, code, message, transient)


def _failed_or_gone(status: int, code: str, message: str, *, transient: bool) -> _Answer:
    """Already gone only if Azure's own code says so: a plain 404 may be a missing container or another server."""
    if status == 404 and code == "BlobNotFound":
        return lambda key: DeleteResult(key, Deletion.ALREADY_GONE)
    return _with(code, message, transient=transient)


def _because(error: AzureError) -> _Answer:
    status = error.status_code if isinstance(error, HttpResponseError) else 0
    return _failed_or_gone(status or 0, code_of(error), message_of(error), transient=is_transient(error))


def _chunks(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
