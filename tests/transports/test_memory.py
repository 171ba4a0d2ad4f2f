"""What is particular to the memory transport: names of one process, and a capacity that is exactly known."""

from __future__ import annotations

import pytest
import trio

from netstack.base.errors import ConfigError, ConnectionLost
from netstack_transports.memory import CAPACITY_BYTES, MemoryTransport


@pytest.fixture
def memory() -> MemoryTransport:
    return MemoryTransport()


@pytest.mark.parametrize("url", ["memory://", "memory:///x"])
async def test_a_name_is_needed(memory: MemoryTransport, url: str) -> None:
    for attempt in (memory.listen, memory.connect):
        with pytest.raises(ConfigError, match="needs a name, such as memory://a"):
            await attempt(url)


async def test_the_capacity_is_exact(memory: MemoryTransport) -> None:
    listener = await memory.listen("memory://a")
    near = await memory.connect("memory://a")
    far = await listener.accept()
    assert near.try_send([bytes(CAPACITY_BYTES - 1), b"12"]) == CAPACITY_BYTES
    assert near.try_send([b"2"]) == 0
    window = memoryview(bytearray(10))
    assert far.try_receive_into([window]) == 10
    assert near.try_send([bytes(11)]) == 10


async def test_names_are_those_of_one_transport(memory: MemoryTransport) -> None:
    await memory.listen("memory://a")
    with pytest.raises(ConnectionLost, match="cannot reach memory://a: no listener"):
        await MemoryTransport().connect("memory://a")


async def test_who_was_not_accepted_reads_the_end(memory: MemoryTransport) -> None:
    listener = await memory.listen("memory://a")
    near = await memory.connect("memory://a")
    listener.close()
    await near.wait_readable()
    assert near.try_receive_into([memoryview(bytearray(1))]) == 0
    with pytest.raises(ConnectionLost, match="memory://a"):
        near.try_send([b"x"])


async def test_a_cancelled_listen_leaves_its_name_free() -> None:
    transport = MemoryTransport()
    with trio.CancelScope() as scope:
        scope.cancel()
        await transport.listen("memory://a")
    assert scope.cancelled_caught
    (await transport.listen("memory://a")).close()
