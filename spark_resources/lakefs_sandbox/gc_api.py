"""The server's API for garbage collection: rules, retained commits, staged addresses, refs dumps (formats §2, 5, 6)."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import pyarrow as pa
import pyarrow.parquet as pq

from spark_resources.errors import DamagedData
from spark_resources.lakefs.gc_lists import COMMITS_HEADER, UNCOMMITTED_COLUMNS
from spark_resources.lakefs_sandbox.committed import PREFIX
from spark_resources.lakefs_sandbox.errors import Problem, bad_request, not_found
from spark_resources.lakefs_sandbox.ref_views import as_text
from spark_resources.lakefs_sandbox.repository import SandboxRepository
from spark_resources.lakefs_sandbox.state import BranchRecord
from spark_resources.lakefs_sandbox.xids import Xids
from spark_resources.model import AddressType, Commit, Rules
from spark_resources.sstable import Branch, Entry, Tag, write_branches, write_commits, write_tags
from spark_resources.sstable.wire import (
    LENGTH_DELIMITED,
    VARINT,
    bytes_field,
    fields,
    text_field,
    varint_field,
)

RULES_KEY = "_lakefs/retention/gc/rules/config.json"
_GC = "_lakefs/retention/gc"
_RULES_FIELDS = {1: VARINT, 2: LENGTH_DELIMITED}
_RULE_FIELDS = {1: LENGTH_DELIMITED, 2: VARINT}
_PARQUET_SCHEMA = pa.schema(
    [
        pa.field(UNCOMMITTED_COLUMNS[0], pa.string(), nullable=False),
        pa.field(UNCOMMITTED_COLUMNS[1], pa.int64(), nullable=False),
    ]
)
DEFAULT_UNCOMMITTED_PAGE_SIZE = 500_000


class Oversight(StrEnum):
    """Omissions of a real server in the lists that it prepares (formats §2, §6)."""

    RESTAGED_CONTENT = "same bytes"  # identical content re-staged at another address isn't a change, so it isn't listed
    VISITED_COMMITS = "parent order"  # a walk stops at a commit that was visited before, without retaining it
    FULL_ADDRESSES = "full addresses"  # on the local adapter: considered outside the namespace, so not listed


ALL_OVERSIGHTS = frozenset(Oversight)


# --- rules ----------------------------------------------------------------------------------------------------------


def rules(repository: SandboxRepository) -> Rules:
    """The retention rules. Raises `Problem` 404 if none are set."""
    try:
        message = repository.objects.read(RULES_KEY)
    except Problem:
        message = b""
    if not message:
        raise not_found()
    default_days, branch_days = 0, {}
    for number, value, content in fields(message, _RULES_FIELDS, "the rules"):
        if number == 1:
            default_days = value
            continue
        rule = {field: (text, days) for field, days, text in fields(content, _RULE_FIELDS, "a rule")}
        branch_days[rule.get(1, (b"", 0))[0].decode()] = rule.get(2, (b"", 0))[1]
    return Rules(default_days, branch_days)


def set_rules(repository: SandboxRepository, new_rules: Rules) -> None:
    parts = [varint_field(1, new_rules.default_days)]
    for branch, days in new_rules.branch_days.items():
        parts.append(bytes_field(2, text_field(1, branch) + varint_field(2, days)))
    repository.check_writable()
    # As on the server, an empty file means that there are no rules, so zero days everywhere can't be expressed.
    repository.objects.write(RULES_KEY, b"".join(parts))


def delete_rules(repository: SandboxRepository) -> None:
    repository.check_writable()
    repository.objects.write(RULES_KEY, b"")


# --- commits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedCommits:
    run_id: str
    commits_location: str
    addresses_location: str


def prepare_commits(repository: SandboxRepository, xids: Xids, oversights: Collection[Oversight]) -> PreparedCommits:
    """Write `commits.csv`. Raises `Problem` 404 if there are no rules."""
    repository.check_writable()
    try:
        current_rules = rules(repository)
    except Problem:
        raise Problem(404, "get gc rules: not found") from None
    commits = {commit.id: commit for commit in repository.commits()}
    listed_ids = listed_commits(
        commits,
        repository.branches(include_hidden=True),
        current_rules,
        now=repository.clock.now(),
        oversights=oversights,
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COMMITS_HEADER)
    writer.writerows((commit_id, "false", commits[commit_id].metarange_id) for commit_id in sorted(listed_ids))
    run_id = xids.descending_id()
    key = f"{_GC}/commits/run_id={run_id}/commits.csv"
    repository.objects.write(key, text.getvalue().encode())
    return PreparedCommits(run_id, repository.objects.location(key), repository.objects.location(f"{_GC}/addresses/"))


def listed_commits(
    commits: Mapping[str, Commit], branches: Iterable[BranchRecord], rules: Rules, *, now: datetime,
    oversights: Collection[Oversight],
) -> set[str]:  # fmt: skip
    """The ids of the commits in the server's list, found by walking the graph as the server does (formats §6)."""
    listed: set[str] = set()
    visited: dict[str, datetime] = {}
    for commit_id, days, is_head in _starting_points(commits, branches, rules):
        cutoff = _cutoff(now, days)
        created = commits[commit_id].created
        parent: str | None = commit_id  # the walk to a dangling commit starts as if from a child of the same date
        if is_head:
            listed.add(commit_id)
            visited[commit_id] = cutoff
            parent = commits[commit_id].main_parent
        while parent is not None:
            earlier_cutoff = visited.get(parent)
            is_covered = earlier_cutoff is not None and earlier_cutoff <= cutoff
            if is_covered and Oversight.VISITED_COMMITS in oversights:
                break
            if created > cutoff:
                listed.add(parent)
            if is_covered:
                break
            visited[parent] = cutoff
            created, parent = commits[parent].created, commits[parent].main_parent
    return listed


