"""Requests to the lakeFS server: retries, timeouts, and readable errors for refused requests.

`lakefs-sdk` provides the calls, their paths and the authentication. Here it returns each response unparsed, so that
`responses` can parse it strictly. The SDK takes about a second to import, so it is imported at the first call.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spark_resources.errors import DamagedData, Forbidden, NotFound, Transient, Unavailable, full_stop
from spark_resources.lakefs.responses import Body
from spark_resources.lakefs.settings import LakeFSSettings, api_address
from spark_resources.stores.retry import PASSING_STATUS, is_tls_refusal, origin_of, seconds_of

# The repr of the connection pool at the start of urllib3's messages.
_POOL = re.compile(r"^HTTPS?Connection(Pool)?\([^)]*\): ")


@dataclass(frozen=True, slots=True)
class Question:
    """One API call: the SDK's class and method, a description for messages (`what`), and the permission it needs.

    A `slow` call gets the longer read timeout.
    """

    api: str
    method: str
    what: str
    permission: str
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: status, JSON (None if the body isn't JSON), the beginning of the body, and the server's `Date`."""

    status: int
    json: Any
    text: str
    date: datetime | None

    @property
    def fine(self) -> bool:
        return 200 <= self.status < 300

    @property
    def message(self) -> str:
        """The `message` of an error response from lakeFS itself; "" for any other response."""
        said = self.json.get("message") if isinstance(self.json, dict) else None
        return said if isinstance(said, str) else ""

    @property
    def lacks_permission(self) -> bool:
        """Whether lakeFS knows the user but denies the call. It responds with 401, as it does to wrong credentials."""
        said = any(words in self.message.lower() for words in ("insufficient permission", "not allowed"))
        return self.status == 403 or (self.status == 401 and said)

    @property
    def names_nothing(self) -> bool:
        """Whether lakeFS itself reports that the named resource doesn't exist, rather than the API call."""
        strange = ("invalid api endpoint", "no matching operation")
        return self.status == 404 and bool(self.message) and not any(each in self.message.lower() for each in strange)


