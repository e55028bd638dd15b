"""The probe finds the capabilities that this suite declares, and leaves no objects behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_resources.errors import WrongUsage
from spark_resources.records.signing import Seal, SigningKey, SigningKeys
from spark_resources.stores import Capabilities, Store
from spark_resources.stores.probe import RECORD_KEY, SCRATCH, probe, read_record, recorded_capabilities
from tests.support.store_providers import Provider, all_keys, local


def test_the_probe_finds_exactly_the_declared_capabilities(provider: Provider) -> None:
    """The probe starts without knowing them, and deletes the objects that it wrote."""
    store = provider.open(provider.uri(), capabilities=Capabilities())
    store.write("data/x", b"left alone")

    capabilities = probe(store, SCRATCH + "suite/")

    assert capabilities == provider.capabilities
    assert all_keys(store) == ["data/x"]


@pytest.mark.parametrize("prefix", ["", "data/", "_lakefs/", SCRATCH, SCRATCH + "x", "_lakefs/retention/gc/unified/m/"])
def test_a_probe_outside_its_own_folder_is_refused(store: Store, prefix: str) -> None:
    """No object is written."""
    with pytest.raises(WrongUsage, match="probe"):
        probe(store, prefix)
    assert all_keys(store) == []


@pytest.mark.parametrize(
    "damage", [{"time_resolution": -3600.0}, {"time_resolution": float("nan")}, {"delete_batch": 0}]
)
def test_impossible_recorded_capabilities_are_probed_again(tmp_path: Path, damage: dict[str, Any]) -> None:
    """With a negative time resolution, for example, young objects would look old."""
    here = local(tmp_path)
    store = here.open(here.uri())
    probed = recorded_capabilities(store, "here", token="one")
    damage_record(store, damage)

    assert recorded_capabilities(store, "here", token="two") == probed


def test_with_a_signing_key_capabilities_without_a_valid_signature_are_probed_again(tmp_path: Path) -> None:
    """A forged record could claim that ETags are MD5 checksums. Path probes would then be skipped for objects that a
    branch serves."""
    here = local(tmp_path)
    store = here.open(here.uri())
    seal = Seal.of(
        SigningKeys(SigningKey.parse("0123456789abcdef" * 4)), repository="lake", created=store.now(), namespace="x"
    )
    probed = recorded_capabilities(store, "here", token="one")
    damage_record(store, {"md5_etags": not probed.md5_etags})
    assert recorded_capabilities(store, "here", token="two") != probed

    assert recorded_capabilities(store, "here", token="three", seal=seal) == probed
    assert read_record(store, "here", store.now(), seal) == probed
    signed = json.loads(store.read(RECORD_KEY))
    signed["record"]["capabilities"]["md5_etags"] = not probed.md5_etags
    store.write(RECORD_KEY, json.dumps(signed).encode())
    assert read_record(store, "here", store.now(), seal) is None


def damage_record(store: Store, damage: dict[str, Any]) -> None:
    recorded = json.loads(store.read(RECORD_KEY))
    recorded["capabilities"] |= damage
    store.write(RECORD_KEY, json.dumps(recorded).encode())
