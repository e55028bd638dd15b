"""Re-raises executors' errors on the driver, as the same exception with the same readable message.

Otherwise the driver would get a stack trace in two languages. Executors import this module; it imports neither Spark
nor Dagster.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spark_resources.errors import (
    DamagedData,
    FinishedWithFailures,
    Forbidden,
    Interrupted,
    LakegcError,
    NotAPartition,
    NotFound,
    NothingToDo,
    Refused,
    StillUnavailable,
    Transient,
    Unavailable,
    WrongUsage,
    full_stop,
)
from spark_resources.host.failure_kinds import JAVA_ENDED, REMEDIES_BY_TEXT, causes, is_lost_java
from spark_resources.stores.base import AlreadyExists, Changed
from spark_resources.stores.polling import poll

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_KNOWN: dict[str, type[LakegcError]] = {
    kind.__name__: kind
    for kind in (
        LakegcError,
        WrongUsage,
        NotAPartition,
        Refused,
        NothingToDo,
        DamagedData,
        FinishedWithFailures,
        Unavailable,
        StillUnavailable,
        Transient,
        Forbidden,
        NotFound,
        Interrupted,
        AlreadyExists,
        Changed,
    )
}
_NONCE = secrets.token_hex(16)  # of this process: the driver sends its own to executors, in the functions that they run
_MAX_MESSAGE = 20_000  # characters of a message, which may quote a store's response


def with_encoded_errors(
    step: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Wrap a `mapInArrow` function so that a lakegc error it raises can be re-raised on the driver."""
    nonce = _NONCE

    def wrapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from step(batches)
        except LakegcError as error:
            raise RuntimeError(as_text(error, nonce)) from None

    return wrapped


def as_text(error: LakegcError, nonce: str) -> str:
    """An error as text that survives in Spark's messages: the nearest known class, message and invariant, encoded."""
    kind = next(base.__name__ for base in type(error).__mro__ if base is _KNOWN.get(base.__name__))
    invariant = error.invariant if isinstance(error, Refused) else None
    packed = json.dumps({"class": kind, "message": str(error)[:_MAX_MESSAGE], "invariant": invariant})
    return f"lakegc-error[{nonce}:{base64.b64encode(packed.encode()).decode()}]"


def from_text(text: str, nonce: str) -> LakegcError | None:
    """The error that an executor put into this text together with this nonce; None if there is none.

    Spark's messages may quote the response of a store or server, so only text with the nonce is accepted, and only as
    data: one of the known classes and its message.
    """
    match = re.search(rf"lakegc-error\[{nonce}:([A-Za-z0-9+/=]+)\]", text)
    if match is None:
        return None
    try:
        packed = json.loads(base64.b64decode(match.group(1), validate=True))
        kind, message, invariant = _KNOWN[packed["class"]], str(packed["message"]), packed["invariant"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not issubclass(kind, Refused):
        return kind(message)
    return kind(message, invariant=invariant if isinstance(invariant, int) else None)


def failure_counts(spark: SparkSession) -> tuple[int, int] | None:
    """The numbers of failed task attempts and of lost executors so far in this session.

    If they grow, a worker that Spark no longer tracks may still be running, because its task was reassigned. None if
    the numbers are not available.
    """
    try:
        context = spark.sparkContext._jsc.sc()
        context.listenerBus().waitUntilEmpty(5_000)  # milliseconds; raises if it isn't empty
        executor_list = context.statusStore().executorList(False)
        executors = [executor_list.apply(number) for number in range(executor_list.size())]
        return sum(executor.failedTasks() for executor in executors), sum(
            not executor.isActive() for executor in executors
        )
    except Exception:  # whatever the cause, the numbers are not known
        return None


def tasks_ended(spark: SparkSession, *, timeout_s: float = 15.0) -> bool:
    """Whether all tasks have ended, after waiting up to `timeout_s` seconds: a failed job's tasks may keep running.

    False if the session can't report it.
    """
    try:
        list_executors = spark.sparkContext._jsc.sc().statusStore().executorList

        def ended() -> bool | None:
            executor_list = list_executors(False)
            return (
                None
                if any(executor_list.apply(number).activeTasks() for number in range(executor_list.size()))
                else True
            )

        return poll(ended, timeout_s=timeout_s, first_wait_s=0.1) is True
    except Exception:  # whatever the cause, the state is not known
        return False


@contextmanager
def errors_from_executors() -> Iterator[None]:
    """Wraps a Spark action: a failed job raises the executor's error, or a `LakegcError` with a short reason.

    Ctrl-C cancels all jobs. If PySpark is fetching a result then, it raises the error of the cancelled job instead of
    the interrupt. Here the interrupt is raised.
    """
    try:
        yield
    except LakegcError:
        raise
    except Exception as error:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        not_interrupts = Exception | SystemExit | GeneratorExit  # Dagster's interrupts have a class of their own
        if interrupt := next((cause for cause in causes(error) if not isinstance(cause, not_interrupts)), None):
            raise interrupt from None
        if is_lost_java(error):
            raise LakegcError(JAVA_ENDED) from error
        if not isinstance(error, PySparkException | Py4JError):
            raise
        text = str(error)
        if (raised := from_text(text, _NONCE)) is not None:
            raise raised from None
        raise LakegcError(f"a Spark task failed: {failure_reason(text)}") from error


def failure_reason(text: str) -> str:
    """The relevant part of a Spark error: the last Python error in it, otherwise the JVM's first message."""
    lines = text.strip().splitlines()
    if python := next((line for line in reversed(lines) if re.match(r"^\w[\w.]*(Error|Exception)\b", line)), ""):
        return _with_hint(python, HINTS | REMEDIES_BY_TEXT)
    java = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0] if lines else "")
    if "awaitResult" in java:  # only wraps its cause
        causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
        java = causes[-1] if causes else f"{java.rstrip(' :')}: an executor or Spark's Java process was lost"
    reason = re.sub(r"^.*Lost task [^:]*: ", "", java)
    reason = re.sub(r"\b[a-z]\w*\.[\w.]*\.(?=[A-Z])", "", reason).partition(" Consider setting")[0].rstrip(".")
    return _with_hint(reason, HINTS | REMEDIES_BY_TEXT)


def _with_hint(reason: str, hints: Mapping[str, str]) -> str:
    """The reason, followed by the first of these hints whose words it contains."""
    return next((f"{full_stop(reason)} {hint}" for words, hint in hints.items() if words in reason), reason)


HINTS = {
    "OutOfMemoryError": 'Give the JVM more memory: LAKEGC_SPARK_CONF=\'{"spark.driver.memory": "4g"}\'.',
    "crashed": (
        "The task probably ran out of memory: run fewer tasks at once, for example with LAKEGC_SPARK_MASTER=local[1]."
    ),
} | dict.fromkeys(
    ("EOFException", "Broken pipe"),
    "A Python worker has ended: it was probably killed, or the machine ran out of memory. Run the same command again.",
)
