"""Where an object lies in a backup: at its own key below `objects/`, or under a safe name where that can't be held."""

from __future__ import annotations

import hashlib

from spark_resources.stores.base import Store
from spark_resources.stores.keys import kinds_of

OBJECTS = "objects/"
RENAMED = "renamed/"


def own_name(address: str) -> str:
    return OBJECTS + address


def safe_name(address: str) -> str:
    """A name that every store holds, in a few thousand folders of its own."""
    digest = hashlib.sha256(address.encode()).hexdigest()
    return f"{RENAMED}{digest[:3]}/{digest}"


def name_in(store: Store, folder: str, address: str) -> str:
    """The name below a folder that this store is known to be able to hold; that it can't may still turn out."""
    name = own_name(address)
    return safe_name(address) if store.capabilities.unholdable & kinds_of(folder + name) else name
