"""CheckedSelector: a selector of the user cannot choose a subpartition that does not exist."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack import ChannelDescriptor, ChannelSelector, RecordReader, RecordWriter, open_network
from netstack.base.errors import ConfigError
from netstack.exchange.outbound.selector import (
    CheckedSelector,
    CustomSelector,
    RebalanceSelector,
    RoundRobinSelector,
    checked,
)

ARRAY = np.arange(4)


class Chosen(ChannelSelector):
    """Returns what it is given."""

    def __init__(self, chosen: Any) -> None:
        self.chosen = chosen

    def select(self, record: Any) -> int:
        return self.chosen  # type: ignore[no-any-return]

    def select_batch(self, array: Any) -> Any:
        return self.chosen

    def select_many(self, records: list[Any]) -> list[int] | None:
        return [self.chosen] * len(records)


class Rotating(RoundRobinSelector):
    """A round robin of the user."""


def set_up(selector: ChannelSelector, channels: int = 3) -> ChannelSelector:
    actual = checked(selector)
    actual.setup(channels)
    return actual


def test_our_own_selectors_are_used_as_they_are() -> None:
    for own in (RebalanceSelector(), CustomSelector(lambda key, channels: 0)):
        assert checked(own) is own


@given(channel=st.integers(-5, 5), kind=st.sampled_from([int, np.int64, np.int8]))
def test_whole_numbers(channel: int, kind: Any) -> None:
    selector = set_up(Chosen(kind(channel)))
    if 0 <= channel < 3:
        assert [selector.select("x"), selector.select_batch(ARRAY), selector.select_many(["x"])] == [
            channel,
            channel,
            [channel],
        ]
        return
    for choose in (selector.select, selector.select_batch, lambda records: selector.select_many(list(records))):
        with pytest.raises(ConfigError, match=rf"^Chosen .* {channel};"):
            choose(ARRAY)


@pytest.mark.parametrize("chosen", [None, 1.0, "1", np.array([0, 1])])
def test_something_else(chosen: Any) -> None:
    selector = set_up(Chosen(chosen))
    with pytest.raises(ConfigError, match=r"Chosen returned .* 0 to 2"):
        selector.select("x")
    with pytest.raises(ConfigError, match="for 4 records"):
        selector.select_batch(ARRAY)


def test_indices() -> None:
    assert list(set_up(Chosen([0, 1, 2, 0])).select_batch(ARRAY)) == [0, 1, 2, 0]  # type: ignore[arg-type]
    assert set_up(Chosen([0, 1, 2, 0])).select_batch(ARRAY).dtype == np.uint8  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="chose subpartition 3"):
        set_up(Chosen(np.array([0, 3, 1, 1]))).select_batch(ARRAY)


def test_a_round_robin_of_the_user_still_advances() -> None:
    selector = set_up(Rotating(), 4)
    assert isinstance(selector, CheckedSelector)
    first = selector.advance(6)
    assert selector.is_round_robin
    assert selector.select("x") == (first + 6) % 4


async def test_no_record_goes_to_all_consumers_by_mistake() -> None:
    async with open_network("memory://selectors") as network:
        partition = network.create_partition("p", subpartitions=2)
        selector = Chosen(2)
        async with RecordWriter[int](partition, format="int64", selector=selector) as writer:
            with pytest.raises(ConfigError, match="subpartition 2;"):
                await writer.emit(7)
            with pytest.raises(ConfigError, match="subpartition 2;"):
                await writer.emit_batch(np.array([7, 7]))
            selector.chosen = 1
            await writer.emit(8)
        actual = []
        for index in range(2):
            gate = await network.open_gate([ChannelDescriptor(network.address, "p", index)])
            actual.append([record async for record in RecordReader[int](gate, format="int64")])
    assert actual == [[], [8]]
