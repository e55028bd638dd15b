"""Special cases of Azure: forms of a namespace, batch responses, directories, tokens, and pending copies."""

from __future__ import annotations

import hashlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import urllib3
from azure.storage.blob import (
    BlobBlock,
    ContainerClient,
    ContainerSasPermissions,
    RetentionPolicy,
    generate_container_sas,
)

from spark_resources.deleting.quarantine import same_content
from spark_resources.errors import Forbidden, NotFound, Refused, Unavailable, WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import Store, StoreSettings, open_store
from spark_resources.stores.azure.client import Container, container_of
from spark_resources.stores.azure.copy import copy_blob
from spark_resources.stores.azure.delete import SubResponse, delete_keys, sub_responses
from spark_resources.stores.azure.listing import parse_listing
from spark_resources.stores.azure.store import LAKEGC_PREFIX, AzureStore
from spark_resources.stores.base import NOT_SENT, ONE_BY_ONE_TIMEOUT_S, DeleteEffect, Deletion
from tests.support.azurite import Azurite
from tests.support.retry_policies import no_wait_policy
from tests.support.store_providers import FixedServer, all_keys, replying, write_all

XML = {"Content-Type": "application/xml"}
URI = "https://account.blob.core.windows.net/container/ns"
CONTAINER = "azure-tests"


@pytest.fixture
def client(azurite: Azurite) -> ContainerClient:
    """A client of Azure's own library for the container that these tests share."""
    azurite.make_container(CONTAINER)
    return azurite.client().get_container_client(CONTAINER)


@pytest.fixture
def name() -> str:
    """A unique path in the shared container."""
    return uuid.uuid4().hex


def on(azurite: Azurite, path: str, **settings: object) -> Store:
    azurite.make_container(CONTAINER)
    uri = f"https://{azurite.account}.blob.core.windows.net/{CONTAINER}/{path}"
    return open_store(Namespace.parse(uri), azurite.settings(**settings))


def at(fixed_server: FixedServer, **settings: object) -> Store:
    return open_store(Namespace.parse(URI), fixed_server.settings(**settings))


# --- namespaces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "endpoint", "wanted"),
    [
        (URI, None, Container("account", "container", "ns/", "https://account.blob.core.windows.net")),
        (
            "http://account.blob.core.windows.net/container/",
            None,
            Container("account", "container", "", "https://account.blob.core.windows.net"),
        ),
        (
            "https://account.blob.core.usgovcloudapi.net/c-1/a//b",
            None,
            Container("account", "c-1", "a//b/", "https://account.blob.core.usgovcloudapi.net"),
        ),
        (
            "https://account.blob.core.chinacloudapi.cn/$web/a b/é",
            None,
            Container("account", "$web", "a b/é/", "https://account.blob.core.chinacloudapi.cn"),
        ),
        (
            "https://account.azurite.test/container/ns",
            "http://127.0.0.1:1/account/",
            Container("account", "container", "ns/", "http://127.0.0.1:1/account"),
        ),
        (
            URI,
            "https://account.privatelink.blob.core.windows.net",
            Container("account", "container", "ns/", "https://account.privatelink.blob.core.windows.net"),
        ),
    ],
)
def test_a_namespace_is_parsed_as_lakefs_parses_it(uri: str, endpoint: str | None, wanted: Container) -> None:
    """The parts are account, container and path. Requests use TLS unless an endpoint is set."""
    assert container_of(Namespace.parse(uri), endpoint) == wanted


@pytest.mark.parametrize(
    "uri",
    [
        "https://account.blob.core.windows.net/",
        "https://account.blob.core.windows.net//container/ns",
        "https://account/container/ns",
        "https://me@account.blob.core.windows.net/container/ns",
        "https://account.blob.core.windows.net:443/container/ns",
        "https://account.blob.core.windows.net/Container/ns",
        "https://account.blob.core.windows.net/container/my%20ns",
        "https://account.blob.core.windows.net/container/ns?sv=2020",
        "https://account.blob.core.windows.net/container/ns#x",
        "https://account.dfs.core.windows.net/container/ns",
        "https://files.example.com/container/ns",
        "https://account.blob.core.windows.net/container/ns/../other",
        "https://account.blob.core.windows.net/container/ns./x",
    ],
)
def test_an_ambiguous_namespace_is_refused(uri: str) -> None:
    """lakeFS refuses such a namespace, or may read it as a different place than it seems to name. No request is
    sent."""
    with pytest.raises(WrongUsage, match=r"can't be a|in the domain|is not a storage namespace"):
        open_store(Namespace.parse(uri), StoreSettings(azure_account_key="YW55"))


