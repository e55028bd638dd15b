"""Responses of stores and of the lakeFS server, as far as lakegc parses them itself: listings in XML and JSON, error
bodies, and the server's JSON. Each is refused, or gives a value of the declared types.

A listing of S3 is parsed in two ways, with one regular expression or with an XML parser: both must give the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any
from xml.etree import ElementTree

from spark_resources.errors import DamagedData, Unavailable
from spark_resources.lakefs import responses
from spark_resources.lakefs.connection import ApiCall, Connection
from spark_resources.lakefs.gc_lists import parse_commits_csv
from spark_resources.lakefs.responses import Body
from spark_resources.lakefs.settings import LakeFSSettings
from spark_resources.stores.azure import listing as azure
from spark_resources.stores.gcs import client as gcs_client
from spark_resources.stores.gcs import listing as gcs
from spark_resources.stores.s3 import listing as s3
from tests.fuzz.mutations import mutate_json, splice
from tests.fuzz.target import Kind, Target, require, value_or_refusal

# --- listings ---------------------------------------------------------------------------------------------------------

S3_OBJECT = (
    b"<Contents><Key>ns/data/a%2Bb</Key><LastModified>2026-11-21T12:00:00.000Z</LastModified>"
    b"<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>7</Size><StorageClass>STANDARD</StorageClass>"
    b"</Contents>"
)
S3_LISTING = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
    b"<NextContinuationToken>t</NextContinuationToken>%b<CommonPrefixes><Prefix>ns/x%%2F/</Prefix></CommonPrefixes>"
    b"</ListBucketResult>"
)
S3_PARTS = (
    S3_OBJECT, b"<Key>a</Key>", b"<Size>1</Size>", b"<!-- ", b" -->", b"<![CDATA[", b"]]>", b"&quot;", b"&#10;", b"%zz",
    b"<Owner><ID>a</ID></Owner>", b"<Contents>", b"</Contents>", b"<Contents/>", b"2026-11-21T12:00:00.123456789Z",
    b"<IsTruncated>false</IsTruncated>", b"</ListBucketResult>", b"<!DOCTYPE x>", b"\xc3\xa9", b"%C3%A9", b"%FF",
)  # fmt: skip
AZURE_BLOB = (
    b"<Blob><Name>ns/data/a b</Name><Properties><Last-Modified>Sat, 21 Nov 2026 12:00:00 GMT</Last-Modified>"
    b"<Etag>0x8D</Etag><Content-Length>7</Content-Length><Content-MD5>1B2M2Y8AsgTpgAmY7PhCfg==</Content-MD5>"
    b"</Properties><Metadata><a>b</a></Metadata></Blob>"
)
AZURE_LISTING = (
    b'<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="https://a/" ContainerName="c"><Blobs>'
    b'%b<BlobPrefix><Name Encoded="true">ns%%2Fx%%2F</Name></BlobPrefix></Blobs><NextMarker>m</NextMarker>'
    b"</EnumerationResults>"
)
AZURE_PARTS = (
    AZURE_BLOB, b"<ResourceType>directory</ResourceType>", b"<hdi_isfolder>true</hdi_isfolder>", b"<!-- ", b" -->",
    b"<![CDATA[", b"]]>", b"&#10;", b' Encoded="true"', b"%FF", b"<NextMarker/>", b"<Metadata/>", b"<!DOCTYPE x>",
)  # fmt: skip
GCS_OBJECT = {"name": "ns/data/a", "size": "7", "updated": "2026-11-21T12:00:00.123Z", "crc32c": "AAAAAA==",
              "generation": "1763726400000000"}  # fmt: skip
GCS_LISTING = {
    "kind": "storage#objects",
    "items": [GCS_OBJECT, GCS_OBJECT],
    "prefixes": ["ns/x/"],
    "nextPageToken": "t",
}


def _s3(data: bytes) -> s3.Listing:
    response = {"status_code": 200, "body": data}
    parsed: dict[str, Any] = {}
    s3._parse_response(response, parsed)
    return s3.listing_of(parsed)


def _check_s3(data: bytes) -> None:
    listing = value_or_refusal(partial(_s3, data), "listing", (Unavailable,))
    if listing is None:
        return
    listing.objects.validate(full=True)
    require(listing.objects.column(0).null_count == 0, "an object without a key")
    require(all(size >= 0 for size in listing.objects.column(1).to_pylist()), "an object of a negative size")
    slowly = _parsed_slowly(data)
    require(
        (listing.objects, listing.unreadable, listing.prefixes, listing.next_token) == slowly,
        f"the regular expression and the XML parser disagree: {listing} and {slowly}",
    )


def _parsed_slowly(data: bytes) -> tuple[Any, int, Sequence[Any], str | None]:
    root = ElementTree.fromstring(data)
    xmlns = root.tag.removesuffix("ListBucketResult")
    is_encoded = root.findtext(f"{xmlns}EncodingType") == "url"
    columns = s3._parsed_columns(root.findall(f"{xmlns}Contents"), xmlns)
    objects, unreadable = s3._build_objects(*columns, is_encoded=is_encoded)
    prefixes = [
        s3._decode_key(element.findtext(f"{xmlns}Prefix"), is_encoded=is_encoded)
        for element in root.iterfind(f"{xmlns}CommonPrefixes")
    ]
    return objects, unreadable, prefixes, s3._next_token(root, xmlns)


def _azure(data: bytes) -> azure.Listing:
    """Like `list_blobs`, which sends the request."""
    try:
        return azure.parse_listing(data)
    except (ElementTree.ParseError, LookupError, ValueError, TypeError) as error:
        raise Unavailable(f"invalid listing response ({error})") from error


def _check_azure(data: bytes) -> None:
    listing = value_or_refusal(partial(_azure, data), "listing", (Unavailable,))
    for blob in listing.objects if listing else ():
        require(blob.name is None or blob.name, "a blob without a name")
        require(type(blob.size) is int and blob.size >= 0, f"a blob of {blob.size} bytes")
        require(blob.modified.utcoffset() is not None, f"a time {blob.modified}")


def _check_gcs(data: bytes) -> None:
    listing = value_or_refusal(partial(gcs.listing_of, data), "listing", (Unavailable,))
    for listed in listing.objects if listing else ():
        require(listed.name and type(listed.size) is int and listed.size >= 0, f"an object {listed}")
        require(isinstance(listed.crc32c, str) and isinstance(listed.generation, str), f"an object {listed}")
    require(listing is None or all(isinstance(prefix, str) for prefix in listing.prefixes), "a prefix that isn't text")


def _check_gcs_error(data: bytes) -> None:
    code, message = gcs_client.parse_error_body(404, data)
    require(isinstance(code, str) and isinstance(message, str), f"{code!r}: {message!r}")
    gcs_client._is_json_api_error(gcs_client.ErrorResponse(404, data, {}))


# --- the lakeFS server ------------------------------------------------------------------------------------------------

CALL = ApiCall("RepositoriesApi", "get_repository", "the thing", "fs:ReadRepository")
CONNECTION = Connection(LakeFSSettings(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b"))
REPOSITORY = {"id": "lake", "storage_namespace": "s3://lake", "default_branch": "main", "read_only": False,
              "storage_id": "", "creation_date": 1_763_726_400}  # fmt: skip
CONFIG = {"version_config": {"version": "1.80.0"}, "storage_config": {"blockstore_type": "s3", "blockstore_id": ""},
          "storage_config_list": [{"blockstore_type": "gs", "blockstore_id": "b"}]}  # fmt: skip
RULES = {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
COMMIT = {"id": "a" * 64, "parents": ["b" * 64, "c" * 64], "creation_date": 1_763_726_400, "meta_range_id": "d" * 64,
          "version": 1, "generation": 3, "committer": "ann", "message": "m", "metadata": {"a": "b"}}  # fmt: skip
DUMP = {f"{name}_meta_range_id": "a" * 64 for name in ("branches", "commits", "tags")}
SERVED = {"path": "a/b", "physical_address": "s3://lake/data/x", "size_bytes": 3, "checksum": "c" * 32}
CHANGE = {"type": "added", "path": "a/b"}


def _body(data: bytes) -> Body:
    response = CONNECTION._validated(CALL, 200, {"Date": data[:40].decode("latin-1")}, data)
    return Body.of(response.json, CALL.what)


def _check_body(parse: Callable[[Body], Any], data: bytes) -> None:
    value = value_or_refusal(lambda: parse(_body(data)), "", (DamagedData, Unavailable))
    if isinstance(value, responses.Repository):
        require(value.lakefs_id == value.id or "/" in value.id, f"an id {value.id!r}")
    hash(repr(value))


def _check_error(data: bytes) -> None:
    for status in (400, 401, 403, 404, 409, 410, 500):
        response = value_or_refusal(
            partial(CONNECTION._validated, CALL, status, {"Content-Type": "application/json"}, data), "", (Unavailable,)
        )
        if response is not None:
            require(len(str(CONNECTION.error_for(CALL, response))) < 4_000, "a long message")


def _server_kind(name: str, parse: Callable[[Body], Any], *documents: Any) -> Kind:
    seeds = [json.dumps(document).encode() for document in documents]
    return Kind(name, lambda: seeds, partial(_check_body, parse), mutate_json)


# --- the server's list of commits -------------------------------------------------------------------------------------

COMMITS = (
    "commit_id,expired,metarange_id\n" + f"{'a' * 64},false,{'b' * 64}\n{'c' * 64},true,\n{'d' * 64},false,\n"
).encode()


def _check_commits(data: bytes) -> None:
    rows = value_or_refusal(lambda: parse_commits_csv(data, where="here"), "here") or []
    for commit_id, metarange_id in rows:
        require(f"{commit_id},false,{metarange_id}".encode() in data.replace(b'"', b""), f"a row {commit_id}")
    require(len(rows) == len(dict(rows)), "a commit twice")


def _mutate_lines(data: bytes, random: Random) -> bytes:
    return splice((b"\n", b",", b'"', b"true", b"false", b"\r\n", b"e" * 64, b"\x00", b"\xff"))(data, random)


KINDS = [
    Kind("listing of S3", lambda: [S3_LISTING % b"", S3_LISTING % S3_OBJECT, S3_LISTING % (3 * S3_OBJECT)], _check_s3,
         splice(S3_PARTS)),
    Kind("listing of Azure", lambda: [AZURE_LISTING % b"", AZURE_LISTING % (2 * AZURE_BLOB)], _check_azure,
         splice(AZURE_PARTS)),
    Kind("listing of Google Cloud", lambda: [json.dumps(GCS_LISTING).encode()], _check_gcs, mutate_json),
    Kind("error of Google Cloud", lambda: [b'{"error": {"code": 404, "message": "m", "errors": [{"reason": "r"}]}}'],
         _check_gcs_error, mutate_json),
    _server_kind("configuration", responses.server, CONFIG, {"storage_config": {"blockstore_type": "s3"}}),
    _server_kind("repository", responses.repository, REPOSITORY),
    _server_kind("rules", responses.rules, RULES, {"default_retention_days": 1, "branches": None}),
    _server_kind("commit", responses.commit, COMMIT),
    _server_kind("dump", responses.refs_dump, DUMP),
    _server_kind("object", responses.served_object, SERVED),
    _server_kind("change", responses.change, CHANGE),
    Kind("error of lakeFS", lambda: [b'{"message": "not found"}', b"<html>"], _check_error, mutate_json),
    Kind("retained commits", lambda: [COMMITS], _check_commits, _mutate_lines),
]  # fmt: skip
TARGETS = [Target("responses", KINDS)]
