"""Addresses are converted to keys as formats §4 says, one by one and in columns."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_resources.errors import Refused, WrongUsage
from spark_resources.lakefs.ranges import addresses_inside, display_paths, rows_inside
from spark_resources.model import AddressType, Location, Namespace
from tests.support import oracle

NAMESPACES = (
    Namespace.parse("s3://bucket/lake"),
    Namespace.parse("s3://bucket"),
    Namespace.parse("s3://Bucket/a+b (1)/lake/"),
    Namespace.parse("local://lake", aliases=("local:///srv/objects/lake",)),
    Namespace.parse("local://team/lake", aliases=("local:///srv/objects/team/lake",)),
    Namespace.parse("https://bucket.blob.core.windows.net/team/lake"),
    Namespace.parse("http://bucket.blob.core.windows.net/lake/"),
    Namespace.parse("gs://bucket/lake"),
    Namespace.parse("gs://bucket"),
    Namespace.parse("gs://bucket/a+b (1)/lake/"),
    Namespace.parse("s3://bucket/la%6be/what?"),
    Namespace.parse("https://bucket.blob.core.windows.net/team/lake/objects"),
    Namespace.parse("local://./team//l%61ke", aliases=("local:///srv/objects/./team//l%61ke",)),
)
BUCKETS = tuple(namespace for namespace in NAMESPACES if namespace.is_bucket)
S3 = NAMESPACES[0]
AZURE = NAMESPACES[5]
GOOGLE = NAMESPACES[7]
KINDS = st.sampled_from(AddressType)

pieces = st.sampled_from(
    [
        *("s3", "S3", "s3a", "local", "https", "http", "abfss", "gs"),
        *(
            ".blob.core.windows.net",
            ".dfs.core.windows.net",
            ".blob.core.chinacloudapi.cn",
            "-secondary",
            ":443",
            "@",
            "user:secret@",
            "?",
            "#",
        ),
        *("://", ":/", ":///", ":////", "/", "//", "///", ""),
        *("bucket", "Bucket", "BUCKET", "bucket-2", "lake", "Lake", "lake2", "team", "srv", "objects", "srv/objects"),
        *(
            "a+b (1)",
            "a%2Bb%20(1)",
            "a%20b",
            "%zz",
            "l%61ke",
            "%42UCKET",
            "data",
            "data/s/i",
            "data/x://y",
            "i,token",
            ".",
            "..",
            "\n",
            "é",
            "K",
            "%2F",
        ),
    ]
)
addresses = st.lists(pieces, min_size=1, max_size=9).map("".join).filter(bool)
full_addresses = st.tuples(
    st.sampled_from(["s3://", "gs://", "S3://"]),
    st.sampled_from(["", "", "user@", "user:secret@"]),
    st.sampled_from(["bucket", "Bucket", "bucket:443", ""]),
    st.sampled_from(["/lake/", "/", "//", "/l%61ke/", "/la%6be/what/", "/a+b (1)/lake/", "/lake2/"]),
    st.lists(pieces, max_size=4).map("".join),
).map("".join)


def one_by_one(namespace: Namespace, address: str, kind: AddressType) -> str | None:
    """The key of an address: None if it is outside, `Refused` if it is a conflict."""
    where, key = namespace.locate(address, kind)
    if where is Location.CONFLICT:
        raise Refused(address)
    return key if where is Location.INSIDE else None


def in_a_column(namespace: Namespace, address: str, kind: AddressType) -> str | None:
    inside, outside = addresses_inside(pa.array([address]), pa.array([int(kind)], pa.int8()), namespace)
    assert len(inside) + outside == 1
    return inside[0].as_py() if len(inside) else None


def key_or_conflict(namespace: Namespace, address: str, kind: AddressType, how: object) -> object:
    try:
        return how(namespace, address, kind)  # type: ignore[operator]
    except Refused:
        return "conflict"


@settings(max_examples=600, deadline=None)
@given(namespace=st.sampled_from(NAMESPACES), address=addresses, kind=KINDS)
@example(NAMESPACES[0], "data/s/i", AddressType.FULL)
@example(NAMESPACES[0], "data/x://y", AddressType.BY_PREFIX)
@example(NAMESPACES[0], "s3://bucket/lake", AddressType.FULL)
@example(NAMESPACES[0], "s3://bucket/lake2/data/x", AddressType.FULL)
@example(NAMESPACES[3], "local:///other/path/lake/data/x", AddressType.FULL)
@example(NAMESPACES[3], "local:////srv//objects/lake/data/x", AddressType.FULL)
def test_columns_and_single_addresses_give_the_same_keys(namespace: Namespace, address: str, kind: AddressType) -> None:
    """The vectorized path and the readable one agree on every address: inside, outside or a conflict."""
    assert key_or_conflict(namespace, address, kind, in_a_column) == key_or_conflict(
        namespace, address, kind, one_by_one
    )


@settings(max_examples=600, deadline=None)
@given(namespace=st.sampled_from(NAMESPACES), address=addresses, kind=KINDS)
def test_an_address_that_the_oracle_places_inside_is_never_placed_outside(
    namespace: Namespace, address: str, kind: AddressType
) -> None:
    """lakegc gives such an address the oracle's key or stops the mark. If the oracle refuses an address, lakegc doesn't
    place it outside either."""
    spellings = (namespace.uri, *namespace.aliases)
    result = key_or_conflict(namespace, address, kind, one_by_one)
    try:
        wanted: object = oracle.inside(int(kind), address, spellings)
    except oracle.Stop:
        wanted = "conflict"
    if wanted is not None:
        assert result in (wanted, "conflict", address)  # an address without a scheme is relative and unchanged


@settings(max_examples=400, deadline=None)
@given(namespace=st.sampled_from(NAMESPACES), address=addresses)
def test_the_pattern_for_columns_finds_every_conflict(namespace: Namespace, address: str) -> None:
    """The regular expression finds at least what the readable rule calls a conflict."""
    if namespace.locate(address, AddressType.BY_PREFIX)[0] is Location.CONFLICT:
        assert re.search(namespace.conflict_pattern(), address) is not None


@settings(max_examples=300, deadline=None)
@given(key=st.lists(pieces, min_size=1, max_size=5).map("".join), namespace=st.sampled_from(NAMESPACES))
@example(key="/", namespace=NAMESPACES[0])
def test_every_spelling_of_a_key_gives_that_key_or_stops_the_mark(key: str, namespace: Namespace) -> None:
    """The key may be relative or follow any full form of the namespace. It is returned byte for byte, or the mark
    stops."""
    assert namespace.locate(key, AddressType.RELATIVE) == (Location.INSIDE, key)
    for root in (namespace.uri, *namespace.aliases):
        full = f"{root}/{key}"
        # a double slash after the namespace, or a name that lakeFS may read differently, is a conflict
        encoded = (namespace.is_azure or namespace.is_bucket) and {"%", "?"} & set(full)
        unsure = key.startswith("/") or encoded or (namespace.is_azure and full.endswith("/"))
        wanted = (Location.CONFLICT, full) if unsure else (Location.INSIDE, key)
        for kind in (AddressType.BY_PREFIX, AddressType.FULL):
            assert namespace.locate(full, kind) == wanted


@pytest.mark.parametrize(
    "address",
    ["s3://bucket/lake-2/data/x", "s3://bucket/lakes", "s3://bucket-2/lake/data/x", "s3://bucket/x/lake/data/y"],
)
def test_a_sibling_of_the_namespace_is_outside(address: str) -> None:
    """The namespace is matched with its slash: an address that only begins with its name belongs to somebody else."""
    assert NAMESPACES[0].locate(address, AddressType.FULL) == (Location.OUTSIDE, address)


@pytest.mark.parametrize(
    "address",
    [
        *("S3://bucket/lake/data/x", "s3a://bucket/lake/data/x", "s3://BUCKET/lake/data/x"),
        *("s3://bucket//lake/data/x", "s3:///bucket/lake/data/x", "s3://bucket/lake//data/x"),
        *("s3://bucket/l%61ke/data/x", "s3://bucket/lake%2Fdata/x", "S3://bucket//%6Cake%2fdata/x"),
        *("s3://user@bucket/lake/data/x", "s3://us@er:secret@bucket/lake/data/x", "s3://@bucket/lake/data/x"),
        *("s3://bucket:443/lake/data/x", "s3://bucket:/lake/data/x", "s3://user@BUCKET:443//lake/data/a%20b"),
        *("gs://bucket/lake/data/a%20b", "https://bucket/lake/data/a?x"),
        *("s3:///user@bucket/lake/data/x", "s3://user@bucket/lake/data/x://y", "s3://bucket:443/lake/data/x://y"),
    ],
)
def test_scheme_authority_case_and_encoding_variants_stop_the_mark(address: str) -> None:
    """Such an address may lie in this namespace, so it is neither inside nor outside.

    apache/iceberg#2890, apache/iceberg#4346
    """
    for kind in (AddressType.BY_PREFIX, AddressType.FULL):
        with pytest.raises(Refused, match="only in its scheme"):
            addresses_inside(pa.array([address]), pa.array([int(kind)], pa.int8()), NAMESPACES[0])


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("s3://bucket/team/lake", "s3://BUCKET/team/lake/data/x"),
        ("s3://bucket/team/lake", "s3://bucket//team//lake/data/x"),
        ("s3://bucket/la%6be/what?", "s3://BUCKET/lake/what/data/x"),
        ("https://bucket.blob.core.windows.net/team/lake/objects",
         "https://bucket.dfs.core.windows.net/team/lake/objects/data/x"),
        ("https://bucket.blob.core.windows.net/team/lake/objects",
         "abfss://team@bucket.dfs.core.windows.net/lake//objects/data/x"),
        ("local://team/lake", "LOCAL://team/lake/data/x"),
        ("local://team/lake", "local://team//lake/data/x"),
    ],
)  # fmt: skip
def test_a_different_spelling_of_a_namespace_in_a_deep_folder_stops_the_mark(uri: str, address: str) -> None:
    """Each folder of the namespace is compared."""
    for kind in (AddressType.BY_PREFIX, AddressType.FULL):
        with pytest.raises(Refused, match="only in its scheme"):
            addresses_inside(pa.array([address]), pa.array([int(kind)], pa.int8()), Namespace.parse(uri))


@pytest.mark.parametrize(
    "address",
    [
        "http://bucket.blob.core.windows.net/team/lake/data/x",
        "HTTPS://bucket.blob.core.windows.net/team/lake/data/x",
        "https://Bucket.Blob.core.windows.net/team/lake/data/x",
        "https://bucket.blob.core.windows.net:443/team/lake/data/x",
        "https://bucket.blob.core.windows.net//team/lake/data/x",
        "https://bucket.blob.core.windows.net/team//lake/data/x",
        "https://bucket.blob.core.windows.net/team/lake//data/x",
        "https://bucket.blob.core.windows.net/Team/lake/data/x",
        "https://bucket.blob.core.windows.net/te%61m/lake/data/x",
        "https://bucket.blob.core.windows.net/team%2Flake/data/x",
        "https://bucket.dfs.core.windows.net/team/lake/data/x",
        "https://bucket.blob.core.usgovcloudapi.net/team/lake/data/x",
        "https://bucket-secondary.blob.core.windows.net/team/lake/data/x",
        "https://user@bucket.blob.core.windows.net/team/lake/data/x",
        "abfss://team@bucket.dfs.core.windows.net/lake/data/x",
        "wasbs://team@bucket.blob.core.windows.net/lake/data/x",
        "https:///bucket.blob.core.windows.net/team/lake/data/x",
        "abfss://team@bucket.dfs.core.windows.net/lake/data/x://y",
        "https://bucket.dfs.core.windows.net/team/lake/data/x://y",
    ],
)
def test_a_different_spelling_of_an_azure_namespace_stops_the_mark(address: str) -> None:
    """lakeFS resolves account, container and path, so such an address may lie in this namespace."""
    for kind in (AddressType.BY_PREFIX, AddressType.FULL):
        with pytest.raises(Refused, match="only in its scheme"):
            addresses_inside(pa.array([address]), pa.array([int(kind)], pa.int8()), AZURE)


@pytest.mark.parametrize(
    "address",
    [
        "https://bucket2.blob.core.windows.net/team/lake/data/x",
        "https://bucket.blob.core.windows.net/team2/lake/data/x",
        "https://bucket.blob.core.windows.net/team/lake-2/data/x",
        "https://bucket.blob.core.windows.net/team/photos/a%20b.jpg",
        "https://bucket.blob.core.windows.net/other/team/lake/data/x",
        "abfss://lake@bucket.dfs.core.windows.net/team/data/x",
    ],
)
def test_a_sibling_of_an_azure_namespace_is_outside(address: str) -> None:
    """Another account, container or path doesn't stop the mark, whether or not its names are percent-encoded."""
    assert AZURE.locate(address, AddressType.FULL) == (Location.OUTSIDE, address)
    assert in_a_column(AZURE, address, AddressType.FULL) is None


