"""All error messages of lakegc on one page, so that a review shows any change of wording and any lost placeholder.

A message says what is wrong, where, and what to do next. Rewording must not lose the repository, mark or object.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).with_name("error_messages.txt")
ROOT = Path(__file__).parents[2]
PACKAGES = ("lakegc_assets", "spark_resources")
UPDATE = "UPDATE_MESSAGES=1 pytest tests/unit/test_error_messages.py"


def modules() -> dict[str, ast.Module]:
    """The syntax trees of both packages by path."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def error_classes(trees: dict[str, ast.Module]) -> set[str]:
    """The names of all classes that descend from `LakegcError`."""
    classes = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = [(node.name, {ast.unparse(base) for base in node.bases}) for node in classes]
    names, before = {"LakegcError"}, 0
    while len(names) > before:
        before = len(names)
        names |= {name for name, direct in bases if direct & names}
    return names


def templates(node: ast.expr) -> Iterator[str]:
    """The texts of a message expression, one for each branch of a condition. `{...}` stands for an inserted value."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(ast.unparse(ast.JoinedStr([part]))[2:-1] for part in parts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from templates(body)
            yield from templates(orelse)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield "".join(text for part in (left, right) for text in templates(part))


def page() -> str:
    """All error messages, by module and error class."""
    trees = modules()
    known = error_classes(trees)
    lines: list[str] = []
    for name, tree in trees.items():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
        raised = [(ast.unparse(call.func), text) for call in calls for text in templates(call.args[0])]
        messages = sorted(f"  {error}: {text!r}" for error, text in raised if error in known)
        lines += [name, *messages] if messages else []
    return "\n".join(lines) + "\n"


def test_every_error_message_is_in_the_list_of_messages() -> None:
    """If this fails, read the difference: a reworded message must keep its placeholders unless there is a reason to
    drop one."""
    now = page()
    if os.environ.get("UPDATE_MESSAGES"):
        PAGE.write_text(now, encoding="utf-8")

    assert now == PAGE.read_text(encoding="utf-8"), f"error messages changed; after reading them: {UPDATE}"
    assert now.count("\n  ") > 300
