"""`namespace_slices`: the objects in the store, listed before anything else (formats §2, "Order is a safety rule")."""

from __future__ import annotations

from lakegc_assets.mark import candidates, listed_objects
from lakegc_assets.mark.context import MarkRun, step

ASSET = listed_objects.ASSET


def list_namespace(run: MarkRun) -> None:
    """Write every object that may be collected (STORED_OBJECTS). An incremental mark only writes those that may have
    changed since the base mark."""
    with step(run, ASSET) as notes:
        candidates.choose(run).write_listing(notes)
