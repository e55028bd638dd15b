"""Preconditions of a mark: each function raises an error if its condition isn't met, and writes nothing (invariants 5
and 7)."""

from __future__ import annotations

from lakegc_assets.mark.context import Target, place_of
from lakegc_assets.mark.options import MarkOptions
from lakegc_assets.mark.repository_selection import repositories_other_than
from spark_resources.errors import LakegcError, Refused, WrongUsage
from spark_resources.lakefs import LakeFS, Repository
from spark_resources.mark_store.record import MarkRecord


def refuse_different_basis(record: MarkRecord, options: MarkOptions) -> None:
    """Raise `WrongUsage` if these options would resume an incremental mark as a full one or with another base mark."""
    if record.is_incremental and (options.full or options.since not in ("", record.basis["chain"][0])):
        raise WrongUsage(
            f"mark {record.mark_id} of {record.repository} is incremental, based on mark {record.basis['chain'][0]}, "
            f"so it can only be resumed with this base: leave out --full, or pass --since {record.basis['chain'][0]}. "
            "To make a different mark, choose another mark id."
        )


def refuse_read_only(repository: Repository) -> None:
    if repository.read_only:
        raise LakegcError(
            f"repository {repository.id} is read-only, and lakeFS doesn't list the live objects of such a repository. "
            "It can't be marked until it is writable."
        )


def refuse_overlap(target: Target, lakefs: LakeFS) -> None:
    """Raise `Refused` if the namespace of another repository of any server overlaps with the target's (invariant 5).

    Without permission to list repositories, and if another server doesn't respond, marks rely on the owner that is
    recorded in the namespace.
    """
    place = target.place
    for other in repositories_other_than(target.repository, lakefs):
        if place_of(other, target.blockstore, place.settings).namespace.overlaps(place.namespace):
            raise overlap_error(target, other)


def overlap_error(target: Target, other: Repository) -> Refused:
    return Refused(
        f"the namespace {target.place.namespace.uri} of {target.repository.id} overlaps {other.storage_namespace} of "
        f"{other.id}: the objects of each would look like garbage to the other. Neither can be collected.",
        invariant=5,
    )


def refuse_different_repository(record: MarkRecord, target: Target) -> None:
    current = (target.repository.id, target.repository.created, target.place.namespace.uri)
    if current != (record.repository, record.repository_created, record.namespace):
        raise Refused(
            f"mark {record.mark_id} was made for a different repository from the current {target.repository.id} "
            f"(created {target.repository.created:%Y-%m-%d %H:%M:%S} in {target.place.namespace.uri}). Make a new "
            "mark.",
            invariant=7,
        )
