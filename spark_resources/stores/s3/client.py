"""Builds the S3 client and translates its errors into lakegc's.

dagster-aws's `S3Resource` has no path style, timeouts or CA bundle, and importing it would cost every executor seconds.
Therefore `resource.py` offers that resource with this client, and executors call `s3_client` directly.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    TokenRetrievalError,
)
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError

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
from spark_resources.stores.base import PARSE_ERRORS
from spark_resources.stores.retry import TRANSIENT_STATUSES, is_permanent_tls_error, redirect_target, retry_after_s
from spark_resources.stores.settings import StoreSettings

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest
    from mypy_boto3_s3.client import S3Client

# Advice for operators, by the store's own error code.
_ADVICE = {
    "InvalidAccessKeyId": "the store doesn't know this access key: check LAKEGC_S3_ACCESS_KEY_ID, and the endpoint",
    "SignatureDoesNotMatch": "check LAKEGC_S3_SECRET_ACCESS_KEY; a proxy that changes requests causes this error, too",
    "ExpiredToken": "the session token has expired: get new credentials",
    "InvalidToken": "the session token is not valid: check LAKEGC_S3_SESSION_TOKEN",
    "RequestTimeTooSkewed": "this machine's clock differs too much from the store's: correct it (NTP)",
    "PermanentRedirect": "the bucket is in another region or at another endpoint: check LAKEGC_S3_REGION",
    "AuthorizationHeaderMalformed": "the bucket is in another region: check LAKEGC_S3_REGION",
}
# The store is busy, or a response was lost. Some compatible stores send these codes with another status.
TRANSIENT_ERROR_CODES = frozenset(
    {
        "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "OperationAborted", "Throttling",
        "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded", "ServerBusy", "TooManyRequests",
        "ConditionalRequestConflict",
    }
)  # fmt: skip
_AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
UNKNOWN = "unknown"  # the code for an error that has none
_CREDENTIAL_CODES = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"})
_PERMISSIONS_ADVICE = "check that these credentials may list, get, put and delete in this bucket"
_CREDENTIAL_ERRORS = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
)


def s3_client(settings: StoreSettings) -> S3Client:
    """A client for these settings; sends no request yet. Raises `WrongUsage` for a missing profile or a bad setting."""
    try:
        session = _session(settings.s3_profile)
        if settings.s3_endpoint_url is None:
            _refuse_configured_endpoint(session)
        region = settings.s3_region or session.region_name or "us-east-1"
        client: S3Client = session.client(
            "s3",
            region_name=region,
            endpoint_url=settings.s3_endpoint_url,
            verify=settings.s3_ca_bundle,
            aws_access_key_id=settings.s3_access_key_id,
            aws_secret_access_key=_secret(settings.s3_secret_access_key),
            aws_session_token=_secret(settings.s3_session_token),
            config=_client_config(settings),
        )
    except (ProfileNotFound, ValueError, PartialCredentialsError) as error:
        raise WrongUsage(f"invalid S3 settings: {error}") from error
    # boto3 sends a CRC with a batch delete; older compatible stores require the MD5 that earlier versions sent.
    client.meta.events.register("before-sign.s3.DeleteObjects", _add_content_md5)
    refuse_redirect = partial(_refuse_redirect, custom_endpoint=settings.s3_endpoint_url is not None)
    client.meta.events.register_first("before-parse.s3.*", refuse_redirect)
    return client


class Redirected(BotoCoreError):
    """Raised for any redirect other than AWS's own to another region."""

    fmt = "the server redirected the request (HTTP {status}) to {location}, and lakegc doesn't follow redirects"


def _refuse_redirect(response_dict: dict[str, Any], operation_model: Any, *, custom_endpoint: bool, **_: Any) -> None:
    """Raise `Redirected` if HeadBucket is redirected without a region, because botocore would follow that forever.

    Any redirect from a configured endpoint is refused, too: only AWS itself redirects requests to a bucket's region.
    """
    status, headers = response_dict["status_code"], response_dict["headers"]
    may_name_region = "x-amz-bucket-region" in headers or operation_model.name != "HeadBucket"
    if 300 <= status < 400 and status != 304 and (custom_endpoint or not may_name_region):
        raise Redirected(status=status, location=redirect_target(headers.get("location", "")))


