"""Each line of THREATS.md has its test, and `.ci/run` runs it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "netstack/THREATS.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| may ", "| number "))]


RUN = (ROOT / ".ci/run").read_text(encoding="utf-8")
LONG = [path for paths in re.findall(r'-m long ([^"]+)"', RUN) for path in paths.split()]
"""Where `.ci/run` looks for tests that take long; all others it runs wherever they are."""


def is_marked_long(nodes: list[ast.expr]) -> bool:
    return any("mark.long" in ast.unparse(node) for node in nodes)


@pytest.mark.parametrize("row", ROWS)
def test_every_line_names_a_test_that_is_run(row: str) -> None:
    found = re.search(r"`(tests/\S+\.py)::(\w+)` \|$", row)
    assert found is not None, row
    module = ast.parse((ROOT / found[1]).read_text(encoding="utf-8"))
    tests = [
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == found[2]
    ]
    assert tests, f"{found[1]} has no {found[2]}"
    whole = [
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if is_marked_long(whole + tests[0].decorator_list):
        assert any(found[1] == path or found[1].startswith(f"{path}/") for path in LONG), f".ci/run omits {found[1]}"


def test_the_long_ones_are_seen() -> None:
    assert "tests/laws" in LONG
    assert is_marked_long(ast.parse("[pytest.mark.slow, pytest.mark.long]").body[0].value.elts)  # type: ignore[attr-defined]


def test_the_page_has_all_its_lines() -> None:
    assert len(ROWS) > 60
    assert {int(row.split()[1]) for row in ROWS if row.split()[1].isdigit()} == {*range(1, 20)}
