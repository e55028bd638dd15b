"""Each target with its intact inputs, and with a few random changes to them; `python -m tests.fuzz` runs many more."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import target as fuzzing
from tests.fuzz.all_targets import TARGETS
from tests.fuzz.target import Kind

CHANGES = {"table-files": 60, "addresses": 100, "configuration": 60}
DEFAULT = 300
ONLY_REFUSED = {"permit", "error of Google Cloud", "error of lakeFS", "rules", "blocks"}  # or never counted as read
KINDS = [(target.name, kind) for target in TARGETS.values() for kind in target.kinds]


@pytest.mark.parametrize(("target", "kind"), KINDS, ids=lambda value: getattr(value, "name", value))
def test_intact_inputs_are_read(target: str, kind: Kind) -> None:
    """If they weren't, changes to them would only test refusals."""
    before = fuzzing.accepted
    for seed in kind.seeds():
        kind.check(seed)

    assert fuzzing.accepted > before or kind.name in ONLY_REFUSED


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_are_read_or_refused_with_a_message(name: str) -> None:
    """No changed input raises a different exception, or gives a value that contradicts itself."""
    target, random = TARGETS[name], Random(1)
    seeds = target.seeds()
    for _ in range(CHANGES.get(name, DEFAULT)):
        data = target.mutate(random.choice(seeds), random)
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"{name}: {data!r}") from error
