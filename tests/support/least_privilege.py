"""The S3 policies of the page on permissions, and a proxy's plan that enforces them on each request."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from spark_resources.stores import Store
from spark_resources.stores.base import DeleteResult, Deletion
from tests.support.delete_refusals import S3
from tests.support.store_proxy import ERROR, CustomResponse, Fault, kind_of

PAGE = Path(__file__).parents[2] / "docs" / "permissions.md"
BUCKET = "my-bucket"


@dataclass(frozen=True)
class Permission:
    """What a request needs: an action on a bucket or on an object, and for listings their prefix."""

    action: str
    resource: str
    prefix: str = ""


def documented_policies(section: str) -> list[dict[str, Any]]:
    """The JSON documents of a section of the page."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


def s3_statements(*sids: str, bucket: str) -> list[Mapping[str, Any]]:
    """The statements with these ids, for a different bucket from the page's."""
    statements = [statement for policy in documented_policies("S3") for statement in policy["Statement"]]
    found = [statement for statement in statements if statement["Sid"] in sids]
    assert len(found) == len(sids), sids
    for_bucket: list[Mapping[str, Any]] = json.loads(json.dumps(found).replace(BUCKET, bucket))
    return for_bucket


def is_allowed(needed: Permission, statements: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some statement allows it, as AWS evaluates them: `*` and `?` also match slashes."""

    def listed(value: str | list[str]) -> list[str]:
        return [value] if isinstance(value, str) else value

    def allows(statement: Mapping[str, Any]) -> bool:
        prefixes = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", "*")
        return (
            needed.action in listed(statement["Action"])
            and any(fnmatch.fnmatchcase(needed.resource, pattern) for pattern in listed(statement["Resource"]))
            and any(fnmatch.fnmatchcase(needed.prefix, pattern) for pattern in listed(prefixes))
        )

    return any(map(allows, statements))


def needed_by(method: str, path: str, body: bytes) -> Iterator[tuple[str, Permission]]:
    """Each key of a request, and the permission for it."""
    where, _, query = path.partition("?")
    bucket, _, key = unquote(where).lstrip("/").partition("/")
    arn, options = f"arn:aws:s3:::{bucket}", parse_qs(query, keep_blank_values=True)
    if kind_of(method, path) == "delete":
        yield from ((name, Permission("s3:DeleteObject", f"{arn}/{name}")) for name in S3.names(body))
    elif not key:
        action = "s3:GetBucketVersioning" if "versioning" in options else "s3:ListBucket"
        yield "", Permission(action, arn, options.get("prefix", [""])[0])
    else:
        actions = {"GET": "s3:GetObject", "HEAD": "s3:GetObject", "DELETE": "s3:DeleteObject"}
        yield key, Permission(actions.get(method, "s3:PutObject"), f"{arn}/{key}")


@dataclass
class Enforced:
    """A plan that refuses what the statements don't allow, key by key. `refused` and `used` have every permission that
    was missing or used. `root` is the namespace's path in the bucket, with a slash."""

    statements: Sequence[Mapping[str, Any]]
    store: Callable[[], Store]
    root: str
    refused: set[Permission] = field(default_factory=set)
    used: set[Permission] = field(default_factory=set)

    def __call__(self, method: str, path: str, body: bytes) -> Fault | CustomResponse | None:
        needed = list(needed_by(method, path, body))
        missing = {key: one for key, one in needed if not is_allowed(one, self.statements)}
        self.refused |= set(missing.values())
        self.used |= {one for _, one in needed}
        if not missing:
            return None
        if kind_of(method, path) == "delete":
            return S3.respond([(key, self._deleted(key, allowed=key not in missing)) for key, _ in needed])
        return CustomResponse(403, {"content-type": "application/xml"}, ERROR.format("AccessDenied").encode())

    def _deleted(self, name: str, *, allowed: bool) -> DeleteResult:
        key = name.removeprefix(self.root)
        return self.store().delete_many([key])[0] if allowed else DeleteResult(key, Deletion.FAILED, S3.refusal)
