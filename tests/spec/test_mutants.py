"""The bugs of `make mutants` can still be planted, and a test that found one is told from one that did not."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from tool_modules import load_tool

mutants = load_tool("mutants")
ROOT = Path(__file__).resolve().parents[2]
EVERY = mutants.read_mutants(ROOT / "tests/mutants")


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_each_has_its_place_and_its_tests(mutant: Any) -> None:
    planted = mutant.planted((ROOT / mutant.file).read_text())
    ast.parse(planted)
    for named in mutant.tests:
        path, _, function = named.partition("[")[0].partition("::")
        assert f"def {function}" in (ROOT / path).read_text(), named


@pytest.mark.whole
@pytest.mark.parametrize(
    ("new", "test", "reported"),
    [
        ("return a - b", "test_sum", ""),
        ("return b + a", "test_sum", "all tests pass"),
        ("return a +", "test_sum", "the tests could not be run"),
        ("return a - b", "test_nothing", "the tests could not be run"),
    ],
)
def test_a_bug_is_caught_when_a_test_fails(tmp_path: Path, new: str, test: str, reported: str) -> None:
    source = "def add(a, b):\n    return a + b\n"
    (tmp_path / "sums.py").write_text(source)
    (tmp_path / "test_sums.py").write_text("from sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n")
    mutant = mutants.Mutant("sums", "sums.py", "return a + b", new, (f"test_sums.py::{test}",))
    why = mutants.plant(tmp_path, mutant)
    assert why.startswith(reported)
    assert bool(why) == bool(reported)
    assert (tmp_path / "sums.py").read_text() == source


@pytest.mark.parametrize("old", ["a", "gone"])
def test_a_bug_without_its_one_place_is_an_error(old: str) -> None:
    with pytest.raises(mutants.BadMutant, match=r"instead of once"):
        mutants.Mutant("x", "sums.py", old, "b", ()).planted("a = a\n")
