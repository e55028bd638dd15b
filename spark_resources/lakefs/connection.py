"""Requests to the lakeFS server: retries, timeouts, and readable errors for refused requests.

`lakefs-sdk` provides the calls, their paths and the authentication. Here it returns each response unparsed, so that
`responses` can parse it strictly. The SDK takes about a second to import, so it is imported at the first call.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_resources.errors import DamagedData, Forbidden, NotFound, Transient, Unavailable, full_stop, shortened
from spark_resources.lakefs.responses import Body
from spark_resources.lakefs.settings import LakeFSSettings, api_address
from spark_resources.stores import size_limits
from spark_resources.stores.http_dates import http_time
from spark_resources.stores.retry import TRANSIENT_STATUSES, is_permanent_tls_error, redirect_target, retry_after_s

CONCURRENT_TASKS = 4  # tasks of one process that send requests concurrently: the driver reads several branches
# urllib3's messages start with the repr of the connection pool.
_POOL_REPR = re.compile(r"^HTTPS?Connection(Pool)?\([^)]*\): ")


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One API call: the SDK's class and method, what it gets or sets (for messages), and the permission it needs.

    A `slow` call gets the longer read timeout. A call that `changes` something is described as such in messages.
    """

    api: str
    method: str
    what: str
    permission: str
    slow: bool = False
    changes: bool = False

    def attempt_at(self, where: str) -> str:
        """What the call does, for messages: "get X from lakeFS at …"."""
        return f"set {self.what} in lakeFS at {where}" if self.changes else f"get {self.what} from lakeFS at {where}"


@dataclass(frozen=True, slots=True)
class Response:
    """A response: status, JSON (None if the body isn't JSON), the beginning of the body, and the server's `Date`."""

    status: int
    json: Any
    text: str
    date: datetime | None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The `message` of an error response from lakeFS itself; "" for any other response."""
        message = self.json.get("message") if isinstance(self.json, dict) else None
        return shortened(message) if isinstance(message, str) else ""

    @property
    def lacks_permission(self) -> bool:
        """Whether lakeFS knows the user but denies the call. It may respond with 401, as for wrong credentials."""
        denied = any(phrase in self.message.lower() for phrase in ("insufficient permission", "not allowed"))
        return self.status == 403 or (self.status == 401 and denied)

    @property
    def says_not_found(self) -> bool:
        """Whether lakeFS reports that the named resource doesn't exist. A 404 for an unknown API call doesn't count."""
        unknown_call = ("invalid api endpoint", "no matching operation")
        return (
            self.status == 404
            and bool(self.message)
            and not any(phrase in self.message.lower() for phrase in unknown_call)
        )


class Connection:
    """Sends requests to one server. Thread-safe; the underlying connections are pooled and shared."""

    def __init__(self, settings: LakeFSSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    @property
    def where(self) -> str:
        return self.settings.endpoint_url

    def body(self, call: ApiCall, **arguments: Any) -> Body:
        """The JSON object of a successful response. Raises the error from `error_for` for any other response."""
        response = self.request(call, **arguments)
        if not response.is_success:
            raise self.error_for(call, response)
        return Body.of(response.json, call.what)

    def request(self, call: ApiCall, **arguments: Any) -> Response:
        """The response, with any status. Raises `Unavailable` if there is none or if it can't be from lakeFS."""
        return self._validated(call, *self.raw_response(call, arguments))

    def raw_response(self, call: ApiCall, arguments: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str | bytes]:
        """Status, headers and unparsed body. The request is retried by the policy, because every call is idempotent.

        Errors raised here are never chained to an exception that shows headers or a body in full.
        """
        return self.settings.retry.call(lambda: self._attempt(call, arguments))

    def _attempt(self, call: ApiCall, arguments: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str | bytes]:
        status, headers, body = self._send(call, arguments)
        if status in TRANSIENT_STATUSES:
            body_text = _decode(body)
            error = self.error_for(call, Response(status, _parse_json(body_text), body_text[:300], None))
            raise Transient(str(error), after_s=retry_after_s(headers))
        return status, headers, body

    def _send(self, call: ApiCall, arguments: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str | bytes]:
        import urllib3
        from lakefs_sdk import exceptions

        settings = self.settings
        read_timeout_s = settings.slow_read_timeout_s if call.slow else settings.read_timeout_s
        send_request = getattr(self._api(call.api), f"{call.method}_with_http_info")
        try:
            response = send_request(_request_timeout=(settings.connect_timeout_s, read_timeout_s), **arguments)
        except exceptions.ApiException as error:
            if not error.status:
                raise self._unreachable_error(call, str(error.reason)) from None
            return int(error.status), error.headers or {}, error.body or ""
        except _TooLarge:
            limit = f"a response of more than {size_limits.MAX_RESPONSE_BYTES:,} bytes"
            raise self._not_lakefs_error(call, limit) from None
        except UnicodeDecodeError:
            raise self._not_lakefs_error(call, "a response that is not text") from None
        except UnicodeEncodeError:
            raise Unavailable(
                f"could not request {call.what!a} from lakeFS at {self.where}: the name is not Unicode text. Check the "
                "name."
            ) from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable_error(call, _root_cause(error)) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise self._not_lakefs_error(call, f"an unreadable response ({type(error).__name__})") from None
        return int(response.status_code), response.headers, response.raw_data

    def _validated(self, call: ApiCall, status: int, headers: Mapping[str, str], body: str | bytes) -> Response:
        body_text = _decode(body)
        response = Response(status, _parse_json(body_text), body_text[:300], _parse_date(headers.get("Date")))
        if 300 <= status < 400:
            raise self._not_lakefs_error(call, f"a redirect to {redirect_target(headers.get('Location', ''))}")
        if status < 500 and _is_html(headers, body_text):
            raise self._not_lakefs_error(call, f"a web page (status {status})")
        if response.is_success and status != 204 and response.json is None:
            raise DamagedData(
                f"invalid lakeFS response for {call.what}: it is not complete JSON. Check the proxies in "
                "front of the server.",
                invariant=3,
            )
        return response

    def _api(self, name: str) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _sdk_client(self.settings)
            import lakefs_sdk

            return getattr(lakefs_sdk, name)(self._client)

    def error_for(self, call: ApiCall, response: Response) -> Unavailable:
        """The error for an unsuccessful response: what it means, and what to do next."""
        message = response.message or (response.text if response.text[:1] != "<" else "")
        reason = f": {message}".rstrip(": .\n") + "."
        failure = f"could not {call.attempt_at(self.where)}"
        if response.status == 401 and not response.lacks_permission:
            return Forbidden(
                f"{failure}: the server does not accept the credentials{reason} Check the access key id and the secret "
                f"access key ({self.settings.credentials_setting})."
            )
        if response.status == 403 and "read-only" in response.message.lower().replace("read only", "read-only"):
            return Forbidden(
                f"{failure}: the repository is read-only{reason} A read-only repository can't be marked: run "
                "lakegc against the server that writes to it."
            )
        if response.status in (401, 403):
            return Forbidden(
                f"{failure}: access denied{reason} The user most likely lacks the permission {call.permission}: "
                "ask a lakeFS administrator to grant it."
            )
        if response.says_not_found:
            return NotFound(f"{failure}: it doesn't exist{reason} Check the name.")
        if response.status in (404, 405, 501):
            return Unavailable(
                f"{failure}: the server doesn't support this call (HTTP {response.status}){reason} The server may "
                "be too old: upgrade it. Otherwise check that the endpoint is a lakeFS server."
            )
        if response.status == 429 or response.status >= 500:
            return Unavailable(
                f"{failure}: HTTP {response.status}{reason} Try again later. If the error persists, check the server's "
                "log."
            )
        return Unavailable(f"{failure}: HTTP {response.status}{reason} Check the server's log.")

    def _not_lakefs_error(self, call: ApiCall, response: str) -> Unavailable:
        return Unavailable(
            f"could not get {call.what} from {self.where}: it returned {response}, so it is not the lakeFS API. "
            f"Check the endpoint ({self.settings.endpoint_setting})."
        )

    def _unreachable_error(self, call: ApiCall, cause: str) -> Unavailable:
        failure = f"could not {call.attempt_at(self.where)}"
        if is_permanent_tls_error(cause):
            return Unavailable(
                f"{failure}: no trusted TLS connection ({cause}). If your own certificate authority issued the "
                f"server's certificate, set {self.settings.ca_bundle_setting} to the file with the authority's "
                "certificate. If the server uses plain HTTP, the endpoint must start with http://."
            )
        return Transient(
            f"{failure}: {full_stop(cause)} Check that the server is running and that the endpoint "
            f"({self.settings.endpoint_setting}) is correct."
        )


