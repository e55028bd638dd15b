"""Special cases of S3: invalid responses, tags that aren't an MD5, copies in parts, and unreachable servers."""

from __future__ import annotations

import hashlib
import itertools
import re
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, quote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from botocore.credentials import RefreshableCredentials
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from spark_resources.errors import NotFound, Refused, Unavailable, WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import Capabilities, Store, StoreSettings, open_store
from spark_resources.stores.base import NOT_SENT, ONE_BY_ONE_TIMEOUT_S, Deletion, read_to_verify
from spark_resources.stores.s3.client import s3_client
from spark_resources.stores.s3.copy import copy_object
from spark_resources.stores.s3.delete import delete_keys
from spark_resources.stores.s3.fast_reads import FastReads
from spark_resources.stores.s3.fast_requests import FallBackToBoto3, FastRequests
from spark_resources.stores.s3.listing import parse_listing
from spark_resources.stores.s3.listing_xml import extract_objects
from tests.support.retry_policies import no_wait_policy
from tests.support.s3_servers import S3Server, SeaweedFS
from tests.support.store_providers import replying
from tests.support.store_proxy import Fault, every_nth, store_proxy

XML = {"Content-Type": "application/xml"}
MD5 = Capabilities(md5_etags=True)


@pytest.fixture(params=["seaweedfs", "moto_server"])
def server(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    server.make_bucket("s3-tests")
    return server


def on(server: S3Server, name: str, capabilities: Capabilities = MD5) -> Store:
    return open_store(Namespace.parse(f"s3://s3-tests/{name}"), server.settings(), capabilities=capabilities)


def at(settings: StoreSettings, uri: str = "s3://bucket/ns") -> Store:
    return open_store(Namespace.parse(uri), settings)


def listing(*keys: str, more: str = "<IsTruncated>false</IsTruncated>", encoding: str = "url") -> bytes:
    """A listing with these (encoded) keys."""
    contents = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2026-03-31T10:00:00.123Z</LastModified><ETag>&quot;e&quot;</ETag>"
        "<Size>3</Size></Contents>"
        for key in keys
    )
    return (
        f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{more}'
        f"<EncodingType>{encoding}</EncodingType>{contents}</ListBucketResult>"
    ).encode()


# --- tags -----------------------------------------------------------------------------------------------------------


def test_the_etag_of_a_plain_upload_is_an_md5_if_the_store_is_known_to_use_md5(server: S3Server) -> None:
    """The meaning of other stores' ETags is unknown."""
    store = on(server, "plain")
    store.write("data/x", b"content")

    assert store.etag_is_md5("data/x")
    assert store.stat("data/x").checksum == hashlib.md5(b"content").hexdigest()
    assert not at(server.settings(), "s3://s3-tests/plain").etag_is_md5("data/x")
    with pytest.raises(NotFound):
        store.etag_is_md5("data/none")


def test_the_etag_of_a_multipart_upload_is_not_an_md5(server: S3Server) -> None:
    """An upload in a single part also has such a tag."""
    client = server.client()
    place = {"Bucket": "s3-tests", "Key": "parts/data/x"}
    upload = client.create_multipart_upload(**place)["UploadId"]
    part = client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"content")
    client.complete_multipart_upload(
        **place, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )

    assert not on(server, "parts").etag_is_md5("data/x")


def test_the_etag_of_a_kms_encrypted_object_is_not_an_md5(moto_server: S3Server) -> None:
    """The tag only looks like an MD5."""
    moto_server.make_bucket("s3-tests")
    moto_server.client().put_object(
        Bucket="s3-tests", Key="kms/data/x", Body=b"content", ServerSideEncryption="aws:kms", SSEKMSKeyId="key"
    )

    assert not on(moto_server, "kms").etag_is_md5("data/x")


