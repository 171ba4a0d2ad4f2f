"""An impaired stream is late, slow, full, stalled or broken exactly as asked, to the bit of the virtual clock."""

from __future__ import annotations

import errno
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from netstack.errors import ConfigError, ConnectionLost, LocalProtocolError
from netstack.transport import ByteStream, Listener, transport_for
from transports.impaired import Impairment, ImpairmentStatistics, impairment
from transports.memory import CAPACITY_BYTES, MemoryStream

KIB = 1024
MIB = 1024 * KIB

numbers = itertools.count()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs an async test in virtual time; what would hang fails after a virtual day."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        async def main() -> None:
            with trio.fail_after(86_400):
                await test(*arguments, **keywords)

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def url(query: str = "") -> str:
    return f"impaired+memory://impaired-{next(numbers)}{query and '?'}{query}"


async def listen(address: str) -> Listener:
    return await transport_for(address).listen(address)


async def dial(address: str) -> ByteStream:
    return await transport_for(address).connect(address)


@asynccontextmanager
async def connected(query: str) -> AsyncIterator[tuple[ByteStream, ByteStream]]:
    """A pair of streams impaired by these parameters, both of them."""
    listener = await listen(url(query))
    near = await dial(listener.address)
    far = await listener.accept()
    try:
        yield near, far
    finally:
        for closable in (near, far, listener):
            closable.close()


@asynccontextmanager
async def laboratory(query: str = "") -> AsyncIterator[tuple[ByteStream, ByteStream, Impairment]]:
    name = f"lab-{next(numbers)}"
    async with connected(f"{query}{query and '&'}name={name}") as (near, far):
        yield near, far, impairment(name)


def take(stream: ByteStream, size: int = MIB) -> bytes | None:
    """What one try brings; None when nothing is there."""
    window = memoryview(bytearray(size))
    count = stream.try_receive_into([window])
    return None if count is None else bytes(window[:count])


async def receive(stream: ByteStream, size: int) -> bytes:
    received = b""
    while len(received) < size:
        await stream.wait_readable()
        received += take(stream, size - len(received)) or b""
    return received


async def send(stream: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.try_send([rest]) :]
        if rest:
            await stream.wait_writable()


def now() -> float:
    return trio.current_time()


# Delay.


@virtual
async def test_bytes_travel_for_the_delay_each_way() -> None:
    async with connected("delay=5ms") as (near, far):
        near.try_send([b"ping"])
        began = now()
        assert await receive(far, 4) == b"ping"
        assert now() - began == pytest.approx(0.005)
        far.try_send([b"pong"])
        assert await receive(near, 4) == b"pong"
        assert now() - began == pytest.approx(0.010)


@virtual
async def test_nothing_arrives_early() -> None:
    async with connected("delay=5ms") as (near, far):
        near.try_send([b"x"])
        assert take(far) is None
        await trio.sleep(0.0049)
        assert take(far) is None
        await trio.sleep(0.00011)
        assert take(far) == b"x"


@virtual
async def test_what_was_sent_apart_arrives_apart() -> None:
    async with connected("delay=1s") as (near, far):
        received: list[tuple[float, bytes | None]] = []

        async def read() -> None:
            for _ in range(3):
                await far.wait_readable()
                received.append((now(), take(far)))

        began = now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            for piece in (b"a", b"b", b"c"):
                near.try_send([piece])
                await trio.sleep(0.25)
        assert received == [
            (pytest.approx(began + 1 + 0.25 * index), piece) for index, piece in enumerate([b"a", b"b", b"c"])
        ]


@virtual
async def test_a_dialler_without_the_parameters_impairs_nothing() -> None:
    listener = await listen(url("delay=1s"))
    plain, _, _ = listener.address.removeprefix("impaired+").partition("?")
    near = await dial(plain)
    far = await listener.accept()
    near.try_send([b"x"])
    far.try_send([b"y"])
    assert take(near) == b"y"
    began = now()
    assert await receive(far, 1) == b"x"
    assert now() - began == pytest.approx(1)
    for closable in (near, far, listener):
        closable.close()


