"""Events in a repository as values, and Hypothesis strategies for them: what servers and clients do, with which names,
contents and times.

Events refer to branches, commits and objects by numbers, which count from the newest one and wrap around. So any list
of events is a history, and Hypothesis can leave out any of them to make a failing one small.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from hypothesis import strategies as st

from spark_resources.lakefs_sandbox.errors import Problem
from spark_resources.lakefs_sandbox.xids import Xids
from tests.support import oracle
from tests.support.drawn_repository import Content, DrawnRepository, moment
from tests.support.repository_model import micros

T = TypeVar("T")
DAY = oracle.DAY
HOUR = DAY // 24
SECOND = oracle.SECOND


def one_of(*weighted: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """One of these strategies, each as often as its weight says. (`st.one_of` ignores repetitions.)"""
    places = [place for place, (weight, _) in enumerate(weighted) for _ in range(weight)]
    return st.sampled_from(places).flatmap(lambda place: weighted[place][1])


# --- names and contents ---------------------------------------------------------------------------------------------

NASTY = " %+?#&*'\"\\;:=@^`|~<>{}[]()!$,.-_\n\t\r\x01\x7f\u00e9\u0301\u202e\u2028\ufeff\uffff\U0001f600ßİ"
nasty_text = st.text(NASTY, min_size=1, max_size=3)
PATHS = ("a/_SUCCESS", "a/x", "z")
NASTY_PATHS = ("a//x", "/a", "a/", "a", "./a", "../a", "a%2Fx", "a+x", "ä", "a\u0308", " ", "\U0010ffff", "p" * 1024)
paths = one_of(
    (6, st.sampled_from(PATHS)),
    (1, st.sampled_from(NASTY_PATHS)),
    (1, st.text(NASTY + "ab/", min_size=1, max_size=6)),
)
contents = st.builds(
    Content,
    st.sampled_from((b"one", b"two", b"", b"three")),
    st.sampled_from(("application/octet-stream", "application/octet-stream", "text/plain", "")),
    st.sampled_from(({}, {}, {"key": "ü"})),
)
BRANCHES = ("main", "dev", "exp-1", "exp-2", "_0", "ZZ")
branch_names = st.sampled_from(BRANCHES[1:])
tag_names = st.sampled_from(("v1", "v2", "w-1", "ü", "V1"))
numbers = st.integers(0, 7)
branches = st.sampled_from((0, 0, 1, 2, 3))
STRATEGIES = ("", "source-wins", "dest-wins")
commit_metadata = st.sampled_from(({}, {}, {"legal": "hold"}, {"legal": ""}, {"legal": "no", "key": "hold"}))

# keys by their shape: where a server, an earlier or a later one, or a client writes an object
CANDIDATES = (
    "data/{slice}/{id}", "data/{slice}/{id}", "data/{slice}/{id}", "data/{slice}/{id},{nasty}",
    "data/{slice}/{nasty}{n}",
    "data/!ab/c/{slice}/{id}", "data/{n}", "data/{nasty}{n}", "data/{nasty}{n}/{nasty}", "data/_lakefs/{n}",
    "data/of/a/client/{n}", "{n:032x}", "{nasty}{n}",
)  # fmt: skip
NEVER_CANDIDATES = ("other/{n}", "data-x/{n}", "Data/{n}", "{n:06x}-00001", "_lakefs/{n}", "_lakefs/data/{n}")


@dataclass(frozen=True)
class Key:
    """The key of an object, from its shape, the time in its xids, and a number of its own."""

    shape: str
    nasty: str = ""
    age: int = 0

    def text(self, number: int, now: int) -> str:
        xids = Xids(number, lambda: moment(now))
        then = moment(max(0, now - self.age))
        return self.shape.format(slice=xids.descending_id(then), id=xids.ascending_id(then), nasty=self.nasty, n=number)


# --- times ----------------------------------------------------------------------------------------------------------


def at(*fields: int) -> int:
    return micros(datetime(*fields, tzinfo=UTC))  # type: ignore[arg-type,misc]


EXTREME_DATES = (
    at(1, 1, 1), at(1582, 10, 10), at(1900, 2, 28, 23, 59, 59), at(1969, 12, 31, 23, 59, 59) + SECOND - 1, 0, 1,
    at(2000, 2, 29), at(2026, 3, 29, 1, 30), at(2026, 10, 25, 1, 30), at(2100, 3, 1), at(2262, 4, 12),
    at(9999, 12, 31, 23),
)  # fmt: skip
DAYS = (0, 1, 2, 3, 7, 30)
AROUND = (-HOUR, -SECOND, -1, 0, 1, SECOND - 1, SECOND, HOUR)


@st.composite
def ages(draw: st.DrawFn) -> int:
    """Ages of commits and objects, most of them around the bounds of rules; negative ones are in the future."""
    return draw(st.sampled_from(DAYS)) * DAY + draw(st.sampled_from(AROUND)) + draw(st.sampled_from((0, 0, 5 * HOUR)))


def dates(now: int) -> st.SearchStrategy[int]:
    return one_of((5, ages().map(lambda age: now - age)), (1, st.sampled_from(EXTREME_DATES)))


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """Something that a client or a server does. What the server refuses does nothing."""

    def apply(self, lake: DrawnRepository, now: int) -> None:
        raise NotImplementedError


def branch_of(lake: DrawnRepository, number: int) -> str:
    return sorted(lake.heads)[number % len(lake.heads)]


def commit_of(lake: DrawnRepository, number: int) -> str:
    return list(lake.commits)[-1 - number % len(lake.commits)]


def object_of(lake: DrawnRepository, number: int) -> tuple[str, Content]:
    return lake.objects[-1 - number % len(lake.objects)]


@dataclass(frozen=True)
class Upload(Event):
    """Write an object and stage it, in one of the spellings of its address."""

    branch: int
    path: str
    key: Key
    content: Content
    age: int
    form: int = 0

    def apply(self, lake: DrawnRepository, now: int) -> None:
        modified = now - self.age
        written = lake.write_object(self.key.text(len(lake.objects), now), self.content, modified)
        forms = lake.forms(written.key)
        lake.stage(branch_of(lake, self.branch), self.path, forms[self.form % len(forms)], self.content, modified)


@dataclass(frozen=True)
class Stray(Event):
    """Write an object that nothing refers to."""

    key: Key
    content: Content
    age: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        lake.write_object(self.key.text(len(lake.objects), now), self.content, now - self.age)


@dataclass(frozen=True)
class SameAgain(Event):
    """Upload what a branch serves once more: the same content at the same path, and another address."""

    branch: int
    path: int
    key: Key
    age: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        branch = branch_of(lake, self.branch)
        if served := sorted(lake.views[branch]):
            path = served[self.path % len(served)]
            entry = lake.repository.stat(branch, path)
            known = [content for key, content in lake.objects if key in entry.address]
            if known:
                content = Content(known[-1].data, entry.content_type or "", dict(entry.metadata))
                written = lake.write_object(self.key.text(len(lake.objects), now), content, now - self.age)
                lake.stage(branch, path, lake.forms(written.key)[0], content, now - self.age)


@dataclass(frozen=True)
class Share(Event):
    """Stage an object that was written before, at any path and in any spelling of its address."""

    branch: int
    path: str
    which: int
    form: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        if lake.objects:
            key, content = object_of(lake, self.which)
            forms = lake.forms(key)
            if oracle.is_candidate(key, local_adapter=True):
                lake.stage(branch_of(lake, self.branch), self.path, forms[self.form % len(forms)], content, now)


@dataclass(frozen=True)
class Outside(Event):
    """Stage an address outside the namespace, some of them alike."""

    branch: int
    path: str
    address: str

    def apply(self, lake: DrawnRepository, now: int) -> None:
        address = self.address.format(folder=lake.folder)
        kind = lake.forms("")[1][0]
        lake.stage(branch_of(lake, self.branch), self.path, (kind, address), Content(b"one"), now)


@dataclass(frozen=True)
class Delete(Event):
    """Delete a path that a branch serves."""

    branch: int
    path: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        branch = branch_of(lake, self.branch)
        if served := sorted(lake.views[branch]):
            lake.delete_path(branch, served[self.path % len(served)])


@dataclass(frozen=True)
class Reset(Event):
    """Discard what is staged on a branch."""

    branch: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        branch = branch_of(lake, self.branch)
        lake.repository.reset(branch)
        lake._move_branch(branch, lake.heads[branch])


@dataclass(frozen=True)
class MakeCommit(Event):
    """Commit what is staged on a branch."""

    branch: int
    date: int
    metadata: dict[str, str] = field(hash=False)

    def apply(self, lake: DrawnRepository, now: int) -> None:
        lake.commit_staged(branch_of(lake, self.branch), moment(self.date), self.metadata)


@dataclass(frozen=True)
class Merge(Event):
    """Merge a branch into another one, with its head as the second parent unless it is squashed."""

    source: int
    into: int
    date: int
    strategy: str
    squash: bool

    def apply(self, lake: DrawnRepository, now: int) -> None:
        source, into = branch_of(lake, self.source), branch_of(lake, self.into)
        lake.merge_branches(source, into, moment(self.date), strategy=self.strategy, squash=self.squash)


@dataclass(frozen=True)
class EarlyCommit(Event):
    """Commit as an early server did: alone, or a merge whose first parent is another commit."""

    branch: int
    other: int | None
    date: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        branch = branch_of(lake, self.branch)
        other = None if self.other is None else commit_of(lake, self.other)
        if other != lake.heads[branch]:
            lake.commit_as_version_0(branch, other, moment(self.date))


@dataclass(frozen=True)
class CreateBranch(Event):
    """Create a branch at any commit."""

    name: str
    commit: int
    hidden: bool

    def apply(self, lake: DrawnRepository, now: int) -> None:
        source = commit_of(lake, self.commit)
        lake.repository.create_branch(self.name, source, hidden=self.hidden)
        lake._move_branch(self.name, source)


@dataclass(frozen=True)
class DeleteBranch(Event):
    """Delete a branch. Its commits are dangling then, unless another one reaches them."""

    branch: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        lake.delete_branch(self.branch, 0, 0)


@dataclass(frozen=True)
class HardReset(Event):
    """Move a branch to any commit."""

    branch: int
    commit: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        branch, to = branch_of(lake, self.branch), commit_of(lake, self.commit)
        committed = lake.trees[lake.heads[branch]]
        staged = {path: seen for path, seen in lake.views[branch].items() if seen != committed.get(path)}
        lake.repository.hard_reset(branch, to)
        lake.heads[branch], lake.views[branch] = to, {**lake.trees[to], **staged}


@dataclass(frozen=True)
class CreateTag(Event):
    """Tag any commit."""

    name: str
    commit: int

    def apply(self, lake: DrawnRepository, now: int) -> None:
        lake.repository.create_tag(self.name, commit_of(lake, self.commit))
        lake.tags[self.name] = commit_of(lake, self.commit)


def apply_all(events: tuple[Event, ...], lake: DrawnRepository, now: int) -> None:
    for event in events:
        with suppress(Problem):
            event.apply(lake, now)


def keys(shapes: tuple[str, ...]) -> st.SearchStrategy[Key]:
    return st.builds(Key, st.sampled_from(shapes), nasty_text, ages())


def changes() -> st.SearchStrategy[Event]:
    """What can be staged on a branch. Most of it is an upload."""
    candidates = keys(CANDIDATES)
    upload = st.builds(Upload, branches, paths, candidates, contents, ages(), st.just(0))
    outside = st.sampled_from(
        ("local://lake-other/data/s/o", "local://{folder}-other/data/s/o", "s3://bucket/lake/data/x", "local://la/x")
    )
    return one_of(
        (6, upload),
        (2, st.builds(Upload, branches, paths, candidates, contents, ages(), numbers)),
        (3, st.builds(SameAgain, branches, numbers, candidates, ages())),
        (2, st.builds(Share, branches, paths, numbers, numbers)),
        (1, st.builds(Outside, branches, paths, outside)),
        (3, st.builds(Delete, branches, numbers)),
    )


def turns(now: int) -> st.SearchStrategy[tuple[Event, ...]]:
    """One or several events that belong together: changes and their commit, or an event of another kind."""
    staged = st.lists(changes(), min_size=1, max_size=3).map(tuple)
    commit = st.builds(MakeCommit, branches, dates(now), commit_metadata)
    other = one_of(
        (5, st.builds(CreateBranch, branch_names, numbers, st.booleans())),
        (2, st.builds(Merge, branches, branches, dates(now), st.sampled_from(STRATEGIES), st.booleans())),
        (4, st.builds(EarlyCommit, branches, st.none() | numbers, dates(now))),
        (1, st.builds(DeleteBranch, branches)),
        (1, st.builds(HardReset, branches, numbers)),
        (1, st.builds(Reset, branches)),
        (2, st.builds(CreateTag, tag_names, numbers)),
        (2, st.builds(Stray, keys(CANDIDATES + NEVER_CANDIDATES), contents, ages())),
    )
    return one_of(
        (8, st.tuples(staged, commit).map(lambda turn: (*turn[0], turn[1]))),
        (2, staged),
        (6, other.map(lambda event: (event,))),
        (3, tagged_and_overwritten(now)),
        (1, merged_by_an_early_server(now)),
    )


def tagged_and_overwritten(now: int) -> st.SearchStrategy[tuple[Event, ...]]:
    """A tagged commit, of which only the tag is left: its object is overwritten, with two commits whose age drops the
    tagged one from most rules. By chance, histories seldom have an object that a hold by tag alone keeps."""

    def events(branch: int, key: Key, tag: str, end: int) -> tuple[Event, ...]:
        def commit(content: Content) -> tuple[Event, Event]:
            return Upload(branch, PATHS[0], key, content, 40 * DAY), MakeCommit(branch, now - 40 * DAY, {})

        return (*commit(Content(b"tagged")), CreateTag(tag, 0), *commit(Content(b"after")), MakeCommit(branch, end, {}))

    return st.builds(events, branches, keys(CANDIDATES[:1]), tag_names, dates(now))


def merged_by_an_early_server(now: int) -> st.SearchStrategy[tuple[Event, ...]]:
    """A merge with its main parent last, as early servers wrote it, and later a commit without the object. Which of the
    earlier objects are kept depends on the line of main parents."""

    def events(key: Key, name: str, dates: tuple[int, ...]) -> tuple[Event, ...]:
        def commit(branch: int, data: bytes, date: int) -> tuple[Event, Event]:
            return Upload(branch, PATHS[0], key, Content(data), 40 * DAY), MakeCommit(branch, date, {})

        first, second, elsewhere, merged, last = dates
        return (
            CreateBranch(name, 0, hidden=False),
            *commit(0, b"first", first), *commit(0, b"second", second), *commit(1, b"elsewhere", elsewhere),
            EarlyCommit(0, 0, merged), Delete(0, 0), MakeCommit(0, last, {}),
        )  # fmt: skip

    return st.builds(events, keys(CANDIDATES[:1]), branch_names, st.tuples(*(dates(now) for _ in range(5))))
