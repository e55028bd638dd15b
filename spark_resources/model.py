"""The domain model: commits, retention rules, addresses and namespaces, marks, and the schemas of DataFrames.

Pure: no I/O, no clock, no environment. Times are aware datetimes in UTC, and names say whose clock they come from. The
schemas of all DataFrames that are passed from one step to another are at the end of this module.
"""

# ruff: noqa: PLC0414  # the names of `identifiers` belong to the model and are re-exported

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from urllib.parse import unquote

import pyarrow as pa

from spark_resources.errors import DamagedData, Refused, WrongUsage
from spark_resources.identifiers import Partition as Partition
from spark_resources.identifiers import Scope as Scope
from spark_resources.identifiers import check_mark_id as check_mark_id
from spark_resources.identifiers import default_mark_id as default_mark_id

# --- lakeFS ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the graph (formats §2, §3).

    `created` is set by the client and may be out of order. Commits of `version` 0 have their main parent last.
    `metarange_id` is empty for a commit of an empty repository.
    """

    id: str
    parents: tuple[str, ...]
    created: datetime
    metarange_id: str
    version: int = 1
    generation: int = 0
    committer: str = ""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def main_parent(self) -> str | None:
        """The parent on the main line: the first one, or for version 0 the last (formats §6.2)."""
        if not self.parents:
            return None
        return self.parents[0] if self.version >= 1 else self.parents[-1]


@dataclass(frozen=True, slots=True)
class Rules:
    """Retention rules: days to keep a commit after its child was created, by branch, with a default (formats §6)."""

    default_days: int
    branch_days: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        named = {f"retention of branch '{branch}'": days for branch, days in self.branch_days.items()}
        for rule, days in ({"default retention": self.default_days} | named).items():
            if days < 0:
                raise DamagedData(f"the {rule} is {days} days, but it can't be negative. Correct the rules in lakeFS.")

    def days(self, branch: str) -> int:
        return self.branch_days.get(branch, self.default_days)


class AddressType(IntEnum):
    """How to interpret an entry's address (formats §4)."""

    BY_PREFIX = 0
    RELATIVE = 1
    FULL = 2


