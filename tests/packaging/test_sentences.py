"""A sentence is checked once, by the test of the module that makes it.

All other tests match an error by its type, its code and the value that matters: `match="orders-3"`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
LEAST_WORDS: Final = 4
MOST_SENTENCES: Final = 926
"""Lower it when you shorten some."""


def sentences(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each sentence in a `match=` or an assert, with {} for each value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield from _texts(node.value)
        elif isinstance(node, ast.Assert):
            yield from _texts(node.test)


def _texts(node: ast.AST) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Subscript):
        yield from _texts(node.value)  # a key is no sentence
    elif isinstance(node, ast.JoinedStr | ast.Constant):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        if sum(bool(re.search("[A-Za-z]{2}", word)) for word in text.split()) >= LEAST_WORDS:
            yield node.lineno, text
    else:
        for child in ast.iter_child_nodes(node):
            yield from _texts(child)


def test_a_sentence_is_matched_in_one_place() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for line, text in sentences(path.read_text(encoding="utf-8")):
            places.setdefault(text, []).append(f"{path.relative_to(TESTS)}:{line}")
    repeated = {text: where for text, where in places.items() if len(where) > 1}
    assert not repeated, "keep one, in the test of the module that makes the sentence; match a value in the others"
    assert len(places) <= MOST_SENTENCES, "match a value instead of the new sentence, or of an old one"


def test_what_counts_as_a_sentence() -> None:
    source = """
with raises(ConfigError, match=rf"partition {name} has no such.*consumer"):
    pass
assert "no slot is free" in str(error), "a reason in many more words is for the reader"
assert counts["of jobs that were lost"] == 3
assert "no slot" in text
"""
    assert sorted(sentences(source)) == [(2, "partition {} has no such.*consumer"), (4, "no slot is free")]