def _cutoff(now: datetime, days: int) -> datetime:
    try:
        return now - timedelta(days=days)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _starting_points(
    commits: Mapping[str, Commit], branches: Iterable[BranchRecord], rules: Rules
) -> Iterator[tuple[str, int, bool]]:
    """Heads and dangling commits, sorted by commit id, each with its retention days and whether it is a head."""
    heads = [(branch.commit_id, branch.id) for branch in branches]
    parents_and_heads = {commit.main_parent for commit in commits.values()} | {commit_id for commit_id, _ in heads}
    dangling = [(commit_id, "") for commit_id in commits if commit_id not in parents_and_heads]
    for commit_id, branch in sorted(heads + dangling):
        yield commit_id, rules.days(branch) if branch else rules.default_days, bool(branch)


# --- uncommitted ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UncommittedPage:
    """One page of staged addresses. `location` is empty if no file was written; `token` is None on the last page."""

    run_id: str
    location: str
    token: str | None


def prepare_uncommitted(
    repository: SandboxRepository, xids: Xids, token: str | None, *, page_size: int, oversights: Collection[Oversight]
) -> UncommittedPage:
    """Write one page of staged addresses, sorted by branch and path. The result has the token for the next page.

    As on the server, a branch that is deleted during the scan resets the row count to zero, and a page with a count of
    zero is not stored. Raises `Problem` 404 if the last branch was deleted.
    """
    repository.check_writable()
    run_id, first_branch, path = _parse_token(token) if token else (xids.descending_id(), "", "")
    page: list[Entry] = []
    rows, last_branch_is_gone, next_entry = 0, False, None
    for branch in _branches_from(repository, first_branch):
        if last_branch_is_gone := branch is None:
            rows = 0
            continue
        for entry in _staged_entries_from(repository, branch, path if branch == first_branch else "", oversights):
            rows += 1
            if len(page) == page_size:
                next_entry = (branch, entry)
                break
            page.append(entry)
        if next_entry:
            break
    if last_branch_is_gone:
        raise not_found("branch")
    location = _write_page(repository, xids, run_id, page) if rows else ""
    if page and not rows:
        repository.faults.injection_counts["pages that were not stored"] += 1
    return UncommittedPage(run_id, location, _token(run_id, *next_entry) if next_entry else None)


