"""What the mark of one repository notes about a table, so that the marks of other repositories needn't read it
(invariant 2).

A note says in which folders of buckets the table's full addresses are, and which sizes its entries have. A table is
immutable, and its id is the hash of its content, so a note is true in every repository that has the table. What isn't
certain isn't noted, and the table is read instead.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakegc_assets.rules.addresses import have_dot_segments
from lakegc_assets.rules.path_probes import SizeSet
from spark_resources.model import Namespace

MAX_FOLDERS, MAX_SIZES = 100, 500  # if a table has more, they aren't noted
_PART = r"[^/%?\\\x00-\x20\x7f]+"
# a location in a bucket that lakeFS and every store read as written: no user, port, escape, query or empty segment
_IN_BUCKET = rf"(?i:s3|gs)://(?P<bucket>[A-Za-z0-9._-]+)(?:/(?P<folder>{_PART})(?:/{_PART})*)?"
_PLAIN_ROOT = re.compile(_IN_BUCKET)


def folders_of(addresses: pa.Array) -> pa.Array | None:
    """The folders that a note names for a table with exactly these full addresses, each as `<bucket>/<first part of the
    path>`; None if they can't be noted."""
    if not len(addresses):
        return pa.array([], pa.string())
    parts = pc.extract_regex(addresses, rf"\A{_IN_BUCKET}\z")
    if parts.null_count or pc.any(have_dot_segments(addresses)).as_py():
        return None
    bucket, folder = pc.utf8_lower(pc.struct_field(parts, "bucket")), pc.struct_field(parts, "folder")
    if pc.any(pc.equal(folder, "")).as_py():
        return None
    folders = pc.unique(pc.binary_join_element_wise(bucket, folder, "/"))
    return folders if len(folders) <= MAX_FOLDERS else None


def sizes_of(sizes: pa.Array) -> pa.Array | None:
    """The sizes that a note names for a table with entries of these sizes (int64); None if there are too many."""
    distinct = pc.unique(sizes)
    return distinct if len(distinct) <= MAX_SIZES else None


def have_no_address_in(folders: pa.Array, namespace: Namespace) -> pa.Array:
    """Whether, according to the folders in its note (lists, null if not noted), each table certainly has no full
    address in this namespace. False if in doubt."""
    roots = [_PLAIN_ROOT.fullmatch(root) for root in (namespace.uri, *namespace.aliases)]
    have_no_folder = pc.fill_null(pc.equal(pc.list_value_length(folders), 0), False)
    places = [(root["bucket"].lower(), root["folder"]) for root in roots if root is not None]
    if len(places) < len(roots) or not all(folder for _, folder in places):
        return have_no_folder
    namespace_folders = pa.array([f"{bucket}/{folder}" for bucket, folder in places], pa.string())
    return _have_none_selected(folders, pc.is_in(pc.list_flatten(folders), value_set=namespace_folders))


def have_no_size_in(sizes: pa.Array, wanted: SizeSet) -> pa.Array:
    """Whether, according to the sizes in its note (lists, null if not noted), each table certainly has no entry of a
    wanted size."""
    return _have_none_selected(sizes, wanted.contains(pc.list_flatten(sizes)))


def _have_none_selected(lists: pa.Array, is_selected: pa.Array) -> pa.Array:
    """For each list, whether `is_selected` (one flag for each value of all lists) is false for all its values; false
    for a null."""
    with_selected = pc.unique(pc.list_parent_indices(lists).filter(is_selected))
    rows = pa.array(np.arange(len(lists)))
    return pc.and_(pc.is_valid(lists), pc.invert(pc.is_in(rows, value_set=with_selected.cast(pa.int64()))))
