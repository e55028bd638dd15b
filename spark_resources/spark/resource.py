"""The SparkSession of a run, as a Dagster resource."""

from __future__ import annotations

import os
from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from spark_resources.host.user_folders import home_folder
from spark_resources.settings import Settings
from spark_resources.spark.session import jvm_log, session_ends_with_process, start_session


class SparkResource(LazyPySparkResource):
    """The lazy PySpark resource with teardown, and a check that its settings took effect.

    Anything not configured here comes from `LAKEGC_SPARK_MASTER`, `LAKEGC_SPARK_CONF`, `LAKEGC_PARALLELISM` and
    `LAKEGC_SHUFFLE_PARTITIONS`. A second SparkSession in a process silently gets the first one's settings: this
    resource raises instead.
    """

    spark_config: dict[str, Any] = Field(default_factory=dict)

    def _init_session(self) -> None:
        if self._spark_session is None:
            settings = Settings.load(os.environ, home_folder())
            configured = {**settings.spark_settings(), **self.spark_config}
            self._spark_session = start_session({str(key): str(value) for key, value in configured.items()})

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        if self._spark_session is not None and not session_ends_with_process():
            self._spark_session.stop()
            self._spark_session = None
            jvm_log().unlink(missing_ok=True)


class LongLivedSparkResource(SparkResource):
    """A resource for several runs in one process, such as the demo's: the session ends with the process."""

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Keep the session for the next run."""
