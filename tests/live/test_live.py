"""A mark of a repository on a real lakeFS server, with its tables, lists and store, if a server is configured.

`LAKEGC_TEST_LAKEFS_ENDPOINT`, `LAKEGC_TEST_LAKEFS_ACCESS_KEY_ID` and `LAKEGC_TEST_LAKEFS_SECRET_ACCESS_KEY` name the
server. `LAKEGC_TEST_STORAGE_NAMESPACE` is the place in its store under which a new repository is made. How this machine
reaches the store follows from the usual `LAKEGC_*` variables and the provider's own chain of credentials.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from lakefs_sdk import Configuration, models
from lakefs_sdk.client import LakeFSClient

from spark_resources.model import Location
from spark_resources.settings import Settings
from tests.support.mark_runs import marked_by_job, target_of

VARIABLES = {
    "endpoint_url": "LAKEGC_TEST_LAKEFS_ENDPOINT",
    "access_key_id": "LAKEGC_TEST_LAKEFS_ACCESS_KEY_ID",
    "secret_access_key": "LAKEGC_TEST_LAKEFS_SECRET_ACCESS_KEY",
}
NAMESPACE = "LAKEGC_TEST_STORAGE_NAMESPACE"
WAIT_LIMIT_S = 60


@dataclass(frozen=True)
class Live:
    """A new repository on a real server, and the settings for the server and its store."""

    api: Any
    repository: str
    settings: dict[str, str]

    def upload(self, path: str, content: bytes) -> str:
        """The key, relative to the namespace, under which the server put an object of branch main."""
        stats = self.api.objects_api.upload_object(self.repository, "main", path, content=content)
        place, key = target_of(self.settings, self.repository).place.namespace.locate(stats.physical_address)
        assert place is Location.INSIDE
        return str(key)

    def commit(self, message: str) -> None:
        self.api.commits_api.commit(self.repository, "main", models.CommitCreation(message=message))

    def wait_until_old(self, keys: list[str]) -> None:
        """Wait until the store's clock has certainly passed the second in which it dated these objects."""
        store = target_of(self.settings, self.repository).place.store()
        dated = max(store.stat(key).modified for key in keys) + timedelta(seconds=2)
        limit = time.monotonic() + WAIT_LIMIT_S
        while store.now() < dated:
            assert time.monotonic() < limit, f"the store's clock says {store.now()}, its objects {dated}"
            time.sleep(0.1)


@pytest.fixture
def live() -> Iterator[Live]:
    """A new repository under the given namespace. The repository is deleted afterwards; its objects are left there."""
    if missing := [name for name in (*VARIABLES.values(), NAMESPACE) if not os.environ.get(name)]:
        why = f"no mark was made on a real lakeFS: {', '.join(missing)} not set"
        warnings.warn(pytest.PytestWarning(why), stacklevel=1)
        pytest.skip(why)
    variables = {name.removeprefix("LAKEGC_").lower(): value for name, value in os.environ.items()}
    settings = {name: variables[name] for name in Settings.model_fields if f"LAKEGC_{name.upper()}" in os.environ}
    settings |= {name: os.environ[variable] for name, variable in VARIABLES.items()}
    endpoint = settings["endpoint_url"].rstrip("/").removesuffix("/api/v1")
    login = {"username": settings["access_key_id"], "password": settings["secret_access_key"]}
    api = LakeFSClient(Configuration(host=f"{endpoint}/api/v1", **login))
    name = f"lakegc-live-{uuid.uuid4().hex[:12]}"
    namespace = f"{os.environ[NAMESPACE].rstrip('/')}/{name}"
    api.repositories_api.create_repository(
        models.RepositoryCreation(name=name, storage_namespace=namespace, default_branch="main")
    )
    try:
        yield Live(api, name, settings)
    finally:
        api.repositories_api.delete_repository(name)


def test_a_mark_on_a_real_server_expires_exactly_the_overwritten_object(live: Live) -> None:
    """Committed, staged and served objects are kept."""
    orphan = live.upload("a b/é+%.txt", b"overwritten before it was committed")
    keys = [orphan, live.upload("a b/é+%.txt", b"committed"), live.upload("same", b"the same bytes")]
    live.commit("first")
    keys += [live.upload("same", b"the same bytes"), live.upload("staged", b"staged")]
    live.wait_until_old(keys)

    mark = marked_by_job(live.settings, live.repository)

    assert len(set(keys)) == len(keys)
    assert mark.expired == {orphan}
    assert mark.record.counts["candidates"] == len(keys)
