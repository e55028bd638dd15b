"""dagster-aws's S3 resource, extended with the settings that S3-compatible stores need.

The stock resource passes neither path style nor timeouts nor a CA bundle to boto3. This one keeps its fields and its
`get_client`, so that it can be used wherever an `S3Resource` is required, and builds the client as every store does.
"""

from __future__ import annotations

from typing import Any

from dagster_aws.s3 import S3Resource
from pydantic import Field, SecretStr

from spark_resources.errors import WrongUsage
from spark_resources.stores.retry import RetryPolicy
from spark_resources.stores.s3.client import s3_client
from spark_resources.stores.settings import StoreSettings


class StoreS3Resource(S3Resource):
    """An `S3Resource` with the client that stores use. Executors receive its `settings` instead."""

    path_style: bool | None = Field(
        default=None, description="Use path-style addressing; by default, only if an endpoint is set."
    )
    ca_bundle: str | None = Field(default=None, description="A file with the certificate authorities to trust.")
    connect_timeout: float = Field(default=10.0, description="Connect timeout in seconds.")
    read_timeout: float = Field(default=60.0, description="Read timeout in seconds.")

    def settings(self) -> StoreSettings:
        """The fields as store settings. Raises `WrongUsage` for unsigned requests or unverified connections."""
        if self.use_unsigned_session or self.verify is False or not self.use_ssl:
            raise WrongUsage(
                "lakegc signs its requests and verifies the store's certificate: don't set use_unsigned_session, "
                "use_ssl or verify. For a store with its own certificate authority, set ca_bundle; for one without "
                "TLS, set endpoint_url to an http:// URL."
            )
        return StoreSettings(
            s3_endpoint_url=self.endpoint_url,
            s3_region=self.region_name,
            s3_access_key_id=self.aws_access_key_id,
            s3_secret_access_key=_secret(self.aws_secret_access_key),
            s3_session_token=_secret(self.aws_session_token),
            s3_path_style=self.path_style,
            s3_ca_bundle=self.ca_bundle,
            s3_profile=self.profile_name,
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            retry=RetryPolicy(attempts=self.max_attempts),
        )

    def get_client(self) -> Any:
        return s3_client(self.settings())


def _secret(value: str | None) -> SecretStr | None:
    return None if value is None else SecretStr(value)
