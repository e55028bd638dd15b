"""The vocabulary: what a repository, a commit, an address, a rule and a mark are.

Pure: no I/O, no clock, no environment. Times are aware datetimes in UTC; the name says whose clock they come from.
The schemas of every DataFrame that lakegc hands from one step to the next stand at the end of this module.
"""

# ruff: noqa: PLC0414  # the names of `identifiers` belong to the vocabulary and are handed on

from __future__ import annotations

import re
from collections.abc import Mapping
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

    `created` is the client's to set and need not be in order. `version` 0 commits have their main parent last.
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
    """Retention rules: days a commit outlives its child, by branch, with a default (formats §6)."""

    default_days: int
    branch_days: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for who, days in (("the default", self.default_days), *self.branch_days.items()):
            if days < 0:
                raise DamagedData(f"retention of {who} is {days} days; it can't be negative")

    def days(self, branch: str) -> int:
        return self.branch_days.get(branch, self.default_days)


class AddressType(IntEnum):
    """How an entry's address is to be read (formats §4)."""

    BY_PREFIX = 0
    RELATIVE = 1
    FULL = 2


class Place(StrEnum):
    """Where a normalised address lies, seen from one namespace."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    CONFLICT = "conflict"  # maybe inside, and not surely which key: stops the mark (invariant 5)


_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
_ANY_SCHEME = r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:)?/*"
_AZURE = frozenset({"http", "https"})  # of a namespace in Azure: https://<account>.<domain>/<container>/<path>
_BUCKETS = frozenset({"s3", "gs"})  # of a namespace in a bucket: <scheme>://<bucket>/<path>
_HADOOP_AZURE = re.compile(r"^(?:abfss?|wasbs?)$", re.IGNORECASE)  # …://<container>@<account>.<domain>/<path>


@dataclass(frozen=True, slots=True)
class Namespace:
    """A storage namespace in normal form, and the only place that turns addresses into keys (formats §1, §4).

    `uri` has no trailing slash. `also` are other full spellings of the same place, e.g. the local adapter's
    `local:///<configured path>/<name>` for `local://<name>`.
    """

    uri: str
    also: tuple[str, ...] = ()

    @classmethod
    def parse(cls, uri: str, *, also: tuple[str, ...] = ()) -> Namespace:
        """The namespace of a repository's `storage_namespace`. Raises `WrongUsage` where it is not a URI."""
        if _SCHEME.match(uri) is None or not uri.split("://", 1)[1].strip("/"):
            raise WrongUsage(f"'{uri}' is not a storage namespace: expected <scheme>://<bucket>/<path>")
        if uri.startswith("http://"):  # lakeFS takes it, talks https all the same, and announces https locations
            also = (f"https://{uri.removeprefix('http://')}", *also)
        return cls(uri.rstrip("/"), tuple(other.rstrip("/") for other in also))

    @property
    def scheme(self) -> str:
        return self.uri.split("://", 1)[0].lower()

    @property
    def bucket(self) -> str:
        return self.uri.split("://", 1)[1].split("/", 1)[0]

    @property
    def path(self) -> str:
        """What follows the bucket, without slashes at its ends' end; may be empty, may hold inner slashes."""
        return self.uri.split("://", 1)[1][len(self.bucket) :].removeprefix("/")

    @property
    def is_azure(self) -> bool:
        return self.scheme in _AZURE

    @property
    def is_bucket(self) -> bool:
        """Whether the namespace is in a bucket of S3 or Google Cloud."""
        return self.scheme in _BUCKETS

    @property
    def read_otherwise(self) -> str | None:
        """A regular expression for full addresses inside that lakeFS may read as another key than they show (RE2).

        It takes a full address for a URL (decodes some escapes and keeps others, cuts a query, in Azure a slash at its
        end too), and a relative one for the name itself.
        """
        if self.is_azure:
            return r"[%?]|/$"
        return "[%?]" if self.is_bucket else None

    def _is_read_otherwise(self, address: str) -> bool:
        """As `read_otherwise`, whose `$` is the very end."""
        if not (self.is_azure or self.is_bucket):
            return False
        return "%" in address or "?" in address or (self.is_azure and address.endswith("/"))

    def normal_form(self) -> str:
        """The place without what spellings may differ in: two namespaces are one place where these agree."""
        return self._loosely(self.uri)

    def _loosely(self, uri: str) -> str:
        if self.is_azure:
            return _azure_place(uri)
        return _loosely(_decoded(_bucket_url(uri) if self.is_bucket else uri))

    def place(self, address: str, kind: AddressType = AddressType.BY_PREFIX) -> tuple[Place, str]:
        """Where an entry's address lies, and its key relative to the namespace if inside (the address itself if not).

        A relative address is the key, byte for byte. A full one is what lakeFS reads it as, and a conflict where that
        may be another key than it shows.
        """
        if kind is AddressType.RELATIVE:
            return Place.INSIDE, address
        if _SCHEME.match(address) is None:
            if kind is AddressType.FULL:
                return Place.CONFLICT, address
            return Place.INSIDE, address
        where, key = self._place_as_shown(address)
        unsure = where is Place.INSIDE and self._is_read_otherwise(address)
        return (Place.CONFLICT, address) if unsure else (where, key)

    def place_of_answer(self, address: str) -> tuple[Place, str]:
        """As `place`, of a physical address that the server answers (`stat`, `ls`, an announced location).

        Such an address was resolved already: in a bucket it shows the very key, whatever is in it. Not so in Azure.
        """
        if self.is_bucket and _SCHEME.match(address) is not None:
            return self._place_as_shown(address)
        return self.place(address)

    def _place_as_shown(self, address: str) -> tuple[Place, str]:
        """Where an address with a scheme lies, if what stands behind the namespace is the key."""
        for root in (self.uri, *self.also):
            if address.startswith(root + "/"):
                key = address[len(root) + 1 :]
                return (Place.CONFLICT, address) if key.startswith("/") else (Place.INSIDE, key)
        shown = (_loosely(_bucket_url(address)),) if self.is_bucket else ()  # where an escaped slash is no slash
        roots = tuple(self._loosely(root) + "/" for root in (self.uri, *self.also))
        if any(loose.startswith(roots) for loose in (self._loosely(address), *shown)):
            return Place.CONFLICT, address
        if self._behind_another_path(address):
            return Place.CONFLICT, address
        return Place.OUTSIDE, address

    def _behind_another_path(self, address: str) -> bool:
        """Whether a local address holds this namespace's name behind another configured path than the one known here.

        In a container the server writes the path that it sees, which need not be the path on this machine.
        """
        if self.scheme != "local" or not address.lower().startswith("local:///"):
            return False
        name, full = self._loosely(self.uri).lower(), self._loosely(address).lower()
        paths = [self._loosely(root).lower().removesuffix(name) for root in self.also]
        return f"/{name}/" in f"/{full}" and not any(full.startswith(path) for path in paths)

    def lookalikes(self) -> str:
        """A regular expression for addresses that `place` may call a conflict (RE2 syntax, anchored)."""
        if self.is_azure:
            return _azure_lookalikes(self.normal_form())
        shapes = {loosely(root) for root in (self.uri, *self.also) for loosely in (_loosely, self._loosely)}
        user, port = ("(?:[^/]*@)?", "(?::[^/]*)?") if self.is_bucket else ("", "")
        forms = [
            f"{user}(?i:{re.escape(host)}){port}" + "".join(f"/+{re.escape(part)}" for part in parts)
            for host, *parts in (shape.split("/") for shape in sorted(shapes))
        ]
        if self.scheme == "local":
            forms.append("(?is:.*)/" + "/+".join(f"(?i:{re.escape(part)})" for part in _loosely(self.uri).split("/")))
        pattern = rf"{_ANY_SCHEME}(?:{'|'.join(forms)})/"
        # whatever is percent-encoded in the bucket, or on the local adapter anywhere, may be here: lakeFS decodes it
        bucket = "" if self.scheme == "local" else rf"{user}(?i:{re.escape(self.bucket)}){port}/"
        return rf"{pattern}|{_ANY_SCHEME}{bucket}(?s:.*)%"

    def check_elsewhere(self, address: str) -> None:
        """Raise `Refused` (invariant 5) where a full address may be in this namespace under another form."""
        if self.place(address, AddressType.FULL)[0] is not Place.CONFLICT:
            return
        if _SCHEME.match(address) is None:
            what = "is said to be a full one, and has no scheme"
        elif self._behind_another_path(address):
            what = (
                f"lies behind another configured path of the local adapter than {', '.join(self.also) or self.uri}. "
                "LAKEGC_LOCAL_PATH must be the path that the lakeFS server is configured with"
            )
        elif self._is_read_otherwise(address) and address.startswith(self.uri + "/"):
            what = f"is in the namespace {self.uri}, and lakeFS may read its %, its ? or its last slash as another name"
        else:
            what = f"differs from the namespace {self.uri} only in scheme, host's case, user, port, escapes or slashes"
        raise Refused(
            f"the address {address} {what}. "
            "If it is in this namespace, lakegc would take a live object for garbage, so it stops here. "
            "Compare the repository's storage namespace with the address, and report this form.",
            invariant=5,
        )

    def key(self, location: str) -> str:
        """The key of a location that the server announced inside the namespace. Raises `Refused` (invariant 5)."""
        folder = "/" if self.is_azure and location.endswith("/") else ""  # read as written: it is no entry's address
        place, key = self.place_of_answer(location.removesuffix(folder) if folder else location)
        if place is not Place.INSIDE:
            raise Refused(
                f"the server announced {location}, which is not inside the namespace {self.uri}. "
                "Check that lakegc and the lakeFS server mean the same store and path.",
                invariant=5,
            )
        return key + folder


