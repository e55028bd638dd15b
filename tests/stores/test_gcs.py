"""Special cases of Cloud Storage: batch responses, generations, two kinds of 404, copies in steps, and accounts."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import threading
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import google_crc32c
import pytest

from spark_resources.errors import Forbidden, NotFound, Refused, Unavailable, WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import Store, StoreSettings, keys, open_store
from spark_resources.stores.base import AlreadyExists, Changed, DeleteEffect, Deletion
from spark_resources.stores.gcs import client
from tests.support import retry_policies
from tests.support.fake_gcs import FakeGCS
from tests.support.store_providers import FixedServer, all_keys, replying

pytestmark = pytest.mark.filterwarnings("ignore:The load_credentials_from_file")  # the file is the user's own

JSON = {"Content-Type": "application/json"}


def at(settings: StoreSettings, uri: str = "gs://bucket/ns") -> Store:
    return open_store(Namespace.parse(uri), settings)


@pytest.fixture
def bucket(fake_gcs: FakeGCS) -> str:
    fake_gcs.make_bucket("gcs-tests")
    return "gcs-tests"


def item(name: str, **changes: object) -> dict[str, object]:
    """An object in the form in which a listing shows it."""
    known = {"kind": "storage#object", "name": name, "size": "3", "updated": "2026-03-31T10:00:00.123Z"}
    return {**known, "crc32c": "AAAAAA==", "generation": "7", **changes}


def listing(*items: object, **more: object) -> bytes:
    return json.dumps({"kind": "storage#objects", "items": items, **more}).encode()


def refusal(status: int, reason: str = "", message: str = "no") -> str:
    errors = [{"reason": reason, "message": message}] if reason else []
    return json.dumps({"error": {"code": status, "message": message, "errors": errors}})


Request = tuple[str, str, Mapping[str, str], bytes]  # method, path with query, headers, body


@contextmanager
def scripted(
    respond: Callable[[Request], tuple[int, dict[str, str], bytes]],
) -> Iterator[tuple[FixedServer, list[Request]]]:
    """A server on a free loopback port with scripted responses, and the requests that it received."""
    received: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            received.append((self.command, self.path, dict(self.headers.items()), body))
            status, headers, data = respond(received[-1])
            self.send_response_only(status)
            for name, value in {"Content-Length": str(len(data)), "Date": self.date_time_string(), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = respond  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield FixedServer(f"http://127.0.0.1:{server.server_port}", []), received
        finally:
            server.shutdown()
            thread.join()


# --- deletes --------------------------------------------------------------------------------------------------------


def parts(*responses: tuple[int | str, int, str]) -> tuple[bytes, dict[str, str]]:
    """A batch response. Each part has the number of its request, a status and a body."""
    body = "".join(
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <response-lakegc+{number}>\r\n\r\n"
        f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\n\r\n{document}\r\n"
        for number, status, document in responses
    )
    return f"{body}--b--\r\n".encode(), {"Content-Type": "multipart/mixed; boundary=b"}


def test_each_part_of_a_batch_has_its_own_result() -> None:
    """Parts come in any order. A key without a part has failed."""
    body, headers = parts(
        (3, 204, ""),
        (1, 403, refusal(403, "retentionPolicyNotMet", "held until 2030")),
        (0, 204, ""),
        (4, 503, refusal(503, "backendError")),
        ("9", 204, ""),
    )
    with replying(200, body, headers) as fixed_server:
        results = at(fixed_server.settings()).delete_many(["a", "held", "silent", "d", "busy"])

    assert [(result.key, result.deletion, result.code) for result in results] == [
        ("a", Deletion.DELETED, ""),
        ("held", Deletion.FAILED, "retentionPolicyNotMet"),
        ("silent", Deletion.FAILED, "NoAnswer"),
        ("d", Deletion.DELETED, ""),
        ("busy", Deletion.FAILED, "503"),
    ]
    assert results[1].message == "held until 2030"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        parts((0, 204, ""), (0, 404, refusal(404, "notFound"))),
        (parts((0, 204, ""))[0].replace(b"+0>", b"+zero>"), parts()[1]),
        (parts((0, 204, ""))[0].replace(b"HTTP/1.1 204", b"done"), parts()[1]),
        (parts((0, 204, ""))[0], {"Content-Type": "text/html"}),
        (b"", parts()[1]),
        (b"<html>Hello</html>", {"Content-Type": "text/html"}),
    ],
)
def test_no_key_counts_as_deleted_after_a_response_without_a_clear_id_and_status(
    body: bytes, headers: dict[str, str]
) -> None:
    """If there are two parts for the same key, the key doesn't count as deleted either."""
    with replying(200, body, headers) as fixed_server:
        [result] = at(fixed_server.settings()).delete_many(["a"])

    assert (result.deletion, result.code) == (Deletion.FAILED, "NoAnswer")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_keys_refused_by_a_busy_store_get_a_transient_code(status: int) -> None:
    """The store may refuse a single key or a whole batch. A sweep sends the keys again."""
    body, headers = parts((0, status, refusal(status, "whatever")))
    with replying(200, body, headers) as fixed_server:
        [single] = at(fixed_server.settings()).delete_many(["a"])
    with replying(status, refusal(status, "whatever").encode(), JSON) as fixed_server:
        [whole] = at(fixed_server.settings()).delete_many(["a"])

    assert single.deletion is whole.deletion is Deletion.FAILED
    assert {single.code, whole.code} == {str(status)}
    assert single.transient
    assert whole.transient


