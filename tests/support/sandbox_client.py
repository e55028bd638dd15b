"""lakeFS's own client for a sandbox, and the error that it raises for a refused request."""

from __future__ import annotations

from typing import Any

import pytest
from lakefs_sdk import ApiException, Configuration
from lakefs_sdk.client import LakeFSClient

from spark_resources.lakefs_sandbox import Sandbox


def client(sandbox: Sandbox) -> Any:
    login = {"username": sandbox.access_key_id, "password": sandbox.secret_access_key}
    return LakeFSClient(Configuration(host=f"{sandbox.endpoint_url}/api/v1", **login))


def refused(status: int, message: str = "") -> Any:
    return pytest.raises(ApiException, check=lambda e: e.status == status and message in str(e.body))
