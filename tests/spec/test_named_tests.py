"""Each line of THREATS.md and of FLINK.md has its test; `.ci/run` runs them all (`tests/packaging/test_ci.py`)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADS = ("| can | cannot ", "| number ", "| Flink |")


def rows_of(page: str) -> list[list[str]]:
    """The cells of every row of every table, without heads."""
    text = (ROOT / "netstack" / page).read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(HEADS)]
    return [[cell.strip() for cell in row[1:-1].split("|")] for row in rows]


THREATS = rows_of("THREATS.md")
FLINK = rows_of("FLINK.md")
TESTED = [row for row in THREATS + FLINK if row[-1] != "not tested"]


@pytest.mark.parametrize("row", TESTED)
def test_every_line_names_a_test_that_exists(row: list[str]) -> None:
    for named in row[-1].split(", "):
        actual = re.fullmatch(r"`(tests/(?:\w+/)*test_\w+\.py)::(test_\w+)`", named)
        assert actual is not None, row
        module = ast.parse((ROOT / actual[1]).read_text(encoding="utf-8"))
        functions = (node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        test = next((node for node in functions if node.name == actual[2]), None)
        assert test is not None, f"{actual[1]} has no {actual[2]}"


def test_the_pages_have_all_their_lines() -> None:
    assert all(row in TESTED for row in THREATS)
    assert len(THREATS) > 60
    assert {int(row[0]) for row in THREATS if row[0].isdigit()} == {*range(1, 20)}
    assert len(FLINK) > 70
    assert {len(row) for row in FLINK} == {4}
