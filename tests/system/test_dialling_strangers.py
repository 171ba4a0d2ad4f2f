"""Dialling whoever does not fit, and addresses that cannot be had: the error says so, nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing
from system.hostile_rig import (
    ANY_PORT,
    CONFIG,
    CONNECTION_ERROR,
    FOREIGN,
    RECORDS,
    SHORT_S,
    Raw,
    frame,
    hello,
    lent,
    read,
    server,
    until,
    victim,
    write,
)

from netstack import (
    ChannelDescriptor,
    ConfigError,
    ConnectionLost,
    ErrorCode,
    InsufficientBuffers,
    NetworkEnvironment,
    RemoteProtocolError,
    open_network,
)
from netstack.base.errors import ProducerUnreachable
from netstack.exchange.buffer.requirements import LANDING_SEGMENTS

pytestmark = pytest.mark.usefixtures("every_descriptor_back")

Failure = TypeVar("Failure", ConnectionLost, ProducerUnreachable, RemoteProtocolError)


async def fails_to_open(manager: NetworkEnvironment, address: str, kind: type[Failure]) -> Failure:
    with pytest.raises(kind) as caught:
        await manager.open_gate([ChannelDescriptor(address, "p")])
    assert address in str(caught.value)
    return caught.value


@pytest.mark.parametrize("protocol", [*FOREIGN, "SMTP"])
async def test_dialling_another_protocol(protocol: str) -> None:
    greeting = FOREIGN.get(protocol, b"220 mail.example ESMTP\r\n")
    async with victim() as manager, server() as hostile, trio.open_nursery() as nursery:

        async def answer() -> None:
            async with (await hostile.accept()).stream as stream:
                await stream.send_all(greeting)
                code, _ = await Raw(stream).connection_error()
                assert code is ErrorCode.NOT_NETSTACK

        nursery.start_soon(answer)
        error = await fails_to_open(manager, hostile.address, RemoteProtocolError)
        assert error.code is ErrorCode.NOT_NETSTACK
        assert "check the address" in str(error)


@pytest.mark.parametrize(
    ("first", "expected", "hint"),
    [
        (hello(version=9), ErrorCode.VERSION_MISMATCH, "same netstack release"),
        (hello(segment=512), ErrorCode.SEGMENT_SIZE_MISMATCH, "set segment_size_bytes"),
        (
            hello() + frame(CONNECTION_ERROR, b"\x00\x13no room"),
            ErrorCode.INTERNAL,
            "closed the connection: no room",
        ),
    ],
)
async def test_dialling_who_does_not_fit(first: bytes, expected: ErrorCode, hint: str) -> None:
    async with victim() as manager, server() as hostile, trio.open_nursery() as nursery:

        async def answer() -> None:
            async with (await hostile.accept()).stream as stream:
                await stream.send_all(first)
                await stream.send_eof()
                await Raw(stream).until_closed()

        nursery.start_soon(answer)
        error = await fails_to_open(manager, hostile.address, RemoteProtocolError)
        assert error.code is expected
        assert hint in str(error)


@pytest.mark.parametrize(
    ("first", "hint"), [(b"", "in state greeting"), (hello()[:30], "middle of a frame")], ids=["nothing", "half"]
)
async def test_dialling_a_peer_that_ends_before_its_hello(first: bytes, hint: str) -> None:
    async with victim() as manager, server() as hostile, trio.open_nursery() as nursery:

        async def answer() -> None:
            async with (await hostile.accept()).stream as stream:
                await stream.send_all(first)
                await stream.send_eof()
                await Raw(stream).until_closed()

        nursery.start_soon(answer)
        assert hint in str(await fails_to_open(manager, hostile.address, ProducerUnreachable))


@pytest.mark.parametrize("setting", ["connect_timeout_s", "handshake_timeout_s"])
async def test_dialling_who_says_nothing(setting: str) -> None:
    config = replace(CONFIG, **{setting: SHORT_S})
    async with victim(config) as manager, server() as hostile:
        error = await fails_to_open(manager, hostile.address, ConnectionLost)
        assert f"within {SHORT_S:g} s" in str(error)
        raw = await hostile.accept()
        # A hello that comes now finds nobody, and costs nothing.
        with contextlib.suppress(trio.BrokenResourceError):
            await raw.send(hello())
        await raw.until_closed()
        await raw.stream.aclose()


async def test_dialling_nobody() -> None:
    async with victim() as manager:
        async with server() as hostile:
            pass
        error = await fails_to_open(manager, hostile.address, ConnectionLost)
        assert "Connection refused" in str(error)


async def test_a_port_in_use() -> None:
    async with victim() as manager:
        with pytest.raises(OSError, match="choose another port") as caught:
            async with open_network(manager.address):
                pass
        assert caught.value.errno == errno.EADDRINUSE
        assert manager.address in str(caught.value)


async def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/{'x' * 200}"
    with pytest.raises(ConfigError, match="longer than 107 bytes"):
        async with open_network(url):
            pass
    async with open_network(ANY_PORT, CONFIG) as manager:
        with pytest.raises((ConfigError, ConnectionLost), match="longer than 107 bytes"):
            await manager.open_gate([ChannelDescriptor(url, "p")])
        assert lent(manager) == 0


async def test_a_stale_unix_socket(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{tmp_path}/s")
    async with open_network(ANY_PORT, CONFIG) as manager:
        assert "Connection refused" in str(await fails_to_open(manager, url, ConnectionLost))
        async with open_network(url, CONFIG) as other:
            gate = await manager.open_gate([ChannelDescriptor(other.address, "p")])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, other, "p", RECORDS)
                assert await read(gate) == RECORDS
    assert not (tmp_path / "s").exists()


async def test_a_gate_that_cannot_be_opened_leaves_nothing_behind() -> None:
    async with victim() as manager, open_network(ANY_PORT, CONFIG) as other:
        before = lent(manager)
        with pytest.raises(ConfigError, match="'' has 0 bytes"):
            await manager.open_gate([ChannelDescriptor(other.address, "p"), ChannelDescriptor(other.address, "")])
        for number in (-1, 2**32):
            with pytest.raises(ConfigError, match=f"partition 'p' cannot have 1 subpartitions from {number} on"):
                await manager.open_gate([ChannelDescriptor(other.address, "p", number)])
        with pytest.raises(InsufficientBuffers):
            await manager.open_gate([ChannelDescriptor(other.address, "p")] * 200)
        with pytest.raises(ConnectionLost, match="Connection refused"):
            await manager.open_gate(
                [ChannelDescriptor(other.address, "p"), ChannelDescriptor("tcp://127.0.0.1:1", "p")]
            )
        await until(lambda: lent(manager) == before)


async def test_no_buffers_left_to_receive_with() -> None:
    """Refused before anybody is dialled, and nothing is kept."""
    async with victim() as manager, server() as hostile:
        pool = manager.statistics().pool
        free = pool.total_segments - pool.required_segments
        channels = (free - 1) // CONFIG.exclusive_buffers_per_channel
        with pytest.raises(
            InsufficientBuffers,
            match=f"{hostile.address} requires {LANDING_SEGMENTS}",
        ):
            await manager.open_gate([ChannelDescriptor(hostile.address, "p")] * channels)
        assert manager.statistics().pool.required_segments == pool.required_segments
        assert lent(manager) == pool.lent_segments
