"""`lakegc status`: the marks of all repositories in one table."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from lakegc_assets.cli.status import show_status
from spark_resources.lakefs_sandbox import Sandbox
from spark_resources.mark_store.mark import Mark
from spark_resources.mark_store.record import MarkRecord
from spark_resources.model import MarkState, Scope
from tests.support.mark_runs import environment, target_of


def test_a_repository_that_cannot_be_read_does_not_hide_the_marks_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reason is reported once."""
    with Sandbox(tmp_path) as sandbox, environment(sandbox.settings):
        now = sandbox.now()
        for name in ("lake-a", "lake-b", "lake-c"):
            sandbox.create(name)
            target = target_of(sandbox.settings, name)
            record = MarkRecord(
                f"of-{name}", MarkState.MARKING, name, now, target.place.namespace.uri,
                Scope.UNIFIED, timedelta(0), now, now, now, None, "somebody", {},
            )  # fmt: skip
            Mark.begin(target.place, record)
        [broken] = (sandbox.local_path / "lake-b").rglob("mark.json")
        broken.write_text('{"cut off')
        show_status(None, as_json=False)

    output = capsys.readouterr().out
    assert "of-lake-a" in output
    assert "of-lake-c" in output
    assert [line for line in output.splitlines() if line.startswith("lake-b: ")]
    assert output.count("lake-b: ") == 1