@pytest.mark.parametrize(("reason", "passes"), [("rateLimitExceeded", True), ("forbidden", False), ("", False)])
def test_only_a_refusal_because_of_the_request_rate_is_transient(reason: str, passes: bool) -> None:
    """Requests that were refused for another reason would be refused again."""
    body, headers = parts((0, 403, refusal(403, reason)))
    with replying(200, body, headers) as fixed_server:
        [result] = at(fixed_server.settings()).delete_many(["a"])

    assert result.deletion is Deletion.FAILED
    assert result.code == (reason or "403")
    assert result.transient is passes


def test_a_lost_connection_gives_every_key_of_the_batch_a_transient_code(fake_gcs: FakeGCS) -> None:
    """It is unknown whether the objects were deleted, so the sweep checks the keys and sends them again."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        settings = fake_gcs.settings(gcs_endpoint_url=f"http://127.0.0.1:{listener.getsockname()[1]}")
        refused = at(settings).delete_many(["a", "b"])
        listener.listen()
        silent = at(settings.model_copy(update={"read_timeout": 0.2})).delete_many(["a"])

    assert {result.deletion for result in (*refused, *silent)} == {Deletion.FAILED}
    assert all(result.transient for result in (*refused, *silent))


def test_a_404_means_already_gone_only_if_the_bucket_exists(fake_gcs: FakeGCS, bucket: str) -> None:
    """The test sends more than a hundred keys, in several batches."""
    store = at(fake_gcs.settings(), f"gs://{bucket}/gone")
    store.write("data/there", b"")

    there = store.delete_many(["data/there", *(f"data/{number}" for number in range(250))])
    nowhere = at(fake_gcs.settings(), "gs://nowhere-at-all/ns").delete_many(["data/x"])

    assert [result.deletion for result in there] == [Deletion.DELETED, *[Deletion.ALREADY_GONE] * 250]
    assert [result.deletion for result in nowhere] == [Deletion.FAILED]
    assert not nowhere[0].transient
    assert "nowhere-at-all" in nowhere[0].message


def test_keys_that_are_dot_segments_or_reserved_names_are_refused(fake_gcs: FakeGCS) -> None:
    """A URL treats `.` and `..` as folders, so deleting such a key could delete the bucket."""
    fake_gcs.make_bucket("dots")
    store = at(fake_gcs.settings(), "gs://dots")
    for key in (".", "..", ".well-known/acme-challenge/x"):
        for act in (
            lambda key=key: store.write(key, b""),
            lambda key=key: store.read(key),
            lambda key=key: store.stat(key),
            lambda key=key: store.copy("data/x", key),
        ):
            with pytest.raises(WrongUsage, match="doesn't allow such names"):
                act()
        assert store.delete_many([key])[0].deletion is Deletion.FAILED
    assert all_keys(store) == []

    below = at(fake_gcs.settings(), "gs://dots/ns")
    below.write("..", b"a name like any other")
    assert all_keys(store) == ["ns/.."]


@pytest.mark.parametrize("uri", ["gs://bucket/a%20b", "gs://bucket/a?b", "gs://../ns", "gs://./ns", "gs://bucket/a\nb"])
def test_an_ambiguous_namespace_is_refused(uri: str) -> None:
    """lakeFS reads such a namespace as a different place, or it has no bucket or an impossible path."""
    with pytest.raises(WrongUsage):
        at(StoreSettings(gcs_anonymous=True), uri)


def test_keys_with_line_breaks_are_refused() -> None:
    """Cloud Storage has no such names. A probe may find that another server accepts them."""
    with replying(200, b"") as fixed_server:
        store = at(fixed_server.settings())
        for key in ("data/new\nline", "data/carriage\rreturn"):
            with pytest.raises(WrongUsage, match="can't be a key"):
                store.write(key, b"")
        assert fixed_server.seen == []
    assert store.capabilities.unsupported_keys == {keys.NEWLINE, keys.CARRIAGE_RETURN}


# --- what a delete means --------------------------------------------------------------------------------------------


def test_deletes_in_a_versioned_bucket_only_hide_objects(fake_gcs: FakeGCS, bucket: str) -> None:
    """Without versions and soft delete, deletes are final."""
    fake_gcs.make_bucket("versioned", versioning={"enabled": True})

    assert at(fake_gcs.settings(), "gs://versioned/lake").delete_effect() is DeleteEffect.VERSIONED
    assert at(fake_gcs.settings(), f"gs://{bucket}/lake").delete_effect() is DeleteEffect.FINAL
    assert at(fake_gcs.settings(), "gs://nowhere-at-all/lake").delete_effect() is DeleteEffect.UNKNOWN


def test_noncurrent_versions_are_not_listed(fake_gcs: FakeGCS) -> None:
    """A listing contains only current objects."""
    fake_gcs.make_bucket("versions", versioning={"enabled": True})
    store = at(fake_gcs.settings(), "gs://versions/lake")
    for data in (b"one", b"two", b"three"):
        store.write("data/x", data)
    store.write("data/y", b"")
    store.delete_many(["data/y"])

    assert all_keys(store) == ["data/x"]
    assert store.read("data/x") == b"three"
    assert store.delete_many(["data/y"])[0].deletion is Deletion.ALREADY_GONE


@pytest.mark.parametrize(
    ("status", "document", "meaning"),
    [
        (200, {"kind": "storage#bucket", "softDeletePolicy": {"retentionDurationSeconds": "604800"}}, "SOFT_DELETED"),
        (200, {"kind": "storage#bucket", "softDeletePolicy": {"retentionDurationSeconds": "0"}}, "FINAL"),
        (200, {"kind": "storage#bucket", "versioning": {"enabled": False}}, "FINAL"),
        (200, {"kind": "storage#bucket"}, "FINAL"),
        (
            200,
            {
                "kind": "storage#bucket",
                "versioning": {"enabled": True},
                "softDeletePolicy": {"retentionDurationSeconds": "9"},
            },
            "VERSIONED",
        ),
        (200, {}, "UNKNOWN"),
        (200, ["what?"], "UNKNOWN"),
        (403, {"error": {"code": 403, "message": "no", "errors": [{"reason": "forbidden"}]}}, "UNKNOWN"),
        (503, {}, "UNKNOWN"),
    ],
)
def test_the_effect_of_deletes_is_read_from_the_settings_of_the_bucket(
    status: int, document: object, meaning: str
) -> None:
    """If lakegc can't read the settings, the effect is unknown."""
    with replying(status, json.dumps(document).encode(), JSON) as fixed_server:
        assert at(fixed_server.settings()).delete_effect() is DeleteEffect[meaning]