class Location(StrEnum):
    """The location of an address relative to one namespace."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    CONFLICT = "conflict"  # possibly inside, but with an uncertain key: stops the mark (invariant 5)


_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)\Z", re.DOTALL)
_ANY_SCHEME = r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:)?/*"
_AZURE = frozenset({"http", "https"})  # schemes of namespaces in Azure: https://<account>.<domain>/<container>/<path>
_BUCKETS = frozenset({"s3", "gs"})  # schemes of namespaces in a bucket: <scheme>://<bucket>/<path>
_HADOOP_AZURE = re.compile(r"^(?:abfss?|wasbs?)\Z", re.IGNORECASE)  # …://<container>@<account>.<domain>/<path>


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace, and the only code that turns addresses into keys (formats §1, §4).

    `uri` has no trailing slash. `aliases` are other URIs of the same location, e.g. the local adapter's
    `local:///<configured path>/<name>` for `local://<name>`.
    """

    uri: str
    aliases: tuple[str, ...] = ()

    @classmethod
    def parse(cls, uri: str, *, aliases: tuple[str, ...] = ()) -> Namespace:
        """The namespace for a repository's `storage_namespace`. Raises `WrongUsage` if the URI isn't valid."""
        if _SCHEME.match(uri) is None or not uri.split("://", 1)[1].strip("/"):
            raise WrongUsage(f"'{uri}' is not a storage namespace: expected <scheme>://<bucket>/<path>")
        if uri.split("://", 1)[0].lower() in _AZURE and "/" not in _azure_location(uri):
            raise WrongUsage(
                f"'{uri}' is not a storage namespace: expected https://<account>.<domain>/<container>/<path>"
            )
        if uri.startswith("http://"):  # lakeFS accepts it, but uses https, and reports https locations
            aliases = (f"https://{uri.removeprefix('http://')}", *aliases)
        return cls(uri.rstrip("/"), tuple(other.rstrip("/") for other in aliases))

    @property
    def scheme(self) -> str:
        return self.uri.split("://", 1)[0].lower()

    @property
    def bucket(self) -> str:
        return self.uri.split("://", 1)[1].split("/", 1)[0]

    @property
    def path(self) -> str:
        """The part of the URI after the bucket and a slash. It may be empty or contain slashes."""
        return self.uri.split("://", 1)[1][len(self.bucket) :].removeprefix("/")

    @property
    def is_azure(self) -> bool:
        return self.scheme in _AZURE

    @property
    def is_bucket(self) -> bool:
        """Whether the namespace is in a bucket of S3 or Google Cloud."""
        return self.scheme in _BUCKETS

    @property
    def ambiguous_key_pattern(self) -> str | None:
        """A regular expression (RE2) for full addresses in the namespace that lakeFS may resolve to another key;
        None if it resolves all of them exactly.

        lakeFS parses a full address as a URL: it decodes some escapes but not others, drops the query and, in Azure, a
        trailing slash. It uses a relative address unchanged.
        """
        if self.is_azure:
            return r"[%?]|/$"
        return "[%?]" if self.is_bucket else None

    def _has_ambiguous_key(self, address: str) -> bool:
        """Whether an address matches `ambiguous_key_pattern`, where `$` is the end of the text."""
        if not (self.is_azure or self.is_bucket):
            return False
        return "%" in address or "?" in address or (self.is_azure and address.endswith("/"))

    def normal_form(self) -> str:
        """The location in normal form: two namespaces have the same location if their normal forms are equal."""
        return self._normalized(self.uri)

    def overlaps(self, other: Namespace) -> bool:
        """Whether two namespaces are (or may be) the same, or one is inside the other, by any of their URIs."""
        pairs = [(mine, theirs) for mine in self._folders() for theirs in other._folders()]
        return any(mine.startswith(theirs) or theirs.startswith(mine) for mine, theirs in pairs)

    def _folders(self) -> set[str]:
        return {f"/{place}/".replace("//", "/") for place in map(self._normalized, (self.uri, *self.aliases))}

    def _normalized(self, uri: str) -> str:
        if self.is_azure:
            return _azure_location(uri)
        place = _normalized(_decoded(_bucket_url(uri) if self.is_bucket else uri))
        return _without_dots(place) if self.scheme == "local" else place

    def locate(self, address: str, kind: AddressType = AddressType.BY_PREFIX) -> tuple[Location, str]:
        """The location of an entry's address, and its key relative to the namespace if inside (otherwise the address).

        A relative address is the key, byte for byte. A full address is interpreted as lakeFS does. The result is a
        conflict if a full address has no scheme, may be another spelling of one in the namespace, or may stand for
        a key other than the one in its text.
        """
        if kind is AddressType.RELATIVE:
            return Location.INSIDE, address
        if _SCHEME.match(address) is None:
            if kind is AddressType.FULL:
                return Location.CONFLICT, address
            return Location.INSIDE, address
        where, key = self._locate_as_written(address)
        is_ambiguous = where is Location.INSIDE and self._has_ambiguous_key(address)
        return (Location.CONFLICT, address) if is_ambiguous else (where, key)

    def locate_reported(self, address: str) -> tuple[Location, str]:
        """Like `locate`, for a physical address from a server response (`stat`, `ls`, a reported location).

        The server has already resolved such an address. In a bucket, it contains the exact key, with any characters;
        in Azure, it does not.
        """
        if self.is_bucket and _SCHEME.match(address) is not None:
            return self._locate_as_written(address)
        return self.locate(address)

    def _locate_as_written(self, address: str) -> tuple[Location, str]:
        """Like `locate`, for an address with a scheme, with the part after the namespace as the key, unchanged."""
        for root in (self.uri, *self.aliases):
            if address.startswith(root + "/"):
                key = address[len(root) + 1 :]
                return (Location.CONFLICT, address) if key.startswith("/") else (Location.INSIDE, key)
        # here, an escaped slash isn't a slash
        undecoded = (_normalized(_bucket_url(address)),) if self.is_bucket else ()
        roots = tuple(self._normalized(root) + "/" for root in (self.uri, *self.aliases))
        if any(candidate.startswith(roots) for candidate in (self._normalized(address), *undecoded)):
            return Location.CONFLICT, address
        if self._is_under_other_local_path(address):
            return Location.CONFLICT, address
        return Location.OUTSIDE, address

    def _is_under_other_local_path(self, address: str) -> bool:
        """Whether a local address is in a namespace of this name, but under a local path that isn't configured here.

        A server in a container writes its own path, which may differ from the path on this machine.
        """
        if self.scheme != "local" or not address.lower().startswith("local:///"):
            return False
        namespace_path, full_path = self._normalized(self.uri).lower(), self._normalized(address).lower()
        known_paths = [self._normalized(root).lower().removesuffix(namespace_path) for root in self.aliases]
        return f"/{namespace_path}/" in f"/{full_path}" and not any(map(full_path.startswith, known_paths))

    def conflict_pattern(self) -> str:
        """A regular expression (RE2, anchored) for addresses that `locate` may classify as a conflict."""
        if self.is_azure:
            return _azure_conflict_pattern(self.normal_form())
        shapes = {
            normalize(root) for root in (self.uri, *self.aliases) for normalize in (_normalized, self._normalized)
        }
        if self.scheme == "local":
            return _local_conflict_pattern(shapes)
        user, port = "(?:[^/]*@)?", "(?::[^/]*)?"
        forms = [
            f"{user}(?i:{re.escape(host)}){port}" + "".join(f"/+{re.escape(part)}" for part in parts)
            for host, *parts in (shape.split("/") for shape in sorted(shapes))
        ]
        # lakeFS decodes percent-encoded addresses, so any of them in this bucket may be inside the namespace
        escaped = rf"{user}(?i:{re.escape(self.bucket)}){port}/(?s:.*)%"
        return rf"{_ANY_SCHEME}(?:(?:{'|'.join(forms)})/|{escaped})"

    def check_outside(self, address: str) -> None:
        """Raise `Refused` (invariant 5) if a full address may be another spelling of one in this namespace."""
        if self.locate(address, AddressType.FULL)[0] is not Location.CONFLICT:
            return
        if _SCHEME.match(address) is None:
            what = "should be a full address, but has no scheme"
        elif self._is_under_other_local_path(address):
            what = (
                "has the namespace's name, but is not under the configured path of the local adapter "
                f"({', '.join(self.aliases) or self.uri}). LAKEGC_LOCAL_PATH must be the path that the lakeFS server "
                "is configured with"
            )
        elif self._has_ambiguous_key(address) and address.startswith(self.uri + "/"):
            what = (
                f"is in the namespace {self.uri}, but because of its %, ? or trailing slash lakeFS may resolve it to "
                "another key"
            )
        else:
            what = (
                f"differs from the namespace {self.uri} only in its scheme, case of the host, user, port, escapes, "
                "slashes or dots"
            )
        raise Refused(
            f"the address {address} {what}. A live object could look like garbage, so lakegc stops here. Compare the "
            "address with the repository's storage namespace and with lakegc's settings. If these are correct, report "
            "this form of address to lakegc's developers.",
            invariant=5,
        )

    def key(self, location: str) -> str:
        """The key of a location reported by the server. Raises `Refused` (invariant 5) if it isn't in the namespace."""
        folder = "/" if self.is_azure and location.endswith("/") else ""  # a folder, not an entry's address
        place, key = self.locate_reported(location.removesuffix(folder))
        if place is not Location.INSIDE:
            raise Refused(
                f"the server returned {location}, which is not inside the namespace {self.uri}. Check that lakegc "
                "and the lakeFS server use the same store and path.",
                invariant=5,
            )
        return key + folder


