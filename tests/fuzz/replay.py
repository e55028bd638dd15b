"""Check the inputs of a corpus once more, in a process without coverage: with compiled code, for example."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz.all_targets import TARGETS


def main(name: str, paths: list[Path]) -> None:
    """Check all files, or those in the folders; raises for the first one without the property, and names it."""
    files = [
        file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*"))) if file.is_file()
    ]
    for file in files:
        try:
            TARGETS[name].check(file.read_bytes())
        except BaseException:
            print(f"violation: {file}", flush=True)
            raise
    print(f"{len(files)} inputs", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], [Path(path) for path in sys.argv[2:]])
