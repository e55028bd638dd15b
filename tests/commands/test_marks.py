"""The output of `lakegc mark` and `lakegc review`, for people and for scripts, and the secrets that neither prints."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import dagster as dg
import pyarrow.parquet as pq
import pytest
from markdown_it import MarkdownIt

from lakegc_assets.cli import review as reviews
from lakegc_assets.cli.console import escaped_name
from lakegc_assets.cli.mark import show_mark
from lakegc_assets.jobs import MARK_ASSETS
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark, mark_folder
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import EXPIRED_OBJECTS, MarkState, Partition
from tests.commands.conftest import HOSTILE, NOT_ON_A_LINE, SECRETS, Marked
from tests.support.command_line import NO_AGE, Lakegc, check_terminal_safe
from tests.support.mark_runs import environment, quick_environment

GC = "_lakefs/retention/gc"
PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")


# --- making one -----------------------------------------------------------------------------------------------------


def test_json_output_is_exactly_one_document(hostile: Marked) -> None:
    """Progress is printed on stderr."""
    document = json.loads(hostile.made.out)

    assert hostile.made.code == 0
    assert (document["mark_id"], document["repository"], document["state"]) == ("m1", "hostile", "marked")
    assert (document["counts"]["expired"], document["counts"]["candidates"]) == (len(HOSTILE) + 1, len(HOSTILE) + 3)
    assert all(line.startswith("lakegc: [") for line in hostile.made.err.splitlines())
    check_terminal_safe(hostile.made.out)
    check_terminal_safe(hostile.made.err)


def test_the_human_readable_output_of_a_mark_without_expired_objects_says_so(still: Marked) -> None:
    """The output says how many objects were listed and are live, that nothing was deleted, and what to do next."""
    output = still.made.out

    assert still.made.code == 0
    for words in ("Mark m1 of still", "1 object, 1 B", "1 in 1 range of 2 retained commits"):
        assert words in output
    assert ["expired", "nothing"] in [
        [cell.strip() for cell in line.strip("│").split("│")] for line in output.split("\n")
    ]
    assert output.endswith("Nothing was deleted. Next: lakegc review still m1\n")


def test_the_output_of_a_mark_counts_objects_kept_by_holds_or_by_other_repositories(
    still: Marked, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Mark.open(still.place, "m1").record
    step = record.steps["expired_set"]
    kept = {"objects_on_hold": 2, "kept_for_other_repositories": 1_003}
    steps = {**record.steps, "expired_set": replace(step, facts={**step.facts, **kept})}
    with environment(still.settings):
        show_mark(replace(record, steps=steps), as_json=False)

    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in capsys.readouterr().out.split("\n")]
    assert ["on hold", "2"] in rows
    assert ["needed by other repositories", "1,003"] in rows
    assert "on hold" not in still.made.out


def test_an_incremental_mark_and_its_review_say_what_only_a_full_mark_finds(sandbox: Sandbox, lakegc: Lakegc) -> None:
    """Both print the command for a full mark with the same options, and say when a full mark is due. Even then, --since
    is honored."""
    sandbox.create("late").put("main", "a", b"a")
    settings = sandbox.settings | {"full_every": "2", "mark_scope": "uncommitted"}
    lakegc.output(settings, "mark", "late", "--mark-id", "m1", *NO_AGE, "--scope", "unified")

    outcome = lakegc.output(settings, "mark", "late", "--mark-id", "m2", "--since", "m1", "--scope", "unified", *NO_AGE)
    review = lakegc.output(settings, "review", "late", "m2")

    assert "incremental since mark m1" in outcome
    for output in (outcome, review):
        assert "Uploads that arrived more than 48 hours after their slice was created were not searched for" in output
        assert "a full mark is due now" in output
        repeated = "lakegc mark late --full --scope unified --min-age 0 --allow-young"
        assert f"To make a full mark now: {repeated}\n" in output


def test_no_secret_is_shown_or_stored(hostile: Marked, lakegc: Lakegc, tmp_path: Path) -> None:
    """No secret gets into the namespace or into Dagster's metadata, events and logs."""
    secrets = [*SECRETS.values(), hostile.settings["secret_access_key"]]
    hostile.sandbox.create("secrets").put("main", "a", b"a")
    Lakegc(tmp_path, on_disk=True).output(hostile.settings, "mark", "secrets", *NO_AGE)
    files = [path for root in (hostile.folder, tmp_path) for path in root.rglob("*") if path.is_file()]
    reviewed = [lakegc(hostile.settings, *command) for command in (("review", "hostile"), ("status",))]
    refused = lakegc({**hostile.settings, "secret_access_key": "a-wrong-secret"}, "status")

    refused.stopped(1)
    assert {path.name for path in files} >= {"mark.json", "dagster.yaml"}
    assert any(path.suffix == ".db" for path in files)
    for secret in (*secrets, "a-wrong-secret"):
        assert [str(path) for path in files if secret.encode() in path.read_bytes()] == []
        for outcome in (hostile.made, refused, *reviewed):
            assert secret not in outcome.out + outcome.err


