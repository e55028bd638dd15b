"""Parse and write a file of holds: YAML from bytes to values and back. A file with any problem is invalid as a whole.

    format: 1                   # optional
    holds:
      - id: releases
        tags: "v*"              # the objects of tagged commits; with history, also those of their ancestors
        history: true
        owner: ada@example.org
        reason: customers run these
        until: 2027-06-30       # until the end of this day (UTC), or a time with a time zone; optional
      - {id: legal, commits: {legal: hold}, owner: ..., reason: ...}
      - {id: experiments, branches: "exp-*", days: 90, owner: ..., reason: ...}
      - {id: reports, paths: "reports/*.pdf", owner: ..., reason: ...}
      - {id: imported, prefix: data/imported/, owner: ..., reason: ...}

Pure. Patterns are those of `fnmatch`, case-sensitive: `*` matches any text, including slashes, `?` any one character,
and `[…]` any one of the characters in it. Every scalar is read as plain text, so the metadata value `no` isn't a
boolean.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from spark_resources.errors import Refused, UnknownFormat, WrongUsage, plural
from spark_resources.model import DATA
from spark_resources.records.plain_yaml import PlainLoader

FORMAT = "1"  # of the file, and the default if it states none
MAX_FILE_BYTES = 1 << 20  # bytes
_ID = r"^[a-z0-9][a-z0-9._-]{0,62}$"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_SPECIAL = re.compile(r"[*?\[]")
_MAX_DAYS = 365_000


# --- patterns and times ---------------------------------------------------------------------------------------------


def checked_pattern(pattern: str) -> str:
    """The pattern itself. Raises `ValueError` if it is empty, or has an unclosed bracket or an empty range."""
    if not pattern:
        raise ValueError("an empty pattern matches nothing; use '*' to match everything")
    position = 0
    while (begin := pattern.find("[", position)) >= 0:
        first = begin + 2 if pattern[begin + 1 : begin + 2] == "!" else begin + 1
        end = pattern.find("]", first + 1)
        if end < 0:
            raise ValueError(f"the '[' in '{pattern}' is never closed; write '[[]' for a literal '['")
        for low, high in re.findall(r"(.)-(.)", pattern[first:end], re.DOTALL):
            if low > high:
                raise ValueError(f"'{low}-{high}' in '{pattern}' is an empty range")
        position = end + 1
    return pattern


def literal_prefix(pattern: str) -> str:
    """The common prefix of all text that the pattern matches."""
    return _SPECIAL.split(pattern, maxsplit=1)[0]


def parse_end(text: str) -> datetime:
    """Parse the end of a hold: the end of a day (UTC), or a point in time. Raises `ValueError` if it is neither."""
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"'{text}' is not a valid date ({error})") from None
    raise ValueError(f"'{text}' is neither a date such as 2027-06-30 nor a time such as 2027-06-30T12:00:00Z")


def _checked_end(text: str) -> str:
    parse_end(text)
    return text


def _checked_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    if any(ord(char) < 32 and char not in "\n\t" for char in text):
        raise ValueError("must not contain unprintable characters")
    return text


def _checked_days(text: str) -> str:
    if not re.fullmatch(r"[0-9]{1,6}", text) or not 0 < int(text) <= _MAX_DAYS:
        raise ValueError(f"'{text}' is not a number of days from 1 to {_MAX_DAYS}")
    return text


def _checked_boolean(text: str) -> str:
    if text not in ("true", "false"):
        raise ValueError(f"'{text}' is neither true nor false")
    return text


def _checked_metadata(pairs: dict[str, str]) -> dict[str, str]:
    if len(pairs) != 1 or "" in pairs:
        raise ValueError("expected one key with a pattern for its value, such as {legal: hold}")
    return {key: checked_pattern(pattern) for key, pattern in pairs.items()}


def _checked_prefix(prefix: str) -> str:
    """The prefix itself. Raises `ValueError` unless a candidate's key can start with it.

    Candidates are under `data/`, or are legacy objects at the namespace's root.
    """
    is_possible = prefix.startswith(DATA) or (prefix != "" and "/" not in prefix)
    if not is_possible or "://" in prefix or ".." in prefix.split("/"):
        raise ValueError(
            f"no collectable object's key starts with '{prefix}': expected a key relative to the namespace, such as "
            "data/imported/"
        )
    return prefix


Pattern = Annotated[str, AfterValidator(checked_pattern)]
FreeText = Annotated[str, Field(max_length=1000), AfterValidator(_checked_text)]


# --- holds ----------------------------------------------------------------------------------------------------------


class Hold(BaseModel):
    """A hold: which objects must be kept, who requested it, and until when. All fields are text, as in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    kind: ClassVar[str]  # the field that selects the objects on hold

    id: Annotated[str, Field(pattern=_ID)]
    owner: FreeText
    reason: FreeText
    until: Annotated[str, AfterValidator(_checked_end)] | None = None

    @property
    def end(self) -> datetime | None:
        return None if self.until is None else parse_end(self.until)

    def has_expired(self, now: datetime) -> bool:
        """Whether the hold has expired. `now` is by the lakeFS server's clock."""
        return self.end is not None and self.end <= now

    @property
    def what(self) -> str:
        """A short description of what is on hold."""
        raise NotImplementedError

    def fields(self) -> dict[str, Any]:
        """The fields as in the file: the id and the selector first, optional fields only if they are set."""
        present = self.model_dump(exclude_none=True, exclude_defaults=True)
        order = ["id", self.kind, *(name for name in present if name not in ("id", self.kind))]
        return {name: present[name] for name in order}


