"""The lakeFS client as a Dagster resource."""

from __future__ import annotations

import os

from dagster import ConfigurableResource
from pydantic import Field

from spark_resources.host.user_folders import home_folder
from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.settings import LakeFSSettings
from spark_resources.settings import Settings


class LakeFSResource(ConfigurableResource[LakeFS]):
    """Provides a client. Environment variables (`LAKEGC_*`) and lakectl's configuration supply omitted fields.

    Pass the secret as an `EnvVar` or leave it out: Dagster shows a resource's plain values in its UI.
    """

    endpoint_url: str | None = Field(default=None, description="http(s)://host[:port], with or without /api/v1")
    access_key_id: str | None = Field(default=None, description="access key id of a lakeFS user")
    secret_access_key: str | None = Field(
        default=None, description="its secret access key, as an EnvVar, not as plain text", repr=False
    )
    ca_bundle: str | None = Field(
        default=None, description="file with the CA certificates that verify the server's certificate"
    )
    verify_tls: bool | None = Field(default=None, description="whether the server's certificate is checked")

    def client(self, *, retry_total_s: float | None = None) -> LakeFS:
        """A client for the configured servers. `retry_total_s`, if given, replaces the setting of that name. Raises
        `WrongUsage` if the configuration is incomplete."""
        settings = Settings.load(
            os.environ,
            home_folder(),
            endpoint_url=self.endpoint_url,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            ca_bundle=self.ca_bundle,
            verify_tls=self.verify_tls,
            retry_total_s=retry_total_s,
        )
        return LakeFS(*LakeFSSettings.of(settings))