def _normalized(uri: str) -> str:
    """A URI without its scheme, with its host in lower case, and without empty segments, so that spellings of one
    location that differ only in these parts become equal."""
    _, _, rest = uri.partition("://")
    parts = [part for part in rest.split("/") if part]
    return "/".join([parts[0].lower(), *parts[1:]]) if parts else ""


def _without_dots(path: str) -> str:
    """A path on the local adapter with `.` and `..` resolved, as a file system does."""
    return posixpath.normpath(f"/{path}").lstrip("/")


def _decoded(uri: str) -> str:
    """A URI with its path, but not its host, percent-decoded."""
    scheme, _, rest = uri.partition("://")
    host, _, path = rest.partition("/")
    return f"{scheme}://{host}/{unquote(path)}"


def _bucket_url(uri: str) -> str:
    """A bucket's URI without the user and the query, which lakeFS drops when it parses a URL, and without the port.

    lakeFS does not parse fragments: `#` belongs to the key.
    """
    scheme, _, rest = uri.partition("://")
    authority, slash, path = rest.lstrip("/").partition("?")[0].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2].partition(':')[0]}{slash}{path}"


def _local_conflict_pattern(places: Iterable[str]) -> str:
    """A regular expression for addresses on the local adapter that may be at one of these places: those with a
    place's path below any other path, those with escapes, and those with dots, which a file system resolves."""
    paths = ("/+".join(f"(?i:{re.escape(part)})" for part in place.split("/")) for place in sorted(places))
    return rf"{_ANY_SCHEME}(?:(?s:.*/)?(?:{'|'.join(paths)}|\.\.?)/|(?s:.*)%)"


