"""The key of an object in a backup: its own key under `objects/`, or a safe name if the store can't hold that key."""

from __future__ import annotations

import hashlib

from spark_resources.stores.base import Store
from spark_resources.stores.keys import kinds_of

OBJECTS = "objects/"
RENAMED = "renamed/"


def own_name(address: str) -> str:
    return OBJECTS + address


def safe_name(address: str) -> str:
    """A name that every store can hold, in one of a few thousand folders."""
    digest = hashlib.sha256(address.encode()).hexdigest()
    return f"{RENAMED}{digest[:3]}/{digest}"


def name_in(store: Store, folder: str, address: str) -> str:
    """The name of an object's copy in this folder: its own name, unless the store is known not to support that. A write
    under its own name may still fail."""
    name = own_name(address)
    return safe_name(address) if store.capabilities.unsupported_keys & kinds_of(folder + name) else name
