"""The holds that a mark uses, and the tags to which they apply, as reported by the server."""

from __future__ import annotations

from collections.abc import Sequence

from lakegc_assets.mark.context import MarkRun, StepNotes
from lakegc_assets.rules import holds as decisions
from lakegc_assets.rules.holds import NamedCommit, tagged_commits
from spark_resources.errors import Forbidden, Refused, full_stop
from spark_resources.mark_store.hold_file import Hold, TagHold
from spark_resources.mark_store.holds import holds_location, read_holds_of_any_version
from spark_resources.model import TAGS
from spark_resources.spark.datasets import write_rows

ASSET = "retained_commits"
TAGS_PART = "tags"


def in_force(run: MarkRun) -> tuple[Hold, ...]:
    """The holds that had not expired when the mark began, by the server's clock.

    Raises `Refused` if the holds have changed since this mark began (invariant 7).
    """
    current = read_holds_of_any_version(run.place, run.target.configured_holds)
    if current.sha256 != run.mark.record.holds["sha256"]:
        raise Refused(
            f"the holds of {run.partition.repository} ({holds_location(run.place)}) were changed while the repository "
            "was being marked. Make a new mark, so that it uses the new holds throughout.",
            invariant=7,
        )
    return decisions.in_force(current.holds, run.mark.record.server_now)


def refuse_unresolvable(run: MarkRun, holds: Sequence[Hold], *, graph_known: bool) -> None:
    """Raise `Refused` if a hold can't be resolved completely, because it would silently keep too little."""
    unresolvable = decisions.unresolvable(holds, graph_known=graph_known)
    if unresolvable:
        raise Refused(
            f"{run.partition.repository} has holds on commits or paths ({', '.join(unresolvable)}), but "
            "these credentials have no permission to read the commit graph, so lakegc can't determine everything that "
            "is on hold. Allow fs:ListBranches, fs:ListTags and fs:ListCommits, or drop these holds.",
            invariant=3,
        )


def tags_for_holds(run: MarkRun, holds: Sequence[Hold]) -> set[NamedCommit]:
    """All tags with their commits; empty if no hold refers to tags. Raises `Refused` without the permission to list
    tags."""
    tag_holds = [hold.id for hold in holds if isinstance(hold, TagHold)]
    if not tag_holds:
        return set()
    try:
        return set(run.lakefs.tags(run.partition.repository).items())
    except Forbidden as error:
        raise Refused(
            f"{run.partition.repository} has holds on tags ({', '.join(tag_holds)}), but these credentials have "
            f"no permission to list tags, so lakegc can't determine what is on hold: {full_stop(error)} Allow "
            "fs:ListTags, or drop these holds.",
            invariant=3,
        ) from error


def write_tags(run: MarkRun, notes: StepNotes, tags: set[NamedCommit]) -> None:
    rows = [{"tag": tag, "commit_id": commit_id} for tag, commit_id in sorted(tags)]
    notes.add_dataset(write_rows(run.place, run.mark.folder(ASSET, TAGS_PART), rows, TAGS), TAGS_PART)


def newly_tagged_commits(run: MarkRun) -> set[str]:
    """The ids of the commits that holds keep because of tags created or moved since the commits were read, with their
    ancestors if the hold includes history."""
    holds, repository = in_force(run), run.partition.repository
    before = {(row["tag"], row["commit_id"]) for row in run.rows(ASSET, TAGS, TAGS_PART)}
    new = tags_for_holds(run, holds) - before
    commits = tagged_commits(holds, new)
    for commit_id in sorted(tagged_commits(holds, new, history=True)):
        commits |= {commit.id for commit in run.lakefs.log(repository, commit_id)}
    return commits
