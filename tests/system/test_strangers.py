"""Strangers over real TCP at a TaskManager that wants a shared secret: nobody gets in, nobody is in the way.

The peers here are raw sockets; they compute proofs from section 15 of `exchange/wire/SPEC.md` and share no code with
what they attack.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import socket
import struct
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import pytest
import trio

from netstack import (
    AuthenticationFailed,
    ChannelDescriptor,
    NetworkConfig,
    NetworkEnvironment,
    RecordReader,
    RecordWriter,
    Secret,
    open_network,
)

KEY = b"correct horse battery staple"
CONFIG = NetworkConfig(segment_size_bytes=1024, memory_bytes=64 * 1024, heartbeat_interval_s=None)
ANY_PORT = "tcp://127.0.0.1:0"
MAGIC = b"NSA2"
HELLO = struct.pack(">IBBHIIII8sHIIB", 22, 0x6E, 0, 0, 0, 0, 0, 0, b"netstack", 3, 1024, 1, 3) + b"raw"


def proof(role: bytes, first: bytes, second: bytes, victim: NetworkEnvironment, key: bytes = KEY) -> bytes:
    about = victim.address.removeprefix("tcp://").encode() + b"\0"
    return hmac.new(key, b"netstack " + role + first + second + about, hashlib.sha256).digest()


async def dial(manager: NetworkEnvironment) -> trio.SocketStream:
    port = urlsplit(manager.address).port
    assert port is not None
    return await trio.open_tcp_stream("127.0.0.1", port)


async def receive(stream: trio.SocketStream, count: int) -> bytes:
    """That many bytes, fewer if the stream ends."""
    data = b""
    while len(data) < count and (more := await stream.receive_some(count - len(data))):
        data += more
    return data


async def rest(stream: trio.SocketStream) -> bytes:
    """Everything until the end, however it comes."""
    data = b""
    try:
        while more := await stream.receive_some(4096):
            data += more
    except trio.BrokenResourceError:
        return data
    return data


async def read_a_record(producer: NetworkEnvironment, consumer: NetworkEnvironment, name: str) -> None:
    """An honest peer is served."""
    writer = RecordWriter(producer.create_partition(name, subpartitions=1), buffer_timeout_s=0)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
    await writer.emit(b"x")
    await writer.finish()
    assert [record async for record in RecordReader(gate)] == [b"x"]
    gate.close()


def relay_to(victim: NetworkEnvironment) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Hands every byte to and fro."""

    async def relay(stream: trio.SocketStream) -> None:
        async with stream, await dial(victim) as other, trio.open_nursery() as nursery:

            async def copy(source: trio.SocketStream, target: trio.SocketStream) -> None:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    async for data in source:
                        await target.send_all(data)
                nursery.cancel_scope.cancel()

            nursery.start_soon(copy, stream, other)
            nursery.start_soon(copy, other, stream)

    return relay


async def with_victim(attack: Callable[[NetworkEnvironment], Awaitable[None]]) -> None:
    """An honest peer before and after an attack."""
    secret = Secret(KEY)
    async with (
        open_network(ANY_PORT, CONFIG, secret=secret) as victim,
        open_network(ANY_PORT, CONFIG, secret=secret) as honest,
    ):
        await read_a_record(victim, honest, "before")
        await attack(victim)
        await read_a_record(victim, honest, "after")


async def test_who_knows_the_secret_gets_in_also_byte_by_byte_and_all_at_once() -> None:
    async def attack(victim: NetworkEnvironment) -> None:
        for piece in (1, 1000):
            async with await dial(victim) as stream:
                stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                nonce, greeting = bytes([piece % 256]) * 32, await receive(stream, 36)
                theirs = greeting[4:]
                assert greeting[:4] == MAGIC
                # The hello comes sooner than the protocol allows: not a byte of it may get lost.
                message = MAGIC + nonce + proof(b"dialler", nonce, theirs, victim) + HELLO
                for start in range(0, len(message), piece):
                    await stream.send_all(message[start : start + piece])
                assert await receive(stream, 32) == proof(b"acceptor", theirs, nonce, victim)
                answer = await receive(stream, 32)
                assert answer[24:] == b"netstack"

    await with_victim(attack)