@virtual
async def test_the_end_travels_behind_the_bytes() -> None:
    async with connected("delay=1s") as (near, far):
        near.try_send([b"last"])
        assert take(far) is None
        await trio.sleep(0.5)
        near.send_eof()
        began = now()
        assert await receive(far, 4) == b"last"
        assert now() - began == pytest.approx(0.5)
        assert take(far) is None
        await far.wait_readable()
        assert now() - began == pytest.approx(1)
        assert take(far) == take(far) == b""
        far.try_send([b"still open"])
        assert await receive(near, 10) == b"still open"


@virtual
async def test_a_broken_stream_underneath_breaks_behind_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected("delay=1s") as (near, far):
        near.try_send([b"last"])
        assert take(far) is None

        def broken(self: MemoryStream, windows: object) -> int | None:
            raise ConnectionLost("the cable caught fire")

        monkeypatch.setattr(MemoryStream, "try_receive_into", broken)
        began = now()
        assert await receive(far, 4) == b"last"
        await far.wait_readable()
        assert now() - began == pytest.approx(1)
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="the cable caught fire"):
                take(far)


# Rate.


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 1.0])
@virtual
async def test_the_rate_is_exact(delay_s: float) -> None:
    rate, total = 100 * KIB, 120 * KIB
    async with connected(f"rate=100KiB&delay={delay_s}s") as (near, far):
        began = now()
        received = 0

        async def read() -> None:
            nonlocal received
            while received < total:
                await far.wait_readable()
                received += len(take(far) or b"")
                flown_s = now() - began - delay_s
                # Never more than the line carries; never less by more than the portion under way.
                assert received <= rate * flown_s + 1
                assert received >= min(total, rate * flown_s) - rate * 0.001 - 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await send(near, bytes(total))
        assert now() - began == pytest.approx(total / rate + delay_s)


@virtual
async def test_an_idle_line_saves_nothing_up() -> None:
    async with connected("rate=1KiB") as (near, far):
        await trio.sleep(10)
        near.try_send([bytes(KIB)])
        began = now()
        await receive(far, KIB)
        assert now() - began == pytest.approx(1)


@virtual
async def test_a_short_message_waits_behind_a_long_one() -> None:
    async with connected("rate=100KiB&delay=1s") as (near, far):
        near.try_send([bytes(50 * KIB)])
        near.try_send([b"x"])
        began = now()
        assert (await receive(far, 50 * KIB + 1))[-1:] == b"x"
        assert now() - began == pytest.approx(1.5, abs=1e-4)


# Back-pressure.


@pytest.mark.parametrize(
    ("query", "bound"), [("queue=64KiB", 64 * KIB), ("queue=64KiB&rate=100KiB&delay=2s", 264 * KIB)]
)
@virtual
async def test_a_full_line_takes_nothing_more(query: str, bound: int) -> None:
    data = bytes(range(251)) * (4 * KIB)
    async with laboratory(query) as (near, far, lab):
        lab.stall()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.wait_readable)
            sent = 0
            with trio.move_on_after(1000):
                while True:
                    sent += near.try_send([data[sent:]])
                    await near.wait_writable()
            assert sent == bound + CAPACITY_BYTES
            assert lab.statistics() == ImpairmentStatistics(bytes_delivered=0, bytes_held=bound, streams=2)
            nursery.cancel_scope.cancel()
        lab.heal()
        assert await receive(far, sent) == data[:sent]
        assert lab.statistics() == ImpairmentStatistics(bytes_delivered=sent, bytes_held=0, streams=2)


@virtual
async def test_without_a_rate_the_queue_bounds_the_throughput() -> None:
    async with connected("queue=64KiB&delay=1s") as (near, far):
        began = now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, near, bytes(512 * KIB))
            await receive(far, 512 * KIB)
        assert now() - began == pytest.approx(8)


# Cuts.


