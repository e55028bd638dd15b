"""Object stores: one protocol (`base`), one subpackage per provider, selected by the namespace's scheme."""

from __future__ import annotations

from urllib.parse import urlsplit

from spark_resources.errors import WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores.base import Capabilities, Store
from spark_resources.stores.extras import needs_extra
from spark_resources.stores.settings import StoreSettings

__all__ = ["Capabilities", "Store", "StoreSettings", "endpoint_to_probe", "open_store"]

_GOOGLE_DOMAIN = ".googleapis.com"  # host suffix of Google's own endpoints, including private ones


def open_store(namespace: Namespace, settings: StoreSettings, *, capabilities: Capabilities | None = None) -> Store:
    """The store for a namespace, selected by its scheme; sends no request yet.

    `capabilities` are the findings of a probe; None means the provider's defaults. Raises `WrongUsage` for a scheme
    that lakegc doesn't support, or if a setting or the provider's extra is missing.
    """
    if namespace.scheme == "s3":
        from spark_resources.stores.s3.store import S3Store  # boto3 takes half a second to import

        return S3Store(namespace, settings, capabilities)
    if namespace.scheme == "gs":
        with needs_extra("gcs", "Cloud Storage"):
            from spark_resources.stores.gcs.store import GCSStore  # Google's libraries are just as slow

        return GCSStore(namespace, settings, capabilities)
    if namespace.is_azure:
        with needs_extra("azure", "Azure Blob Storage"):
            from spark_resources.stores.azure.store import AzureStore  # and so are Azure's

        return AzureStore(namespace, settings, capabilities)
    if namespace.scheme == "local":
        from spark_resources.stores.local.store import LocalStore

        return LocalStore(*_local_folder(namespace, settings))
    raise WrongUsage(
        f"lakegc doesn't support {namespace.scheme}:// namespaces such as {namespace.uri} yet. It supports s3://, "
        "gs://, https:// (Azure) and local://"
    )


def endpoint_to_probe(namespace: Namespace, settings: StoreSettings) -> str | None:
    """The endpoint whose capabilities have to be probed; None for AWS's and Google's own endpoints, and local folders.

    An S3- or GCS-compatible store is probed, and so is every Azure account, because accounts with a hierarchical
    namespace accept different keys.
    """
    match namespace.scheme:
        case "s3":
            if settings.s3_endpoint_url is None or settings.uses_path_style:
                return settings.s3_endpoint_url
            return f"{settings.s3_endpoint_url} with the bucket in the host name"  # perhaps another server
        case "http" | "https":
            return settings.azure_endpoint_url or f"https://{namespace.bucket}"
        case "gs":
            host = urlsplit(settings.gcs_endpoint_url or "").hostname or _GOOGLE_DOMAIN
            return None if host.endswith(_GOOGLE_DOMAIN) else settings.gcs_endpoint_url
    return None


def _local_folder(namespace: Namespace, settings: StoreSettings) -> tuple[str, str]:
    """The local adapter's configured path, and the namespace's folder within it (formats §4).

    Raises `WrongUsage` if no path is configured or the namespace is outside it.
    """
    configured = settings.local_path
    if not configured:
        raise WrongUsage(
            f"{namespace.uri} is under the local block adapter's path. Set LAKEGC_LOCAL_PATH to the location of that "
            "path on this machine."
        )
    if namespace.bucket:
        return configured, f"{namespace.bucket}/{namespace.path}" if namespace.path else namespace.bucket
    folder = f"/{namespace.path}".removeprefix(configured.rstrip("/") + "/")
    if folder.startswith("/"):
        raise WrongUsage(f"{namespace.uri} is not under {configured}. Check LAKEGC_LOCAL_PATH.")
    return configured, folder
