"""Strict parsing of the server's JSON responses into values (formats §2).

Pure. A field that is missing or of the wrong type raises `DamagedData` (invariant 3): an unreadable response is never
treated as an empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from spark_resources.errors import DamagedData, Unavailable, WrongUsage
from spark_resources.identifiers import lakefs_id, server_of
from spark_resources.model import Commit, Namespace, Rules


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The server's configuration: block store types by storage id, and its version if it reports one.

    A server with one block store has the single storage id "".
    """

    blockstores: Mapping[str, str]
    version: str = ""

    def blockstore(self, storage_id: str) -> str:
        """The type (`s3`, `azure`, `gs`, `local` …) of a block store. Raises `WrongUsage` for an unknown id."""
        if storage_id in self.blockstores:
            return self.blockstores[storage_id]
        known = ", ".join(sorted(map(repr, self.blockstores)))
        raise WrongUsage(f"the lakeFS server has no block store with storage id '{storage_id}', only {known}")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository. Its id and creation date together distinguish it from a later one of the same name.

    `id` includes the server's name if several servers are configured, such as `lab/events`.
    """

    id: str
    storage_namespace: str
    default_branch: str
    read_only: bool
    storage_id: str
    created: datetime

    @property
    def lakefs_id(self) -> str:
        """The id without the server's name, as in the records in the namespace."""
        return lakefs_id(self.id)

    @property
    def server(self) -> str:
        """The name of the server; "" if it is the only one."""
        return server_of(self.id)

    def namespace(self, *, aliases: tuple[str, ...] = ()) -> Namespace:
        """The parsed storage namespace; `aliases` are other URIs of the same location (formats §4)."""
        return Namespace.parse(self.storage_namespace, aliases=aliases)


@dataclass(frozen=True, slots=True)
class RefsDump:
    """The ids of the three tables, under `_lakefs/`, that contain every branch, commit and tag (formats §2, §3)."""

    branches: str
    commits: str
    tags: str


@dataclass(frozen=True, slots=True)
class UncommittedLists:
    """The server's lists of staged objects: the number of files at each location, and the number of pages.

    Every page with a location adds one file there. A read that finds fewer files than in `files_by_location` is
    incomplete. A page without a location is not proof that there are no staged objects: the server may have lost a file
    (formats §2).
    """

    run_id: str
    files_by_location: Mapping[str, int]
    pages: int

    @property
    def locations(self) -> tuple[str, ...]:
        return tuple(self.files_by_location)

    @property
    def files(self) -> int:
        """The number of files over all locations."""
        return sum(self.files_by_location.values())

    @property
    def empty_pages(self) -> int:
        """The number of pages without a location."""
        return self.pages - self.files


@dataclass(frozen=True, slots=True)
class ServedObject:
    """The object that a reader of a branch gets at a path, staged or committed.

    `size` is in bytes; `physical_address` is a full address.
    """

    path: str
    physical_address: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class ServedPage:
    """One page of `list_objects`, in path order. The next page starts after `next_after` (None on the last page)."""

    objects: tuple[ServedObject, ...]
    next_after: str | None

    @property
    def last_exact(self) -> str | None:
        """The last exact path (see `is_exact`): the page is known to be complete up to it."""
        return last_exact(listed.path for listed in self.objects)

    def next_start(self, after: str) -> str:
        """The path after which to request the next page, given that this one starts after `after`.

        Raises `Unavailable` if no such path is known.
        """
        return require_last_exact(self.last_exact, after)


REPLACEMENT_CHARACTER = "\ufffd"
"""The character that replaces each byte of a path that is not UTF-8 in the server's JSON."""


def is_exact(path: str) -> bool:
    """Whether a path in a response is certainly the real one. Only such paths can be requested and compared."""
    return REPLACEMENT_CHARACTER not in path


def last_exact(paths: Iterable[str]) -> str | None:
    return next((path for path in reversed(list(paths)) if is_exact(path)), None)


def require_last_exact(last: str | None, after: str) -> str:
    """The last exact path of a page that starts after `after`. Raises `Unavailable` if the page has none."""
    if last is None or last == after:
        raise Unavailable(
            f"none of the paths on the page after {after!r} is UTF-8, and the server's response doesn't contain their "
            "exact bytes, so the next page can't be requested. Rename or delete these objects in lakeFS, and try again."
        )
    return last


@dataclass(frozen=True, slots=True)
class Change:
    """One change in a diff. `type` is `added`, `changed`, `removed`, `conflict` or `prefix_changed`."""

    type: str
    path: str


