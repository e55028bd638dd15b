"""Every recorded table and commit has the id that its content gives (formats §3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spark_resources.errors import DamagedData
from spark_resources.model import Commit
from spark_resources.sstable import (
    commit_id,
    entry_identity,
    range_ref,
    read_branches,
    read_commits,
    read_properties,
    read_ranges,
    read_records,
    read_tags,
    read_whole_entries,
    table_id,
    verify_table,
    write_branches,
    write_table,
    write_tags,
)
from spark_resources.sstable.blocks import data_blocks, open_table, read_block
from spark_resources.sstable.decoders import decoders
from spark_resources.sstable.values import split_value
from spark_resources.sstable.writer import TableBuilder
from tests.support.recording_folders import PROJECT_RECORDINGS, recording_folders

RECORDINGS = recording_folders()


def _tables(recording: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted((recording / "namespace" / "_lakefs").iterdir()):
        if len(path.name) == 64:
            yield path.name, path.read_bytes()


def _never_compressed(recording: Path) -> list[tuple[str, bytes]]:
    """The tables without compressed blocks."""
    return [
        (name, data)
        for name, data in _tables(recording)
        if all(
            read_block(data, block) == data[block.offset : block.offset + block.length] for block in _all_blocks(data)
        )
    ]


def _small(data: bytes) -> bool:
    return len(data) < 200_000


@pytest.fixture(params=RECORDINGS, ids=lambda path: path.name)
def recording(request: pytest.FixtureRequest) -> Path:
    """Each recording in turn."""
    return Path(request.param)


def test_recordings_exist() -> None:
    """A folder without recordings is a failure, not a success."""
    assert RECORDINGS


@pytest.mark.parametrize("decoder", decoders(), ids=lambda decoder: decoder.name)
def test_the_content_of_every_recorded_table_hashes_to_its_name(recording: Path, decoder: Any) -> None:
    """Every decoder computes this hash."""
    tables = dict(_tables(recording))

    assert {name: name for name in tables} == {
        name: table_id(data, name=name, decoder=decoder) for name, data in tables.items()
    }


def test_an_intact_table_is_refused_under_another_name(recording: Path) -> None:
    """The table is refused although it isn't damaged."""
    for name, data in _tables(recording):
        verify_table(data, name=name)
        with pytest.raises(DamagedData, match=f"table {'0' * 64} .*{name}"):
            verify_table(data, name="0" * 64)
        break


def test_the_content_of_every_recorded_commit_hashes_to_its_id(recording: Path) -> None:
    """The commits of the dump and those of the API agree."""
    dumped = {
        commit.id: commit
        for name, data in _tables(recording)
        if _is(data, "ranges", "commit")
        for commit in read_commits(data, name=name)
    }
    listed = {commit.id: commit for commit in map(_api_commit, _api(recording, "commits_reachable_from_branches"))}

    assert dumped
    assert listed
    assert {name: name for name in dumped} == {name: commit_id(commit) for name, commit in dumped.items()}
    assert {name: name for name in listed} == {name: commit_id(commit) for name, commit in listed.items()}
    assert {name: dumped[name].parents for name in listed} == {name: commit.parents for name, commit in listed.items()}
    for name, commit in listed.items():
        assert (dumped[name].metarange_id, dumped[name].generation) == (commit.metarange_id, commit.generation), name


def test_a_dump_has_the_branches_and_tags_that_the_api_lists(recording: Path) -> None:
    """The commits of the branches and tags are also compared."""
    tables = dict(_tables(recording))
    branches = {
        b.id: b.commit_id for n, d in tables.items() if _is(d, "ranges", "branch") for b in read_branches(d, name=n)
    }
    tags = {t.id: t.commit_id for n, d in tables.items() if _is(d, "ranges", "tag") for t in read_tags(d, name=n)}

    assert branches == {branch["id"]: branch["commit_id"] for branch in _results(recording, "branches")}
    assert tags == {tag["id"]: tag["commit_id"] for tag in _results(recording, "tags")}


def test_every_metarange_describes_its_ranges_correctly(recording: Path) -> None:
    """Each range's bounds, count and size are compared."""
    tables = dict(_tables(recording))
    refs = [
        ref
        for name, data in tables.items()
        if (properties := read_properties(data, name=name)).type == "metaranges"
        for ref in read_ranges(data, name=name, entity=properties.entity)
    ]

    assert refs
    assert refs == [range_ref(tables[ref.id], name=ref.id) for ref in refs]


