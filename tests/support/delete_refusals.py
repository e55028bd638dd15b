"""Batch responses of S3, Azure and Cloud Storage in which some keys are deleted and the others are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from urllib.parse import unquote, urlsplit

from spark_resources.stores import Store
from spark_resources.stores.base import DeleteResult, Deletion
from tests.support.store_proxy import CustomResponse, Plan, keys_in, kind_of

WHY = "as planned"


@dataclass(frozen=True)
class Batches:
    """A store's batch deletes: requests and responses. `refusal` is its error code for a key that can't be deleted.

    `respond` is given each object's full name, in the order of the request, and its outcome.
    """

    refusal: str
    names: Callable[[bytes], list[str]]
    respond: Callable[[Sequence[tuple[str, DeleteResult]]], CustomResponse]


def refusing(batches: Batches, refused: set[str], store: Store) -> Plan:
    """A plan that refuses to delete these keys, in the store's own form, and forwards the deletes of all others."""

    def outcome(key: str) -> DeleteResult:
        if key in refused:
            return DeleteResult(key, Deletion.FAILED, batches.refusal, WHY)
        return store.delete_many([key])[0]

    def plan(method: str, path: str, body: bytes) -> CustomResponse | None:
        names = batches.names(body) if kind_of(method, path) == "delete" else []
        keys = ["data/" + name.partition("/data/")[2] for name in names]
        if not refused & set(keys):
            return None
        return batches.respond([(name, outcome(key)) for name, key in zip(names, keys, strict=True)])

    return plan


# --- S3 -------------------------------------------------------------------------------------------------------------


def xml_names(body: bytes) -> list[str]:
    return [unescape(key) for key in keys_in(body)]


def xml_response(results: Sequence[tuple[str, DeleteResult]]) -> CustomResponse:
    parts = [
        f"<Error><Key>{escape(name)}</Key><Code>{result.code}</Code><Message>{WHY}</Message></Error>"
        if result.deletion is Deletion.FAILED
        else f"<Deleted><Key>{escape(name)}</Key></Deleted>"
        for name, result in results
    ]
    text = f"<?xml version='1.0'?><DeleteResult>{''.join(parts)}</DeleteResult>"
    return CustomResponse(200, {"content-type": "application/xml"}, text.encode())


# --- Azure and Cloud Storage: a request in each part, told apart by their ids --------------------------------------


def mixed_names(body: bytes) -> list[str]:
    """The paths of the requests in the parts. Each batch lists its parts in the order of their ids."""
    return [unquote(urlsplit(path.decode()).path) for path in re.findall(rb"^DELETE (\S+) HTTP", body, re.MULTILINE)]


def azure_response(results: Sequence[tuple[str, DeleteResult]]) -> CustomResponse:
    statuses = {Deletion.DELETED: 202, Deletion.ALREADY_GONE: 404}

    def part(result: DeleteResult) -> str:
        code = "BlobNotFound" if result.deletion is Deletion.ALREADY_GONE else result.code
        code_header = f"x-ms-error-code: {code}\r\n" if code else ""
        return f"HTTP/1.1 {statuses.get(result.deletion, 409)} {code or 'Accepted'}\r\n{code_header}\r\n"

    return mixed(202, {str(number): part(result) for number, (_, result) in enumerate(results)})


def google_response(results: Sequence[tuple[str, DeleteResult]]) -> CustomResponse:
    statuses = {Deletion.DELETED: 204, Deletion.ALREADY_GONE: 404}

    def part(result: DeleteResult) -> str:
        status = statuses.get(result.deletion, 403)
        reason = {204: "", 404: "notFound"}.get(status, result.code)
        error = {"code": status, "message": WHY, "errors": [{"reason": reason, "message": WHY}]}
        content = json.dumps({"error": error}) if reason else ""
        return f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n\r\n{content}\r\n"

    return mixed(200, {f"<response-lakegc+{number}>": part(result) for number, (_, result) in enumerate(results)})


def mixed(status: int, parts: dict[str, str]) -> CustomResponse:
    head = "--b\r\nContent-Type: application/http\r\nContent-ID: "
    body = "".join(f"{head}{number}\r\n\r\n{part}\r\n" for number, part in parts.items())
    return CustomResponse(status, {"content-type": "multipart/mixed; boundary=b"}, f"{body}--b--\r\n".encode())


S3 = Batches("AccessDenied", xml_names, xml_response)
AZURE = Batches("BlobImmutableDueToPolicy", mixed_names, azure_response)
GOOGLE = Batches("retentionPolicyNotMet", mixed_names, google_response)
