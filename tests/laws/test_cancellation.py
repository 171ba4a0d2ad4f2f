"""Cancelling any call at any wait loses no record, tears none, and leaves no buffer and no connection behind."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from trio_runs import run_virtual

from netstack.base.config import NetworkConfig
from netstack.base.errors import NetstackError
from netstack.base.events import UserEvent
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.outbound.batches import LEND_BYTES
from netstack.exchange.outbound.selector import BroadcastSelector, RebalanceSelector
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.network.handles import InputGate
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

CONFIG = NetworkConfig(
    segment_size_bytes=256,
    memory_bytes=64 * 256,
    exclusive_buffers_per_channel=1,
    floating_buffers_per_gate=1,
    max_overdraft_buffers_per_partition=0,
    heartbeat_interval_s=None,
)
HEADER = struct.Struct(">II")

names = itertools.count()


def run(test: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Runs an async test in virtual time."""
    return run_virtual(test, *arguments)


def record_of(operation: int, index: int, size: int) -> bytes:
    body = HEADER.pack(operation, index)
    return body + bytes((operation * 7 + index + position) % 251 for position in range(size - len(body)))


class Operation:
    """One call of the writer, and the time it is given."""

    def __init__(self, number: int, kind: str, count: int, size: int, patience_s: float) -> None:
        self.number = number
        self.kind = kind
        self.count = count if kind == "batch" else 1
        self.size = size
        self.patience_s = patience_s
        self.completed = False

    def records(self) -> list[bytes]:
        return [record_of(self.number, index, self.size) for index in range(self.count)]

    async def run(self, writer: RecordWriter) -> None:
        with trio.move_on_after(self.patience_s):
            match self.kind:
                case "emit":
                    await writer.emit(self.records()[0])
                case "batch":
                    array = np.frombuffer(b"".join(self.records()), np.uint8).reshape(self.count, self.size).copy()
                    try:
                        await writer.emit_batch(array)
                    finally:
                        array[:] = 0xEE
                case "event":
                    await writer.broadcast_event(UserEvent(str(self.number)))
                case "flush":
                    await writer.flush()
            self.completed = True


operations = st.lists(
    st.tuples(
        st.sampled_from(["emit", "emit", "batch", "batch", "event", "flush"]),
        st.integers(1, 40),
        st.sampled_from([8, 20, 100, 700, 2000, LEND_BYTES]),
        st.sampled_from([0.0, 0.5, 1.5, 2.5, 7.5, 1e6]),
    ),
    min_size=4,
    max_size=14,
)


@given(operations, st.sampled_from([RebalanceSelector, BroadcastSelector]), st.booleans(), st.sampled_from([None, 2]))
def test_a_cancelled_write_tears_nothing(
    plan: list[tuple[str, int, int, float]], selector: Callable[[], Any], local: bool, quota: int | None
) -> None:
    config = replace(CONFIG, max_buffers_per_channel=quota)
    work = [
        Operation(number, kind, min(count, 3) if size > 1000 else count, size, patience)
        for number, (kind, count, size, patience) in enumerate(plan)
    ]
    received: list[list[Any]] = [[], []]

    async def scenario() -> None:
        number = next(names)
        async with (
            open_network(f"memory://p{number}", config) as producer,
            open_network(f"memory://c{number}", config) as consumer,
        ):
            partition = producer.create_partition("p", subpartitions=2)
            writer = RecordWriter(partition, selector=selector(), buffer_timeout_s=0.25)
            at = producer if local else consumer
            gate = await at.open_gate([ChannelDescriptor(producer.address, "p", index) for index in (0, 1)])

            async def read_slowly() -> None:
                """About a buffer a second, so that there is a wait for every deadline to hit."""
                reader = RecordReader(gate)
                while (elements := await reader.next_records()) is not None:
                    received[reader.channel_index] += elements
                    await trio.sleep(1)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(read_slowly)
                for operation in work:
                    await operation.run(writer)
                await writer.finish()
                await writer.wait_consumed()
            gate.close()
            assert partition.is_released
            await trio.testing.wait_all_tasks_blocked()
            for manager in (producer, consumer):
                statistics = manager.statistics()
                assert statistics.pool.lent_segments == 0
                assert (statistics.accepted, statistics.dialled, statistics.partitions) == ((), (), ())

    run(scenario)
    for channel in (0, 1):
        check_channel(work, received[channel])
    if selector is BroadcastSelector:
        assert received[0] == received[1]
        return
    for operation in work:
        if operation.completed and operation.kind in ("emit", "batch"):
            actual = [element for part in received for element in part if isinstance(element, bytes)]
            assert all(record in actual for record in operation.records())


