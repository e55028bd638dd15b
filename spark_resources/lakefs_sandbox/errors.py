"""What the sandbox refuses, with the status and the words that a lakeFS server has for it."""

from __future__ import annotations

from spark_resources.errors import LakegcError


class Problem(LakegcError):
    """Raised for a request that is answered by `status` and `{"message": …}`. Inside one process it is an exception."""

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


def lacks_permission() -> Problem:
    """Whom lakeFS knows, and doesn't let: with the status that unknown users get, too."""
    return Problem(401, "insufficient permissions: not allowed to do this")


def not_found(what: str = "") -> Problem:
    return Problem(404, f"{what} not found".strip())


def conflict(message: str) -> Problem:
    return Problem(409, message)


def no_data() -> Problem:
    """The entry is there and its object is gone from the store: what a reader gets after a hard delete."""
    return Problem(410, "No data")


def no_changes(doing: str) -> Problem:
    return bad_request(f"{doing}: no changes")


def read_only() -> Problem:
    return forbidden("read-only repository")
