"""What a sampled verification finds, and what it says of itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack_bench.generator import Source
from netstack_bench.places.local.worker_io import EVERY, SampledVerifier
from netstack_bench.verifier import Order


def deliveries(source: Source, form: str, sizes: list[int]) -> list[Any]:
    """Batches of so many records each, as a consumer gets them; their memory is their own."""
    actual: list[Any] = []
    first = 0
    for size in sizes:
        if form == "record":
            actual.append(source.records(first, size))
        elif form == "batch":
            actual.append(np.array(source.array(first, size)))
        else:
            actual += source.arrow(first, size)
        first += size
    return actual


def verify(form: str, record_bytes: int, fed: list[Any]) -> SampledVerifier:
    verifier = SampledVerifier(record_bytes=record_bytes, order=Order.BLOCKS if form == "arrow" else Order.ROUND_ROBIN)
    feed = {"record": verifier.feed, "batch": verifier.feed_array, "arrow": verifier.feed_arrow}[form]
    for rows in fed:
        feed(0, rows, 1)
    verifier.finish()
    return verifier


@pytest.mark.parametrize("form", ["record", "batch", "arrow"])
@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=40), words=st.integers(1, 4), data=st.data())
def test_what_is_lost_or_repeated_or_swapped_is_found(
    form: str, sizes: list[int], words: int, data: st.DataObject
) -> None:
    source = Source(8 * words, 64)
    fed = deliveries(source, form, sizes)
    expected = source.expected(sum(sizes))
    whole = verify(form, 8 * words, fed)
    assert whole.problems(expected) == []
    assert whole.received_records == sum(sizes)
    at = data.draw(st.integers(0, len(fed) - 1))
    assert verify(form, 8 * words, fed[:at] + fed[at + 1 :]).problems(expected)
    assert verify(form, 8 * words, [*fed[: at + 1], *fed[at:]]).problems(expected)
    if at:
        swapped = [*fed[: at - 1], fed[at], fed[at - 1], *fed[at + 1 :]]
        assert verify(form, 8 * words, swapped).problems(expected)


@given(at=st.integers(0, 3 * EVERY - 1), words=st.integers(2, 4))
def test_damage_is_found_in_what_was_looked_at(at: int, words: int) -> None:
    source = Source(8 * words, 64)
    fed = deliveries(source, "batch", [20] * (3 * EVERY))
    fed[at][7, 9] ^= 1
    actual = verify("batch", 8 * words, fed).problems(source.expected(60 * EVERY))
    assert bool(actual) is (at % EVERY == 0)
    assert SampledVerifier(record_bytes=8).verified == f"1 in {EVERY}"


def test_records_of_another_length_are_found() -> None:
    fed = deliveries(Source(16, 64), "record", [4, 4])
    fed[1][3] = fed[1][3][:8]
    assert verify("record", 16, fed).problems(Source(16, 64).expected(8))
    rows = deliveries(Source(16, 64), "batch", [4, 4])
    rows[1] = rows[1][:, :8]
    assert verify("batch", 16, rows).problems(Source(16, 64).expected(8))