@pytest.mark.parametrize("key", ["data/a%20b", "data/a%2Fb", "data/100%", "data/a?b", "data/a/"])
def test_an_encoded_full_address_in_azure_stops_the_mark(key: str) -> None:
    """lakeFS decodes a full address but not a relative one, so the key of an encoded full address is not certain."""
    full = f"{AZURE.uri}/{key}"
    with pytest.raises(Refused, match="another key"):
        addresses_inside(pa.array([full]), pa.array([int(AddressType.FULL)], pa.int8()), AZURE)
    assert AZURE.locate(key, AddressType.RELATIVE) == (Location.INSIDE, key)


#: For S3 and Google Cloud alike: the text after `<scheme>://bucket/lake/`, and the key at which lakeFS finds it.
BEHIND_A_BUCKET = [
    *(
        (key, Location.INSIDE)
        for key in ("data/x", "data/a b", "data/a+b", "data/a#b", "data/a//b", "data/a/", "x", "é")
    ),
    *(
        (key, Location.INSIDE)
        for key in ("data/a@b", "data/a:443", "data/a\nb", "data/a\\b", "data/../a", "data/x://y")
    ),
    *((key, Location.CONFLICT) for key in ("data/a%20b", "data/a%2Fb", "data/a%3Fb", "data/a%2520b", "data/%64ata")),
    *((key, Location.CONFLICT) for key in ("data/a%", "data/a%zz", "data/100%25", "%2E%2E/lake/data/x", "%00")),
    *((key, Location.CONFLICT) for key in ("data/a?x", "data/a?", "?", "data/a#b?x", "data/a?x%20y", "/data/x", "/")),
]


