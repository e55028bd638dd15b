"""Send one notification to the webhook, within a time limit."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future

from spark_resources.errors import LakegcError

TIMEOUT_S = 10.0


class Undelivered(LakegcError):
    """Raised if the webhook didn't accept a notification. The message doesn't contain the address, which is a
    secret."""


def send(url: str, body: bytes, headers: Mapping[str, str], *, timeout_s: float = TIMEOUT_S) -> None:
    """Post a body. Raises `Undelivered` unless the webhook accepts it (2xx) within the time limit.

    Redirects are not followed: they would send the body to a receiver that nobody configured. The time limit holds even
    if the response arrives byte by byte. After a timeout, the webhook may still have received the event.
    """
    import requests

    response: Future[int] = Future()

    def post() -> None:
        try:
            response.set_result(_status_of_post(url, body, headers, timeout_s))
        except BaseException as error:
            response.set_exception(error)

    threading.Thread(target=post, name="lakegc-webhook", daemon=True).start()
    try:
        status = response.result(timeout_s)
    except (TimeoutError, requests.Timeout):
        raise Undelivered(f"the webhook didn't respond within {timeout_s:g} s") from None
    except requests.exceptions.SSLError:
        raise Undelivered(
            "no TLS connection to the webhook could be made: check its URL and its certificate. If you have your own "
            "certificate authority, set REQUESTS_CA_BUNDLE to the file with the authority's certificate"
        ) from None
    except (requests.RequestException, OSError, ValueError) as error:
        raise Undelivered(f"the webhook can't be reached ({type(error).__name__})") from None
    if 300 <= status < 400:
        raise Undelivered(
            f"the webhook responded with a redirect ({status}), and redirects aren't followed: set "
            "LAKEGC_WEBHOOK_URL to the final URL"
        )
    if not 200 <= status < 300:
        raise Undelivered(f"the webhook responded with status {status}")


def _status_of_post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> int:
    import requests

    with requests.post(
        url,
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": "lakegc", **headers},
        timeout=timeout_s,
        allow_redirects=False,
        stream=True,  # the response's body is of no interest, and may be endless
    ) as response:
        return response.status_code
