"""Object stores: one protocol (`base`), one module a provider, opened by the namespace's scheme."""

from __future__ import annotations

from spark_resources.errors import WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores.base import Quirks, Store
from spark_resources.stores.settings import StoreSettings

__all__ = ["Quirks", "Store", "StoreSettings", "open_store"]


def open_store(namespace: Namespace, settings: StoreSettings, *, quirks: Quirks | None = None) -> Store:
    """The store of a namespace, by its scheme; nothing is read yet. `quirks` are what a probe found, where one ran.

    Raises `WrongUsage` for a scheme that lakegc can't read yet, and where a setting is missing.
    """
    if namespace.scheme == "s3":
        from spark_resources.stores.s3 import S3Store  # boto3 takes half a second to import

        return S3Store(namespace, settings, quirks)
    if namespace.scheme == "local":
        from spark_resources.stores.local import LocalStore

        return LocalStore(*_local_place(namespace, settings))
    raise WrongUsage(
        f"lakegc can't read {namespace.scheme}:// namespaces yet, and {namespace.uri} is one: it knows s3:// and local://"
    )


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
