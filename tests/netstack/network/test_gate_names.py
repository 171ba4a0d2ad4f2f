"""Names of gates: the first that is free, and never one twice."""

from __future__ import annotations

from hypothesis import given, strategies as st

from netstack.network.gate_opening import GateNames


@given(st.lists(st.tuples(st.sampled_from("pq"), st.integers(0, 5)), max_size=60))
def test_a_name_is_the_first_of_its_base_that_is_free(steps: list[tuple[str, int]]) -> None:
    names = GateNames()
    taken: list[tuple[str, str]] = []
    for base, which in steps:
        if which < 2 and taken:
            names.give_back(*taken.pop(which % len(taken)))
            continue
        name = names.take(base)
        used = {each for _, each in taken}
        assert name == next(
            each for each in [base, *(f"{base}#{number}" for number in range(2, 99))] if each not in used
        )
        taken.append((base, name))
