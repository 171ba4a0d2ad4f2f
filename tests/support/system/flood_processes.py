"""The processes of `test_floods`: who produces without end, who reads it honestly, and who floods the producer.

python flood_processes.py produce           prints its address, then the bytes it has sent, ten times a second
python flood_processes.py consume ADDRESS   reads partition `p`
python flood_processes.py flood ADDRESS KIND CONNECTIONS   prints `heard` when its greeting is taken, `ended` at its end
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from urllib.parse import urlsplit

import numpy as np
import trio

from netstack import ArrayReader, ChannelDescriptor, NetworkConfig, NetworkEnvironment, RecordWriter, open_network
from netstack.exchange.wire.codec_native import PROTOCOL_VERSION

SEGMENT = 32 * 1024
CONFIG = NetworkConfig(segment_size_bytes=SEGMENT, memory_bytes=256 * SEGMENT)

HEADER = struct.Struct(">IBBHIIII")
HELLO, OPEN, CREDIT, RESUME, ACKNOWLEDGE, CANCEL, PING, PONG = 0x6E, 2, 3, 4, 5, 6, 10, 11


def frame(kind: int, payload: bytes = b"", *, channel: int = 0) -> bytes:
    return HEADER.pack(len(payload), kind, 0, 0, channel, 0, 0, 0) + payload


def hello() -> bytes:
    return frame(HELLO, struct.pack(">8sHIIB", b"netstack", PROTOCOL_VERSION, SEGMENT, 1, 3) + b"raw")


def opening(channel: int, name: bytes) -> bytes:
    return frame(OPEN, struct.pack(">IIIB", 0, 1, 4, len(name)) + name, channel=channel)


async def produce() -> None:
    batch = np.arange(16 * 1024, dtype=np.int64)
    async with open_network("tcp://127.0.0.1:0", CONFIG) as manager:
        partition = manager.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, format="int64")
        print(manager.address, flush=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell, manager)
            while True:
                await writer.emit_batch(batch)


async def tell(manager: NetworkEnvironment) -> None:
    while True:
        await trio.sleep(0.1)
        print(manager.statistics().bytes_sent, time.monotonic(), flush=True)


async def consume(address: str) -> None:
    async with open_network("tcp://127.0.0.1:0", CONFIG) as manager:
        gate = await manager.open_gate([ChannelDescriptor(address, "p", 0)])
        async for _ in ArrayReader(gate, np.int64):
            pass


def block(kind: str) -> bytes:
    match kind:
        case "pings":
            return b"".join(frame(PING, struct.pack(">Q", number)) for number in range(20_000))
        case "pongs":
            return frame(PONG, struct.pack(">Q", 7)) * 20_000
        case "opens":
            return b"".join(opening(number, b"none") + frame(CANCEL, channel=number) for number in range(5_000))
        case "unknown":
            return b"".join(frame(RESUME, channel=1 + number) for number in range(20_000))
        case "credit":
            return frame(CREDIT, struct.pack(">II", 5, 1) * 2000) * 20
        case "garbage":
            return b"\xff" * 64
        case "nothing":
            return b""
    raise ValueError(kind)


def flood(address: str, kind: str) -> None:
    parts = urlsplit(address)
    data = block(kind)
    while True:
        with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port)) as peer:
            peer.sendall(hello() + frame(PING, struct.pack(">Q", 1)))
            if not is_answered(peer):
                continue
            print("heard", flush=True)
            threading.Thread(target=drain, args=[peer], daemon=True).start()
            if kind in ("garbage", "nothing"):
                peer.sendall(data)
            else:
                while True:
                    peer.sendall(data)
        print("ended", flush=True)


def is_answered(peer: socket.socket) -> bool:
    """Whether a ping was answered: then the greeting was taken."""
    received = peer.makefile("rb")
    while len(header := received.read(HEADER.size)) == HEADER.size:
        length, kind = struct.unpack_from(">IB", header)
        received.read(length)
        if kind == PONG:
            return True
    return False


def drain(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while peer.recv(1 << 16):
            pass


def main() -> None:
    match sys.argv[1:]:
        case ["produce"]:
            trio.run(produce)
        case ["consume", address]:
            trio.run(consume, address)
        case ["flood", address, kind, connections]:
            for _ in range(int(connections) - 1):
                threading.Thread(target=flood, args=[address, kind], daemon=True).start()
            flood(address, kind)


if __name__ == "__main__":
    main()
