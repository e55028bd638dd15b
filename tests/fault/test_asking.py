"""What is asked for can't be meant, or can't be reached: one message, and nothing is begun."""

from __future__ import annotations

import pytest

from tests.fault.conftest import NO_AGE, Lake, Lakegc
from tests.servers import SeaweedFS
from tests.stores.providers import answering


def test_an_unknown_repository_is_marked(lakegc: Lakegc, lake: Lake) -> None:
    """A repository that the server doesn't know is a failure that names it."""
    lakegc(lake.settings, "mark", "no-such-lake").stopped(1, "repository 'no-such-lake'", "Check the name")


def test_wrong_credentials_look_like_something_else(lakegc: Lakegc, lake: Lake) -> None:
    """Credentials that the server refuses are named as the reason, and shown nowhere."""
    outcome = lakegc({**lake.settings, "secret_access_key": "not-the-right-one"}, "mark", lake.name)

    outcome.stopped(1, "does not accept the credentials", "LAKEGC_SECRET_ACCESS_KEY")
    assert "not-the-right-one" not in outcome.err
    lake.has_no_finished_mark()


def test_an_unreachable_server_is_waited_for(lakegc: Lakegc, lake: Lake) -> None:
    """A server that doesn't answer is named with what to check."""
    settings = {**lake.settings, "endpoint_url": "http://127.0.0.1:1"}

    lakegc(settings, "mark", lake.name).stopped(1, "http://127.0.0.1:1", "Check that the server runs")


def test_a_web_page_passes_for_lakefs(lakegc: Lakegc, lake: Lake) -> None:
    """A server that answers, but not as lakeFS does, is told apart."""
    with answering(200, b"<html>Welcome</html>", {"Content-Type": "text/html"}) as server:
        settings = {**lake.settings, "endpoint_url": server.url}

        lakegc(settings, "mark", lake.name).stopped(1, server.url, "not the lakeFS API", "Check the endpoint")


def on_s3(lake: Lake, bucket: str) -> None:
    """Let the server say that the repository is in a bucket."""
    lake.server.after("/config", lambda said: said["storage_config"].update(blockstore_type="s3"))
    lake.server.after(f"/{lake.name}", lambda said: said.update(storage_namespace=f"s3://{bucket}/lake"))


def test_a_missing_bucket_is_an_empty_one(lakegc: Lakegc, lake: Lake, seaweedfs: SeaweedFS) -> None:
    """A bucket that is not there is a failure, never a repository without objects."""
    on_s3(lake, "no-such-bucket")
    settings = {
        **lake.settings,
        "s3_endpoint_url": seaweedfs.endpoint_url,
        "s3_access_key_id": seaweedfs.access_key,
        "s3_secret_access_key": seaweedfs.secret_key,
        "s3_region": "us-east-1",
    }

    lakegc(settings, "mark", lake.name).stopped(1, "no-such-bucket")


def test_wrong_keys_of_the_store_give_an_empty_listing(lakegc: Lakegc, lake: Lake, seaweedfs: SeaweedFS) -> None:
    """Keys that the store refuses are a failure that names the store, and they are shown nowhere."""
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


@pytest.mark.parametrize("repository", ["lake/main", "Lake", "a", "lakefs://lake", "lake|m1", ""])
def test_something_else_passes_for_a_repository(lakegc: Lakegc, lake: Lake, repository: str) -> None:
    """An argument that no repository can be called is wrong usage."""
    lakegc(lake.settings, "mark", repository).stopped(2, repository, "repository")


@pytest.mark.parametrize("mark_id", ["a/b", "../b", "a b", "-a", ".hidden", "ü", "a\nb", "a" * 129])
def test_a_mark_id_leads_to_another_folder(lakegc: Lakegc, lake: Lake, mark_id: str) -> None:
    """A mark id that isn't one printable path segment is wrong usage, and nothing is written."""
    lakegc(lake.settings, "mark", lake.name, f"--mark-id={mark_id}").stopped(
        2, "can't be a mark id", "20261121T085000Z"
    )
    lake.has_no_finished_mark()
    assert lake.records() == []


def test_a_short_minimum_age_is_taken_silently(lakegc: Lakegc, lake: Lake) -> None:
    """Below 24 hours the mark is refused unless --allow-young says that it is meant; nothing is begun."""
    lakegc(lake.settings, "mark", lake.name, "--min-age", "23h59m").stopped(3, "23 hours 59 minutes", "--allow-young")
    assert lake.records() == []


@pytest.mark.parametrize("age", ["tomorrow", "24", "-1h", "1.5.2h", "24h!", "99999999999w"])
def test_an_unclear_minimum_age_is_guessed(lakegc: Lakegc, lake: Lake, age: str) -> None:
    """A minimum age without a unit, or none at all, is wrong usage and says what is expected."""
    lakegc(lake.settings, "mark", lake.name, f"--min-age={age}").stopped(2, age, "24h, 90m or 1d12h")
    assert lake.records() == []


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["--scope", "everything"], ["--format", "xml"]])
def test_a_misspelt_option_is_ignored(lakegc: Lakegc, lake: Lake, arguments: list[str]) -> None:
    """An option that doesn't exist, or has no such value, is wrong usage."""
    lakegc(lake.settings, "mark", lake.name, *arguments).stopped(2, arguments[0])


def test_a_list_of_losses_that_can_t_be_read_is_empty(lakegc: Lakegc, lake: Lake) -> None:
    """A file of accepted losses that is not there is wrong usage."""
    missing = str(lake.folder / "no-such-file")

    lakegc(lake.settings, "mark", lake.name, "--accept-missing", missing).stopped(2, missing)


def test_a_mark_id_in_use_is_written_over(lakegc: Lakegc, lake: Lake) -> None:
    """An id that has a mark is wrong usage, and the mark stays as it is; another id works."""
    assert lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE).code == 0
    before = lake.records()

    lakegc(lake.settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE).stopped(2, "m1", "in use", "Choose another")
    assert lake.records() == before


def test_a_bound_on_questions_ends_every_mark(lakegc: Lakegc, lake: Lake) -> None:
    """Beyond the bound on questions a mark is finished, keeps what it didn't ask about, and can be approved."""
    lake.repository.put("main", "seven", b"7 bytes")
    lake.repository.commit("main", "third")
    settings = {**lake.settings, "max_questions": "0"}
    made = lakegc(settings, "mark", lake.name, "--mark-id", "m1", *NO_AGE)
    [record] = lake.records()
    approved = lakegc(settings, "approve", lake.name, "m1", "--by", "Ada", "--yes", "--digest", str(record.digest))

    assert (made.code, approved.code) == (0, 0), made.err + approved.err
    assert record.steps["expired_set"].facts["unasked"] == 1
    assert record.counts["expired"] == 0
