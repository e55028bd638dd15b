"""The client for Google Cloud Storage, and the translation of its errors into lakegc's.

Requests use the JSON API directly, over google-auth's session. The library google-cloud-storage was tried and rejected:
its batches match responses by order alone, its listings create an object per key, its resumable uploads check the
condition only at the start, it also requests the bucket's metadata, and importing it takes a second.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote

import google.auth
import requests
import urllib3
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from requests.adapters import HTTPAdapter

from spark_resources.errors import Forbidden, LakegcError, NotFound, Transient, Unavailable, WrongUsage, full_stop
from spark_resources.records.json_records import read_json
from spark_resources.stores.base import PARSE_ERRORS
from spark_resources.stores.plain_http import refuse_unencrypted_token
from spark_resources.stores.retry import TRANSIENT_STATUSES, is_permanent_tls_error, redirect_target, retry_after_s
from spark_resources.stores.settings import StoreSettings


class ErrorResponse(Exception):
    """Raised for an error response; `body` is its content."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, body)
        self.status, self.body, self.headers = status, body, headers or {}


class CorruptContent(Exception):
    """Raised for content that doesn't match its checksum."""


class NotSent(Exception):
    """Raised instead of sending a delete if getting a token took too long."""


HOST = "https://storage.googleapis.com"
_UPLOAD_ID = re.compile(r"upload_id=[^&\s'\")]+")
SCOPES = ("https://www.googleapis.com/auth/devstorage.full_control",)

# An error response, a corrupt body, a token that came too late, missing credentials, a broken connection, a response
# that can't be parsed.
REQUEST_ERRORS = (
    ErrorResponse,
    CorruptContent,
    NotSent,
    GoogleAuthError,
    OSError,
    urllib3.exceptions.HTTPError,
    *PARSE_ERRORS,
)

# The caller of a delete allows time for little more than one request, so no delete is sent more than this many seconds
# after the call.
SEND_TIMEOUT_S = 4.0
THROTTLING_CODES = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})  # with status 403
_CREDENTIALS_ADVICE = (
    "Set LAKEGC_GCS_CREDENTIALS_FILE, give the machine a service account, or run "
    "'gcloud auth application-default login'"
)
_PERMISSIONS_ADVICE = (
    "Check that this account may list, get, create and delete objects in this bucket (roles/storage.objectUser)"
)


class GCSClient:
    """A client for these settings. It sends no request and looks up no default credentials before its first use.

    Raises `WrongUsage` for a credentials file that can't be used, and for an endpoint without TLS.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.base_url = (settings.gcs_endpoint_url or HOST).rstrip("/")
        self.timeout = (settings.connect_timeout, settings.read_timeout)
        self._settings = settings
        if not settings.gcs_anonymous:
            refuse_unencrypted_token(self.base_url, "LAKEGC_GCS_ENDPOINT_URL", "the account's token")
        self._configured_credentials = _configured_credentials(settings)
        self._lock = threading.RLock()

    @cached_property
    def _session(self) -> Any:
        with self._lock:
            if "_session" in self.__dict__:  # another thread created it while this one waited
                return self.__dict__["_session"]
            # not for deletes: this session renews a rejected token and re-sends the request, possibly much later
            return self._new_session(self._configured_credentials or google.auth.default(scopes=SCOPES)[0])

    @cached_property
    def _session_for_deletes(self) -> Any:
        return self._new_session(self._session.credentials, refresh_status_codes=())

    def _new_session(self, credentials: Any, **options: Any) -> Any:
        session = AuthorizedSession(credentials, **options)  # type: ignore[no-untyped-call]
        connections = self._settings.connections
        adapter = HTTPAdapter(pool_connections=connections, pool_maxsize=connections, pool_block=False)
        for scheme in ("https://", "http://"):
            session.mount(scheme, adapter)
        session.verify = self._settings.gcs_ca_bundle or True
        return session

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request to the JSON API, without retries. Raises `ErrorResponse` for an error response."""
        return self._send(self._session, method, path, options)

    def delete_without_delay(self, path: str, **options: Any) -> requests.Response:
        """Send a batch of deletes immediately; raises `NotSent` instead if it would be sent too late."""
        started, credentials = time.monotonic(), self._session.credentials
        if not credentials.valid:
            credentials.refresh(partial(Request(), timeout=self.timeout))
        elapsed_s = time.monotonic() - started
        if elapsed_s > SEND_TIMEOUT_S:
            raise NotSent(f"getting a token took {elapsed_s:.0f} s, so the delete was not sent")
        return self._send(self._session_for_deletes, "POST", path, options)

    def _send(self, session: Any, method: str, path: str, options: dict[str, Any]) -> requests.Response:
        response = session.request(method, self.base_url + path, timeout=self.timeout, allow_redirects=False, **options)
        if not 200 <= response.status_code < 300:
            raise ErrorResponse(response.status_code, response.content, response.headers)
        typed_response: requests.Response = response
        return typed_response


def _configured_credentials(settings: StoreSettings) -> Any:
    """The credentials named in the settings; None for the machine's own, which are looked up later."""
    if settings.gcs_anonymous:
        return AnonymousCredentials()  # type: ignore[no-untyped-call]
    if settings.gcs_credentials_file is None:
        return None
    try:
        load = google.auth.load_credentials_from_file
        return load(settings.gcs_credentials_file, scopes=SCOPES)[0]  # type: ignore[no-untyped-call]
    except (GoogleAuthError, OSError, ValueError) as error:
        # without the parser's message, which may contain a line of the key
        raise WrongUsage(
            f"the file in LAKEGC_GCS_CREDENTIALS_FILE, {settings.gcs_credentials_file}, isn't valid "
            f"({type(error).__name__}): expected the JSON file of a service account, a user or a federated identity"
        ) from None


