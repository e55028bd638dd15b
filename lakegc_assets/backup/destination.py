"""Destinations of backups: any bucket, container or folder outside the namespaces of repositories."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from lakegc_assets.mark.context import Target, place_of
from lakegc_assets.mark.repository_selection import repositories_other_than
from spark_resources.errors import Forbidden, NotFound, Refused, WrongUsage
from spark_resources.identifiers import lakefs_id
from spark_resources.lakefs import LakeFS
from spark_resources.mark_store.mark import OWNER_KEY
from spark_resources.model import Namespace
from spark_resources.stores import endpoint_to_probe
from spark_resources.stores.place import Place
from spark_resources.stores.probe import recorded_capabilities
from spark_resources.stores.settings import StoreSettings

_FILE = "file://"
_LOCAL = "local://"


def parse_place(uri: str, settings: StoreSettings) -> Place:
    """Parse a destination: a URI as for namespaces, or the path of a folder. Raises `WrongUsage` if it is neither,
    or is the root of a file system."""
    text = uri.strip()
    if not text:
        raise WrongUsage("there is no backup destination: expected a URI such as s3://bucket/backups, or a folder path")
    if "://" in text and not text.startswith((_FILE, _LOCAL)):
        return Place(Namespace.parse(text), settings)
    folder = _folder(text, settings)
    if folder.name == "":
        raise WrongUsage(f"{uri} is the root of the file system. Choose a folder for backups.")
    namespace = Namespace(f"{_LOCAL}{folder.name}")
    return Place(namespace, settings.model_copy(update={"local_path": str(folder.parent)}))


def _folder(text: str, settings: StoreSettings) -> Path:
    """The folder that a path, file:///path or either form of local:// names, with symbolic links resolved."""
    if text.startswith(_LOCAL) and not text.startswith(f"{_LOCAL}/"):
        if settings.local_path is None:
            raise WrongUsage(
                f"{text} is relative to the local block adapter's path: set LAKEGC_LOCAL_PATH, or pass a folder path"
            )
        path = Path(settings.local_path) / text.removeprefix(_LOCAL)
    else:
        path = Path(text.removeprefix(_FILE).removeprefix(_LOCAL)).expanduser()
    return Path(os.path.realpath(path))


def create_place(place: Place) -> Place:
    """Create the place if it is a folder, and return it with the probed capabilities of its store. Raises `Forbidden`
    if the folder can't be created, and the store's error if the store can't be probed."""
    folder = _path(place)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Forbidden(
                f"{folder} can't be created: {error.strerror}. Choose another location for the backup."
            ) from error
    return with_probed_capabilities(place)


def with_probed_capabilities(place: Place) -> Place:
    """The place with the probed capabilities of its store; unchanged if no probe is needed (`endpoint_to_probe`)."""
    endpoint = endpoint_to_probe(place.namespace, place.settings)
    if endpoint is None:
        return place
    return replace(place, capabilities=recorded_capabilities(place.store(), endpoint, token=secrets.token_hex(8)))


def backup_folder(repository: str, mark_id: str) -> str:
    """The key of a backup's folder in its place, with the repository's id on its server."""
    return f"{lakefs_id(repository)}/{mark_id}/"


# --- forbidden places -------------------------------------------------------------------------------------------------


def refuse_overlap(
    place: Place,
    target: Target,
    folder: str,
    lakefs: LakeFS,
    store_settings_of: Callable[[str], StoreSettings] | None = None,
) -> None:
    """Raise `Refused` if the backup would be inside the namespace of this or another repository, however the location
    is spelled, or would contain one. `store_settings_of` returns the settings for the store of each other repository;
    None if all repositories have the same store settings.

    Garbage collection of that namespace would treat the backup as garbage, and deleting the repository would delete the
    backup, too.
    """
    backup_form = _normal_form(place) + "/" + folder.rstrip("/")
    for name, namespace_place in _namespaces(target, lakefs, store_settings_of):
        if not _are_same_kind(place, namespace_place):
            continue
        namespace_form = _normal_form(namespace_place)
        if (backup_form + "/").startswith(namespace_form + "/") or (namespace_form + "/").startswith(backup_form + "/"):
            raise Refused(
                f"{place.namespace.uri if _path(place) is None else _path(place)} lies in the namespace "
                f"{namespace_place.namespace.uri} of {name}, or contains it: a backup there could be deleted as "
                "garbage, or with the repository. Choose another bucket, container or folder.",
                invariant=5,
            )


def refuse_namespace(place: Place) -> None:
    """Raise `Refused` for a place in which lakegc stores marks: it is a namespace, even if its location doesn't show
    that."""
    try:
        place.store().stat(OWNER_KEY)
    except NotFound:
        return
    raise Refused(
        f"{place.store().where} is the namespace of a repository: it contains {OWNER_KEY}. Choose another bucket, "
        "container or folder for the backup.",
        invariant=5,
    )


def _namespaces(
    target: Target, lakefs: LakeFS, store_settings_of: Callable[[str], StoreSettings] | None
) -> Iterator[tuple[str, Place]]:
    """The namespaces of all repositories that can be listed, each with the repository's id. If a server permits no
    listing, or a server other than the target's doesn't respond, its namespaces are recognized only by their owner
    files (`refuse_namespace`)."""
    yield target.repository.id, target.place
    for other in repositories_other_than(target.repository, lakefs):
        settings = target.place.settings
        if store_settings_of is not None and other.storage_namespace.startswith(_LOCAL):
            settings = store_settings_of(other.id)
        yield other.id, place_of(other, target.blockstore, settings)


def _are_same_kind(first: Place, second: Place) -> bool:
    def kind(place: Place) -> str:
        return "azure" if place.namespace.is_azure else place.namespace.scheme

    return kind(first) == kind(second)


def _normal_form(place: Place) -> str:
    path = _path(place)
    return place.namespace.normal_form() if path is None else os.path.realpath(path)


def _path(place: Place) -> Path | None:
    """The folder of a place on this machine; None for other places."""
    if place.namespace.scheme != "local":
        return None
    uri, configured = place.namespace.uri, place.settings.local_path or "/"
    if uri.startswith(f"{_LOCAL}/"):
        return Path(uri.removeprefix(_LOCAL))
    return Path(configured) / uri.removeprefix(_LOCAL)
