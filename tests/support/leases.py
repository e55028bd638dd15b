"""Leases that tests put into a namespace, as if another process on another machine held them."""

from __future__ import annotations

from datetime import timedelta

from spark_resources.mark_store.lease import LEASE_KEY, Holder
from spark_resources.stores.base import Store


def hold_lease(store: Store, mark_id: str, *, for_: timedelta = timedelta(minutes=5)) -> None:
    """Let someone hold the lease for this long. With a negative duration, the lease has expired."""
    store.write(LEASE_KEY, Holder("someone", mark_id, "token", store.now() + for_).to_json())
