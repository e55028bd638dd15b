"""Prints how the code is structured: modules, imports, cycles, loops that wait, and the README's lines.

uv run python -m tests.bench.structure
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("lakegc_assets", "spark_resources")
TOP_LEVEL_BOUND = {"lakegc_assets": 8, "spark_resources": 4}
README_LINES, README_WIDTH = 250, 120


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """Every module of both packages with its syntax tree."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text(encoding="utf-8"))


def top_level(package: str) -> list[str]:
    """The modules directly in a package, without `__init__`."""
    return sorted(path.stem for path in (ROOT / package).glob("*.py") if path.stem != "__init__")


def function_level_imports() -> dict[Path, int]:
    """The number of imports inside functions, by module."""
    imports = {}
    for path, tree in modules():
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {
            id(node)
            for function in functions
            for node in ast.walk(function)
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        if inside:
            imports[path] = len(inside)
    return imports


def import_cycles() -> list[str]:
    """Pairs of modules that import each other, directly or indirectly. Imports for type checkers are ignored."""
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    names = sorted(graph.modules)
    upstream = {name: graph.find_upstream_modules(name) for name in names}
    return [
        f"{name} and {other}" for name in names for other in upstream[name] if name < other and name in upstream[other]
    ]


def loops_that_sleep() -> list[str]:
    """Loops that call a function named `sleep`: hand-written retries, except for the shared retry policy and poll."""
    loops = []
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.While | ast.For):
                calls = [inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call)]
                names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
                if "sleep" in names:
                    loops.append(f"{path}:{node.lineno}")
    return loops


def main() -> None:
    for package in PACKAGES:
        names = top_level(package)
        print(f"modules at the top of {package}: {len(names)} (at most {TOP_LEVEL_BOUND[package]}): {', '.join(names)}")
    inside = function_level_imports()
    print(f"imports inside functions: {sum(inside.values())} in {len(inside)} modules")
    for path, count in sorted(inside.items(), key=lambda item: -item[1])[:10]:
        print(f"  {count:3} {path}")
    cycles = import_cycles()
    print(f"import cycles: {len(cycles)}")
    for cycle in cycles:
        print(f"  {cycle}")
    loops = loops_that_sleep()
    print(f"loops that sleep: {len(loops)}")
    for loop in loops:
        print(f"  {loop}")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    longest = max(map(len, readme))
    print(f"README: {len(readme)} lines (at most {README_LINES}), the longest of {longest} (at most {README_WIDTH})")


if __name__ == "__main__":
    main()
