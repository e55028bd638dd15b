"""What kind of failure an error is: temporary, permanent, or a bug in lakegc. Nothing else decides this.

A store's client decides which responses are temporary, because it raises `Transient` for them. The codes of failed
deletes, which are results and not errors, are classified in `spark_resources.stores.failure_codes`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from enum import StrEnum
from traceback import walk_tb

from spark_resources.errors import LakegcError, full_stop


class FailureKind(StrEnum):
    TEMPORARY = "temporary"
    """The same command can succeed later even if nobody changes anything."""
    PERMANENT = "permanent"
    """Somebody has to change something first: the request, a setting, a permission, data, or the machine."""
    BUG = "bug"
    """A bug in lakegc."""


TRY_AGAIN = "This is probably temporary: run the same command again later."
_SPACE = "Free some space on that disk, and run the same command again."
_MEMORY = "Use a machine with more memory, or run fewer tasks at once, for example with LAKEGC_SPARK_MASTER=local[1]."
_FILES = "Raise the limit on open files (ulimit -n), and run the same command again."
_REMEDIES = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.ENOMEM: _MEMORY,
    errno.EMFILE: _FILES,
    errno.ENFILE: _FILES,
}
JAVA_ENDED = (
    "Spark's Java process has ended or doesn't respond: it was probably killed, or the machine ran out of memory. Run "
    "the same command again. If it happens again, free memory on this machine, or run fewer tasks at once, for example "
    "with LAKEGC_SPARK_MASTER=local[1]."
)
_NO_RESPONSE = re.compile(r"An error occurred while calling \S+")  # py4j's text; a response from Java would follow
REMEDIES_BY_TEXT = {
    "No space left on device": "Free some disk space, or set TMPDIR (for Spark's files) to a folder on another disk.",
    "Disk quota exceeded": "Free some disk space, or set TMPDIR (for Spark's files) to a folder on another disk.",
    "Too many open files": _FILES,
    "Cannot allocate memory": _MEMORY,
    "MemoryError": _MEMORY,
}
"""What to do if a machine lacks something, by a phrase that the error of a Spark task then contains."""


def kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, LakegcError):
        return FailureKind.TEMPORARY if error.is_temporary else FailureKind.PERMANENT
    if is_lost_java(error):
        return FailureKind.TEMPORARY
    return FailureKind.PERMANENT if machine_failure(error) else FailureKind.BUG


def message_of(error: BaseException) -> str:
    """The message for people, which says what to do next."""
    match kind_of(error):
        case FailureKind.TEMPORARY:
            text = str(error) if isinstance(error, LakegcError) else JAVA_ENDED
            return text if re.search(r"\bagain\b", text) else f"{full_stop(text)} {TRY_AGAIN}"
        case FailureKind.PERMANENT:
            return machine_failure(error) or str(error)
        case FailureKind.BUG:
            description = f"{type(error).__name__}: {error}"
            return f"{description}\nThis is a bug in lakegc. Run it with --debug, and report the traceback."


def is_lost_java(error: BaseException) -> bool:
    """Whether the connection to Spark's Java process failed. Only py4j connects to it."""
    return any(
        isinstance(cause, OSError | EOFError) and any("/py4j/" in path for path in _files_of(cause))
        for cause in causes(error)
    ) or any(
        type(cause).__name__ == "Py4JNetworkError"
        or (type(cause).__name__ == "Py4JError" and _NO_RESPONSE.fullmatch(str(cause)))
        for cause in causes(error)
    )


def _files_of(error: BaseException) -> Iterator[str]:
    """The source files of the functions in the error's traceback."""
    return (frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__))


def machine_failure(error: BaseException) -> str:
    """What this machine lacks (space, memory, open files), and what to do; "" if nothing is known to be lacking.

    lakegc's own errors already say it.
    """
    if isinstance(error, LakegcError):
        return ""
    for cause in causes(error):
        if isinstance(cause, MemoryError):
            return f"{full_stop(f'this machine has too little memory: {cause}'.rstrip(': '))} {_MEMORY}"
        if isinstance(cause, OSError) and (remedy := _REMEDIES.get(cause.errno or 0)):
            where = f": {cause.filename}" if cause.filename else ""
            return f"{full_stop(f'{cause.strerror}{where}')} {remedy}"
    return ""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and so on."""
    seen = set[int]()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
