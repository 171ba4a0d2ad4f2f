"""`with` blocks of gates, readers and writers: closed, finished or failed, and a word about what nobody has read."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

import netstack
from netstack.exchange.inbound.closing import UnreadRecordsWarning
from netstack.exchange.inbound.gate import SingleInputGate


@asynccontextmanager
async def written(words: int, *, failing: bool = False) -> AsyncIterator[SingleInputGate]:
    """A gate whose producer writes so many words inside a `with` block."""
    async with netstack.open_network("memory://leaving") as manager:
        partition = manager.create_partition("words", subpartitions=1)
        gate = await manager.open_gate([netstack.ChannelDescriptor(manager.address, "words")])
        try:
            async with netstack.RecordWriter[str](partition, format="str", buffer_timeout_s=0) as writer:
                for number in range(words):
                    await writer.emit(f"word {number}")
                if failing:
                    raise ValueError("no more paper")
        except ValueError:
            assert failing
        yield gate


async def test_a_writer_finishes_at_the_end_of_its_block() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with written(3) as gate:
            with netstack.RecordReader[str](gate, format="str") as reader:
                assert [word async for word in reader] == ["word 0", "word 1", "word 2"]
            assert gate._engine.is_closed


async def test_a_block_that_raises_is_no_end_of_the_data() -> None:
    async with written(2, failing=True) as gate:
        with pytest.raises(netstack.ChannelFailed, match="its producer stopped: ValueError: no more paper"):
            async for _ in netstack.RecordReader(gate, format="str"):
                pass


@pytest.mark.parametrize(
    ("reader_of", "left"),
    [
        (lambda gate: gate, "1 of 1 channels"),
        (lambda gate: netstack.RecordReader(gate, format="str"), "1 of 1 channels"),
        (lambda gate: netstack.ArrayReader(gate, record_bytes=10), "1 of 1 channels"),
    ],
)
async def test_leaving_unread_records_warns(reader_of: Callable[[SingleInputGate], SingleInputGate], left: str) -> None:
    async with written(3) as gate:
        with pytest.warns(UnreadRecordsWarning, match=f"left {left}.*; read until .*close"), reader_of(gate):
            pass
        assert gate._engine.is_closed


async def test_what_has_come_and_was_not_handed_out_is_counted() -> None:
    async with netstack.open_network("memory://leaving") as manager:
        partition = manager.create_partition("words", subpartitions=1)
        gate = await manager.open_gate([netstack.ChannelDescriptor(manager.address, "words")])
        async with netstack.RecordWriter[str](partition, format="str") as writer:
            for _ in range(3):
                await writer.emit("word")
        reader = netstack.RecordReader(gate, format="str")
        with pytest.warns(UnreadRecordsWarning, match="left 2 records that were not read"), reader:
            await anext(reader)


@pytest.mark.parametrize("how", ["closed", "raised", "cancelled"])
async def test_who_means_to_leave_is_not_warned(how: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with written(3) as gate:
            with trio.CancelScope() as scope:
                try:
                    with netstack.RecordReader(gate, format="str") as reader:
                        await anext(reader)
                        if how == "closed":
                            reader.close()
                        elif how == "raised":
                            raise KeyError("meant")
                        else:
                            scope.cancel()
                            await trio.lowlevel.checkpoint()
                except KeyError:
                    assert how == "raised"
            assert gate._engine.is_closed


async def test_a_union_tells_what_is_left_of_each_gate() -> None:
    async with netstack.open_network("memory://leaving") as manager:
        gates = []
        for name in ("a", "b"):
            manager.create_partition(name, subpartitions=2)
            channels = [netstack.ChannelDescriptor(manager.address, name, subpartition=index) for index in range(2)]
            gates.append(await manager.open_gate(channels))
        reported = pytest.warns(UnreadRecordsWarning, match="left 2 of 2 channels .*; 2 of 2 channels")
        with reported, netstack.UnionInputGate(gates):
            pass
        assert all(gate._engine.is_closed for gate in gates)
