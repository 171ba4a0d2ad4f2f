"""The door: the good get in whatever the bad do, bounds hold, and every refusal is counted by its reason."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.errors import AuthenticationFailed, ConfigError, NetstackError, Refusal
from netstack.base.transport import ByteStream, Listener, transport_for
from netstack.network.connection.admission import Admission
from netstack.network.connection.authentication import Secret, prove_dialler

SECRET = Secret(b"a secret of all who belong")
OTHER = Secret(b"a secret of somebody else")

numbers = itertools.count()


class _From:
    """A stream that comes from a host."""

    def __init__(self, stream: ByteStream, source: str) -> None:
        self._stream = stream
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def endpoints(self) -> tuple[str, str]:
        return "10.0.0.1:6121", f"{self._source}:50000"


class Door:
    """An acceptor that admits each stream in a task of its own."""

    def __init__(self, admission: Admission, listener: Listener, nursery: trio.Nursery) -> None:
        self.admission = admission
        self.address = listener.address
        self.inside: list[ByteStream] = []
        self.refused: list[AuthenticationFailed] = []
        self._nursery = nursery
        nursery.start_soon(self._serve, listener)

    async def dial(self) -> ByteStream:
        return await transport_for(self.address).connect(self.address)

    async def enter(self, secret: Secret = SECRET) -> ByteStream:
        stream = await self.dial()
        await prove_dialler(stream, secret)
        await settle()
        return stream

    async def _serve(self, listener: Listener) -> None:
        while True:
            self._nursery.start_soon(self._admit, await listener.accept())

    async def _admit(self, stream: ByteStream) -> None:
        try:
            await self.admission.admit(stream)
        except AuthenticationFailed as error:
            self.refused.append(error)
        else:
            self.inside.append(stream)

    def reasons(self) -> list[Refusal]:
        return [error.reason for error in self.refused]

    def counts(self) -> tuple[int, int, int]:
        statistics = self.admission.statistics()
        assert [reason for reason, count in statistics.refused.items() for _ in range(count)] == sorted(
            self.reasons(), key=list(Refusal).index
        )
        return statistics.connections, statistics.unproven, statistics.admitted


@asynccontextmanager
async def door(secret: Secret | None = SECRET, **limits: Any) -> AsyncIterator[Door]:
    address = f"memory://admission-{next(numbers)}"
    listener = await transport_for(address).listen(address)
    async with trio.open_nursery() as nursery:
        yield Door(Admission(secret, timeout_s=10.0, **limits), listener, nursery)
        nursery.cancel_scope.cancel()
    listener.close()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def is_closed(stream: ByteStream) -> bool:
    """Whether the other side has closed."""
    window = memoryview(bytearray(4096))
    with trio.move_on_after(0.001):
        while True:
            await stream.wait_readable()
            if stream.try_receive_into([window]) == 0:
                return True
    return False


async def test_who_proves_the_secret_is_in_until_it_leaves(autojump_clock: MockClock) -> None:
    async with door() as at:
        await at.enter()
        await at.enter()
        assert at.counts() == (2, 0, 2)
        at.admission.left(at.inside[0])
        assert at.counts() == (1, 0, 2)


async def test_who_does_not_is_out_and_counted(autojump_clock: MockClock) -> None:
    async with door() as at:
        with pytest.raises(AuthenticationFailed, match="shared secret differs"):
            await at.enter(OTHER)
        foreign = await at.dial()
        foreign.try_send([b"GET / HTTP/1.1\r\n\r\n"])
        lost = await at.dial()
        lost.close()
        await settle()
        assert at.reasons() == [Refusal.SECRETS_DIFFER, Refusal.NOT_NETSTACK, Refusal.CLOSED]
        assert at.counts() == (0, 0, 0)
        assert await is_closed(foreign)
        await at.enter()
        assert at.counts() == (1, 0, 1)


@pytest.mark.parametrize("message", [b"", b"NSA2", b"NSA2" + bytes(32 + 31)])
async def test_a_peer_that_is_silent_or_slow_is_out_in_time(autojump_clock: MockClock, message: bytes) -> None:
    async with door() as at:
        stream = await at.dial()
        for byte in message:
            stream.try_send([bytes([byte])])
            await trio.sleep(0.1)
        await trio.sleep(9.99 - 0.1 * len(message))
        assert at.counts() == (0, 1, 0)
        await at.enter()
        assert at.counts() == (1, 1, 1)
        await trio.sleep(0.02)
        assert at.counts() == (1, 0, 1)
        assert at.reasons() == [Refusal.TOO_SLOW]
        assert "did not prove the shared secret within 10 s" in str(at.refused[0])
        assert await is_closed(stream)


async def test_a_flood_of_the_silent_keeps_nobody_out(autojump_clock: MockClock) -> None:
    async with door(max_unproven=4) as at:
        silent: list[ByteStream] = []
        for _ in range(50):
            silent.append(await at.dial())
            await settle()
            assert at.counts()[1] <= 4
        await at.enter()
        assert at.counts() == (1, 3, 1)
        assert at.reasons() == [Refusal.CROWDED_OUT] * 47
        assert "before 4 newer connections came" in str(at.refused[0])
        assert [await is_closed(stream) for stream in silent] == [True] * 47 + [False] * 3
        await trio.sleep(11)
        assert at.counts() == (1, 0, 1)


async def test_a_flood_that_goes_on_while_the_good_prove_themselves(autojump_clock: MockClock) -> None:
    async with door(max_unproven=4) as at:

        async def flood() -> None:
            while True:
                await at.dial()
                await trio.sleep(0.01)

        at._nursery.start_soon(flood)
        for _ in range(20):
            await at.enter()
        assert at.counts()[0] == 20


@pytest.mark.parametrize("max_unproven", [1, 2])
@pytest.mark.parametrize("pauses_s", [[0.02 * 2**n for n in range(9)], [0.1, 0.2, 0.4, *[0.8] * 60]])
async def test_honest_peers_that_crowd_each_other_out_all_get_in(
    autojump_clock: MockClock, max_unproven: int, pauses_s: list[float]
) -> None:
    """In step, with a proof that takes longer than the first pauses: of each turn the last ones are admitted."""
    async with door(max_unproven=max_unproven) as at:
        entered: list[float] = []

        async def come() -> None:
            for pause_s in pauses_s:
                stream = await at.dial()
                await trio.sleep(0.2)  # the way of its proof
                try:
                    await prove_dialler(stream, SECRET)
                except (AuthenticationFailed, NetstackError):
                    await trio.sleep(pause_s)
                else:
                    entered.append(trio.current_time())
                    return

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(come)
        await settle()
        assert len(entered) == 8
        assert at.counts() == (8, 0, 8)
        assert Refusal.CROWDED_OUT in at.reasons(), "they did"


async def test_there_is_a_most_of_connections_and_room_again_when_one_leaves(autojump_clock: MockClock) -> None:
    async with door(max_connections=2) as at:
        await at.enter()
        await at.enter()
        with pytest.raises(AuthenticationFailed, match="accepts no more connections"):
            await at.enter()
        assert at.reasons() == [Refusal.FULL]
        assert "2 connections are open, which is max_connections" in str(at.refused[0])
        at.admission.left(at.inside[0])
        await at.enter()
        assert at.counts() == (2, 0, 3)


async def test_of_two_that_prove_themselves_at_once_the_last_place_takes_one(autojump_clock: MockClock) -> None:
    async with door(max_connections=1) as at:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(at.enter)
        assert at.counts() == (1, 0, 1)
        assert at.reasons() == [Refusal.FULL]


async def test_without_a_secret_only_the_most_of_connections_counts(autojump_clock: MockClock) -> None:
    async with door(None, max_connections=2) as at:
        streams = [await at.dial() for _ in range(3)]
        await settle()
        assert at.counts() == (2, 0, 2)
        assert at.reasons() == [Refusal.FULL]
        assert [await is_closed(stream) for stream in streams].count(True) == 1


async def test_cancellation_closes_the_stream_and_frees_the_place(autojump_clock: MockClock) -> None:
    async with door() as at:
        stream = await at.dial()
        await settle()
        assert at.counts() == (0, 1, 0)
        at._nursery.cancel_scope.cancel()
    assert at.counts() == (0, 0, 0)
    window = memoryview(bytearray(100))
    assert stream.try_receive_into([window]) == 36
    assert stream.try_receive_into([window]) == 0


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max_connections": 0}, "max_connections=0; the minimum is 1"),
        ({"max_unproven": 0}, "max_unproven=0; the minimum is 1"),
        ({"timeout_s": 0}, "timeout_s=0 for the proof of a secret"),
    ],
)
def test_bounds_that_let_nobody_in_are_refused(limits: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Admission(SECRET, **{"timeout_s": 1.0, **limits})


async def test_a_host_that_floods_pushes_out_its_own(autojump_clock: MockClock) -> None:
    """Silent peers of one source, any number of them; those of others keep their time, and so does an honest one."""
    address = f"memory://admission-{next(numbers)}"
    listener = await transport_for(address).listen(address)
    admission = Admission(SECRET, timeout_s=10.0, max_unproven=4)
    refused: list[tuple[str, Refusal]] = []

    async def admit(source: str) -> None:
        stream = _From(await listener.accept(), source)
        try:
            await admission.admit(stream)  # type: ignore[arg-type]
        except AuthenticationFailed as error:
            refused.append((source, error.reason))

    async with trio.open_nursery() as nursery:
        dialled = []
        for source in ("quiet", "other", *["flood"] * 30, "new"):
            dialled.append(await transport_for(address).connect(address))
            nursery.start_soon(admit, source)
            await settle()
        assert refused == [("flood", Refusal.CROWDED_OUT)] * 29
        await prove_dialler(dialled[0], SECRET)  # the oldest of all
        await settle()
        assert admission.statistics().connections == 1
        nursery.cancel_scope.cancel()
    listener.close()


async def test_a_host_that_has_proven_itself_leaves_room_for_others(autojump_clock: MockClock) -> None:
    """Of 16 places one host gets 14, however often it dials; and again when it leaves some."""
    address = f"memory://admission-{next(numbers)}"
    listener = await transport_for(address).listen(address)
    admission = Admission(SECRET, timeout_s=10.0, max_connections=16)
    inside: list[_From] = []
    refused: list[str] = []

    async def enter(source: str) -> None:
        dialled = await transport_for(address).connect(address)
        stream = _From(await listener.accept(), source)

        async def admit() -> None:
            try:
                await admission.admit(stream)  # type: ignore[arg-type]
            except AuthenticationFailed as error:
                refused.append(f"{source}: {error.reason.name} {error}")
            else:
                inside.append(stream)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(admit)
            with contextlib.suppress(NetstackError):
                await prove_dialler(dialled, SECRET)

    for _ in range(20):
        await enter("many")
    assert len(inside) == 14
    assert len(refused) == 6
    assert all("its host has 14 connections" in each for each in refused)
    for _ in range(2):
        await enter("another")
    assert admission.statistics().connections == 16
    for stream in inside[:3]:
        admission.left(stream)  # type: ignore[arg-type]
        admission.left(stream)  # type: ignore[arg-type]
    await enter("many")
    assert admission.statistics().connections == 14
    listener.close()