def test_the_computed_identities_of_recorded_entries_match_the_servers(recording: Path) -> None:
    """The server stores the identity with the entry. Tables of 200 kB or more are left out."""
    for name, data in _tables(recording):
        if _is(data, "ranges", "") and _small(data):
            stored = [split_value(record.value).identity for record in read_records(data, name=name)]

            assert stored == [entry_identity(entry) for entry in read_whole_entries(data, name=name)]


def test_a_rewritten_table_has_the_recorded_id_and_blocks(recording: Path) -> None:
    """The blocks are compared once decompressed. Of the tables of 200 kB or more, only the largest one is rewritten."""
    tables = dict(_tables(recording))
    largest = max(map(len, tables.values()))
    for name, data in tables.items():
        if not _small(data) and len(data) < largest:
            continue
        properties = read_properties(data, name=name)
        written = write_table(read_records(data, name=name), properties.user_properties)

        assert written.id == name
        assert _blocks(written.data) == _blocks(data)


def test_a_rewritten_table_without_compressed_blocks_has_the_recorded_bytes(recording: Path) -> None:
    """Without compression every byte is the server's, including properties, index and footer."""
    for name, data in _never_compressed(recording):
        builder = TableBuilder(read_records(data, name=name), read_properties(data, name=name).user_properties)

        assert builder.finish() == data
        assert builder.ref() == range_ref(data, name=name)


def test_a_recorded_table_without_compressed_blocks_exists() -> None:
    """Without such a table, the previous test would compare nothing."""
    assert _never_compressed(PROJECT_RECORDINGS / "worked-example")


def test_rewritten_dumps_of_refs_have_the_recorded_ids(recording: Path) -> None:
    """The server announced the ids. An id is compared only if it doesn't depend on the compressor."""
    tables = dict(_tables(recording))
    announced = json.loads((recording / "api" / "refs_dump.json").read_text())["body"]
    branches = [b for n, d in tables.items() if _is(d, "ranges", "branch") for b in read_branches(d, name=n)]
    tags = [t for n, d in tables.items() if _is(d, "ranges", "tag") for t in read_tags(d, name=n)]

    for dump, entity in ((write_branches(branches), "branch"), (write_tags(tags), "tag")):
        key = {"branch": "branches", "tag": "tags"}[entity] + "_meta_range_id"
        if sum(_is(d, "ranges", entity) for d in tables.values()) <= 1 and all(map(_small, dump.tables.values())):
            ranges = {name for name, data in tables.items() if _is(data, "ranges", entity)}

            assert ranges <= set(dump.tables)
            if _uncompressed(tables[announced[key]], ranges, tables):
                assert dump.id == announced[key]


def _uncompressed(top: bytes, ranges: set[str], tables: dict[str, bytes]) -> bool:
    """Whether the sizes in a metarange are independent of the implementation of snappy."""
    return all(
        read_block(data, block) == data[block.offset : block.offset + block.length]
        for data in (top, *(tables[name] for name in ranges))
        for block in data_blocks(open_table(data))
    )


def _all_blocks(data: bytes) -> list[Any]:
    table = open_table(data)
    return [*data_blocks(table), table.index]


def _blocks(data: bytes) -> list[bytes]:
    return [read_block(data, block) for block in data_blocks(open_table(data))]


def _is(data: bytes, kind: str, entity: str) -> bool:
    properties = open_table(data).properties
    return (properties.type, properties.entity) == (kind, entity)


def _api(recording: Path, name: str) -> list[dict[str, Any]]:
    document = json.loads((recording / "api" / f"{name}.json").read_text())
    commits: list[dict[str, Any]] = document["commits"]
    return commits


def _results(recording: Path, name: str) -> list[dict[str, Any]]:
    document = json.loads((recording / "api" / f"{name}.json").read_text())
    results: list[dict[str, Any]] = document["body"]["results"]
    return results


def _api_commit(found: dict[str, Any]) -> Commit:
    return Commit(
        id=found["id"],
        parents=tuple(found["parents"]),
        created=datetime.fromtimestamp(found["creation_date"], UTC),
        metarange_id=found["meta_range_id"],
        version=found["version"],
        generation=found["generation"],
        committer=found["committer"],
        message=found["message"],
        metadata=found.get("metadata") or {},
    )