def _azure_location(uri: str) -> str:
    """`<account>/<container>/<path>` of a URI. Like lakeFS, takes the account from the first label of the host.

    So other ports, other domains (`.dfs.`, other clouds), the secondary endpoint and Hadoop's forms all stand for the
    same location.
    """
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.lstrip("/").partition("/")
    before, _, host = authority.rpartition("@")
    account = re.split(r"[.:]", host.lower(), maxsplit=1)[0].removesuffix("-secondary")
    parts = [part for part in unquote(path).split("/") if part]
    if _HADOOP_AZURE.match(scheme):
        parts.insert(0, before)
    return "/".join([account, *(part.lower() for part in parts[:1]), *parts[1:]])


def _azure_conflict_pattern(place: str) -> str:
    """A regular expression for an account's addresses that may be at this location, including all escaped ones."""
    account, name, *parts = place.split("/")
    host = rf"(?i:{re.escape(account)})(?i:-secondary)?(?:[.:][^/]*)?"
    container, below = f"(?i:{re.escape(name)})", "".join(f"/+{re.escape(part)}" for part in parts)
    plain = rf"{_ANY_SCHEME}(?:[^/]*@)?{host}(?:/(?s:.*)%|/+{container}{below}/)"
    return rf"{plain}|^(?i:abfss?|wasbs?)://+{container}@{host}{below}/"


# --- marks ----------------------------------------------------------------------------------------------------------


class MarkState(StrEnum):
    MARKING = "marking"
    MARKED = "marked"
    APPROVED = "approved"
    SWEEPING = "sweeping"
    SWEPT = "swept"
    SWEPT_WITH_FAILURES = "swept with failures"
    FAILED = "failed"
    SUPERSEDED = "superseded"
    RETIRED = "retired"


def cutoff_for(start: datetime, min_age: timedelta) -> datetime:
    """The cutoff of a mark. Objects modified after it are too young (invariant 6). `start` is by the store's clock."""
    return start - min_age


DATA, ROOT = "data/", ""
"""The folders with candidates: anywhere below DATA, and directly in ROOT."""