@pytest.mark.parametrize("namespace", [S3, GOOGLE], ids=lambda namespace: namespace.scheme)
@pytest.mark.parametrize(("key", "where"), BEHIND_A_BUCKET)
def test_a_full_address_stops_the_mark_only_if_lakefs_may_read_it_as_another_key(
    key: str, where: Location, namespace: Namespace
) -> None:
    """lakeFS reads a full address as a URL: `a%20b` is the key `a b`, `a?x` is `a`, and `a%2Fb` is left as it is.

    If the text of the address were taken for the key, the live object would be garbage. A relative address is the key
    itself, and so is the address in a response of the server, which has already resolved it.
    """
    full, kind = f"{namespace.uri}/{key}", AddressType.FULL

    assert namespace.locate(full, kind) == (where, key if where is Location.INSIDE else full)
    assert key_or_conflict(namespace, full, kind, in_a_column) == (key if where is Location.INSIDE else "conflict")
    assert key_or_conflict(namespace, full, AddressType.BY_PREFIX, in_a_column) == (
        key if where is Location.INSIDE else "conflict"
    )
    for relative in (AddressType.RELATIVE, AddressType.BY_PREFIX):
        assert in_a_column(namespace, key, relative) == key
        assert one_by_one(namespace, key, relative) == key
    if not key.startswith("/"):
        assert namespace.locate_reported(full) == (Location.INSIDE, key)


