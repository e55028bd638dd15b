"""HTTP requests in the form that route handlers get, and the responses that they return."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any, NamedTuple, TypeVar

from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response

from spark_resources.lakefs_sandbox.catalog import Catalog
from spark_resources.lakefs_sandbox.errors import Problem, bad_request
from spark_resources.lakefs_sandbox.gc_api import Oversight
from spark_resources.lakefs_sandbox.repository import SandboxRepository

DEFAULT_PER_PAGE = 100
MAX_PER_PAGE = 1000
_LAST_SECOND = 253_402_300_799  # of the year 9999

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Options:
    """The sandbox's options (see `Sandbox`). `failure_statuses` has the status for each repository set to fail."""

    access_key_id: str
    secret_access_key: str
    oversights: frozenset[Oversight]
    uncommitted_page_size: int
    request_log: Callable[[str], None] | None = None
    failure_statuses: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """A request with its whole body, and the catalog and options for its response."""

    catalog: Catalog
    options: Options
    path: Mapping[str, str]
    query: QueryParams
    headers: Headers
    body: bytes

    @property
    def repository(self) -> SandboxRepository:
        return self.catalog.repository(self.path["repository"])

    def text(self, name: str, default: str = "") -> str:
        return self.query.get(name, default)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("true", "1")

    def required(self, name: str) -> str:
        if name not in self.query:
            raise bad_request(f"Query argument {name} is required, but not found")
        return self.query[name]

    def moment(self, seconds: int) -> datetime:
        """Convert a time in a request body (seconds since 1970). Raises `Problem` 400 if it is out of range."""
        if not 0 <= seconds <= _LAST_SECOND:
            raise bad_request("request body has an error: a date is out of range")
        return datetime.fromtimestamp(seconds, UTC)

    def amount(self) -> int:
        try:
            requested = int(self.query.get("amount", DEFAULT_PER_PAGE))
        except ValueError:
            raise bad_request("Invalid format for parameter amount") from None
        return min(requested, MAX_PER_PAGE) if requested > 0 else DEFAULT_PER_PAGE

    def json(self) -> Body:
        """The body as a JSON object. Raises `Problem` 400 for anything else."""
        try:
            body = json.loads(self.body or b"{}")
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise bad_request("request body has an error: failed to decode request body")
        return Body(body)


class Body:
    """The fields of a JSON object. A field of the wrong type raises `Problem` 400; a null counts as missing."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def text(self, name: str, default: str | None = None) -> str:
        return self._field(name, str, default)

    def flag(self, name: str) -> bool:
        return self._field(name, bool, False)

    def number(self, name: str, default: int | None = None) -> int:
        return self._field(name, int, default)

    def texts(self, name: str) -> list[str]:
        values = self._field(name, list, None)
        if not all(isinstance(text, str) for text in values):
            raise bad_request(f"request body has an error: {name} must be a list of strings")
        return values

    def bodies(self, name: str) -> list[Body]:
        items = self._field(name, list, [])
        if not all(isinstance(item, dict) for item in items):
            raise bad_request(f"request body has an error: {name} must be a list of objects")
        return [Body(item) for item in items]

    def body(self, name: str) -> Body:
        """A nested object; an empty one if the field is missing."""
        return Body(self._field(name, dict, {}))

    def mapping(self, name: str) -> dict[str, str]:
        mapping = self._field(name, dict, {})
        if not all(isinstance(text, str) for text in mapping.values()):
            raise bad_request(f"request body has an error: the values of {name} must be strings")
        return mapping

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def _field(self, name: str, kind: type[_T], default: _T | None) -> _T:
        value = self._fields.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise bad_request(f"request body has an error: {name} is missing or not of the type {kind.__name__}")
        return value


Handler = Callable[[Call], Response]


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler


def json_response(body: Any, status: int = 200) -> Response:
    return JSONResponse(body, status)


def empty_response(status: int = 204) -> Response:
    return Response(status_code=status)


def error_response(problem: Problem) -> Response:
    return JSONResponse({"message": problem.message}, problem.status)


def page_response(results: list[dict[str, Any]], has_more: bool, offset_field: str) -> Response:
    """A page of results. The offset of the next page is the value of `offset_field` in the last result."""
    return json_response(
        {
            "pagination": {
                "has_more": has_more,
                "max_per_page": MAX_PER_PAGE,
                "next_offset": results[-1][offset_field] if has_more else "",
                "results": len(results),
            },
            "results": results,
        }
    )


def select_page(call: Call, items: list[_T], name_of: Callable[[_T], str]) -> tuple[list[_T], bool]:
    """The page that the request selects from the items, which must be sorted by name, and whether there are more."""
    prefix, after, amount = call.text("prefix"), call.text("after"), call.amount()
    wanted = [item for item in items if name_of(item).startswith(prefix) and (not after or name_of(item) > after)]
    return wanted[:amount], len(wanted) > amount


def http_date(moment: datetime) -> str:
    return format_datetime(moment, usegmt=True)


def is_authenticated(headers: Headers, options: Options) -> bool:
    """Whether the request has basic authentication with the sandbox's key and secret."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        credentials = base64.b64decode(encoded, validate=True)
    except ValueError:
        return False
    return hmac.compare_digest(credentials, f"{options.access_key_id}:{options.secret_access_key}".encode())