def test_an_endpoint_for_another_account_is_refused() -> None:
    """In another account, all objects would seem to be lost."""
    for endpoint in ("https://other.blob.core.windows.net", "http://127.0.0.1:1/other", "http://127.0.0.1:1"):
        with pytest.raises(WrongUsage, match="not for the account account"):
            open_store(Namespace.parse(URI), StoreSettings(azure_endpoint_url=endpoint, azure_account_key="YW55"))


# --- credentials ----------------------------------------------------------------------------------------------------


def test_a_key_that_is_not_base64_is_refused() -> None:
    """The error doesn't show the key, and no request is sent."""
    with pytest.raises(WrongUsage, match="LAKEGC_AZURE_ACCOUNT_KEY") as caught:
        open_store(Namespace.parse(URI), StoreSettings(azure_account_key="hush!"))
    assert "hush" not in str(caught.value)


def test_a_key_is_used_only_for_its_own_account() -> None:
    """A setting names the key's account. For any other account, the machine's own identity is used."""
    settings = StoreSettings(azure_account="Account", azure_account_key="YW55")
    own, other = (AzureStore(Namespace.parse(uri), settings) for uri in (URI, URI.replace("account", "other", 1)))

    assert hasattr(own.client.credential, "account_key")
    assert hasattr(other.client.credential, "get_token")


def test_the_default_azure_credential_is_refused_without_tls() -> None:
    """The credential's token would be sent unencrypted."""
    with pytest.raises(WrongUsage, match="HTTPS"):
        open_store(Namespace.parse(URI), StoreSettings(azure_endpoint_url="http://127.0.0.1:1/account"))


def sas_token(azurite: Azurite, permission: str = "rwdlc", *, expired: bool = False) -> str:
    """A token for the shared container."""
    return str(
        generate_container_sas(
            azurite.account,
            CONTAINER,
            account_key=azurite.account_key,
            permission=ContainerSasPermissions.from_string(permission),
            start=datetime.now(UTC) - timedelta(hours=2),
            expiry=datetime.now(UTC) + timedelta(hours=-1 if expired else 1),
        )
    )


@pytest.mark.parametrize("mark", ["", "?"])
def test_a_sas_token_for_the_container_suffices_for_marks_and_sweeps(azurite: Azurite, name: str, mark: str) -> None:
    """The token may begin with a question mark."""
    store = on(azurite, name, azure_account_key=None, azure_sas_token=mark + sas_token(azurite))
    write_all(store, ["data/a", "data/é +&", "data/c"])
    store.copy("data/é +&", "data/copy")

    assert store.read("data/copy") == "data/é +&".encode()
    assert all_keys(store) == ["data/a", "data/c", "data/copy", "data/é +&"]
    assert store.stat("data/a").size == 6
    assert {result.deletion for result in store.delete_many(all_keys(store))} == {Deletion.DELETED}
    assert store.delete_many(["data/a"])[0].deletion is Deletion.ALREADY_GONE


@pytest.mark.parametrize(("permission", "expired"), [("rwdlc", True), ("w", False)])
def test_the_error_names_a_sas_token_that_is_expired_or_lacks_permissions_as_the_cause(
    azurite: Azurite, name: str, permission: str, expired: bool
) -> None:
    """Such a token never makes an object seem absent."""
    token = sas_token(azurite, permission, expired=expired)
    store = on(azurite, name, azure_account_key=None, azure_sas_token=token)

    for act in (lambda: list(store.pages("")), lambda: store.read("data/x"), lambda: store.stat("data/x"), store.now):
        with pytest.raises(Forbidden, match="LAKEGC_AZURE_SAS_TOKEN"):
            act()
    results = store.delete_many(["data/x", "data/y"])
    assert {result.deletion for result in results} == {Deletion.FAILED}
    assert all(result.code and not result.transient for result in results)


