"""What the README has to be pasted, pasted."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from spark_resources.sandbox import Sandbox
from tests.marking import target_of

ROOT = Path(__file__).parents[2]


def test_the_readmes_python_can_be_pasted_into_an_interpreter(tmp_path: Path) -> None:
    """An interactive interpreter ends a block only at an empty line; all lines together leave two garbage objects."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    begin = readme.index("    import os, lakefs_sdk as sdk")
    lines = textwrap.dedent(readme[begin : readme.index("\nAll of it is new", begin)])
    with Sandbox(tmp_path / "sandbox") as sandbox:
        ended = subprocess.run(
            [sys.executable, "-i", "-q"], input=lines, env={**os.environ, **sandbox.environment}, cwd=ROOT,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        store = target_of(sandbox.settings, "mine").place.store()
        stored = [one.key for page in store.pages("data/") for one in page.objects]

    assert "Error" not in ended.stderr, ended.stderr
    assert len(stored) == 3
