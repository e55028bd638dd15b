"""A strict client for the lakeFS server, and the Dagster resource that provides it.

`LakeFSResource` is in `spark_resources.lakefs.resource`, so that executors don't have to import Dagster.
"""

from spark_resources.lakefs.client import LakeFS
from spark_resources.lakefs.responses import (
    Change,
    RefsDump,
    Repository,
    ServedObject,
    ServedPage,
    ServerConfig,
    UncommittedLists,
)
from spark_resources.lakefs.settings import LakeFSSettings, api_address

__all__ = [
    "Change",
    "LakeFS",
    "LakeFSSettings",
    "RefsDump",
    "Repository",
    "ServedObject",
    "ServedPage",
    "ServerConfig",
    "UncommittedLists",
    "api_address",
]
