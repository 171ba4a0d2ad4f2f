"""Slots of one host find each other in shared memory, are as strict there as at their ports, and tell why not."""

from __future__ import annotations

import logging
import os
import platform
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from netstack.base.errors import AuthenticationFailed, ConnectionLost
from netstack.base.transport import ByteStream, Listener, transport_for
from netstack.cluster.control.routing import SHARED, write_route
from netstack.cluster.taskmanager import neighbours
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.neighbours import Neighbours
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.network.connection.authentication import Secret
from netstack.network.connection.handshake import Handshake
from netstack.testing.contracts import receive, send_all
from netstack_transports import shm
from netstack_transports._sockets import SocketStream
from netstack_transports.shm import unsupported
from netstack_transports.shm.stream import ShmStream
from netstack_transports.unix import UnixTransport

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported() or "supported")


@asynccontextmanager
async def slot(host: str = "127.0.0.1") -> AsyncIterator[tuple[str, Listener | None]]:
    """A port, and what listens beside it."""
    url = f"tcp://{host}:0"
    port = await transport_for(url).listen(url)
    near = await Neighbours().listen(port.address)
    try:
        yield port.address, near
    finally:
        port.close()
        if near is not None:
            near.close()


async def kind_of_stream(address: str, dialler: Neighbours | None = None) -> type[ByteStream]:
    stream = await (dialler or Neighbours()).connect(address)
    stream.close()
    return type(stream)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_a_slot_of_this_host_is_reached_through_shared_memory(host: str) -> None:
    async with slot(host) as (address, near):
        assert near is not None
        stream = await Neighbours().connect(address)
        far = await near.accept()
        await send_all(stream, [b"request"])
        assert await receive(far, 7) == b"request"
        assert (type(stream), type(far)) == (ShmStream, ShmStream)
        assert stream.peer == f"{address} (shared memory)", "what people know it by"
        assert stream.endpoints()[1] == far.endpoints()[0] != "", "what the proof of the secret is about"
        stream.close()
        far.close()


async def test_a_slot_whose_port_speaks_tls_shares_memory_too() -> None:
    async with slot() as (address, near):
        assert near is not None
        near.close()
        secure = f"tls+{address}?folder=/etc/tls"
        near = await Neighbours().listen(secure)
        assert await kind_of_stream(secure) is ShmStream
        assert near is not None
        near.close()


async def test_a_slot_that_listens_everywhere_is_found_at_every_address() -> None:
    async with slot("0.0.0.0") as (address, _):
        for host in ("127.0.0.1", "127.0.0.7", socket.gethostbyname(socket.gethostname())):
            assert await kind_of_stream(address.replace("0.0.0.0", host)) is ShmStream


async def test_the_same_port_of_another_address_is_another_slot(caplog: pytest.LogCaptureFixture) -> None:
    async with slot() as (address, _):
        other = address.replace("127.0.0.1", "127.0.0.2")
        port = await transport_for(other).listen(other)
        assert await kind_of_stream(other) is SocketStream
        port.close()
    assert caplog.records == [], "who has no name there need not have one"


async def test_an_address_of_another_host_is_not_looked_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled = []

    class Nobody(UnixTransport):
        async def connect(self, url: str) -> ByteStream:
            dialled.append(url)
            raise ConnectionLost(f"cannot reach {url}")

    monkeypatch.setattr(neighbours, "transport_for", lambda url: Nobody())
    for address in (
        "tcp://192.0.2.7:6122",
        "tcp://no-such-host.invalid:1",
        "unix:///tmp/slot",
        "impaired+tcp://[::1]:1",
    ):
        with pytest.raises(ConnectionLost):
            await Neighbours().connect(address)
        assert dialled.pop() == address
        assert dialled == []


async def test_a_slot_that_is_gone_is_nobody_s_loss_but_its_own() -> None:
    async with slot() as (address, _):
        pass
    with socket.socket() as held:  # so that no other process of this host gets the port
        held.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        with pytest.raises(ConnectionLost, match=f"{address}: Connection refused"):
            await Neighbours().connect(address)


async def test_a_name_that_is_another_user_s_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with slot() as (address, near):
        assert near is not None
        assert await Neighbours().listen(address) is None, "somebody has the name"
        (line,) = caplog.messages
        assert line.startswith(
            f"slots of this host connect to {address} over the network, not shared memory: cannot listen at shm://slot-"
        )
        caplog.clear()
        ours = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
        dialler = Neighbours()
        for _ in range(2):
            assert await kind_of_stream(address, dialler) is SocketStream
        (line,) = caplog.messages
        assert line.startswith(f"connecting to {address} over the network, not shared memory: cannot reach shm://slot-")
        assert f"runs as user {ours}" in line


async def test_so_many_share_memory_with_one_process_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shm, "DIALLED_AT_MOST", 1)
    async with slot() as (address, _):
        first = await Neighbours().connect(address)
        assert await kind_of_stream(address) is SocketStream
        assert "1 streams" in caplog.messages[0]
        first.close()
        first.close()
        assert await kind_of_stream(address) is ShmStream
        assert await kind_of_stream(address) is ShmStream


async def test_where_memory_cannot_be_shared_slots_use_their_ports(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    async with slot() as (address, near):
        assert near is None
        assert await kind_of_stream(address) is SocketStream
    assert caplog.records == [], "their supervisor says so"


async def test_the_secret_is_proven_there_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    secret, other = Secret.generate(), Secret.generate()
    config = TaskManagerConfig(listen="tcp://127.0.0.1:0", slots=1, secret=secret, in_slot=0)
    async with open_taskmanager(config) as manager:
        connect = Neighbours().connect
        (await Handshake(secret=secret, connect=connect).dial(manager.address)).close()
        with pytest.raises(AuthenticationFailed, match=r"\(shared memory\)"):
            await Handshake(secret=other, connect=connect).dial(manager.address)
        stranger = await Handshake(connect=connect).dial(manager.address)
        assert type(stranger) is ShmStream
        await write_route(stranger, SHARED)
        with trio.fail_after(120):
            while stranger.try_receive_into([memoryview(bytearray(100))]) != 0:
                await stranger.wait_readable()
        stranger.close()
    assert sum("was refused" in line for line in caplog.messages) == 2


async def test_a_taskmanager_that_is_no_slot_or_may_not_has_its_port_only() -> None:
    for choice in ({"in_slot": None}, {"in_slot": 0, "shared_memory": False}):
        config = TaskManagerConfig(listen="tcp://127.0.0.1:0", slots=1, **choice)  # type: ignore[arg-type]
        async with open_taskmanager(config) as manager:
            assert await kind_of_stream(manager.address) is SocketStream
