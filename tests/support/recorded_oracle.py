"""What the oracle says about a recording: retained commits, live addresses, and garbage, now or without a branch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from spark_resources.lakefs.gc_lists import parse_commits_csv, read_uncommitted_file
from spark_resources.model import Commit, Rules
from spark_resources.sstable import read_commits, read_entries, read_ranges
from tests.support import oracle
from tests.support.replay_server import Recording


def microseconds(moment: datetime) -> int:
    return round(moment.timestamp() * oracle.SECOND)


def moment(microseconds_since_1970: float) -> datetime:
    return datetime.fromtimestamp(microseconds_since_1970 / oracle.SECOND, UTC)


@dataclass(frozen=True)
class RecordedOracle:
    """The oracle's answers for one recording. Addresses are keys of the namespace."""

    recording: Recording

    # --- commits ----------------------------------------------------------------------------------------------------

    @cached_property
    def metaranges(self) -> dict[str, str]:
        return {commit.id: commit.metarange_id for commit in self._dumped()}

    @cached_property
    def commits(self) -> dict[str, oracle.C]:
        return {
            commit.id: oracle.C(commit.parents, microseconds(commit.created), commit.version)
            for commit in self._dumped()
        }

    def _dumped(self) -> list[Commit]:
        dump = self.recording.api("refs_dump")["body"]["commits_meta_range_id"]
        refs = read_ranges(self._table(dump), name=dump, entity="commit")
        return [commit for ref in refs for commit in read_commits(self._table(ref.id), name=ref.id)]

    def _table(self, table_id: str) -> bytes:
        return self.recording.recorded_bytes(f"_lakefs/{table_id}")

    @cached_property
    def heads(self) -> dict[str, str]:
        return {branch["id"]: branch["commit_id"] for branch in self.recording.api("branches")["body"]["results"]}

    @property
    def has_rules(self) -> bool:
        return self.recording.meta["rules"] is not None

    def claims(self, heads: Mapping[str, str]) -> dict[str, list[oracle.Claim]]:
        """The claims on each commit; without rules, each is retained forever."""
        if not self.has_rules:
            return {commit: [oracle.Claim(oracle.FOR_EVER, None, 0)] for commit in self.commits}
        rules = self.recording.meta["rules"]
        days = {rule["branch_id"]: rule["retention_days"] for rule in rules["branches"]}
        return oracle.claims(self.commits, heads, rules["default_retention_days"], days)

    def retained(self, heads: Mapping[str, str]) -> set[str]:
        """The commits that the rule retains with these heads, and those that only the server's lists retain."""
        now = microseconds(self.recording.recorded_at)
        return oracle.retained(self.claims(heads), now) | self.retained_by_server_only

    @cached_property
    def retained_by_server_only(self) -> set[str]:
        now = microseconds(self.recording.recorded_at)
        return self.server_listed - oracle.retained(self.claims(self.heads), now)

    @cached_property
    def server_listed(self) -> set[str]:
        files = self.recording.path.glob("namespace/_lakefs/retention/gc/commits/*/commits.csv")
        return {commit for file in files for commit, _ in parse_commits_csv(file.read_bytes(), where=str(file))}

    # --- addresses --------------------------------------------------------------------------------------------------

    @cached_property
    def keys_by_metarange(self) -> dict[str, set[str]]:
        return {metarange: set(self._keys(metarange)) for metarange in set(self.metaranges.values()) - {""}}

    def _keys(self, metarange: str) -> Iterator[str]:
        for part in read_ranges(self._table(metarange), name=metarange):
            batch = read_entries(self._table(part.id), name=part.id)
            for address, kind in zip(batch["address"].to_pylist(), batch["address_type"].to_pylist(), strict=True):
                if (key := oracle.inside(kind, address, [self.recording.namespace.uri])) is not None:
                    yield key

    def committed(self, commits: set[str]) -> set[str]:
        return set().union(*map(self.keys_of, commits))

    def kept_until(self, key: str) -> float:
        """When the last retained commit that has this key expires; FOR_EVER for heads, without rules, and for commits
        that only the server retains."""
        return max(end for commit, end in self._ends.items() if key in self.keys_of(commit))

    def keys_of(self, commit: str) -> set[str]:
        return self.keys_by_metarange.get(self.metaranges[commit], set())

    @cached_property
    def _ends(self) -> dict[str, float]:
        claims = self.claims(self.heads)
        return {
            commit: oracle.FOR_EVER
            if commit in self.retained_by_server_only
            else max(claim.until for claim in claims[commit])
            for commit in self.retained(self.heads)
        }

    @cached_property
    def staged(self) -> set[str]:
        files = self.recording.path.glob("namespace/_lakefs/retention/gc/uncommitted/*/uncommitted/*")
        listed = [
            address
            for file in files
            for address in read_uncommitted_file(file.read_bytes(), where=str(file))["physical_address"].to_pylist()
        ]
        return {key for key in (oracle.inside(0, address, [self.recording.namespace.uri]) for address in listed) if key}

    @cached_property
    def served(self) -> set[str]:
        """The addresses that branches serve, as far as they were recorded."""
        recorded = (self.recording.api("objects_served_by_branches") or {"objects": {}})["objects"]
        addresses = [entry["physical_address"] for entries in recorded.values() for entry in entries]
        return {key for key in (oracle.inside(0, name, [self.recording.namespace.uri]) for name in addresses) if key}

    def unlisted(self, retained: set[str]) -> set[str]:
        """The stored objects that none of these commits and no list of staged objects has."""
        candidates = {key for key in self.recording.listing if oracle.is_candidate(key)}
        return candidates - self.committed(retained) - self.staged

    def pinned_by_branch(self, branch: str) -> set[str]:
        """The objects that would be garbage if this branch were deleted, as far as the lists show."""
        others = {name: head for name, head in self.heads.items() if name != branch}
        return self.unlisted(self.retained(others)) - self._unlisted_now

    def pinned_by_commit(self, commit: str) -> set[str]:
        """The objects that would be garbage if this retained commit expired."""
        return self.unlisted(self.retained(self.heads) - {commit}) - self._unlisted_now

    @cached_property
    def _unlisted_now(self) -> set[str]:
        return self.unlisted(self.retained(self.heads))

    # --- other rules ------------------------------------------------------------------------------------------------

    def expired_with(self, rules: Rules | None, dropped: Collection[str] = ()) -> set[str]:
        """The objects that these rules would expire without some branches. What is staged on those is kept."""
        retained = set(self.commits)
        if rules is not None:
            heads = {branch: commit for branch, commit in self.heads.items() if branch not in dropped}
            claims = oracle.claims(self.commits, heads, rules.default_days, rules.branch_days)
            retained = oracle.retained(claims, microseconds(self.recording.recorded_at)) | self.retained_by_server_only
        candidates = {key for key in self.recording.listing if oracle.is_candidate(key)}
        return candidates - self.committed(retained) - self.staged - self.served_without(dropped)

    def served_without(self, dropped: Collection[str]) -> set[str]:
        """The addresses that branches other than these serve, as far as they were recorded."""
        recorded = (self.recording.api("objects_served_by_branches") or {"objects": {}})["objects"]
        entries = [entry for branch, rows in recorded.items() if branch not in dropped for entry in rows]
        addresses = (oracle.inside(0, entry["physical_address"], [self.recording.namespace.uri]) for entry in entries)
        return {key for key in addresses if key}