@pytest.mark.parametrize(
    ("headers", "bucket", "is_md5"),
    [
        ({}, "bucket", True),
        ({"x-amz-server-side-encryption": "AES256"}, "bucket", True),
        ({"x-amz-server-side-encryption": "aws:kms"}, "bucket", False),
        ({"x-amz-server-side-encryption": "aws:kms:dsse"}, "bucket", False),
        ({"x-amz-server-side-encryption-customer-algorithm": "AES256"}, "bucket", False),
        ({"x-amz-server-side-encryption-aws-kms-key-id": "key"}, "bucket", False),
        ({}, "bucket--use1-az4--x-s3", False),
        ({"ETag": '"0123456789abcdef0123456789abcdef-1"'}, "bucket", False),
        ({"ETag": '"0123456789ABCDEF"'}, "bucket", False),
        ({"ETag": ""}, "bucket", False),
    ],
)
def test_an_etag_is_an_md5_only_in_an_ordinary_bucket_without_kms_or_keys_of_the_client(
    headers: dict[str, str], bucket: str, is_md5: bool
) -> None:
    """The tag must have 32 hex digits, and the object must be unencrypted or encrypted by S3 itself."""
    known = {"ETag": '"0123456789abcdef0123456789abcdef"', "Last-Modified": "Thu, 31 Mar 2022 10:00:00 GMT"}
    with replying(200, b"", known | headers) as fixed_server:
        store = open_store(Namespace.parse(f"s3://{bucket}/ns"), fixed_server.settings(), capabilities=MD5)

        assert store.etag_is_md5("data/x") is is_md5


def test_the_etag_does_not_count_as_an_md5_if_the_head_request_is_refused() -> None:
    """An object encrypted with a client's key can't be looked up (400). That is not an error."""
    with replying(400, b"") as fixed_server:
        store = open_store(Namespace.parse("s3://bucket/ns"), fixed_server.settings(), capabilities=MD5)

        assert not store.etag_is_md5("data/x")


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_keeps_content_type_and_metadata(server: S3Server) -> None:
    """Large objects are copied in parts."""
    client = server.client()
    data = bytes(range(256)) * 4 * 6 * 1024  # 6 MiB: two parts of at most 5 MiB
    client.put_object(
        Bucket="s3-tests", Key="copies/é +x", Body=data, Metadata={"owner": "me"}, ContentType="text/x-own"
    )
    head = client.head_object(Bucket="s3-tests", Key="copies/é +x")

    copy_object(client, "s3-tests", "copies/é +x", "copies/one", head)
    copy_object(client, "s3-tests", "copies/é +x", "copies/parts", head, max_copy_bytes=5 * 1024 * 1024)

    for key in ("copies/one", "copies/parts"):
        copy = client.get_object(Bucket="s3-tests", Key=key)
        assert copy["Body"].read() == data
        assert (copy["Metadata"], copy["ContentType"]) == ({"owner": "me"}, "text/x-own")
    assert "-2" in client.head_object(Bucket="s3-tests", Key="copies/parts")["ETag"]


# --- servers that aren't there, or aren't S3 --------------------------------------------------------------------------


def test_the_error_for_an_unreachable_endpoint_names_the_setting() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = StoreSettings(
        s3_endpoint_url=url, s3_access_key_id="a", s3_secret_access_key="b", connect_timeout=2, retry=no_wait_policy(2)
    )
    _check_unavailable(at(settings), r"LAKEGC_S3_ENDPOINT_URL.* Tried 2 times")