def unused_url() -> str:
    """The address of a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{listener.getsockname()[1]}/account"


def test_the_error_about_an_unreachable_endpoint_names_the_setting_and_does_not_show_the_token() -> None:
    """The token is in the URL of the failed request."""
    settings = StoreSettings(
        azure_endpoint_url=unused_url(), azure_sas_token="sv=2020-02-10&sig=hush%2Fhush&sp=rl", retry=no_wait_policy(2)
    )
    store = open_store(Namespace.parse(URI), settings)

    _check_unavailable(store, r"LAKEGC_AZURE_ENDPOINT_URL.* Tried 2 times")
    for text in (repr(settings), store.where, repr(store)):
        assert "hush" not in text


# --- checksums, directories, snapshots, leases ----------------------------------------------------------------------


def test_the_checksum_of_a_plain_upload_is_its_md5(azurite: Azurite, name: str) -> None:
    """Listings, lookups and copies agree on the checksum."""
    store = on(azurite, name)
    store.write("data/x", b"content")
    store.copy("data/x", "data/y")

    md5 = hashlib.md5(b"content").hexdigest()
    assert [entry.checksum for page in store.pages("") for entry in page.objects] == [md5, md5]
    assert store.stat("data/x").checksum == md5
    assert not store.etag_is_md5("data/x")
    with pytest.raises(NotFound):
        store.etag_is_md5("data/none")


def test_the_checksum_of_an_upload_in_blocks_is_its_etag(azurite: Azurite, client: ContainerClient, name: str) -> None:
    """Every write changes the ETag, even if the bytes are the same. Copies are therefore compared by their bytes."""
    store, blob = on(azurite, name), client.get_blob_client(f"{name}/data/x")

    def in_blocks(content: bytes) -> None:
        blob.stage_block("YQ==", content)
        blob.commit_block_list([BlobBlock("YQ==")])

    in_blocks(b"content")
    first = store.stat("data/x")
    assert first.checksum is not None
    assert first.checksum.startswith("etag-")
    assert [entry for page in store.pages("") for entry in page.objects] == [first]

    store.copy("data/x", "data/y")
    assert store.stat("data/y").checksum != first.checksum
    assert same_content(store, first, store.stat("data/y"))

    in_blocks(b"CONTENT")
    assert store.stat("data/x").checksum not in (None, first.checksum)
    assert not same_content(store, store.stat("data/x"), store.stat("data/y"))


def test_directories_are_neither_listed_nor_found(azurite: Azurite, client: ContainerClient, name: str) -> None:
    """Hierarchical accounts represent directories by blobs."""
    store = on(azurite, name)
    store.write("data/folder/x", b"x")
    for folder in ("data", "data/folder"):
        client.upload_blob(f"{name}/{folder}", b"", metadata={"hdi_isfolder": "true"})
    client.upload_blob(f"{name}/data/no-folder", b"content", metadata={"hdi_isfolder": "true"})
    client.upload_blob(f"{name}/data/empty", b"", metadata={"hdi_isfolder": "false"})

    assert all_keys(store) == ["data/empty", "data/folder/x", "data/no-folder"]
    [page] = store.pages("data/", delimiter="/")
    assert [entry.key for entry in page.objects] == ["data/empty", "data/no-folder"]
    assert list(page.prefixes) == ["data/folder/"]
    for look in (store.stat, store.read, lambda key: store.copy(key, "data/copy")):
        with pytest.raises(NotFound, match="directory"):
            look("data/folder")


def test_a_blob_is_deleted_with_its_snapshots(azurite: Azurite, client: ContainerClient, name: str) -> None:
    """Azure refuses to delete a blob but keep its snapshots. Snapshots aren't listed."""
    store = on(azurite, name)
    write_all(store, ["data/x", "data/y"])
    for key in ("data/x", "data/y"):
        client.get_blob_client(f"{name}/{key}").create_snapshot()
    assert all_keys(store) == ["data/x", "data/y"]

    assert [result.deletion for result in store.delete_many(["data/x", "data/y"])] == [Deletion.DELETED] * 2
    assert list(client.list_blobs(f"{name}/", include=["snapshots"])) == []