def test_markdown_in_metadata_has_no_links_tags_or_pictures_from_names(
    hostile: Marked, lakegc_by_dagster: Lakegc
) -> None:
    """Keys are literal: a page of Dagster renders neither HTML nor Markdown from them, and tables keep their cells."""
    partition = str(Partition(hostile.repository, "m1"))
    with lakegc_by_dagster.instance(lakegc_by_dagster.home) as instance:
        of_mark = [
            dg.AssetRecordsFilter(asset_key=asset.key, asset_partitions=[partition])
            for asset in MARK_ASSETS
            if isinstance(asset, dg.AssetsDefinition)
        ]
        records = [record for each in of_mark for record in instance.fetch_materializations(each, limit=1).records]
    materialized = [record.asset_materialization for record in records if record.asset_materialization is not None]
    texts = [
        value.value or ""
        for materialization in materialized
        for value in materialization.metadata.values()
        if isinstance(value, dg.MarkdownMetadataValue)
    ]

    assert len(materialized) == len(MARK_ASSETS)
    assert any("onerror" in text for text in texts)
    for text in texts:
        tokens = [inner for token in PARSER.parse(text) for inner in (token, *(token.children or ()))]
        assert not [token for token in tokens if token.type in ("html_inline", "html_block", "image")]
        links = [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]
        assert all(link.startswith(("../assets/", "../guess/approve/")) for link in links), links
        assert not re.search(r"(?i)https?://|www\.", "".join(token.content for token in tokens))
        for row, next_row in pairwise(text.splitlines()):
            assert not (row.startswith("|") and next_row.startswith("|")) or borders(row) == borders(next_row)


def borders(row: str) -> int:
    """The number of borders of cells in a row of a Markdown table."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", row))


def test_the_reference_collectors_layout_has_the_expired_set_and_no_summary(hostile: Marked) -> None:
    """Without a summary, the reference collector can't sweep. Keys that don't fit on a line are counted, not listed."""
    folder = hostile.folder / GC / "unified/m1"
    text = "".join(path.read_bytes().decode() for path in (folder / "deleted.text").glob("*.txt")).split("\n")
    deleted = {
        row for path in (folder / "deleted").glob("*.parquet") for row in pq.read_table(path)["address"].to_pylist()
    }
    expired = {row["address"] for row in json.loads(lakegc_list(hostile, "json"))}
    facts = json.loads(hostile.made.out)["steps"]["expired_set"]["facts"]

    assert deleted == expired
    assert set(text) - {""} == expired - NOT_ON_A_LINE
    assert facts["not_in_text"] == len(NOT_ON_A_LINE)
    assert {path.name for path in folder.iterdir()} == {"deleted", "deleted.text"}


def test_a_mark_id_in_use_is_refused(hostile: Marked, lakegc: Lakegc) -> None:
    """The mark is refused before any work starts, even if the existing record can't be read."""
    damaged = hostile.folder / GC / "lakegc/damaged/mark.json"
    damaged.parent.mkdir()
    damaged.write_bytes(b"{")
    try:
        for mark_id in ("m1", "damaged"):
            lakegc(hostile.settings, "mark", "hostile", "--mark-id", mark_id).stopped(
                2, f"mark id {mark_id} is in use in hostile. Choose another"
            )
    finally:
        shutil.rmtree(damaged.parent)


# --- looking at one -------------------------------------------------------------------------------------------------


def lakegc_list(marked: Marked, form: str) -> str:
    """The output of `review --list` in a given format."""
    out = io.StringIO()
    with environment(marked.settings), redirect_stdout(out):
        reviews.show(marked.repository, "m1", list_all=True, output_format=form)
    return out.getvalue()


