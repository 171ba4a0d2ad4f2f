"""What a change needs before it is worth a full run: `make check`, within a minute.

Takes: a revision that the change is compared with (HEAD if not given; files that git does not know count as changed).
Gives: lint, types, then the tests that reach a changed module through imports, the nearest first, as many as fit into
the time; an exit code, what was left out, and a warning about modules of more than 600 lines.

    python tools/check.py [REVISION] [--seconds 45]
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import grimp
from import_packages import PACKAGES, ROOT, module_of

LINES: Final = 600
"""A responsibility has no line count, so more lines are no failure; but they are looked at."""

CHUNK: Final = 8
"""Test files that run together: what is left of the time is looked at in between."""


def changed_files(revision: str) -> list[Path]:
    """Files that differ from a revision, and new ones, relative to the root."""
    git = ["git", "-C", str(ROOT)]
    told = subprocess.run([*git, "diff", "--name-only", revision], capture_output=True, text=True, check=True).stdout
    new = subprocess.run(
        [*git, "ls-files", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    ).stdout
    return [Path(line) for line in dict.fromkeys([*told.splitlines(), *new.splitlines()])]


def imports_of(test: Path) -> Iterator[str]:
    """The modules that a test file names: imports anywhere in it, and of helpers that lie beside it."""
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def distances(graph: grimp.ImportGraph, changed: Iterable[str]) -> dict[str, int]:
    """Of each module how many imports it is away from a changed one; those that do not reach one are left out."""
    found = {name: 0 for name in changed if name in graph.modules}
    nearest = list(found)
    while nearest:
        there = {importer for name in nearest for importer in graph.find_modules_that_directly_import(name)}
        nearest = [name for name in there if name not in found]
        found |= {name: max(found.values()) + 1 for name in nearest}
    return found


def tests_of(changed: list[Path]) -> list[Path]:
    """The test files that a change touches, the nearest first."""
    graph = grimp.build_graph(*(package.name for package in PACKAGES))
    away = distances(graph, filter(None, map(module_of, changed)))
    others = [each for each in (ROOT / "tests").rglob("*.py") if not each.name.startswith("test_")]
    helpers = {each.stem: each for each in others}
    for folder in (ROOT / "tests/support").iterdir():
        helpers |= {f"{folder.name}.{each.stem}": each for each in folder.glob("*.py")}
    found: dict[Path, int] = {}
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        if test.relative_to(ROOT) in changed:
            found[test] = 0
            continue
        names = set(imports_of(test))
        beside = [helpers[name] for name in names if name in helpers]
        names |= {name for helper in beside for name in imports_of(helper)}
        reached = [away[name] + 1 for name in names if name in away]
        reached += [1 for helper in beside if helper.relative_to(ROOT) in changed]
        if reached:
            found[test] = min(reached)
    return sorted(found, key=lambda test: (found[test], test))


def long_modules(changed: Iterable[Path]) -> Iterator[str]:
    """Warnings about the changed modules of the packages that have more than `LINES` lines."""
    for path in changed:
        if module_of(path) is not None and (ROOT / path).is_file():
            lines = len((ROOT / path).read_text().splitlines())
            if lines > LINES:
                yield f"warning: {path} has {lines} lines; above {LINES} a module wants a reason, or a part of its own"


def main() -> int:
    """Lint, types, tests; 0 if all that ran is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--seconds", type=float, default=45.0, help="for the tests")
    given = parser.parse_args()
    changed = changed_files(given.revision)
    python = [str(path) for path in changed if path.suffix == ".py" and (ROOT / path).is_file()]
    steps = [["ruff", "check", *python], ["ruff", "format", "--check", *python]] if python else []
    steps.append(["mypy", "--strict", "--num-workers", "2"])
    for step in steps:
        if subprocess.run([str(Path(sys.executable).with_name(step[0])), *step[1:]], cwd=ROOT, check=False).returncode:
            return 1
    tests = tests_of(changed)
    until = time.monotonic() + given.seconds
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not long", "--no-header"]
    ran = 0
    while ran < len(tests) and time.monotonic() < until:
        chunk = tests[ran : ran + CHUNK]
        code = subprocess.run([*pytest, *map(str, chunk)], cwd=ROOT, check=False).returncode
        if code not in (0, 5):  # 5: nothing in these files is fast
            return 1
        ran += len(chunk)
    left = f"; no time was left for {len(tests) - ran} that are further away" if ran < len(tests) else ""
    for warning in long_modules(changed):
        print(warning)
    print(f"changed files: {len(changed)}; test files that ran: {ran}{left}. `make test` runs all.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