def test_all_blobs_of_a_batch_except_a_leased_one_are_deleted(
    azurite: Azurite, client: ContainerClient, name: str
) -> None:
    """On a real server each key has its own result: deleted, already gone, or leased."""
    store = on(azurite, name)
    write_all(store, ["data/a", "data/leased", "data/z"])
    lease = client.get_blob_client(f"{name}/data/leased").acquire_lease()

    results = store.delete_many(["data/z", "data/leased", "data/none", "data/a"])

    assert [(result.key, result.deletion, result.code) for result in results] == [
        ("data/z", Deletion.DELETED, ""),
        ("data/leased", Deletion.FAILED, "LeaseIdMissing"),
        ("data/none", Deletion.ALREADY_GONE, ""),
        ("data/a", Deletion.DELETED, ""),
    ]
    assert not any(result.transient for result in results)
    assert all_keys(store) == ["data/leased"]
    lease.release()


# --- responses to batches ---------------------------------------------------------------------------------------------

MIXED = {"Content-Type": "multipart/mixed; boundary=batchresponse_1"}
GONE = "<Error><Code>BlobNotFound</Code><Message>The specified blob does not exist.\nRequestId:1</Message></Error>"
DENIED = "<Error><Code>AuthorizationPermissionMismatch</Code><Message>no</Message></Error>"


def batch_response(*responses: tuple[str | None, int, str]) -> bytes:
    """A batch response. Each part has the number of its request (or none, if it is None), a status and a document."""
    parts = []
    for number, status, document in responses:
        named = "" if number is None else f"Content-ID: {number}\r\n"
        parts.append(
            f"--batchresponse_1\r\nContent-Type: application/http\r\n{named}\r\n"
            f"HTTP/1.1 {status} Whatever\r\nx-ms-request-id: 1\r\nContent-Type: application/xml\r\n\r\n{document}\r\n"
        )
    return ("".join(parts) + "--batchresponse_1--").encode()


def test_responses_of_a_batch_are_matched_by_their_request_numbers() -> None:
    """Parts may come in any order. A request without a part has failed."""
    body = batch_response(("3", 404, GONE), ("1", 403, DENIED), ("0", 202, ""), ("4", 202, ""), ("4", 403, DENIED))
    with replying(202, body, MIXED) as fixed_server:
        results = at(fixed_server).delete_many(["a", "b", "c", "d", "e"])

    assert [(result.key, result.deletion, result.code) for result in results] == [
        ("a", Deletion.DELETED, ""),
        ("b", Deletion.FAILED, "AuthorizationPermissionMismatch"),
        ("c", Deletion.FAILED, "NoAnswer"),
        ("d", Deletion.ALREADY_GONE, ""),
        ("e", Deletion.FAILED, "NoAnswer"),
    ]


def test_a_missing_container_does_not_count_as_a_missing_blob() -> None:
    """A 404 means that a blob is gone only if it has Azure's error code for that."""
    body = batch_response(
        ("0", 404, GONE.replace("BlobNotFound", "ContainerNotFound")), ("1", 404, ""), ("2", 404, GONE)
    )
    with replying(202, body, MIXED) as fixed_server:
        results = at(fixed_server).delete_many(["a", "b", "c"])

    assert [(result.deletion, result.code) for result in results] == [
        (Deletion.FAILED, "ContainerNotFound"),
        (Deletion.FAILED, "404"),
        (Deletion.ALREADY_GONE, ""),
    ]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"", MIXED),
        (b"--batchresponse_1\r\n", MIXED),
        (batch_response(("0", 202, ""))[:60], MIXED),
        (b"<html>Hello</html>", {"Content-Type": "text/html"}),
        (batch_response(("7", 202, ""), ("x", 202, ""), (None, 202, "")), MIXED),
        (batch_response(("0", 202, "")).replace(b"HTTP/1.1 202", b"Accepted"), MIXED),
    ],
)
def test_no_key_counts_as_deleted_after_an_unreadable_response_to_a_batch(body: bytes, headers: dict[str, str]) -> None:
    """Each key of the batch has failed, and may be sent again."""
    with replying(202, body, headers) as fixed_server:
        results = at(fixed_server).delete_many(["a", "b"])

    assert [(result.deletion, result.code) for result in results] == [(Deletion.FAILED, "NoAnswer")] * 2
    assert all(result.transient for result in results)


def test_a_request_number_consists_of_ascii_digits_only() -> None:
    """Unicode has other characters that look like digits."""
    body = batch_response(("0", 202, ""), ("²", 202, ""), ("-1", 202, ""), ("1 ", 404, GONE))

    responses = sub_responses(MIXED["Content-Type"], body)

    assert responses.by_number == {
        0: SubResponse(202, "202", ""),
        1: SubResponse(404, "BlobNotFound", "The specified blob does not exist."),
    }