def test_a_silent_server_times_out() -> None:
    """The server accepts the connection and never responds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        settings = StoreSettings(
            s3_endpoint_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
            s3_access_key_id="a",
            s3_secret_access_key="b",
            read_timeout=0.2,
            retry=no_wait_policy(1),
        )
        _check_unavailable(at(settings), "LAKEGC_S3_ENDPOINT_URL")


def test_a_request_to_a_busy_server_is_attempted_the_configured_number_of_times() -> None:
    """After the last attempt, an error is raised."""
    body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    with replying(503, body, XML) as fixed_server:
        store = at(fixed_server.settings(retry=no_wait_policy(2)))

        with pytest.raises(Unavailable, match="SlowDown"):
            store.read("data/x")
        assert len(fixed_server.seen) == 2


REQUESTS: dict[str, Callable[[Store], object]] = {
    "list": lambda store: list(store.pages("")),
    "read": lambda store: store.read("data/x"),
    "stat": lambda store: store.stat("data/x"),
    "write": lambda store: store.write("data/x", b"x"),
    "create": lambda store: store.write_if_absent("data/x", b"x"),
    "copy": lambda store: store.copy("data/x", "data/y"),
    "now": lambda store: store.now(),
}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [b"", b"<html>moved</html>"])
def test_a_redirect_is_reported_in_one_sentence_and_not_followed(status: int, body: bytes) -> None:
    """Credentials are never sent to another host. botocore itself would keep looking for a region."""
    with replying(200, b"hello", {"ETag": '"x"'}) as elsewhere:
        location = f"{elsewhere.url.replace('//', '//user:secret@')}/bucket/ns/data/x?token=secret"
        with replying(status, body, {"Location": location}) as fixed_server:
            store = at(fixed_server.settings(s3_session_token=SecretStr("t"), retry=no_wait_policy(3)))
            for act in (*REQUESTS.values(), lambda store: read_to_verify(store, "data/x")):
                fixed_server.seen.clear()
                with pytest.raises(Unavailable) as raised:
                    act(store)
                message = str(raised.value)
                assert "LAKEGC_S3_ENDPOINT_URL" in message
                assert "\n" not in message
                assert "secret" not in message
                if status != 303:  # botocore never gets to report it
                    assert f"redirected the request (HTTP {status}) to {elsewhere.url}" in message
                assert len(fixed_server.seen) <= 2  # one by the fast path, one by boto3, neither repeated
            [result] = store.delete_many(["data/x"])
            assert (result.deletion, result.transient) == (Deletion.FAILED, False)
        assert elsewhere.seen == []


@pytest.mark.parametrize("name", REQUESTS)
def test_all_requests_but_deletes_are_retried(name: str) -> None:
    """A sweep repeats a delete itself, after the same checks as before the first attempt. The store must not repeat it
    silently."""
    body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    with replying(503, body, XML) as fixed_server:
        store = at(fixed_server.settings(retry=no_wait_policy(3)))
        for _ in range(3):  # after that the fast paths have given up
            fixed_server.seen.clear()
            with pytest.raises(Unavailable, match=r"Tried 3 times"):
                REQUESTS[name](store)
        assert len(fixed_server.seen) == 3

        fixed_server.seen.clear()
        [result] = store.delete_many(["data/x"])
        assert (result.deletion, result.transient) == (Deletion.FAILED, True)
        assert len(fixed_server.seen) == 1


def test_an_error_response_that_is_cut_off_is_retried(seaweedfs: SeaweedFS) -> None:
    """Without its end, nothing but its status is known: not whether the object or the bucket is missing."""
    seaweedfs.make_bucket("s3-tests")
    with store_proxy(seaweedfs.endpoint_url) as proxy:
        store = open_store(Namespace.parse("s3://s3-tests/cut"), seaweedfs.settings(s3_endpoint_url=proxy.endpoint))
        proxy.plan = every_nth(1, "read", Fault.CUT, at_most=1)

        with pytest.raises(NotFound):
            store.read("missing")
        assert proxy.seen["read"] == 2


def _check_unavailable(store: Store, match: str) -> None:
    for act in (
        lambda: list(store.pages("")),
        lambda: store.read("data/x"),
        lambda: store.stat("data/x"),
        lambda: store.write("data/x", b""),
        store.now,
    ):
        with pytest.raises(Unavailable, match=match) as caught:
            act()
        assert not isinstance(caught.value, NotFound)
    [result] = store.delete_many(["data/x"])
    assert result.deletion is Deletion.FAILED
    assert result.code


@pytest.mark.parametrize(("status", "body"), [(404, b"<html>404</html>"), (404, b""), (200, b"<html>Hello</html>")])
def test_a_response_that_is_not_from_s3_raises_an_error(status: int, body: bytes) -> None:
    """A web server's 404 doesn't mean that an object is absent."""
    with replying(status, body, {"Content-Type": "text/html"}) as fixed_server:
        store = at(fixed_server.settings())
        looks = [lambda: list(store.pages("data/")), store.now]
        if status == 404:
            looks += [lambda: store.read("data/x"), lambda: store.stat("data/x")]  # type: ignore[list-item,return-value]
        for look in looks:
            with pytest.raises(Unavailable) as caught:
                look()
            assert not isinstance(caught.value, NotFound)


def test_a_response_that_boto3_cannot_parse_raises_unavailable() -> None:
    """An example is an invalid time in a header or body. The error says what to check. A delete with an unreadable
    response counts as failed, not as done."""
    headers = {"Last-Modified": "yesterday"}
    with replying(200, b"", headers) as fixed_server, pytest.raises(Unavailable, match="invalid S3 response"):
        at(fixed_server.settings()).stat("data/x")
    with replying(200, b"<" * 20_000, XML) as fixed_server:
        [result] = at(fixed_server.settings()).delete_many(["data/x"])
    assert result.deletion is Deletion.FAILED


# --- responses to listings --------------------------------------------------------------------------------------------


def test_an_incomplete_or_malformed_listing_raises_an_error() -> None:
    """The listing ends early, or doesn't say whether more follows or where to continue."""
    whole = listing("ns/data/x")
    for body in (
        whole[:-40],
        listing("ns/data/x", more=""),
        listing("ns/data/x", more="<IsTruncated>true</IsTruncated>"),
        listing("ns/data/x").replace(b"<Size>3</Size>", b""),
        listing("ns/data/x").replace(b"2026-03-31", b"yesterday"),
        listing("ns/data/x").replace(b"00.123Z", b"00"),
        b"",
    ):
        with replying(200, body, XML) as fixed_server, pytest.raises(Unavailable):
            list(at(fixed_server.settings()).pages("data/"))


