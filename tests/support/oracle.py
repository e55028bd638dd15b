"""A second, slow and simple implementation of the rules of formats §1, §4 and §6. It shares no code with lakegc.

Times are whole microseconds since 1970, by the clock that the rule names. Commits are tuples in a dict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SECOND = 1_000_000
DAY = 24 * 3600 * SECOND
FOR_EVER = float("inf")
NO_TIME_BEFORE = 315_619_200 * SECOND
"""1980-01-02: before it, a time is the zero of Unix, Go or DOS."""


class Stop(Exception):
    """Raised if the mark has to stop."""


# --- retention (§6) -------------------------------------------------------------------------------------------------


class C(NamedTuple):
    """One commit."""

    parents: tuple[str, ...]
    date: int
    version: int = 1


class Claim(NamedTuple):
    """One walk's claim that a commit is retained before `until`. `branch` is None if it began at a dangling commit."""

    until: float
    branch: str | None
    days: int


def main_parent(commit: C) -> str | None:
    if not commit.parents:
        return None
    return commit.parents[-1] if commit.version == 0 else commit.parents[0]


def latest(date: int) -> int:
    """The latest time that a date can mean: a date without a fraction of a second may have been truncated."""
    return date + SECOND if date % SECOND == 0 else date


def claims(
    commits: Mapping[str, C], heads: Mapping[str, str], default_days: int, branch_days: Mapping[str, int]
) -> dict[str, list[Claim]]:
    """The claims of all walks from all starting points about each commit."""
    claims_of: dict[str, list[Claim]] = {name: [] for name in commits}

    def walk(start: str, branch: str | None, days: int) -> None:
        passed = {start}
        child = start
        while (parent := main_parent(commits[child])) is not None:
            if parent in passed or parent not in commits:
                raise Stop(parent)
            claims_of[parent].append(Claim(latest(commits[child].date) + days * DAY, branch, days))
            passed.add(parent)
            child = parent

    for branch, head in heads.items():
        days = branch_days.get(branch, default_days)
        claims_of[head].append(Claim(FOR_EVER, branch, days))
        walk(head, branch, days)
    main_parents = {main_parent(commit) for commit in commits.values()}
    for name, commit in commits.items():
        if name not in main_parents and name not in heads.values():
            claims_of[name].append(Claim(latest(commit.date) + default_days * DAY, None, default_days))
            walk(name, None, default_days)
    return claims_of


def retained(claims_of: Mapping[str, list[Claim]], now: int) -> set[str]:
    now -= now % SECOND
    return {name for name, claims in claims_of.items() if any(claim.until > now for claim in claims)}


# --- addresses (§1, §4) ---------------------------------------------------------------------------------------------


def is_candidate(key: str, *, local_adapter: bool = False) -> bool:
    if key.startswith("data/"):
        return key != "data/"
    if "/" in key or key in ("", "dummy"):
        return False
    return not (local_adapter and re.fullmatch(r"[0-9a-f]+-[0-9]{5}", key))


def inside(kind: int, address: str, spellings: Iterable[str]) -> str | None:
    """The key of an address of kind 0, 1 or 2, or None if it is outside. `spellings` are the namespace's full forms."""
    if kind == 1 or (kind == 0 and "://" not in address):
        return address
    for namespace in spellings:
        if address.startswith(namespace.rstrip("/") + "/"):
            return address[len(namespace.rstrip("/")) + 1 :]
    for namespace in spellings:
        if _normalized(address).startswith(_normalized(namespace) + "/"):
            raise Stop(address)
    return None


def _normalized(uri: str) -> str:
    """A URI without its scheme and repeated slashes, with the host in lower case."""
    rest = re.sub(r"/+", "/", uri.split("://", 1)[-1]).strip("/") + ("/" if uri.endswith("/") else "")
    host, slash, path = rest.partition("/")
    return (host.lower() + slash + path).rstrip("/") if slash else host.lower()


# --- marks ----------------------------------------------------------------------------------------------------------


