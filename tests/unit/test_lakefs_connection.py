"""How the client handles faults, refusals and untrusted servers, and that it never shows a secret."""

from __future__ import annotations

import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from starlette.responses import Response

from spark_resources.errors import (
    DamagedData,
    Forbidden,
    LakegcError,
    NotFound,
    StillUnavailable,
    Unavailable,
    WrongUsage,
)
from spark_resources.lakefs import LakeFS, RefsDump, api_address
from tests.support.certificates import Certificate, write_certificate
from tests.support.replay_server import serving
from tests.support.retry_policies import no_wait_policy
from tests.support.scripted_lakefs import (
    NO_CALL,
    NO_RULES,
    REPOSITORY,
    SECRET,
    Script,
    Scripted,
    hang,
    page,
    ref,
    reply,
    settings,
    short,
)

LOCATION = "s3://bucket/lake/_lakefs/retention/gc/uncommitted/r/uncommitted/"
DUMPED = {"branches_meta_range_id": "b", "commits_meta_range_id": "c", "tags_meta_range_id": "t"}


@pytest.fixture
def script() -> Script:
    return Script().on("GET lake", reply(200, REPOSITORY))


@pytest.fixture
def lake(script: Script) -> Iterator[LakeFS]:
    with serving(script) as endpoint:
        yield LakeFS(settings(endpoint))


# --- faults and refusals ----------------------------------------------------------------------------------------------

FINE = page([ref("main")])


@pytest.mark.parametrize(
    "fault",
    [
        reply(429, {"message": "slow down"}, {"Retry-After": "0"}),
        reply(500, {"message": "kv"}),
        reply(502, {}),
        Response(b"<html>busy</html>", 503, media_type="text/html"),
        reply(504, {}),
        short,
        hang,
    ],
    ids=["429", "500", "502", "503", "504", "truncated response", "no response"],
)
def test_a_request_is_retried_after_a_transient_fault(script: Script, lake: LakeFS, fault: Scripted) -> None:
    """The request succeeds once the fault is over."""
    lake = LakeFS(replace(lake.settings, read_timeout_s=0.3))
    script.on("GET lake/branches", fault, FINE)

    assert lake.branches("lake") == {"main": "c"}
    assert script.calls() == ["GET lake/branches"] * 2


def test_json_that_is_nested_too_deeply_raises_an_error(script: Script, lake: LakeFS) -> None:
    """Python's parser fails on such JSON. The client raises one of lakegc's errors instead of crashing."""
    script.on("GET lake/branches", Response(b"[" * 200_000, media_type="application/json"))

    with pytest.raises(DamagedData, match="not complete JSON"):
        lake.branches("lake")


WRITING: dict[str, tuple[Callable[[LakeFS], Any], Response, Any]] = {
    "POST lake/gc/prepare_uncommited": (
        lambda lake: lake.prepare_uncommitted("lake").locations,
        reply(201, {"run_id": "r", "gc_uncommitted_location": LOCATION}),
        (LOCATION,),
    ),
    "POST lake/gc/prepare_commits/async": (
        lambda lake: lake.prepare_commits("lake"),
        reply(404, NO_RULES),
        None,
    ),
    "PUT lake/refs/dump": (lambda lake: lake.dump_refs("lake"), reply(201, DUMPED), RefsDump("b", "c", "t")),
}


@pytest.mark.parametrize("call", WRITING)
def test_a_call_that_writes_is_retried_after_a_transient_fault(script: Script, lake: LakeFS, call: str) -> None:
    """Calls that make the server write lists can be repeated: each writes to a run of its own."""
    ask, good, expected = WRITING[call]
    script.on(call, reply(503, {}), good)

    assert ask(lake) == expected


def test_a_request_is_attempted_as_often_as_the_policy_allows_while_a_fault_persists(
    script: Script, lake: LakeFS
) -> None:
    """The error shows the message of the last response."""
    script.on("GET lake/branches", reply(503, {"message": "kv is down"}))

    with pytest.raises(Unavailable, match=r"503: kv is down.*Tried 3 times"):
        lake.branches("lake")
    assert len(script.received) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 420, 501])
