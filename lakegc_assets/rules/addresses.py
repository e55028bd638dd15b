"""Which stored keys are possible candidates, and which may be deleted at all: the rule of the mark and of every check
of what was approved (invariant 5). Whole columns; `model.is_candidate` is the plain form for one key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_resources.model import DATA

if TYPE_CHECKING:
    from pyspark.sql import Column

_UPLOAD_PART = r"\A[0-9a-f]+-\p{Nd}{5}\n?\z"
_DOT_SEGMENT = r"(\A|/)\.\.?(/|\z)"  # read alike by Arrow's and Java's regular expressions


def are_candidates(addresses: pa.Array, *, local_adapter: bool) -> pa.Array:
    """`model.is_candidate` of each address; null of a null."""
    below = pc.and_(pc.starts_with(addresses, DATA), pc.not_equal(addresses, DATA))
    named = pc.invert(pc.is_in(addresses, value_set=pa.array(["", "dummy"], pa.string())))
    root = pc.and_(pc.invert(pc.match_substring(addresses, "/")), named)
    if local_adapter:
        root = pc.and_(root, pc.invert(pc.match_substring_regex(addresses, _UPLOAD_PART)))
    return pc.or_(below, root)


def have_dot_segments(addresses: pa.Array) -> pa.Array:
    """Whether each address has `.` or `..` between slashes; null of a null.

    Such an object is kept, whoever refers to it: the store knows it by this name, but a tool or proxy on the way that
    resolves paths would take the name for another object's, and that one would be deleted.
    """
    return pc.match_substring_regex(addresses, _DOT_SEGMENT)


def has_dot_segment(address: Column) -> Column:
    """`have_dot_segments` of a column of Spark's."""
    return address.rlike(_DOT_SEGMENT)


def may_be_deleted(addresses: pa.Array, *, local_adapter: bool) -> pa.Array:
    """Whether an expired set may name each address; false of a null."""
    candidates = are_candidates(addresses, local_adapter=local_adapter)
    return pc.fill_null(pc.and_(candidates, pc.invert(have_dot_segments(addresses))), False)
