"""Whatever a user or a peer gives becomes JSON that a strict parser reads."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.text.json_text import MAX_DEPTH, json_text, shortened

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    # Cs are halves of surrogate pairs
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)
KEYS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
ANYTHING = st.recursive(
    PLAIN | st.floats() | st.binary(max_size=8) | st.text(max_size=4) | st.complex_numbers() | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS | st.tuples(KEYS, KEYS), inner, max_size=4)
        | st.frozensets(KEYS, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise ValueError(name)

    return json.loads(text.encode(), parse_constant=refuse)


@given(PLAIN, st.booleans())
def test_plain_values_are_what_they_were(value: object, compact: bool) -> None:
    assert strict(json_text(value, compact=compact)) == value


@given(ANYTHING, st.booleans(), st.none() | st.just(2))
def test_everything_becomes_json(value: object, compact: bool, indent: int | None) -> None:
    text = json_text(value, compact=compact, indent=indent)
    strict(text)
    assert not compact or text.isascii()


@pytest.mark.parametrize(
    ("value", "actual"),
    [
        ({b"word": 1}, {"word": 1}),
        ({2: 2, None: 3, True: b""}, {"2": 2, "null": 3, "true": ""}),
        ({(1, "a"): b"\xff"}, {"(1, 'a')": "\\xff"}),
        ({b"a": 1, "a": 2}, {"a": 1, "'a'": 2}),
        ([math.nan, math.inf, 1.5], [None, None, 1.5]),
        ({math.nan: 1}, {"nan": 1}),
        ({1, 2}, [1, 2]),
        ({"n": np.longdouble(7)}, {"n": "np.longdouble('7.0')"}),
        ("half \ud83d", "half \ud83d"),
        (datetime(2026, 1, 1, tzinfo=UTC), "datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"),
    ],
)
def test_what_json_has_no_word_for_is_shown(value: object, actual: object) -> None:
    assert json.loads(json_text(value)) == actual


def test_what_is_too_deep_or_in_itself_is_cut() -> None:
    endless: list[Any] = [b"bytes"]
    endless.append(endless)
    actual = json.loads(json_text(endless))
    depth = 0
    while isinstance(actual, list):
        depth, actual = depth + 1, actual[1]
    assert depth == MAX_DEPTH
    assert actual.startswith("[b'bytes', [")


def test_an_int_too_long_to_write_is_described() -> None:
    assert json.loads(json_text([1 << 20000])) == ["an int of 20001 bits"]


def test_an_object_whose_description_fails_is_named() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert json_text([Broken()]) == '["<Broken>"]'


@given(ANYTHING)
def test_what_is_short_is_told_in_full(value: object) -> None:
    assert json.dumps(shortened(value, 1 << 20)) == json.dumps(json.loads(json_text({"it": value}))["it"]) or (
        "\\ud" in json_text(value)
    )


@given(ANYTHING, st.integers(0, 300))
def test_what_is_long_is_shortened(value: object, characters: int) -> None:
    text = json.dumps(shortened([value, ["word"] * 1000, {str(each): b"x" * each for each in range(200)}], characters))
    assert len(text) < 12 * characters + 3000
    strict(text)


def test_a_text_that_is_too_long_is_shortened() -> None:
    results = {"sink": ["word"] * 1000, "after": 1}
    assert len(json_text(results, compact=True, most_characters=500)) < 2000
    assert strict(json_text(results, most_characters=500))["sink"][:2] == ["word", "word"]
    assert strict(json_text(results, most_characters=20_000)) == results


def test_of_what_is_left_out_nothing_is_looked_at() -> None:
    looked = []

    class Counted(dict[str, int]):
        def items(self) -> Any:
            for each in range(1 << 40):
                looked.append(each)
                yield str(each), each

    assert shortened({"few": 1, "many": Counted(), "after": 2}, 200)["few"] == 1
    assert len(looked) < 100
    assert shortened("x" * 1000, 10) == "x" * 6 + "..."
    assert shortened([b"x" * 1000, 1, 2], 100) == ["x" * 92 + "...", "..."]