def test_a_refused_request_is_not_retried(script: Script, lake: LakeFS, status: int) -> None:
    script.on("GET lake/branches", reply(status, {"message": "no"}))

    with pytest.raises(Unavailable):
        lake.branches("lake")
    assert len(script.received) == 1


@pytest.mark.parametrize(
    ("response", "error", "words"),
    [
        (
            reply(401, {"message": "error authenticating request"}),
            Forbidden,
            ["credentials", "LAKEGC_ACCESS_KEY_ID"],
        ),
        (
            reply(401, {"message": "insufficient permissions: not allowed to fs:ListBranches"}),
            Forbidden,
            ["lacks the permission fs:ListBranches", "administrator"],
        ),
        (reply(403, {"message": "insufficient permissions"}), Forbidden, ["fs:ListBranches"]),
        (reply(404, {"message": "repository not found"}), NotFound, ["'lake'", "repository not found"]),
        (reply(404, NO_CALL), Unavailable, ["too old"]),
        (Response(b"<!doctype html><p>hi", media_type="text/html"), Unavailable, ["not the lakeFS API", "endpoint"]),
        (Response(b"\xff\xfe", media_type="application/json"), Unavailable, ["not the lakeFS API"]),
        (
            Response(status_code=302, headers={"Location": "https://u:p@sso.example/login?token=t0p"}),
            Unavailable,
            ["redirect to https://sso.example/login", "endpoint"],
        ),
        (hang, StillUnavailable, ["timed out", "Tried 3 times"]),
        (short, StillUnavailable, ["Tried 3 times"]),
    ],
    ids=[
        "401",
        "no permission",
        "403",
        "404",
        "no such call",
        "html",
        "bytes",
        "redirect",
        "timeout",
        "truncated response",
    ],
)
def test_the_error_about_a_failed_request_says_why_and_what_to_check(
    script: Script, lake: LakeFS, response: Scripted, error: type[LakegcError], words: list[str]
) -> None:
    """The error names the server, and never shows a secret."""
    lake = LakeFS(replace(lake.settings, read_timeout_s=0.1))
    script.on("GET lake/branches", response)

    with pytest.raises(error) as raised:
        lake.branches("lake")

    message = str(raised.value)
    assert type(raised.value) is error
    assert all(word in message for word in [*words, lake.where])
    assert not any(secret in _traceback_of(raised.value) for secret in (SECRET, "t0p", "u:p"))


def test_a_redirect_is_not_followed(script: Script, lake: LakeFS) -> None:
    """Credentials are sent only to the configured server."""
    script.on("GET lake/branches", Response(status_code=307, headers={"Location": "/api/v1/repositories/lake/tags"}))
    script.on("GET lake/tags", FINE)

    with pytest.raises(Unavailable, match="redirect"):
        lake.branches("lake")
    assert script.calls() == ["GET lake/branches"]


def test_the_error_about_a_refused_connection_names_the_address_and_the_setting() -> None:
    """The server may be down, or the port may be wrong."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}.*refused.*LAKEGC_ENDPOINT_URL"):
        LakeFS(settings(f"http://127.0.0.1:{port}")).config()


def test_the_error_about_a_host_that_does_not_resolve_names_it_and_the_setting() -> None:
    """The name may be misspelled."""
    with pytest.raises(Unavailable, match=r"no-such-host\.invalid.*LAKEGC_ENDPOINT_URL"):
        LakeFS(replace(settings("http://no-such-host.invalid:8000"), retry=no_wait_policy(1))).config()


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("tls"))


@contextmanager
def _serving_tls(script: Script, certificate: Certificate) -> Iterator[str]:
    with serving(script, ssl_certfile=str(certificate.certificate), ssl_keyfile=str(certificate.key)) as endpoint:
        yield endpoint


def test_a_certificate_from_an_unknown_authority_is_refused(script: Script, certificate: Certificate) -> None:
    """The message names the setting that would help. No request is sent."""
    with _serving_tls(script, certificate) as endpoint, pytest.raises(Unavailable, match="LAKEGC_CA_BUNDLE"):
        LakeFS(settings(endpoint)).repository("lake")
    assert script.received == []


def test_a_certificate_from_a_configured_authority_is_accepted(script: Script, certificate: Certificate) -> None:
    """The settings name the authority's file."""
    with _serving_tls(script, certificate) as endpoint:
        trusting = replace(settings(endpoint), ca_bundle=str(certificate.certificate))
        assert LakeFS(trusting).repository("lake").id == "lake"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_certificate_verification_can_be_switched_off(script: Script, certificate: Certificate) -> None:
    """Without verification, any certificate is accepted."""
    with _serving_tls(script, certificate) as endpoint:
        assert LakeFS(replace(settings(endpoint), verify_tls=False)).repository("lake").id == "lake"


