"""Notifications to a webhook: bodies, signatures, and receivers that refuse, redirect, hang or are gone."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakegc_assets.notifications import messages
from lakegc_assets.notifications.messages import Notification, json_body, signature, slack_body
from lakegc_assets.notifications.outbox import MAX_AGE, MAX_FAILURES, MAX_SECONDS, Cursor, deliver, waiting_for
from lakegc_assets.notifications.webhook import Undelivered, send
from spark_resources.errors import DamagedData
from spark_resources.identifiers import Partition
from tests.support.certificates import write_certificate
from tests.support.replay_server import serving
from tests.support.webhook_receiver import Receiver, receiver

NOW = datetime(2026, 11, 21, 8, 50, tzinfo=UTC)
LAKE = Partition("lake", "m1")


def waiting(run_id: str = "run", time: datetime = NOW) -> Notification:
    return messages.approval_waiting(LAKE, time, run_id, objects=12, expired_bytes=2**20)


@pytest.fixture(name="hook")
def listening_receiver() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


# --- bodies -----------------------------------------------------------------------------------------------------------


def test_the_json_body_is_the_documented_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = json.loads(page.partition("```json\n")[2].partition("```")[0])
    partition, run_id = Partition("lake", documented["mark"]), documented["run"]
    notification = messages.approval_waiting(
        partition, NOW + timedelta(minutes=9), run_id, objects=12, expired_bytes=2**20
    )

    assert json.loads(json_body(notification, ["data-platform"])) == documented


def test_the_notification_of_a_sweep_with_failures_says_so_and_counts_removed_objects() -> None:
    notification = messages.swept(
        LAKE, NOW, "run",
        objects={"deleted": 5, "failed": 2, "rescued": 1}, sizes={"deleted": 500, "failed": 70}, late=0,
    )  # fmt: skip

    assert "with failures" in notification.summary
    assert notification.numbers == {"objects": 5, "bytes": 500, "failed": 2, "rescued": 1, "late": 0}


def test_names_of_owners_cause_no_mentions_or_links_in_slack() -> None:
    """Slack reads `<!channel>` as a mention and `<https://…>` as a link, and shows control characters as they are."""
    text = json.loads(slack_body(waiting(), ["<!channel>", "R&D", "\x1b[31mred", "\u202egnp"]))["text"]

    assert "&lt;!channel&gt;, R&amp;D, \\x1b[31mred, \\u202egnp" in text
    assert "<" not in text
    assert text.isprintable()


def test_names_of_owners_with_any_characters_are_ascii_in_json() -> None:
    body = json_body(waiting(), ["\x1b[31m", "Müller", "\udc80", '"quoted"'])

    assert body.isascii()
    assert json.loads(body)["owners"] == ["\x1b[31m", "Müller", "\udc80", '"quoted"']


# --- one delivery -----------------------------------------------------------------------------------------------------


def test_the_signature_covers_the_exact_body(hook: Receiver) -> None:
    body = json_body(waiting(), [])
    send(hook.url, body, {messages.SIGNATURE_HEADER: signature(body, "shared")})
    [request] = hook.received

    expected = hmac.new(b"shared", request.body, hashlib.sha256).hexdigest()
    assert (request.method, request.body) == ("POST", body)
    assert request.headers["X-Lakegc-Signature"] == f"sha256={expected}"
    assert request.headers["Content-Type"] == "application/json"


def failure(url: str, **options: float) -> str:
    """The error of a delivery, which never contains the address."""
    with pytest.raises(Undelivered) as caught:
        send(url, b"{}", {}, **options)
    assert "nobodys-eyes" not in "".join(traceback.format_exception(caught.value))
    return str(caught.value)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_response_other_than_2xx_is_a_failure(hook: Receiver, status: int) -> None:
    hook.statuses = [status]

    assert failure(hook.url) == f"the webhook responded with status {status}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(hook: Receiver, status: int) -> None:
    with receiver() as other:
        hook.statuses, hook.location = [status], other.url

        assert "set LAKEGC_WEBHOOK_URL to the final URL" in failure(hook.url)
        assert other.received == []


def test_a_delivery_to_a_receiver_that_hangs_fails_after_the_time_limit(hook: Receiver) -> None:
    released = threading.Event()
    hook.hang = lambda: released.wait(30)
    try:
        assert "didn't respond within 0.2 s" in failure(hook.url, timeout_s=0.2)
    finally:
        released.set()


def test_a_delivery_whose_response_arrives_byte_by_byte_fails_after_the_time_limit() -> None:
    """Each byte restarts the timeout of the socket itself."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                while not ended.wait(0.02):
                    connection.send(b"H")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/a-token-for-nobodys-eyes"
            assert "didn't respond within 0.3 s" in failure(url, timeout_s=0.3)
        finally:
            ended.set()
            thread.join()


