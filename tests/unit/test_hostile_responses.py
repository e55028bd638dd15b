"""Responses that a malicious server, or somebody between it and lakegc, could send: each is an error with a message."""

from __future__ import annotations

import hashlib
import inspect
import re
from pathlib import Path

import pytest

from lakegc_assets.cli import commands
from spark_resources.errors import DamagedData, NotAPartition, Unavailable, WrongUsage
from spark_resources.identifiers import Partition
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.model import Namespace
from spark_resources.spark.session import REDACTED, common_settings
from spark_resources.stores import open_store
from spark_resources.stores.azure.listing import parse_listing as azure_listing
from spark_resources.stores.gcs.client import parse_error_body
from spark_resources.stores.gcs.listing import listing_of as google_listing
from spark_resources.stores.inventory import open_inventory
from spark_resources.stores.s3.listing import parse_listing as s3_listing
from spark_resources.stores.settings import StoreSettings
from spark_resources.stores.transfer import header_metadata

NESTED = b"[" * 100_000
ENTITIES = b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b SYSTEM "file:///etc/passwd">]>'


def test_entities_in_listings_are_never_expanded() -> None:
    """A listing with a DOCTYPE is refused: internal entities can grow without limit, and external ones can name files
    of this machine."""
    for name in (b"&a;", b"&b;"):
        azure = (
            ENTITIES + b"<EnumerationResults><Blobs><Blob><Name>" + name + b"</Name></Blob></Blobs>"
            b"<NextMarker/></EnumerationResults>"
        )
        with pytest.raises(ValueError, match="DOCTYPE"):
            azure_listing(azure)
        with pytest.raises(ValueError, match="DOCTYPE"):
            s3_listing(ENTITIES + b"<ListBucketResult><Contents><Key>" + name + b"</Key></Contents></ListBucketResult>")


def test_deeply_nested_json_is_an_invalid_response() -> None:
    with pytest.raises(Unavailable, match="nested too deeply"):
        google_listing(NESTED)
    assert parse_error_body(403, NESTED) == ("403", "")


def test_a_deeply_nested_manifest_is_an_invalid_inventory(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(NESTED)
    (tmp_path / "manifest.checksum").write_text(hashlib.md5(NESTED).hexdigest())
    with pytest.raises(DamagedData, match="not a valid S3 Inventory manifest"):
        open_inventory(str(tmp_path / "manifest.json"), StoreSettings(), taken=None)


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.container.lake.blob.core.windows.net",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.session.token",
        "spark.ssl.keyPassword",
        "spark.hadoop.google.cloud.credential",
    ],
)
def test_spark_hides_settings_with_secrets_and_its_ui_is_off(name: str) -> None:
    """Somebody may turn the UI or the event log on; Spark's own pattern misses account keys."""
    settings = common_settings()

    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.redaction.regex"] == REDACTED
    assert re.search(REDACTED, name)


@pytest.mark.parametrize("key", ["lake\n:m1", "lake:m1\n", "lake|m1\n"])
def test_a_line_break_at_the_end_of_an_id_is_refused(key: str) -> None:
    """In a regular expression, `$` also matches before a line break at the end."""
    with pytest.raises(NotAPartition):
        Partition.parse(key)


def test_metadata_that_would_end_the_line_of_a_header_is_not_sent() -> None:
    """Other stores may have metadata that no header can carry. A backup records it in its list instead."""
    names = re.compile(r"[a-z]+\Z")

    assert header_metadata({"a": "x", "b": "x\n", "c\n": "x", "d": "x\r\ny: z"}, names) == {"a": "x"}


@pytest.mark.parametrize(
    ("uri", "settings"),
    [
        ("gs://bucket/ns", {"gcs_endpoint_url": "http://storage.example.com"}),
        (
            "https://account.blob.core.windows.net/container/ns",
            {"azure_endpoint_url": "http://account.example.com", "azure_sas_token": "sig=hush"},
        ),
    ],
)
def test_a_token_is_never_sent_to_another_machine_without_encryption(uri: str, settings: dict[str, str]) -> None:
    """Anyone who can read the network's traffic could use the token. Emulators on this machine work without
    encryption."""
    with pytest.raises(WrongUsage, match=r"would be sent unencrypted to .*example\.com") as refused:
        open_store(Namespace.parse(uri), StoreSettings.model_validate(settings))
    assert "hush" not in str(refused.value)
    here = {name: re.sub("http://.*", "http://127.0.0.1:1/account", value) for name, value in settings.items()}
    assert open_store(Namespace.parse(uri), StoreSettings.model_validate(here))


def test_the_sandbox_and_the_ui_listen_on_loopback_by_default(tmp_path: Path) -> None:
    """Anyone who reaches the UI can approve marks; the sandbox's credentials are in its documentation."""
    with Sandbox(tmp_path) as sandbox:
        assert sandbox.endpoint_url.startswith("http://127.0.0.1:")
    assert inspect.signature(commands.ui).parameters["host"].default == "127.0.0.1"