@pytest.mark.parametrize("body", [batch_response(("0", 503, ""), ("1", 503, "")), batch_response((None, 503, ""))])
def test_throttling_of_some_keys_or_of_a_whole_batch_is_transient(body: bytes) -> None:
    """A sweep may send the keys again."""
    body = body.replace(b"x-ms-request-id: 1", b"x-ms-error-code: ServerBusy")
    with replying(202, body, MIXED) as fixed_server:
        results = at(fixed_server).delete_many(["a", "b"])

        assert [method for method, _ in fixed_server.seen] == ["POST"]
    assert [(result.deletion, result.code) for result in results] == [(Deletion.FAILED, "ServerBusy")] * 2
    assert all(result.transient for result in results)


def test_a_request_to_a_busy_server_is_attempted_the_configured_number_of_times() -> None:
    """After the last attempt, an error is raised. Deletes aren't retried."""
    body = b"<Error><Code>ServerBusy</Code><Message>The server is busy.</Message></Error>"
    with replying(503, body, {**XML, "x-ms-error-code": "ServerBusy"}) as fixed_server:
        store = at(fixed_server, retry=no_wait_policy(2))

        with pytest.raises(Unavailable, match="ServerBusy"):
            store.read("data/x")
        assert len(fixed_server.seen) == 2
        results = at(fixed_server).delete_many(["a", "b"])

        assert len(fixed_server.seen) == 3
    assert [result.code for result in results] == ["ServerBusy"] * 2


# --- a server in between ----------------------------------------------------------------------------------------------

PlainResponse = tuple[int, dict[str, str], bytes]


@dataclass
class Proxy:
    """A proxy in front of Azurite. `before` may respond in Azurite's place, and `after` may change its response."""

    url: str
    before: Callable[[str, str], PlainResponse | None] = lambda *_: None
    after: Callable[[str, str, dict[str, str]], None] = lambda *_: None
    seen: list[tuple[str, str]] = field(default_factory=list)