def readings(address: str) -> set[str]:
    """A full address, read as a URL, as `<bucket>/<key>`: once with its path as written and once decoded. lakeFS
    takes one of them."""
    authority, slash, path = address.split("://", 1)[1].partition("?")[0].partition("/")
    return {f"{authority.rpartition('@')[2]}{slash}{form}" for form in (path, unquote(path))}


@settings(max_examples=600, deadline=None)
@given(namespace=st.sampled_from(BUCKETS), address=full_addresses)
@example(NAMESPACES[0], "s3://bucket/lake/data/a%20b")
@example(NAMESPACES[0], "s3://user@bucket/lake/data/x")
@example(NAMESPACES[0], "s3://bucket/l%61ke/data/x")
@example(Namespace.parse("gs://bucket"), "s3://bucket/%2F")
def test_an_address_that_lakefs_serves_from_this_namespace_is_inside_or_stops_the_mark(
    namespace: Namespace, address: str
) -> None:
    """The object is never placed outside the namespace, and never counted as live under a key other than the served
    one."""
    result = key_or_conflict(namespace, address, AddressType.FULL, one_by_one)
    roots = {root + "/" for root in readings(namespace.uri)}
    inside = {reading[len(root) :] for reading in readings(address) for root in roots if reading.startswith(root)}
    inside = {key for key in inside if key.strip("/")}  # a key of slashes alone is never a candidate

    assert result == "conflict" or inside == {result} - {None, ""}


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("gs://bucket/lake/data/x", Location.INSIDE),
        ("gs://bucket/lake/data/a/", Location.INSIDE),
        ("gs://bucket/lake/data/a#b", Location.INSIDE),
        ("GS://bucket/lake/data/x", Location.CONFLICT),
        ("s3://bucket/lake/data/x", Location.CONFLICT),
        ("gs://BUCKET/lake/data/x", Location.CONFLICT),
        ("gs://bucket//lake/data/x", Location.CONFLICT),
        ("gs://bucket/la%6Be/data/x", Location.CONFLICT),
        ("gs://bucket/lake%2Fdata/x", Location.CONFLICT),
        ("gs://bucket/lake-2/data/x", Location.OUTSIDE),
        ("gs://bucket/photos/a%20b.jpg", Location.OUTSIDE),
        ("gs://bucket-2/lake/data/x", Location.OUTSIDE),
    ],
)
def test_an_address_in_cloud_storage_is_inside_outside_or_a_conflict(address: str, where: Location) -> None:
    """An address inside begins with the namespace and a slash. An address that lakeFS may read as inside in another way
    stops the mark."""
    assert GOOGLE.locate(address, AddressType.FULL)[0] is where
    assert (
        key_or_conflict(GOOGLE, address, AddressType.FULL, in_a_column)
        == {
            Location.INSIDE: address.removeprefix("gs://bucket/lake/"),
            Location.OUTSIDE: None,
            Location.CONFLICT: "conflict",
        }[where]
    )


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        *(("lake", "<scheme>://<bucket>/<path>"), ("s3://", "<scheme>://<bucket>/<path>")),
        *(("local:///", "<scheme>://<bucket>/<path>"), ("://lake", "<scheme>://<bucket>/<path>")),
        ("https://bucket.blob.core.windows.net", "https://<account>.<domain>/<container>/<path>"),
        ("HTTPS://bucket.blob.core.windows.net//", "https://<account>.<domain>/<container>/<path>"),
    ],
)
def test_a_uri_without_a_scheme_a_bucket_or_a_container_is_refused_as_a_namespace(uri: str, expected: str) -> None:
    """The error says what a namespace looks like."""
    with pytest.raises(WrongUsage, match=f"^'{uri}' is not a storage namespace: expected {expected}$"):
        Namespace.parse(uri)


