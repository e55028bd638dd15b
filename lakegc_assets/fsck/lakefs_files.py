"""The files under `_lakefs/`: tables by name, files of lakeFS and of collectors, and unknown files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_resources.stores.base import Store

ROOT = "_lakefs/"
KNOWN_FILES = frozenset({f"{ROOT}dummy", f"{ROOT}refs_manifest.json", ROOT})
KNOWN_FOLDERS = frozenset(
    {
        *(f"{ROOT}retention/gc/{name}/" for name in ("rules", "commits", "uncommitted", "unified", "lakegc")),
        *(f"{ROOT}retention/gc/{name}/" for name in ("addresses", "addresses.text")),
        f"{ROOT}actions/",  # logs of hooks
        f"{ROOT}logs/gc/",  # logs of older collectors
    }
)
MAX_UNKNOWN_NAMED = 1000

_TABLE = re.compile(rf"^{ROOT}([0-9a-f]{{64}})\Z")


@dataclass(slots=True)
class LakefsFiles:
    """`tables` are ids, recognized by name only; `unknown_files` are the first of `unknown_count` keys that aren't
    lakeFS's or lakegc's."""

    tables: set[str] = field(default_factory=set)
    unknown_files: list[str] = field(default_factory=list)
    unknown_count: int = 0


def list_lakefs_files(store: Store) -> LakefsFiles:
    """List everything under `_lakefs/`, except the content of known folders."""
    files, prefixes = LakefsFiles(), [ROOT]
    while prefixes:
        prefix = prefixes.pop()
        has_known_folders = any(known.startswith(prefix) for known in KNOWN_FOLDERS)
        for page in store.pages(prefix, delimiter="/" if has_known_folders else None):
            prefixes.extend(subfolder for subfolder in page.prefixes if subfolder not in KNOWN_FOLDERS)
            for listed in page.objects:
                _classify(files, listed.key)
    return files


def _classify(files: LakefsFiles, key: str) -> None:
    if table := _TABLE.match(key):
        files.tables.add(table.group(1))
    elif key not in KNOWN_FILES:
        files.unknown_count += 1
        if len(files.unknown_files) < MAX_UNKNOWN_NAMED:
            files.unknown_files.append(key)
