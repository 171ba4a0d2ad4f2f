"""Bytes and crowds that mean no good: refused and forgotten, while everybody else is served."""

from __future__ import annotations

import struct
import sys
from dataclasses import asdict
from typing import Any

import pytest
import trio
from adopter import Ended, adopt
from hypothesis import given, strategies as st
from taskmanager.driverworld import task as described
from taskmanagerworld import EVERYTHING, connections, is_empty, open_job, pair_open, task, taskmanager_open, until
from trio.testing import MockClock
from trio_runs import run_virtual

from netstack import __version__
from netstack.base.config import NetworkConfig
from netstack.base.errors import ConnectionLost, RemoteProtocolError, RequestRefused
from netstack.base.transport import ByteStream, transport_for
from netstack.cluster.control.build import own_build
from netstack.cluster.control.frames import FrameStream, pack
from netstack.cluster.control.messages import GREETING, VERSION
from netstack.cluster.control.routing import CONTROL, DATA, write_route
from netstack.cluster.taskmanager.job_in_process import EARLY_BYTES
from netstack.cluster.taskmanager.service import TaskManager
from netstack.network.connection.authentication import Secret

ROUTE = CONTROL + bytes(16)
HELLO = pack([GREETING, VERSION, f"{__version__}+{own_build()}", "a stranger", "jobmanager", {}])
LOOKS = pack([GREETING, VERSION, f"{__version__}+{own_build()}", "a stranger", "client", {}])
CONFIG = asdict(NetworkConfig(segment_size_bytes=1024, memory_bytes=1 << 20))
OPEN = ["OpenJob", "0123456789abcdef", "name", 5.0, "memory://x", CONFIG, b""]
BEFORE = ["OpenJob", "00000000000000aa", "holds all memory", 5.0, "memory://x", asdict(EVERYTHING), b""]


async def dial(daemon: TaskManager, data: bytes = b"") -> ByteStream:
    stream = await transport_for(daemon.address).connect(daemon.address)
    stream.try_send([data])
    return stream


async def end_of(stream: ByteStream) -> None:
    """Reads to the end."""
    window = memoryview(bytearray(1 << 16))
    try:
        while stream.try_receive_into([window]) != 0:
            await stream.wait_readable()
    except ConnectionLost:
        pass
    finally:
        stream.close()


async def works(daemon: TaskManager) -> None:
    """The next run does."""
    async with adopt(daemon.address, secret=daemon.config.secret) as client:
        run = await open_job(client)
        await run.deploy([task("result", parameters={"what": "plain"})])
        event = await run.next_event()
        assert isinstance(event, Ended), event
        await run.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        bytes(20),
        b"\xff" * 100,
        ROUTE + b"\xff\xff\xff\xff",
        ROUTE + struct.pack(">I", 1 << 17),
        ROUTE + pack(["somebody else", 1, 2]),
        ROUTE + struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
        ROUTE + struct.pack(">I", 1) + b"\x01",
        ROUTE + struct.pack(">I", 0),
        ROUTE + HELLO + b"\xff\xff\xff\xff",
        ROUTE + HELLO + pack(["Nonsense", 1]),
        ROUTE + HELLO + pack([[]]),
        ROUTE + HELLO + pack(["OpenJob"]),
        ROUTE + HELLO + pack(["Ask", 1, "jobs", {}]),
        ROUTE + LOOKS + pack(["Ask", 1, "jobs", {}]),
        ROUTE + LOOKS + pack(OPEN),
        ROUTE + HELLO + pack(["OpenJob", "0123456789abcdef", "n", -1.0, "x", {}, b""]),
        ROUTE + HELLO + struct.pack(">I", 600) + b"\x91" * 600,
        DATA + b"0123456789abcdef",
        DATA + b"0123456789abcde\n",
    ],
)
async def test_bytes_that_end_the_connection_and_nothing_else(autojump_clock: MockClock, data: bytes) -> None:
    async with taskmanager_open() as daemon:
        await end_of(await dial(daemon, data))
        await until(lambda: is_empty(daemon))
        await works(daemon)


@given(st.binary(max_size=100), st.booleans(), st.booleans())
def test_whatever_comes_the_daemon_goes_on(data: bytes, has_route: bool, has_hello: bool) -> None:
    async def main() -> None:
        async with taskmanager_open() as daemon:
            stream = await dial(daemon, ROUTE * has_route + HELLO * has_hello + data)
            await trio.sleep(0.1)
            stream.close()
            await until(lambda: is_empty(daemon))

    run_virtual(main)


async def test_half_of_anything_is_given_up_after_a_while(autojump_clock: MockClock) -> None:
    async with taskmanager_open() as daemon:
        began = trio.current_time()
        for data in (b"", ROUTE[:10], ROUTE, ROUTE + HELLO[:20]):
            await end_of(await dial(daemon, data))
        assert trio.current_time() - began == pytest.approx(4 * daemon.config.handshake_timeout_s)
        for data in (ROUTE + HELLO, ROUTE + HELLO + pack(OPEN), ROUTE + HELLO + pack(OPEN)[:30]):
            began = trio.current_time()
            await end_of(await dial(daemon, data))
            assert trio.current_time() - began == pytest.approx(daemon.config.heartbeat_timeout_s, abs=0.1)
        await until(lambda: is_empty(daemon))


