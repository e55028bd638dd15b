"""Preconditions of a mark: owner, lease, clocks, rules and store; and the messages with which it is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from spark_resources.lakefs_sandbox.gc_api import set_rules
from spark_resources.mark_store.lease import LEASE_KEY, take_lease
from spark_resources.mark_store.mark import OWNER_KEY, claim_namespace
from spark_resources.model import Rules
from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.support.s3_servers import MotoServer
from tests.support.tampering_proxy import tampering_proxy


@pytest.mark.parametrize(
    "other_namespace",
    [
        *("local://{0}", "local://{0}/inside", "LOCAL://{0}//inside/", "local://{1}/{0}", "local://{1}/{0}/inside"),
        *("local://{1}", "local://other/../{0}", "local://./{0}/inside"),
    ],
)
def test_a_namespace_that_overlaps_that_of_another_repository_is_refused(
    lakegc: Lakegc, lake: Lake, other_namespace: str
) -> None:
    """The error names both repositories.

    projectnessie/nessie#12363
    """

    def one_more(response: dict[str, object]) -> None:
        results = response["results"]
        assert isinstance(results, list)
        other = {"id": "neighbor", "storage_namespace": other_namespace.format(lake.name, lake.folder.parent)}
        results.append({**results[0], **other})
        response["pagination"]["results"] = len(results)  # type: ignore[index]

    lake.server.after("/repositories", one_more)
    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, lake.name, "neighbor", "overlaps")
    assert lake.records() == []


def test_a_namespace_owned_by_another_repository_is_refused(lakegc: Lakegc, lake: Lake) -> None:
    """The owner file stays unchanged."""
    created = datetime(2026, 1, 1, tzinfo=UTC)
    claim_namespace(lake.target.place, "somebody-else", created)
    before = (lake.folder / OWNER_KEY).read_bytes()

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, "somebody-else", "2026-01-01", OWNER_KEY)
    assert lake.records() == []
    assert (lake.folder / OWNER_KEY).read_bytes() == before


@pytest.mark.parametrize("owner", [b"", b"[]", b'{"repository": "x"}', b"\xff"])
def test_a_mark_is_refused_if_the_owner_file_is_unreadable(lakegc: Lakegc, lake: Lake, owner: bytes) -> None:
    """The file isn't replaced."""
    place = lake.target.place
    place.store().write(OWNER_KEY, owner)

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, OWNER_KEY, "unreadable")
    assert place.store().read(OWNER_KEY) == owner


@pytest.mark.parametrize("later", [timedelta(hours=3), timedelta(hours=-3)])
def test_clocks_that_differ_by_more_than_the_bound_stop_the_mark(lakegc: Lakegc, lake: Lake, later: timedelta) -> None:
    """The error shows all clocks and the setting for the bound."""
    lake.server.date_offset = later

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, "clocks", "the lakeFS server", "LAKEGC_MAX_CLOCK_SKEW")
    assert lake.records() == []


def test_a_read_only_repository_is_refused_before_anything_is_written(lakegc: Lakegc, lake: Lake) -> None:
    """lakeFS can't prepare the lists that a mark needs."""
    lake.server.after(f"/{lake.name}", lambda response: response.update(read_only=True))

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(1, lake.name, "read-only")
    assert lake.records() == []


def test_a_mark_is_refused_while_another_run_holds_the_lease(lakegc: Lakegc, lake: Lake) -> None:
    """The message names the holder and the lease's expiry."""
    store = lake.target.place.store()
    lease = take_lease(store, who="anna@laptop", mark_id="m-anna", token="anna's", single_deployment=False)
    lease_file = store.read(LEASE_KEY)
    until = datetime.fromisoformat(json.loads(lease_file)["until"])
    try:
        outcome = lakegc(lake.settings, "mark", lake.name, *NO_AGE)
    finally:
        lease.release()

    outcome.stopped(3, "anna@laptop", "m-anna", f"{until:%Y-%m-%d %H:%M:%S}")
    assert lake.records() == []


def test_a_mark_is_refused_if_the_lease_is_unreadable(lakegc: Lakegc, lake: Lake) -> None:
    """The mark never takes the lease over."""
    store = lake.target.place.store()
    store.write(LEASE_KEY, b"{}")

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, LEASE_KEY, "can't be read")
    assert store.read(LEASE_KEY) == b"{}"


def test_a_store_without_conditional_writes_is_refused(lakegc: Lakegc, lake: Lake, moto_server: MotoServer) -> None:
    """The message names the setting that permits such a store for a single deployment."""
    moto_server.make_bucket("fault-conditions")
    lake.server.after("/config", lambda response: response["storage_config"].update(blockstore_type="s3"))
    lake.server.after(
        f"/{lake.name}", lambda response: response.update(storage_namespace=f"s3://fault-conditions/{lake.name}")
    )
    with tampering_proxy(moto_server.endpoint_url) as store:
        store.dropped = frozenset({"if-none-match", "if-match"})
        keys = {"s3_access_key_id": "any", "s3_secret_access_key": "any", "s3_region": "us-east-1"}
        settings = {**lake.settings, **keys, "s3_endpoint_url": store.endpoint}

        lakegc(settings, "mark", lake.name, *NO_AGE).stopped(
            3, "fault-conditions", "conditional writes", "LAKEGC_SINGLE_DEPLOYMENT"
        )


def test_a_change_to_the_rules_during_a_mark_stops_the_mark(lakegc: Lakegc, lake: Lake) -> None:
    """Otherwise, the mark would apply two different sets of rules."""
    lake.server.after("/prepare_commits/status", lambda _: set_rules(lake.repository, Rules(3)))

    lakegc(lake.settings, "mark", lake.name, *NO_AGE).stopped(3, "rules", lake.name, "Make a new mark")
    lake.check_no_finished_mark()
