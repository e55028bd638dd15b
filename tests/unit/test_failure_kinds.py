"""Each failure is temporary, permanent or a bug, and its message says what to do."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError, Py4JNetworkError

from spark_resources import errors
from spark_resources.errors import LakegcError, Transient
from spark_resources.host.failure_kinds import JAVA_ENDED, TRY_AGAIN, FailureKind, kind_of, message_of
from spark_resources.mark_store.lease import LeaseHeld
from spark_resources.spark.remote_errors import errors_from_executors, failure_reason
from spark_resources.spark.session import hide_stack_traces_of_lost_connections
from spark_resources.stores.failure_codes import TRANSIENT_CODES
from spark_resources.stores.permissions import MISSING_PERMISSIONS
from spark_resources.stores.retry import NO_RETRIES, TRANSIENT_STATUSES
from spark_resources.stores.s3.client import TRANSIENT_ERROR_CODES as OF_S3
from tests.support.s3_servers import free_port

TEMPORARY = {"Transient", "StillUnavailable", "Interrupted"}
PERMANENT = {
    "LakegcError", "WrongUsage", "NotAPartition", "Refused", "NothingToDo", "DamagedData", "Untrusted",
    "UnknownFormat", "Retired", "FinishedWithFailures", "Unavailable", "Forbidden", "NotFound",
}  # fmt: skip


def all_errors(parent: type[LakegcError] = LakegcError) -> Iterator[type[LakegcError]]:
    """The error and those of its subclasses that are in the same module."""
    yield parent
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from all_errors(child)


def test_every_error_class_is_either_temporary_or_permanent() -> None:
    """A new error class must be added to one of the two lists."""
    kinds = {kind.__name__: kind_of(kind("it failed")) for kind in all_errors()}

    assert {name for name, kind in kinds.items() if kind is FailureKind.TEMPORARY} == TEMPORARY
    assert {name for name, kind in kinds.items() if kind is FailureKind.PERMANENT} == PERMANENT
    assert kind_of(LeaseHeld("anna is working on it")) is FailureKind.TEMPORARY


def failure_after_retries() -> BaseException:
    def request() -> None:
        raise Transient("the store didn't answer")

    with pytest.raises(LakegcError) as raised:
        NO_RETRIES.call(request)
    return raised.value


def wrapped(error: BaseException) -> BaseException:
    """An error of a library, caused by this one."""
    try:
        raise RuntimeError("the library failed") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (failure_after_retries(), FailureKind.TEMPORARY, f"the store didn't answer. {TRY_AGAIN}"),
        (Transient("the store is busy. Try again."), FailureKind.TEMPORARY, "the store is busy. Try again."),
        (Transient("no response from against-lake"), FailureKind.TEMPORARY, f"from against-lake. {TRY_AGAIN}"),
        (errors.Forbidden("no permission. Grant it."), FailureKind.PERMANENT, "no permission. Grant it."),
        (OSError(errno.ENOSPC, "No space left", "/tmp/x"), FailureKind.PERMANENT, "No space left: /tmp/x. Free some"),
        (OSError(errno.EDQUOT, "Quota exceeded"), FailureKind.PERMANENT, "Quota exceeded. Free some space"),
        (OSError(errno.EMFILE, "Too many open files"), FailureKind.PERMANENT, "ulimit -n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), FailureKind.PERMANENT, "LAKEGC_SPARK_MASTER=local[1]"),
        (MemoryError(), FailureKind.PERMANENT, "too little memory. Use a machine with more memory"),
        (pa.lib.ArrowMemoryError("malloc of size 9"), FailureKind.PERMANENT, "memory: malloc of size 9. Use a machine"),
        (wrapped(OSError(errno.ENOSPC, "No space left")), FailureKind.PERMANENT, "Free some space"),
        (OSError(errno.EIO, "Input/output error"), FailureKind.BUG, "This is a bug in lakegc"),
        (ValueError("no"), FailureKind.BUG, "ValueError: no\nThis is a bug in lakegc"),
    ],
)  # fmt: skip
def test_the_message_of_a_failure_says_what_to_do(error: BaseException, kind: FailureKind, words: str) -> None:
    """A machine that lacks space, memory or file descriptors is no bug in lakegc."""
    assert kind_of(error) is kind
    assert words in message_of(error)


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        (
            "OSError: [Errno 28] No space left on device",
            "No space left on device. Free some disk space, or set TMPDIR",
        ),
        (": java.io.IOException: No space left on device\n\tat x", "No space left on device. Free some disk space"),
        (
            "numpy.core._exceptions.MemoryError: 3 GiB",
            "3 GiB. Use a machine with more memory, or run fewer tasks at once",
        ),
        ("pyarrow.lib.ArrowMemoryError: malloc of size 9", "malloc of size 9. Use a machine with more memory"),
        ("OSError: [Errno 24] Too many open files: 'x'", "ulimit -n"),
        (
            ": org.apache.spark.SparkException: Exception thrown in awaitResult: \nCaused by: x.IOException: lost",
            "IOException: lost",
        ),
        (": java.io.IOException: Broken pipe\n\tat x", "Broken pipe. A Python worker has ended"),
        (": java.io.EOFException\n\tat x", "EOFException. A Python worker has ended: it was probably killed"),
        (": org.apache.spark.SparkException: Exception thrown in awaitResult: ", "or Spark's Java process was lost"),
    ],
)
def test_the_reason_for_a_failed_spark_job_states_the_cause(reported: str, words: str) -> None:
    assert words in failure_reason(f"Job aborted due to stage failure\n{reported}")


def test_a_killed_spark_java_process_is_reported_as_a_temporary_failure() -> None:
    """py4j's connection is then refused at the driver's next call to Spark."""
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=free_port()))

    with pytest.raises((Py4JNetworkError, OSError)) as raised:
        gateway.jvm.System.currentTimeMillis()
    with pytest.raises(LakegcError) as in_an_action, errors_from_executors():
        gateway.jvm.System.currentTimeMillis()

    assert kind_of(raised.value) is FailureKind.TEMPORARY
    assert message_of(raised.value) == JAVA_ENDED
    assert str(in_an_action.value) == JAVA_ENDED


def test_a_java_process_killed_during_a_call_is_reported_without_a_stack_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """py4j logs the lost connection, and raises an error that doesn't mention it."""
    hide_stack_traces_of_lost_connections()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_connections() -> None:
            with suppress(OSError):
                while True:
                    server.accept()[0].close()

        threading.Thread(target=close_connections, daemon=True).start()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
        with pytest.raises(LakegcError) as raised, errors_from_executors():
            gateway.entry_point.getResult()
        server.shutdown(socket.SHUT_RDWR)

    assert str(raised.value) == JAVA_ENDED
    assert type(raised.value.__cause__) is Py4JError
    assert caplog.records == []


def test_the_advice_for_every_error_code_that_is_retried_is_to_try_again() -> None:
    """None of the codes also counts as a missing permission, so the advice is clear."""
    azure = pytest.importorskip("spark_resources.stores.azure.client")
    gcs = pytest.importorskip("spark_resources.stores.gcs.client")
    statuses = map(str, TRANSIENT_STATUSES)

    assert {*OF_S3, *azure.TRANSIENT_ERROR_CODES, *gcs.THROTTLING_CODES, *statuses} <= TRANSIENT_CODES
    assert not TRANSIENT_CODES & MISSING_PERMISSIONS