# --- generations and checksums --------------------------------------------------------------------------------------


def test_identical_bytes_written_again_get_a_new_tag(fake_gcs: FakeGCS, bucket: str) -> None:
    """The checksum stays the same, but a conditional write with the old tag is refused."""
    store = at(fake_gcs.settings(), f"gs://{bucket}/generations")
    first = store.write("lease", b"mine")
    before = store.stat("lease")
    second = store.write("lease", b"mine")
    again = store.stat("lease")

    assert first != second
    crc32c = base64.b64encode(google_crc32c.value(b"mine").to_bytes(4, "big")).decode()
    assert before.checksum == again.checksum == f"crc32c={crc32c}"
    assert before.modified < again.modified
    with pytest.raises(Changed):
        store.replace_if_unchanged("lease", b"theirs", first)
    assert store.read_with_tag("lease") == (b"mine", second)


@pytest.mark.parametrize("tag", ["0", "", "tag", "-1", "1.5", "99999999999999"])
def test_a_conditional_write_with_an_impossible_tag_writes_nothing(fake_gcs: FakeGCS, bucket: str, tag: str) -> None:
    """Generation 0 would mean that no object may exist."""
    store = at(fake_gcs.settings(), f"gs://{bucket}/no-tag")

    with pytest.raises(Changed, match="replaced or deleted"):
        store.replace_if_unchanged("lease", b"mine", tag)
    assert all_keys(store) == []