def test_a_repeated_page_ends_a_listing_with_an_error() -> None:
    """Otherwise, the listing would never end."""
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
    with replying(200, listing("ns/data/x", more=more), XML) as fixed_server:
        with pytest.raises(Unavailable, match="keeps returning the same page"):
            list(at(fixed_server.settings()).pages("data/"))
        assert len(fixed_server.seen) == 2


@pytest.mark.parametrize("key", ["ns-other/data/x", "ns/other/x", "data/x", "NS/data/x", "ns//data/x"])
def test_a_listed_key_outside_the_requested_prefix_is_refused(key: str) -> None:
    """The store folds keys, so a delete could hit another object."""
    with replying(200, listing(key), XML) as fixed_server, pytest.raises(Refused, match="normalizes keys") as caught:
        list(at(fixed_server.settings()).pages("data/"))
    assert caught.value.invariant == 5


def test_keys_that_are_not_utf8_are_counted_as_unreadable() -> None:
    """All other keys are listed."""
    with replying(200, listing("ns/data/%FFx", "ns/data/a+b", "ns/data/a%2Bb", "ns/data/%C3%A9"), XML) as fixed_server:
        [page] = at(fixed_server.settings()).pages("data/")

    assert [entry.key for entry in page.objects] == ["data/a b", "data/a+b", "data/é"]
    assert page.unreadable_names == 1


def test_keys_are_decoded_only_if_the_server_encoded_them() -> None:
    """All other keys are used unchanged."""
    [entry] = parse_listing(listing("ns/data/a%2Fb+c", encoding="")).objects.to_pylist()

    assert (entry["address"], entry["size"], entry["checksum"]) == ("ns/data/a%2Fb+c", 3, "e")


@pytest.mark.parametrize("lacking", ["ETag", "Size", "LastModified", "Key"])
def test_a_field_that_one_object_lacks_is_not_taken_from_the_next(lacking: str) -> None:
    """Only the tag may be missing; any other missing field is an error."""
    body = "".join(
        f"<Contents><Key>ns/data/{name}</Key><LastModified>2026-03-31T10:00:0{size}Z</LastModified><ETag>{name}</ETag>"
        f"<Size>{size}</Size></Contents>"
        for size, name in enumerate("abc")
    )
    fields = re.findall(rf"<{lacking}>.*?</{lacking}>", body)
    document = listing("ns/data/x").replace(b"<Contents>", body.replace(fields[1], "").encode() + b"<Contents>", 1)
    if lacking != "ETag":
        with pytest.raises(ValueError, match=rf"1 object without {lacking}"):
            parse_listing(document)
        return

    rows = parse_listing(document).objects.to_pylist()
    assert [(row["address"][-1], row["size"], row["checksum"]) for row in rows] == [
        ("a", 0, "a"),
        ("b", 1, None),
        ("c", 2, "c"),
        ("x", 3, "e"),
    ]
    assert [row["modified"].second for row in rows] == [0, 1, 2, 0]


_PIECES = [
    "<Key>k</Key>",
    "<Key>k%2Fl</Key>",
    "<Key>&lt;</Key>",
    "<Key></Key>",
    "<Size>3</Size>",
    "<Size> 3</Size>",
    "<LastModified>2026-03-31T10:00:00Z</LastModified>",
    "<ETag>&quot;e&quot;</ETag>",
    '<ETag>"e</ETag>',
    "<ETag/>",
    "<StorageClass>STANDARD</StorageClass>",
    "<StorageClass/>",
    "<Owner><ID>i</ID></Owner>",
    "<Other><Key>o</Key></Other>",
    "<!-- <Key>c</Key> -->",
    "\n",
]
_OBJECT = [
    "<Key>a</Key>",
    "<LastModified>2026-03-31T10:00:00Z</LastModified>",
    "<ETag>&#34;t&#34;</ETag>",
    "<Size>1</Size>",
]


