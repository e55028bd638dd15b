"""Deleting keys on S3: exactly one result per key, whatever the store responds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError

from spark_resources.errors import WrongUsage
from spark_resources.stores.base import MALFORMED, NOT_SENT, ONE_BY_ONE_S, DeleteResult, Deletion
from spark_resources.stores.keys import fits_xml
from spark_resources.stores.s3.client import PASSING, UNKNOWN, code_of, is_transient

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# A store with this response to a whole batch can't process it, or any batch: its keys are then deleted one by one.
_NO_BATCHES = frozenset({"NotImplemented", "MethodNotAllowed"})
_ONE_BY_ONE = _NO_BATCHES | {"MalformedXML", "InvalidRequest"}


def delete_keys(
    client: S3Client, bucket: str, wanted: Sequence[str], *, full: Callable[[str], str], batch: int,
    no_batches: Callable[[], None] = lambda: None, seconds: Callable[[], float] = time.monotonic,
) -> list[DeleteResult]:  # fmt: skip
    """One result per key, in the given order; a duplicate key is deleted once. Never raises for a store error.

    `no_batches` is called if the store turns out not to support batches. If a batch has to be deleted key by key,
    requests are started for at most ONE_BY_ONE_S seconds; the remaining keys fail with the code NotSent and may be
    retried.
    """
    results: dict[str, DeleteResult] = {}
    batched: dict[str, str] = {}  # keys by full key in the bucket
    single: dict[str, str] = {}
    for key in dict.fromkeys(wanted):
        try:
            whole = full(key)
        except WrongUsage as error:
            results[key] = _failed(key, "InvalidKey", str(error))
            continue
        (batched if batch > 1 and fits_xml(whole) else single)[whole] = key
    for some in _chunks(list(batched), batch):
        answers = _delete_batch(client, bucket, some, no_batches, seconds)
        results.update((batched[whole], answer(batched[whole])) for whole, answer in answers.items())
    for whole, key in single.items():
        results[key] = _delete_one(client, bucket, whole)(key)
    return [results[key] for key in wanted]


_Answer = Callable[[str], DeleteResult]


def _delete_batch(
    client: S3Client, bucket: str, wholes: Sequence[str], no_batches: Callable[[], None], seconds: Callable[[], float]
) -> dict[str, _Answer]:
    until = seconds() + ONE_BY_ONE_S
    try:
        answer = client.delete_objects(
            Bucket=bucket, Delete={"Objects": [{"Key": whole} for whole in wholes], "Quiet": False}
        )
    except ClientError as error:
        if code_of(error) in _NO_BATCHES:
            no_batches()
        if code_of(error) in _ONE_BY_ONE:
            return _one_by_one(client, bucket, wholes, lambda: seconds() < until)
        return dict.fromkeys(wholes, _because(error))
    except (BotoCoreError, ResponseParserError, *MALFORMED) as error:
        return dict.fromkeys(wholes, _because(error))
    answers: dict[str, _Answer] = {one["Key"]: _deleted for one in answer.get("Deleted", ()) if "Key" in one}
    for failed in (one for one in answer.get("Errors", ()) if "Key" in one):
        code = failed.get("Code", UNKNOWN)
        answers[failed["Key"]] = _with(code, failed.get("Message", ""), transient=code in {*PASSING, UNKNOWN})
    silent = _with(
        "NoAnswer", "the store's response doesn't name this key, so it may or may not be deleted", transient=True
    )
    return {whole: answers.get(whole, silent) for whole in wholes}


def _one_by_one(
    client: S3Client, bucket: str, wholes: Sequence[str], in_time: Callable[[], bool]
) -> dict[str, _Answer]:
    late = _with(
        NOT_SENT,
        "the store doesn't support batch deletes, and there wasn't enough time to delete all keys individually",
        transient=True,
    )
    return {whole: _delete_one(client, bucket, whole) if in_time() else late for whole in wholes}


def _delete_one(client: S3Client, bucket: str, whole: str) -> _Answer:
    try:
        client.delete_object(Bucket=bucket, Key=whole)
    except (ClientError, BotoCoreError, ResponseParserError, *MALFORMED) as error:
        return _because(error)
    return _deleted


def _deleted(key: str) -> DeleteResult:
    return DeleteResult(key, Deletion.DELETED)


def _failed(key: str, code: str, message: str, *, transient: bool = False) -> DeleteResult:
    return DeleteResult(key, Deletion.FAILED, code, message, transient)


def _with(code: str, message: str, *, transient: bool) -> _Answer:
    return lambda key: _failed(key, code, message, transient=transient)


def _because(error: Exception) -> _Answer:
    if isinstance(error, ClientError):
        message = str(error.response.get("Error", {}).get("Message", ""))
        return _with(code_of(error), message, transient=is_transient(error) or code_of(error) == UNKNOWN)
    return _with(type(error).__name__, str(error), transient=is_transient(error))


def _chunks(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