async def test_nothing_but_a_greeting_is_heard_without_the_secret() -> None:
    async def attack(victim: NetworkEnvironment) -> None:
        nonce = bytes(32)
        for message in (
            HELLO,
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(1000),
            MAGIC + nonce + bytes(32) + HELLO,
            MAGIC + nonce + proof(b"dialler", nonce, nonce, victim) + HELLO,
            MAGIC + nonce + proof(b"acceptor", nonce, nonce, victim, b"another key, long enough") + HELLO,
        ):
            async with await dial(victim) as stream:
                await stream.send_all(message)
                received = await rest(stream)
                assert received[:4] == MAGIC[: len(received)]
                assert len(received) <= 36
        statistics = victim.statistics().admission
        assert statistics is not None
        assert sum(statistics.refused.values()) == 6

    await with_victim(attack)


async def test_its_own_words_and_old_ones_do_not_help() -> None:
    async def attack(victim: NetworkEnvironment) -> None:
        nonces = set()
        for _ in range(3):
            async with await dial(victim) as stream, await dial(victim) as other:
                theirs, others = (await receive(stream, 36))[4:], (await receive(other, 36))[4:]
                nonces |= {theirs, others}
                await other.send_all(MAGIC + theirs + proof(b"dialler", theirs, others, victim))
                answer = await receive(other, 32)  # what it says to who belongs does not serve elsewhere
                assert answer == proof(b"acceptor", others, theirs, victim)
                await stream.send_all(MAGIC + others + answer)
                assert await rest(stream) == b""
        assert len(nonces) == 6

    await with_victim(attack)


async def test_hundreds_that_say_nothing_are_in_nobodys_way() -> None:
    async def attack(victim: NetworkEnvironment) -> None:
        silent = []
        for _ in range(300):
            silent.append(await dial(victim))
        statistics = victim.statistics().admission
        assert statistics is not None
        assert statistics.unproven <= 64
        victim_and_honest_go_on.append(silent)

    victim_and_honest_go_on: list[list[trio.SocketStream]] = []
    await with_victim(attack)
    for stream in victim_and_honest_go_on[0]:
        await stream.aclose()


@pytest.mark.parametrize("message", [0, 20, 36, 60])
def test_a_reset_in_the_middle_is_the_strangers_own_business(message: int) -> None:
    async def attack(victim: NetworkEnvironment) -> None:
        stream = await dial(victim)
        await stream.send_all((MAGIC + bytes(64))[:message])
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()

    async def main() -> None:
        with trio.fail_after(120):
            await with_victim(attack)

    trio.run(main)


async def test_who_is_dialled_by_mistake_cannot_pass_the_proof_on() -> None:
    """A relay that hands every byte to and fro is neither end: it was dialled at its own address."""

    async def attack(victim: NetworkEnvironment) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(functools.partial(trio.serve_listeners, relay_to(victim), [listener]))
            async with open_network(ANY_PORT, CONFIG, secret=Secret(KEY)) as honest:
                with pytest.raises(AuthenticationFailed):
                    await honest.open_gate([ChannelDescriptor(f"tcp://127.0.0.1:{port}", "anything")])
            nursery.cancel_scope.cancel()

    await with_victim(attack)


@pytest.mark.parametrize("known", [True, False])
def test_something_that_translates_addresses_is_named(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relay, where it is meant: such as a port of a host that leads into a container."""

    async def main() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        monkeypatch.setenv("NETSTACK_KNOWN_AS", f"10.1.1.1:1, 127.0.0.1:{port if known else 1}")
        with trio.fail_after(120):
            async with (
                open_network(ANY_PORT, CONFIG, secret=Secret(KEY)) as victim,
                open_network(ANY_PORT, CONFIG, secret=Secret(KEY)) as honest,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(functools.partial(trio.serve_listeners, relay_to(victim), [listener]))
                victim.create_partition("p", subpartitions=1)
                opened, why = True, ""
                try:
                    (await honest.open_gate([ChannelDescriptor(f"tcp://127.0.0.1:{port}", "p")])).close()
                except AuthenticationFailed as error:
                    opened, why = False, str(error)
                assert opened == known
                assert known or f"add 127.0.0.1:{port} to NETSTACK_KNOWN_AS" in why
                nursery.cancel_scope.cancel()

    trio.run(main)
