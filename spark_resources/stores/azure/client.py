"""Builds the client for an Azure container and translates its errors into lakegc's."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import requests
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    IncompleteReadError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.storage.blob import BlobServiceClient, ContainerClient, ExponentialRetry
from requests.adapters import HTTPAdapter

from spark_resources.errors import (
    Forbidden,
    LakegcError,
    NotFound,
    Transient,
    Unavailable,
    WrongUsage,
    capitalized,
    full_stop,
)
from spark_resources.model import Namespace
from spark_resources.stores.base import PARSE_ERRORS
from spark_resources.stores.extras import needs_extra
from spark_resources.stores.plain_http import refuse_unencrypted_token
from spark_resources.stores.retry import TRANSIENT_STATUSES, is_permanent_tls_error, redirect_target, retry_after_s
from spark_resources.stores.settings import StoreSettings

# The domains that lakeFS supports. It always connects to https://<account>.<domain>.
DOMAINS = ("blob.core.windows.net", "blob.core.chinacloudapi.cn", "blob.core.usgovcloudapi.net")

_HOST = re.compile(r"^([a-z0-9][a-z0-9_-]*)\.([a-z0-9.-]+)\Z")
_CONTAINER = re.compile(r"^\$?[a-z0-9](?:-?[a-z0-9])*\Z")

TRANSIENT_ERROR_CODES = frozenset({"ServerBusy", "OperationTimedOut", "InternalError"})
CONDITION_FAILED_CODES = frozenset({"ConditionNotMet", "TargetConditionNotMet", "412"})
# the codes of a write that failed because a blob already exists
ALREADY_EXISTS_CODES = frozenset({"BlobAlreadyExists", "PathAlreadyExists", *CONDITION_FAILED_CODES})

_VARIABLES = "LAKEGC_AZURE_ACCOUNT_KEY or LAKEGC_AZURE_SAS_TOKEN"
_ADVICE = {
    "AuthenticationFailed": f"check {_VARIABLES}, and that this machine's clock is correct (NTP)",
    "AuthorizationFailure": f"check {_VARIABLES}, what the token permits, and the account's network rules",
    "InvalidAuthenticationInfo": f"check {_VARIABLES}",
    "NoAuthenticationInformation": f"set {_VARIABLES}, or log in",
    "KeyBasedAuthenticationNotPermitted": (
        "shared keys are disabled for this account: unset LAKEGC_AZURE_ACCOUNT_KEY, and log in"
    ),
}
_PERMISSIONS = f"check {_VARIABLES}, or that this identity has the role Storage Blob Data Contributor on the container"
_SIGNATURE = re.compile(r"\bsig=[^&\s'\"]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Container:
    """A container and a path within it. `prefix` ends with a slash or is empty; `endpoint` is the account's."""

    account: str
    name: str
    prefix: str
    endpoint: str


def container_of(namespace: Namespace, endpoint_url: str | None) -> Container:
    """The container and path of a namespace.

    Raises `WrongUsage` for a URI that lakeFS doesn't support or may resolve differently, and for an endpoint of another
    account.
    """
    host = _HOST.match(namespace.bucket.lower())
    name, _, path = namespace.path.partition("/")
    if host is None or not _CONTAINER.match(name) or re.search(r"[%?#]", namespace.path):
        raise WrongUsage(
            f"{namespace.uri} can't be a namespace in Azure: expected https://<account>.{DOMAINS[0]}/<container>/"
            "<path>, without a user name, a port, or percent-encoded characters"
        )
    account, domain = host.groups()
    endpoint = endpoint_url.rstrip("/") if endpoint_url is not None else f"https://{account}.{domain}"
    if endpoint_url is None and domain not in DOMAINS:
        raise WrongUsage(
            f"{namespace.uri} is in the domain {domain}, but lakeFS supports only {', '.join(DOMAINS)}. If the account "
            "has another endpoint, set LAKEGC_AZURE_ENDPOINT_URL."
        )
    _check_account(account, endpoint)
    return Container(account, name, f"{path}/" if path else "", endpoint)


def _check_account(account: str, endpoint: str) -> None:
    """Raise `WrongUsage` for another account's endpoint: in its listings, every object would seem to be missing."""
    parts = urlsplit(endpoint)
    if account not in ((parts.hostname or "").split(".")[0], parts.path.strip("/").rpartition("/")[2]):
        raise WrongUsage(
            f"LAKEGC_AZURE_ENDPOINT_URL {parts.scheme}://{parts.hostname}{parts.path} is not for the account "
            f"{account}: the URL's host must start with the account name, or its path must end with that name"
        )


# --- clients --------------------------------------------------------------------------------------------------------


def container_client(container: Container, settings: StoreSettings) -> ContainerClient:
    """A client for these settings; sends no request yet. Raises `WrongUsage` for a malformed account key or setting."""
    try:
        return ContainerClient(
            container.endpoint, container.name, credential=_credential(container, settings), **_options(settings)
        )
    except ValueError as error:
        raise WrongUsage(f"invalid Azure settings: {_without_secrets(str(error))}") from None


def service_client(container: Container, settings: StoreSettings) -> BlobServiceClient:
    """A client for the whole account: a container client can't read the account's properties."""
    return BlobServiceClient(container.endpoint, credential=_credential(container, settings), **_options(settings))


_Credential = AzureNamedKeyCredential | AzureSasCredential | TokenCredential


