"""Raw sockets as broken and hostile peers, and a victim that must not notice.

The peers write their frames with `struct`, from the tables of `exchange/wire/SPEC.md`: they share no code with what
they attack. Around every attack an honest TaskManager reads from the victim and writes to it; `victim` checks that it
never notices, and that buffers and file descriptors are all back afterwards.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio
import trio.testing

from netstack import (
    ChannelDescriptor,
    ErrorCode,
    NetworkConfig,
    NetworkEnvironment,
    RecordReader,
    RecordWriter,
    open_network,
)
from netstack.network.handles import InputGate

SEGMENT = 1024
CONFIG = NetworkConfig(
    segment_size_bytes=SEGMENT,
    memory_bytes=128 * SEGMENT,
    floating_buffers_per_gate=4,
    heartbeat_interval_s=None,
)
ANY_PORT = "tcp://127.0.0.1:0"
SHORT_S = 0.2  # timeouts that have to pass here, and still suffice for the honest on a busy machine
# The wire, once more.

HEADER = struct.Struct(">IBBHIIII")
HELLO, BUFFER, OPEN, CREDIT, RESUME, ACKNOWLEDGE, CANCEL = 0x6E, 1, 2, 3, 4, 5, 6
BACKLOG, CHANNEL_ERROR, CONNECTION_ERROR, PING, PONG, GOODBYE = 7, 8, 9, 10, 11, 12
DATA, EVENT, PRIORITY, ALIGNED, END_OF_DATA, END_OF_PARTITION = 1, 2, 3, 4, 9, 10


class Got(NamedTuple):
    """A frame that arrived."""

    kind: int
    data_type: int
    channel: int
    sequence: int
    backlog: int
    payload: bytes

    @property
    def error(self) -> tuple[ErrorCode, str]:
        return ErrorCode(int.from_bytes(self.payload[:2], "big")), self.payload[2:].decode()


def frame(kind: int, payload: bytes = b"", *, channel: int = 0, length: int | None = None) -> bytes:
    return HEADER.pack(len(payload) if length is None else length, kind, 0, 0, channel, 0, 0, 0) + payload


def buffer(
    channel: int, sequence: int, payload: bytes, data_type: int = DATA, *, backlog: int = 0, checksum: int = 0
) -> bytes:
    return HEADER.pack(len(payload), BUFFER, data_type, 0, channel, sequence, backlog, checksum) + payload


def hello(version: int = 4, segment: int = SEGMENT, features: int = 1) -> bytes:
    return frame(HELLO, struct.pack(">8sHIIB", b"netstack", version, segment, features, 3) + b"raw")


def opening(channel: int, name: str, subpartition: int = 0, credit: int = 100) -> bytes:
    return frame(OPEN, struct.pack(">IIIB", subpartition, 1, credit, len(name)) + name.encode(), channel=channel)


def credit(channel: int, count: int) -> bytes:
    return frame(CREDIT, struct.pack(">II", channel, count))


def record(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


class Raw:
    """One end of a TCP stream that follows no rules."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._received = bytearray()

    async def send(self, *parts: bytes) -> None:
        await self.stream.send_all(b"".join(parts))

    async def _fill(self, size: int) -> bool:
        while len(self._received) < size:
            part = await self.stream.receive_some()
            if not part:
                return False
            self._received += part
        return True

    async def next(self) -> Got | None:
        """The next frame; None at the end of the stream."""
        if not await self._fill(HEADER.size):
            assert not self._received
            return None
        length, kind, data_type, reserved, channel, sequence, backlog, _ = HEADER.unpack_from(self._received)
        assert await self._fill(HEADER.size + length)
        payload = bytes(self._received[HEADER.size : HEADER.size + length])
        del self._received[: HEADER.size + length]
        assert reserved == 0
        return Got(kind, data_type, channel, sequence, backlog, payload)

    async def expect(self, kind: int, channel: int = 0) -> Got:
        """The next frame of this kind and channel; earlier ones of other channels are skipped, none may end it."""
        while True:
            got = await self.next()
            assert got is not None, f"the stream ended before a frame of kind {kind}"
            if (got.kind, got.channel) == (kind, channel):
                return got
            assert got.kind != CONNECTION_ERROR, got.error
            assert got.channel != channel or got.kind in (HELLO, BUFFER, CREDIT), got

    async def connection_error(self) -> tuple[ErrorCode, str]:
        """Why the victim closes the connection, which it then does."""
        while (got := await self.next()) is not None:
            if got.kind == CONNECTION_ERROR:
                assert await self.next() is None
                return got.error
        raise AssertionError("the stream ended without a reason")

    async def until_closed(self) -> list[Got]:
        """Every frame up to the end, or the reset, of the stream."""
        frames = []
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while (got := await self.next()) is not None:
                frames.append(got)
        return frames

    def reset(self) -> None:
        """Closes with a reset instead of an end."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.stream.socket.close()


# The rig.


def descriptors() -> set[tuple[str, str]]:
    """The number of each open file descriptor, with what it is."""
    opened = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that lists them
            opened.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return opened


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what real sockets do in their own time."""
    while not condition():
        await trio.testing.wait_all_tasks_blocked(0.001)


