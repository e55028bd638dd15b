"""Deleting keys on Cloud Storage in batches: exactly one result per key, whatever the store responds.

A batch is one request of many parts, and its response has a status for each part. Responses are matched by the id of
each part, never by their order; a response without a valid id is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from email.parser import BytesParser
from email.policy import HTTP

from spark_resources.errors import LakegcError, WrongUsage
from spark_resources.stores.base import DeleteResult, Deletion
from spark_resources.stores.gcs.client import (
    REQUEST_ERRORS,
    THROTTLING_CODES,
    GCSClient,
    code_and_message,
    is_transient,
    object_path,
    parse_error_body,
)
from spark_resources.stores.retry import TRANSIENT_STATUSES

MAX_BATCH = 100  # calls in one batch, according to the documentation
_PATH = "/batch/storage/v1"
_BOUNDARY = "lakegc-batch"  # can't occur in a part, because keys are percent-encoded
_PART = (
    f"--{_BOUNDARY}\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
    "Content-ID: <lakegc+{number}>\r\n\r\nDELETE {path} HTTP/1.1\r\nAccept: application/json\r\n\r\n\r\n"
)
_ID = re.compile(r"^<response-lakegc\+(\d+)>\Z")
_STATUS = re.compile(r"^HTTP/\d(?:\.\d)? (\d{3})\b")

_ToResult = Callable[[str], DeleteResult]


def delete_keys(
    client: GCSClient,
    bucket: str,
    keys: Sequence[str],
    *,
    to_full_key: Callable[[str], str],
    batch_size: int,
    check_bucket: Callable[[], None],
) -> list[DeleteResult]:
    """Delete keys. Returns one result per key, in the given order, and never raises for a store error.

    A duplicate key is deleted once. The store returns 404 both for a missing object and for a missing bucket;
    `check_bucket` raises if the bucket is missing.
    """
    results: dict[str, DeleteResult] = {}
    key_of: dict[str, str] = {}  # by full key in the bucket
    for key in dict.fromkeys(keys):
        try:
            key_of[to_full_key(key)] = key
        except WrongUsage as error:
            results[key] = DeleteResult(key, Deletion.FAILED, "InvalidKey", str(error))
    full_keys = list(key_of)
    for start in range(0, len(full_keys), batch_size):
        results_of = _delete_batch(client, bucket, full_keys[start : start + batch_size])
        results.update((key_of[full_key], to_result(key_of[full_key])) for full_key, to_result in results_of.items())
    already_gone = [result for result in results.values() if result.deletion is Deletion.ALREADY_GONE]
    if already_gone:
        results.update((result.key, result) for result in _confirm_gone(already_gone, check_bucket))
    return [results[key] for key in keys]


def _delete_batch(client: GCSClient, bucket: str, full_keys: Sequence[str]) -> dict[str, _ToResult]:
    body = "".join(
        _PART.format(number=number, path=object_path(bucket, full_key)) for number, full_key in enumerate(full_keys)
    )
    headers = {"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"}
    data = f"{body}--{_BOUNDARY}--\r\n".encode("ascii")
    try:
        response = client.delete_without_delay(_PATH, data=data, headers=headers)
    except REQUEST_ERRORS as error:
        return dict.fromkeys(full_keys, _failed(*code_and_message(error), transient=is_transient(error)))
    no_result = _failed(
        "NoAnswer", "the store's response doesn't name this key, so it may or may not have been deleted", transient=True
    )
    results = parse_batch_response(response.headers.get("Content-Type", ""), response.content)
    return {full_key: results.get(number, no_result) for number, full_key in enumerate(full_keys)}


def parse_batch_response(content_type: str, body: bytes) -> Mapping[int, _ToResult]:
    """The result of each part of a batch, by the part's number, as a function of the part's key.

    Parts without a readable response are left out.
    """
    message = BytesParser(policy=HTTP).parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    results_of: dict[int, _ToResult] = {}
    for part in message.iter_parts() if message.is_multipart() else ():
        part_id = _ID.match(str(part.get("Content-ID", "")).strip())
        payload = part.get_payload(decode=True)
        text = payload.decode(errors="replace") if isinstance(payload, bytes) else ""
        status = _STATUS.match(text)
        if part_id is None or status is None:
            continue
        number = int(part_id[1])
        if number in results_of:  # neither of two responses to one request is trusted
            results_of[number] = _failed("NoAnswer", "the store's response names this key twice", transient=True)
        else:
            results_of[number] = _to_result(int(status[1]), text)
    return results_of


def _to_result(status: int, text: str) -> _ToResult:
    if 200 <= status < 300:
        return lambda key: DeleteResult(key, Deletion.DELETED)
    _, _, body = text.partition("\r\n\r\n")
    code, message = parse_error_body(status, body)
    if status == 404:
        return lambda key: DeleteResult(key, Deletion.ALREADY_GONE, code, message)
    return _failed(code, message, transient=status in TRANSIENT_STATUSES or code in THROTTLING_CODES)


def _confirm_gone(already_gone: Sequence[DeleteResult], check_bucket: Callable[[], None]) -> list[DeleteResult]:
    """The given results if the bucket exists; otherwise failures, because the 404s may have been for the bucket."""
    try:
        check_bucket()
    except LakegcError as error:
        cause = error.__cause__
        code = code_and_message(cause)[0] if isinstance(cause, Exception) else type(error).__name__
        transient = isinstance(cause, Exception) and is_transient(cause)
        return [DeleteResult(result.key, Deletion.FAILED, code, str(error), transient) for result in already_gone]
    return [DeleteResult(result.key, Deletion.ALREADY_GONE) for result in already_gone]


def _failed(code: str, message: str, *, transient: bool) -> _ToResult:
    return lambda key: DeleteResult(key, Deletion.FAILED, code, message, transient)
