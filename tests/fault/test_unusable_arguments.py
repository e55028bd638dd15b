"""Invalid arguments and unreachable servers cause a single message, and nothing is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.support.s3_servers import SeaweedFS
from tests.support.store_providers import replying


def test_the_error_about_an_unknown_repository_names_it(lakegc: Lakegc, lake: Lake) -> None:
    """The error also says to check the name."""
    lakegc(lake.settings, "mark", "no-such-lake").stopped(1, "repository 'no-such-lake'", "Check the name")


def test_the_error_about_refused_credentials_names_them_as_the_cause(lakegc: Lakegc, lake: Lake) -> None:
    """The values of the credentials are never shown."""
    outcome = lakegc({**lake.settings, "secret_access_key": "not-the-right-one"}, "mark", lake.name)

    outcome.stopped(1, "does not accept the credentials", "LAKEGC_SECRET_ACCESS_KEY")
    assert "not-the-right-one" not in outcome.err
    lake.check_no_finished_mark()


def test_the_error_about_an_unreachable_server_names_it_and_gives_advice(lakegc: Lakegc, lake: Lake) -> None:
    settings = {**lake.settings, "endpoint_url": "http://127.0.0.1:1"}

    lakegc(settings, "mark", lake.name).stopped(1, "http://127.0.0.1:1", "Check that the server is running")


def test_a_server_that_is_not_lakefs_is_reported_as_such(lakegc: Lakegc, lake: Lake) -> None:
    """The server's response is a web page."""
    with replying(200, b"<html>Welcome</html>", {"Content-Type": "text/html"}) as server:
        settings = {**lake.settings, "endpoint_url": server.url}

        lakegc(settings, "mark", lake.name).stopped(1, server.url, "not the lakeFS API", "Check the endpoint")


def on_s3(lake: Lake, bucket: str) -> None:
    """Change the server's responses so that the repository is in a bucket."""
    lake.server.after("/config", lambda response: response["storage_config"].update(blockstore_type="s3"))
    lake.server.after(f"/{lake.name}", lambda response: response.update(storage_namespace=f"s3://{bucket}/lake"))


def test_a_missing_bucket_fails_the_mark(lakegc: Lakegc, lake: Lake, seaweedfs: SeaweedFS) -> None:
    """A missing bucket never counts as a repository without objects."""
    on_s3(lake, "no-such-bucket")
    settings = {
        **lake.settings,
        "s3_endpoint_url": seaweedfs.endpoint_url,
        "s3_access_key_id": seaweedfs.access_key,
        "s3_secret_access_key": seaweedfs.secret_key,
        "s3_region": "us-east-1",
    }

    lakegc(settings, "mark", lake.name).stopped(1, "no-such-bucket")


def test_a_mark_fails_if_the_store_refuses_its_credentials(lakegc: Lakegc, lake: Lake, seaweedfs: SeaweedFS) -> None:
    """The error names the store, and never shows the keys."""
    seaweedfs.make_bucket("fault-keys")
    on_s3(lake, "fault-keys")
    settings = {
        **lake.settings,
        "s3_endpoint_url": seaweedfs.endpoint_url,
        "s3_access_key_id": seaweedfs.access_key,
        "s3_secret_access_key": "not-the-right-one",
        "s3_region": "us-east-1",
    }
    outcome = lakegc(settings, "mark", lake.name)

    outcome.stopped(1, "fault-keys")
    assert "not-the-right-one" not in outcome.err


@pytest.mark.parametrize("repository", ["lake/main", "Lake", "a", "lakefs://lake", "lake:m1", ""])
def test_an_invalid_repository_name_is_a_usage_error(lakegc: Lakegc, lake: Lake, repository: str) -> None:
    """No repository can have this name."""
    lakegc(lake.settings, "mark", repository).stopped(2, repository, "repository")


@pytest.mark.parametrize("mark_id", ["a/b", "../b", "a b", "-a", ".hidden", "ü", "a\nb", "a" * 129])
def test_an_invalid_mark_id_is_a_usage_error(lakegc: Lakegc, lake: Lake, mark_id: str) -> None:
    """A mark id is one printable path segment; anything else could lead to another folder. Nothing is written."""
    lakegc(lake.settings, "mark", lake.name, f"--mark-id={mark_id}").stopped(
        2, "can't be a mark id", "20261121T085000Z"
    )
    lake.check_no_finished_mark()
    assert lake.records() == []


def test_a_minimum_age_below_24_hours_needs_allow_young(lakegc: Lakegc, lake: Lake) -> None:
    """No mark is started."""
    lakegc(lake.settings, "mark", lake.name, "--min-age", "23h59m").stopped(3, "23 hours 59 minutes", "--allow-young")
    assert lake.records() == []


@pytest.mark.parametrize("age", ["tomorrow", "24", "-1h", "1.5.2h", "24h!", "99999999999w"])
def test_an_invalid_minimum_age_is_a_usage_error(lakegc: Lakegc, lake: Lake, age: str) -> None:
    """The message says what is expected."""
    lakegc(lake.settings, "mark", lake.name, f"--min-age={age}").stopped(2, age, "24h, 90m or 1d12h")
    assert lake.records() == []


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--scope", "everything"], ["--format", "xml"]])
def test_an_unknown_option_or_value_is_a_usage_error(lakegc: Lakegc, lake: Lake, arguments: list[str]) -> None:
    """Unknown options are never ignored."""
    lakegc(lake.settings, "mark", lake.name, *arguments).stopped(2, arguments[0])


def test_a_missing_file_of_accepted_losses_is_a_usage_error(lakegc: Lakegc, lake: Lake) -> None:
    """A missing file doesn't count as an empty list."""
    missing = str(lake.folder / "no-such-file")

    lakegc(lake.settings, "mark", lake.name, "--accept-missing", missing).stopped(2, missing)


def test_a_list_of_accepted_losses_that_is_too_large_for_a_record_is_a_usage_error(
    lakegc: Lakegc, lake: Lake, tmp_path: Path
) -> None:
    """A mark with a larger record could be made, but not read again."""
    losses = tmp_path / "lost.txt"
    losses.write_text("".join(f"data/{number:0995}\n" for number in range(9_000)))

    outcome = lakegc(lake.settings, "mark", lake.name, "--accept-missing", str(losses), *NO_AGE)

    outcome.stopped(2, "9,000 addresses with 9,000,000 bytes", "LAKEGC_MAX_MISSING")
    assert lake.records() == []


def test_a_mark_id_in_use_is_a_usage_error(lakegc: Lakegc, lake: Lake) -> None:
    """The mark stays as it is."""
    assert lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE).code == 0
    before = lake.records()

    lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE).stopped(2, "m1", "in use", "Choose another")
    assert lake.records() == before


def test_a_mark_that_exceeds_the_bound_on_path_probes_finishes_and_keeps_unprobed_objects(
    lakegc: Lakegc, lake: Lake
) -> None:
    """The mark can be approved."""
    lake.repository.put("main", "seven", b"7 bytes")
    lake.repository.commit("main", "third")
    settings = {**lake.settings, "max_probes": "0"}
    outcome = lakegc(settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE)
    [record] = lake.records()
    approved = lakegc(settings, "approve", lake.name, "m1", "--by", "Ada", "--yes", "--digest", str(record.digest))

    assert (outcome.code, approved.code) == (0, 0), outcome.err + approved.err
    assert record.steps["expired_set"].facts["not_probed"] == 1
    assert record.counts["expired"] == 0