def _loosely(uri: str) -> str:
    """A URI without what two spellings of one place may differ in: scheme, host's case, repeated slashes."""
    rest = uri.split("://", 1)[1] if "://" in uri else uri
    parts = [part for part in rest.split("/") if part]
    return "/".join([parts[0].lower(), *parts[1:]]) if parts else ""


def _decoded(uri: str) -> str:
    """A URI whose path, and not its host, is decoded from percent-encoding."""
    scheme, rest = uri.split("://", 1) if "://" in uri else ("", uri)
    host, _, path = rest.lstrip("/").partition("/")
    return f"{scheme}://{host}/{unquote(path, errors='replace')}"


def _bucket_url(uri: str) -> str:
    """A URI of a bucket without what lakeFS, which reads it as a URL, leaves out: user, query; and without a port.

    A fragment is none to it: `#` belongs to the key.
    """
    scheme, rest = uri.split("://", 1) if "://" in uri else ("", uri)
    authority, slash, path = rest.lstrip("/").partition("?")[0].partition("/")
    return f"{scheme}://{authority.rpartition('@')[2].partition(':')[0]}{slash}{path}"


def _azure_place(uri: str) -> str:
    """`<account>/<container>/<path>` of a URI, as lakeFS reads it: by the first label of the host, whatever the domain.

    So ports, other domains (`.dfs.`, other clouds), the secondary end point and Hadoop's forms are one place.
    """
    scheme, rest = uri.split("://", 1) if "://" in uri else ("", uri)
    authority, _, path = rest.lstrip("/").partition("/")
    before, _, host = authority.rpartition("@")
    account = re.split(r"[.:]", host.lower(), maxsplit=1)[0].removesuffix("-secondary")
    parts = [part for part in unquote(path, errors="replace").split("/") if part]
    if _HADOOP_AZURE.match(scheme):
        parts.insert(0, before)
    return "/".join([account, *(part.lower() for part in parts[:1]), *parts[1:]]) if account else ""


