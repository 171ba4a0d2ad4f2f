"""Connections between those who share a secret, and those who do not."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.lowlevel
import trio.testing
from network.endpoint_peers import CONFIG, assert_nothing_left, is_closed, peer, settle, url
from trio.testing import MockClock

from netstack.base.errors import (
    AuthenticationFailed,
    ConnectionLost,
    Refusal,
    RemoteProtocolError,
)
from netstack.base.ids import ChannelDescriptor
from netstack.base.transport import ByteStream, Listener, transport_for
from netstack.network.connection.admission import Admission, AdmissionStatistics
from netstack.network.connection.authentication import Secret
from netstack.network.connection.handshake import Handshake
from netstack.network.environment import NetworkEnvironment, network_environment_on, open_network
from netstack.network.handles import InputGate
from netstack.network.reader import RecordReader
from netstack.network.writer import RecordWriter

# With a shared secret.

SECRET = Secret(b"a secret of all who belong")
OTHER = Secret(b"a secret of somebody else")


async def read_one(producer: NetworkEnvironment, consumer: NetworkEnvironment, name: str = "p") -> InputGate:
    """A record from one to the other; the gate is still open."""
    writer = RecordWriter(producer.create_partition(name, subpartitions=1), buffer_timeout_s=0)
    gate = await consumer.open_gate([ChannelDescriptor(producer.address, name)])
    await writer.emit(b"x")
    assert await RecordReader(gate).__anext__() == b"x"
    return gate


def admissions(manager: NetworkEnvironment) -> AdmissionStatistics:
    statistics = manager.statistics().admission
    assert statistics is not None
    return statistics


def refusals(manager: NetworkEnvironment) -> dict[Refusal, int]:
    return {reason: count for reason, count in admissions(manager).refused.items() if count}


@pytest.mark.parametrize("address", ["memory://secret-ok", "tcp://127.0.0.1:0"])
async def test_with_the_same_secret_records_come_through(address: str) -> None:
    async with (
        open_network(address, CONFIG, secret=SECRET) as producer,
        open_network(url(), CONFIG, secret=Secret(SECRET.reveal())) as consumer,
    ):
        gate = await read_one(producer, consumer)
        assert admissions(producer).connections == 1
        gate.close()
        with trio.fail_after(120):
            while admissions(producer).connections or consumer.statistics().dialled:
                await trio.lowlevel.checkpoint()
        await settle()
        assert (admissions(producer).admitted, refusals(producer)) == (1, {})
        assert_nothing_left(consumer)


@pytest.mark.parametrize("address", ["memory://secret-bad", "tcp://127.0.0.1:0"])
async def test_with_another_secret_both_are_told(address: str) -> None:
    async with (
        open_network(address, CONFIG, secret=SECRET) as producer,
        open_network(url(), CONFIG, secret=OTHER) as consumer,
    ):
        producer.create_partition("p", subpartitions=1)
        with pytest.raises(AuthenticationFailed, match="shared secret differs") as caught:
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        assert producer.address in str(caught.value)
        assert caught.value.reason is Refusal.SECRETS_DIFFER
        assert refusals(producer) == {Refusal.SECRETS_DIFFER: 1}
        assert_nothing_left(consumer)
        assert_nothing_left_of_connections(producer)


def assert_nothing_left_of_connections(manager: NetworkEnvironment) -> None:
    assert (manager.statistics().accepted, admissions(manager).connections, admissions(manager).unproven) == ((), 0, 0)


@pytest.mark.parametrize("address", ["memory://secret-none", "tcp://127.0.0.1:0"])
async def test_who_has_no_secret_is_told_that_one_is_wanted(address: str) -> None:
    async with (
        open_network(address, CONFIG, secret=SECRET) as producer,
        open_network(url(), CONFIG) as consumer,
    ):
        with pytest.raises(RemoteProtocolError, match="shared secret; configure"):
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        with trio.fail_after(120):
            while not refusals(producer):
                await trio.lowlevel.checkpoint()
        assert refusals(producer) == {Refusal.NO_SECRET: 1}
        assert_nothing_left(consumer)


@pytest.mark.parametrize("address", ["memory://secret-alone", "tcp://127.0.0.1:0"])
async def test_who_asks_for_no_secret_gets_nothing_from_who_has_one(address: str) -> None:
    async with (
        open_network(address, CONFIG) as producer,
        open_network(url(), CONFIG, secret=SECRET) as consumer,
    ):
        with pytest.raises(AuthenticationFailed, match="proves no shared secret") as caught:
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        assert caught.value.reason is Refusal.NO_SECRET
        assert_nothing_left(consumer)
        assert producer.statistics().admission is None


async def test_everybody_who_waits_for_an_attempt_hears_why_it_was_refused(autojump_clock: MockClock) -> None:
    received: list[Refusal] = []
    async with (
        open_network(url(), CONFIG, secret=SECRET) as producer,
        open_network(url(), CONFIG, secret=OTHER) as consumer,
    ):

        async def open_one() -> None:
            try:
                await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
            except AuthenticationFailed as error:
                received.append(error.reason)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(open_one)
        assert received == [Refusal.SECRETS_DIFFER] * 3
        assert_nothing_left(consumer)


async def test_a_peer_that_never_proves_itself_is_given_up_in_time(autojump_clock: MockClock) -> None:
    async def silent(stream: ByteStream) -> None:
        await trio.sleep_forever()

    async with peer(silent) as (address, streams), open_network(url(), CONFIG, secret=SECRET) as consumer:
        with pytest.raises(ConnectionLost, match="within 5 s"):
            await consumer.open_gate([ChannelDescriptor(address, "p")])
        await settle()
        assert_nothing_left(consumer)
        assert await is_closed(streams[0])


async def test_a_flood_of_the_silent_keeps_no_good_peer_out(autojump_clock: MockClock) -> None:
    async with (
        open_network(url(), CONFIG, secret=SECRET) as producer,
        open_network(url(), CONFIG, secret=SECRET) as consumer,
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


async def test_a_manager_that_closes_waits_for_nobody_who_has_not_proven_himself(autojump_clock: MockClock) -> None:
    async with open_network(url(), CONFIG, secret=SECRET) as producer:
        stream = await transport_for(producer.address).connect(producer.address)
        await settle()
        start = trio.current_time()
    assert trio.current_time() == start
    assert await is_closed(stream)


async def cancel_after(turns: int, scope: trio.CancelScope) -> None:
    for _ in range(turns):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_cancelled_at_any_turn_a_proof_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    for turns in itertools.count(1):
        async with (
            open_network(url(), CONFIG, secret=SECRET) as producer,
            open_network(url(), CONFIG, secret=SECRET) as consumer,
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


async def test_streams_that_somebody_else_has_admitted_prove_nothing_and_their_end_is_told(
    autojump_clock: MockClock,
) -> None:
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

    def on_end(stream: ByteStream) -> None:
        ended.append(None)
        routed.admission.left(stream)

    async with (
        network_environment_on(routed, CONFIG, Handshake(on_accepted_end=on_end)) as producer,
        network_environment_on(own, CONFIG, Handshake(secret=SECRET, greet=greet)) as consumer,
    ):
        gate = await read_one(producer, consumer)
        assert greeted == [producer.address]
        assert routed.admission.statistics().connections == 1
        assert ended == []
        gate.close()
        await settle()
        assert ended == [None]
        assert routed.admission.statistics().connections == 0


async def test_a_greeting_that_fails_closes_the_stream_and_is_told(autojump_clock: MockClock) -> None:
    async def greet(stream: ByteStream) -> None:
        raise ConnectionLost("no such run")

    own = await transport_for("memory://greets").listen("memory://greets")
    async with (
        open_network(url(), CONFIG) as producer,
        network_environment_on(own, CONFIG, Handshake(greet=greet)) as consumer,
    ):
        with pytest.raises(ConnectionLost, match="no such run"):
            await consumer.open_gate([ChannelDescriptor(producer.address, "p")])
        await settle()
        assert producer.statistics().accepted == ()
        assert_nothing_left(consumer)