def test_a_missing_ca_bundle_raises_an_error(script: Script, certificate: Certificate, tmp_path: Path) -> None:
    """The error names the setting."""
    with _serving_tls(script, certificate) as endpoint, pytest.raises(Unavailable, match="LAKEGC_CA_BUNDLE"):
        LakeFS(replace(settings(endpoint), ca_bundle=str(tmp_path / "none.pem"))).repository("lake")


def test_the_error_about_https_on_a_plain_http_port_says_to_use_http(script: Script, lake: LakeFS) -> None:
    """The message says that the endpoint should begin with http://."""
    endpoint = lake.where.replace("http://", "https://")

    with pytest.raises(Unavailable, match="http://"):
        LakeFS(settings(endpoint)).repository("lake")


# --- settings and secrets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint", ["http://h:8000", "http://h:8000/", "http://h:8000/api/v1", "http://h:8000/api/v1/", " http://h:8000 "]
)
def test_an_endpoint_may_end_with_the_path_of_the_api_or_slashes(endpoint: str) -> None:
    """All spellings lead to the same address."""
    assert api_address(endpoint) == "http://h:8000/api/v1"


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "h:8000",
        "ftp://h",
        "http://",
        "http://h:port",
        f"http://me:{SECRET}@h",
        f"me:{SECRET}@h",
        f"http://h?k={SECRET}",
    ],
)
def test_an_invalid_endpoint_is_refused_without_being_shown(endpoint: str) -> None:
    """The endpoint may contain a secret."""
    with pytest.raises(WrongUsage, match="endpoint") as raised:
        settings(endpoint)
    assert SECRET not in str(raised.value)


def test_a_client_can_be_pickled_for_executors(script: Script, lake: LakeFS) -> None:
    """Only the settings of the client are pickled."""
    lake.repository("lake")

    assert cloudpickle.loads(cloudpickle.dumps(lake)).repository("lake") == lake.repository("lake")


def test_neither_repr_nor_log_shows_the_secret(script: Script, lake: LakeFS, caplog: pytest.LogCaptureFixture) -> None:
    """The encoded form in which the secret is sent isn't shown either."""
    caplog.set_level("DEBUG")
    script.on("GET lake/branches", reply(503, {}), FINE)
    lake.branches("lake")

    texts = "\n".join([repr(lake), str(lake), repr(lake.settings), caplog.text])

    assert SECRET not in texts
    assert "Basic " not in texts


def test_the_dagster_resource_uses_its_fields_and_then_the_environment(
    script: Script, lake: LakeFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The resource's repr doesn't show the secret."""
    from spark_resources.lakefs.resource import LakeFSResource

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LAKEGC_ENDPOINT_URL", "http://elsewhere")
    monkeypatch.setenv("LAKEGC_SECRET_ACCESS_KEY", SECRET)
    resource = LakeFSResource(endpoint_url=lake.where, access_key_id="AKIATEST")

    assert resource.client().repository("lake") == lake.repository("lake")
    assert SECRET not in repr(LakeFSResource(secret_access_key=SECRET))


def test_importing_the_client_imports_neither_the_sdk_nor_dagster() -> None:
    """Importing either would take a second or more on every executor."""
    code = (
        "import sys, spark_resources.lakefs; sys.exit(any(name in sys.modules for name in ('lakefs_sdk', 'dagster')))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _traceback_of(error: BaseException) -> str:
    """Everything that a traceback of the error would show."""
    return "".join(traceback.format_exception(error))
