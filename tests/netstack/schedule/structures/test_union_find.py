"""Disjoint sets."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.schedule.structures import UnionFind


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_sets_are_what_pairs_connect(pairs: list[tuple[int, int]]) -> None:
    sets = UnionFind(10)
    expected = [{item} for item in range(10)]
    for one, other in pairs:
        sets.join(one, other)
        merged = expected[one] | expected[other]
        for item in merged:
            expected[item] = merged
    assert sets.sets() == sorted({tuple(sorted(members)): sorted(members) for members in expected}.values())
    assert [sets.find(item) for item in range(10)] == [min(members) for members in expected]
