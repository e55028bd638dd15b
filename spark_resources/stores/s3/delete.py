"""Deleting keys on S3: exactly one result per key, whatever the store responds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from spark_resources.errors import WrongUsage
from spark_resources.stores.base import NOT_SENT, ONE_BY_ONE_TIMEOUT_S, PARSE_ERRORS, DeleteResult, Deletion
from spark_resources.stores.keys import is_xml_safe
from spark_resources.stores.s3.client import TRANSIENT_ERROR_CODES, UNKNOWN, code_of, is_transient

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# A store that responds with one of these codes can't process this batch, or batches at all. The keys are then deleted
# one by one.
_BATCHES_UNSUPPORTED = frozenset({"NotImplemented", "MethodNotAllowed"})
_DELETE_ONE_BY_ONE = _BATCHES_UNSUPPORTED | {"MalformedXML", "InvalidRequest"}


def delete_keys(
    client: S3Client, bucket: str, keys: Sequence[str], *, to_full_key: Callable[[str], str], batch_size: int,
    on_batches_unsupported: Callable[[], None] = lambda: None, monotonic: Callable[[], float] = time.monotonic,
) -> list[DeleteResult]:  # fmt: skip
    """Delete keys; returns one result per key, in the given order. A duplicate key is deleted once. Never raises for a
    store error. `to_full_key` raises `WrongUsage` for a key that can't be in the store; that key fails.

    `on_batches_unsupported` is called if the store turns out not to support batches. If a batch has to be deleted key
    by key, requests are started for at most ONE_BY_ONE_TIMEOUT_S seconds; the remaining keys fail with the code NotSent
    and may be retried.
    """
    results: dict[str, DeleteResult] = {}
    batched: dict[str, str] = {}  # keys by full key in the bucket
    single: dict[str, str] = {}
    for key in dict.fromkeys(keys):
        try:
            full_key = to_full_key(key)
        except WrongUsage as error:
            results[key] = _failed(key, "InvalidKey", str(error))
            continue
        (batched if batch_size > 1 and is_xml_safe(full_key) else single)[full_key] = key
    for chunk in _chunks(list(batched), batch_size):
        results_of = _delete_batch(client, bucket, chunk, on_batches_unsupported, monotonic)
        results.update((batched[full_key], to_result(batched[full_key])) for full_key, to_result in results_of.items())
    for full_key, key in single.items():
        results[key] = _delete_one(client, bucket, full_key)(key)
    return [results[key] for key in keys]


_ToResult = Callable[[str], DeleteResult]  # from the caller's key to its result


def _delete_batch(
    client: S3Client,
    bucket: str,
    full_keys: Sequence[str],
    on_batches_unsupported: Callable[[], None],
    monotonic: Callable[[], float],
) -> dict[str, _ToResult]:  # fmt: skip
    deadline = monotonic() + ONE_BY_ONE_TIMEOUT_S
    try:
        response = client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": full_key} for full_key in full_keys], "Quiet": False}
        )
    except ClientError as error:
        if code_of(error) in _BATCHES_UNSUPPORTED:
            on_batches_unsupported()
        if code_of(error) in _DELETE_ONE_BY_ONE:
            return _delete_one_by_one(client, bucket, full_keys, lambda: monotonic() < deadline)
        return dict.fromkeys(full_keys, _failed_with_error(error))
    except (BotoCoreError, ResponseParserError, *PARSE_ERRORS) as error:
        return dict.fromkeys(full_keys, _failed_with_error(error))
    results_of: dict[str, _ToResult] = {
        deleted["Key"]: _deleted for deleted in response.get("Deleted", ()) if "Key" in deleted
    }
    for failed in (error for error in response.get("Errors", ()) if "Key" in error):
        code = failed.get("Code", UNKNOWN)
        results_of[failed["Key"]] = _failed_with(
            code, failed.get("Message", ""), transient=code in {*TRANSIENT_ERROR_CODES, UNKNOWN}
        )
    no_result = _failed_with(
        "NoAnswer", "the store's response doesn't name this key, so it may or may not have been deleted", transient=True
    )
    return {full_key: results_of.get(full_key, no_result) for full_key in full_keys}


def _delete_one_by_one(
    client: S3Client, bucket: str, full_keys: Sequence[str], in_time: Callable[[], bool]
) -> dict[str, _ToResult]:
    not_sent = _failed_with(
        NOT_SENT,
        "the store refused the batch, and there wasn't enough time to delete all keys individually",
        transient=True,
    )
    return {full_key: _delete_one(client, bucket, full_key) if in_time() else not_sent for full_key in full_keys}


def _delete_one(client: S3Client, bucket: str, full_key: str) -> _ToResult:
    try:
        client.delete_object(Bucket=bucket, Key=full_key)
    except (ClientError, BotoCoreError, ResponseParserError, *PARSE_ERRORS) as error:
        return _failed_with_error(error)
    return _deleted


def _deleted(key: str) -> DeleteResult:
    return DeleteResult(key, Deletion.DELETED)


def _failed(key: str, code: str, message: str, *, transient: bool = False) -> DeleteResult:
    return DeleteResult(key, Deletion.FAILED, code, message, transient)


def _failed_with(code: str, message: str, *, transient: bool) -> _ToResult:
    return lambda key: _failed(key, code, message, transient=transient)


def _failed_with_error(error: Exception) -> _ToResult:
    if isinstance(error, ClientError):
        message = str(error.response.get("Error", {}).get("Message", ""))
        return _failed_with(code_of(error), message, transient=is_transient(error) or code_of(error) == UNKNOWN)
    return _failed_with(type(error).__name__, str(error), transient=is_transient(error))


def _chunks(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
