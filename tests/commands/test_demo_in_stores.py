"""The demo with its objects in an object store, on a real server. In CI that is SeaweedFS; LAKEGC_LONG_TESTS=1 has each
kind of object store that lakegc knows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.support.command_line import Lakegc
from tests.support.store_providers import Provider


def as_settings(provider: Provider) -> dict[str, str]:
    """The settings that open a store, as texts."""
    fields = {name: getattr(provider.settings, name) for name in provider.settings.model_fields_set}
    named = {name: value for name, value in fields.items() if name.startswith(("s3_", "azure_", "gcs_"))}
    return {
        name: value.get_secret_value() if isinstance(value, SecretStr) else str(value) for name, value in named.items()
    }


STORES = ("seaweedfs", "gcs", "azure")


@pytest.mark.parametrize("provider", STORES if os.environ.get("LAKEGC_LONG_TESTS") else STORES[:1], indirect=True)
def test_the_demo_gives_the_same_result_in_an_object_store(provider: Provider, lakegc: Lakegc, tmp_path: Path) -> None:
    """With the option --store, the demo marks, backs up, sweeps and restores. A second demo there is refused."""
    place, settings = provider.uri(), as_settings(provider)

    output = lakegc.output(settings, "demo", "--folder", str(tmp_path / "one"), "--store", place)
    second = lakegc(settings, "demo", "--folder", str(tmp_path / "two"), "--store", place)

    for line in (
        "6 of 20 objects are expired (",
        "Backed up 6 of 6 objects to",
        "swept: 6 deleted, out of 6 approved.",
        "intact, byte for byte, and 0 are not; 6 of 6 expired objects return 410 Gone.",
        "Restored from the backup: 6 of 6 objects are readable again, byte for byte.",
        f"--store {place}",
    ):
        assert line in output
    second.stopped(2, "needs an empty location", place)
