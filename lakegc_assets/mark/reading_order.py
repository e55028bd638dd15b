"""The functions of a mark's reading steps, which a re-verification runs in order. The order itself is `CHAIN`.

Objects are listed first, so later reads can only find *more* references to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakegc_assets.mark import committed_addresses, namespace_slices, retained_commits, uncommitted_addresses
from lakegc_assets.mark.context import MarkRun
from spark_resources.mark_store.record import CHAIN

STEP_FUNCTIONS: Mapping[str, Callable[[MarkRun], None]] = {
    namespace_slices.ASSET: namespace_slices.list_namespace,
    uncommitted_addresses.ASSET: uncommitted_addresses.read_uncommitted,
    retained_commits.ASSET: retained_commits.decide_commits,
    committed_addresses.ASSET: committed_addresses.read_ranges,
}
"""The function of each step, by asset."""


def read_references(run: MarkRun) -> None:
    """Read everything that a mark reads after its listing, in order."""
    for name in CHAIN[1:-1]:
        STEP_FUNCTIONS[name](run)
