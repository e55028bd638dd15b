"""Read files of retention rules, and recognize saved results of `lakegc what-if`."""

from __future__ import annotations

import json
from pathlib import Path

from lakegc_assets.cli.invocation import command
from lakegc_assets.rules.rules_file import parse_rules
from spark_resources.errors import WrongUsage
from spark_resources.model import Rules

RESULT_FIELD = "what_if"
"""The field by which a saved result of `lakegc what-if` is recognized; its value is the version of the format."""
MAX_RESULT_BYTES = 64 << 20


def read_rules_file(path: Path) -> Rules:
    """The rules in a file. Raises `WrongUsage` if the file can't be read, or with all problems in it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise WrongUsage(f"{path} can't be read: {error.strerror or error}") from None
    return parse_rules(data, str(path))


def refuse_what_if_result(repository: str, name: str) -> None:
    """Raise `WrongUsage` if `name`, passed as a mark, is a file with a saved result of `lakegc what-if`."""
    path = Path(name)
    try:
        if not path.is_file() or path.stat().st_size > MAX_RESULT_BYTES:
            return
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(plain, dict) and RESULT_FIELD in plain:
        raise WrongUsage(
            f"{name} is a result of 'lakegc what-if', not a mark: it can't be approved, because no set of objects was "
            f"listed and verified. Set the rules ({command('rules', repository, '--set', 'FILE')}), make a mark "
            f"({command('mark', repository)}), and approve the mark."
        )
