"""Files of retention rules, and which retention they shorten."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lakegc_assets.rules.rules_file import (
    BRANCH,
    BRANCHES,
    DAYS,
    DEFAULT,
    MAX_DAYS,
    MAX_FILE_BYTES,
    parse_rules,
    rules_document,
)
from lakegc_assets.rules.shortened_retention import Shortened, shortened
from spark_resources.errors import WrongUsage
from spark_resources.model import Rules

RETENTION = st.integers(0, MAX_DAYS)
NAMES = st.text(st.characters(categories=["L", "N"]), min_size=1)
RULES = st.builds(Rules, RETENTION, st.dictionaries(NAMES, RETENTION))


def refused(text: str | bytes, *words: str, name: str = "rules.json") -> None:
    with pytest.raises(WrongUsage) as error:
        parse_rules(text.encode() if isinstance(text, str) else text, name)
    for word in (name, *words):
        assert word in str(error.value)


@given(RULES.filter(lambda rules: rules != Rules(0)))
def test_rules_are_read_back_from_json_and_yaml(rules: Rules) -> None:
    """Branch names that look like numbers or booleans are text, as in lakeFS."""
    document = rules_document(rules)

    assert parse_rules(json.dumps(document).encode(), "r.json") == rules
    assert parse_rules(yaml.safe_dump(document, allow_unicode=True).encode(), "r.YAML") == rules


def test_rules_are_read_from_yaml_as_people_write_it() -> None:
    """The server's own response, with `branches: null`, is also a valid file."""
    text = b"# reviewed\ndefault_retention_days: 21\nbranches:\n  - {branch_id: no, retention_days: 7}\n"

    assert parse_rules(text, "r.yml") == Rules(21, {"no": 7})
    assert parse_rules(b'{"default_retention_days": 5, "branches": null}', "r") == Rules(5)
    assert parse_rules(b"default_retention_days: 5", "r.yml") == Rules(5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["is not JSON"]),
        ("", ["is not JSON"]),
        ("default_retention_days: 5", ["is not JSON", "*.yaml"]),
        ("[" * 100_000, ["is not JSON"]),
        (b"\xff", ["is not JSON"]),
        ("[]", ["expected an object", "not a list"]),
        ("{}", ["'default_retention_days' is missing"]),
        ('{"default_retention_days": 5, "branch": []}', ["'branch' is unknown"]),
        ('{"default_retention_days": 5, "default_retention_days": 50}', ["appears twice"]),
        ('{"default_retention_days": -1}', ["is -1", "from 0"]),
        ('{"default_retention_days": 0}', ["no rules at all"]),
        ('{"default_retention_days": 2147483648}', ["is 2147483648"]),
        ('{"default_retention_days": "5"}', ["a whole number of days, not the text '5'"]),
        ('{"default_retention_days": true}', ["not true"]),
        ('{"default_retention_days": 5.0}', ["not 5.0"]),
        ('{"default_retention_days": 5, "branches": {"main": 5}}', ["'branches' must be a list"]),
        ('{"default_retention_days": 5, "branches": ["main"]}', ["rule 1 in 'branches' must be an object"]),
        ('{"default_retention_days": 5, "branches": [{"retention_days": 5}]}', ["'branch_id' of rule 1"]),
        ('{"default_retention_days": 5, "branches": [{"branch_id": "a"}]}', ["'retention_days' of branch 'a'"]),
        (
            json.dumps({DEFAULT: 5, BRANCHES: [{BRANCH: "a", DAYS: -5, "x": 1}, {BRANCH: "a", DAYS: 1}]}),
            ["'retention_days' of branch 'a' is -5", "'x' of branch 'a' is unknown", "branch 'a' has two rules"],
        ),
    ],
)
def test_a_file_that_is_invalid_or_that_the_server_would_misread_is_refused(
    text: str | bytes, words: list[str]
) -> None:
    """The server drops unknown fields, stores negative days, and lets the last of two rules for a branch win."""
    refused(text, *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["not nothing"]),
        ("a: [", ["can't be read as YAML"]),
        ("default_retention_days: &a 5\nbranches: *a", ["aliases"]),
        ("default_retention_days: !!int '5'", ["tag"]),
        ("default_retention_days: 5\ndefault_retention_days: 6", ["appears twice"]),
        ("default_retention_days: '5'", ["not the text '5'"]),
        ("default_retention_days: 010", ["not the text '010'"]),
        (b"\xff", ["can't be read as YAML"]),
    ],
)
def test_yaml_that_is_invalid_or_could_be_misread_is_refused(text: str | bytes, words: list[str]) -> None:
    """For some readers of YAML, 010 is eight."""
    refused(text, *words, name="rules.yaml")


def test_a_file_that_is_far_too_large_is_refused() -> None:
    refused(b" " * (MAX_FILE_BYTES + 1), "bytes")


def test_retention_is_shortened_by_fewer_days_and_by_a_removed_rule() -> None:
    """Longer rules, and rules for branches that don't exist, shorten nothing."""
    before, after = Rules(21, {"main": 28, "dev": 90, "a": 7, "gone": 9}), Rules(14, {"main": 28, "a": 30, "new": 3})

    assert shortened(before, after, ["main", "dev", "a", "new", "other"]) == [
        Shortened(None, 21, 14), Shortened("dev", 90, 14), Shortened("new", 21, 3)
    ]  # fmt: skip
    assert shortened(after, Rules(14, {"a": 30, "main": 28, "new": 4}), ["a", "main", "new"]) == []


@given(RULES, RULES)
def test_exactly_the_branches_with_fewer_days_are_reported_as_shortened(before: Rules, after: Rules) -> None:
    branches = sorted({*before.branch_days, *after.branch_days, "without a rule"})
    shorter = {branch for branch in branches if after.days(branch) < before.days(branch)}
    named = {change.branch for change in shortened(before, after, branches)}

    assert named - {None} == shorter - {"without a rule"}
    assert (None in named) == ("without a rule" in shorter)


def test_the_first_rules_of_a_repository_shorten_all_retention() -> None:
    """Without rules, nothing that was committed expires."""
    assert shortened(None, Rules(5, {"main": 9}), ["main"]) == [Shortened(None, None, 5), Shortened("main", None, 9)]
