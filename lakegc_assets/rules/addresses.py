"""Rules on addresses: the slice of an address, and whether lakegc may ever delete the object at it (invariant 5).

Each rule has an Arrow form for columns. Some also have a plain form for one address, and two have a Spark form for
filters that Spark runs itself. All forms are tested against one list of addresses
(`tests/unit/test_address_rules.py`). Addresses are keys relative to the namespace.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.model import DATA, ROOT

if TYPE_CHECKING:
    from pyspark.sql import Column

_SLICE = f"{DATA}[^/]*/|{DATA}|"  # like the others, it means the same in the regular expressions of Arrow and Java
_UPLOAD_PART = r"[0-9a-f]+-\p{Nd}{5}\n?"
_PLAIN_UPLOAD_PART = re.compile(_UPLOAD_PART.replace(r"\p{Nd}", r"\d"))
_DOT_SEGMENT = r"(\A|/)\.\.?(/|\z)"
_MAY_FOLD = rf"\A/+({DATA}|[^/]*\z)|{_DOT_SEGMENT}"  # a store that normalizes keys may list these as candidates


# --- slices ---------------------------------------------------------------------------------------------------------


def slice_of(address: str) -> str:
    """The folder in which a full listing finds an address: `data/<name>/`, `data/`, or "" for the root (formats §1).

    Shards (`data/!…/`) get no special treatment.
    """
    if not address.startswith(DATA):
        return ROOT
    name, slash, _ = address.removeprefix(DATA).partition("/")
    return f"{DATA}{name}/" if slash else DATA


def slices_of(addresses: pa.Array) -> pa.Array:
    """`slice_of` for each address; null for a null."""
    return pc.struct_field(pc.extract_regex(addresses, rf"\A(?P<slice>{_SLICE})"), "slice")


def slice_column(address: Column) -> Column:
    """`slice_of` for each address of a Spark column."""
    from pyspark.sql import functions as F

    return F.regexp_extract(address, rf"\A({_SLICE})", 1)


# --- possible candidates --------------------------------------------------------------------------------------------


def is_candidate(address: str, *, local_adapter: bool = False) -> bool:
    """Whether the object at an address may ever be collected (formats §1, §4).

    Candidates are objects under `data/` at any depth, and legacy objects in the namespace's root, but never files under
    `_lakefs/`, the server's probe file, objects in other folders, or the parts of unfinished uploads that the local
    adapter keeps in the root.
    """
    if address.startswith(DATA):
        return address != DATA
    if "/" in address or address in ("", "dummy"):
        return False
    return not (local_adapter and _PLAIN_UPLOAD_PART.fullmatch(address))


def are_candidates(addresses: pa.Array, *, local_adapter: bool) -> pa.Array:
    """`is_candidate` for each address; null for a null."""
    below = pc.and_(pc.starts_with(addresses, DATA), pc.not_equal(addresses, DATA))
    not_excluded = pc.invert(pc.is_in(addresses, value_set=pa.array(["", "dummy"], pa.string())))
    root = pc.and_(pc.invert(pc.match_substring(addresses, "/")), not_excluded)
    if local_adapter:
        root = pc.and_(root, pc.invert(pc.match_substring_regex(addresses, rf"\A{_UPLOAD_PART}\z")))
    return pc.or_(below, root)


def in_listed_area(addresses: pa.Array) -> pa.Array:
    """Whether a listing of the candidates would include each address if it is stored, possibly under a normalized key;
    null for a null."""
    as_written = pc.or_(pc.starts_with(addresses, DATA), pc.invert(pc.match_substring(addresses, "/")))
    return pc.or_(as_written, pc.match_substring_regex(addresses, _MAY_FOLD))


def listed_area_column(address: Column) -> Column:
    """`in_listed_area` for each address of a Spark column."""
    return address.startswith(DATA) | ~address.contains("/") | address.rlike(_MAY_FOLD)


# --- deletable keys -------------------------------------------------------------------------------------------------


def have_dot_segments(addresses: pa.Array) -> pa.Array:
    """Whether each address has `.` or `..` as a path segment; null for a null.

    The object at such an address is kept, whether referenced or not: a tool or proxy between lakegc and the store that
    resolves paths would turn its key into the key of another object, which would then be deleted.
    """
    return pc.match_substring_regex(addresses, _DOT_SEGMENT)


def may_be_deleted(addresses: pa.Array, *, local_adapter: bool) -> pa.Array:
    """Whether an expired set may contain each address; false for a null."""
    candidates = are_candidates(addresses, local_adapter=local_adapter)
    return pc.fill_null(pc.and_(candidates, pc.invert(have_dot_segments(addresses))), False)