def test_a_large_conditional_write_keeps_its_condition(fake_gcs: FakeGCS, bucket: str) -> None:
    """The object is sent in one request, and can be read back completely."""
    store, data = at(fake_gcs.settings(), f"gs://{bucket}/large"), bytes(range(256)) * 36_000  # 9.2 MB
    tag = store.write_if_absent("large", data)
    with pytest.raises(AlreadyExists):
        store.write_if_absent("large", data[1:])
    with pytest.raises(Changed):
        store.replace_if_unchanged("large", data[1:], str(int(tag) - 1))

    assert store.read_with_tag("large") == (data, tag)


def test_gzip_encoded_content_is_read_without_decompression(fake_gcs: FakeGCS, bucket: str) -> None:
    """The size and checksum are those of the stored bytes."""
    packed = gzip.compress(b"content" * 100, mtime=0)
    name = "packed%2Fdata%2Fx"
    url = f"{fake_gcs.endpoint_url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}&contentEncoding=gzip"
    with urllib.request.urlopen(urllib.request.Request(url, packed, method="POST"), timeout=10):
        pass
    store = at(fake_gcs.settings(), f"gs://{bucket}/packed")

    assert store.read("data/x") == packed
    assert store.stat("data/x").size == len(packed)


def test_content_with_a_wrong_checksum_raises_an_error() -> None:
    """The bytes were changed in transit."""
    headers = {"x-goog-hash": "crc32c=AAAAAA==", "x-goog-generation": "7", "Content-Type": "application/octet-stream"}
    with (
        replying(200, b"other bytes", headers) as fixed_server,
        pytest.raises(Unavailable, match="received content doesn't match"),
    ):
        at(fixed_server.settings()).read("data/x")


def test_content_without_a_generation_raises_an_error() -> None:
    """lakegc never makes up a tag."""
    with replying(200, b"bytes") as fixed_server, pytest.raises(Unavailable, match="generation"):
        at(fixed_server.settings()).read_with_tag("data/x")