def check_channel(work: list[Operation], elements: list[Any]) -> None:
    """Whole records in the order they were written; of a cancelled call the first ones only."""
    place = (-1, -1)
    for element in elements:
        if isinstance(element, UserEvent):
            number, index = int(element.name), 0
        else:
            number, index = HEADER.unpack_from(element)
            assert element == record_of(number, index, work[number].size), "a record is torn"
        assert (number, index) > place, "records were repeated or swapped"
        place = (number, index)
    for operation in work:
        if operation.kind == "event" and operation.completed:
            assert UserEvent(str(operation.number)) in elements


@pytest.mark.parametrize("what", ["event", "finish"])
def test_a_cancelled_event_was_not_sent(what: str) -> None:
    """The promise of `broadcast_event` and `finish`: after a cancellation they can be called again."""

    async def scenario() -> None:
        async with open_network(f"memory://p{next(names)}", CONFIG) as manager:
            partition = manager.create_partition("p", subpartitions=1)
            writer = RecordWriter(partition)
            with trio.CancelScope() as scope:
                scope.cancel()
                if what == "event":
                    await writer.broadcast_event(UserEvent("e"))
                else:
                    await writer.finish()
            sent = partition.statistics().events
            assert sent == 0 if scope.cancelled_caught else sent > 0
            if what == "event":
                await writer.broadcast_event(UserEvent("e"))
            else:
                await writer.finish()
            assert partition.statistics().events == (1 if what == "event" else 2)

    run(scenario)


@given(st.lists(st.sampled_from([0.0, 0.1, 0.6, 1.1, 3.0]), min_size=1, max_size=8))
def test_a_cancelled_read_loses_nothing(patience: list[float]) -> None:
    async def scenario() -> None:
        number = next(names)
        async with (
            open_network(f"memory://p{number}", CONFIG) as producer,
            open_network(f"memory://c{number}", CONFIG) as consumer,
        ):
            partition = producer.create_partition("p", subpartitions=1)
            writer = RecordWriter(partition, buffer_timeout_s=0)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            reader = RecordReader(gate)
            got: list[bytes] = []
            cancelled = 0

            async def write_slowly() -> None:
                for index in range(20):
                    await writer.emit(b"%d" % index)
                    await trio.sleep(0.5)
                await writer.finish()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(write_slowly)
                turns = itertools.cycle([*patience, 10.0])
                while True:
                    with trio.move_on_after(next(turns)) as scope:
                        try:
                            got.append(await reader.__anext__())
                        except StopAsyncIteration:
                            break
                    cancelled += scope.cancelled_caught
            assert got == [b"%d" % index for index in range(20)]
            assert cancelled > 0 or min(patience) > 0.5

    run(scenario)


def quiet_manager(manager: NetworkEnvironment) -> None:
    statistics = manager.statistics()
    assert statistics.gates == ()
    assert statistics.pool.lent_segments == 0
    assert statistics.dialled == ()
    assert statistics.accepted == ()


@pytest.mark.parametrize("ticks", range(12))
def test_a_gate_whose_opening_is_cancelled_leaves_nothing_open(ticks: int) -> None:
    async def scenario() -> None:
        number = next(names)
        async with (
            open_network(f"memory://p{number}", CONFIG) as producer,
            open_network(f"memory://c{number}", CONFIG) as consumer,
        ):
            producer.create_partition("p", subpartitions=2)
            gate: InputGate | None = None
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()

                async def cancel_later() -> None:
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(cancel_later)
                with scope:
                    gate = await consumer.open_gate(
                        [ChannelDescriptor(producer.address, "p", 0), ChannelDescriptor(producer.address, "p", 1)]
                    )
            if gate is None:
                await trio.testing.wait_all_tasks_blocked()
                quiet_manager(consumer)
                assert producer.statistics().accepted == ()
            else:
                gate.close()
                await trio.testing.wait_all_tasks_blocked()
                quiet_manager(consumer)

    run(scenario)


@pytest.mark.parametrize("ticks", range(0, 60, 3))
def test_a_cancelled_program_ends_at_any_moment(ticks: int) -> None:
    """The block of a TaskManager is cancelled while records flow: it ends at once, and without another error."""

    async def scenario() -> None:
        number = next(names)
        managers: list[NetworkEnvironment] = []
        async with trio.open_nursery() as nursery:

            async def program() -> None:
                async with (
                    open_network(f"memory://p{number}", CONFIG) as producer,
                    open_network(f"memory://c{number}", CONFIG) as consumer,
                ):
                    managers[:] = [producer, consumer]
                    partition = producer.create_partition("p", subpartitions=1)
                    writer = RecordWriter(partition, buffer_timeout_s=0)
                    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])

                    async def read() -> None:
                        async for _ in RecordReader(gate):
                            await trio.lowlevel.checkpoint()

                    async with trio.open_nursery() as inner:
                        inner.start_soon(read)
                        while True:
                            await writer.emit(bytes(100))
                            await trio.lowlevel.checkpoint()

            nursery.start_soon(program)
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        for manager in managers:
            assert manager.statistics().pool.lent_segments == 0
            with pytest.raises(NetstackError, match="closed"):
                manager.create_partition("late", subpartitions=1)

    run(scenario)
