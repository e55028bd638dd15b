"""The review of an object whose explanation can't be read."""

from __future__ import annotations

import json

from spark_resources.model import ExpiredReason
from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.fault.test_damaged import range_ids, table, truncate


def test_the_expiry_reason_is_unknown_if_a_damaged_commit_may_refer_to_the_object(lakegc: Lakegc, lake: Lake) -> None:
    """The review names the damaged range of the expired commit."""
    (only_expired,) = set(range_ids(lake, lake.commits[0])) - set(range_ids(lake, lake.commits[1]))
    lake.server.after("/prepare_commits/status", lambda _: truncate(table(lake, only_expired)))

    outcome = lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE)
    document = json.loads(lakegc(lake.settings, "review", lake.name, "m1", "--format", "json").out)
    output = lakegc(lake.settings, "review", lake.name, "m1").out

    assert outcome.code == 0, outcome.err
    assert [(row["reason"], row["objects"]) for row in document["by_reason"]] == [(ExpiredReason.UNKNOWN.value, 1)]
    assert only_expired in document["unexplained"]
    assert only_expired in output.replace("\n", "")
    assert "not known" in output
