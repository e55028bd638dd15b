"""How a store's own message becomes part of lakegc's: one sentence, followed by advice."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from google.auth.exceptions import RefreshError

from spark_resources.stores.gcs import client as gcs_client
from spark_resources.stores.s3 import client as s3_client


def answered(code: str, message: str, status: int) -> ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "ListObjectsV2")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        answered("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.", 403),
        answered("AccessDenied", "Access Denied.", 403),
        answered("InternalError", "We encountered an internal error. Please try again.", 500),
        EndpointConnectionError(endpoint_url="http://nowhere", error="refused."),
    ],
)
def test_messages_about_s3_errors_never_end_with_two_full_stops(error: ClientError) -> None:
    """S3 ends its messages with a full stop; S3-compatible stores sometimes don't."""
    error_text = str(s3_client.as_lakegc_error(error, "s3://bucket", "list", None))

    assert ".." not in error_text
    assert "could not list s3://bucket: " in error_text
    assert error_text.endswith(".")


def test_messages_about_google_errors_never_contain_two_full_stops_in_a_row() -> None:
    """Google's library reports expired credentials in whole sentences."""
    error = RefreshError("Reauthentication is needed. Please run gcloud auth login.")  # type: ignore[no-untyped-call]
    error_text = str(gcs_client.as_lakegc_error(error, "gs://bucket", "list", None))

    assert ".." not in error_text
    assert "RefreshError: Reauthentication is needed. Please run gcloud auth login. " in error_text