# --- copies ---------------------------------------------------------------------------------------------------------


def test_a_copy_keeps_type_metadata_and_checksum(fake_gcs: FakeGCS, bucket: str) -> None:
    """The key of the source has unusual characters."""
    store = at(fake_gcs.settings(), f"gs://{bucket}/copies")
    store.write("data/é +x", b"content")
    path = f"/storage/v1/b/{bucket}/o/copies%2Fdata%2F%C3%A9%20%2Bx"
    fake_gcs.call("PATCH", path, {"contentType": "text/x-own", "metadata": {"owner": "me"}})

    store.copy("data/é +x", "data/copy")

    copy: Any = fake_gcs.call("GET", f"/storage/v1/b/{bucket}/o/copies%2Fdata%2Fcopy")
    assert (copy["contentType"], copy["metadata"]) == ("text/x-own", {"owner": "me"})
    assert store.stat("data/copy").checksum == store.stat("data/é +x").checksum
    assert store.read("data/copy") == b"content"


def copying(*steps: Mapping[str, object]) -> Callable[[Request], tuple[int, dict[str, str], bytes]]:
    """A store with one object, ns/data/x, which is copied in these steps."""
    fine = {"done": True, "resource": item("ns/copy", size="10")}
    remaining = chain(steps, repeat(fine))

    def respond(request: Request) -> tuple[int, dict[str, str], bytes]:
        document = item("ns/data/x", size="10") if request[0] == "GET" else next(remaining)
        return 200, JSON, json.dumps(document).encode()

    return respond


def test_a_copy_in_steps_continues_until_it_is_done() -> None:
    """Each step is requested with the previous step's token, and all steps with the same generation."""
    steps = (
        {"done": False, "rewriteToken": "one", "totalBytesRewritten": "4"},
        {"done": False, "rewriteToken": "two", "totalBytesRewritten": "8"},
        {"done": True, "resource": item("ns/copy", size="10", generation="9")},
    )
    with scripted(copying(*steps)) as (fixed_server, received):
        at(fixed_server.settings()).copy("data/x", "copy")

    queries = [parse_qs(urlsplit(path).query) for method, path, _, _ in received if method == "POST"]
    assert [query.get("rewriteToken") for query in queries] == [None, ["one"], ["two"]]
    assert {query["sourceGeneration"][0] for query in queries} == {"7"}
    assert {body for method, _, _, body in received if method == "POST"} == {b""}  # a body would replace all metadata


@pytest.mark.parametrize(
    "last",
    [
        {"done": False, "rewriteToken": "one", "totalBytesRewritten": "4"},
        {"done": False, "totalBytesRewritten": "8"},
        {},
        {"done": True, "resource": item("ns/copy", size="9")},
        {"done": True, "resource": item("ns/copy", size="10", crc32c="BBBBBB==")},
        {"done": True, "resource": item("ns/other", size="10")},
        {"done": True, "resource": {}},
        {"done": True},
    ],
)
def test_a_copy_that_makes_no_progress_or_differs_raises_an_error(last: dict[str, object]) -> None:
    """Such a copy would never end, or would have other content."""
    first = {"done": False, "rewriteToken": "one", "totalBytesRewritten": "4"}
    with scripted(copying(first, last)) as (fixed_server, _), pytest.raises(Unavailable):
        at(fixed_server.settings()).copy("data/x", "copy")


# --- credentials ----------------------------------------------------------------------------------------------------


