"""Connections: shared, counted, and gone without a trace when they fail. The peers here are made of bytes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from netstack.config import NetworkConfig
from netstack.errors import (
    AuthenticationFailed,
    ConfigError,
    ConnectionLost,
    InsufficientBuffers,
    Refusal,
    RemoteProtocolError,
)
from netstack.ids import ChannelDescriptor
from netstack.inbound.gate import SingleInputGate
from netstack.runtime.admission import Admission, AdmissionStatistics
from netstack.runtime.authentication import Secret
from netstack.runtime.record_reader import RecordReader
from netstack.runtime.record_writer import RecordWriter
from netstack.runtime.task_manager import TaskManager, open_task_manager, task_manager_on
from netstack.transport import ByteStream, Listener, transport_for
from netstack.wire.codec_native import PROTOCOL_VERSION, NativeCodec
from netstack.wire.frames import Frame, Goodbye, Hello

CODEC = NativeCodec()
CONFIG = NetworkConfig(
    segment_size_bytes=256,
    memory_bytes=64 * 256,
    heartbeat_interval_s=None,
    connect_timeout_s=5.0,
    handshake_timeout_s=20.0,
)
HELLO = Hello(PROTOCOL_VERSION, CONFIG.segment_size_bytes, 0, "a peer made of bytes")

numbers = itertools.count()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time; what would hang fails after a virtual hour."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(3600):
                await test(*arguments, **keywords)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def url() -> str:
    return f"memory://endpoint-{next(numbers)}"


def frames(*said: Frame) -> bytes:
    return b"".join(map(CODEC.encode_control, said))


@asynccontextmanager
async def peer(behave: Callable[[ByteStream], Awaitable[None]]) -> AsyncIterator[tuple[str, list[ByteStream]]]:
    """An address, and whoever dials it; `behave` is run for each stream."""
    address = url()
    listener = await transport_for(address).listen(address)
    streams: list[ByteStream] = []

    async def accept() -> None:
        while True:
            stream = await listener.accept()
            streams.append(stream)
            nursery.start_soon(behave, stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        yield address, streams
        nursery.cancel_scope.cancel()
    listener.close()
    for stream in streams:
        stream.close()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


def assert_nothing_left(manager: TaskManager) -> None:
    statistics = manager.statistics()
    assert statistics.gates == ()
    assert (statistics.accepted, statistics.dialled) == ((), ())
    assert statistics.pool.lent_segments == 0


async def is_closed(stream: ByteStream) -> bool:
    """Whether the other side has closed."""
    window = memoryview(bytearray(4096))
    try:
        with trio.move_on_after(1):
            while True:
                await stream.wait_readable()
                if stream.try_receive_into([window]) == 0:
                    return True
    except ConnectionLost:
        return True
    return False


# Shared connections.


@virtual
async def test_all_channels_to_one_address_share_a_connection() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        for name in ("a", "b"):
            producer.create_partition(name, subpartitions=2)
        gates: list[SingleInputGate] = []

        async def open_one(name: str) -> None:
            gates.append(
                await consumer.open_gate([ChannelDescriptor(producer.address, name, index) for index in (0, 1)])
            )

        async with trio.open_nursery() as nursery:  # at the same time: they share the attempt too
            nursery.start_soon(open_one, "a")
            nursery.start_soon(open_one, "b")
        (dialled,) = consumer.statistics().dialled
        assert (dialled.address, dialled.channels) == (producer.address, 4)
        await settle()
        (accepted,) = producer.statistics().accepted
        assert len(accepted.channels) == 4
        gates[0].close()
        await settle()
        assert consumer.statistics().dialled[0].channels == 2
        gates[1].close()
        await settle()
        assert_nothing_left(consumer)
        assert producer.statistics().accepted == ()


@virtual
async def test_an_address_is_dialled_again_after_the_last_channel_left() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        for name in ("a", "b"):
            partition = producer.create_partition(name, subpartitions=1)
            writer = RecordWriter(partition)
            gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
            await writer.emit(b"x")
            await writer.finish()
            assert [record async for record in RecordReader(gate)] == [b"x"]
            gate.close()
            await settle()
            assert_nothing_left(consumer)
        assert consumer.statistics().bytes_received > 0  # those of connections that are gone


@virtual
async def test_a_gate_opened_while_the_last_channel_leaves_gets_a_connection() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        for name in ("a", "b"):
            producer.create_partition(name, subpartitions=1)
        first = await consumer.open_gate([ChannelDescriptor(producer.address, "a")])
        second: list[SingleInputGate] = []

        async def open_second() -> None:
            second.append(await consumer.open_gate([ChannelDescriptor(producer.address, "b")]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_second)
            first.close()
        await settle()
        (dialled,) = consumer.statistics().dialled
        assert dialled.channels == 1
        second[0].close()
        await settle()
        assert_nothing_left(consumer)


@virtual
async def test_a_manager_that_only_consumes_remembers_a_connection_once_however_much_it_says() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=0)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        reader = RecordReader(gate)
        for number in range(100):
            await writer.emit(b"%d" % number)
            assert await reader.__anext__() == b"%d" % number
            await settle()
        (dialled,) = consumer.statistics().dialled
        assert dialled.connection.sends > 20
        assert len(consumer._endpoint._dirty) <= 1


# Peers that do not behave.


@virtual
async def test_a_failed_attempt_is_not_remembered() -> None:
    async with open_task_manager(url(), CONFIG) as consumer:
        address = url()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=address):
                await consumer.open_gate([ChannelDescriptor(address, "p")])
            assert_nothing_left(consumer)
        async with open_task_manager(address, CONFIG) as producer:
            producer.create_partition("p", subpartitions=1)
            gate = await consumer.open_gate([ChannelDescriptor(address, "p")])
            gate.close()


@virtual
async def test_a_bad_partition_name_leaves_no_connection_behind() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        with pytest.raises(ConfigError, match="partition id"):
            await consumer.open_gate([ChannelDescriptor(producer.address, "")])
        await settle()
        assert_nothing_left(consumer)


@virtual
async def test_everybody_who_waits_for_an_attempt_hears_of_its_failure() -> None:
    address = url()
    heard: list[str] = []
    async with open_task_manager(url(), CONFIG) as consumer:

        async def open_one() -> None:
            try:
                await consumer.open_gate([ChannelDescriptor(address, "p")])
            except ConnectionLost as error:
                heard.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(open_one)
        assert len(heard) == 3
        assert_nothing_left(consumer)


@virtual
async def test_a_peer_that_says_nothing_is_given_up_in_time() -> None:
    async def silent(stream: ByteStream) -> None:
        await trio.sleep_forever()

    async with peer(silent) as (address, streams), open_task_manager(url(), CONFIG) as consumer:
        start = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"did not answer within 5 s"):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        assert trio.current_time() - start == pytest.approx(5)
        await settle()
        assert_nothing_left(consumer)
        assert await is_closed(streams[0])


@virtual
async def test_a_hello_that_comes_after_the_timeout_finds_nobody() -> None:
    async def late(stream: ByteStream) -> None:
        await trio.sleep(6)
        with suppress(ConnectionLost):
            stream.try_send([frames(HELLO)])

    async with peer(late) as (address, _), open_task_manager(url(), CONFIG) as consumer:
        with pytest.raises(ConnectionLost):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        await trio.sleep(10)
        assert_nothing_left(consumer)


@virtual
async def test_a_peer_that_leaves_at_once_is_a_lost_connection_and_no_endless_search() -> None:
    """A producer that is closing says hello and goodbye in one breath."""

    async def leave(stream: ByteStream) -> None:
        stream.try_send([frames(HELLO, Goodbye())])
        stream.send_eof()
        await trio.sleep_forever()

    async with peer(leave) as (address, streams), open_task_manager(url(), CONFIG) as consumer:
        with trio.CancelScope() as scope:

            async def lose_patience() -> None:
                for _ in range(1000):  # turns of the scheduler: a search without a wait does not let time pass
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose_patience)
                with pytest.raises((ConnectionLost, trio.Cancelled)) as caught:
                    await consumer.open_gate([ChannelDescriptor(address, "p")])
                nursery.cancel_scope.cancel()
        assert isinstance(caught.value, ConnectionLost), "it goes on looking for a connection"
        assert address in str(caught.value)
        await settle()
        assert len(streams) == 1
        assert_nothing_left(consumer)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (frames(Hello(PROTOCOL_VERSION + 1, 256, 0, "newer")), "VERSION_MISMATCH"),
        (frames(Hello(PROTOCOL_VERSION, 512, 0, "larger")), "SEGMENT_SIZE_MISMATCH"),
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "NOT_NETSTACK"),
        (frames(Goodbye()), "NOT_NETSTACK|UNEXPECTED_FRAME"),
    ],
)
@virtual
async def test_a_peer_of_another_kind_is_refused_with_the_reason(said: bytes, reason: str) -> None:
    async def say(stream: ByteStream) -> None:
        stream.try_send([said])
        await trio.sleep_forever()

    async with peer(say) as (address, streams), open_task_manager(url(), CONFIG) as consumer:
        with pytest.raises(RemoteProtocolError, match=reason) as caught:
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        assert address in str(caught.value)
        await settle()
        assert_nothing_left(consumer)
        assert await is_closed(streams[0])


@virtual
async def test_a_stream_that_ends_in_the_middle_of_the_hello_is_a_typed_error() -> None:
    async def stop_short(stream: ByteStream) -> None:
        stream.try_send([frames(HELLO)[:20]])
        stream.send_eof()
        await trio.sleep_forever()

    async with peer(stop_short) as (address, _), open_task_manager(url(), CONFIG) as consumer:
        with pytest.raises((RemoteProtocolError, ConnectionLost), match=address):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        await settle()
        assert_nothing_left(consumer)


@virtual
async def test_an_accepted_stream_that_says_nothing_is_closed_in_time() -> None:
    async with open_task_manager(url(), CONFIG) as producer:
        stream = await transport_for(producer.address).connect(producer.address)
        await settle()
        assert len(producer.statistics().accepted) == 1
        await trio.sleep(21)
        assert producer.statistics().accepted == ()
        assert await is_closed(stream)
        stream.close()


@virtual
async def test_a_bad_peer_does_not_disturb_a_good_one() -> None:
    async with open_task_manager(url(), CONFIG) as producer, open_task_manager(url(), CONFIG) as consumer:
        partition = producer.create_partition("p", subpartitions=1)
        writer = RecordWriter(partition, buffer_timeout_s=0)
        gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        bad = await transport_for(producer.address).connect(producer.address)
        bad.try_send([b"\xff" * 500])
        await settle()
        assert len(producer.statistics().accepted) == 1
        assert await is_closed(bad)
        bad.close()
        await writer.emit(b"x")
        await writer.finish()
        assert [record async for record in RecordReader(gate)] == [b"x"]


# With a shared secret.

SECRET = Secret(b"a secret of all who belong")
OTHER = Secret(b"a secret of somebody else")


async def read_one(producer: TaskManager, consumer: TaskManager, name: str = "p") -> SingleInputGate:
    """A record from one to the other; the gate is still open."""
    writer = RecordWriter(producer.create_partition(name, subpartitions=1), buffer_timeout_s=0)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
    await writer.emit(b"x")
    assert await RecordReader(gate).__anext__() == b"x"
    return gate


def admissions(manager: TaskManager) -> AdmissionStatistics:
    statistics = manager.statistics().admission
    assert statistics is not None
    return statistics


def refusals(manager: TaskManager) -> dict[Refusal, int]:
    return {reason: count for reason, count in admissions(manager).refused.items() if count}


@pytest.mark.parametrize("address", ["memory://secret-ok", "tcp://127.0.0.1:0"])
def test_with_the_same_secret_records_come_through(address: str) -> None:
    async def main() -> None:
        async with (
            open_task_manager(address, CONFIG, secret=SECRET) as producer,
            open_task_manager(url(), CONFIG, secret=Secret(SECRET.reveal())) as consumer,
        ):
            gate = await read_one(producer, consumer)
            assert admissions(producer).connections == 1
            gate.close()
            with trio.fail_after(5):
                while admissions(producer).connections or consumer.statistics().dialled:
                    await trio.lowlevel.checkpoint()
            await settle()
            assert (admissions(producer).admitted, refusals(producer)) == (1, {})
            assert_nothing_left(consumer)

    trio.run(main)


@pytest.mark.parametrize("address", ["memory://secret-bad", "tcp://127.0.0.1:0"])
def test_with_another_secret_both_are_told(address: str) -> None:
    async def main() -> None:
        async with (
            open_task_manager(address, CONFIG, secret=SECRET) as producer,
            open_task_manager(url(), CONFIG, secret=OTHER) as consumer,
        ):
            producer.create_partition("p", subpartitions=1)
            with pytest.raises(AuthenticationFailed, match="its shared secret is another one") as caught:
                await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            assert producer.address in str(caught.value)
            assert caught.value.reason is Refusal.SECRETS_DIFFER
            assert refusals(producer) == {Refusal.SECRETS_DIFFER: 1}
            assert_nothing_left(consumer)
            assert_nothing_left_of_connections(producer)

    trio.run(main)


def assert_nothing_left_of_connections(manager: TaskManager) -> None:
    assert (manager.statistics().accepted, admissions(manager).connections, admissions(manager).unproven) == ((), 0, 0)


@pytest.mark.parametrize("address", ["memory://secret-none", "tcp://127.0.0.1:0"])
def test_who_has_no_secret_is_told_that_one_is_wanted(address: str) -> None:
    async def main() -> None:
        async with (
            open_task_manager(address, CONFIG, secret=SECRET) as producer,
            open_task_manager(url(), CONFIG) as consumer,
        ):
            with pytest.raises(RemoteProtocolError, match="wants a shared secret to be proven first; give this side"):
                await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            with trio.fail_after(5):
                while not refusals(producer):
                    await trio.lowlevel.checkpoint()
            assert refusals(producer) == {Refusal.NO_SECRET: 1}
            assert_nothing_left(consumer)

    trio.run(main)


@pytest.mark.parametrize("address", ["memory://secret-alone", "tcp://127.0.0.1:0"])
def test_who_asks_for_no_secret_gets_nothing_from_who_has_one(address: str) -> None:
    async def main() -> None:
        async with (
            open_task_manager(address, CONFIG) as producer,
            open_task_manager(url(), CONFIG, secret=SECRET) as consumer,
        ):
            with pytest.raises(AuthenticationFailed, match="proves no shared secret") as caught:
                await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            assert caught.value.reason is Refusal.NO_SECRET
            assert_nothing_left(consumer)
            assert producer.statistics().admission is None

    trio.run(main)


@virtual
async def test_everybody_who_waits_for_an_attempt_hears_why_it_was_refused() -> None:
    heard: list[Refusal] = []
    async with (
        open_task_manager(url(), CONFIG, secret=SECRET) as producer,
        open_task_manager(url(), CONFIG, secret=OTHER) as consumer,
    ):

        async def open_one() -> None:
            try:
                await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            except AuthenticationFailed as error:
                heard.append(error.reason)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(open_one)
        assert heard == [Refusal.SECRETS_DIFFER] * 3
        assert_nothing_left(consumer)


@virtual
async def test_a_peer_that_never_proves_itself_is_given_up_in_time() -> None:
    async def silent(stream: ByteStream) -> None:
        await trio.sleep_forever()

    async with peer(silent) as (address, streams), open_task_manager(url(), CONFIG, secret=SECRET) as consumer:
        with pytest.raises(ConnectionLost, match=r"did not answer within 5 s"):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        await settle()
        assert_nothing_left(consumer)
        assert await is_closed(streams[0])


@virtual
async def test_a_flood_of_the_silent_keeps_no_good_peer_out() -> None:
    async with (
        open_task_manager(url(), CONFIG, secret=SECRET) as producer,
        open_task_manager(url(), CONFIG, secret=SECRET) as consumer,
    ):
        silent = [await transport_for(producer.address).connect(producer.address) for _ in range(500)]
        gate = await read_one(producer, consumer)
        assert admissions(producer).unproven == 63
        assert refusals(producer) == {Refusal.CROWDED_OUT: 437}
        gate.close()
        await trio.sleep(21)
        assert refusals(producer) == {Refusal.CROWDED_OUT: 437, Refusal.TOO_SLOW: 63}
        assert_nothing_left_of_connections(producer)
        assert all([await is_closed(stream) for stream in silent])


@virtual
async def test_a_manager_that_closes_waits_for_nobody_who_has_not_proven_himself() -> None:
    async with open_task_manager(url(), CONFIG, secret=SECRET) as producer:
        stream = await transport_for(producer.address).connect(producer.address)
        await settle()
        start = trio.current_time()
    assert trio.current_time() == start
    assert await is_closed(stream)


async def cancel_after(turns: int, scope: trio.CancelScope) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


@virtual
async def test_cancelled_at_any_turn_a_proof_leaves_nothing_behind() -> None:
    for turns in itertools.count(1):
        async with (
            open_task_manager(url(), CONFIG, secret=SECRET) as producer,
            open_task_manager(url(), CONFIG, secret=SECRET) as consumer,
        ):
            producer.create_partition("p", subpartitions=1)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel_after, turns, scope)
                    gate = await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
                    gate.close()
                    nursery.cancel_scope.cancel()
            await settle()
            await trio.sleep(30)
            assert_nothing_left(consumer)
            assert_nothing_left_of_connections(producer)
            if not scope.cancel_called:
                assert turns > 5
                return


@virtual
async def test_streams_that_somebody_else_has_admitted_prove_nothing_and_their_end_is_told() -> None:
    """What a daemon does: one door for many TaskManagers, and a word of its own before the protocol."""
    ended: list[None] = []
    greeted: list[str] = []

    async def greet(stream: ByteStream) -> None:
        stream.try_send([b"for run 7"])
        greeted.append(stream.peer)

    class Routed(Listener):
        def __init__(self, below: Listener) -> None:
            self.address = below.address
            self.admission = Admission(SECRET, timeout_s=1.0)
            self._below = below

        async def accept(self) -> ByteStream:
            stream = await self._below.accept()
            await self.admission.admit(stream)
            word = memoryview(bytearray(9))
            while stream.try_receive_into([word]) is None:
                await stream.wait_readable()
            assert word == b"for run 7"
            return stream

        def close(self) -> None:
            self._below.close()

    address = url()
    routed = Routed(await transport_for(address).listen(address))
    own = await transport_for("memory://routed").listen("memory://routed")

    def on_end() -> None:
        ended.append(None)
        routed.admission.left()

    async with (
        task_manager_on(routed, CONFIG, on_accepted_end=on_end) as producer,
        task_manager_on(own, CONFIG, secret=SECRET, greet=greet) as consumer,
    ):
        gate = await read_one(producer, consumer)
        assert greeted == [producer.address]
        assert routed.admission.statistics().connections == 1
        assert ended == []
        gate.close()
        await settle()
        assert ended == [None]
        assert routed.admission.statistics().connections == 0


@virtual
async def test_a_greeting_that_fails_closes_the_stream_and_is_told() -> None:
    async def greet(stream: ByteStream) -> None:
        raise ConnectionLost("no such run")

    own = await transport_for("memory://greets").listen("memory://greets")
    async with open_task_manager(url(), CONFIG) as producer, task_manager_on(own, CONFIG, greet=greet) as consumer:
        with pytest.raises(ConnectionLost, match="no such run"):
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        await settle()
        assert producer.statistics().accepted == ()
        assert_nothing_left(consumer)


# Memory.


@virtual
async def test_without_buffers_for_a_connection_nothing_stays_open() -> None:
    small = NetworkConfig(segment_size_bytes=256, memory_bytes=10 * 256, heartbeat_interval_s=None)
    async with open_task_manager(url(), small) as producer, open_task_manager(url(), small) as consumer:
        producer.create_partition("p", subpartitions=1)
        with pytest.raises(InsufficientBuffers, match="the connection to memory://"):
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        await settle()
        assert_nothing_left(consumer)
        assert producer.statistics().accepted == ()