@virtual
async def test_a_stream_breaks_after_so_many_bytes() -> None:
    async with connected("cut=10B&delay=1s") as (near, far):
        near.try_send([b"0123456789abc"])
        assert await receive(far, 8) == b"01234567"
        assert take(far) == b"89"
        await far.wait_readable()
        await far.wait_writable()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match=r"the connection to .* broke: it was cut after 10 bytes"):
                take(far)
        with pytest.raises(ConnectionLost, match="it was cut after 10 bytes"):
            far.try_send([b"x"])
        await near.wait_readable()
        assert take(near) == b""
        with pytest.raises(ConnectionLost):
            near.try_send([b"x"])


@virtual
async def test_each_stream_is_cut_for_itself() -> None:
    listener = await listen(url("cut=2B"))
    for _ in range(2):
        near = await dial(listener.address)
        far = await listener.accept()
        near.try_send([b"abc"])
        assert await receive(far, 2) == b"ab"
        with pytest.raises(ConnectionLost):
            take(far)
        near.close()
        far.close()
    listener.close()


@virtual
async def test_cut_breaks_both_ends_at_once_and_wakes_who_waits() -> None:
    async with laboratory("delay=1h") as (near, far, lab):
        far.try_send([bytes(CAPACITY_BYTES)])
        near.try_send([b"never seen"])
        async with trio.open_nursery() as nursery:
            for wait in (near.wait_readable, far.wait_readable, far.wait_writable):
                nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(1)
            far.try_send([bytes(CAPACITY_BYTES)])
            began = now()
            lab.cut()
        assert now() == began
        for stream in (near, far):
            await stream.wait_readable()
            await stream.wait_writable()
            for attempt in (lambda stream=stream: take(stream), lambda stream=stream: stream.try_send([b"x"])):
                with pytest.raises(ConnectionLost, match=r"the connection to .* broke: it was cut"):
                    attempt()
        assert lab.statistics().streams == 0
        lab.cut()