def service_account(folder: Path, token_uri: str) -> Path:
    """A key file of a service account that doesn't exist."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    document = {
        "type": "service_account",
        "client_email": "lakegc@tests.example",
        "private_key_id": "1",
        "private_key": key.decode(),
        "token_uri": token_uri,
        "project_id": "tests",
    }
    (folder / "account.json").write_text(json.dumps(document))
    return folder / "account.json"


def test_the_account_in_the_credentials_file_is_used(tmp_path: Path) -> None:
    """A token is requested from the account's token server and sent with every request."""

    def respond(request: Request) -> tuple[int, dict[str, str], bytes]:
        if request[1] == "/token":
            return 200, JSON, b'{"access_token": "of-the-file", "expires_in": 3600, "token_type": "Bearer"}'
        return 200, JSON, listing()

    with scripted(respond) as (fixed_server, received):
        file = service_account(tmp_path, f"{fixed_server.url}/token")
        store = at(fixed_server.settings(gcs_anonymous=False, gcs_credentials_file=str(file)))
        assert received == []
        assert all_keys(store) == []

    assert [path.partition("?")[0] for _, path, _, _ in received] == ["/token", "/storage/v1/b/bucket/o"]
    assert received[1][2]["authorization"] == "Bearer of-the-file"


def test_every_method_raises_forbidden_for_a_refused_account(tmp_path: Path) -> None:
    """The account gets no token, or the store refuses the token. Neither makes an object seem absent."""
    with replying(400, b'{"error": "invalid_grant", "error_description": "Invalid JWT"}', JSON) as fixed_server:
        file = service_account(tmp_path, f"{fixed_server.url}/token")
        _check_forbidden(at(fixed_server.settings(gcs_anonymous=False, gcs_credentials_file=str(file))))
    for status, reason in ((401, "required"), (403, "forbidden")):
        with replying(status, refusal(status, reason).encode(), JSON) as fixed_server:
            _check_forbidden(at(fixed_server.settings()))


def test_no_delete_is_sent_after_a_late_token_or_again_after_a_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Getting a token may take longer than the permit to delete lasts."""

    def respond(request: Request) -> tuple[int, dict[str, str], bytes]:
        if request[1] == "/token":
            return 200, JSON, b'{"access_token": "of-the-file", "expires_in": 3600, "token_type": "Bearer"}'
        return 401, JSON, refusal(401, "authError").encode()

    with scripted(respond) as (fixed_server, received):
        file = service_account(tmp_path, f"{fixed_server.url}/token")
        store = at(fixed_server.settings(gcs_anonymous=False, gcs_credentials_file=str(file)))
        with monkeypatch.context() as slow:
            slow.setattr(client, "SEND_TIMEOUT_S", -1.0)
            late = store.delete_many(["a", "b"])
        assert [path for _, path, _, _ in received] == ["/token"]
        refused = store.delete_many(["a"])

    assert [path for _, path, _, _ in received] == ["/token", "/batch/storage/v1"]
    assert received[1][2]["authorization"] == "Bearer of-the-file"
    assert [(result.deletion, result.code) for result in late] == [(Deletion.FAILED, "NotSent")] * 2
    assert all(result.transient for result in late)
    assert [(result.deletion, result.code) for result in refused] == [(Deletion.FAILED, "authError")]


def test_every_method_names_missing_credentials_as_the_cause(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names the setting. Opening the store doesn't request credentials yet."""
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with replying(200, listing(), JSON) as fixed_server:
        _check_forbidden(at(fixed_server.settings(gcs_anonymous=False)), "LAKEGC_GCS_CREDENTIALS_FILE")
        assert fixed_server.seen == []


def _check_forbidden(store: Store, match: str | None = None) -> None:
    for act in (
        lambda: list(store.pages("")),
        lambda: store.read("data/x"),
        lambda: store.stat("data/x"),
        lambda: store.write("data/x", b""),
        lambda: store.write_if_absent("data/x", b""),
        lambda: store.replace_if_unchanged("data/x", b"", "7"),
        lambda: store.copy("data/x", "data/y"),
        store.now,
    ):
        with pytest.raises(Forbidden, match=match):
            act()
    [result] = store.delete_many(["data/x"])
    assert result.deletion is Deletion.FAILED
    assert not result.transient