@contextmanager
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    pool = urllib3.PoolManager(retries=False, maxsize=16)
    origin = azurite.endpoint_url.removesuffix(f"/{azurite.account}")

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            between.seen.append((self.command, self.path))
            status, headers, data = between.before(self.command, self.path) or self.forwarded(body)
            between.after(self.command, self.path, headers)
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "keep-alive"):
                    self.send_header(name, value)
            length = headers.get("content-length", "0") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def forwarded(self, body: bytes) -> PlainResponse:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            response = pool.request(self.command, origin + self.path, body=body, headers=headers)
            return response.status, {name.lower(): value for name, value in response.headers.items()}, response.data

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = respond  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        between = Proxy(f"http://127.0.0.1:{server.server_port}/{azurite.account}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield between
        finally:
            server.shutdown()
            thread.join()


def batches_refused(status: int, code: str) -> Callable[[str, str], PlainResponse | None]:
    def before(method: str, path: str) -> PlainResponse | None:
        return (status, {"x-ms-error-code": code}, b"") if method == "POST" and "comp=batch" in path else None

    return before


@pytest.mark.parametrize(
    ("status", "code", "is_remembered"),
    [
        (405, "UnsupportedHttpVerb", True),
        (501, "NotImplemented", True),
        (409, "BlobApiNotYetSupportedInHierarchicalNamespaceAccounts", True),
        (400, "InvalidInput", False),
        (403, "AuthorizationFailure", False),
    ],
)
def test_keys_are_deleted_one_by_one_if_batches_are_refused(
    azurite: Azurite, name: str, status: int, code: str, is_remembered: bool
) -> None:
    """After a permanent refusal no more batches are sent."""
    with proxy(azurite) as between:
        between.before = batches_refused(status, code)
        store = on(azurite, name, azure_endpoint_url=between.url)
        write_all(store, ["data/a", "data/b", "data/c"])
        between.seen.clear()

        results = store.delete_many(["data/a", "data/none", "data/b"])

        methods = [method for method, _ in between.seen]
    assert methods == ["POST", "DELETE", "DELETE", "DELETE"]
    assert [result.deletion for result in results] == [Deletion.DELETED, Deletion.ALREADY_GONE, Deletion.DELETED]
    assert all_keys(on(azurite, name)) == ["data/c"]
    assert (store.capabilities.delete_batch == 1) is is_remembered


def test_after_a_batch_and_one_delete_are_refused_for_lack_of_permission_nothing_more_is_sent(
    azurite: Azurite, name: str
) -> None:
    """After the first refused single delete no more requests are sent, and all keys have failed."""

    def before(method: str, path: str) -> PlainResponse | None:
        refused = method == "DELETE" or "comp=batch" in path
        return (403, {"x-ms-error-code": "AuthorizationPermissionMismatch"}, b"") if refused else None

    with proxy(azurite) as between:
        between.before = before
        store = on(azurite, name, azure_endpoint_url=between.url)
        results = store.delete_many(["a", "b", "c"])

        assert [method for method, _ in between.seen] == ["POST", "DELETE"]
    assert [(result.deletion, result.code) for result in results] == [
        (Deletion.FAILED, "AuthorizationPermissionMismatch")
    ] * 3
    assert store.capabilities.delete_batch == 256


def test_no_single_deletes_follow_a_slow_refusal_of_a_batch(
    azurite: Azurite, client: ContainerClient, name: str
) -> None:
    """The time starts when the batch is sent, so no delete outlasts the lease."""
    on(azurite, name)
    with proxy(azurite) as between:
        between.before = batches_refused(400, "InvalidInput")
        store = AzureStore(
            Namespace.parse(f"https://{azurite.account}.blob.core.windows.net/{CONTAINER}/{name}"),
            azurite.settings(azure_endpoint_url=between.url),
        )
        results = delete_keys(
            store.client,
            ["a", "b"],
            to_full_key=store.full_key,
            batch_size=256,
            monotonic=lambda: ONE_BY_ONE_TIMEOUT_S * len(between.seen),
        )

        assert [method for method, _ in between.seen] == ["POST"]
    assert [result.code for result in results] == [NOT_SENT] * 2


def test_deleting_one_by_one_stops_before_it_could_outlast_the_lease(
    azurite: Azurite, client: ContainerClient, name: str
) -> None:
    """Keys that were not sent may be sent again."""
    on(azurite, name)
    clock = iter([0.0, 0.5, 1.0, ONE_BY_ONE_TIMEOUT_S - 0.1, ONE_BY_ONE_TIMEOUT_S, ONE_BY_ONE_TIMEOUT_S + 1])
    with proxy(azurite) as between:
        between.before = batches_refused(400, "InvalidInput")
        store = AzureStore(
            Namespace.parse(f"https://{azurite.account}.blob.core.windows.net/{CONTAINER}/{name}"),
            azurite.settings(azure_endpoint_url=between.url),
        )
        wanted = ["a", "b", "c", "d", "e"]
        results = delete_keys(
            store.client, wanted, to_full_key=store.full_key, batch_size=256, monotonic=lambda: next(clock)
        )

    assert [(result.key, result.code) for result in results if result.deletion is Deletion.FAILED] == [
        ("d", "NotSent"),
        ("e", "NotSent"),
    ]
    assert all(result.transient for result in results if result.code == "NotSent")


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_copy_keeps_content_and_metadata(azurite: Azurite, client: ContainerClient, name: str) -> None:
    """The keys contain unusual characters."""
    client.upload_blob(f"{name}/é +?#&x", b"content", metadata={"owner": "me"})
    store = on(azurite, name)

    store.copy("é +?#&x", "data/copy %2F")

    about = client.get_blob_client(f"{name}/data/copy %2F").get_blob_properties()
    assert (about.metadata, about.size) == ({"owner": "me"}, 7)


def copy_status_as(status: str) -> Callable[[str, str, dict[str, str]], None]:
    """Change the status that the response to a copy reports."""

    def after(method: str, _: str, headers: dict[str, str]) -> None:
        if method == "PUT" and "x-ms-copy-status" in headers:
            headers["x-ms-copy-status"] = status

    return after


def test_a_pending_copy_is_polled_until_it_ends(azurite: Azurite, name: str) -> None:
    """A copy that fails in the end is an error."""
    with proxy(azurite) as between:
        between.after = copy_status_as("pending")
        store = on(azurite, name, azure_endpoint_url=between.url)
        store.write("data/x", b"content")
        between.seen.clear()

        store.copy("data/x", "data/y")

        assert [method for method, _ in between.seen] == ["HEAD", "PUT", "HEAD"]
        between.after = copy_status_as("failed")
        with pytest.raises(Unavailable, match="could not be copied: the copy ended with status 'failed'"):
            store.copy("data/x", "data/y")


def test_a_copy_that_takes_too_long_is_aborted(azurite: Azurite, client: ContainerClient, name: str) -> None:
    """The target of an aborted copy doesn't count as a copy."""

    def after(_: str, __: str, headers: dict[str, str]) -> None:
        if "x-ms-copy-status" in headers:
            headers["x-ms-copy-status"] = "pending"

    source = client.get_blob_client(f"{name}/x")
    tag = source.upload_blob(b"content")["etag"]
    waited: list[float] = []
    with proxy(azurite) as between:
        between.after = after
        target = Azurite(between.url).client().get_blob_client(CONTAINER, f"{name}/y")
        with pytest.raises(Unavailable, match="was not copied within 3 seconds"):
            copy_blob(
                source, target, tag, where="here", timeout_s=3.0, monotonic=lambda: sum(waited), sleep=waited.append
            )
        assert "comp=copy" in between.seen[-1][1]


def test_a_source_overwritten_since_its_lookup_is_not_copied(
    azurite: Azurite, client: ContainerClient, name: str
) -> None:
    """No target is written."""
    source, target = (client.get_blob_client(f"{name}/{key}") for key in ("x", "y"))
    tag = source.upload_blob(b"one")["etag"]
    source.upload_blob(b"two", overwrite=True)
    store = on(azurite, name)

    with pytest.raises(Exception, match="ConditionNotMet"):
        copy_blob(source, target, tag, where="here")
    with pytest.raises(NotFound):
        store.stat("y")


# --- what a delete means ----------------------------------------------------------------------------------------------


def as_a_version(method: str, _: str, headers: dict[str, str]) -> None:
    if method == "HEAD":
        headers["x-ms-version-id"] = "2026-03-31T10:00:00.0000000Z"


def test_deletes_are_final_only_if_neither_soft_delete_nor_versioning_is_enabled(azurite: Azurite, name: str) -> None:
    """If lakegc can't find out, it reports the effect as unknown."""
    store = on(azurite, name)
    # without a file of lakegc, nothing shows whether versions are kept
    assert store.delete_effect() is DeleteEffect.UNKNOWN

    store.write(f"{LAKEGC_PREFIX}store.json", b"{}")
    assert store.delete_effect() is DeleteEffect.FINAL
    token_only = on(azurite, name, azure_account_key=None, azure_sas_token=sas_token(azurite))
    assert token_only.delete_effect() is DeleteEffect.UNKNOWN

    service = azurite.client()
    service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=True, days=7))
    try:
        assert store.delete_effect() is DeleteEffect.SOFT_DELETED
        with proxy(azurite) as between:
            between.after = lambda method, _, headers: headers.update(
                {"x-ms-version-id": "2026"} if method == "HEAD" else {}
            )
            assert on(azurite, name, azure_endpoint_url=between.url).delete_effect() is DeleteEffect.VERSIONED
    finally:
        service.set_service_properties(delete_retention_policy=RetentionPolicy(enabled=False))


