"""Retention rules in a file: the JSON of lakeFS's own API, or the same in YAML.

    {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]}

    default_retention_days: 21
    branches:
      - {branch_id: main, retention_days: 28}

The server accepts negative days, unknown fields and two rules for one branch without complaint, so all of this is
checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_resources.errors import WrongUsage, shortened, with_article
from spark_resources.model import Rules

if TYPE_CHECKING:
    import yaml

YAML_SUFFIXES = (".yaml", ".yml")
MAX_FILE_BYTES = 1 << 20
MAX_DAYS = 2**31 - 1  # the server stores 32 bits, and drops the others
DEFAULT, BRANCHES = "default_retention_days", "branches"
BRANCH, DAYS = "branch_id", "retention_days"
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def parse_rules(data: bytes, name: str) -> Rules:
    """The rules in a file with this name: YAML if the name has such a suffix, otherwise JSON.

    Raises `WrongUsage` with all problems.
    """
    if len(data) > MAX_FILE_BYTES:
        raise WrongUsage(
            f"{name} has {len(data):,} bytes; a file of retention rules can have at most {MAX_FILE_BYTES:,}"
        )
    plain = _read_yaml(data, name) if name.lower().endswith(YAML_SUFFIXES) else _read_json(data, name)
    if problems := list(_problems(plain)):
        listed = shortened("; ".join(problems), 2_000)
        raise WrongUsage(f"{name} has no valid retention rules: {listed}. Nothing was changed.")
    return Rules(plain[DEFAULT], {rule[BRANCH]: rule[DAYS] for rule in plain.get(BRANCHES) or ()})


def rules_document(rules: Rules) -> dict[str, Any]:
    """The rules as `parse_rules` reads them, with the branches sorted."""
    branches = [{BRANCH: branch, DAYS: days} for branch, days in sorted(rules.branch_days.items())]
    return {DEFAULT: rules.default_days, BRANCHES: branches}


def _problems(plain: Any) -> Iterator[str]:
    if not isinstance(plain, dict):
        yield f"expected an object with '{DEFAULT}' and '{BRANCHES}', not {_type_in_words(plain)}"
        return
    yield from _unknown_fields(plain, (DEFAULT, BRANCHES), "")
    yield from _days_problems(plain, DEFAULT, "")
    rules, known = plain.get(BRANCHES), set[str]()
    if rules is not None and not isinstance(rules, list):
        yield f"'{BRANCHES}' must be a list, not {_type_in_words(rules)}"
        return
    for number, rule in enumerate(rules or (), 1):
        where = f" of rule {number} in '{BRANCHES}'"
        if not isinstance(rule, dict):
            yield f"rule {number} in '{BRANCHES}' must be an object, not {_type_in_words(rule)}"
            continue
        branch = rule.get(BRANCH)
        if not isinstance(branch, str) or not branch:
            yield f"'{BRANCH}'{where} must be the name of a branch"
        elif branch in known:
            yield f"branch '{branch}' has two rules"
        else:
            known.add(branch)
            where = f" of branch '{branch}'"
        yield from _unknown_fields(rule, (BRANCH, DAYS), where)
        yield from _days_problems(rule, DAYS, where)
    if plain.get(DEFAULT) == 0 and not rules:
        yield (
            f"lakeFS stores a '{DEFAULT}' of 0 without '{BRANCHES}' as no rules at all, so nothing would ever "
            "expire; add a rule with 0 days for one branch"
        )


def _unknown_fields(plain: dict[str, Any], known: tuple[str, ...], where: str) -> Iterator[str]:
    for name in plain:
        if name not in known:
            yield f"'{name}'{where} is unknown; expected {' and '.join(known)}"


def _days_problems(plain: dict[str, Any], name: str, where: str) -> Iterator[str]:
    days = plain.get(name)
    if days is None:
        yield f"'{name}'{where} is missing"
    elif type(days) is not int:
        yield f"'{name}'{where} must be a whole number of days, not {_type_in_words(days)}"
    elif not 0 <= days <= MAX_DAYS:
        yield f"'{name}'{where} is {days}; it must be from 0 to {MAX_DAYS:,} days"


def _type_in_words(value: Any) -> str:
    """What a value is, for a message: "a list", "the text 'x'", "nothing"."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "an object"
        case list():
            return "a list"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text '{value[:40]}'"
    return f"{value}"


# --- from bytes -----------------------------------------------------------------------------------------------------


def _read_json(data: bytes, name: str) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_without_repeated)
    except (ValueError, RecursionError) as error:
        raise WrongUsage(
            f"{name} is not JSON ({error}). Expected the rules as lakeFS's API returns them; a file in YAML must be "
            f"named {' or '.join(f'*{suffix}' for suffix in YAML_SUFFIXES)}."
        ) from None


def _without_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in pairs:
        if name in plain:
            raise ValueError(f"'{name}' appears twice in {with_article('object')}")
        plain[name] = value
    return plain


def _read_yaml(data: bytes, name: str) -> Any:
    import yaml

    from spark_resources.records.plain_yaml import PlainLoader

    try:
        node = yaml.compose(data.decode(), Loader=PlainLoader)
        return None if node is None else _plain(node)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise WrongUsage(f"{name} can't be read as YAML ({reason}). Nothing was changed.") from None


def _plain(node: yaml.Node) -> Any:
    """A node as dicts, lists, text and whole numbers. A number in quotes is text, as in JSON."""
    import yaml

    if isinstance(node, yaml.MappingNode):
        return _without_repeated([(str(key.value), _plain(value)) for key, value in node.value])
    if isinstance(node, yaml.SequenceNode):
        return [_plain(value) for value in node.value]
    is_number = isinstance(node, yaml.ScalarNode) and node.style is None and _NUMBER.fullmatch(node.value)
    return int(node.value) if is_number else node.value