@settings(max_examples=300, deadline=None)
@given(
    st.permutations(_OBJECT),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(_PIECES)), max_size=3),
    st.sampled_from(["", "<!--", "<Owner>", "<![CDATA[", "<CommonPrefixes><Prefix>p</Prefix></CommonPrefixes>"]),
)
@example(_OBJECT, [], "")
def test_both_parsers_of_a_listing_agree(fields: list[str], more: list[tuple[int, str]], before: str) -> None:
    """The fast parser cuts objects out of the document, and the other one parses the XML. Both return the same objects,
    or an error."""
    strange = list(fields)
    for place, piece in more:
        strange.insert(place, piece)
    after = {"<!--": "-->", "<Owner>": "</Owner>", "<![CDATA[": "]]>"}.get(before, "")
    objects = [f"<Contents>{''.join(some)}</Contents>" for some in (fields, strange, fields)]
    fast, slow = (
        listing(more="<IsTruncated>false</IsTruncated>" + before + first + objects[1] + objects[2] + after)
        for first in (objects[0], objects[0].replace("<Contents>", "<Contents ><?x?>"))
    )

    if not more and not before:
        assert extract_objects(fast, "ListBucketResult") is not None
    assert extract_objects(slow, "ListBucketResult") is None
    assert outcome(fast) == outcome(slow)


def outcome(document: bytes) -> object:
    """The content of a document, or the error of reading it."""
    try:
        parsed = parse_listing(document)
    except (ValueError, ElementTree.ParseError):
        return "unreadable"
    return parsed.objects.to_pylist(), parsed.unreadable, parsed.prefixes, parsed.next_token


@settings(deadline=None)
@given(st.text(min_size=1), st.sampled_from(["", "/", "/ +%!,="]))
def test_encoded_keys_are_decoded_to_the_original_keys(key: str, safe: str) -> None:
    """Servers may encode any characters and leave the others as they are."""
    encode = quote_plus if not safe else quote
    [row] = parse_listing(listing(escape(encode(key, safe=safe.replace("+", "").replace("%", ""))))).objects.to_pylist()

    assert row["address"] == key


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2026-03-31T10:00:00Z", "2026-03-31T10:00:00+00:00"),
        ("2026-03-31T10:00:00.123Z", "2026-03-31T10:00:00.123000+00:00"),
        ("2026-03-31T10:00:00.123456789Z", "2026-03-31T10:00:00.123456+00:00"),
        ("2026-03-31T12:00:00+02:00", "2026-03-31T10:00:00+00:00"),
        ("20260331T100000Z", "2026-03-31T10:00:00+00:00"),
    ],
)
def test_times_are_parsed_in_every_iso_8601_format(written: str, meant: str) -> None:
    """A misread time would make an object look younger or older than it is."""
    [row] = parse_listing(
        listing("ns/data/x").replace(b"2026-03-31T10:00:00.123Z", written.encode())
    ).objects.to_pylist()

    assert row["modified"].isoformat() == meant


def test_a_listing_with_a_doctype_is_refused() -> None:
    """S3 never sends a DOCTYPE. The listing is refused before entities are expanded."""
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
    document = listing("ns/data/&b;").replace(b"<ListBucketResult", bomb + b"<ListBucketResult", 1)
    with replying(200, document, XML) as fixed_server, pytest.raises(Unavailable, match="DOCTYPE"):
        list(at(fixed_server.settings()).pages("data/"))


# --- responses to deletes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri", ["s3://bucket/a%20b", "s3://bucket/a?b", "s3://user@bucket/ns", "s3://bucket:443/ns", "s3://bucket%41"]
)
def test_a_namespace_that_lakefs_resolves_to_a_different_location_is_refused(uri: str) -> None:
    """lakeFS reads `s3://bucket/a%20b` as the folder `a b`. Objects in the folder `a%20b` don't belong to this
    repository."""
    with pytest.raises(WrongUsage, match="can't be a namespace"):
        at(StoreSettings(), uri)