@pytest.mark.parametrize("content", [None, "", "hush-hush", '{"type": "service_account", "private_key": "hush-hush"}'])
def test_a_missing_or_invalid_credentials_file_is_refused_without_showing_its_content(
    tmp_path: Path, content: str | None
) -> None:
    """The message shows only the name of the file."""
    file = tmp_path / "account.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(WrongUsage, match=r"account\.json") as caught:
        at(StoreSettings(gcs_credentials_file=str(file)))
    assert "hush" not in str(caught.value)


# --- servers that aren't there, or aren't Cloud Storage ---------------------------------------------------------------


def _check_unavailable(store: Store, match: str | None = None) -> None:
    for act in (
        lambda: list(store.pages("")),
        lambda: store.read("data/x"),
        lambda: store.stat("data/x"),
        lambda: store.write("data/x", b""),
        lambda: store.copy("data/x", "data/y"),
        store.now,
    ):
        with pytest.raises(Unavailable, match=match) as caught:
            act()
        assert not isinstance(caught.value, NotFound | Forbidden)
    assert store.delete_many(["data/x"])[0].deletion is Deletion.FAILED


def test_the_error_about_an_endpoint_that_does_not_respond_names_the_setting(fake_gcs: FakeGCS) -> None:
    """There is no server, or it never responds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        settings = fake_gcs.settings(
            gcs_endpoint_url=f"http://127.0.0.1:{listener.getsockname()[1]}",
            retry=retry_policies.no_wait_policy(1),
            read_timeout=0.2,
        )
        _check_unavailable(at(settings), "LAKEGC_GCS_ENDPOINT_URL")
        listener.listen()
        _check_unavailable(at(settings), "LAKEGC_GCS_ENDPOINT_URL")


@pytest.mark.parametrize(("status", "body"), [(404, b"<html>404</html>"), (404, b""), (404, b"{}"), (302, b"")])
def test_a_response_that_is_not_from_cloud_storage_raises_an_error(status: int, body: bytes) -> None:
    """The status doesn't matter: a web server's 404 doesn't mean that an object is absent."""
    with replying(status, body, {"Content-Type": "text/html", "Location": "/login"}) as fixed_server:
        _check_unavailable(at(fixed_server.settings()))


@pytest.mark.parametrize("location", ["https://evil.example.com/u?id=1", "https://x.googleapis.com.evil.org/u", ""])
def test_parts_of_an_upload_are_sent_to_no_other_server(location: str) -> None:
    """The parts would carry the account's token."""
    with replying(200, b"{}", {**JSON, "Location": location}) as fixed_server:
        streams = at(fixed_server.settings()).streams
        with pytest.raises(Unavailable, match="isn't Cloud Storage"):
            streams._start_upload("data/x", "ns/data/x", {})
        assert len(fixed_server.seen) == 1


def test_the_id_of_an_upload_is_not_shown_if_its_server_is_unreachable() -> None:
    """Anyone who knows the id can write the object. The library's error contains it, so that error isn't shown as the
    cause either."""
    settings = StoreSettings(
        gcs_endpoint_url="http://127.0.0.1:9", gcs_anonymous=True, retry=retry_policies.no_wait_policy(1)
    )
    location = "http://127.0.0.1:9/upload/storage/v1/b/bucket/o?uploadType=resumable&upload_id=hush"
    with pytest.raises(Unavailable, match="upload_id=…") as caught:
        at(settings).streams._send("data/x", location, b"1", "bytes 0-0/1", (200,))

    assert "hush" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("status", [429, 503])
def test_a_request_to_a_busy_server_is_attempted_the_configured_number_of_times(status: int) -> None:
    """After the last attempt, an error is raised. Deletes aren't retried."""
    with replying(status, refusal(status, "rateLimitExceeded").encode(), JSON) as fixed_server:
        store = at(fixed_server.settings(retry=retry_policies.no_wait_policy(2)))
        with pytest.raises(Unavailable, match=str(status)):
            store.read("data/x")
        assert len(fixed_server.seen) == 2
        [result] = store.delete_many(["data/x"])
        assert (result.deletion, result.transient) == (Deletion.FAILED, True)
        assert len(fixed_server.seen) == 3  # only the sweep repeats deletes, after its checks