def test_a_receiver_whose_certificate_is_not_trusted_gets_nothing(tmp_path: Path) -> None:
    received: list[object] = []

    async def app(scope: object, receive: object, send: object) -> None:
        received.append(scope)

    certificate = write_certificate(tmp_path)
    with serving(app, ssl_certfile=str(certificate.certificate), ssl_keyfile=str(certificate.key)) as endpoint:
        assert "no TLS connection to the webhook could be made" in failure(f"{endpoint}/a-token-for-nobodys-eyes")

    assert received == []


def test_a_refused_connection_to_the_receiver_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a-token-for-nobodys-eyes"

    assert failure(url) == "the webhook can't be reached (ConnectionError)"


# --- the queue --------------------------------------------------------------------------------------------------------


def no_time_passes() -> float:
    return 0.0


def refusing(*run_ids: str) -> tuple[list[str], Callable[[Notification], None]]:
    """A receiver that refuses the events of these runs, and the list of the runs whose events it was sent."""
    sent: list[str] = []

    def send_one(notification: Notification) -> None:
        sent.append(notification.run_id)
        if notification.run_id in run_ids:
            raise Undelivered("the webhook responded with status 400")

    return sent, send_one


def test_an_event_that_the_receiver_refuses_does_not_hold_up_the_others() -> None:
    sent, send_one = refusing("bad")
    queue = [waiting("bad"), waiting("a"), waiting("b")]
    result = deliver(queue, send_one, now=NOW, seconds_passed=no_time_passes)

    assert sent == ["bad", "a", "b"]
    assert [notification.run_id for notification in result.delivered] == ["a", "b"]
    assert [notification.run_id for notification in result.waiting] == ["bad"]


def test_a_tick_stops_after_too_many_failures_and_loses_no_event() -> None:
    """Untried events come before those that failed, so that none starves."""
    names = ["a", "b", "c", "d"]
    sent, send_one = refusing(*names)
    result = deliver([*map(waiting, names)], send_one, now=NOW, seconds_passed=no_time_passes)

    assert sent == names[:MAX_FAILURES]
    assert [notification.run_id for notification in result.waiting] == ["c", "d", "a", "b"]


def test_a_tick_stops_delivering_when_its_time_is_up() -> None:
    sent, send_one = refusing()
    clock = iter([0.0, MAX_SECONDS, MAX_SECONDS + 1])
    result = deliver([*map(waiting, "abc")], send_one, now=NOW, seconds_passed=lambda: next(clock))

    assert sent == ["a", "b"]
    assert [notification.run_id for notification in result.waiting] == ["c"]


def test_an_undelivered_event_is_dropped_only_after_a_day() -> None:
    sent, send_one = refusing()
    old = waiting("old", NOW - MAX_AGE - timedelta(seconds=1))
    result = deliver([old, waiting("day", NOW - MAX_AGE)], send_one, now=NOW, seconds_passed=no_time_passes)

    assert result.dropped == [old]
    assert sent == ["day"]


def test_the_cursor_keeps_undelivered_events() -> None:
    cursor = Cursor(succeeded=3, failed=5, waiting=(waiting_for(waiting()),))

    assert Cursor.parse(cursor.model_dump_json()) == cursor


@pytest.mark.parametrize("text", ["17", "{}", "not JSON", '{"succeeded": 1, "failed": 2, "waiting": [{"run": 1}]}'])
def test_the_error_for_an_invalid_cursor_says_how_to_reset_it(text: str) -> None:
    with pytest.raises(DamagedData, match="Reset the cursor in Dagster"):
        Cursor.parse(text)
