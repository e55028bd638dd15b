"""The page on moving over from the reference collector: it has every option, and each replacement works."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark
from spark_resources.settings import Settings
from tests.commands.test_foreign_marks import leave, summary
from tests.support.command_line import NO_AGE, Lakegc
from tests.support.documented_commands import usage_error
from tests.support.mark_runs import target_of

PAGE = (Path(__file__).parents[2] / "docs" / "moving-over.md").read_text(encoding="utf-8")

# All options of the source and documentation of lakeFS's Spark client, from its first release to 0.22, that the
# collectors read; those of Hadoop that their documentation names; and those of the standalone collector.
OPTIONS = {
    *("lakefs.api.url", "lakefs.api.access_key", "lakefs.api.secret_key"),
    *("lakefs.api.connection.timeout_seconds", "lakefs.api.read.timeout_seconds"),
    *("lakefs.gc.do_mark", "lakefs.gc.do_sweep", "lakefs.gc.mark_id", "lakefs.gc.prepare_commits.timeout_seconds"),
    *("lakefs.gc.s3.min_backoff_secs", "lakefs.gc.s3.max_backoff_secs", "lakefs.gc.close_spark_session"),
    *("lakefs.job.range_read_parallelism", "lakefs.debug.gc.uncommitted_min_age_seconds"),
    *("lakefs.gc.commit.num_partitions", "lakefs.gc.range.num_partitions", "lakefs.gc.address.num_partitions"),
    *("lakefs.gc.address.approx_num_ranges_to_spread_per_partition", "lakefs.gc.address.write_as_text"),
    *("lakefs.gc.incremental", "lakefs.gc.incremental.fallback_to_full", "lakefs.gc.incremental.iterations"),
    *("lakefs.gc.incremental.run_id", "lakefs.gc.incremental.previous_run_id"),
    *("lakefs.gc.incremental.use-nth-previous-run", "lakefs.gc.experimental.unified_gc"),
    *("lakefs.debug.gc.no_delete", "lakefs.debug.gc.addresses_sample_fraction", "lakefs.debug.gc.reproduce_run_id"),
    *("lakefs.debug.gc.max_commit_iso_datetime", "lakefs.debug.gc.max_commit_epoch_seconds"),
    *("fs.s3a.access.key", "fs.s3a.secret.key", "fs.s3a.session.token", "fs.s3a.endpoint"),
    *("fs.s3a.path.style.access", "fs.s3a.aws.credentials.provider", "fs.s3a.assumed.role.arn"),
    *("fs.azure.account.key.ACCOUNT.dfs.core.windows.net", "fs.azure.account.auth.type…"),
    *("fs.azure.account.oauth.provider.type…", "fs.azure.account.oauth2.client.id…"),
    *("fs.azure.account.oauth2.client.secret…", "fs.azure.account.oauth2.client.endpoint…"),
    *("google.cloud.auth.service.account.enable", "google.cloud.auth.service.account.json.keyfile"),
    *("fs.gs.impl", "fs.AbstractFileSystem.gs.impl", "fs.gs.project.id"),
    *("io.treeverse.clients.GarbageCollector", "io.treeverse.gc.UncommittedGarbageCollector"),
    *("distcp.log.path", "distcp.max.maps", "distcp.map.bandwidth.mb", "distcp.liststatus.threads"),
    *("--config", "--cache-dir", "cache_dir", "--parallelism", "--presign"),
    *("logging.format", "logging.level", "logging.output"),
    *("aws.region", "aws.profile", "aws.max_page_size", "aws.s3.endpoint", "aws.s3.addressing_path_style"),
    *("aws.s3.credentials.access_key_id", "aws.s3.credentials.secret_access_key"),
    "aws.s3.credentials.session_token",
    *("lakefs.endpoint_url", "lakefs.access_key_id", "lakefs.secret_access_key"),
}


def rows() -> list[list[str]]:
    """The three cells of each row that replaces something."""
    tables = PAGE.partition("## Options of the collector")[2]
    cells = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.startswith("| ")]
    return [[*row, ""][:3] for row in cells if len(row) >= 2 and re.search(r"`lakegc |`\w+=|^nothing$", row[1])]


def spans(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def replacements() -> Iterator[str]:
    for _, cell, differences in rows():
        yield from spans(cell)
        yield from (span for span in spans(differences) if span.startswith("lakegc "))


def words(command: str, names: dict[str, str]) -> list[str]:
    """The arguments of a documented command, with these names in place of REPO, MARK and PLACE."""
    return [names.get(word, word) for word in command.split()[1:]]


def test_every_option_of_the_reference_collectors_is_in_the_tables() -> None:
    named = {span.partition("=")[0] for cells in rows() for span in spans(cells[0])}

    assert named - OPTIONS == {
        *("lakefs-sgc run REPO", "deleted.csv", "aws s3", "rclone -P"),
        *("rclone copy --files-from", "rclone cat --include '*.txt'".partition("=")[0]),
    }
    assert OPTIONS - named == set()


def test_an_option_without_a_replacement_has_a_reason() -> None:
    assert [cells[0] for cells in rows() if cells[1] == "nothing" and not cells[2].strip(" |")] == []


@pytest.mark.parametrize("replacement", sorted(set(replacements())))
def test_each_replacement_is_a_valid_command_or_setting(replacement: str) -> None:
    if replacement.startswith("lakegc "):
        assert usage_error(words(replacement, {})) is None
    else:
        name, _, value = replacement.partition("=")
        known = Settings.load({f"LAKEGC_{name.upper()}": value}, Path("/nonexistent"))
        assert getattr(known, name) is not None


def commands_in_order() -> Sequence[str]:
    block = PAGE.partition("```sh\n")[2].partition("```")[0]
    return [line.partition("#")[0].strip() for line in block.splitlines()]


def test_the_steps_of_moving_over_run_in_a_sandbox_as_documented(lakegc: Lakegc, tmp_path: Path) -> None:
    """The repository has an object that is in no commit, and an earlier mark of the reference collector."""
    with Sandbox(tmp_path / "sandbox") as sandbox:
        lake = sandbox.create("lake")
        lake.put("main", "kept", b"kept")
        lake.put("main", "gone", b"first")
        lake.put("main", "gone", b"second")
        lake.commit("main", "first")
        place = target_of(sandbox.settings, "lake").place
        leave(place, "unified", "old", ["data/s/old"], summary_file=summary(1))
        names = {"REPO": "lake", "MARK": "m1", "PLACE": str(tmp_path / "backup")}
        shown = {}
        for command in commands_in_order():
            arguments = words(command, names)
            if arguments[0] == "mark":
                arguments += NO_AGE
            if arguments[0] == "approve":
                digest = Mark.open(place, "m1").record.digest
                arguments += ["--yes", "--digest", str(digest)]
            outcome = lakegc(sandbox.settings, *arguments)
            assert outcome.code == 0, (arguments, outcome.err)
            shown[arguments[0]] = outcome.out

    assert "the reference collector (unified)" in shown["status"]
    assert len(shown["review"].splitlines()) == 2
    assert "1 object" in shown["report"]
