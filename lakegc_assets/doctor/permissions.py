"""Checks of the lakeFS permissions that a mark and a sweep need, each by a read that a mark makes.

Calls that make the server write files are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from lakegc_assets.doctor.findings import Finding, Result, Status, not_tried, ok, problem, warning
from lakegc_assets.formatting import plural, rules_in_words
from spark_resources.errors import Forbidden
from spark_resources.lakefs import LakeFS, Repository

MARK_GROUP, SWEEP_GROUP = "permissions to mark", "permissions to sweep"


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission, and a read that needs it. `without` says what happens without the permission; "" if lakegc can't
    work then."""

    name: str
    read: Callable[[LakeFS, Repository], Result]
    without: str = ""


def list_repositories(lakefs: LakeFS, repository: Repository) -> Result:
    return ok(f"{plural(sum(1 for _ in lakefs.repositories_on(repository.server)), 'repository')} listed")


def read_rules(lakefs: LakeFS, repository: Repository) -> Result:
    rules = lakefs.rules(repository.id)
    if rules is None:
        return warning(
            "allowed, but the repository has no retention rules: no committed object ever expires.",
            f"Set rules with lakegc rules {repository.id} --set FILE, unless only uncommitted objects should expire.",
        )
    return ok(f"rules in days: {rules_in_words(rules)}")


def list_branches(lakefs: LakeFS, repository: Repository) -> Result:
    return ok(f"{plural(len(lakefs.branches(repository.id)), 'branch')} listed")


def read_branch(lakefs: LakeFS, repository: Repository) -> Result:
    next(lakefs.log(repository.id, repository.default_branch), None)
    return ok(f"the log of {repository.default_branch} was read")


def read_commit(lakefs: LakeFS, repository: Repository) -> Result:
    try:
        heads = lakefs.branches(repository.id)
    except Forbidden:
        return not_tried("no commit is known, because branches can't be listed")
    head = heads.get(repository.default_branch, next(iter(heads.values())))
    lakefs.commit(repository.id, head)
    return ok(f"commit {head[:12]} was read")


def list_objects(lakefs: LakeFS, repository: Repository) -> Result:
    branch = repository.default_branch
    lakefs.list_objects(repository.id, branch, amount=1)
    next(islice(lakefs.uncommitted_diff(repository.id, branch), 1), None)
    return ok(f"the objects and the uncommitted changes on {branch} were listed")


def read_object(lakefs: LakeFS, repository: Repository) -> Result:
    try:
        page = lakefs.list_objects(repository.id, repository.default_branch, amount=1)
    except Forbidden:
        return not_tried("no object is known, because objects can't be listed")
    if not page.objects:
        return not_tried(f"{repository.default_branch} has no objects")
    lakefs.stat(repository.id, repository.default_branch, page.objects[0].path)
    return ok(f"the address of an object on {repository.default_branch} was read")


def list_tags(lakefs: LakeFS, repository: Repository) -> Result:
    return ok(f"{plural(len(lakefs.tags(repository.id)), 'tag')} listed")


NO_GRAPH = "Without the commit graph, the scope 'committed' and holds on tags, commits or paths are refused."
PERMISSIONS = (
    Permission(
        "fs:ListRepositories",
        list_repositories,
        "Other repositories can't be read, so each approval has to release the brake 'others' by name.",
    ),
    Permission("retention:GetGarbageCollectionRules", read_rules),
    Permission("fs:ListBranches", list_branches),
    Permission("fs:ReadBranch", read_branch),
    Permission("fs:ReadCommit", read_commit),
    Permission("fs:ListObjects", list_objects),
    Permission("fs:ReadObject", read_object),
    Permission("fs:ListTags", list_tags, NO_GRAPH),
)
"""The permissions that are tried, apart from `fs:ReadConfig` and `fs:ReadRepository`, which other checks need."""

UNTRIED = {
    "fs:ListCommits": not_tried("the server would write a dump of references to the namespace", NO_GRAPH),
    "retention:PrepareGarbageCollectionCommits": not_tried(
        "the server would write a list of commits to the namespace",
        "Without this permission, a mark stops with an error.",
    ),
    "retention:PrepareGarbageCollectionUncommitted": not_tried(
        "the server would write a list of staged objects to the namespace",
        "Without this permission, a mark stops with an error.",
    ),
}


def try_permission(permission: Permission, lakefs: LakeFS, repository: Repository) -> Result:
    """Try a permission by its read. Raises `Forbidden` if it is missing and lakegc can't work without it."""
    try:
        return permission.read(lakefs, repository)
    except Forbidden as error:
        if not permission.without:
            raise
        return warning(str(error), permission.without)


def sweep_permissions(findings: Iterable[Finding]) -> Result:
    """The lakeFS permissions for a sweep, derived from the findings for a mark."""
    lacking = [
        finding.name
        for finding in findings
        if finding.group == MARK_GROUP and ":" in finding.name and finding.status is Status.PROBLEM
    ]
    if lacking:
        return problem(f"a sweep needs the same permissions as a mark; missing, see above: {', '.join(lacking)}.")
    return ok("a sweep repeats the reads of a mark, and needs no other permission")