@virtual
async def test_a_cut_in_the_turn_in_which_bytes_came_is_no_closed_resource() -> None:
    async with laboratory() as (near, far, lab), trio.open_nursery() as nursery:
        nursery.start_soon(far.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        near.try_send([b"x"])  # the task is scheduled, but has not run
        lab.cut()


@virtual
async def test_streams_after_a_cut_are_sound() -> None:
    listener = await listen(url("name=again"))
    first = await dial(listener.address), await listener.accept()
    impairment("again").cut()
    near, far = await dial(listener.address), await listener.accept()
    near.try_send([b"x"])
    assert await receive(far, 1) == b"x"
    assert impairment("again").statistics() == ImpairmentStatistics(bytes_delivered=1, bytes_held=0, streams=2)
    for closable in (*first, near, far, listener):
        closable.close()


# Stalls, and changes at run time.


@virtual
async def test_nothing_arrives_while_stalled_and_nothing_is_lost() -> None:
    async with laboratory("delay=1s") as (near, far, lab):
        near.try_send([b"before "])
        assert take(far) is None
        await trio.sleep(0.5)
        lab.stall()
        lab.stall()
        assert lab.is_stalled
        near.try_send([b"during"])
        began = now()

        async def heal() -> None:
            await trio.sleep(100)
            lab.heal()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(heal)
            assert await receive(far, 13) == b"before during"
            assert now() - began == pytest.approx(100)
        assert not lab.is_stalled
        near.try_send([b"after"])
        assert await receive(far, 5) == b"after"
        assert now() - began == pytest.approx(101)


@virtual
async def test_a_stall_holds_back_what_was_due_already() -> None:
    async with laboratory() as (near, far, lab):
        near.try_send([b"ab"])
        assert take(far, 1) == b"a"
        lab.stall()
        assert take(far, 1) is None
        lab.heal()
        assert take(far, 1) == b"b"


@virtual
async def test_a_stalled_end_is_read_when_healed() -> None:
    async with laboratory() as (near, far, lab):
        lab.stall()
        near.send_eof()
        with trio.move_on_after(10) as scope:
            await far.wait_readable()
        assert scope.cancelled_caught
        assert take(far) is None
        lab.heal()
        await far.wait_readable()
        assert take(far) == b""


@pytest.mark.parametrize(("delay_s", "arrives_s"), [(0.0, 1.0), (2.0, 2.0), (20.0, 20.0)])
@virtual
async def test_a_changed_delay_holds_for_what_is_under_way(delay_s: float, arrives_s: float) -> None:
    async with laboratory("delay=10s") as (near, far, lab):
        near.try_send([b"x"])
        began = now()

        async def change() -> None:
            await trio.sleep(1)
            lab.delay_s = delay_s
            assert lab.delay_s == delay_s

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            assert await receive(far, 1) == b"x"
        assert now() - began == pytest.approx(arrives_s)


@virtual
async def test_what_has_arrived_does_not_go_away_again() -> None:
    async with laboratory("delay=1s") as (near, far, lab):
        near.try_send([b"ab"])
        assert take(far) is None
        await trio.sleep(1)
        lab.delay_s = 10
        near.try_send([b"c"])
        assert take(far) == b"ab"
        began = now()
        assert await receive(far, 1) == b"c"
        assert now() - began == pytest.approx(10)


@pytest.mark.parametrize(("rate", "ends_s"), [(200 * KIB, 2.0), (50 * KIB, 5.0), (None, 1.0)])
@virtual
async def test_a_changed_rate_holds_for_what_has_not_left(rate: int | None, ends_s: float) -> None:
    async with laboratory("rate=100KiB&delay=1s") as (near, far, lab):
        near.try_send([bytes(200 * KIB)])
        began = now()

        async def change() -> None:
            await trio.sleep(1)
            lab.rate_bytes_per_s = rate
            assert lab.rate_bytes_per_s == rate

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await receive(far, 200 * KIB)
        # After a second half of it has left; the other half takes 0.5 s, 2 s, nothing; and then the way.
        assert now() - began == pytest.approx({2.0: 2.5, 5.0: 4.0, 1.0: 2.0}[ends_s], abs=0.0011)


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_delay_that_cannot_be(seconds: float) -> None:
    async def test() -> None:
        async with laboratory() as (_, _, lab):
            with pytest.raises(ConfigError, match=r"delay_s=.*; give 0 or more seconds"):
                lab.delay_s = seconds
            assert lab.delay_s == 0

    trio.run(test)


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_cannot_be(rate: float) -> None:
    async def test() -> None:
        async with laboratory() as (_, _, lab):
            with pytest.raises(ConfigError, match=r"rate_bytes_per_s=.*; give more than 0 bytes a second, or None"):
                lab.rate_bytes_per_s = rate
            assert lab.rate_bytes_per_s is None

    trio.run(test)


# Waiting.


@virtual
async def test_who_waits_learns_of_bytes_that_somebody_else_took_in() -> None:
    """A reader's task waits for the stream underneath, and another task polls: then nothing is to be seen there."""
    async with connected("delay=1s") as (near, far):
        began = now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.wait_readable)
            await trio.testing.wait_all_tasks_blocked()
            near.try_send([b"xy"])
            assert take(far) is None
        assert now() - began == pytest.approx(1)
        assert take(far) == b"xy"


@virtual
async def test_who_waits_learns_of_bytes_that_somebody_else_left_behind() -> None:
    async with connected("") as (near, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.wait_readable)
            await trio.testing.wait_all_tasks_blocked()
            near.try_send([b"xy"])
            assert take(far, 1) == b"x"
        assert take(far) == b"y"


@virtual
async def test_who_waits_on_a_full_line_learns_that_somebody_else_made_room() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with connected("queue=2B&delay=1s") as (near, far):
        near.try_send([b"abcd"])
        began = now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.wait_readable)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(1)  # due, but the task that waits does not run before this one has taken it
            assert take(far) == b"ab"
        assert now() - began == pytest.approx(2)
        assert take(far) == b"cd"


