"""A mark that the command line made can be approved, and every byte of it counts."""

from __future__ import annotations

import json

from spark_resources.mark_store.mark import mark_folder, reference_folder
from tests.commands.conftest import Marked
from tests.support.command_line import Lakegc


def test_a_mark_with_hostile_keys_is_approved_unless_a_byte_was_added_to_it(hostile: Marked, lakegc: Lakegc) -> None:
    """With one more byte in any of its files, the mark is refused."""
    mark = json.loads(hostile.made.out)
    tripped = [brake["name"] for brake in mark["brakes"] if brake["tripped"]]
    releases = [option for name in tripped for option in ("--release", name, "--because", "a test")]
    arguments = ("approve", hostile.repository, "m1", "--yes", "--digest", mark["digest"], *releases)
    folders = (mark_folder("m1"), reference_folder("m1"))
    files = sorted(path for folder in folders for path in (hostile.folder / folder).rglob("*") if path.is_file())
    assert len(files) > 20
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole + b"x")
        outcome = lakegc(hostile.settings, *arguments)
        path.write_bytes(whole)
        assert outcome.code == 3, f"{path}: {outcome.err}"
    approved = lakegc(hostile.settings, *arguments)
    revoked = lakegc(hostile.settings, "revoke", hostile.repository, "m1")

    assert tripped == ["share"]
    assert approved.code == 0, approved.err
    assert revoked.code == 0, revoked.err