def test_totals_are_shown_by_reason_age_prefix_and_slice(hostile: Marked, lakegc: Lakegc) -> None:
    """The command for the list of all objects is printed, and no name is read as markup."""
    output = lakegc(hostile.settings, "review", "hostile", "m1").out

    count = len(HOSTILE) + 1
    assert output.startswith(f"Mark m1 of hostile, marked, scope unified: {count} of {count + 2} objects (")
    for words in (
        "By reason",
        "only expired commits refer to it (main's rule of 30 days)",
        "no commit and no staged change refers to it",
        "By age",
        "under a day",
        "By prefix",
        "(path not known)",
        "By slice",
        "data/[/",
        "data/[bold red]/",
        "data/tab\\there/",
        "List every object: lakegc review hostile m1 --list",
    ):
        assert words in output
    check_terminal_safe(output)


def test_totals_in_json_add_up_to_the_expired_set_in_every_grouping(hostile: Marked, lakegc: Lakegc) -> None:
    """Keys are not escaped in JSON."""
    document = json.loads(lakegc(hostile.settings, "review", "hostile", "m1", "--format", "json").out)

    whole = (len(HOSTILE) + 1, len(b"garbage") * len(HOSTILE) + len(b"first version"))
    assert (document["objects"], document["bytes"], document["candidates"]) == (*whole, whole[0] + 2)
    for by in ("by_reason", "by_age", "by_prefix", "by_slice"):
        assert (sum(row["objects"] for row in document[by]), sum(row["bytes"] for row in document[by])) == whole
    assert {(row["reason"], row["branch"], row["objects"]) for row in document["by_reason"]} == {
        ("only expired commits refer to it", "main", 1),
        ("no commit and no staged change refers to it", None, len(HOSTILE)),
    }
    assert {"data/[/", "data/tab\there/", "data/s/", ""} <= {row["slice"] for row in document["by_slice"]}
    assert {row["prefix"]: row["objects"] for row in document["by_prefix"]} == {"": 1, None: len(HOSTILE)}
    (expired,) = (row for row in document["sample"] if row["commit_id"])
    assert (expired["path"], expired["commit_message"]) == ("a", "first")
    assert document["digest"] == json.loads(hostile.made.out)["digest"]


def test_hostile_keys_are_escaped_and_shown_one_per_line_in_the_human_readable_list(hostile: Marked) -> None:
    """Characters that could move the cursor are shown as text."""
    lines = lakegc_list(hostile, "table").splitlines()

    check_terminal_safe("".join(lines))
    assert len(lines) == len(HOSTILE) + 1
    for key in HOSTILE:
        assert [line for line in lines if f"  {escaped_name(key)}  (no commit and no staged change" in line]


def test_keys_are_exact_in_machine_readable_lists(hostile: Marked) -> None:
    """CSV is an exception: a key that a spreadsheet would execute is preceded by a quote."""
    as_json = json.loads(text := lakegc_list(hostile, "json"))
    as_csv = list(csv.DictReader(io.StringIO(lakegc_list(hostile, "csv"), newline="")))

    check_terminal_safe(text)
    keys = {row["address"] for row in as_json if row["branch"] is None}
    assert keys == HOSTILE
    assert {row["address"] for row in as_csv if not row["branch"]} == {
        *(HOSTILE - {"=1+1", "-rf"}), "'=1+1", "'-rf"
    }  # fmt: skip
    (expired,) = (row for row in as_json if row["branch"])
    assert (expired["size"], expired["branch"]) == (len(b"first version"), "main")
    assert (expired["path"], expired["days"]) == ("a", 30)
    assert [{name: "" if value is None else str(value) for name, value in expired.items()}] == [
        row for row in as_csv if row["branch"]
    ]


def test_csv_is_escaped_on_a_terminal(hostile: Marked) -> None:
    """On a terminal, CSV is as harmless as the list for people."""

    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    with environment(hostile.settings), redirect_stdout(Screen()) as screen:
        reviews.show("hostile", "m1", list_all=True, output_format="csv")

    check_terminal_safe(screen.getvalue().replace("\r\n", "\n"))
    assert escaped_name("data/s/two\nlines") in screen.getvalue()


