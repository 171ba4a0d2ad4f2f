"""An impaired line: its delay, rate and bounds, and the addresses it goes by."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
import trio.testing
from transports.impaired_line import KIB, MIB, connected, dial, laboratory, listen, now, receive, take, url
from trio.testing import MockClock

from netstack.base.errors import ConfigError, ConnectionLost, LocalProtocolError
from netstack.base.transport import ByteStream
from netstack_transports.impaired import MOST_LEAD_S, ImpairmentStatistics, _ImpairedStream, impairment
from netstack_transports.memory import CAPACITY_BYTES, MemoryStream


async def send(stream: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.try_send([rest]) :]
        if rest:
            await stream.wait_writable()


# Delay.


async def test_bytes_travel_for_the_delay_each_way(autojump_clock: MockClock) -> None:
    async with connected("delay=5ms") as (near, far):
        near.try_send([b"ping"])
        began = now()
        assert await receive(far, 4) == b"ping"
        assert now() - began == pytest.approx(0.005)
        far.try_send([b"pong"])
        assert await receive(near, 4) == b"pong"
        assert now() - began == pytest.approx(0.010)


async def test_nothing_arrives_early(autojump_clock: MockClock) -> None:
    async with connected("delay=5ms") as (near, far):
        near.try_send([b"x"])
        assert take(far) is None
        await trio.sleep(0.0049)
        assert take(far) is None
        await trio.sleep(0.00011)
        assert take(far) == b"x"


async def test_what_was_sent_apart_arrives_apart(autojump_clock: MockClock) -> None:
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


async def test_a_dialler_without_the_parameters_impairs_nothing(autojump_clock: MockClock) -> None:
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


async def test_the_end_travels_behind_the_bytes(autojump_clock: MockClock) -> None:
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


async def test_a_broken_stream_underneath_breaks_behind_the_bytes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
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
async def test_the_rate_is_exact(autojump_clock: MockClock, delay_s: float) -> None:
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


async def test_an_idle_line_saves_nothing_up(autojump_clock: MockClock) -> None:
    async with connected("rate=1KiB") as (near, far):
        await trio.sleep(10)
        near.try_send([bytes(KIB)])
        began = now()
        await receive(far, KIB)
        assert now() - began == pytest.approx(1)


async def test_a_short_message_waits_behind_a_long_one(autojump_clock: MockClock) -> None:
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
async def test_a_full_line_takes_nothing_more(autojump_clock: MockClock, query: str, bound: int) -> None:
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


async def test_without_a_rate_the_queue_bounds_the_throughput(autojump_clock: MockClock) -> None:
    async with connected("queue=64KiB&delay=1s") as (near, far):
        began = now()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, near, bytes(512 * KIB))
            await receive(far, 512 * KIB)
        assert now() - began == pytest.approx(8)


async def test_tcp_s_window_opens_while_somebody_waits(autojump_clock: MockClock) -> None:
    """Slow start: 10 frames, then 20, 40 ..., a round trip each; then the line is full."""
    size = 4 * MIB
    async with connected("delay=50ms&rate=100Mbit&queue=1250KB&congestion=cubic") as (near, far):
        began = now()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, near, bytes(size))
                await receive(far, 14_480)
                first_s = now() - began
                await receive(far, 14_480)
                second_s = now() - began
                await receive(far, size - 28_960)
        assert first_s == pytest.approx(0.05, abs=0.003)
        assert second_s == pytest.approx(0.15, abs=0.003)
        assert 0.05 + size / 12.5e6 < now() - began < 0.8 + size / 12.5e6


# Addresses and names.


async def test_the_address_of_a_listener_is_to_be_dialled_as_it_is() -> None:
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


async def test_no_parameters_at_all(autojump_clock: MockClock, tmp_path: Path) -> None:
    address = f"impaired+unix://{tmp_path}/socket"
    listener = await listen(address)
    assert listener.address == address
    listener.close()


async def test_errors_name_the_whole_address(autojump_clock: MockClock) -> None:
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


async def test_a_name_lasts_as_long_as_something_is_open(autojump_clock: MockClock) -> None:
    listener = await listen(url("name=life&delay=1s"))
    lab = impairment("life")
    near = await dial(listener.address)
    listener.close()
    listener.close()
    assert impairment("life") is lab
    near.close()
    near.close()
    with pytest.raises(LocalProtocolError, match="name=life; open one first"):
        impairment("life")
    listener = await listen(url("name=life"))
    assert impairment("life") is not lab
    assert impairment("life").delay_s == 0
    with pytest.raises(LocalProtocolError, match=r"known: life"):
        impairment("other")
    listener.close()


async def test_a_name_has_one_set_of_parameters(autojump_clock: MockClock) -> None:
    listener = await listen(url("name=one&delay=1s"))
    for attempt in (listen, dial):
        with pytest.raises(ConfigError, match="name=one is open with other parameters"):
            await attempt(url("name=one&delay=2s"))
    other = await listen(url("delay=1000ms&name=one"))
    listener.close()
    assert impairment("one").delay_s == 1
    other.close()


async def test_cancelled_calls_leave_no_name_behind(autojump_clock: MockClock) -> None:
    listener = await listen(url())
    for attempt, address in ((listen, url("name=cancelled")), (dial, f"{listener.address}?name=cancelled")):
        with trio.CancelScope() as scope:
            scope.cancel()
            await attempt(address)
        assert scope.cancelled_caught
        with pytest.raises(LocalProtocolError):
            impairment("cancelled")
    listener.close()


@pytest.mark.parametrize(("late_s", "lead_s"), [(0.0001, 0.0001), (0.01, MOST_LEAD_S)])
def test_a_wait_ends_when_its_bytes_are_due_once_it_is_known_how_late_it_ends(
    monkeypatch: pytest.MonkeyPatch, late_s: float, lead_s: float
) -> None:
    stream = object.__new__(_ImpairedStream)
    stream._lead_s = 0.0
    now = due_at = 0.0

    def clock() -> float:
        nonlocal now
        now += 1e-6
        return now

    monkeypatch.setattr(trio, "current_time", clock)
    for _ in range(60):
        due_at += 1.0
        now = due_at - stream._lead_s + late_s
        stream._poll_until(due_at)
        assert now >= due_at, "nothing arrives early"
    assert stream._lead_s == pytest.approx(lead_s, rel=0.05)
    assert now - due_at == pytest.approx(late_s - lead_s, abs=1e-5)
    before_s, now = stream._lead_s, 99.0
    stream._poll_until(100.0)
    assert (stream._lead_s, now) == (before_s, pytest.approx(99.0, abs=1e-5)), "`look_again` ended the wait"
