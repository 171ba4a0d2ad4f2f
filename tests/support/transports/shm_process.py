"""A process at the other end of shared memory: `python shm_process.py URL ROLE`.

Roles: `echo` sends back what it reads, until the end; `write` sends "last words" and does no more;
`exchange SEED MESSAGES` sends a stream of messages and checks the peer's, with pauses.
"""

from __future__ import annotations

import random
import sys
import time

import trio

from netstack.base.transport import ByteStream, transport_for
from netstack.testing.contracts import send_all

PERIOD = bytes(range(251)) * 2000


async def echo(stream: ByteStream) -> None:
    window = memoryview(bytearray(100_000))
    while True:
        count = stream.try_receive_into([window])
        if count is None:
            await stream.wait_readable()
        elif count:
            await send_all(stream, [bytes(window[:count])])
        else:
            stream.send_eof()
            return


async def exchange(stream: ByteStream, seed: int, messages: int) -> None:
    """Both directions at once: many small messages, a few large ones, pauses about as long as a wake-up takes.

    Every byte is checked. Each end tells the other how much to expect by ending its direction.
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, stream, random.Random(seed), messages)
        nursery.start_soon(_check, stream, random.Random(-seed))


async def _send(stream: ByteStream, chance: random.Random, messages: int) -> None:
    sent = 0
    for _ in range(messages):
        size = chance.randrange(1, 200) if chance.random() < 0.999 else chance.randrange(100_000, 400_000)
        await send_all(stream, [PERIOD[sent % 251 :][:size]])
        sent += size
        await _pause(chance)
    stream.send_eof()


async def _check(stream: ByteStream, chance: random.Random) -> None:
    received = 0
    slab = memoryview(bytearray(300_000))
    while True:
        count = stream.try_receive_into([slab[: chance.choice((1, 100, 5_000, 300_000))]])
        if count is None:
            await stream.wait_readable()
            continue
        if not count:
            return
        if slab[:count] != PERIOD[received % 251 :][:count]:
            raise AssertionError(f"other bytes than were sent after {received}")
        received += count
        await _pause(chance)


async def _pause(chance: random.Random) -> None:
    draw = chance.random()
    if draw < 0.3:
        await trio.lowlevel.checkpoint()
    elif draw < 0.4:
        until = time.perf_counter() + chance.random() * 60e-6
        while time.perf_counter() < until:
            pass
    elif draw < 0.402:
        await trio.sleep(0.001)


async def main(url: str, role: str, *rest: str) -> None:
    stream = await transport_for(url).connect(url)
    try:
        if role == "echo":
            await echo(stream)
        elif role == "write":
            await send_all(stream, [b"last words"])
            await trio.sleep_forever()
        else:
            await exchange(stream, int(rest[0]), int(rest[1]))
    finally:
        stream.close()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