def test_an_empty_expired_set_is_reported_in_every_format(still: Marked, lakegc: Lakegc) -> None:
    """No format just prints nothing."""

    def review_output(*options: str) -> str:
        return lakegc(still.settings, "review", "still", *options).out

    totals = json.loads(review_output("--format", "json"))
    assert review_output().startswith("Mark m1 of still, marked, scope unified: none of 1 object is expired.\n")
    assert review_output("--list") == "Nothing is expired.\n"
    assert review_output("--list", "--format", "csv") == ",".join(EXPIRED_OBJECTS.names) + "\r\n"
    assert json.loads(review_output("--list", "--format", "json")) == []
    assert (totals["objects"], totals["bytes"], totals["candidates"]) == (0, 0, 1)
    assert [totals[by] for by in ("by_reason", "by_age", "sample")] == [[], [], []]


def test_csv_of_totals_is_refused(still: Marked, lakegc: Lakegc) -> None:
    """CSV is for lists; the message names the option to add."""
    lakegc(still.settings, "review", "still", "--format", "csv").stopped(2, "add --list, or use json")


# --- which one ------------------------------------------------------------------------------------------------------


def copied(marked: Marked, mark_id: str, record: MarkRecord) -> Path:
    """Another mark with the same files and this record."""
    folder = marked.folder / mark_folder(mark_id)
    shutil.copytree(marked.folder / mark_folder("m1"), folder)
    (folder / "mark.json").write_bytes(replace(record, mark_id=mark_id).to_json())
    return folder


def test_the_latest_mark_is_the_finished_one_that_began_last(hostile: Marked, lakegc: Lakegc) -> None:
    """Ids don't matter. If no id is given, the command uses the latest mark."""
    record = Mark.open(hostile.place, "m1").record
    folders = [
        copied(hostile, "z-older", replace(record, start=record.start - timedelta(days=1))),
        copied(hostile, "a-newer", replace(record, start=record.start + timedelta(days=1))),
        copied(hostile, "b-unfinished", replace(record, start=record.start + timedelta(days=2), finished=None)),
    ]
    try:
        for which in ((), ("latest",)):
            document = json.loads(lakegc(hostile.settings, "review", "hostile", *which, "--format", "json").out)

            assert document["mark_id"] == "a-newer"
    finally:
        for folder in folders:
            shutil.rmtree(folder)


def test_a_review_of_a_missing_repository_or_mark_is_refused(hostile: Marked, pond: str, lakegc: Lakegc) -> None:
    """The message says what to do next."""
    settings = hostile.settings

    lakegc(settings, "review", "nowhere", "m1").stopped(1, "nowhere")
    lakegc(settings, "review", "hostile", "m7").stopped(
        1, "there is no mark m7 in", "'lakegc status REPO' lists the marks"
    )
    lakegc(settings, "review", "hostile", "../m1").stopped(2, "'../m1' can't be a mark id")
    lakegc(settings, "review", pond).stopped(1, "pond has no finished mark. To make one: ", "mark pond")


@pytest.mark.parametrize(("state", "why"), [(MarkState.FAILED, "the store was away"), (MarkState.MARKING, None)])
def test_a_review_of_an_unfinished_mark_is_refused_and_its_failure_is_shown(
    hostile: Marked, lakegc: Lakegc, state: MarkState, why: str | None
) -> None:
    """No objects are shown."""
    record = Mark.open(hostile.place, "m1").record
    folder = copied(hostile, "stopped", replace(record, state=state, failure=why, finished=None, digest=None))
    try:
        outcome = lakegc(hostile.settings, "review", "hostile", "stopped", "--list")
    finally:
        shutil.rmtree(folder)

    outcome.stopped(2, f"mark stopped of hostile is not finished ({state}){': ' + why if why else ''}")


def test_a_review_of_an_altered_mark_is_refused(hostile: Marked, lakegc: Lakegc) -> None:
    """A file of its expired set was changed after it was written."""
    folder = copied(hostile, "changed", Mark.open(hostile.place, "m1").record)
    (file,) = (folder / "expired_set").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    try:
        outcome = lakegc(hostile.settings, "review", "hostile", "changed")
    finally:
        shutil.rmtree(folder)

    outcome.stopped(3, file.name, "isn't the file that was written")


# --- readers that go away -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--list",), ()], ids=" ".join)
def test_a_closed_pipe_ends_a_review_silently(hostile: Marked, options: tuple[str, ...]) -> None:
    """For example, `head` closes the pipe when it has read enough."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lakegc_assets.cli", "review", "hostile", "m1", *options]
    env = {**os.environ, **quick_environment(hostile.settings)}
    try:
        completed = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=env, timeout=120, check=False)
    finally:
        os.close(writing)

    assert (completed.stderr, completed.returncode) == (b"", 1)
