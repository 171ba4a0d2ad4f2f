"""AdaptiveRebalanceSelector: round robin among equals, around a slow consumer otherwise."""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from trio.testing import MockClock

from netstack import (
    AdaptiveRebalanceSelector,
    ArrayReader,
    ChannelDescriptor,
    ConfigError,
    InputGate,
    RecordReader,
    RecordWriter,
    open_network,
)
from netstack.base.events import UserEvent, data_type_of, encode_event
from netstack.exchange.buffer.elements import EventBuffer
from netstack.exchange.credit.sending import SendCredit
from netstack.exchange.outbound.adaptive import BATCH_SHARE_BYTES
from netstack.exchange.outbound.subpartition import LOCAL_CREDIT, ResultSubpartition


def subpartitions(*loads: int) -> list[ResultSubpartition]:
    """One with each load: queued elements minus credit."""
    made = []
    for index, load in enumerate(loads):
        subpartition = ResultSubpartition(index, lambda _: None, lambda _: None)
        subpartition.attach_credit(SendCredit(max(0, -load)))
        for _ in range(max(0, load)):
            event = UserEvent("x")
            subpartition.add(EventBuffer(encode_event(event), data_type_of(event)))
        made.append(subpartition)
    return made


def selector_of(*loads: int, candidates: int = 4) -> AdaptiveRebalanceSelector:
    selector = AdaptiveRebalanceSelector(candidates)
    selector.setup(len(loads))
    selector.observe(subpartitions(*loads))
    return selector


def test_round_robin_among_equals() -> None:
    selector = selector_of(-2, -2, -2)
    assert [selector.select(b"") for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_most_credit_and_least_backlog_win() -> None:
    selector = selector_of(3, -1, -5, 0)
    assert [selector.select(b"") for _ in range(3)] == [2, 2, 2]


def test_only_the_next_few_are_compared() -> None:
    selector = selector_of(0, 0, 0, -9, candidates=2)
    assert [selector.select(b"") for _ in range(5)] == [0, 1, 3, 0, 1]


def test_a_local_consumer_counts_as_one_with_credit() -> None:
    (subpartition,) = subpartitions(0)
    assert subpartition.load_buffers() == 0
    fresh = ResultSubpartition(0, lambda _: None, lambda _: None)
    assert fresh.load_buffers() == -LOCAL_CREDIT


def test_two_candidates_are_the_fewest() -> None:
    with pytest.raises(ConfigError, match="candidates=1; give at least 2"):
        AdaptiveRebalanceSelector(1)


@given(st.lists(st.integers(-20, 20), min_size=1, max_size=6), st.integers(1, 2000), st.integers(1, 4000))
def test_an_array_is_dealt_in_shares_to_the_least_loaded(loads: list[int], count: int, width: int) -> None:
    chosen = selector_of(*loads).select_batch(np.zeros((count, width), dtype=np.uint8))
    if len(loads) == 1:
        assert chosen == 0
        return
    assert not isinstance(chosen, int)
    assert len(chosen) == count
    share = max(1, BATCH_SHARE_BYTES // width)
    expected = list(loads)
    for start in range(0, count, share):
        part = chosen[start : start + share]
        assert (part == part[0]).all()
        assert expected[part[0]] == min(expected)
        expected[part[0]] += 1


@pytest.mark.parametrize("batches", [False, True])
async def test_a_slow_consumer_gets_less_and_nothing_is_lost(autojump_clock: MockClock, batches: bool) -> None:
    got: Counter[int] = Counter()
    counts = [0, 0]

    async def read(gate: InputGate, index: int, pause_s: float) -> None:
        if batches:
            async for array in ArrayReader(gate, np.dtype("<i8")):
                got.update(array.tolist())
                counts[index] += len(array)
                await trio.sleep(pause_s)
        else:
            async for record in RecordReader(gate, format="int64"):
                got[record] += 1
                counts[index] += 1
                await trio.sleep(pause_s)

    async with (
        open_network("memory://p") as producer,
        open_network("memory://c") as consumer,
        trio.open_nursery() as nursery,
    ):
        partition = producer.create_partition("p", subpartitions=2)
        writer = RecordWriter(partition, selector=AdaptiveRebalanceSelector(), format="int64", buffer_timeout_s=0.001)
        for index, pause_s in enumerate((0.5, 0.0)):
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p", index)])
            nursery.start_soon(functools.partial(read, gate, index, pause_s))
        total = 400_000 if batches else 2000
        step = 20_000 if batches else 1
        for start in range(0, total, step):
            if batches:
                await writer.emit_batch(np.arange(start, start + step))
            else:
                await writer.emit(start)
            await trio.sleep(0.01)
        await writer.finish()
        await writer.wait_consumed()
        assert got == Counter(range(total))
        assert counts[0] < counts[1] / 2
