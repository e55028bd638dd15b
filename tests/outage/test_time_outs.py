"""Every request has a time limit: a server that accepts connections and never answers holds nothing up for long."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from lakegc_assets.notifications import metrics, webhook
from spark_resources.errors import LakegcError
from spark_resources.host.failure_kinds import FailureKind, kind_of
from spark_resources.lakefs import LakeFS, LakeFSSettings
from spark_resources.model import Namespace
from spark_resources.settings import Settings
from spark_resources.stores import Store, StoreSettings, open_store
from spark_resources.stores.base import Deletion
from spark_resources.stores.retry import NO_RETRIES

READ_S, LIMIT_S = 0.2, 20.0  # the time limit of a read, and that of the whole test, on a busy machine


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def at_s3(address: str) -> Store:
    keys = {"s3_access_key_id": "a", "s3_secret_access_key": "b"}
    return opened("s3://bucket/lake", s3_endpoint_url=f"http://{address}", **keys)


def at_azure(address: str) -> Store:
    pytest.importorskip("azure.storage.blob")
    uri = "https://account.blob.core.windows.net/container/lake"
    return opened(uri, azure_endpoint_url=f"http://{address}/account", azure_account_key="YW55")


def at_gcs(address: str) -> Store:
    pytest.importorskip("google.auth")
    return opened("gs://bucket/lake", gcs_endpoint_url=f"http://{address}", gcs_anonymous=True)


def opened(uri: str, **options: str | bool) -> Store:
    settings = {"connect_timeout": READ_S, "read_timeout": READ_S, "retry": NO_RETRIES, **options}
    return open_store(Namespace.parse(uri), StoreSettings.model_validate(settings))


REQUESTS: dict[str, Callable[[Store], object]] = {
    "list": lambda store: list(store.pages("data/")),
    "look up": lambda store: store.stat("data/a"),
    "read": lambda store: store.read("data/a"),
    "read with tag": lambda store: store.read_with_tag("data/a"),
    "write": lambda store: store.write("data/a", b"x"),
    "write if absent": lambda store: store.write_if_absent("data/a", b"x"),
    "replace": lambda store: store.replace_if_unchanged("data/a", b"x", "1"),
    "copy": lambda store: store.copy("data/a", "data/b"),
    "clock": lambda store: store.now(),
}


@pytest.mark.parametrize("at", [at_s3, at_azure, at_gcs])
def test_no_request_to_a_silent_store_waits_longer_than_its_time_limit(silent: str, at: Callable[[str], Store]) -> None:
    """Each request fails with a temporary error. A delete without a response may be repeated after another lookup."""
    store, started = at(silent), time.monotonic()

    for name, request in REQUESTS.items():
        with pytest.raises(LakegcError) as raised:
            request(store)
        assert kind_of(raised.value) is FailureKind.TEMPORARY, f"{name}: {raised.value}"
    [result] = store.delete_many(["data/a"])
    assert (result.deletion, result.transient) == (Deletion.FAILED, True)
    assert time.monotonic() - started < LIMIT_S


def test_no_request_to_a_silent_lakefs_server_waits_longer_than_its_time_limit(silent: str) -> None:
    """Slow calls have their own limit."""
    limits = {"connect_timeout_s": READ_S, "read_timeout_s": READ_S, "slow_read_timeout_s": READ_S, "retry_total_s": 0}
    server = {"endpoint_url": f"http://{silent}", "access_key_id": "a", "secret_access_key": "b"}
    lakefs = LakeFS(*LakeFSSettings.of(Settings.model_validate({**server, **limits})))
    started = time.monotonic()

    for request in (
        lambda: lakefs.branches("lake"),
        lambda: lakefs.repository("lake"),
        lambda: lakefs.rules("lake"),
        lakefs.server_time,
    ):
        with pytest.raises(LakegcError) as raised:
            request()
        assert kind_of(raised.value) is FailureKind.TEMPORARY, raised.value
    assert time.monotonic() - started < LIMIT_S


def test_no_notification_and_no_push_of_metrics_waits_longer_than_its_time_limit(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PUSH_TIMEOUT_S", READ_S)
    started = time.monotonic()

    with pytest.raises(webhook.Undelivered, match="didn't respond within"):
        webhook.send(f"http://{silent}/hook", b"{}", {}, timeout_s=READ_S)
    with pytest.raises(OSError, match="timed out"):
        metrics.push(f"http://{silent}", "lake", metrics.families((), "lake"))
    assert time.monotonic() - started < LIMIT_S
