"""Several gates as one input: fair among them, and each told what is its own."""

from __future__ import annotations

import pytest
from exchange.gate_stage import Stage, turns

from netstack.base.errors import LocalProtocolError
from netstack.exchange.inbound.union import UnionInputGate

# Unions.


class Union:
    def __init__(self, *counts: int) -> None:
        self.told: list[str] = []
        self.parts = [Stage(count, self.told, f"gate {index}") for index, count in enumerate(counts)]
        self.gate = UnionInputGate([part.gate for part in self.parts], missing=max(0, 2 - len(counts)))
        self.gate.on_available = lambda: self.told.append("available")


def test_a_union_is_fair_among_gates_and_shifts_indexes() -> None:
    union = Union(2, 1)
    for part in union.parts:
        for channel in part.channels:
            for _ in range(3):
                channel.put()
    assert turns(union.gate) == [0, 2, 1, 2, 0, 2, 1, 0, 1]
    assert union.told == ["available"]
    assert union.gate.channel_count == 3


def test_what_a_gate_had_before_the_union_is_not_forgotten() -> None:
    parts = [Stage(1), Stage(1)]
    parts[1].channels[0].put()
    union = UnionInputGate([part.gate for part in parts])
    assert union.is_available
    assert turns(union) == [1]


def test_a_union_is_told_again_after_it_ran_dry() -> None:
    union = Union(1, 1)
    for _ in range(3):
        union.told.clear()
        union.parts[1].channels[0].put()
        assert union.told == ["available"]
        assert turns(union.gate) == [1]
        assert not union.gate.is_available


def test_a_gate_that_comes_later() -> None:
    union = Union(1)
    later = Stage(2, union.told, "gate 1")
    later.channels[1].put()
    union.parts[0].end(0)
    assert turns(union.gate) == [0, 0]
    assert (union.gate.is_finished, union.gate.is_available, union.gate.ended_with_drain) == (False, False, None)
    union.told.clear()
    union.gate.add(later.gate)
    assert union.told == ["available"]
    assert turns(union.gate) == [2]
    assert union.gate.channel_count == 3
    later.end(0)
    later.end(1)
    assert turns(union.gate) == [1, 2, 1, 2]
    assert (union.gate.is_finished, union.gate.ended_with_drain) == (True, True)
    with pytest.raises(LocalProtocolError, match="is complete"):
        union.gate.add(Stage(1).gate)


def test_a_union_ends_when_every_gate_has() -> None:
    union = Union(1, 2)
    union.parts[0].end(0)
    assert turns(union.gate) == [0, 0]
    assert (union.gate.is_finished, union.gate.ended_with_drain) == (False, None)
    union.parts[1].end(0)
    union.parts[1].end(1, drain=False)
    assert turns(union.gate) == [1, 2, 1, 2]
    assert (union.gate.is_finished, union.gate.ended_with_drain, union.gate.is_available) == (True, False, True)
    assert union.gate.poll() is None
    assert union.gate.statistics().is_finished


def test_a_union_sends_orders_to_the_right_gate() -> None:
    union = Union(2, 1)
    union.gate.resume(2)
    union.gate.acknowledge_end_of_data(1)
    assert union.parts[1].channels[0].log == ["resume"]
    assert union.parts[0].channels[1].log == ["acknowledge"]
    union.gate.read_connections()
    assert union.told == ["gate 0 poked", "gate 1 poked"]
    assert len(union.gate.statistics().channels) == 3


def test_a_failing_gate_of_a_union_raises_and_the_other_goes_on() -> None:
    union = Union(1, 1)
    union.parts[0].channels[0].error = LocalProtocolError("broken")
    union.parts[0].gate.enqueue(union.parts[0].channels[0])
    union.parts[1].channels[0].put()
    with pytest.raises(LocalProtocolError, match="broken"):
        union.gate.poll()
    assert turns(union.gate) == [1]


def test_closing_a_union_closes_every_gate() -> None:
    union = Union(1, 1)
    union.gate.close()
    union.gate.close()
    assert [part.closed for part in union.parts] == [1, 1]
    with pytest.raises(LocalProtocolError, match="closed"):
        union.gate.poll()


def test_a_union_of_fewer_than_two_or_of_one_twice_is_refused() -> None:
    gate = Stage(1).gate
    for gates in ([gate], [gate, gate], []):
        with pytest.raises(LocalProtocolError, match="at least 2 distinct gates"):
            UnionInputGate(gates)


def test_an_index_out_of_range_is_refused() -> None:
    union = Union(2, 1)
    with pytest.raises(LocalProtocolError, match="channel index -1;"):
        union.gate.resume(-1)