def _sdk_client(settings: LakeFSSettings) -> Any:
    """The SDK's client, configured to send each request once and to leave responses unparsed."""
    import urllib3
    from lakefs_sdk.api_client import ApiClient
    from lakefs_sdk.configuration import Configuration

    class UnparsedApiClient(ApiClient):
        def deserialize(self, response: Any, response_type: str) -> None:
            """Leave parsing to `responses`: the SDK's models reject `branches: null` and accept a missing size."""

    configuration: Any = Configuration(
        host=api_address(settings.endpoint_url),
        username=settings.access_key_id,
        password=settings.secret_access_key,
        ssl_ca_cert=settings.ca_bundle,
    )
    configuration.verify_ssl = settings.verify_tls
    max_concurrent = CONCURRENT_TASKS * settings.probe_requests
    configuration.connection_pool_maxsize = max(configuration.connection_pool_maxsize, max_concurrent)
    configuration.retries = urllib3.Retry(
        total=0,  # the retry policy does this
        redirect=False,  # following one would drop the credentials or send them elsewhere
        raise_on_status=False,
    )
    client = UnparsedApiClient(configuration)
    _limit_responses(client.rest_client.pool_manager)
    return client


class _TooLarge(Exception):
    """Raised for a response of more than MAX_RESPONSE_BYTES."""


def _limit_responses(pool: Any) -> None:
    """Make a pool read each response in pieces, and no more of it than MAX_RESPONSE_BYTES, decompressed."""
    import urllib3

    send = pool.urlopen

    def urlopen(method: str, url: str, **options: Any) -> urllib3.HTTPResponse:
        response = send(method, url, **{**options, "preload_content": False})
        body = io.BytesIO()
        for piece in response.stream(size_limits.PIECE_SIZE, decode_content=True):
            body.write(piece)
            if body.tell() > size_limits.MAX_RESPONSE_BYTES:
                response.close()
                raise _TooLarge
        body.seek(0)
        return urllib3.HTTPResponse(
            body, response.headers, response.status, response.version, reason=response.reason, decode_content=False
        )

    pool.urlopen = urlopen


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _parse_date(header: str | None) -> datetime | None:
    if header is None:
        return None
    try:
        return http_time(header)
    except ValueError:
        return None


def _is_html(headers: Mapping[str, str], text: str) -> bool:
    return "html" in headers.get("Content-Type", "").lower() or text.lstrip()[:1] == "<"


def _decode(body: str | bytes) -> str:
    return body.decode("utf-8", "replace") if isinstance(body, bytes) else body


def _root_cause(error: BaseException) -> str:
    """The root cause of a connection error, in the library's words."""
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, BaseException) else error
    return f"{type(cause).__name__}: {_POOL_REPR.sub('', str(cause))}"
