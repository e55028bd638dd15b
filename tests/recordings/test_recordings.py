"""Every recording of a real server, marked over a real S3 server: exactly the true expired set."""

from __future__ import annotations

import functools
import uuid
from collections import Counter

import pyarrow as pa
import pytest

from lakegc_assets.queries.addresses import Decision, explain_addresses
from lakegc_assets.queries.comparison import Variant, what_if
from lakegc_assets.queries.pinned import pins_of
from spark_resources.model import Rules
from tests.support import oracle
from tests.support.mark_runs import NO_MINIMUM_AGE, marked_by_job
from tests.support.recorded_marks import history_of, recorded_mark
from tests.support.recorded_oracle import RecordedOracle, microseconds
from tests.support.recording_folders import recordings
from tests.support.replay_server import Recording, replaying, settings_over, upload_to_s3
from tests.support.s3_servers import SeaweedFS

ALL = recordings()
oracle_of = functools.cache(RecordedOracle)  # it decodes all tables


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: str(recording.name))
def test_the_expired_set_of_a_recorded_repository_is_exactly_the_expected_one(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """No object is missing, and none is added."""
    with recorded_mark(recording, seaweedfs) as (_, mark):
        assert recording.expired() == mark.expired


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: str(recording.name))
def test_explanations_of_all_addresses_of_a_recorded_repository_are_correct(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """Each address that is stored or that anything refers to has the right decision. A kept object has a reason, and
    each reason is true, by the oracle."""
    known = oracle_of(recording)
    committed, live = known.committed(known.retained(known.heads)), known.committed(set(known.commits)) | known.staged
    with recorded_mark(recording, seaweedfs) as (settings, mark):
        history = history_of(settings, mark)
        verdicts = history.verdicts.to_pylist()
        rows = explain_addresses(history, pa.array(sorted(live | recording.listing.keys()))).to_pylist()
        again = {
            verdict.commit_id: (verdict.retained, verdict.branch, verdict.until) for verdict in history.verdicts_with()
        }

    assert {row["address"] for row in rows} == live | recording.listing.keys()
    assert {row["address"] for row in rows if row["decision"] == Decision.EXPIRED} == recording.expired()
    for row in rows:
        address, reasons = row["address"], set(row["kept_by"])
        if not oracle.is_candidate(address):
            assert row["decision"] == Decision.NEVER_COLLECTED, row
        elif address not in recording.listing:
            assert row["decision"] == Decision.NOT_STORED, row
        elif address not in recording.expired():
            assert row["decision"] == Decision.KEPT, row
            assert reasons, row
        assert ("committed" in reasons) is (address in committed), row
        assert address not in known.staged or "staged" in reasons, row
        assert "staged" not in reasons or address in known.staged | known.served, row
        assert "branch" not in reasons or address in known.served or row["detail"], row
        assert reasons <= {"committed", "staged", "branch", "meanwhile", "dot_segment"}, row
        if row["kept_until"] is not None:
            assert microseconds(row["kept_until"]) == known.kept_until(address), row
        elif reasons == {"committed"}:
            assert known.kept_until(address) == oracle.FOR_EVER, row
    assert again == {row["commit_id"]: (row["retained"], row["branch"], row["until"]) for row in verdicts}


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: str(recording.name))
def test_each_branch_and_commit_pins_what_would_be_garbage_without_it(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """The oracle computes what would be garbage without the branch, or if the commit expired."""
    known = oracle_of(recording)
    with recorded_mark(recording, seaweedfs) as (settings, mark):
        pins = pins_of(history_of(settings, mark)).to_pylist()

    found = {(pin["kind"], pin["name"]): (pin["objects"], pin["bytes"]) for pin in pins}
    expected = {("branch", branch): known.pinned_by_branch(branch) for branch in known.heads}
    of_commits = {("commit", commit): known.pinned_by_commit(commit) for commit in known.retained(known.heads)}
    expected |= {pin: keys for pin, keys in of_commits.items() if keys}
    assert found == {pin: (len(keys), sum(map(recording.listing.get, keys))) for pin, keys in expected.items()}


def variants_of(recording: Recording, known: RecordedOracle) -> list[Variant]:
    """The recording's own rules, very different ones, and its own rules without each of some branches."""
    rules, default = recorded_rules(recording), recording.api("repository")["body"]["default_branch"]
    variants = [
        Variant("own rules", rules),
        Variant("no rules", None),
        Variant("no retention", Rules(0)),
        Variant("one day", Rules(1, {default: 20})),
        Variant("ten days", Rules(10, {default: 3})),
        Variant("for ever", Rules(1_000_000)),
    ]
    others = sorted(known.heads.keys() - {default})
    variants += [Variant(f"without {branch}", rules, frozenset({branch})) for branch in others[:3]]
    return [*variants, Variant("no retention, without several", Rules(0), frozenset(others[1:9]))]


def recorded_rules(recording: Recording) -> Rules | None:
    rules = recording.meta["rules"]
    if rules is None:
        return None
    days = {rule["branch_id"]: rule["retention_days"] for rule in rules["branches"]}
    return Rules(rules["default_retention_days"], days)


@pytest.mark.parametrize("recording", ALL, ids=lambda recording: str(recording.name))
def test_what_if_expires_exactly_what_the_oracle_expires_in_every_variant(
    recording: Recording, seaweedfs: SeaweedFS
) -> None:
    """All variants come from one pass. The recording's own rules give the expired set itself, also by branch."""
    known = oracle_of(recording)
    variants = variants_of(recording, known)
    with recorded_mark(recording, seaweedfs) as (settings, mark):
        result, expired_rows = what_if(history_of(settings, mark), variants), mark.expired_rows()

    own = known.expired_with(variants[0].rules)
    assert own == recording.expired()
    for variant, row in zip(variants, result.totals.to_pylist(), strict=True):
        expired = known.expired_with(variant.rules, variant.dropped)
        expected = {"objects": expired, "more_objects": expired - own, "fewer_objects": own - expired}
        for name, objects in expected.items():
            assert row[name] == len(objects), variant.name
            assert row[name.replace("objects", "bytes")] == sum(map(recording.listing.__getitem__, objects))
    by_branch = {
        (row["branch"], row["committed"]): row["objects"]
        for row in result.by_branch.to_pylist()
        if row["variant"] == "own rules"
    }
    assert by_branch == Counter((row["branch"], row["commit_id"] is not None) for row in expired_rows)


@pytest.mark.parametrize("recording", ALL[-1:], ids=lambda recording: str(recording.name))
def test_the_dagster_job_expires_exactly_the_expected_objects(recording: Recording, seaweedfs: SeaweedFS) -> None:
    upload_to_s3(recording, seaweedfs.client())
    with replaying(recording) as endpoint:
        settings = settings_over(endpoint, seaweedfs)
        mark = marked_by_job(settings, recording.repository, f"replay-{uuid.uuid4().hex}", NO_MINIMUM_AGE)
        assert recording.expired() == mark.expired
