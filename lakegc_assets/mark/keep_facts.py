"""The facts that were looked up for one reason to keep objects."""

from __future__ import annotations

from dataclasses import dataclass

from lakegc_assets.rules.keep_reasons import Attribution
from spark_resources.spark.arrow_shuffle import Input


@dataclass(frozen=True, slots=True)
class KeepFacts:
    """How a reason decides on objects, and the rows that are grouped with them by address for this."""

    attribution: Attribution
    inputs: tuple[Input, ...] = ()
