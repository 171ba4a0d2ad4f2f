"""How far another clock is from ours: the truth lies within the uncertainty, whatever the network does."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from netstack_bench.places.hosts.clocks import best_reading

DELAYS = st.integers(0, 10_000_000_000)


@given(
    st.integers(-(1 << 62), 1 << 62),
    st.lists(st.tuples(st.integers(0, 1 << 40), DELAYS, DELAYS), min_size=1, max_size=20),
)
def test_the_true_offset_is_within_the_uncertainty(offset_ns: int, exchanges: list[tuple[int, int, int]]) -> None:
    sample = best_reading((sent, sent + there + offset_ns, sent + there + back) for sent, there, back in exchanges)
    assert abs(sample.offset_ns - offset_ns) <= -(-sample.rtt_ns // 2)
    assert sample.rtt_ns == min(there + back for _, there, back in exchanges)


def test_a_symmetric_way_is_exact() -> None:
    sample = best_reading([(100, 1_000_150, 200), (1000, 0, 9000)])
    assert (sample.offset_ns, sample.rtt_ns, sample.at_ns) == (1_000_000, 100, 150)


def test_at_least_one_exchange() -> None:
    with pytest.raises(ValueError, match="empty"):
        best_reading([])