# --- responses to listings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"<html>Hello</html>",
        listing(item("ns/data/x"))[:-30],
        listing(item("ns/data/x")).replace(b"objects", b"folders"),
        *(
            listing({name: value for name, value in item("ns/data/x").items() if name != left})
            for left in ("name", "size", "updated", "generation")
        ),
        listing(item("ns/data/x", updated="2026-03-31T10:00:00")),
        listing(item("ns/data/x", size="three")),
        listing(item("")),
        listing(item("ns/data/x"), nextPageToken=""),
        listing(item("ns/data/x"), nextPageToken=7),
        listing(item("ns/data/x"), prefixes=[None]),
    ],
)
def test_an_incomplete_or_malformed_listing_raises_an_error(body: bytes) -> None:
    """The listing ends early, lacks a field that the store always sends, or isn't a listing."""
    with replying(200, body, JSON) as fixed_server:
        for look in (lambda: list(at(fixed_server.settings()).pages("data/")), at(fixed_server.settings()).now):
            with pytest.raises(Unavailable):
                look()


def test_a_repeated_page_ends_a_listing_with_an_error() -> None:
    """Otherwise, the listing would never end."""
    with replying(200, listing(item("ns/data/x"), nextPageToken="again"), JSON) as fixed_server:
        with pytest.raises(Unavailable, match="keeps returning the same page"):
            list(at(fixed_server.settings()).pages("data/"))
        assert len(fixed_server.seen) == 2


@pytest.mark.parametrize("key", ["ns-other/data/x", "ns/other/x", "data/x", "NS/data/x", "ns//data/x"])
def test_a_listed_key_or_prefix_outside_the_requested_prefix_is_refused(key: str) -> None:
    """The store folds keys, so a delete could hit another object."""
    for body in (listing(item(key)), listing(prefixes=[key])):
        with replying(200, body, JSON) as fixed_server, pytest.raises(Refused, match="normalizes keys") as caught:
            list(at(fixed_server.settings()).pages("data/", delimiter="/"))
        assert caught.value.invariant == 5


def test_a_lookup_that_returns_another_object_is_refused() -> None:
    """The store folds keys."""
    with (
        replying(200, json.dumps(item("ns/data/y")).encode(), JSON) as fixed_server,
        pytest.raises(Refused, match="normalizes keys"),
    ):
        at(fixed_server.settings()).stat("data/x")


def test_names_with_a_lone_surrogate_are_counted_as_unreadable() -> None:
    """All other names are listed."""
    body = listing(item("ns/data/\ud800"), item("ns/data/é"), prefixes=["ns/data/\ud800/", "ns/data/y/"])
    with replying(200, body, JSON) as fixed_server:
        [page] = at(fixed_server.settings()).pages("data/", delimiter="/")

    assert [entry.key for entry in page.objects] == ["data/é"]
    assert (list(page.prefixes), page.unreadable_names) == (["data/y/"], 2)


def test_an_object_listed_without_a_checksum_has_none() -> None:
    """Such an object is encrypted with a client's own key."""
    without = {name: value for name, value in item("ns/data/x").items() if name != "crc32c"}
    with replying(200, listing(without), JSON) as fixed_server:
        [page] = at(fixed_server.settings()).pages("data/")

    assert [entry.checksum for entry in page.objects] == [None]


def test_a_response_without_a_valid_date_gives_no_store_time() -> None:
    """The time of this machine isn't used instead."""
    with (
        replying(200, listing(), {**JSON, "Date": "whenever"}) as fixed_server,
        pytest.raises(Unavailable, match="Date"),
    ):
        at(fixed_server.settings()).now()
