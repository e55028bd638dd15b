"""Addresses in tables and responses: the form for columns and the form for one address must agree on each.

An address that they place differently could be live for one reader and garbage for another.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from lakegc_assets.rules import addresses as rules
from spark_resources.errors import Refused, WrongUsage
from spark_resources.lakefs.ranges import rows_inside
from spark_resources.model import AddressType, Location, Namespace
from tests.fuzz.mutations import splice
from tests.fuzz.target import Kind, Target, require, value_or_refusal

URIS = (
    "s3://bucket/ns/x",
    "gs://Bucket/ns",
    "https://account.blob.core.windows.net/c/ns",
    "http://a.b/c/ns",
    "local://lake",
)
NAMESPACES = [Namespace.parse(uri, aliases=("local:///data/lake",) if uri.startswith("local") else ()) for uri in URIS]
ADDRESSES = [
    b"data/a/b", b"s3://bucket/ns/x/data/a", b"S3://BUCKET//ns/x/data/a", b"s3://bucket/ns/x/data/a%20b",
    b"s3a://user@bucket:80/ns/x/data/a", b"gs://Bucket/ns/data/a?b", b"https://account.blob.core.windows.net/c/ns/a/",
    b"wasbs://c@account.blob.core.windows.net/ns/data/a", b"http://a.b/c/ns/data/a", b"local://lake/data/a",
    b"local:///data/lake/data/../a", b"local:///other/lake/data/a", b"s3://elsewhere/x", b"dummy", b"",
    b"data/../x", b"./a", b"0123abcd-00001", b"data/!ab/c/d/e", b"/data//x/", b"data/", b"s3:/bucket/ns/x/a",
]  # fmt: skip
PARTS = (b"/", b"//", b"://", b"..", b"./", b"%2F", b"%2e", b"?", b"#", b"@", b":80", b"\n", b"\x00", "é".encode(),
         b"%", "\u0130".encode(), "\u0660".encode(), b"\\", b"*", b"[",
         b"data/", b"_lakefs/", b"S3", b"local")  # fmt: skip


def _text(data: bytes) -> str | None:
    with suppress(UnicodeDecodeError):
        return data.decode()
    return None


def _located(namespace: Namespace, address: str, kind: AddressType) -> Any:
    """What `Namespace.locate` says, in the form of `_in_column`."""
    where, key = namespace.locate(address, kind)
    return {Location.INSIDE: key, Location.OUTSIDE: None, Location.CONFLICT: Refused}[where]


def _in_column(namespace: Namespace, address: str, kind: AddressType) -> Any:
    """What `rows_inside` says of a column with this address: its key, None if it is outside, or `Refused`."""
    column, kinds = pa.array([address, "data/other"]), pa.array([int(kind), int(AddressType.RELATIVE)], pa.int8())
    try:
        keys, rows, _ = rows_inside(column, kinds, namespace)
    except Refused as error:
        require(address in str(error), f"the message doesn't name {address!r}")
        return Refused
    numbers = [0, 1] if rows is None else rows.to_pylist()
    by_row = dict(zip(numbers, keys.to_pylist(), strict=True))
    require(by_row.get(1) == "data/other", "the other address was lost")
    return by_row.get(0)


def _check_place(namespace: Namespace, data: bytes) -> None:
    if (address := _text(data)) is None:
        return
    for kind in AddressType:
        alone, column = _located(namespace, address, kind), _in_column(namespace, address, kind)
        require(alone == column, f"{address!r} ({kind!r}) in {namespace.uri}: {alone!r} alone, {column!r} in a column")
    value_or_refusal(partial(namespace.key, address), address, (Refused,))


def _check_rules(data: bytes) -> None:
    if (address := _text(data)) is None:
        return
    column = pa.array([address])
    forms: dict[str, tuple[Any, Callable[..., Any]]] = {
        "slice": (rules.slice_of(address), rules.slices_of),
        "candidate": (rules.is_candidate(address), partial(rules.are_candidates, local_adapter=False)),
        "candidate of a local adapter": (
            rules.is_candidate(address, local_adapter=True),
            partial(rules.are_candidates, local_adapter=True),
        ),
    }
    for name, (alone, form) in forms.items():
        found = form(column).to_pylist()
        require(found == [alone], f"{name} of {address!r}: {alone!r} alone, {found!r} in a column")
    for local_adapter in (False, True):
        if rules.may_be_deleted(column, local_adapter=local_adapter).to_pylist() == [True]:
            parts = address.split("/")
            require("." not in parts and ".." not in parts, f"{address!r} may be deleted")
            require(not address.startswith(("_lakefs/", "/")) and address != "dummy", f"{address!r} may be deleted")


def _check_namespace(data: bytes) -> None:
    if (uri := _text(data)) is None:
        return
    namespace = value_or_refusal(partial(Namespace.parse, uri), uri, (WrongUsage,))
    if namespace is not None:
        require(namespace.overlaps(namespace), f"{uri!r} doesn't overlap itself")
        require(
            namespace.locate(f"{namespace.uri}/data/a")[0] is not Location.OUTSIDE, f"{uri!r} lacks its own objects"
        )


def _seeds() -> list[bytes]:
    return ADDRESSES


KINDS = [
    *(
        Kind(f"places in {namespace.uri}", _seeds, partial(_check_place, namespace), splice(PARTS))
        for namespace in NAMESPACES
    ),
    Kind("rules", _seeds, _check_rules, splice(PARTS)),
    Kind("namespaces", lambda: [uri.encode() for uri in URIS], _check_namespace, splice(PARTS)),
]
TARGETS = [Target("addresses", KINDS)]
