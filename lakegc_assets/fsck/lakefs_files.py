"""The files under `_lakefs/`: tables by name, files of lakeFS and of collectors, and unknown files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_resources.stores.base import Store

ROOT = "_lakefs/"
OWN_FILES = frozenset({f"{ROOT}dummy", f"{ROOT}refs_manifest.json", ROOT})
OWN_FOLDERS = frozenset(
    {
        *(f"{ROOT}retention/gc/{name}/" for name in ("rules", "commits", "uncommitted", "unified", "lakegc")),
        *(f"{ROOT}retention/gc/{name}/" for name in ("addresses", "addresses.text")),
        f"{ROOT}actions/",  # logs of hooks
        f"{ROOT}logs/gc/",  # of older collectors
    }
)
ALIENS_NAMED = 1000

_TABLE = re.compile(rf"^{ROOT}([0-9a-f]{{64}})$")


@dataclass(slots=True)
class Folder:
    """`tables` are ids by name only; `alien` are the first of `alien_count` keys that aren't lakeFS's or lakegc's."""

    tables: set[str] = field(default_factory=set)
    alien: list[str] = field(default_factory=list)
    alien_count: int = 0


def walk(store: Store) -> Folder:
    """Everything under `_lakefs/`, without the content of known folders."""
    found, waiting = Folder(), [ROOT]
    while waiting:
        prefix = waiting.pop()
        inner = any(known.startswith(prefix) for known in OWN_FOLDERS)
        for page in store.pages(prefix, delimiter="/" if inner else None):
            waiting.extend(each for each in page.prefixes if each not in OWN_FOLDERS)
            for each in page.objects:
                _sort(found, each.key)
    return found


def _sort(found: Folder, key: str) -> None:
    if table := _TABLE.match(key):
        found.tables.add(table.group(1))
    elif key not in OWN_FILES:
        found.alien_count += 1
        if len(found.alien) < ALIENS_NAMED:
            found.alien.append(key)
