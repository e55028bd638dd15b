"""Error codes for missing permissions, and the names of permissions and of the identity that lacks one."""

from __future__ import annotations

from spark_resources.stores.settings import StoreSettings

MISSING_PERMISSIONS = frozenset(
    {
        "Forbidden", "401", "403",
        "AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidAccessKeyId", "SignatureDoesNotMatch",
        "ExpiredToken", "InvalidToken", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError",
        "AuthorizationPermissionMismatch", "AuthorizationFailure", "AuthenticationFailed", "InvalidAuthenticationInfo",
        "InsufficientAccountPermissions", "NoAuthenticationInformation", "KeyBasedAuthenticationNotPermitted",
        "ClientAuthenticationError", "forbidden", "insufficientPermissions", "authError", "required",
    }
)  # fmt: skip
"""Codes of `DeleteResult` for a caller without permission. A protected object fails with other codes."""

_DELETE_PERMISSION = {
    "s3": "s3:DeleteObject",
    "gs": "storage.objects.delete",
    "https": "permission to delete blobs (Storage Blob Data Contributor, or 'delete' in a SAS token)",
    "http": "permission to delete blobs (Storage Blob Data Contributor, or 'delete' in a SAS token)",
    "local": "write permission for the folders that contain the objects",
}
_SETTINGS_PERMISSION = {
    "s3": "s3:GetBucketVersioning",
    "gs": "storage.buckets.get",
    "https": "permission to read the blob service's properties (Storage Account Contributor, or an account key)",
    "http": "permission to read the blob service's properties (Storage Account Contributor, or an account key)",
}


def delete_permission(scheme: str) -> str:
    """The permission needed to delete in a namespace of this scheme, in the provider's terms."""
    return _DELETE_PERMISSION.get(scheme, "permission to delete objects")


def settings_permission(scheme: str) -> str:
    """The permission needed to find out whether a bucket keeps deleted objects, in the provider's terms."""
    return _SETTINGS_PERMISSION.get(scheme, "permission to read the bucket's settings")


def identity(scheme: str, settings: StoreSettings) -> str:
    """The identity used for requests to the store, as far as the settings show it; contains no secrets."""
    match scheme:
        case "s3" if settings.s3_access_key_id:
            return f"the access key {settings.s3_access_key_id}"
        case "s3" if settings.s3_profile:
            return f"the AWS profile {settings.s3_profile}"
        case "gs" if settings.gcs_credentials_file:
            return f"the account of {settings.gcs_credentials_file}"
        case "https" | "http" if settings.azure_sas_token is not None:
            return "the configured SAS token"
        case "https" | "http" if settings.azure_account_key is not None:
            return "the configured account key"
        case "local":
            return "the user that lakegc runs as"
        case _:
            return "this machine's default credentials for the store"