def _azure_lookalikes(place: str) -> str:
    """Addresses in an account that may be in this place of it; whatever is percent-encoded may be."""
    account, *parts = place.split("/")
    host = rf"(?i:{re.escape(account)})(?i:-secondary)?(?:[.:][^/]*)?"
    container = f"(?i:{re.escape(parts[0])})" if parts else ""
    below = "".join(f"/+{re.escape(part)}" for part in parts[1:])
    any_scheme = r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:)?/*"
    plain = rf"{any_scheme}(?:[^/]*@)?{host}(?:/(?s:.*)%|/+{container}{below}/)"
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


def old_enough_before(start: datetime, min_age: timedelta) -> datetime:
    """The cutoff of a mark: what the store dates after it is young (invariant 6). `start` is the store's clock."""
    return start - min_age


DATA, ROOT = "data/", ""
"""The folders that candidates lie in: below the one, and right in the other."""


# --- schemas of the DataFrames --------------------------------------------------------------------------------------
# Addresses are keys relative to the namespace. Sizes are bytes.

_TIME = pa.timestamp("us", tz="UTC")

STORED_OBJECTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", _TIME, nullable=False),  # the store's clock
        pa.field("checksum", pa.string()),  # the store's ETag without quotes, where it has one
        pa.field("slice", pa.string(), nullable=False),  # the folder that was listed; "" for the root
    ]
)
ADDRESSES = pa.schema([pa.field("address", pa.string(), nullable=False)])
# Addresses with the range that holds them, by a number made of its id (see `ranges.range_number`).
RANGE_ADDRESSES = pa.schema([pa.field("range", pa.int64(), nullable=False), *ADDRESSES])
RANGE_SIZES = pa.schema([RANGE_ADDRESSES.field("range"), pa.field("size", pa.int64(), nullable=False)])  # each once
COMMIT_VERDICTS = pa.schema(
    [
        pa.field("commit_id", pa.string(), nullable=False),
        pa.field("retained", pa.bool_(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("branch", pa.string()),  # whose line and rule decided; null for a dangling line
        pa.field("days", pa.int64()),
        pa.field("until", _TIME),  # when the verdict changes, or changed; the server's clock
        pa.field("created", _TIME),  # the commit's own date, which its client chose
        pa.field("message", pa.string()),
        pa.field("metarange_id", pa.string(), nullable=False),  # "" for an empty commit
        pa.field("server_listed", pa.bool_(), nullable=False),
        pa.field("hold", pa.string()),  # ids of holds that alone retain it; the columns above tell the rule
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
BRANCH_RANGES = pa.schema([HEADS.field("branch"), METARANGE_RANGES.field("range_id")])
# Several ids of holds in one field stand in order, with HOLDS_BETWEEN between them.
HOLDS_BETWEEN = ", "
RANGES_ON_HOLD = pa.schema([*RANGE_REFS, pa.field("hold", pa.string())])  # null: read for paths that are held
ADDRESSES_ON_HOLD = pa.schema([*ADDRESSES, pa.field("hold", pa.string(), nullable=False)])
OBJECTS_ON_HOLD = pa.schema(  # what would be expired but for holds
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", _TIME, nullable=False),  # the store's clock
        pa.field("slice", pa.string(), nullable=False),
        pa.field("hold", pa.string(), nullable=False),  # ids of all holds that keep it
    ]
)
HEAD_ENTRIES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("path", pa.string()),  # null for one that is not UTF-8
        pa.field("size", pa.int64(), nullable=False),
    ]
)
SERVED = pa.schema(
    [
        pa.field("repository", pa.string(), nullable=False),
        pa.field("branch", pa.string(), nullable=False),
        pa.field("path", pa.string()),  # null for one that is not UTF-8, which nobody can be asked about
        pa.field("size", pa.int64(), nullable=False),  # of the head's entry that raised the question
        pa.field("address", pa.string()),  # what the branch serves, if that lies inside; null if nothing or outside
        pa.field("unclear", pa.string()),  # why nobody knows what is served there; null where it is known
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
        pa.field("branch", pa.string()),  # whose rule let that commit go
        pa.field("days", pa.int64()),
        pa.field("until", _TIME),  # when that commit expired; the server's clock
        pa.field("path", pa.string()),  # where that commit had it, one of maybe several; bytes not UTF-8 are escaped
    ]
)
# What is stored and no retained commit holds, whatever else keeps it, with the expired commit that kept it longest.
NOT_RETAINED = pa.schema([field for field in EXPIRED_OBJECTS if field.name != "reason"])
# Objects and bytes of an expired set by one way of counting: `kind` is one of reason, age, prefix, slice.
EXPIRED_TOTALS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("label", pa.string()),  # null: not known
        pa.field("branch", pa.string()),  # for reasons
        pa.field("days", pa.int64()),  # for reasons
        pa.field("objects", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
    ]
)
# A few objects of an expired set to look at: `kind` is one of largest, newest, sample.
HIGHLIGHTS = pa.schema([pa.field("kind", pa.string(), nullable=False), *EXPIRED_OBJECTS])


class ExpiredReason(StrEnum):
    """Why an object is expired: what a person reads in a review."""

    EXPIRED_COMMIT = "only expired commits refer to it"
    NEVER_COMMITTED = "no commit and no staged change refers to it"
    UNKNOWN = "no retained commit refers to it"  # where the commit graph may not be read


# --- sweeps ---------------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """What became of one approved object; each ends in exactly one of these (invariant 10)."""

    DELETED = "deleted"
    QUARANTINED = "quarantined"
    ALREADY_GONE = "already gone"
    RESCUED = "rescued"  # live again when it was re-verified
    CHANGED = "changed"  # another object by now under this key: size, time or checksum
    FAILED = "failed"
    RESTORED = "restored"  # of a quarantined object: back in its place
    PURGED = "purged"  # of a quarantined object: gone for good


RECEIPTS = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),  # see Outcome
        pa.field("code", pa.string(), nullable=False),  # the store's own word for a failure; "" otherwise
        pa.field("why", pa.string(), nullable=False),  # for people: what the store said, what rescued or changed it
        pa.field("attempts", pa.int32(), nullable=False),  # requests that named this key
        pa.field("at", _TIME, nullable=False),  # the store's clock
    ]
)
PENDING = pa.schema(  # what a round of a sweep may delete
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64()),  # null where nothing was there when a mark was listed
        pa.field("modified", _TIME),  # the store's clock
        pa.field("checksum", pa.string()),
        pa.field("slice", pa.string(), nullable=False),
        pa.field("intended", pa.bool_(), nullable=False),  # an earlier round set out to delete it
    ]
)


@dataclass(frozen=True, slots=True)
class DeleteCheck:
    """Rows of PENDING, sizes filled in, by what is at their keys right before a delete. Every row is in one of them."""

    unchanged: pa.Table  # still what was approved
    changed: pa.Table
    gone: pa.Table
    cut_off: pa.Table  # gone, and an attempt had set out to delete it