async def test_silent_strangers_keep_nobody_out(autojump_clock: MockClock) -> None:
    secret = Secret(b"a secret of all who belong")
    async with taskmanager_open(secret=secret, max_unproven=4, max_connections=8) as daemon:
        strangers = []
        for _ in range(50):
            strangers.append(await dial(daemon))
            await trio.lowlevel.checkpoint()
        await works(daemon)
        actual = await daemon.statistics()
        assert actual["unproven"] <= 4
        assert actual["refused"]["gave way to newer peers"] >= 46
        for stream in strangers:
            stream.close()


async def test_no_more_connections_than_allowed(autojump_clock: MockClock) -> None:
    # Nobody is given up meanwhile, however far the clock jumps.
    async with taskmanager_open(max_connections=3, handshake_timeout_s=1e6, heartbeat_timeout_s=1e6) as daemon:
        held = [await dial(daemon, ROUTE + LOOKS) for _ in range(3)]
        await until(lambda: connections(daemon) == 3)
        await end_of(await dial(daemon, ROUTE))
        assert (await daemon.statistics())["refused"]["too many connections"] == 1
        for stream in held:
            stream.close()
        await until(lambda: not connections(daemon))
        await works(daemon)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"memory_bytes": -1},
        {"memory_bytes": 1 << 62},
        {"memory_bytes": "much"},
        {"memory_bytes": float("nan")},
        {"memory_bytes": float("inf")},
        {"heartbeat_timeout_s": float("inf")},
        {"segment_size_bytes": 0},
        {"colour": 1},
        {"handshake_timeout_s": float("nan")},
        {"heartbeat_interval_s": []},
    ],
)
async def test_settings_of_a_stranger_end_that_run_at_most(autojump_clock: MockClock, config: dict[str, Any]) -> None:
    async with taskmanager_open() as daemon:
        stream = await transport_for(daemon.address).connect(daemon.address)
        await write_route(stream, None)
        peer = FrameStream(stream)
        peer.send([GREETING, VERSION, f"{__version__}+{own_build()}", "a stranger", "jobmanager", {}])
        for number in range(3):
            peer.send([*OPEN[:1], f"{number + 1:016x}", *OPEN[2:-2], config, b""])
            peer.send(["CloseJob", f"{number + 1:016x}"])
        peer.send(["SubmitTasks", "0123456789abcdef", [b"nothing"]])
        peer.send(["OperatorEvent", "0123456789abcdef", [0, 0, 0], {}])
        peer.send(["AskStatistics", 7])
        await peer.flush()
        kinds = []
        while not kinds or kinds[-1] != "Statistics":
            kinds.append((await peer.receive())[0])
        assert set(kinds[1:-1]) <= {"JobRefused", "JobClosed", "JobOpened"}
        peer.close()
        await until(lambda: is_empty(daemon))
        await works(daemon)


async def test_a_job_of_a_million_buffers_costs_the_loop_no_more_than_a_small_one(autojump_clock: MockClock) -> None:
    """Buffers are made when they are first wanted; counted in calls: a clock tells how busy a machine is."""
    calls = []
    for memory_bytes in (1 << 20, 1 << 30):
        async with pair_open(memory_bytes=3 << 30) as (daemon, client):
            network = NetworkConfig(segment_size_bytes=256, memory_bytes=memory_bytes)
            count = 0

            def counting(frame: Any, event: str, argument: Any) -> None:
                nonlocal count
                count += 1

            sys.setprofile(counting)
            try:
                run = await open_job(client, network=network)
                await run.close()
            finally:
                sys.setprofile(None)
            calls.append(count)
            assert is_empty(daemon)
    assert calls[1] < 2 * calls[0], calls


async def test_buffers_count_with_what_they_take_beside_their_bytes(autojump_clock: MockClock) -> None:
    network = NetworkConfig(segment_size_bytes=256, memory_bytes=1 << 20)
    async with pair_open(memory_bytes=2 << 20) as (_, client):
        with pytest.raises(RequestRefused, match="needs 2240KiB"):
            await open_job(client, network=network)
    async with pair_open(memory_bytes=3 << 20) as (daemon, client):
        run = await open_job(client, network=network)
        assert daemon.memory.free_memory_bytes == (3 << 20) - 4096 * 560
        await run.close()
        assert is_empty(daemon)


async def waiting(daemon: TaskManager) -> tuple[ByteStream, FrameStream]:
    """A connection whose job waits for the memory that another one of it has."""
    stream = await dial(daemon, ROUTE + HELLO + pack(BEFORE) + pack(OPEN))
    peer = FrameStream(stream)
    assert [(await peer.receive())[0] for _ in range(2)] == [GREETING, "JobOpened"]
    return stream, peer