def test_only_keys_named_in_the_response_count_as_deleted() -> None:
    """A key with an error, or without a result, has failed."""
    body = (
        b"<DeleteResult><Deleted><Key>ns/a</Key></Deleted>"
        b"<Error><Key>ns/b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    with replying(200, body, XML) as fixed_server:
        results = at(fixed_server.settings()).delete_many(["c", "a", "b"])

    assert [(result.key, result.deletion, result.code) for result in results] == [
        ("c", Deletion.FAILED, "NoAnswer"),
        ("a", Deletion.DELETED, ""),
        ("b", Deletion.FAILED, "AccessDenied"),
    ]


def test_the_keys_of_a_batch_that_the_store_cannot_parse_are_deleted_one_by_one() -> None:
    """One invalid key doesn't make the other keys fail."""
    body = b"<Error><Code>MalformedXML</Code><Message>no</Message></Error>"
    with replying(400, body, XML) as fixed_server:
        results = at(fixed_server.settings()).delete_many(["a", "b"])

        assert [method for method, _ in fixed_server.seen] == ["POST", "DELETE", "DELETE"]
    assert [result.code for result in results] == ["MalformedXML"] * 2


def test_after_one_refused_batch_a_store_without_batches_gets_single_deletes() -> None:
    """The store's capabilities are updated."""
    body = b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>"
    with replying(501, body, XML) as fixed_server:
        store = at(fixed_server.settings())
        store.delete_many(["a", "b"])
        results = store.delete_many(["c", "d"])

        assert [method for method, _ in fixed_server.seen] == ["POST", "DELETE", "DELETE", "DELETE", "DELETE"]
    assert store.capabilities.delete_batch == 1
    assert [result.code for result in results] == ["NotImplemented"] * 2


def test_no_single_deletes_follow_a_slow_refusal_of_a_batch() -> None:
    """The time starts when the batch is sent, so no delete outlasts the lease."""
    body = b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>"
    with replying(501, body, XML) as fixed_server:
        results = delete_keys(
            s3_client(fixed_server.settings()), "b", ["a", "b"], to_full_key=str, batch_size=2,
            monotonic=lambda: ONE_BY_ONE_TIMEOUT_S * len(fixed_server.seen),
        )  # fmt: skip

        assert [method for method, _ in fixed_server.seen] == ["POST"]
    assert [result.code for result in results] == [NOT_SENT] * 2


def test_deleting_key_by_key_stops_within_the_time_allowed_for_one_request() -> None:
    """The sender of the batch checked that the lease lasts for that time. Keys that were not sent are reported as
    such."""
    clock = itertools.count(step=ONE_BY_ONE_TIMEOUT_S / 2)
    body = b"<Error><Code>NotImplemented</Code><Message>no</Message></Error>"
    with replying(501, body, XML) as fixed_server:
        results = delete_keys(
            s3_client(fixed_server.settings()),
            "b",
            ["a", "b", "c"],
            to_full_key=str,
            batch_size=3,
            monotonic=lambda: next(clock),
        )

        assert [method for method, _ in fixed_server.seen] == ["POST", "DELETE"]
    assert [result.code for result in results] == ["NotImplemented", NOT_SENT, NOT_SENT]


def test_a_response_without_a_valid_date_gives_no_store_time() -> None:
    """The time of this machine isn't used instead."""
    with (
        replying(200, listing(), {**XML, "Date": "whenever"}) as fixed_server,
        pytest.raises(Unavailable, match="Date"),
    ):
        at(fixed_server.settings()).now()


def test_an_unknown_profile_is_refused() -> None:
    """No request is sent."""
    with pytest.raises(WrongUsage, match="no-such-profile"):
        at(StoreSettings(s3_profile="no-such-profile"))


# --- the Dagster resource ---------------------------------------------------------------------------------------------


def test_the_dagster_resource_returns_an_ordinary_client(server: S3Server) -> None:
    """The client uses path style and opens the store of the resource's settings."""
    from dagster_aws.s3 import S3Resource

    from spark_resources.stores.s3.resource import StoreS3Resource

    resource = StoreS3Resource(
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
    )
    at(resource.settings(), "s3://s3-tests/resource").write("data/x", b"content")

    assert isinstance(resource, S3Resource)
    listed = resource.get_client().list_objects_v2(Bucket="s3-tests", Prefix="resource/")
    assert [entry["Key"] for entry in listed["Contents"]] == ["resource/data/x"]
    with pytest.raises(WrongUsage, match="certificate"):
        StoreS3Resource(verify=False).get_client()


# --- the fast paths -------------------------------------------------------------------------------------------------

ODD = ("data/x", "data//x", "data/./x", "data/a b+c%20é", "data/x/", "_lakefs/ab", "data/.x", "data/a=b/c.d-e_f")


def test_fast_reads_return_every_object_in_full(server: S3Server) -> None:
    """The object may be empty or large, or have an unusual name. A missing object is reported as missing."""
    store = on(server, "quick")
    folding = isinstance(server, SeaweedFS)
    there = [key for key in ODD if not folding or not re.search(r"//|/\./|/$", key)]
    contents = {key: f"content of {key}".encode() * number for number, key in enumerate(there)}
    contents["data/large"] = bytes(range(256)) * 50_000
    for key, data in contents.items():
        store.write(key, data)

    assert {key: read_to_verify(store, key) for key in contents} == contents
    with pytest.raises(NotFound, match="data/none"):
        read_to_verify(store, "data/none")
    store.write("data/x", b"written anew")
    assert read_to_verify(store, "data/x") == b"written anew"


def test_a_failing_server_gets_as_many_requests_as_the_policy_allows() -> None:
    """After a few failures, all requests are sent by boto3."""
    body = b"<Error><Code>InternalError</Code><Message>no</Message></Error>"
    with replying(500, body, XML) as fixed_server:
        store = at(fixed_server.settings(retry=no_wait_policy(2)))
        for _ in range(4):
            fixed_server.seen.clear()
            with pytest.raises(Unavailable, match="InternalError"):
                read_to_verify(store, "data/x")
            with pytest.raises(Unavailable, match="InternalError"):
                next(store.pages("data/"))
        assert len(fixed_server.seen) == 4


def test_fast_requests_stop_after_three_failures() -> None:
    """From then on, boto3 sends all requests and waits between attempts. A few failures among thousands of requests
    don't count."""
    body = b"<Error><Code>InternalError</Code><Message>no</Message></Error>"
    with replying(500, body, XML) as fixed_server:
        client = s3_client(fixed_server.settings())
        fast = FastRequests(client, fixed_server.settings(), "bucket")
        reads = FastReads(client, fixed_server.settings(), "bucket")
        for _ in range(3):
            with pytest.raises(FallBackToBoto3):
                fast.list({"prefix": "data/"})
            with pytest.raises(FallBackToBoto3):
                reads.read("data/x")
        assert fast.list({"prefix": "data/"}) is None
        assert reads.read("data/x") is None
        assert len(fixed_server.seen) == 6

        reads._failures.succeeded = 1000
        with pytest.raises(FallBackToBoto3):
            reads.read("data/x")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_fast_reads_ignore_endpoints_set_in_environment_variables(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All reads go to the endpoint in lakegc's settings."""
    seaweedfs.make_bucket("s3-tests")
    store = on(seaweedfs, "elsewhere")
    store.write("data/x", b"here")
    with replying(200, b"there", {"ETag": '"e"'}) as fixed_server:
        monkeypatch.setenv(name, fixed_server.url)
        assert read_to_verify(on(seaweedfs, "elsewhere"), "data/x") == b"here"
        assert fixed_server.seen == []


def test_fast_reads_renew_expiring_credentials_after_at_most_ten_minutes(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permanent credentials aren't renewed. Session tokens are sent with the requests."""
    seaweedfs.make_bucket("s3-tests")
    settings = seaweedfs.settings()
    client = s3_client(settings)
    credentials = client._request_signer._credentials  # type: ignore[attr-defined]

    def renewing() -> dict[str, str]:
        fields = {"access_key": credentials.access_key, "secret_key": credentials.secret_key, "token": "session"}
        return fields | {"expiry_time": "2100-01-01T00:00:00Z"}

    reads = FastReads(client, settings, "s3-tests")
    forever = reads._credentials()
    renewed = RefreshableCredentials.create_from_metadata(renewing(), renewing, "test")
    monkeypatch.setattr(client._request_signer, "_credentials", renewed)  # type: ignore[attr-defined]
    ending = reads._credentials()

    assert (forever["token"], forever["expires_at"]) == (None, None)
    assert ending["token"] == "session"
    assert ending["expires_at"] is not None
    assert timedelta(0) < ending["expires_at"] - datetime.now(UTC) <= timedelta(minutes=10)