# --- schemas of the DataFrames --------------------------------------------------------------------------------------
# Addresses are keys relative to the namespace. Sizes are bytes.

_TIME = pa.timestamp("us", tz="UTC")

STORED_OBJECTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", _TIME, nullable=False),  # the store's clock
        pa.field("checksum", pa.string()),  # the store's ETag without quotes, if it has one
        pa.field("slice", pa.string(), nullable=False),  # the folder that was listed; "" for the root
    ]
)
ADDRESSES = pa.schema([pa.field("address", pa.string(), nullable=False)])
# Addresses and the range that contains each, as a number computed from its id (see `ranges.range_number`).
RANGE_ADDRESSES = pa.schema([pa.field("range", pa.int64(), nullable=False), *ADDRESSES])
RANGE_SIZES = pa.schema([RANGE_ADDRESSES.field("range"), pa.field("size", pa.int64(), nullable=False)])  # distinct
COMMIT_VERDICTS = pa.schema(
    [
        pa.field("commit_id", pa.string(), nullable=False),
        pa.field("retained", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("branch", pa.string()),  # the branch whose history and rule decided; null for dangling commits
        pa.field("days", pa.int64()),
        pa.field("until", _TIME),  # when the verdict changes or changed; the server's clock
        pa.field("created", _TIME),  # the commit's date, set by its client
        pa.field("message", pa.string()),
        pa.field("metarange_id", pa.string(), nullable=False),  # "" for an empty commit
        pa.field("server_listed", pa.bool_(), nullable=False),
        pa.field("hold", pa.string()),  # ids of the holds, if only holds retain it; other columns refer to the rule
    ]
)
COMMIT_GRAPH = pa.schema(  # every known commit, for queries that decide again by other rules or without a branch
    [
        pa.field("commit_id", pa.string(), nullable=False),
        pa.field("parents", pa.list_(pa.string()), nullable=False),
        pa.field("created", _TIME, nullable=False),  # the commit's date, set by its client
        pa.field("metarange_id", pa.string(), nullable=False),  # "" for an empty commit
        pa.field("version", pa.int64(), nullable=False),
        pa.field("metadata", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)
HEADS = pa.schema(
    [
        pa.field("branch", pa.string(), nullable=False),
        pa.field("commit_id", pa.string(), nullable=False),
        pa.field("metarange_id", pa.string(), nullable=False),  # "" for a branch without objects
    ]
)
TAGS = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("tag", "commit_id")])
RANGE_REFS = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("entries", pa.int64(), nullable=False),
        pa.field("min_key", pa.binary(), nullable=False),
        pa.field("max_key", pa.binary(), nullable=False),
    ]
)
METARANGE_RANGES = pa.schema([pa.field("metarange_id", pa.string(), nullable=False), *RANGE_REFS])
RANGE_IDS = pa.schema([METARANGE_RANGES.field("range_id")])
RANGES_OF_METARANGES = pa.schema([METARANGE_RANGES.field(name) for name in ("metarange_id", "range_id")])
TABLE_NOTES = pa.schema(  # what a table contains, for the marks of other repositories; null: not noted
    [
        pa.field("table_id", pa.string(), nullable=False),
        pa.field("folders", pa.list_(pa.string())),  # of its full addresses: <bucket>/<first part of the path>
        pa.field("sizes", pa.list_(pa.int64())),  # of its entries
    ]
)
# Several ids of holds in one field are sorted, with HOLD_SEPARATOR between them.
HOLD_SEPARATOR = ", "
RANGES_ON_HOLD = pa.schema([*RANGE_REFS, pa.field("hold", pa.string())])  # null: read just to find paths on hold
ADDRESSES_ON_HOLD = pa.schema([*ADDRESSES, pa.field("hold", pa.string(), nullable=False)])
OBJECTS_ON_HOLD = pa.schema(  # objects that would be expired without holds
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", _TIME, nullable=False),  # the store's clock
        pa.field("slice", pa.string(), nullable=False),
        pa.field("hold", pa.string(), nullable=False),  # ids of all holds that keep it
    ]
)
PATHS_TO_PROBE = pa.schema(
    [
        pa.field("repository", pa.string(), nullable=False),
        pa.field("branch", pa.string(), nullable=False),
        pa.field("path", pa.string()),  # null if it is not UTF-8, so it can't be probed
        pa.field("size", pa.int64(), nullable=False),  # of the head's entry that led to the probe
    ]
)
SERVED = pa.schema(
    [
        *PATHS_TO_PROBE,
        pa.field("address", pa.string()),  # the address that the branch serves, if inside the namespace; otherwise null
        pa.field("unclear", pa.string()),  # why the served address is unknown; null if it is known
    ]
)
EXPIRED_OBJECTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", _TIME, nullable=False),  # the store's clock
        pa.field("checksum", pa.string()),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),  # see ExpiredReason
        pa.field("commit_id", pa.string()),  # the expired commit that kept it longest
        pa.field("branch", pa.string()),  # the branch with the rule by which that commit expired
        pa.field("days", pa.int64()),
        pa.field("until", _TIME),  # when that commit expired; the server's clock
        pa.field("path", pa.string()),  # its path (or one of its paths) in that commit; non-UTF-8 bytes are escaped
    ]
)
# Stored objects that no retained commit refers to, even if something else keeps them, each with the expired commit
# that kept it longest.
NOT_RETAINED = pa.schema([field for field in EXPIRED_OBJECTS if field.name != "reason"])
# Objects and bytes of an expired set in groups; `kind` is the grouping: by reason, age, prefix or slice.
EXPIRED_TOTALS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("label", pa.string()),  # null: unknown
        pa.field("branch", pa.string()),  # for reasons
        pa.field("days", pa.int64()),  # for reasons
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
# A few objects of an expired set for display: `kind` is one of largest, newest, sample.
HIGHLIGHTS = pa.schema([pa.field("kind", pa.string(), nullable=False), *EXPIRED_OBJECTS])


