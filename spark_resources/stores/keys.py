"""Kinds of keys that some stores refuse or fold into another key, and the check that every store makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from spark_resources.errors import Refused, WrongUsage, with_article

EMPTY_SEGMENT = "empty segment"
LEADING_SLASH = "leading slash"
TRAILING_SLASH = "trailing slash"
DOT_SEGMENT = "dot segment"
DOT_AT_END = "dot at an end"
BACKSLASH = "backslash"
NUL = "NUL"
NEWLINE = "newline"
CARRIAGE_RETURN = "carriage return"
CONTROL = "control character"
NOT_XML = "non-character"
LONG_SEGMENT = "long segment"
LONG_KEY = "long key"
ENCODED = "plus or percent"
BLANK = "blank at an end"
OBJECT_AND_FOLDER = "object and folder"  # applies to a pair of keys: `a` and `a/b`

LONGEST_SEGMENT = 255  # bytes: the limit of file systems
LONGEST_KEY = 1024  # bytes: the limit of S3, including the namespace's path

_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_NOT_XML = re.compile("[\ufffe\uffff]")
# Characters that an XML document can't contain, or that XML parsers change: they turn \r into \n.
_UNSAFE_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0d\x0e-\x1f\x7f-\x9f\u2028\ufffe\uffff]")

KINDS: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        EMPTY_SEGMENT: lambda key: "//" in key,
        LEADING_SLASH: lambda key: key.startswith("/"),
        TRAILING_SLASH: lambda key: key.endswith("/"),
        DOT_SEGMENT: lambda key: any(part in (".", "..") for part in key.split("/")),
        DOT_AT_END: lambda key: any(part.endswith(".") and part not in (".", "..") for part in key.split("/")),
        BACKSLASH: lambda key: "\\" in key,
        NUL: lambda key: "\0" in key,
        NEWLINE: lambda key: "\n" in key,
        CARRIAGE_RETURN: lambda key: "\r" in key,
        CONTROL: lambda key: _CONTROL.search(key) is not None,
        NOT_XML: lambda key: _NOT_XML.search(key) is not None,
        LONG_SEGMENT: lambda key: any(len(part.encode()) > LONGEST_SEGMENT for part in key.split("/")),
        LONG_KEY: lambda key: len(key.encode()) > LONGEST_KEY,
        ENCODED: lambda key: "+" in key or "%" in key,
        BLANK: lambda key: any(part != part.strip(" ") for part in key.split("/")),
    }
)

# One key of each kind, and of that kind only. LONG_KEY is left out: no store accepts it, so there is nothing to probe.
SAMPLES: Mapping[str, str] = MappingProxyType(
    {
        EMPTY_SEGMENT: "empty//segment",
        LEADING_SLASH: "/leading",
        TRAILING_SLASH: "trailing/",
        DOT_SEGMENT: "dot/../segment",
        DOT_AT_END: "dot./end.",
        BACKSLASH: "back\\slash",
        NUL: "nul\0",
        NEWLINE: "new\nline",
        CARRIAGE_RETURN: "carriage\rreturn",
        CONTROL: "control\x01",
        NOT_XML: "not\ufffexml",
        LONG_SEGMENT: "l" * (LONGEST_SEGMENT + 1),
        ENCODED: "plus+percent%2Fend%",
        BLANK: " blank ",
    }
)


def kinds_of(key: str) -> frozenset[str]:
    """All problematic kinds that apply to a key; empty for keys that lakeFS itself generates."""
    return frozenset(kind for kind, applies_to in KINDS.items() if applies_to(key))


def check_key(key: str, where: str, unsupported_keys: frozenset[str]) -> str:
    """The key itself, if this store can hold it byte for byte. Raises `WrongUsage` otherwise."""
    if not key:
        raise WrongUsage(f"the key of an object in {where} must not be empty")
    as_bytes(key, where)
    problems = unsupported_keys & kinds_of(key) if unsupported_keys else frozenset()
    if problems:
        what = " and ".join(map(with_article, sorted(problems)))
        raise WrongUsage(
            f"{key!r} can't be a key in {where}: it has {what}, and this store would refuse it or silently use "
            "another key"
        )
    return key


def check_prefix(prefix: str, where: str, unsupported_keys: frozenset[str]) -> str:
    """The prefix itself, if some key in this store can begin with it. Raises `WrongUsage` otherwise.

    Without this check, a server that folds `a//` may list the objects of `a/` as if their keys began with `a//`.
    """
    check_key(f"{prefix}x", where, unsupported_keys - {LONG_SEGMENT})
    return prefix


def as_bytes(text: str, where: str) -> bytes:
    """The UTF-8 bytes of a key or prefix. Raises `WrongUsage` for text that can't be encoded (a lone surrogate)."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise WrongUsage(f"{text!r} can't be a key in {where}: it can't be encoded as UTF-8 ({error.reason})") from None


def is_xml_safe(key: str) -> bool:
    """Whether an XML document can contain a key unchanged, so that the key can be part of a batch delete."""
    return _UNSAFE_IN_XML.search(key) is None


def xml_safe_prefix(key: str) -> str:
    """The part of a key before the first character that isn't safe in XML."""
    return _UNSAFE_IN_XML.split(key, maxsplit=1)[0]


def check_start_after(where: str, delimiter: str | None, *, byte_order: bool) -> None:
    """Raise `WrongUsage` if a listing can't start in the middle."""
    if delimiter is not None:
        raise WrongUsage(
            "a listing takes start_after or a delimiter, not both: stores disagree on what the combination means"
        )
    if not byte_order:
        raise WrongUsage(
            f"{where} isn't known to list keys in byte order, so a listing that starts in the middle could miss some. "
            "List the whole prefix."
        )


def folding_error(where: str, requested: str, listed: str) -> Refused:
    """The error for a store that lists a key without the requested prefix (invariant 5)."""
    return Refused(
        f"{where} listed {listed!r} in response to a request for keys that start with {requested!r}. The store "
        "apparently normalizes keys like a file system, so lakegc can't collect garbage in this namespace.",
        invariant=5,
    )
