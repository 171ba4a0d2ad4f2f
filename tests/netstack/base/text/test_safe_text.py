"""Values of strangers as text."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NoReturn

import pytest
from hypothesis import given, strategies as st

from netstack.base.text.safe_text import safe_error, safe_repr, safe_text, type_text

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
)


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 2


class Rude:
    def __repr__(self) -> NoReturn:
        raise SystemError("no")


class RudeError(Exception):
    def __str__(self) -> NoReturn:
        raise ValueError("no")


@given(plain, st.integers(3, 300))
def test_anything_is_one_printable_line_within_its_limit(value: Any, limit: int) -> None:
    text = safe_repr(value, limit)
    assert len(text) <= limit
    assert text.isprintable()
    assert len(safe_error(ValueError(value), limit)) <= limit


@given(st.text(), st.integers(3, 300))
def test_a_text_is_itself_or_escaped(text: str, limit: int) -> None:
    result = safe_text(text, limit)
    assert len(result) <= limit
    assert result.isprintable()
    result.encode()
    if text.isprintable() and len(text) <= limit:
        assert result == text


@pytest.mark.parametrize("deep", [lambda inner: [inner], lambda inner: (inner,), lambda inner: {1: inner}, Point])
def test_depth_costs_nothing_and_fails_nothing(deep: Any) -> None:
    value: Any = None
    for _ in range(100_000):
        value = deep(value)
    assert len(safe_repr(value)) < 100
    assert "..." in safe_repr(value)
    assert len(safe_error(ValueError(value))) < 1000
    while value is not None:  # taken apart by us: dataclasses would be freed by recursion
        value = value.x if isinstance(value, Point) else value[1] if isinstance(value, dict) else value[0]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb\x1b[31m\u202e\ud800", r"'a\nb\x1b[31m\u202e\ud800'"),
        (b"\x00a", r"b'\x00a'"),
        ([1, "a", None, 1.5, True], "[1, 'a', None, 1.5, True]"),
        ((1,), "(1,)"),
        ({"a": {"b": [1, [2, [3]]]}}, "{'a': {'b': [1, [...]]}}"),
        (list(range(100)), "[0, 1, 2, 3, 4, 5, ...]"),
        (set(), "set()"),
        ([], "[]"),
        (10**1000, "an int of 3322 bits"),
        (memoryview(b"123"), "<memory of 3 bytes>"),
        (Point([1]), "Point(x=[1], y=2)"),
        (collections.Counter("aab"), "{'a': 2, 'b': 1}"),
        (Rude(), "<Rude>"),
        (ValueError("x\ny"), r"ValueError: x\ny"),
    ],
)
def test_what_is_shown(value: Any, text: str) -> None:
    assert safe_repr(value) == text


def test_long_ones_are_cut_without_being_written_out() -> None:
    assert safe_repr("x" * 10**8) == "'" + "x" * 196 + "..."
    assert safe_repr(b"\0" * 10**8, 20) == r"b'\x00\x00\x00\x0..."
    assert safe_text("name " * 10, 12) == "name name..."


def test_errors_say_their_class() -> None:
    assert safe_error(RudeError()) == "RudeError: (its text is not available)"
    assert safe_error(KeyError()) == "KeyError"


def test_a_type_has_its_article() -> None:
    assert [type_text(each) for each in (5, "", None, Point(1))] == ["an int", "a str", "a NoneType", "a Point"]