# --- responses to listings --------------------------------------------------------------------------------------------


def listing(*names: str, more: str = "<NextMarker />", encoded: bool = False) -> bytes:
    """A listing of these names."""
    mark = ' Encoded="true"' if encoded else ""
    blobs = "".join(
        f"<Blob><Name{mark}>{name}</Name><Properties><Last-Modified>Tue, 31 Mar 2026 10:00:00 GMT</Last-Modified>"
        "<Etag>0x8D</Etag><Content-Length>3</Content-Length><Content-MD5 /></Properties><Metadata /></Blob>"
        for name in names
    )
    return (
        f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults><Blobs>{blobs}</Blobs>{more}</EnumerationResults>'
    ).encode()


def test_an_incomplete_or_malformed_listing_raises_an_error() -> None:
    """The listing ends early, doesn't say whether more entries follow, or lacks a field that every blob has."""
    whole = listing("ns/data/x")
    for body in (
        whole[:-40],
        listing("ns/data/x", more=""),
        whole.replace(b"<Content-Length>3</Content-Length>", b""),
        whole.replace(b"Tue, 31 Mar 2026 10:00:00 GMT", b"yesterday"),
        whole.replace(b"2026 10:00:00 GMT", b"2026 10:00:00"),
        whole.replace(b"<Content-MD5 />", b"<Content-MD5>?</Content-MD5>"),
        whole.replace(b"<Name>ns/data/x</Name>", b""),
        whole.replace(b"EnumerationResults", b"ListBucketResult"),
        b"",
    ):
        with replying(200, body, XML) as fixed_server, pytest.raises(Unavailable):
            list(at(fixed_server).pages("data/"))


