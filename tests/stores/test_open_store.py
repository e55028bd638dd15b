"""Which store is opened for a namespace, what its settings show, and what is sent to executors with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError
from pyspark import cloudpickle

from spark_resources.errors import WrongUsage
from spark_resources.model import Namespace
from spark_resources.stores import StoreSettings, endpoint_to_probe, open_store

SETTINGS = StoreSettings(
    s3_endpoint_url="http://127.0.0.1:1",
    s3_access_key_id="AKIA",
    s3_secret_access_key=SecretStr("hush-hush"),
    s3_session_token=SecretStr("hush-token"),
)


def test_no_secret_is_printed() -> None:
    """Settings and stores hide the secret. Executors still get it with the settings."""
    store = open_store(Namespace.parse("s3://bucket/ns"), SETTINGS)

    for text in (repr(SETTINGS), str(SETTINGS), SETTINGS.model_dump_json(), store.where, repr(store)):
        assert "hush" not in text
    again = cloudpickle.loads(cloudpickle.dumps(SETTINGS))
    assert again == SETTINGS
    assert again.s3_secret_access_key.get_secret_value() == "hush-hush"


def test_credentials_in_the_endpoint_are_not_printed() -> None:
    """The endpoint's URL may contain credentials."""
    settings = SETTINGS.model_copy(update={"s3_endpoint_url": "http://me:hush@127.0.0.1:9000"})

    assert open_store(Namespace.parse("s3://bucket/ns"), settings).where == "s3://bucket/ns at 127.0.0.1:9000"


def test_settings_are_immutable_and_unknown_ones_are_refused() -> None:
    """Otherwise, a misspelled setting would have no effect."""
    with pytest.raises(ValidationError):
        SETTINGS.s3_region = "elsewhere"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        StoreSettings.model_validate({"s3_endpoint": "http://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("endpoint", "wanted", "is_path_style"),
    [(None, None, False), ("http://x", None, True), ("http://x", False, False), (None, True, True)],
)
def test_an_endpoint_implies_path_style_unless_set_otherwise(
    endpoint: str | None, wanted: bool | None, is_path_style: bool
) -> None:
    """S3-compatible stores usually have no host for each bucket."""
    assert StoreSettings(s3_endpoint_url=endpoint, s3_path_style=wanted).uses_path_style is is_path_style


@pytest.mark.parametrize("uri", ["mem://bucket/ns", "abfss://c@account.dfs.core.windows.net/ns"])
def test_an_unknown_scheme_is_refused(uri: str) -> None:
    """The message lists the known schemes."""
    with pytest.raises(WrongUsage, match=r"s3://, gs://, https:// \(Azure\) and local://"):
        open_store(Namespace.parse(uri), SETTINGS)


@pytest.mark.parametrize(
    ("uri", "endpoint", "is_one"),
    [
        ("s3://bucket/ns", None, False),
        ("s3://bucket/ns", "http://127.0.0.1:1", True),
        ("gs://bucket/ns", None, False),
        ("gs://bucket/ns", "http://127.0.0.1:1", True),
        ("gs://bucket/ns", "https://storage-mine.p.googleapis.com", False),
        ("gs://bucket/ns", "https://storage.googleapis.com.example", True),
        ("local://ns", "http://127.0.0.1:1", False),
    ],
)
def test_a_store_at_a_custom_endpoint_has_to_be_probed(uri: str, endpoint: str | None, is_one: bool) -> None:
    """The endpoint may be that of a compatible store. The endpoint for another scheme doesn't matter."""
    other = {"s3_endpoint_url": "http://127.0.0.1:2", "gcs_endpoint_url": "http://127.0.0.1:2"}
    own = "gcs_endpoint_url" if uri.startswith("gs") else "s3_endpoint_url"
    settings = StoreSettings.model_validate(other | {own: endpoint})

    assert endpoint_to_probe(Namespace.parse(uri), settings) == (endpoint if is_one else None)


def test_every_azure_account_has_to_be_probed() -> None:
    """Hierarchical accounts accept different keys. The name of the server is that of the configured endpoint, if there
    is one."""
    namespace = Namespace.parse("https://account.blob.core.windows.net/c/ns")

    assert endpoint_to_probe(namespace, StoreSettings()) == "https://account.blob.core.windows.net"
    assert endpoint_to_probe(namespace, StoreSettings(azure_endpoint_url="http://127.0.0.1:1/account")) == (
        "http://127.0.0.1:1/account"
    )


def test_a_local_namespace_without_a_configured_path_is_refused() -> None:
    """The error names the setting."""
    with pytest.raises(WrongUsage, match="LAKEGC_LOCAL_PATH"):
        open_store(Namespace.parse("local://repo"), StoreSettings())


def test_both_spellings_of_a_local_namespace_name_the_same_folder(tmp_path: Path) -> None:
    """The spellings are `local://<name>` and `local:///<configured path>/<name>`. A path outside the configured one is
    refused."""
    settings = StoreSettings(local_path=str(tmp_path))
    (tmp_path / "repo").mkdir()
    short = open_store(Namespace.parse("local://repo"), settings)
    long = open_store(Namespace.parse(f"local://{tmp_path}/repo"), settings)

    short.write("data/x", b"same")

    assert long.read("data/x") == b"same"
    for elsewhere in ("local:///somewhere/else", f"local://{tmp_path}-other/repo", f"local://{tmp_path}"):
        with pytest.raises(WrongUsage, match="LAKEGC_LOCAL_PATH"):
            open_store(Namespace.parse(elsewhere), settings)


@pytest.mark.parametrize("uri", ["local://repo/../other", "local://../other", "local://a//b", "local://./a"])
def test_a_local_namespace_that_is_not_a_folder_below_the_configured_path_is_refused(tmp_path: Path, uri: str) -> None:
    """Such a namespace would lead out of the configured path."""
    with pytest.raises(WrongUsage):
        open_store(Namespace.parse(uri), StoreSettings(local_path=str(tmp_path)))


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_an_endpoint_in_an_aws_environment_variable_is_refused_unless_it_is_an_aws_endpoint(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Otherwise, lakegc would assume that the store can do what AWS can, and would not probe it. An endpoint in
    lakegc's own settings takes precedence."""
    bucket = Namespace.parse("s3://bucket/ns")
    monkeypatch.setenv(variable, "https://minio.corp:9000")
    with pytest.raises(WrongUsage, match=r"minio\.corp.*LAKEGC_S3_ENDPOINT_URL"):
        open_store(bucket, StoreSettings())

    open_store(bucket, StoreSettings(s3_endpoint_url="https://minio.corp:9000"))
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    open_store(bucket, StoreSettings())
    monkeypatch.delenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    monkeypatch.setenv(variable, "https://bucket.vpce-1a2b.s3.eu-west-1.vpce.amazonaws.com")
    open_store(bucket, StoreSettings())


def test_a_probe_with_the_bucket_in_the_path_does_not_count_for_the_bucket_in_the_host_name() -> None:
    """Under the host name, a different server may respond."""
    bucket, endpoint = Namespace.parse("s3://bucket/ns"), "https://minio.corp:9000"
    in_path, in_host = (StoreSettings(s3_endpoint_url=endpoint, s3_path_style=style) for style in (True, False))
    assert endpoint_to_probe(bucket, in_path) == endpoint
    assert endpoint_to_probe(bucket, in_host) not in (None, endpoint)
