"""Why an object is kept, expired or gone: from a path to its addresses, or from an address to its paths and commits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.queries.addresses import (
    EXPLAINED,
    Decision,
    explain_addresses,
    in_order_of,
    live_range_addresses,
)
from lakegc_assets.queries.history import History
from lakegc_assets.queries.paths import COMMITTED_ENTRIES, entries_at, entries_with, served_now
from lakegc_assets.queries.sweeps import OUTCOMES, SweepOutcomes, expired_rows, outcomes_of
from lakegc_assets.rules.addresses import is_candidate
from spark_resources.errors import NotFound, WrongUsage
from spark_resources.model import Location

SCHEME, LAKEFS = "://", "lakefs://"
EXPLANATIONS = pa.schema(
    [
        *EXPLAINED,
        pa.field("why_never", pa.string()),  # why lakegc never collects the address, if so
        pa.field("served_by", pa.list_(pa.string())),  # the branches that serve the path with it now
        pa.field("commits", pa.list_(pa.struct(list(COMMITTED_ENTRIES)))),  # that have it, newest first
        pa.field("sweeps", pa.list_(pa.struct(list(OUTCOMES)))),  # in the order in which they happened
    ]
)


@dataclass(frozen=True)
class Explanation:
    """The explanation of a path or an address.

    `rows` are EXPLANATIONS: one for the address, or one for each address that the path has or had. `path` is None for
    an address. `unreadable` are the marks whose sweeps' outcomes are unknown, each with the reason.
    """

    history: History
    name: str
    path: str | None
    rows: pa.Table
    unreadable: Mapping[str, str]


def explain_name(history: History, name: str, *, is_path: bool = False, is_address: bool = False) -> Explanation:
    """Explain a path (also as `lakefs://REPO/REF/PATH`) or an address: a key of the namespace, or a full URI. Without a
    flag, it may be either.

    Raises `WrongUsage` if it is both a committed path and an address, `NotFound` if it is neither.
    """
    if is_path and is_address:
        raise WrongUsage("--path and --address are mutually exclusive: pass only one of them")
    if name.startswith(LAKEFS):
        return explain_name(history, path_in(history, name), is_path=True)
    if not is_path and SCHEME in name:
        return explain_uri(history, name)
    address = None if is_path else explain_address(history, name, is_certain=is_address)
    if is_address:
        if address is None:
            raise NotFound(unknown_address(history, name))
        return address
    committed = entries_at(history, name)
    if address is None:
        return explain_path(history, name, committed, served_now(history, name))
    if len(committed):
        raise WrongUsage(
            f"'{name}' is both a path in lakeFS and the address of an object of {history.repository}. Pass --path or "
            "--address to say which one is meant."
        )
    return address


def path_in(history: History, uri: str) -> str:
    """The path in a URI of lakeFS. Raises `WrongUsage` if it is in another repository."""
    repository, *rest = uri.removeprefix(LAKEFS).split("/", 2)
    if repository != history.run.target.repository.lakefs_id or len(rest) != 2:
        raise WrongUsage(f"{uri} is not a path in {history.repository}: expected lakefs://REPOSITORY/BRANCH/PATH")
    return rest[1]


# --- addresses ------------------------------------------------------------------------------------------------------


def explain_uri(history: History, uri: str) -> Explanation:
    """Explain a full address. Raises `WrongUsage` for one that may be another spelling of a key in the namespace."""
    where, key = history.place.namespace.locate_reported(uri)
    if where is Location.CONFLICT:
        raise WrongUsage(
            f"it isn't certain which object {uri} refers to: it may be another spelling of an address in the namespace "
            f"{history.place.namespace.uri}. Pass the key in the namespace instead, such as data/…"
        )
    explanation = explain_address(history, key, is_inside=where is Location.INSIDE)
    if explanation is None:
        raise NotFound(unknown_address(history, key))
    return explanation


def explain_address(
    history: History, key: str, *, is_inside: bool = True, is_certain: bool = False
) -> Explanation | None:
    """Explain an address; None if nothing is known about it: neither the mark, nor a sweep, nor the store has it.

    If `is_certain`, the name is an address, so one that is never collected is explained even if nothing is known about
    it.
    """
    rows, swept = explained_with_sweeps(history, [key] if is_inside else [])
    if not is_inside:
        return Explanation(history, key, None, with_details(history, outside_rows([key]), swept, []), swept.unreadable)
    (row,) = rows.to_pylist()
    is_never = row["decision"] == Decision.NEVER_COLLECTED
    is_known = row["size"] is not None or row["kept_by"] or len(swept.rows) or (is_never and is_certain)
    if not is_known and not is_stored(history, key):
        return None
    entries = entries_of(history, key, row["path"])
    return Explanation(history, key, None, with_details(history, rows, swept, entries), swept.unreadable)


def entries_of(history: History, key: str, path: str | None) -> list[pa.Table]:
    """The entries with this address in all commits, at its paths in live ranges and at `path`."""
    wanted = pa.array([key], pa.string())
    ranges = pc.unique(live_range_addresses(history, wanted)["range"]).to_pylist()
    paths = set(entries_with(history, wanted, ranges)["path"].to_pylist()) | ({path} if path is not None else set())
    return [with_address(entries_at(history, path), [key]) for path in sorted(paths)]


def is_stored(history: History, key: str) -> bool:
    """Whether the store has an object at this key now."""
    try:
        history.place.store().stat(key)
    except NotFound:
        return False
    return True


def unknown_address(history: History, key: str) -> str:
    return (
        f"there is no object at {history.place.namespace.uri}/{key}, and no mark or sweep of "
        f"{history.repository} recorded one there. Addresses are case-sensitive keys such as data/…; to explain a path "
        "in lakeFS, add --path"
    )


# --- paths ----------------------------------------------------------------------------------------------------------


def explain_path(history: History, path: str, committed: pa.Table, served: Mapping[str, str]) -> Explanation:
    """Explain every address that a path has in a commit or that a branch serves there."""
    if not len(committed) and not served:
        raise NotFound(
            f"'{path}' isn't in any commit that mark {history.record.mark_id} of {history.repository} knew, and no "
            "branch serves it. Paths are case-sensitive and have no leading slash. If the object was overwritten "
            "before it was committed, its path isn't recorded anywhere: explain its address instead."
        )
    inside = committed.filter(committed["inside"])["address"].to_pylist()
    located = [(address, SCHEME not in address) for address in served.values()]
    keys = list(dict.fromkeys([*(address for address, is_key in located if is_key), *inside]))
    others = [*(address for address, is_key in located if not is_key)]
    others += committed.filter(pc.invert(committed["inside"]))["address"].to_pylist()
    rows, swept = explained_with_sweeps(history, keys)
    rows = pa.concat_tables([rows, outside_rows(dict.fromkeys(others))])
    by_branch = {address: [name for name in served if served[name] == address] for address in served.values()}
    details = with_details(history, rows, swept, [committed], by_branch)
    return Explanation(history, path, path, details, swept.unreadable)


# --- rows -----------------------------------------------------------------------------------------------------------


def explained_with_sweeps(history: History, keys: Iterable[str]) -> tuple[pa.Table, SweepOutcomes]:
    """What the mark decided about these keys (EXPLAINED), and what sweeps did with their objects. Objects that are gone
    have the expiry reason from the mark that was swept."""
    addresses = pa.array(list(keys), pa.string())
    swept = outcomes_of(history.place, addresses)
    explained = explain_addresses(history, addresses)
    gone = explained.filter(pc.is_null(explained["reason"]))["address"]
    earlier_marks = pc.unique(swept.rows["mark_id"]).to_pylist()
    earlier = in_order_of(
        explained["address"].combine_chunks(),
        expired_rows(history.place, earlier_marks, gone.combine_chunks()).sort_by([("until", "descending")]),
    )
    columns = {name: explained[name] for name in EXPLAINED.names}
    is_gone = pc.equal(explained["decision"], Decision.NOT_STORED.value)
    for name in ("size", "modified", "reason", "commit_id", "branch", "days", "path"):
        columns[name] = pc.if_else(is_gone, pc.coalesce(explained[name], earlier[name]), explained[name])
    since = pc.coalesce(explained["expired_since"], earlier["until"])
    columns["expired_since"] = pc.if_else(is_gone, since, explained["expired_since"])
    return pa.table([columns[name] for name in EXPLAINED.names], schema=EXPLAINED), swept


def outside_rows(addresses: Iterable[str]) -> pa.Table:
    """Rows of EXPLAINED for full addresses outside the namespace."""
    rows = [{"address": name, "decision": Decision.NEVER_COLLECTED.value, "kept_by": []} for name in addresses]
    return pa.Table.from_pylist(rows, schema=EXPLAINED)


def with_address(entries: pa.Table, addresses: Iterable[str]) -> pa.Table:
    return entries.filter(pc.is_in(entries["address"], value_set=pa.array(list(addresses), pa.string())))


def with_details(
    history: History,
    rows: pa.Table,
    swept: SweepOutcomes,
    entries: Iterable[pa.Table],
    served: Mapping[str, list[str]] | None = None,
) -> pa.Table:
    """These rows of EXPLAINED with their commits, sweeps and branches (EXPLANATIONS)."""
    commits = pa.concat_tables([COMMITTED_ENTRIES.empty_table(), *entries]).to_pylist()
    outcomes = swept.rows.to_pylist()
    detailed = [
        {
            **row,
            "why_never": why_never_collected(history, row["address"], row["decision"]),
            "served_by": (served or {}).get(row["address"], []),
            "commits": [commit for commit in commits if commit["address"] == row["address"]],
            "sweeps": [outcome for outcome in outcomes if outcome["address"] == row["address"]],
        }
        for row in rows.to_pylist()
    ]
    return pa.Table.from_pylist(detailed, schema=EXPLANATIONS)


def why_never_collected(history: History, address: str, decision: str) -> str | None:
    """Why lakegc never deletes the object at an address, for people; None if it may."""
    if decision != Decision.NEVER_COLLECTED:
        return None
    if not is_candidate(address, local_adapter=history.run.local_adapter) and SCHEME not in address:
        if address.startswith("_lakefs/"):
            return "files under _lakefs/ are metadata of lakeFS and lakegc"
        return "lakegc collects only objects under data/, and those that old versions of lakeFS wrote to the root"
    return (
        f"it is outside the namespace {history.place.namespace.uri}, and lakegc deletes nothing there. Imported and "
        "linked objects belong to the user or system that stored them"
    )
