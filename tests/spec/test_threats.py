"""Each line of THREATS.md has its test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "netstack/THREATS.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| may ", "| number "))]


@pytest.mark.parametrize("row", ROWS)
def test_every_line_names_a_test_that_exists(row: str) -> None:
    found = re.search(r"`(tests/\S+\.py)::(\w+)` \|$", row)
    assert found is not None, row
    source = (ROOT / found[1]).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {found[2]}\(", source, re.MULTILINE), f"{found[1]} has no {found[2]}"


def test_the_page_has_all_its_lines() -> None:
    assert len(ROWS) > 60
    assert {int(row.split()[1]) for row in ROWS if row.split()[1].isdigit()} == {*range(1, 20)}
