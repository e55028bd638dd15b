"""Written tables can be read, have the id that the server would give them, and have pebble's layout."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from spark_resources.errors import DamagedData, WrongUsage
from spark_resources.model import AddressType, Commit
from spark_resources.sstable import (
    Branch,
    Entry,
    RangeRef,
    Tag,
    commit_id,
    entry_identity,
    range_ref,
    read_branches,
    read_commits,
    read_entries,
    read_properties,
    read_ranges,
    read_tags,
    read_verified_ranges,
    read_whole_entries,
    verify_table,
    write_branches,
    write_commits,
    write_metarange,
    write_range,
    write_tags,
)
from spark_resources.sstable.blocks import data_blocks, open_table
from spark_resources.sstable.decoders import decoders

NOW = datetime(2026, 11, 21, 8, 50, 0, 123456, UTC)
ENTRY = Entry(
    path="ü/x".encode(),
    address="s3://b/ü x",
    address_type=AddressType.FULL,
    size=7,
    checksum="d41d8cd98f00b204e9800998ecf8427e",
    last_modified=NOW,
    metadata={"b": "2", "a": "", "ü": "1"},
    content_type="text/plain",
)
COMMIT = Commit(
    id="c1",
    parents=("p1", "p2"),
    created=NOW,
    metarange_id="m" * 64,
    version=1,
    generation=3,
    committer="admin",
    message="two\nlines",
    metadata={"k": "v"},
)


def test_every_field_of_an_entry_is_read_back() -> None:
    """The fields include negative sizes and keys that begin with NUL."""
    entries = [Entry(b"\x00", "x"), Entry(b"a", "data/a", AddressType.BY_PREFIX, size=-1), ENTRY]
    table = write_range(entries)
    verify_table(table.data, name=table.id)

    assert read_whole_entries(table.data, name=table.id) == entries
    assert read_properties(table.data, name=table.id).user_properties == {"type": "ranges"}


def test_every_entry_of_a_large_range_is_read_back() -> None:
    """The range has many blocks and two levels of index. Every decoder reads it."""
    entries = [Entry(b"table/%06d" % n, f"data/slice/{n * 7919 % 20011:06d}", size=n) for n in range(20_000)]
    table = write_range(entries)
    opened = open_table(table.data)

    assert opened.two_levels
    assert len(data_blocks(opened)) > 200
    for decoder in decoders():
        batch = read_entries(table.data, name=table.id, columns=("path", "address", "size"), decoder=decoder)
        rows = [(entry.path, entry.address, entry.size) for entry in entries]

        assert [tuple(row.values()) for row in batch.to_pylist()] == rows
        verify_table(table.data, name=table.id, decoder=decoder)


def test_an_entry_that_is_larger_than_a_block_is_read_back() -> None:
    """The entry gets a block of its own."""
    entries = [Entry(b"a", "x"), Entry(b"b", "y" * 50_000, metadata={"k": "v" * 100_000}), Entry(b"c", "z")]
    table = write_range(entries)

    assert read_whole_entries(table.data, name=table.id) == entries


def test_a_metarange_lists_its_ranges_with_bounds_counts_and_sizes() -> None:
    """The bounds, counts and sizes agree with what the ranges themselves state."""
    tables = [write_range([Entry(b"%d" % n, "x"), Entry(b"%d~" % n, "y")]) for n in range(3)]
    refs = [range_ref(table.data, name=table.id) for table in tables]
    metarange = write_metarange(refs)
    verify_table(metarange.data, name=metarange.id)

    assert read_ranges(metarange.data, name=metarange.id) == refs
    assert read_verified_ranges(metarange.data, name=metarange.id) == refs
    with pytest.raises(DamagedData, match=f"its content hash is {metarange.id}"):
        read_verified_ranges(metarange.data, name=tables[0].id)
    assert refs[0] == RangeRef(tables[0].id, b"0", b"0~", refs[0].estimated_size, 2)


def test_a_metarange_without_ranges_is_read_as_empty() -> None:
    """Such a metarange can be written, and has the id of its content."""
    table = write_metarange([])
    verify_table(table.data, name=table.id)

    assert read_ranges(table.data, name=table.id) == []


@pytest.mark.parametrize("paths", [[b"b", b"a"], [b"a", b"a"], [b"ab", b"a"], [b"\xff", b"\x7f"]])
def test_entries_out_of_order_are_not_written(paths: list[bytes]) -> None:
    """No reader would accept the table."""
    with pytest.raises(WrongUsage, match="sorted by key"):
        write_range([Entry(path, "x") for path in paths])


def test_every_commit_branch_and_tag_of_a_dump_is_read_back() -> None:
    """The records are ordered by their ids."""
    root = replace(COMMIT, id="c0", parents=(), metarange_id="", version=0, metadata={}, created=NOW - timedelta(1))
    branches = [Branch("main", "c1", "token", ("sealed", "tokens"), hidden=True), Branch("dev", "c0")]
    tags = [Tag("v2", "c1"), Tag("v1", "c0")]

    commits_dump, branches_dump, tags_dump = write_commits([COMMIT, root]), write_branches(branches), write_tags(tags)
    for dump, entity in ((commits_dump, "commit"), (branches_dump, "branch"), (tags_dump, "tag")):
        for name, data in dump.tables.items():
            verify_table(data, name=name)
        [ref] = read_ranges(dump.tables[dump.id], name=dump.id, entity=entity)
        data = dump.tables[ref.id]
        read = {"commit": read_commits, "branch": read_branches, "tag": read_tags}[entity]
        expected = {"commit": [root, COMMIT], "branch": branches[::-1], "tag": tags[::-1]}[entity]

        assert read(data, name=ref.id) == expected


def test_an_empty_dump_has_the_same_id_as_on_every_server() -> None:
    """Every server announces this id if there are no tags."""
    expected = "7cc6abb06deea81825ee467df1b3a92a8109c5bf14d1044d217ed0595fe00c8a"

    assert write_tags([]).id == expected
    assert list(write_tags([]).tables) == [expected]


@pytest.mark.parametrize(
    "other",
    [
        replace(ENTRY, size=8),
        replace(ENTRY, checksum="x"),
        replace(ENTRY, metadata={"b": "2"}),
        replace(ENTRY, content_type=""),
        replace(ENTRY, content_type="text/html"),
    ],
)
def test_entries_with_different_content_are_not_identical(other: Entry) -> None:
    """The comparison covers size, checksum, metadata and content type."""
    assert entry_identity(other) != entry_identity(ENTRY)


def test_entries_with_identical_content_are_identical_even_at_different_addresses() -> None:
    """Address, path and time are not compared. A list of differences can therefore hide an address (formats §2)."""
    moved = replace(ENTRY, path=b"p", address="data/new", address_type=AddressType.RELATIVE, last_modified=None)

    assert entry_identity(moved) == entry_identity(ENTRY)


@pytest.mark.parametrize(
    "other",
    [
        replace(COMMIT, parents=("p2", "p1")),
        replace(COMMIT, parents=()),
        replace(COMMIT, created=NOW + timedelta(seconds=1)),
        replace(COMMIT, metarange_id=""),
        replace(COMMIT, committer="x"),
        replace(COMMIT, message="x"),
        replace(COMMIT, metadata={}),
    ],
)
def test_the_id_of_a_commit_depends_on_its_content(other: Commit) -> None:
    """The commit's generation, version and fractions of a second don't count."""
    same = replace(COMMIT, id="x", generation=9, version=0, created=NOW.replace(microsecond=0))

    assert commit_id(same) == commit_id(COMMIT)
    assert commit_id(other) != commit_id(COMMIT)