async def next_said(peer: FrameStream) -> list[Any]:
    """What is said next of the job that waited."""
    while True:
        message = await peer.receive()
        if message[0] != "Ping" and message[1] == OPEN[1]:
            return list(message)


async def test_a_deployment_before_its_run_is_open_waits_for_that(autojump_clock: MockClock) -> None:
    async with taskmanager_open() as daemon:
        stream, peer = await waiting(daemon)
        descriptor = described("echo", job_id=OPEN[1]).pack()
        peer.send(["SubmitTasks", OPEN[1], [descriptor]])
        peer.send(["CloseJob", BEFORE[1]])
        await peer.flush()
        assert await next_said(peer) == ["JobOpened", OPEN[1]]
        assert (await next_said(peer))[0] == "TaskStates"
        peer.send(["SubmitTasks", OPEN[1], [b""]])
        await peer.flush()
        message = await next_said(peer)
        while message[0] != "JobRefused":
            message = await next_said(peer)
        assert message[2].startswith("a task descriptor is malformed")
        stream.close()


async def test_jobs_that_come_and_go_without_end_are_a_few_lines(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="netstack")
    async with taskmanager_open() as daemon:
        stream, peer = await waiting(daemon)
        peer.send(["CloseJob", BEFORE[1]])
        for _ in range(100):
            peer.send(["CloseJob", OPEN[1]])
            peer.send(OPEN)
        await peer.flush()
        while (message := await next_said(peer))[0] != "JobOpened":
            if message[0] == "JobRefused":  # the one before it has not ended yet, and there may be no later one
                peer.send(OPEN)
                await peer.flush()
        await trio.sleep(1.0)
        stream.close()
    lines = [record.getMessage() for record in caplog.records]
    for text in (") opened", " closed: "):
        assert 1 <= len([line for line in lines if text in line]) <= 30, text


@pytest.mark.slow
async def test_deployments_before_their_run_is_open_are_bounded(autojump_clock: MockClock) -> None:
    async with taskmanager_open() as daemon:
        stream, peer = await waiting(daemon)
        large = described("echo", job_id=OPEN[1], information=bytes(1 << 20)).pack()
        many = pack(["SubmitTasks", OPEN[1], [large]])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.run)
            for _ in range(1 + EARLY_BYTES // (1 << 20)):
                peer.send_frame(many)
                await peer.wait_room()
            message = await next_said(peer)
            assert message[0] == "JobRefused"
            assert "is not open yet" in message[2]
            nursery.cancel_scope.cancel()
        stream.close()


async def test_what_a_task_is_told_before_it_runs_is_bounded(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("netstack.cluster.taskmanager.tasks.TOLD_EARLY_BYTES", 1 << 20)
    async with taskmanager_open() as daemon:
        stream, peer = await waiting(daemon)
        for vertex, name in enumerate(("hold", "echo")):
            peer.send(["SubmitTasks", OPEN[1], [described(name, (vertex, 0, 0), job_id=OPEN[1]).pack()]])
        for _ in range(6):
            peer.send(["OperatorEvent", OPEN[1], [0, 0, 0], {"bytes": bytes(1 << 18)}])
        peer.send(["OperatorEvent", OPEN[1], [1, 0, 0], {"stop": "still here"}])
        peer.send(["CloseJob", BEFORE[1]])
        await peer.flush()
        message: list[Any] = []
        while not {"TaskFailed", "TaskFinished"} <= {each[0] for each in message}:
            message.append(await next_said(peer))
        (failed,) = (each for each in message if each[0] == "TaskFailed")
        assert "bytes of events before it ran; the limit is 1048576" in str(failed)
        stream.close()


@pytest.mark.whole
async def test_a_peer_that_does_not_read_is_given_up(autojump_clock: MockClock) -> None:
    async with taskmanager_open() as daemon:
        stream = await dial(daemon, ROUTE + LOOKS)
        ask = pack(["AskStatistics", 1]) * 1000
        with pytest.raises((ConnectionLost, trio.TooSlowError)):
            await _ask_without_end(stream, ask)
        stream.close()
        await until(lambda: is_empty(daemon))


async def _ask_without_end(stream: ByteStream, ask: bytes) -> None:
    with trio.fail_after(60):
        left = memoryview(ask)
        while True:
            left = left[stream.try_send([left]) :] or memoryview(ask)
            await stream.wait_writable()


async def test_nonsense_in_the_middle_of_a_run_closes_it() -> None:
    async with taskmanager_open() as daemon:
        stream = await dial(daemon, ROUTE + HELLO + pack(OPEN))
        peer = FrameStream(stream)
        assert [(await peer.receive())[0] for _ in range(2)] == [GREETING, "JobOpened"]
        stream.try_send([b"\xff\xff\xff\xff"])
        assert (await next_said(peer))[0] == "JobClosed"
        with pytest.raises((ConnectionLost, RemoteProtocolError)):
            await peer.receive()
        stream.close()
        await until(lambda: is_empty(daemon))