class ExpiredReason(StrEnum):
    """Why an object is expired, as shown in a review."""

    EXPIRED_COMMIT = "only expired commits refer to it"
    NEVER_COMMITTED = "no commit and no staged change refers to it"
    UNKNOWN = "no retained commit refers to it"  # if these credentials can't read the commit graph


# --- sweeps ---------------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """The outcome for one approved object; each object has exactly one (invariant 10)."""

    DELETED = "deleted"
    QUARANTINED = "quarantined"
    ALREADY_GONE = "already gone"
    RESCUED = "rescued"  # found live by the re-verification
    CHANGED = "changed"  # another object is now at this key: size, time or checksum differs
    FAILED = "failed"
    RESTORED = "restored"  # of a quarantined object: back at its original key
    PURGED = "purged"  # of a quarantined object: gone for good


RECEIPTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),  # see Outcome
        pa.field("code", pa.string(), nullable=False),  # the store's own code for a failure; "" otherwise
        pa.field("why", pa.string(), nullable=False),  # for operators: the store's message, or why it was kept
        pa.field("attempts", pa.int32(), nullable=False),  # requests that contained this key
        pa.field("at", _TIME, nullable=False),  # the store's clock
    ]
)
PENDING = pa.schema(  # the objects that a round of a sweep may delete
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),  # null if the store had no such object when it was listed
        pa.field("modified", _TIME),  # the store's clock
        pa.field("checksum", pa.string()),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("intended", pa.bool_(), nullable=False),  # an earlier round started to delete it
    ]
)


@dataclass(frozen=True, slots=True)
class DeleteCheck:
    """Rows of PENDING, with sizes, by the state of their keys right before a delete. Each is in exactly one table."""

    unchanged: pa.Table  # still the approved object
    changed: pa.Table
    gone: pa.Table
    interrupted: pa.Table  # gone, and an interrupted attempt had started to delete it
