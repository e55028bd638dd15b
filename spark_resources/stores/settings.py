"""Connection settings of the stores, as one frozen value that is sent to executors; its repr never shows secrets."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from spark_resources.stores.retry import RetryPolicy


class StoreSettings(BaseModel):
    """How stores are reached from this machine. None leaves a setting to the provider's own default chain.

    `local_path` is the local block adapter's configured path on this machine. Timeouts are in seconds. `retry` is the
    policy for all requests except deletes. `listing_requests` and `reading_requests` are the numbers of pages and of
    tables that one task requests in parallel. `s3_path_style` None means path style if an endpoint is set.
    `azure_endpoint_url` is an account's blob service, with the account in its host or its path; None means the
    namespace's host. `azure_account` is the only account that the key and the SAS token are for; None means any.
    `gcs_anonymous` sends no credentials, for an emulator; `gcs_credentials_file` must exist on every machine that runs
    executors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    s3_endpoint_url: str | None = None
    s3_region: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: SecretStr | None = None
    s3_session_token: SecretStr | None = None
    s3_path_style: bool | None = None
    s3_ca_bundle: str | None = None
    s3_profile: str | None = None
    azure_endpoint_url: str | None = None
    azure_account: str | None = None
    azure_account_key: SecretStr | None = None
    azure_sas_token: SecretStr | None = None
    azure_ca_bundle: str | None = None
    gcs_endpoint_url: str | None = None
    gcs_credentials_file: str | None = None
    gcs_anonymous: bool = False
    gcs_ca_bundle: str | None = None
    local_path: str | None = None
    connect_timeout: float = Field(default=10.0, gt=0)
    read_timeout: float = Field(default=60.0, gt=0)
    retry: RetryPolicy = RetryPolicy()
    listing_requests: int = Field(default=8, ge=1)
    reading_requests: int = Field(default=16, ge=1)

    @property
    def connections(self) -> int:
        """The size of a process's connection pool: enough for all its concurrent requests."""
        return max(32, self.listing_requests, self.reading_requests)

    @property
    def uses_path_style(self) -> bool:
        """Whether the bucket is part of a URL's path instead of its host."""
        return self.s3_endpoint_url is not None if self.s3_path_style is None else self.s3_path_style

    @classmethod
    def secret_names(cls) -> frozenset[str]:
        """The names of the settings whose values are secret."""
        return frozenset(name for name, field in cls.model_fields.items() if "SecretStr" in str(field.annotation))