class TagHold(Hold):
    """Keeps the objects of commits with a matching tag; with `history`, also those of all their ancestors."""

    kind: ClassVar[str] = "tags"
    tags: Pattern
    history: Annotated[str, AfterValidator(_checked_boolean)] = "false"

    @property
    def with_history(self) -> bool:
        return self.history == "true"

    @property
    def what(self) -> str:
        return f"tags {self.tags}{' with their history' if self.with_history else ''}"


class CommitHold(Hold):
    """Keeps the objects of commits with this metadata."""

    kind: ClassVar[str] = "commits"
    commits: Annotated[dict[str, str], AfterValidator(_checked_metadata)]

    def matches(self, metadata: Mapping[str, str]) -> bool:
        return all(key in metadata and fnmatchcase(metadata[key], pattern) for key, pattern in self.commits.items())

    @property
    def what(self) -> str:
        return "commits with " + ", ".join(f"{key}={pattern}" for key, pattern in self.commits.items())


class BranchHold(Hold):
    """Keeps the objects of commits in a matching branch's history for at least this many days, regardless of the
    rules."""

    kind: ClassVar[str] = "branches"
    branches: Pattern
    days: Annotated[str, AfterValidator(_checked_days)]

    @property
    def min_days(self) -> int:
        return int(self.days)

    @property
    def what(self) -> str:
        return f"branches {self.branches} for {plural(self.min_days, 'day')}"


class PathHold(Hold):
    """Keeps the objects at a matching path in any known commit, even an expired one."""

    kind: ClassVar[str] = "paths"
    paths: Pattern

    @property
    def what(self) -> str:
        return f"paths {self.paths}"


class PrefixHold(Hold):
    """Keeps the stored objects whose keys have this prefix."""

    kind: ClassVar[str] = "prefix"
    prefix: Annotated[str, AfterValidator(_checked_prefix)]

    @property
    def what(self) -> str:
        return f"stored objects {self.prefix}…"


KINDS: Mapping[str, type[Hold]] = {kind.kind: kind for kind in (TagHold, CommitHold, BranchHold, PathHold, PrefixHold)}


def parse_hold(fields: Mapping[str, Any]) -> Hold:
    """The hold with these fields, in the form of the file. Raises `WrongUsage` with all problems."""
    kinds = [kind for kind in KINDS if kind in fields]
    if len(kinds) != 1:
        raise WrongUsage(f"a hold needs exactly one of {', '.join(KINDS)}; given: {' and '.join(kinds) or 'none'}")
    try:
        return KINDS[kinds[0]].model_validate(dict(fields))
    except ValidationError as error:
        problems = (_problem_text(detail, KINDS[kinds[0]]) for detail in error.errors(include_url=False))
        raise WrongUsage("invalid hold: " + "; ".join(problems)) from None


def parse_configured_holds(tables: Iterable[Mapping[str, Any]], where: str) -> tuple[Hold, ...]:
    """The holds with these fields, from settings. Values may be numbers, booleans or dates instead of text.

    `where` is their source, for messages. Raises `WrongUsage` if one is invalid or two different ones have the same id.
    """
    holds: dict[str, Hold] = {}
    for table in tables:
        name = f"the hold '{table['id']}'" if "id" in table else "a hold without an id"
        try:
            hold = parse_hold({field: _as_text(value) for field, value in table.items()})
        except WrongUsage as error:
            raise WrongUsage(f"{name} in {where} is invalid: {str(error).removeprefix('invalid hold: ')}") from None
        if holds.setdefault(hold.id, hold) != hold:
            raise WrongUsage(f"{where} has two different holds with the id '{hold.id}': give one of them another id")
    return tuple(holds.values())