def lent(manager: NetworkEnvironment) -> int:
    return manager.statistics().pool.lent_segments


async def write(manager: NetworkEnvironment, name: str, records: list[bytes]) -> None:
    writer = RecordWriter(manager.create_partition(name, subpartitions=1), buffer_timeout_s=0)
    for item in records:
        await writer.emit(item)
    await writer.finish()
    await writer.wait_consumed()


async def read(gate: InputGate) -> list[bytes]:
    with contextlib.closing(gate):
        return [item async for item in RecordReader(gate)]


RECORDS = [b"%d" % number * 50 for number in range(40)]


@asynccontextmanager
async def victim(config: NetworkConfig = CONFIG) -> AsyncIterator[NetworkEnvironment]:
    """A TaskManager to attack; an honest one reads from it and writes to it before and after."""
    async with open_network(ANY_PORT, config) as manager, open_network(ANY_PORT, config) as honest:
        first = manager.create_partition("from the victim", subpartitions=1)
        second = honest.create_partition("to the victim", subpartitions=1)
        reading = await honest.open_gate([ChannelDescriptor(manager.address, "from the victim")])
        writing = await manager.open_gate([ChannelDescriptor(honest.address, "to the victim")])
        assert len(manager.statistics().accepted) == 1
        yield manager
        await until(lambda: len(manager.statistics().accepted) == 1)
        for partition, gate in ((first, reading), (second, writing)):
            writer = RecordWriter(partition, buffer_timeout_s=0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_check_delivery, gate)
                for item in RECORDS:
                    await writer.emit(item)
                await writer.finish()
                await writer.wait_consumed()
        await until(lambda: lent(manager) == lent(honest) == 0)


async def _check_delivery(gate: InputGate) -> None:
    assert await read(gate) == RECORDS


@asynccontextmanager
async def dialled(manager: NetworkEnvironment, *first: bytes) -> AsyncIterator[Raw]:
    """A raw consumer of the victim, which has said `first`."""
    host, port = manager.address.removeprefix("tcp://").rsplit(":", 1)
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        raw = Raw(stream)
        await raw.send(*first)
        yield raw


def names_peer(text: str) -> None:
    """The object an error is about: who is at the other end."""
    assert "tcp://127.0.0.1:" in text, text


FOREIGN = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403035f") + bytes(32),
    "ZMTP": bytes.fromhex("ff00000000000000017f0300") + bytes(52),
    "Flink": bytes.fromhex("0000002abadc0ffe02") + bytes(33),
    "another protocol": random.Random(7).randbytes(200),
}


class Server:
    """A raw producer: a listening socket that accepts and then follows no rules."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self.address = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"

    async def accept(self) -> Raw:
        return Raw(await self._listener.accept())


@asynccontextmanager
async def server() -> AsyncIterator[Server]:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        yield Server(listener)
