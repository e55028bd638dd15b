"""Object stores: one protocol (`base`), one folder a provider, opened by the namespace's scheme."""

from __future__ import annotations

from urllib.parse import urlsplit

from spark_resources.errors import WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores.base import Capabilities, Store
from spark_resources.stores.extras import needs_extra
from spark_resources.stores.settings import StoreSettings

__all__ = ["Capabilities", "Store", "StoreSettings", "endpoint_to_probe", "open_store"]

_GOOGLES = ".googleapis.com"  # the end of the names of Google's own end points, private ones among them


def open_store(namespace: Namespace, settings: StoreSettings, *, capabilities: Capabilities | None = None) -> Store:
    """The store of a namespace, by its scheme; nothing is read yet. `capabilities` are what a probe found, if any.

    Raises `WrongUsage` for a scheme that lakegc can't read yet, and where a setting or the provider's extra is missing.
    """
    if namespace.scheme == "s3":
        from spark_resources.stores.s3.store import S3Store  # boto3 takes half a second to import

        return S3Store(namespace, settings, capabilities)
    if namespace.scheme == "gs":
        with needs_extra("gcs", "Cloud Storage"):
            from spark_resources.stores.gcs.store import GCSStore  # Google's libraries take as long

        return GCSStore(namespace, settings, capabilities)
    if namespace.is_azure:
        with needs_extra("azure", "Azure Blob Storage"):
            from spark_resources.stores.azure.store import AzureStore  # and Azure's

        return AzureStore(namespace, settings, capabilities)
    if namespace.scheme == "local":
        from spark_resources.stores.local.store import LocalStore

        return LocalStore(*_local_place(namespace, settings))
    raise WrongUsage(
        f"lakegc can't read {namespace.scheme}:// namespaces yet, and {namespace.uri} is one: it knows s3://, gs://, "
        "https:// (Azure) and local://"
    )


def endpoint_to_probe(namespace: Namespace, settings: StoreSettings) -> str | None:
    """The end point of a store that only speaks like the provider's own, so that a probe has to find out what it does.

    None for the provider's own, and for a folder. In Azure that is every account's: hierarchical ones hold other keys.
    """
    match namespace.scheme:
        case "s3":
            return settings.s3_endpoint_url
        case "http" | "https":
            return settings.azure_endpoint_url or f"https://{namespace.bucket}"
        case "gs":
            host = urlsplit(settings.gcs_endpoint_url or "").hostname or _GOOGLES
            return None if host.endswith(_GOOGLES) else settings.gcs_endpoint_url
    return None


def _local_place(namespace: Namespace, settings: StoreSettings) -> tuple[str, str]:
    """The local adapter's configured path, and the namespace's folder in it (formats §4)."""
    configured = settings.local_path
    if not configured:
        raise WrongUsage(
            f"{namespace.uri} lies under the local block adapter's path, and lakegc isn't told where that is on this "
            "machine. Set LAKEGC_LOCAL_PATH."
        )
    if namespace.bucket:
        return configured, f"{namespace.bucket}/{namespace.path}" if namespace.path else namespace.bucket
    inside = f"/{namespace.path}".removeprefix(configured.rstrip("/") + "/")
    if inside.startswith("/"):
        raise WrongUsage(f"{namespace.uri} is not under {configured}. Check LAKEGC_LOCAL_PATH.")
    return configured, inside
