"""Documents of strangers: bounded before anybody looks at them."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from netstack.base.text.bounded_msgpack import MAX_DOCUMENT_DEPTH, unpack_document

documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner),
)


def depth_of(document: Any) -> int:
    if isinstance(document, list | dict):
        inner = document.values() if isinstance(document, dict) else document
        return 1 + max(map(depth_of, inner), default=0)
    return 0


def count_of(document: Any) -> int:
    if isinstance(document, list | dict):
        inner = document.values() if isinstance(document, dict) else document
        return 1 + sum(map(count_of, inner))
    return 0


@given(documents, st.integers(0, 6), st.integers(0, 12))
def test_exactly_what_is_within_the_bounds_comes_through(document: Any, max_depth: int, max_containers: int) -> None:
    data = msgpack.packb(document)
    if depth_of(document) <= max_depth and count_of(document) <= max_containers:
        assert unpack_document(data, max_depth=max_depth, max_containers=max_containers) == document
    else:
        with pytest.raises(ValueError, match=r"nested deeper than|more than"):
            unpack_document(data, max_depth=max_depth, max_containers=max_containers)


@given(st.binary())
def test_any_bytes_are_a_document_or_a_value_error(data: bytes) -> None:
    try:
        unpack_document(data)
    except ValueError as error:
        assert str(error).startswith("it is")  # noqa: PT017  not every example is an error


@pytest.mark.parametrize("deep", [MAX_DOCUMENT_DEPTH + 1, 1015, 1024, 5000, 1_000_000])
@pytest.mark.parametrize("opener", [b"\x91", b"\x81\x01"])
def test_a_deep_one_is_refused_however_deep(opener: bytes, deep: int) -> None:
    with pytest.raises(ValueError, match=f"{MAX_DOCUMENT_DEPTH} levels"):
        unpack_document(opener * deep + b"\xc0")
    unpack_document(opener * MAX_DOCUMENT_DEPTH + b"\xc0")


def test_many_small_lists_are_refused_before_they_take_memory() -> None:
    with pytest.raises(ValueError, match="more than 1000 lists and maps"):
        unpack_document(b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\x90" * 1_000_000, max_containers=1000)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x01\x02", b"\x81\x90\x01", b"\xa1\xff"])
def test_what_is_no_document(data: bytes) -> None:
    with pytest.raises(ValueError, match="it is not msgpack"):
        unpack_document(data)


@pytest.mark.parametrize("count", [1, 100_000])
@pytest.mark.parametrize(
    "value", [msgpack.ExtType(5, b""), msgpack.ExtType(5, b"x"), msgpack.ExtType(127, b"x" * 300), msgpack.Timestamp(1)]
)
def test_extension_types_are_refused_at_the_first(value: Any, count: int) -> None:
    with pytest.raises(ValueError, match="extension type"):
        unpack_document(msgpack.packb([1, {"a": [value] * count}]))