def _invalid_response(what: str, reason: str) -> DamagedData:
    return DamagedData(
        f"invalid lakeFS response for {what}: {reason}. Check the server's version and log, and the "
        "proxies in front of the server.",
        invariant=3,
    )


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object in a response, read field by field; `what` describes it in messages."""

    fields: Mapping[str, Any]
    what: str

    @classmethod
    def of(cls, value: object, what: str) -> Body:
        if not isinstance(value, dict):
            raise _invalid_response(what, "it is not a JSON object")
        return cls(value, what)

    def _get(self, name: str, kind: type, optional: bool) -> Any:
        value = self.fields.get(name)
        if value is None and optional:
            return None
        # bool is an int in Python, but never in the API.
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            state = "missing" if value is None else f"not of type {kind.__name__}"
            raise _invalid_response(self.what, f"'{name}' is {state}")
        return value

    def text(self, name: str) -> str:
        return str(self._get(name, str, False))

    def nonempty_text(self, name: str) -> str:
        """A text field that must not be empty."""
        if not (value := self.text(name)):
            raise _invalid_response(self.what, f"'{name}' is empty")
        return value

    def maybe_text(self, name: str) -> str:
        return self._get(name, str, True) or ""

    def number(self, name: str) -> int:
        return int(self._get(name, int, False))

    def maybe_number(self, name: str) -> int | None:
        value: int | None = self._get(name, int, True)
        return value

    def flag(self, name: str) -> bool:
        return bool(self._get(name, bool, False))

    def maybe_flag(self, name: str) -> bool:
        return bool(self._get(name, bool, True))

    def objects(self, name: str) -> list[Body]:
        """A list of JSON objects, which must be present."""
        return [Body.of(item, f"{self.what} ({name})") for item in self._get(name, list, False)]

    def maybe_objects(self, name: str) -> list[Body]:
        """A list of JSON objects that the server writes as null when it is empty."""
        return [] if self.fields.get(name) is None else self.objects(name)

    def inner(self, name: str) -> Body:
        return Body.of(self._get(name, dict, False), f"{self.what} ({name})")

    def maybe_inner(self, name: str) -> Body | None:
        return None if self.fields.get(name) is None else self.inner(name)

    def date(self, name: str) -> datetime:
        """A time given in whole seconds since 1970."""
        try:
            return datetime.fromtimestamp(self.number(name), UTC)
        except (ValueError, OverflowError, OSError):
            raise _invalid_response(self.what, f"'{name}' is not a date") from None


def server(body: Body) -> ServerConfig:
    """`GET /config`: one `storage_config`, or a `storage_config_list` if several block stores are configured."""
    version = body.maybe_inner("version_config")
    configs = body.maybe_objects("storage_config_list")
    if configs:
        stores = {store.maybe_text("blockstore_id"): store.nonempty_text("blockstore_type") for store in configs}
        # Repositories created before the second block store was added have no storage id: `storage_config` applies.
        if single := body.maybe_inner("storage_config"):
            stores.setdefault("", single.nonempty_text("blockstore_type"))
    else:
        stores = {"": body.inner("storage_config").nonempty_text("blockstore_type")}
    return ServerConfig(stores, version.maybe_text("version") if version else "")


def repository(body: Body) -> Repository:
    return Repository(
        id=body.nonempty_text("id"),
        storage_namespace=body.nonempty_text("storage_namespace"),
        default_branch=body.nonempty_text("default_branch"),
        read_only=body.maybe_flag("read_only"),
        storage_id=body.maybe_text("storage_id"),
        created=body.date("creation_date"),
    )


def rules(body: Body) -> Rules:
    """`GET …/settings/gc_rules`. The server writes `branches: null` if no branch has a rule of its own."""
    days: dict[str, int] = {}
    for rule in body.maybe_objects("branches"):
        branch = rule.nonempty_text("branch_id")
        if branch in days:
            raise DamagedData(
                f"{body.what} include two for branch '{branch}', so it is unclear which applies. Remove one in lakeFS.",
                invariant=3,
            )
        days[branch] = rule.number("retention_days")
    return Rules(body.number("default_retention_days"), days)


def commit(body: Body) -> Commit:
    parents = body.fields.get("parents")
    if parents is None:
        parents = []
    if not isinstance(parents, list) or not all(isinstance(parent, str) and parent for parent in parents):
        raise _invalid_response(body.what, "'parents' is not a list of commit ids")
    version = body.maybe_number("version")
    if version is None and len(parents) > 1:
        # The version determines which parent is the main one (formats §6.2).
        raise _invalid_response(body.what, "a merge commit has no 'version'")
    metadata = body.maybe_inner("metadata")
    return Commit(
        id=body.nonempty_text("id"),
        parents=tuple(parents),
        created=body.date("creation_date"),
        metarange_id=body.text("meta_range_id"),
        version=1 if version is None else version,
        generation=body.maybe_number("generation") or 0,
        committer=body.maybe_text("committer"),
        message=body.maybe_text("message"),
        metadata={name: metadata.text(name) for name in metadata.fields} if metadata else {},
    )


def refs_dump(body: Body) -> RefsDump:
    return RefsDump(
        branches=body.nonempty_text("branches_meta_range_id"),
        commits=body.nonempty_text("commits_meta_range_id"),
        tags=body.nonempty_text("tags_meta_range_id"),
    )


def served_object(body: Body) -> ServedObject:
    return ServedObject(
        path=body.text("path"),
        physical_address=body.nonempty_text("physical_address"),
        size=body.number("size_bytes"),
        checksum=body.text("checksum"),
    )


_CHANGES = frozenset({"added", "removed", "changed", "conflict", "prefix_changed"})


def change(body: Body) -> Change:
    if (kind := body.text("type")) not in _CHANGES:
        raise DamagedData(
            f"invalid lakeFS response for {body.what}: unknown type of change '{kind:.80}'. Update lakegc.", invariant=3
        )
    return Change(kind, body.text("path"))