def test_a_repeated_marker_ends_a_listing_with_an_error() -> None:
    """Otherwise, the listing would never end."""
    with replying(200, listing("ns/data/x", more="<NextMarker>again</NextMarker>"), XML) as fixed_server:
        with pytest.raises(Unavailable, match="keeps returning the same page"):
            list(at(fixed_server).pages("data/"))
        assert len(fixed_server.seen) == 2


@pytest.mark.parametrize("key", ["ns-other/data/x", "ns/other/x", "data/x", "NS/data/x", "ns//data/x"])
def test_a_listed_key_outside_the_requested_prefix_is_refused(key: str) -> None:
    """The store folds keys, so a delete could hit another object."""
    with replying(200, listing(key), XML) as fixed_server, pytest.raises(Refused, match="normalizes keys") as caught:
        list(at(fixed_server).pages("data/"))
    assert caught.value.invariant == 5


def test_encoded_names_are_decoded_strictly_and_others_are_left_unchanged() -> None:
    """Names that aren't UTF-8 are counted as unreadable."""
    with replying(200, listing("ns/data/%FFx", "ns/data/a+b%2B", encoded=True), XML) as fixed_server:
        [page] = at(fixed_server).pages("data/")
    [plain] = parse_listing(listing("ns/data/a%2Fb+c")).objects

    assert [entry.key for entry in page.objects] == ["data/a+b+"]
    assert page.unreadable_names == 1
    assert (plain.name, plain.size, plain.checksum) == ("ns/data/a%2Fb+c", 3, "etag-0x8D")


def test_entries_listed_as_directories_are_not_objects() -> None:
    """Hierarchical accounts state the type of each listed entry."""
    body = listing("ns/data/x").replace(b"<Etag>", b"<ResourceType>directory</ResourceType><Etag>")

    assert parse_listing(body).objects == []


def test_a_response_without_a_valid_date_gives_no_store_time() -> None:
    """The time of this machine isn't used instead."""
    with (
        replying(200, listing(), {**XML, "Date": "whenever"}) as fixed_server,
        pytest.raises(Unavailable, match="Date"),
    ):
        at(fixed_server).now()


# --- servers that aren't there, or aren't Azure -----------------------------------------------------------------------


def test_a_silent_server_times_out() -> None:
    """The server accepts the connection and never responds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        settings = StoreSettings(
            azure_endpoint_url=f"http://127.0.0.1:{listener.getsockname()[1]}/account",
            azure_account_key="YW55",
            read_timeout=0.2,
            retry=no_wait_policy(1),
        )
        _check_unavailable(open_store(Namespace.parse(URI), settings), "LAKEGC_AZURE_ENDPOINT_URL")


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
        assert "hush" not in f"{caught.value!r}{caught.value.__cause__!r}"
    [result] = store.delete_many(["data/x"])
    assert result.deletion is Deletion.FAILED
    assert result.transient
    assert "hush" not in result.message


@pytest.mark.parametrize(("status", "body"), [(404, b"<html>404</html>"), (404, b""), (200, b"<html>Hello</html>")])
def test_a_response_that_is_not_from_azure_raises_an_error(status: int, body: bytes) -> None:
    """A web server's 404 doesn't mean that an object is absent."""
    with replying(status, body, {"Content-Type": "text/html"}) as fixed_server:
        store = at(fixed_server)
        for look in (
            lambda: list(store.pages("data/")),
            store.now,
            lambda: store.read("data/x"),
            lambda: store.stat("data/x"),
        ):
            with pytest.raises(Unavailable) as caught:
                look()
            assert not isinstance(caught.value, NotFound)


def test_redirects_are_not_followed() -> None:
    """Credentials are never sent to another host."""
    with replying(200, listing("ns/data/x"), XML) as elsewhere:
        with replying(307, b"", {"Location": elsewhere.url}) as fixed_server, pytest.raises(Unavailable):
            list(at(fixed_server).pages(""))
        assert elsewhere.seen == []