def _credential(container: Container, settings: StoreSettings) -> _Credential:
    """The account key, or else the SAS token, if they are for this account; otherwise the machine's login."""
    if settings.azure_account is None or settings.azure_account.lower() == container.account:
        if settings.azure_account_key is not None:
            key = settings.azure_account_key.get_secret_value()
            try:
                base64.b64decode(key, validate=True)
            except binascii.Error:
                raise WrongUsage("LAKEGC_AZURE_ACCOUNT_KEY is not an account key: expected base64") from None
            return AzureNamedKeyCredential(container.account, key)
        if settings.azure_sas_token is not None:
            refuse_unencrypted_token(container.endpoint, "LAKEGC_AZURE_ENDPOINT_URL", "the SAS token")
            return AzureSasCredential(settings.azure_sas_token.get_secret_value().removeprefix("?"))
    return _default_credential()


@lru_cache(maxsize=1)
def _default_credential() -> TokenCredential:
    """The machine's login: one credential per process, because it caches its tokens."""
    with needs_extra("azure", "Logging in to Azure"):
        from azure.identity import DefaultAzureCredential  # half a second to import, and not always needed

    return DefaultAzureCredential()


def _options(settings: StoreSettings) -> dict[str, Any]:
    session = requests.Session()
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_connections=settings.connections, pool_maxsize=settings.connections))
    transport = RequestsTransport(
        session=session,
        connection_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        connection_verify=settings.azure_ca_bundle or True,
    )
    no_retries = ExponentialRetry(retry_total=0, retry_connect=0, retry_read=0, retry_status=0)  # `RetryPolicy` retries
    # Azure never redirects, and no other host may receive requests for this account's objects.
    return {"transport": transport, "retry_policy": no_retries, "permit_redirects": False}


# --- errors ---------------------------------------------------------------------------------------------------------


@contextmanager
def translated_errors(where: str, action: str, key: str | None = None) -> Iterator[None]:
    """Translates the library's errors into lakegc's, with advice on what to check."""
    try:
        yield
    except HttpResponseError as error:
        raise as_lakegc_error(error, where, action, key) from error
    except AzureError as error:  # `from None`, because a cause's message may contain a token in a URL
        raise as_lakegc_error(error, where, action, key) from None
    except PARSE_ERRORS as error:  # the response lacks a field that Azure always sends
        cause = full_stop(_without_secrets(str(error)))
        raise Unavailable(
            f"could not {action} {where}: {cause} Check that the endpoint is Azure Blob Storage."
        ) from None


def as_lakegc_error(error: AzureError, where: str, action: str, key: str | None) -> LakegcError:
    what = f"could not {action} {where}" if key is None else f"could not {action} {key!r} in {where}"
    if isinstance(error, HttpResponseError) and error.response is not None:
        return _error_of_response(error, what, where, key)
    if isinstance(error, ClientAuthenticationError):
        return Forbidden(f"{what}: {message_of(error)}. Set {_VARIABLES}, or log in, for example with 'az login'.")
    unreachable = f"{what}: {message_of(error)}. Check LAKEGC_AZURE_ENDPOINT_URL and the network, then try again."
    return Transient(unreachable) if is_transient(error) else Unavailable(unreachable)


def is_transient(error: AzureError) -> bool:
    """Whether a failure is temporary, so that a retry may succeed."""
    if isinstance(error, HttpResponseError) and error.response is not None:
        return error.status_code in TRANSIENT_STATUSES or code_of(error) in TRANSIENT_ERROR_CODES
    if isinstance(error, IncompleteReadError | DecodeError):
        return True
    return isinstance(error, ServiceRequestError | ServiceResponseError) and not is_permanent_tls_error(error)


def _error_of_response(error: HttpResponseError, what: str, where: str, key: str | None) -> LakegcError:
    code, status, headers = code_of(error), error.status_code, _headers(error)
    if code == "ContainerNotFound":
        return NotFound(f"the container of {where} does not exist. Check the namespace and the account.")
    if code == "BlobNotFound":
        return NotFound(f"{key!r} does not exist in {where}")
    failure = f"{what}: {code}: {message_of(error)}"
    if status in (401, 403) or code in _ADVICE:
        return Forbidden(f"{failure}. {capitalized(_ADVICE.get(code, _PERMISSIONS))}.")
    if 300 <= (status or 0) < 400:
        target = redirect_target(headers.get("Location", ""))
        return Unavailable(
            f"{what}: the server redirected the request (HTTP {status}) to {target}, and lakegc doesn't follow "
            "redirects. Check LAKEGC_AZURE_ENDPOINT_URL."
        )
    failure = f"{failure} (HTTP {status}). Try again. If the error persists, check the account's logs."
    return Transient(failure, after_s=retry_after_s(headers)) if is_transient(error) else Unavailable(failure)


def code_of(error: AzureError) -> str:
    """The store's own code, e.g. `BlobNotFound`; without one, the HTTP status as text, or the error's type."""
    if not isinstance(error, HttpResponseError) or error.response is None:
        return type(error).__name__
    headers = _headers(error)
    reported_code = getattr(error, "error_code", None) or headers.get("x-ms-error-code")
    return str(getattr(reported_code, "value", reported_code) or error.status_code)


def _headers(error: HttpResponseError) -> Mapping[str, str]:
    headers: Mapping[str, str] = getattr(error.response, "headers", {})
    return headers


def message_of(error: AzureError) -> str:
    """The first line of the library's message, without tokens and without the final full stop."""
    lines = [line for line in _without_secrets(str(error.message)).splitlines() if line.strip()]
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def _without_secrets(text: str) -> str:
    return _SIGNATURE.sub("sig=…", text)
