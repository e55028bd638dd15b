"""The sandbox's errors, with the statuses and messages of a lakeFS server."""

from __future__ import annotations

from spark_resources.errors import LakegcError


class Problem(LakegcError):
    """Raised for a request that fails. The HTTP response has this status and `{"message": …}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[Problem], tuple[int, str]]:
        return (Problem, (self.status, self.message))


def bad_request(message: str) -> Problem:
    return Problem(400, message)


def forbidden(message: str) -> Problem:
    return Problem(403, message)


def missing_permission() -> Problem:
    """The error for a known user without the permission. Unknown users get the same status."""
    return Problem(401, "insufficient permissions: not allowed to do this")


def not_found(what: str = "") -> Problem:
    return Problem(404, f"{what} not found".strip())


def conflict(message: str) -> Problem:
    return Problem(409, message)


def no_data() -> Problem:
    """The error for reading an entry whose object is gone from the store."""
    return Problem(410, "No data")


def no_changes(action: str) -> Problem:
    return bad_request(f"{action}: no changes")


def read_only() -> Problem:
    return forbidden("read-only repository")