def test_http_and_https_locations_of_a_namespace_are_the_same_place() -> None:
    """lakeFS accepts namespaces with http and announces their locations with https."""
    namespace = Namespace.parse("http://bucket.blob.core.windows.net/lake/")

    assert namespace.key("https://bucket.blob.core.windows.net/lake/_lakefs/x") == "_lakefs/x"
    assert namespace.key("http://bucket.blob.core.windows.net/lake/_lakefs/x") == "_lakefs/x"
    assert namespace.key("https://bucket.blob.core.windows.net/lake/_lakefs/x/") == "_lakefs/x/"
    for elsewhere in ("https://bucket.blob.core.windows.net/lake/x//", "https://bucket.blob.core.windows.net/lake2/x/"):
        with pytest.raises(Refused, match="not inside") as refused:
            namespace.key(elsewhere)
        assert refused.value.invariant == 5
    assert namespace.normal_form() == Namespace.parse("https://bucket.blob.core.windows.net/lake").normal_form()


def test_a_full_address_without_a_scheme_stops_the_mark() -> None:
    """An entry that calls `data/s/i` a full address is of a kind that lakegc doesn't know, and not simply outside."""
    with pytest.raises(Refused, match=r"the address data/s/i should be a full address, but has no scheme\.") as refused:
        addresses_inside(pa.array(["data/s/i"]), pa.array([int(AddressType.FULL)], pa.int8()), NAMESPACES[0])
    assert refused.value.invariant == 5


@pytest.mark.parametrize("address", ["local:///home/lakefs/data/lake/data/s/i", "local:///srv/objects2/lake/data/s/i"])
def test_a_different_configured_path_of_the_local_adapter_stops_the_mark(address: str) -> None:
    """In a container, lakeFS writes the path that it sees there, so such an address may lie in this namespace."""
    for kind in (AddressType.BY_PREFIX, AddressType.FULL):
        with pytest.raises(Refused, match="configured path"):
            addresses_inside(pa.array([address]), pa.array([int(kind)], pa.int8()), NAMESPACES[3])
    for elsewhere in ("local:///imports/photos/1.jpg", "local:///srv/objects/team/lake/data/s/i"):
        assert NAMESPACES[3].locate(elsewhere, AddressType.FULL) == (Location.OUTSIDE, elsewhere)