def expired_addresses(
    listing: Mapping[str, int],
    *,
    committed: Iterable[tuple[int, str]],
    uncommitted: Iterable[str],
    served: Iterable[str],
    on_hold: Iterable[str] = (),
    spellings: Iterable[str],
    cutoff: int,
    resolution: int = SECOND,
    local_adapter: bool = False,
) -> set[str]:
    """The keys to delete: listed (key → time of change) − committed − staged − served − on hold − young.

    `committed` are (kind, address) of every entry of every retained commit; `uncommitted` and `served` are addresses as
    the server writes them; `on_hold` are keys. An object is young if it may have changed after the cutoff: the true
    time is at or after the listed one, by less than `resolution`, and unknown if the listed one is before 1980-01-02.
    Both times are the store's.
    """
    spellings = list(spellings)
    named = {inside(kind, address, spellings) for kind, address in committed}
    named |= {inside(0, address, spellings) for address in (*uncommitted, *served)}
    live = {key for key in named if key is not None}
    if live and not live & set(listing):
        raise Stop("none of the live addresses is listed")
    old = {key for key, changed in listing.items() if changed >= NO_TIME_BEFORE and changed + resolution <= cutoff}
    candidates = {key for key in listing if is_candidate(key, local_adapter=local_adapter)}
    return (candidates & old) - live - set(on_hold)


def in_scope(scope: str, expired: set[str], *, committed: set[str], committed_by_expired: set[str]) -> set[str]:
    """The keys to delete in a scope (design, Scopes). `committed` are the keys of all commits, expired or not, and
    `committed_by_expired` those of the expired ones."""
    if scope == "committed":
        return expired & committed_by_expired
    return expired - committed if scope == "uncommitted" else expired


# --- holds ----------------------------------------------------------------------------------------------------------


class H(NamedTuple):
    """One hold. `kind` is tag, history, metadata, branch, path or prefix; `until` is a time or `FOR_EVER`."""

    kind: str
    pattern: str
    days: int = 0
    key: str = ""
    until: float = FOR_EVER


def matches(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern: `*` is any text, `?` any one character, `[a-c!]` one of these characters, and
    `[!a-c]` any other."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(matches(pattern[1:], text[cut:]) for cut in range(len(text) + 1))
    if pattern[0] == "[":
        end = pattern.index("]", 3 if pattern[1] == "!" else 2)
        wanted, negated = pattern[1:end].removeprefix("!"), pattern[1] == "!"
        return bool(text) and _is_one_of(text[0], wanted) is not negated and matches(pattern[end + 1 :], text[1:])
    return bool(text) and pattern[0] in ("?", text[0]) and matches(pattern[1:], text[1:])


def _is_one_of(character: str, wanted: str) -> bool:
    if len(wanted) >= 3 and wanted[1] == "-":
        return wanted[0] <= character <= wanted[2] or _is_one_of(character, wanted[3:])
    return bool(wanted) and (character == wanted[0] or _is_one_of(character, wanted[1:]))


def with_ancestors(commits: Mapping[str, C], start: str) -> set[str]:
    """A commit and all its ancestors, through every parent."""
    ancestors, waiting = {start}, [start]
    while waiting:
        for parent in commits[waiting.pop()].parents:
            if parent not in commits:
                raise Stop(parent)
            if parent not in ancestors:
                ancestors.add(parent)
                waiting.append(parent)
    return ancestors


def commits_of_hold(
    hold: H,
    commits: Mapping[str, C],
    *,
    heads: Mapping[str, str],
    tags: Mapping[str, str],
    metadata: Mapping[str, Mapping[str, str]],
    branch_days: Mapping[str, int],
    default_days: int,
    now: int,
) -> set[str]:
    """The commits that a hold retains, whether or not the rules do; none once it has expired."""
    now -= now % SECOND
    if hold.until <= now:
        return set()
    matching: set[str] = set()
    for tag, commit in tags.items():
        if hold.kind in ("tag", "history") and matches(hold.pattern, tag):
            matching |= with_ancestors(commits, commit) if hold.kind == "history" else {commit}
    for commit, pairs in metadata.items():
        if hold.kind == "metadata" and hold.key in pairs and matches(hold.pattern, pairs[hold.key]):
            matching.add(commit)
    for branch, head in heads.items():
        if hold.kind == "branch" and matches(hold.pattern, branch):
            days = max(hold.days, branch_days.get(branch, default_days))
            matching.add(head)
            child = head
            while (parent := main_parent(commits[child])) is not None:
                if latest(commits[child].date) + days * DAY > now:
                    matching.add(parent)
                child = parent
    return matching
