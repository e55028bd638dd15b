"""The schemas that lakeFS writes into the properties of refs dumps; they are part of a dump's id (formats §3)."""

from __future__ import annotations

import json
from typing import Any

_STRING = "TYPE_STRING"
_PACKAGE = "io.treeverse.lakefs.graveler"


def _field(
    name: str, number: int, kind: str = _STRING, *, repeated: bool = False, type_name: str = ""
) -> dict[str, Any]:
    first, *rest = name.split("_")
    label = "LABEL_REPEATED" if repeated else "LABEL_OPTIONAL"
    reference = {"typeName": type_name} if type_name else {}
    json_name = first + "".join(word.capitalize() for word in rest)
    return {"name": name, "number": number, "label": label, "type": kind, **reference, "jsonName": json_name}


def _schema(name: str, *fields: dict[str, Any], nested: list[dict[str, Any]] | None = None) -> dict[str, str]:
    definition = {"name": name, "field": fields} | ({"nestedType": nested} if nested else {})
    return {"schema_name": f"{_PACKAGE}.{name}", "schema_definition": json.dumps(definition, separators=(",", ":"))}


#: The user properties of a dump's tables in addition to `type` and `entity`, by entity.
DUMP_SCHEMAS = {
    "branch": _schema(
        "BranchData",
        _field("id", 1),
        _field("commit_id", 2),
        _field("staging_token", 3),
        _field("sealed_tokens", 4, repeated=True),
        _field("hidden", 5, "TYPE_BOOL"),
    ),
    "tag": _schema("TagData", _field("id", 1), _field("commit_id", 2)),
    "commit": _schema(
        "CommitData",
        _field("id", 1),
        _field("committer", 2),
        _field("message", 3),
        _field("creation_date", 4, "TYPE_MESSAGE", type_name=".google.protobuf.Timestamp"),
        _field("meta_range_id", 5),
        _field("metadata", 6, "TYPE_MESSAGE", repeated=True, type_name=f".{_PACKAGE}.CommitData.MetadataEntry"),
        _field("parents", 7, repeated=True),
        _field("version", 8, "TYPE_INT32"),
        _field("generation", 9, "TYPE_INT32"),
        nested=[
            {"name": "MetadataEntry", "field": [_field("key", 1), _field("value", 2)], "options": {"mapEntry": True}}
        ],
    ),
}