class Connection:
    """Sends requests to one server. Thread-safe; the underlying connections are pooled and shared."""

    def __init__(self, settings: LakeFSSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self.last_date: datetime | None = None

    @property
    def where(self) -> str:
        return self.settings.endpoint_url

    def body(self, question: Question, **arguments: Any) -> Body:
        """The JSON object of a successful response. Raises the error from `refusal` for any other."""
        answer = self.ask(question, **arguments)
        if not answer.fine:
            raise self.refusal(question, answer)
        return Body.of(answer.json, question.what)

    def ask(self, question: Question, **arguments: Any) -> Answer:
        """The response, whatever its status. Raises `Unavailable` if there is none or if it can't be from lakeFS."""
        return self._checked(question, *self.raw(question, arguments))

    def raw(self, question: Question, arguments: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str | bytes]:
        """Status, headers and unparsed body, requested under the retry policy: every call made here can be repeated.

        No error raised here is chained to one that shows headers or a body in full.
        """
        return self.settings.retry.call(lambda: self._once(question, arguments))

    def _once(self, question: Question, arguments: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str | bytes]:
        status, headers, text = self._sent(question, arguments)
        if status in PASSING_STATUS:
            shown = _shown(text)
            refusal = self.refusal(question, Answer(status, _json(shown), shown[:300], None))
            raise Transient(str(refusal), after_s=seconds_of(headers))
        return status, headers, text

    def _sent(self, question: Question, arguments: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str | bytes]:
        import urllib3
        from lakefs_sdk import exceptions

        settings = self.settings
        read_timeout_s = settings.slow_read_timeout_s if question.slow else settings.read_timeout_s
        call = getattr(self._api(question.api), f"{question.method}_with_http_info")
        try:
            response = call(_request_timeout=(settings.connect_timeout_s, read_timeout_s), **arguments)
        except exceptions.ApiException as error:
            if not error.status:
                raise self._unreachable(question, str(error.reason)) from None
            return int(error.status), error.headers or {}, error.body or ""
        except UnicodeDecodeError:
            raise self._not_lakefs(question, "an answer that is not text") from None
        except UnicodeEncodeError:
            raise Unavailable(f"{self.where} can't be asked for {question.what!a}: that is not Unicode text") from None
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(question, _root(error)) from error
        except (ValueError, TypeError, RecursionError) as error:
            raise self._not_lakefs(question, f"an answer that can't be read ({type(error).__name__})") from None
        return int(response.status_code), response.headers, response.raw_data

    def _checked(self, question: Question, status: int, headers: Mapping[str, str], text: str | bytes) -> Answer:
        shown = _shown(text)
        answer = Answer(status, _json(shown), shown[:300], _date(headers.get("Date")))
        self.last_date = answer.date or self.last_date
        if 300 <= status < 400:
            raise self._not_lakefs(question, f"a redirect to {origin_of(headers.get('Location', ''))}")
        if status < 500 and _is_html(headers, shown):
            raise self._not_lakefs(question, f"a web page (status {status})")
        if answer.fine and status != 204 and answer.json is None:
            raise DamagedData(f"the server's answer about {question.what} is not whole JSON", invariant=3)
        return answer

    def _api(self, name: str) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _sdk_client(self.settings)
            import lakefs_sdk

            return getattr(lakefs_sdk, name)(self._client)

    def refusal(self, question: Question, answer: Answer) -> Unavailable:
        """The error for an unsuccessful response: what it means, and what to do next."""
        words = answer.message or (answer.text if answer.text[:1] != "<" else "")
        said = f": {words}".rstrip(": .\n") + "."
        asked = f"lakeFS at {self.where} was asked for {question.what}"
        if answer.status == 401 and not answer.lacks_permission:
            return Forbidden(
                f"{asked} and does not accept the credentials{said} Check the access key id and the secret access key "
                "(LAKEGC_ACCESS_KEY_ID, LAKEGC_SECRET_ACCESS_KEY, or ~/.lakectl.yaml)."
            )
        if answer.status == 403 and "read-only" in answer.message.lower().replace("read only", "read-only"):
            return Forbidden(
                f"{asked} and refuses, because the repository is read-only{said} A read-only repository can't be "
                "marked: collect it where it is written."
            )
        if answer.status in (401, 403):
            return Forbidden(
                f"{asked} and refuses{said} The user most likely lacks the permission {question.permission}: "
                "ask a lakeFS administrator for it."
            )
        if answer.names_nothing:
            return NotFound(f"{asked} and has no such thing{said} Check the name.")
        if answer.status in (404, 405, 501):
            return Unavailable(
                f"{asked} and doesn't know how to give it ({answer.status}){said} The server is too old for this call, "
                "or the endpoint is not that of lakeFS."
            )
        if answer.status == 429 or answer.status >= 500:
            return Unavailable(f"{asked} and answered {answer.status}{said} Try again later.")
        return Unavailable(f"{asked} and answered {answer.status}{said}")

    def _not_lakefs(self, question: Question, got: str) -> Unavailable:
        return Unavailable(
            f"{self.where} was asked for {question.what} and gave {got}: that is not the lakeFS API. "
            "Check the endpoint (LAKEGC_ENDPOINT_URL, or server.endpoint_url in ~/.lakectl.yaml)."
        )

    def _unreachable(self, question: Question, why: str) -> Unavailable:
        asked = f"{self.where} could not be asked for {question.what}"
        if is_tls_refusal(why):
            return Unavailable(
                f"{asked}: no TLS connection that can be trusted ({why}). If the server's certificate is from your "
                "own authority, name its file by LAKEGC_CA_BUNDLE; if it speaks plain HTTP, let the endpoint begin "
                "with http://."
            )
        return Transient(
            f"{asked}: {full_stop(why)} Check that the server runs and that the endpoint "
            "(LAKEGC_ENDPOINT_URL, or server.endpoint_url in ~/.lakectl.yaml) is right."
        )


def _sdk_client(settings: LakeFSSettings) -> Any:
    """The SDK's client, set up to send each request once and to leave responses unparsed."""
    import urllib3
    from lakefs_sdk.api_client import ApiClient
    from lakefs_sdk.configuration import Configuration

    class AsItCame(ApiClient):
        def deserialize(self, response: Any, response_type: str) -> None:
            """Leave parsing to `responses`: the SDK's models reject `branches: null` and accept a missing size."""

    configuration: Any = Configuration(
        host=api_address(settings.endpoint_url),
        username=settings.access_key_id,
        password=settings.secret_access_key,
        ssl_ca_cert=settings.ca_bundle,
    )
    configuration.verify_ssl = settings.verify_tls
    configuration.connection_pool_maxsize = max(configuration.connection_pool_maxsize, settings.probe_requests)
    configuration.retries = urllib3.Retry(
        total=0,  # the retry policy does this
        redirect=False,  # following one would drop the credentials or send them elsewhere
        raise_on_status=False,
    )
    return AsItCame(configuration)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _date(header: str | None) -> datetime | None:
    if header is None:
        return None
    try:
        return parsedate_to_datetime(header).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None


def _is_html(headers: Mapping[str, str], text: str) -> bool:
    return "html" in headers.get("Content-Type", "").lower() or text.lstrip()[:1] == "<"


def _shown(text: str | bytes) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def _root(error: BaseException) -> str:
    """The root cause of a connection error, as the library words it."""
    reason = getattr(error, "reason", None)
    shown = reason if isinstance(reason, BaseException) else error
    return f"{type(shown).__name__}: {_POOL.sub('', str(shown))}"