def object_path(bucket: str, name: str) -> str:
    """The URL path of an object. Never pass `.` or `..`: clients resolve them, so a request would be for the bucket."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


# --- errors ---------------------------------------------------------------------------------------------------------


def is_transient(error: Exception) -> bool:
    """Whether a failure is temporary, so that a retry may succeed."""
    if isinstance(error, ErrorResponse):
        return error.status in TRANSIENT_STATUSES or code_and_message(error)[0] in THROTTLING_CODES
    if isinstance(error, requests.exceptions.SSLError):
        return not is_permanent_tls_error(error)
    if isinstance(error, PARSE_ERRORS):
        return False
    return isinstance(error, OSError | TransportError | urllib3.exceptions.HTTPError | CorruptContent | NotSent)


def parse_error_body(status: int, body: bytes | str) -> tuple[str, str]:
    """The store's code and message in an error body. For a transient status, the status itself is the code."""
    try:
        error = read_json(body)["error"]
        reasons = [str(detail["reason"]) for detail in error.get("errors") or () if detail.get("reason")]
        code, message = (reasons or [str(status)])[0], str(error.get("message", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        code, message = str(status), ""
    return (str(status) if status in TRANSIENT_STATUSES else code), message


def without_upload_id(error: Exception) -> str:
    """The text of an error. The URL of an upload in parts has an id with which anyone can write the object."""
    return _UPLOAD_ID.sub("upload_id=…", str(error))


def cause_to_show(error: Exception) -> Exception | None:
    """The error, as the cause of lakegc's; None if its text is secret, because Dagster shows causes, too."""
    return None if _UPLOAD_ID.search(str(error)) else error


def code_and_message(error: Exception) -> tuple[str, str]:
    """The code and message of a failed request; without a response, the type and text of the error."""
    return (
        parse_error_body(error.status, error.body)
        if isinstance(error, ErrorResponse)
        else (type(error).__name__, without_upload_id(error))
    )


def _is_json_api_error(error: ErrorResponse) -> bool:
    """Whether an error response has the JSON API's format. Another web server's 404 says nothing about objects."""
    try:
        return isinstance(read_json(error.body)["error"]["code"], int)
    except (ValueError, TypeError, KeyError):
        return False


@contextmanager
def translated_errors(where: str, action: str, key: str | None = None) -> Iterator[None]:
    """Translates Google's errors into lakegc's, with advice on what to check."""
    try:
        yield
    except REQUEST_ERRORS as error:
        raise as_lakegc_error(error, where, action, key) from cause_to_show(error)


def as_lakegc_error(error: Exception, where: str, action: str, key: str | None) -> LakegcError:
    what = f"could not {action} {where}" if key is None else f"could not {action} {key!r} in {where}"
    if isinstance(error, ErrorResponse):
        return _error_of_response(error, what, where)
    if isinstance(error, GoogleAuthError) and not isinstance(error, TransportError):
        return Forbidden(
            f"{what}: {full_stop(': '.join([type(error).__name__, *map(str, error.args[:1])]))} {_CREDENTIALS_ADVICE}."
        )
    if isinstance(error, requests.exceptions.SSLError) and not is_transient(error):
        return Unavailable(
            f"{what}: {full_stop(without_upload_id(error))} If the store uses its own certificate authority, set "
            "LAKEGC_GCS_CA_BUNDLE."
        )
    if isinstance(error, CorruptContent):
        return Transient(f"{what}: the received content doesn't match its checksum ({error}). Try again.")
    unreachable = (
        f"{what}: {full_stop(without_upload_id(error))} Check LAKEGC_GCS_ENDPOINT_URL and the network, then try again."
    )
    return Transient(unreachable) if is_transient(error) else Unavailable(unreachable)


def _error_of_response(error: ErrorResponse, what: str, where: str) -> LakegcError:
    code, message = code_and_message(error)
    failure = f"{what}: {code}: {message}".rstrip(": .")
    if error.status in (401, 403) and not is_transient(error):
        return Forbidden(f"{failure}. {_CREDENTIALS_ADVICE if error.status == 401 else _PERMISSIONS_ADVICE}.")
    if error.status == 404 and _is_json_api_error(error):
        return NotFound(f"the bucket of {where} does not exist. Check the namespace and the endpoint.")
    if 300 <= error.status < 400:
        return Unavailable(
            f"{what}: the server redirected the request (HTTP {error.status}) to "
            f"{redirect_target(error.headers.get('Location', ''))}, and lakegc doesn't follow redirects. Check "
            "LAKEGC_GCS_ENDPOINT_URL."
        )
    if error.status == 404:
        return Unavailable(
            f"{failure} (HTTP {error.status}). The response isn't from Cloud Storage: check LAKEGC_GCS_ENDPOINT_URL."
        )
    failure = f"{failure} (HTTP {error.status}). Try again. If the error persists, check the bucket's quotas."
    return Transient(failure, after_s=retry_after_s(error.headers)) if is_transient(error) else Unavailable(failure)
