"""A mark and sweeps with the smallest permissions in a store, as documented. SeaweedFS has an identity for each, and a
proxy in front of it evaluates the policies of the page, because SeaweedFS's identities don't distinguish writing from
deleting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from botocore.exceptions import ClientError

from lakegc_assets.sweep.preconditions import SweepOptions
from spark_resources.errors import Forbidden
from spark_resources.lakefs_sandbox import Sandbox, StorePlace
from spark_resources.mark_store.mark import Mark
from spark_resources.model import MarkState
from spark_resources.stores import Store
from tests.support.clocks import later
from tests.support.least_privilege import Enforced, s3_statements
from tests.support.mark_runs import ANY_AGE, Marker, Sweeper, target_of
from tests.support.s3_servers import LIMITED, LIMITED_NAMESPACE, LIMITED_SECRET_KEY, SeaweedFS
from tests.support.store_proxy import store_proxy

BUCKET, _, PATH = LIMITED_NAMESPACE.partition("/")
MARKER, SWEEPER, QUARANTINER = LIMITED
OF_A_MARK = ("List", "Versioning", "Read", "OwnFiles")
OF_A_SWEEP = (*OF_A_MARK, "Sweep")
LEGACY = "0123456789abcdef0123456789abcdef"
GARBAGE = {"data/s/a", "data/s/b", LEGACY}


@dataclass
class Runs:
    """What became of a repository's garbage, and the permissions that each run used and lacked."""

    seaweedfs: SeaweedFS
    refusal: str = ""
    left: dict[str, set[str]] = field(default_factory=dict)
    states: dict[str, MarkState] = field(default_factory=dict)
    enforced: dict[str, Enforced] = field(default_factory=dict)


@pytest.fixture(scope="module")
def runs(seaweedfs: SeaweedFS, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    seaweedfs.make_bucket(BUCKET)
    done = Runs(seaweedfs)
    place = StorePlace(f"s3://{BUCKET}", seaweedfs.settings())
    with (
        store_proxy(seaweedfs.endpoint_url) as proxy,
        Sandbox(tmp_path_factory.mktemp("least"), place=place) as sandbox,
    ):
        lake = sandbox.create(PATH)
        lake.put("main", "kept", b"kept")

        def store() -> Store:
            return target_of(sandbox.settings, "lake").place.store()

        def limited_to(name: str, access_key: str, *statements: str) -> dict[str, str]:
            proxy.plan = done.enforced[name] = Enforced(s3_statements(*statements, bucket=BUCKET), store, f"{PATH}/")
            credentials = {"s3_access_key_id": access_key, "s3_secret_access_key": LIMITED_SECRET_KEY}
            return {**sandbox.settings, **credentials, "s3_endpoint_url": proxy.endpoint}

        def note(name: str) -> None:
            done.left[name] = {stored.key for page in store().pages("") for stored in page.objects} & GARBAGE
            done.states[name] = Mark.open(target_of(sandbox.settings, "lake").place, name[-2:]).record.state

        def marked(mark_id: str) -> None:
            for key in GARBAGE:
                lake.objects.write(key, b"garbage")
            later(store(), store().now())
            settings = limited_to(f"mark {mark_id}", MARKER, *OF_A_MARK)
            Marker().mark(settings, "lake", mark_id, replace(ANY_AGE, full=True))
            Sweeper().approve(settings, "lake", mark_id)
            note(f"mark {mark_id}")

        marked("m1")
        with pytest.raises(Forbidden) as refused:
            Sweeper().sweep(limited_to("refused m1", MARKER, *OF_A_MARK), "lake", "m1", SweepOptions())
        done.refusal = str(refused.value)
        note("refused m1")
        Sweeper().sweep(limited_to("sweep m1", SWEEPER, *OF_A_SWEEP), "lake", "m1", SweepOptions())
        note("sweep m1")
        marked("m2")
        to_quarantine = limited_to("quarantine m2", QUARANTINER, *OF_A_SWEEP, "Quarantine")
        Sweeper().sweep(to_quarantine, "lake", "m2", SweepOptions(quarantine=True))
        note("quarantine m2")
        yield done


def test_a_mark_and_its_approval_need_only_the_documented_permissions(runs: Runs) -> None:
    for name in ("mark m1", "mark m2"):
        assert runs.enforced[name].refused == set()
        assert runs.left[name] == GARBAGE
        assert runs.states[name] is MarkState.APPROVED


def test_a_sweep_with_the_credentials_of_a_mark_deletes_no_object(runs: Runs) -> None:
    """The sweep ends at its first object, and the error names the missing permission. SeaweedFS itself also refuses
    such deletes."""
    marker = replace(runs.seaweedfs, access_key=MARKER, secret_key=LIMITED_SECRET_KEY).client()
    table = f"_lakefs/{'0' * 64}"
    runs.seaweedfs.client().put_object(Bucket=BUCKET, Key=f"{PATH}/{table}", Body=b"table")
    for key in ("data/s/a", LEGACY, table, "_lakefs/retention/gc/rules/config.json"):
        with pytest.raises(ClientError, match="AccessDenied"):
            marker.delete_object(Bucket=BUCKET, Key=f"{PATH}/{key}")
        with pytest.raises(ClientError, match="AccessDenied"):
            marker.put_object(Bucket=BUCKET, Key=f"{PATH}/{key}", Body=b"")

    assert "s3:DeleteObject" in runs.refusal
    assert MARKER in runs.refusal
    assert runs.left["refused m1"] == GARBAGE
    assert {permission.action for permission in runs.enforced["refused m1"].refused} == {"s3:DeleteObject"}


def test_a_sweep_needs_only_the_documented_permissions(runs: Runs) -> None:
    """The sweep also deletes legacy objects at the root, but writes no object."""
    assert runs.enforced["sweep m1"].refused == set()
    assert runs.left["sweep m1"] == set()
    assert runs.states["sweep m1"] is MarkState.SWEPT


def test_a_sweep_with_quarantine_needs_only_the_documented_permissions(runs: Runs) -> None:
    assert runs.enforced["quarantine m2"].refused == set()
    assert runs.left["quarantine m2"] == set()
    assert runs.states["quarantine m2"] is MarkState.SWEPT
    copies = runs.seaweedfs.client().list_objects_v2(
        Bucket=BUCKET, Prefix=f"{PATH}/_lakefs/retention/gc/quarantine/m2/"
    )
    assert copies["KeyCount"] == len(GARBAGE)
