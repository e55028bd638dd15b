"""Files that people write: the fleet file, retention rules and holds. Each is refused, or gives what it says."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from lakegc_assets.rules.rules_file import parse_rules, rules_document
from spark_resources.errors import WrongUsage
from spark_resources.mark_store.hold_file import parse_holds, render_holds
from spark_resources.settings import Settings
from tests.fuzz import namespace
from tests.fuzz.mutations import mutate_json, mutate_with, splice
from tests.fuzz.records import HOLDS
from tests.fuzz.target import Kind, Target, require, value_or_refusal

FLEET = b"""\
min_age = "48h"
trusted_repositories = ["scratch-*", "archive"]
mark_scope = "committed"
brake_share = 0.1
spark_conf = {"spark.driver.memory" = "4g"}

[servers.lab]
endpoint_url = "http://lab:8000"

[repositories."lab/lake-*"]
brake_share = 0.2
min_age = "3d"

[[repositories.lake-main.holds]]
id = "legal"
tags = "v*"
owner = "ada"
reason = "because"
"""
RULES = {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}
YAML = b"default_retention_days: 21\nbranches:\n  - {branch_id: main, retention_days: 28}\n"
TOML_PARTS = (b'[repositories."*"]\n', b"[servers.a]\n", b"= 1e999\n", b"'''", b"[[", b"]]", b" = true\n", b"\n[a.b]\n",
              b"repository = 'x'\n", b"0x", b"1979-05-27", b"{}", b'"\\u0000"', b"servers = 1\n", b"nan")  # fmt: skip
YAML_PARTS = (b"&a ", b"*a", b"!!int ", b"- ", b"? ", b": ", b"{", b"[", b"|", b">", b"%YAML 1.1\n", b"---\n", b"<<: ",
              b"\x85", b"\xef\xbb\xbf", b"\t", b"'", b'"', b"# ", b"~", b"0x10", b"2026-11-21")  # fmt: skip
REPOSITORIES = (None, "lake-main", "lab/lake-1", "other")


def _check_fleet(data: bytes) -> None:
    """The file is refused as a whole, or the settings of each repository are valid or refused."""
    namespace.put("lakegc.toml", data)
    folder = namespace.path_of("lakegc.toml").parent
    for repository in REPOSITORIES:
        value_or_refusal(
            partial(Settings.load, {}, Path("/nonexistent"), repository=repository, directory=folder), "", (WrongUsage,)
        )


def _check_rules(name: str, data: bytes) -> None:
    rules = value_or_refusal(partial(parse_rules, data, name), name, (WrongUsage,))
    if rules is not None:
        again = parse_rules(json.dumps(rules_document(rules)).encode(), "again.json")
        require(again == rules, f"{rules} are other rules after they were written again")


def _check_holds(data: bytes) -> None:
    found = value_or_refusal(partial(parse_holds, data, "here"), "here")
    if found is not None:
        require(
            parse_holds(render_holds(found), "again") == found, f"{found} are other holds after being written again"
        )


KINDS = [
    Kind("fleet file", lambda: [FLEET, b""], _check_fleet, splice(TOML_PARTS)),
    Kind("rules in JSON", lambda: [json.dumps(RULES).encode()], partial(_check_rules, "rules.json"),
         mutate_with(mutate_json, splice(YAML_PARTS))),
    Kind("rules in YAML", lambda: [YAML], partial(_check_rules, "rules.yaml"), splice(YAML_PARTS)),
    Kind("holds", lambda: [HOLDS], _check_holds, splice(YAML_PARTS)),
]  # fmt: skip
TARGETS = [Target("configuration", KINDS)]