@virtual
async def test_closing_wakes_who_waits_on_a_full_line() -> None:
    async with laboratory("queue=1B") as (near, far, lab):
        near.try_send([b"xy"])
        lab.stall()

        async def wait() -> None:
            with pytest.raises(trio.ClosedResourceError, match="was closed"):
                await far.wait_readable()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            far.close()
        with pytest.raises(ConnectionLost, match="it is closed"):
            take(far)
        await near.wait_writable()


@virtual
async def test_a_closed_stream_that_was_cut_is_closed() -> None:
    async with laboratory() as (near, _, lab):
        lab.cut()
        near.close()
        with pytest.raises(trio.ClosedResourceError):
            await near.wait_readable()


@virtual
async def test_facts_are_those_underneath() -> None:
    async with connected("") as (near, _):
        assert near.tcp_facts() == {}
    listener = await listen("impaired+tcp://127.0.0.1:0?delay=1ms")
    near = await dial(listener.address)
    far = await listener.accept()
    assert near.tcp_facts()["congestion_control"]
    for closable in (near, far, listener):
        closable.close()


# Addresses and names.


def test_the_address_of_a_listener_is_to_be_dialled_as_it_is() -> None:
    async def test() -> None:
        listener = await listen("impaired+tcp://127.0.0.1:0?delay=5ms&rate=1MiB&name=address")
        base, query = listener.address.split("?")
        assert base.startswith("impaired+tcp://127.0.0.1:")
        assert not base.endswith(":0")
        assert query == "delay=5ms&rate=1MiB&name=address"
        near = await dial(listener.address)
        far = await listener.accept()
        assert impairment("address").statistics().streams == 2
        assert impairment("address").delay_s == 0.005
        assert impairment("address").rate_bytes_per_s == MIB
        for closable in (near, far, listener):
            closable.close()

    trio.run(test)


@virtual
async def test_no_parameters_at_all(tmp_path: Path) -> None:
    address = f"impaired+unix://{tmp_path}/socket"
    listener = await listen(address)
    assert listener.address == address
    listener.close()


@virtual
async def test_errors_name_the_whole_address() -> None:
    address = url("delay=1ms&name=errors")
    with pytest.raises(ConnectionLost) as lost:
        await dial(address)
    assert address in str(lost.value)
    listener = await listen(address)
    with pytest.raises(OSError, match="the name is in use") as refused:
        await listen(address)
    assert address in str(refused.value)
    assert refused.value.errno == errno.EADDRINUSE
    listener.close()
    with pytest.raises(LocalProtocolError):
        impairment("errors")


@virtual
async def test_a_name_lasts_as_long_as_something_is_open() -> None:
    listener = await listen(url("name=life&delay=1s"))
    lab = impairment("life")
    near = await dial(listener.address)
    listener.close()
    listener.close()
    assert impairment("life") is lab
    near.close()
    near.close()
    with pytest.raises(LocalProtocolError, match=r"impaired under name=life; open one first \(known: none\)"):
        impairment("life")
    listener = await listen(url("name=life"))
    assert impairment("life") is not lab
    assert impairment("life").delay_s == 0
    with pytest.raises(LocalProtocolError, match=r"known: life"):
        impairment("other")
    listener.close()


@virtual
async def test_a_name_has_one_set_of_parameters() -> None:
    listener = await listen(url("name=one&delay=1s"))
    for attempt in (listen, dial):
        with pytest.raises(ConfigError, match="name=one is open with other parameters; give the same, or another name"):
            await attempt(url("name=one&delay=2s"))
    other = await listen(url("delay=1000ms&name=one"))
    listener.close()
    assert impairment("one").delay_s == 1
    other.close()


@virtual
async def test_cancelled_calls_leave_no_name_behind() -> None:
    listener = await listen(url())
    for attempt, address in ((listen, url("name=cancelled")), (dial, f"{listener.address}?name=cancelled")):
        with trio.CancelScope() as scope:
            scope.cancel()
            await attempt(address)
        assert scope.cancelled_caught
        with pytest.raises(LocalProtocolError):
            impairment("cancelled")
    listener.close()
