"""Whose the namespace is, whose turn it is, and which time and rules hold: what forbids a mark, and who is told."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from spark_resources.lease import LEASE_KEY, take_lease
from spark_resources.marks import OWNER_KEY, claim_namespace
from spark_resources.model import Rules
from spark_resources.sandbox.gc_api import set_rules
from tests.fault.between import between
from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.servers import MotoServer


@pytest.mark.parametrize("theirs", ["local://{}", "local://{}/inside", "LOCAL://{}//inside/"])
def test_two_repositories_on_overlapping_namespaces_refused(lakegc: Lakegc, lake: Lake, theirs: str) -> None:
    """A namespace in, around or at the place of another repository's is refused, and both are named.

    projectnessie/nessie#12363
    """

    def one_more(said: dict[str, object]) -> None:
        results = said["results"]
        assert isinstance(results, list)
        other = {"id": "neighbour", "storage_namespace": theirs.format(lake.name)}
        results.append({**results[0], **other})
        said["pagination"]["results"] = len(results)  # type: ignore[index]

    lake.server.after("/repositories", one_more)
    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, lake.name, "neighbour", "overlaps")
    assert lake.records() == []


def test_the_namespace_of_somebody_else(lakegc: Lakegc, lake: Lake) -> None:
    """A namespace that carries another repository's mark of ownership is refused; that mark stays as it is."""
    created = datetime(2026, 1, 1, tzinfo=UTC)
    claim_namespace(lake.target.place, "somebody-else", created)
    before = (lake.folder / OWNER_KEY).read_bytes()

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, "somebody-else", "2026-01-01", OWNER_KEY)
    assert lake.records() == []
    assert (lake.folder / OWNER_KEY).read_bytes() == before


@pytest.mark.parametrize("owner", [b"", b"[]", b'{"repository": "x"}', b"\xff"])
def test_an_unreadable_owner_is_nobody(lakegc: Lakegc, lake: Lake, owner: bytes) -> None:
    """An owner's mark that can't be read is refused, not replaced."""
    place = lake.target.place
    place.store().write(OWNER_KEY, owner)

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, OWNER_KEY, "unreadable")
    assert place.store().read(OWNER_KEY) == owner


@pytest.mark.parametrize("later", [timedelta(hours=3), timedelta(hours=-3)])
def test_a_clock_that_is_hours_off(lakegc: Lakegc, lake: Lake, later: timedelta) -> None:
    """Clocks further apart than the bound stop the mark, and are all shown; a raised bound lets it pass the check."""
    lake.server.later = later

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, "clocks", "the lakeFS server", "LAKEGC_MAX_CLOCK_SKEW")
    assert lake.records() == []


def test_a_read_only_repository(lakegc: Lakegc, lake: Lake) -> None:
    """A read-only repository is a clear failure before anything is written."""
    lake.server.after(f"/{lake.name}", lambda said: said.update(read_only=True))

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(1, lake.name, "read-only")
    assert lake.records() == []


def test_two_runs_at_once(lakegc: Lakegc, lake: Lake) -> None:
    """While another run holds the lease, a mark is refused and told who and until when; its lease stays."""
    store = lake.target.place.store()
    lease = take_lease(store, who="anna@laptop", mark_id="m-anna", token="anna's", single_deployment=False)
    held = store.read(LEASE_KEY)
    until = datetime.fromisoformat(json.loads(held)["until"])
    try:
        outcome = lakegc(lake.settings, "mark", lake.name, *NO_AGE)
    finally:
        lease.release()

    outcome.stopped(3, "anna@laptop", "m-anna", f"{until:%Y-%m-%d %H:%M:%S}")
    assert lake.records() == []


def test_an_unreadable_lease_is_free(lakegc: Lakegc, lake: Lake) -> None:
    """A lease that can't be read is refused and named, never taken over."""
    store = lake.target.place.store()
    store.write(LEASE_KEY, b"{}")

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, LEASE_KEY, "can't be read")
    assert store.read(LEASE_KEY) == b"{}"


def test_a_store_that_ignores_conditions(lakegc: Lakegc, lake: Lake, moto_server: MotoServer) -> None:
    """A store without conditional writes is refused before a mark begins, with the setting that says it is harmless."""
    moto_server.make_bucket("fault-conditions")
    lake.server.after("/config", lambda said: said["storage_config"].update(blockstore_type="s3"))
    lake.server.after(f"/{lake.name}", lambda said: said.update(storage_namespace=f"s3://fault-conditions/{lake.name}"))
    with between(moto_server.endpoint_url) as store:
        store.dropped = frozenset({"if-none-match", "if-match"})
        keys = {"s3_access_key_id": "any", "s3_secret_access_key": "any", "s3_region": "us-east-1"}
        settings = {**lake.settings, **keys, "s3_endpoint_url": store.endpoint}

        lakegc(settings, "mark", lake.name, *NO_AGE).stopped(
            3, "fault-conditions", "conditional writes", "LAKEGC_SINGLE_DEPLOYMENT"
        )


def test_rules_changed_while_it_marks(lakegc: Lakegc, lake: Lake) -> None:
    """Rules that change in the middle of a mark stop it: it would go by two sets of rules."""
    lake.server.after("/prepare_commits/status", lambda _: set_rules(lake.repository, Rules(3)))

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, "rules", lake.name, "Make a new mark")
    lake.has_no_finished_mark()