def test_each_key_is_returned_with_the_row_of_its_address() -> None:
    """Relative, full and foreign addresses are mixed, so a key may have another position than its address."""
    namespace = NAMESPACES[3]
    mixed = [
        ("s3://elsewhere/x", AddressType.FULL, None),
        ("data/s/a", AddressType.RELATIVE, "data/s/a"),
        ("local:///srv/objects/lake/data/s/b", AddressType.FULL, "data/s/b"),
        ("data/s/c", AddressType.BY_PREFIX, "data/s/c"),
        ("local://lake/data/s/d", AddressType.FULL, "data/s/d"),
        ("s3://elsewhere/y", AddressType.BY_PREFIX, None),
        ("data/s/e", AddressType.RELATIVE, "data/s/e"),
    ]
    for entries in (mixed, mixed[::-1], mixed[1:2], mixed[:1], mixed[6:], []):
        given_addresses = pa.array([address for address, _, _ in entries], pa.string())
        kinds = pa.array([int(kind) for _, kind, _ in entries], pa.int8())

        keys, rows, outside = rows_inside(given_addresses, kinds, namespace)

        expected = {number: key for number, (_, _, key) in enumerate(entries) if key is not None}
        of_keys = range(len(entries)) if rows is None else rows.to_pylist()
        assert dict(zip(of_keys, keys.to_pylist(), strict=True)) == expected
        assert outside == len(entries) - len(expected)


def test_non_utf8_bytes_in_a_path_are_escaped() -> None:
    """Other bytes of that path, and the paths beside it, are shown as they are."""
    paths = pa.array(["é/ü".encode(), b"bad\xff/x", b""], pa.binary())

    assert display_paths(paths).to_pylist() == ["é/ü", "bad\\xff/x", ""]
    assert display_paths(paths[:1]).to_pylist() == ["é/ü"]


@pytest.mark.parametrize(
    ("first", "second", "overlap"),
    [
        ("local://lake", "local:///srv/objects/lake", True),
        ("local://lake", "local:///srv/objects/lake/inside", True),
        ("local://lake", "local:///srv/objects", True),
        ("local://lake", "local://other/../lake", True),
        ("local://lake", "local://./lake//inside", True),
        ("local://lake", "local://lake2", False),
        ("local://lake", "local://other/../Xlake", False),
        ("local://lake", "local://other/..", True),
        ("local://lake", "local:///srv/objects/lake2", False),
        ("s3://bucket/lake", "s3://BUCKET//lake/inside/", True),
        ("s3://bucket/lake", "s3://bucket/lake2", False),
        ("s3://bucket/lake", "s3://bucket/other/../lake", False),
    ],
)
def test_overlapping_namespaces_are_found_in_any_spelling(first: str, second: str, overlap: bool) -> None:
    """An object store doesn't resolve `..`; the local adapter's file system does."""

    def namespace(uri: str) -> Namespace:
        configured = f"local:///srv/objects/{uri.removeprefix('local://')}"
        return Namespace.parse(uri, aliases=(configured,) if uri.startswith("local") else ())

    assert namespace(first).overlaps(namespace(second)) is overlap
    assert namespace(second).overlaps(namespace(first)) is overlap
    assert Namespace.parse("local://lake").overlaps(Namespace.parse("local://other/.."))


@pytest.mark.parametrize(
    "address",
    [
        *("local://other/../lake/data/s/i", "local://./lake/data/s/i", "local:///srv/objects/other/../lake/data/x"),
        *("local:///srv/objects/l%61ke/data/s/i", "local:///srv/obj%65cts/lake/data/s/i", "LOCAL://lake/data/s/i"),
        "local:////srv//objects/lake//data/s/i",
    ],
)
def test_a_different_spelling_of_a_local_namespace_stops_the_mark(address: str) -> None:
    """A file system resolves dots, and lakeFS decodes escapes, so the address may be a different spelling of that of a
    listed object."""
    for kind in (AddressType.BY_PREFIX, AddressType.FULL):
        with pytest.raises(Refused, match="slashes or dots"):
            addresses_inside(pa.array([address]), pa.array([int(kind)], pa.int8()), NAMESPACES[3])