def _as_text(value: Any) -> Any:
    """A scalar as it is written in the file of holds; a table with each of its values as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return {key: _as_text(inner) for key, inner in value.items()}
    if isinstance(value, datetime) and value.tzinfo is None:
        raise WrongUsage(f"the time {value} has no time zone: add one, such as Z")
    if isinstance(value, date):  # or a datetime
        return value.isoformat()
    return str(value) if isinstance(value, int) else value


# --- from bytes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldProblem:
    """One problem in a file of holds, and its line (counted from 1)."""

    line: int
    what: str


class BadHolds(Refused):
    """Raised for a file of holds with any problem. None of its holds is used."""

    def __init__(self, where: str, problems: Iterable[HoldProblem]) -> None:
        self.problems = sorted(problems, key=lambda problem: problem.line)
        self.where = where
        lines = "".join(f"\n  line {problem.line}: {problem.what}" for problem in self.problems)
        super().__init__(
            f"{where} is not a valid holds file:{lines}\nNothing is marked until the file is corrected, because "
            "lakegc can't tell what should be on hold. Check the corrected file with 'lakegc holds REPO check'.",
            invariant=3,
        )


def parse_holds(data: bytes, where: str) -> tuple[Hold, ...]:
    """The holds of a file, in its order.

    Raises `BadHolds` with all problems and their lines, and `UnknownFormat` for a file of another format.
    """
    problems: list[HoldProblem] = []
    items = _items(_root(data, where), where)
    parsed = [(item, hold) for item in items if (hold := _parse_hold_node(item, problems)) is not None]
    lines: dict[str, int] = {}
    for item, hold in parsed:
        line = item.start_mark.line + 1
        if hold.id in lines:
            problems.append(
                HoldProblem(line, f"the id '{hold.id}' is already used by the hold on line {lines[hold.id]}")
            )
        lines.setdefault(hold.id, line)
    if problems:
        raise BadHolds(where, problems)
    return tuple(hold for _, hold in parsed)


def _first_lines(data: bytes, where: str) -> list[int]:
    """The index (counted from 0) of the first line of each hold."""
    return [int(item.start_mark.line) for item in _items(_root(data, where), where)]


def _root(data: bytes, where: str) -> yaml.Node:
    if len(data) > MAX_FILE_BYTES:
        raise BadHolds(
            where, [HoldProblem(1, f"the file has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are allowed")]
        )
    try:
        node = yaml.compose(data.decode(), Loader=PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadHolds(
            where, [HoldProblem(mark.line + 1 if mark else 1, f"{error.problem or error.context}")]
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadHolds(where, [HoldProblem(1, f"the file is not YAML ({error})")]) from None
    if node is None:
        raise BadHolds(where, [HoldProblem(1, "the file is empty. Write 'holds: []' for no holds, or delete the file")])
    return node


def _fields_of(root: yaml.Node, where: str) -> list[tuple[yaml.Node, yaml.Node]]:
    """The fields of a file except its format. Raises `UnknownFormat` for an unknown format."""
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    formats = [pair for pair in pairs if pair[0].value == "format"]
    if len(formats) > 1:
        raise BadHolds(where, [HoldProblem(_line(formats[1][0]), "'format' appears twice")])
    for _, value in formats:
        if value.value != FORMAT:
            raise UnknownFormat(
                f"{where} is of format {str(value.value)[:60]!r}, but this version of lakegc supports {FORMAT}. "
                "Nothing is marked or swept, because lakegc can't tell what is on hold. Update lakegc."
            )
    return [pair for pair in pairs if pair not in formats]


def _items(root: yaml.Node, where: str) -> list[yaml.Node]:
    """The nodes of the list `holds`. The only other field that a file may have is `format`."""
    pairs = _fields_of(root, where)
    unknown_fields = [HoldProblem(_line(key), f"{_quoted(key)} is unknown here; expected 'holds'") for key, _ in pairs]
    if len(pairs) != 1 or pairs[0][0].value != "holds":
        expected = HoldProblem(_line(root), "expected exactly one 'holds:' with a list")
        unknown = [problem for problem, pair in zip(unknown_fields, pairs, strict=True) if pair[0].value != "holds"]
        raise BadHolds(where, unknown or [expected])
    if not isinstance(pairs[0][1], yaml.SequenceNode):
        raise BadHolds(
            where, [HoldProblem(_line(pairs[0][1]), "'holds' must be a list; put a '-' in front of each hold")]
        )
    items: list[yaml.Node] = pairs[0][1].value
    return items


def _parse_hold_node(item: yaml.Node, problems: list[HoldProblem]) -> Hold | None:
    """The hold of a node; None if it has problems, which are added to `problems`."""
    if not isinstance(item, yaml.MappingNode):
        problems.append(HoldProblem(_line(item), "expected the fields of a hold: id, what is on hold, owner, reason"))
        return None
    lines: dict[tuple[str | int, ...], int] = {(): _line(item)}
    problems_before = len(problems)
    plain = _to_plain(item, (), lines, problems)
    kinds = [kind for kind in KINDS if kind in plain]
    if len(kinds) != 1:
        problem = f"the hold has {' and '.join(kinds)}" if kinds else "the hold doesn't say what it keeps"
        problems.append(HoldProblem(_line(item), f"{problem}; expected exactly one of {', '.join(KINDS)}"))
        return None
    kind = KINDS[kinds[0]]
    try:
        hold = kind.model_validate(plain)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            location = detail["loc"] if detail["loc"] in lines else ()
            problems.append(HoldProblem(lines[location], _problem_text(detail, kind)))
        return None
    return hold if len(problems) == problems_before else None


def _to_plain(
    node: yaml.Node, path: tuple[Any, ...], lines: dict[tuple[Any, ...], int], problems: list[HoldProblem]
) -> Any:
    """A node as text, lists and dicts. Records the line of each field; a duplicate field is a problem."""
    if isinstance(node, yaml.MappingNode):
        plain: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in plain:
                problems.append(HoldProblem(_line(key), f"{_quoted(key)} appears twice"))
            lines[(*path, name)] = _line(key)
            plain[name] = _to_plain(value, (*path, name), lines, problems)
        return plain
    if isinstance(node, yaml.SequenceNode):
        return [_to_plain(value, (*path, number), lines, problems) for number, value in enumerate(node.value)]
    return node.value


def _problem_text(error: Any, kind: type[Hold]) -> str:
    field = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return f"'{field}' is unknown; a hold with '{kind.kind}' can have {', '.join(kind.model_fields)}"
    if error["type"] == "missing":
        return f"'{field}' is missing"
    if error["type"] == "string_pattern_mismatch":
        return f"'{field}' must be at most 63 lower-case letters, digits and ._-, starting with a letter or digit"
    return f"'{field}': {error['msg'].removeprefix('Value error, ')}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _quoted(key: yaml.Node) -> str:
    return f"'{str(key.value)[:60]}'"


# --- to bytes -------------------------------------------------------------------------------------------------------


def with_hold(data: bytes | None, hold: Hold, where: str) -> bytes:
    """The file with one more hold at its end; existing text is unchanged. `data` is None if there was no file."""
    if data is None:
        return _checked_edit(b"", (hold,), where)
    wanted = (*parse_holds(data, where), hold)
    indent = _fields_of(_root(data, where), where)[0][1].start_mark.column  # of the list's first hold
    edited = data + (b"" if data.endswith(b"\n") else b"\n") + _render_list([hold], indent=indent).encode()
    return _checked_edit(edited, wanted, where)


def without_hold(data: bytes, hold_id: str, where: str) -> bytes:
    """The file without one hold and the comments directly above it; the rest is unchanged."""
    holds, lines = parse_holds(data, where), data.decode().splitlines(keepends=True)
    index = [hold.id for hold in holds].index(hold_id)
    begin, end = [*_first_lines(data, where), len(lines)][index : index + 2]
    while end > begin and lines[end - 1].strip()[:1] in ("", "#"):  # comments above the next hold belong to it
        end -= 1
    while lines[begin - 1].strip().startswith("#"):
        begin -= 1
    remaining = tuple(hold for hold in holds if hold.id != hold_id)
    return _checked_edit("".join([*lines[:begin], *lines[end:]]).encode(), remaining, where)


def _checked_edit(data: bytes, wanted: tuple[Hold, ...], where: str) -> bytes:
    """The edited text if it parses to exactly the wanted holds, otherwise a newly rendered file.

    Raises `WrongUsage` if that doesn't parse to them either.
    """
    for text in (data, render_holds(wanted)):
        with suppress(BadHolds):
            if parse_holds(text, where) == wanted:
                return text
    ids = ", ".join(hold.id for hold in wanted)
    raise WrongUsage(f"some text in these holds can't be written as YAML: {ids}. Use simpler text.")


def render_holds(holds: Iterable[Hold]) -> bytes:
    return (f"format: {FORMAT}\n" + ("holds:\n" + text if (text := _render_list(holds)) else "holds: []\n")).encode()


def _render_list(holds: Iterable[Hold], *, indent: int = 2) -> str:
    items = [hold.fields() for hold in holds]
    if not items:
        return ""
    text = yaml.dump(items, Dumper=_Dumper, allow_unicode=True, sort_keys=False, default_flow_style=False, width=110)
    return "".join(" " * indent + line if line.strip() else line for line in text.splitlines(keepends=True))


class _Dumper(yaml.SafeDumper):
    """Writes text without quotes where possible, for readers that treat every scalar as text."""


_Dumper.yaml_implicit_resolvers = {}