def _session(profile: str | None) -> boto3.session.Session:
    """A new session that reads the credentials again, but uses the cached service models."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _model_loader())
    return boto3.session.Session(botocore_session=session, profile_name=profile)


@lru_cache(maxsize=1)
def _model_loader() -> Any:
    """The loader of botocore's service models; shared, because loading them takes most of a new client's time."""
    return botocore.session.get_session().get_component("data_loader")


def _client_config(settings: StoreSettings) -> Config:
    return Config(
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        retries={"total_max_attempts": 1, "mode": "standard"},  # `RetryPolicy` retries
        s3={"addressing_style": _addressing_style(settings)},
        max_pool_connections=settings.connections,
        # Not all compatible stores support the newer checksums; signatures and lengths are checked as before.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )


def _refuse_configured_endpoint(session: boto3.session.Session) -> None:
    """Raise `WrongUsage` if boto3 would take an endpoint other than AWS's from the environment or a profile: without
    LAKEGC_S3_ENDPOINT_URL, lakegc assumes AWS's capabilities and doesn't probe the store."""
    inner = session._session
    if inner.get_config_variable("ignore_configured_endpoint_urls"):
        return
    configured = ConfiguredEndpointProvider(inner.full_config, inner.get_scoped_config(), "s3").provide()
    host = urlsplit(str(configured or "")).hostname
    if host is not None and not host.endswith(_AWS_DOMAINS):
        raise WrongUsage(
            f"AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or AWS's configuration file names an S3 endpoint at {host}. Set "
            "LAKEGC_S3_ENDPOINT_URL to this endpoint, so that lakegc probes what the store supports, or remove the "
            "endpoint from the environment or the file."
        )


def _addressing_style(settings: StoreSettings) -> Literal["path", "auto", "virtual"]:
    """Path style if it is set; otherwise boto3's own choice for AWS, and the bucket in the host name for another
    endpoint, where boto3 would choose path style."""
    if settings.uses_path_style:
        return "path"
    return "auto" if settings.s3_endpoint_url is None else "virtual"


def _secret(value: Any) -> str | None:
    return None if value is None else str(value.get_secret_value())


def _add_content_md5(request: AWSRequest, **_: Any) -> None:
    body = request.body
    if isinstance(body, bytes | str):
        data = body if isinstance(body, bytes) else body.encode()
        request.headers["Content-MD5"] = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


@contextmanager
def translated_errors(where: str, action: str, key: str | None = None) -> Iterator[None]:
    """Translates boto3's errors into lakegc's, with advice on what to check."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise as_lakegc_error(error, where, action, key) from error
    except (ResponseParserError, *PARSE_ERRORS) as error:
        raise Unavailable(f"could not {action} {where}: invalid S3 response ({error}). Check the endpoint.") from error


def as_lakegc_error(error: ClientError | BotoCoreError, where: str, action: str, key: str | None) -> LakegcError:
    what = f"could not {action} {where}" if key is None else f"could not {action} {key!r} in {where}"
    if isinstance(error, ClientError):
        return _error_of_response(error, what, where, key)
    if isinstance(error, _CREDENTIAL_ERRORS):
        return Forbidden(
            f"{what}: {full_stop(error)} Set LAKEGC_S3_ACCESS_KEY_ID and LAKEGC_S3_SECRET_ACCESS_KEY, or use a profile "
            "or a role."
        )
    if isinstance(error, ParamValidationError):
        return WrongUsage(f"{what}: {error}")
    if isinstance(error, Redirected) or _is_parse_failure(error):
        return Unavailable(f"{what}: {full_stop(error)} Check that LAKEGC_S3_ENDPOINT_URL is an S3 endpoint.")
    if isinstance(error, SSLError) and not is_transient(error):
        return Unavailable(
            f"{what}: {full_stop(error)} If the store uses its own certificate authority, set LAKEGC_S3_CA_BUNDLE."
        )
    unreachable = f"{what}: {full_stop(error)} Check LAKEGC_S3_ENDPOINT_URL and the network, then try again."
    return Transient(unreachable) if is_transient(error) else Unavailable(unreachable)


def _error_of_response(error: ClientError, what: str, where: str, key: str | None) -> LakegcError:
    code, message = code_of(error), str(error.response.get("Error", {}).get("Message", "")).rstrip(". ")
    status = status_of(error)
    if code == "NoSuchBucket":
        return NotFound(f"the bucket of {where} does not exist. Check the namespace and the endpoint.")
    if code == "NoSuchKey":
        return NotFound(f"{key!r} does not exist in {where}")
    message = f"{what}: {code}: {message}" if message and message != code else f"{what}: {code}"
    if status == 403 or code in _CREDENTIAL_CODES:
        return Forbidden(f"{message}. {capitalized(_ADVICE.get(code, _PERMISSIONS_ADVICE))}.")
    if code in _ADVICE:
        return Unavailable(f"{message}. {capitalized(_ADVICE[code])}.")
    if code == "KeyTooLongError":
        return WrongUsage(message)
    message = f"{message} (HTTP {status}). Try again. If the error persists, check the store's logs."
    return Transient(message, after_s=retry_after_s(_headers(error))) if is_transient(error) else Unavailable(message)


def is_transient(error: Exception) -> bool:
    """Whether a failure is temporary, so that a retry may succeed."""
    if isinstance(error, ClientError):
        is_temporary = status_of(error) in TRANSIENT_STATUSES or code_of(error) in TRANSIENT_ERROR_CODES
        return is_temporary or _is_cut_off(error)
    if isinstance(error, SSLError):
        return not is_permanent_tls_error(error)
    return isinstance(error, NoConnection | HTTPClientError | IncompleteReadError) and not _is_parse_failure(error)


def _is_cut_off(error: ClientError) -> bool:
    """Whether the response announced an error in XML, but the connection broke before its end: botocore then has only
    the status. A response to HEAD has no body."""
    announced = _headers(error).get("content-type", "").partition(";")[0].strip() in ("application/xml", "text/xml")
    return announced and code_of(error) == str(status_of(error)) and not error.operation_name.startswith("Head")


def _is_parse_failure(error: BaseException) -> bool:
    """Whether botocore failed on a malformed response, such as a 303 redirect."""
    return isinstance(error, HTTPClientError) and isinstance(error.kwargs.get("error"), PARSE_ERRORS)


def _headers(error: ClientError) -> Mapping[str, str]:
    headers: Mapping[str, str] = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def code_of(error: ClientError) -> str:
    """The store's own code, e.g. `NoSuchKey`; for a response without a body, the HTTP status as text; else UNKNOWN."""
    return str(error.response.get("Error", {}).get("Code", UNKNOWN))


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
