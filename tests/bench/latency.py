"""How long marks take with a distant store that is reached as on AWS, by phase and latency.

    uv run python -m tests.bench.latency --size M --folder /tmp/bench --latencies 0 0.03 0.1

A TLS proxy in front of SeaweedFS delays each answer. The bucket is in the host name, and the credentials have a session
token. The host names have to lead to this machine:

    127.0.0.1 s3.lakegc.test bench-bucket.s3.lakegc.test    # in /etc/hosts
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import urllib3
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tests.bench.generate import built, folder_of, size_of
from tests.bench.mark import check, finished_mark, forget_marks, lakegc, options_of
from tests.bench.sizes import SIZES
from tests.bench.stores import BUCKET, REPOSITORY, Serving
from tests.support.certificates import write_certificate
from tests.support.replay_server import serving

DOMAIN = "s3.lakegc.test"
_CONNECTION = frozenset({"connection", "transfer-encoding", "content-length", "server", "date", "keep-alive"})
_SIGNATURE = ("authorization", "x-amz-", "host", "content-length", "connection")
AT_ONCE = 64


@dataclass
class FarStore:
    """Forwards requests for the bucket in the host name to a store with the bucket in the path, which lets anyone in,
    and delays the answers by `latency_s`."""

    upstream: str
    latency_s: float = 0.0
    requests: int = 0
    _pool: urllib3.PoolManager = field(
        default_factory=lambda: urllib3.PoolManager(retries=False, maxsize=AT_ONCE, block=False)
    )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        body = await request.body()
        await asyncio.sleep(self.latency_s)
        self.requests += 1
        answer = await run_in_threadpool(self._forward, request, body)
        headers = [(k.lower().encode(), v.encode()) for k, v in answer.headers.items() if k.lower() not in _CONNECTION]
        length = answer.headers.get("content-length", "0") if request.method == "HEAD" else str(len(answer.data))
        headers += [(b"content-length", length.encode()), (b"date", answer.headers["date"].encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.data})

    def _forward(self, request: Request, body: bytes) -> urllib3.BaseHTTPResponse:
        query = f"?{request.url.query}" if request.url.query else ""
        path = f"{self.upstream}/{BUCKET}{request.scope['raw_path'].decode()}{query}"
        headers = {k: v for k, v in request.headers.items() if not k.startswith(_SIGNATURE)}
        source = request.headers.get("x-amz-copy-source")
        headers |= {"x-amz-copy-source": source} if source else {}
        return self._pool.request(request.method, path, body=body, headers=headers, decode_content=False)


def environment(endpoint: str, certificate: Path) -> Mapping[str, str]:
    return {
        "LAKEGC_S3_ENDPOINT_URL": endpoint.replace("127.0.0.1", DOMAIN),
        "LAKEGC_S3_PATH_STYLE": "false",
        "LAKEGC_S3_CA_BUNDLE": str(certificate),
        "LAKEGC_S3_SESSION_TOKEN": "temporary",
    }


def measure(served: Serving, far: FarStore, variables: Mapping[str, str], home: Path, history: Any) -> str:
    """Mark once. Returns a line with the seconds of each phase."""
    forget_marks(served)
    mark_id, before = f"bench-{datetime.now(UTC):%Y%m%dT%H%M%S}", far.requests
    measured = lakegc(
        served, ["mark", REPOSITORY, "--mark-id", mark_id, *options_of("s3", home.parent)], home, variables
    )
    check(finished_mark(served, mark_id), history)
    phases = ", ".join(f"{name} {phase.seconds:.1f}" for name, phase in measured.phases.items())
    return f"{measured.seconds:.1f} s, {far.requests - before:,} requests: {phases}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="M")
    parser.add_argument("--factor", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.0, 0.03, 0.1])
    parser.add_argument("--runs", type=int, default=2)
    chosen = parser.parse_args()
    size = size_of(chosen.size, chosen.factor)
    folder = folder_of(chosen.folder, size, "s3")
    with tempfile.TemporaryDirectory() as temporary, built(folder, size, "s3", print) as (served, history):
        assert served.store is not None
        certificate = write_certificate(Path(temporary), [DOMAIN, f"*.{DOMAIN}"])
        far = FarStore(served.store.endpoint_url)
        tls = {"ssl_certfile": str(certificate.certificate), "ssl_keyfile": str(certificate.key)}
        with serving(far, **tls) as endpoint:
            variables = environment(endpoint, certificate.certificate)
            measure(served, far, variables, folder / "dagster", history)  # probes the store
            for _ in range(chosen.runs):
                for far.latency_s in chosen.latencies:
                    line = measure(served, far, variables, folder / "dagster", history)
                    print(f"{far.latency_s * 1000:g} ms: {line}", flush=True)


if __name__ == "__main__":
    main()
