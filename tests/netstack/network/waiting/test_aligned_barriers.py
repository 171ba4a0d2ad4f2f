"""A reader with `aligns_barriers` returns each barrier once, between what was written before and after it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from network.network_environments import CONFIG, settle, url
from trio.testing import MockClock

from netstack.base.errors import ChannelFailed, LocalProtocolError
from netstack.base.events import Alignment, CancelCheckpointMarker, CheckpointBarrier, UserEvent
from netstack.base.ids import ChannelDescriptor
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.reader import ArrayReader, RecordReader
from netstack.network.writer import RecordWriter


class Stage:
    """Writers of one subpartition each, and a reader of all of them that aligns barriers."""

    def __init__(self, producer: NetworkEnvironment, channels: int) -> None:
        self.partitions = [producer.create_partition(f"p{index}", subpartitions=1) for index in range(channels)]
        self.writers = [RecordWriter(each, format="int64", buffer_timeout_s=0) for each in self.partitions]
        self.channels = [ChannelDescriptor(producer.address, f"p{index}") for index in range(channels)]
        self.elements: list[Any] = []
        self.errors: list[Exception] = []

    async def read_arrays(self, consumer: NetworkEnvironment) -> None:
        reader = ArrayReader(await consumer.open_gate(self.channels), "<i8", aligns_barriers=True)
        async for array in reader:
            assert bool(len(array)) is not bool(reader.events)
            self.elements += array.tolist() + [event for _, event in reader.events]
            reader.events.clear()

    async def read(self, consumer: NetworkEnvironment) -> None:
        reader = RecordReader[Any](await consumer.open_gate(self.channels), format="int64", aligns_barriers=True)
        while True:
            try:
                async for element in reader:
                    self.elements.append(element)
                return
            except ChannelFailed as error:
                self.errors.append(error)

    def taken(self) -> list[Any]:
        """What was read since the last call; barriers by their id, markers by minus their id."""
        elements, self.elements = self.elements, []
        return [
            ("barrier", each.checkpoint_id)
            if isinstance(each, CheckpointBarrier)
            else ("cancelled", each.checkpoint_id)
            if isinstance(each, CancelCheckpointMarker)
            else each
            for each in elements
        ]


async def play(
    producer: NetworkEnvironment,
    consumer: NetworkEnvironment,
    channels: int,
    test: Callable[[Stage], Awaitable[None]],
    *,
    arrays: bool = False,
) -> None:
    stage = Stage(producer, channels)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.read_arrays if arrays else stage.read, consumer)
        await settle()
        await test(stage)
        nursery.cancel_scope.cancel()


async def test_what_follows_a_barrier_waits_for_the_barriers_of_all_channels(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    async def test(stage: Stage) -> None:
        first, second = stage.writers
        await first.emit(1)
        await first.broadcast_event(CheckpointBarrier(7))
        await first.emit(2)
        await settle()
        assert stage.taken() == [1]
        await second.emit(3)
        await settle()
        assert stage.taken() == [3]
        await second.broadcast_event(UserEvent("seen"))
        await second.broadcast_event(CheckpointBarrier(7))
        await settle()
        assert stage.taken() == [UserEvent("seen"), ("barrier", 7), 2]

    await play(producer, consumer, 2, test)


async def test_the_end_of_a_channel_counts_as_its_barrier(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    async def test(stage: Stage) -> None:
        first, second = stage.writers
        await first.broadcast_event(CheckpointBarrier(1))
        await first.emit(2)
        await settle()
        assert stage.taken() == []
        await second.finish()
        await settle()
        assert stage.taken() == [("barrier", 1), 2]
        await first.broadcast_event(CheckpointBarrier(2))
        await settle()
        assert stage.taken() == [("barrier", 2)]

    await play(producer, consumer, 2, test)


@pytest.mark.parametrize("by_newer", [False, True])
async def test_a_checkpoint_that_is_cancelled_or_replaced_is_returned_as_a_marker(
    autojump_clock: MockClock, by_newer: bool, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    async def test(stage: Stage) -> None:
        first, second = stage.writers
        await first.broadcast_event(CheckpointBarrier(1))
        await first.emit(2)
        await second.broadcast_event(CheckpointBarrier(2) if by_newer else CancelCheckpointMarker(1))
        await settle()
        assert stage.taken() == [("cancelled", 1), 2]
        await first.broadcast_event(CheckpointBarrier(2))
        if not by_newer:
            await second.broadcast_event(CheckpointBarrier(2))
        await settle()
        assert stage.taken() == [("barrier", 2)]

    await play(producer, consumer, 2, test)


@pytest.mark.parametrize("failing", [0, 1])
async def test_after_the_failure_of_a_channel_the_others_go_on_without_barriers(
    autojump_clock: MockClock, failing: int, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    async def test(stage: Stage) -> None:
        for index, writer in enumerate(stage.writers):
            if index < 2:
                await writer.broadcast_event(CheckpointBarrier(1))
            await writer.emit(index)
        await settle()
        assert stage.taken() == [2]
        stage.partitions[failing].fail("its disk broke")
        await settle()
        assert len(stage.errors) == 1
        assert stage.taken() == [1 - failing]
        for index in {0, 1, 2} - {failing}:
            await stage.writers[index].broadcast_event(CheckpointBarrier(2))
            await stage.writers[index].emit(10 + index)
        await settle()
        assert sorted(stage.taken()) == sorted(10 + index for index in {0, 1, 2} - {failing})

    await play(producer, consumer, 3, test)


async def test_a_barrier_that_is_not_aligned_is_refused(
    autojump_clock: MockClock, producer: NetworkEnvironment, consumer: NetworkEnvironment
) -> None:
    stage = Stage(producer, 1)
    reader = RecordReader[Any](await consumer.open_gate(stage.channels), format="int64", aligns_barriers=True)
    await stage.writers[0].broadcast_event(CheckpointBarrier(3, alignment=Alignment.UNALIGNED), priority=True)
    with pytest.raises(LocalProtocolError, match="channel 0 delivered barrier 3, which is UNALIGNED"):
        await reader.__anext__()


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=6), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=40),
    st.booleans(),
)
def test_between_two_barriers_are_the_records_that_were_written_between_them(
    records: list[list[int]], turns: list[int], arrays: bool
) -> None:
    """`records[channel][k]` records are written on a channel between barriers k - 1 and k; channels go in any order."""
    checkpoints = max(map(len, records))
    plans = [
        iter([step for k in range(checkpoints) for step in [*[k] * (counts[k] if k < len(counts) else 0), None]])
        for counts in records
    ]

    async def main() -> None:
        async with open_network(url(), CONFIG) as producer, open_network(url(), CONFIG) as consumer:

            async def test(stage: Stage) -> None:
                done = [0] * len(records)

                async def step(channel: int) -> bool:
                    with trio.move_on_after(1):  # blocked behind its barrier, with all buffers full
                        for each in plans[channel]:
                            if each is None:
                                await stage.writers[channel].broadcast_event(CheckpointBarrier(done[channel]))
                                done[channel] += 1
                            else:
                                await stage.writers[channel].emit(each)
                            return True
                    return False

                for turn in turns:
                    await step(turn % len(records))
                for channel in range(len(records)):
                    while await step(channel):
                        pass
                await settle()
                expected: list[Any] = []
                for k in range(checkpoints):
                    expected += [k] * sum(counts[k] for counts in records if k < len(counts)) + [("barrier", k)]
                assert stage.taken() == expected

            await play(producer, consumer, len(records), test, arrays=arrays)

    trio.run(main, clock=MockClock(autojump_threshold=0))