def _write_page(repository: SandboxRepository, xids: Xids, run_id: str, page: list[Entry]) -> str:
    folder = f"{_GC}/uncommitted/{run_id}/uncommitted/"
    repository.objects.write(folder + xids.ascending_id(), _parquet(page))
    return repository.objects.location(folder)


def _token(run_id: str, branch: str, entry: Entry) -> str:
    position = json.dumps({"run_id": run_id, "branch": branch, "path": as_text(entry.path)})
    return base64.urlsafe_b64encode(position.encode()).decode()


def _parse_token(token: str) -> tuple[str, str, str]:
    try:
        position = json.loads(base64.urlsafe_b64decode(token.encode()))
        return str(position["run_id"]), str(position["branch"]), str(position["path"])
    except (ValueError, KeyError, TypeError):
        raise bad_request("invalid continuation token") from None


def _branches_from(repository: SandboxRepository, first: str) -> Iterator[str | None]:
    """The ids of the branches from `first` onwards; None for a branch that was deleted after they were listed."""
    for branch in repository.branches(include_hidden=True):
        if branch.id >= first:
            yield branch.id
            if repository.faults.is_followed_by_deleted(branch.id):
                yield None


def _staged_entries_from(
    repository: SandboxRepository, branch: str, start: str, oversights: Collection[Oversight]
) -> Iterator[Entry]:
    entries: Iterator[Entry]
    if Oversight.RESTAGED_CONTENT in oversights:
        changes = repository.uncommitted_changes_until_unreadable(branch, start=start)
        entries = (change.entry for change in changes if change.kind != "removed")
    else:
        entries = repository.staged_entries(branch, start=start)
    for entry in entries:
        if listed := _listed_entry(repository, entry, oversights):
            yield listed


def _listed_entry(repository: SandboxRepository, entry: Entry, oversights: Collection[Oversight]) -> Entry | None:
    """An entry with a relative address, as in the list; None if the server considers the address outside."""
    if entry.address_type is not AddressType.RELATIVE:
        root = repository.objects.storage_namespace + "/"
        has_oversight = Oversight.FULL_ADDRESSES in oversights
        address = entry.address.removeprefix(root) if has_oversight else repository.key_inside(entry)
        if address is None or (has_oversight and address == entry.address):
            return None
        entry = replace(entry, address=address)
    return entry


def _parquet(entries: list[Entry]) -> bytes:
    if any(entry.last_modified is None for entry in entries):
        raise DamagedData("a staged entry has no modification time")
    columns = (
        [entry.address for entry in entries],
        [int(entry.last_modified.timestamp()) for entry in entries if entry.last_modified],
    )
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(list(map(pa.array, columns)), schema=_PARQUET_SCHEMA), sink, compression="gzip")
    return bytes(sink.getvalue())


# --- refs dump ------------------------------------------------------------------------------------------------------


def dump_refs(repository: SandboxRepository) -> dict[str, str]:
    """Write every commit, branch and tag to tables. Returns the metaranges' ids by their names in the API."""
    branches = repository.branches(include_hidden=True)
    dumps = {
        "commits_meta_range_id": write_commits(repository.commits()),
        "tags_meta_range_id": write_tags(Tag(*tag) for tag in repository.tags()),
        "branches_meta_range_id": write_branches(Branch(b.id, b.commit_id, hidden=b.hidden) for b in branches),
    }
    for dump in dumps.values():
        for table_id, data in dump.tables.items():
            repository.objects.write(PREFIX + table_id, data)
    ids = {name: dump.id for name, dump in dumps.items()}
    manifest = json.dumps(dict(sorted(ids.items())), indent=2)
    repository.objects.write(f"{PREFIX}refs_manifest.json", manifest.encode())
    return ids
