"""An impaired line that is cut, stalled or changed while bytes are under way, and who waits for it."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from transports.impaired_line import KIB, connected, dial, laboratory, listen, now, receive, take, url
from trio.testing import MockClock

from netstack.base.errors import ConfigError, ConnectionLost
from netstack_transports.impaired import ImpairmentStatistics, impairment
from netstack_transports.memory import CAPACITY_BYTES

# Cuts.


async def test_a_stream_breaks_after_so_many_bytes(autojump_clock: MockClock) -> None:
    async with connected("cut=10B&delay=1s") as (near, far):
        near.try_send([b"0123456789abc"])
        assert await receive(far, 8) == b"01234567"
        assert take(far) == b"89"
        await far.wait_readable()
        await far.wait_writable()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="after 10 bytes"):
                take(far)
        with pytest.raises(ConnectionLost, match="it was cut after 10 bytes"):
            far.try_send([b"x"])
        await near.wait_readable()
        assert take(near) == b""
        with pytest.raises(ConnectionLost):
            near.try_send([b"x"])


async def test_each_stream_is_cut_for_itself(autojump_clock: MockClock) -> None:
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


async def test_cut_breaks_both_ends_at_once_and_wakes_who_waits(autojump_clock: MockClock) -> None:
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


async def test_a_cut_in_the_turn_in_which_bytes_came_is_no_closed_resource(autojump_clock: MockClock) -> None:
    async with laboratory() as (near, far, lab), trio.open_nursery() as nursery:
        nursery.start_soon(far.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        near.try_send([b"x"])  # the task is scheduled, but has not run
        lab.cut()


async def test_streams_after_a_cut_are_sound(autojump_clock: MockClock) -> None:
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


async def test_nothing_arrives_while_stalled_and_nothing_is_lost(autojump_clock: MockClock) -> None:
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


async def test_a_stall_holds_back_what_was_due_already(autojump_clock: MockClock) -> None:
    async with laboratory() as (near, far, lab):
        near.try_send([b"ab"])
        assert take(far, 1) == b"a"
        lab.stall()
        assert take(far, 1) is None
        lab.heal()
        assert take(far, 1) == b"b"


async def test_a_stalled_end_is_read_when_healed(autojump_clock: MockClock) -> None:
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
async def test_a_changed_delay_holds_for_what_is_under_way(
    autojump_clock: MockClock, delay_s: float, arrives_s: float
) -> None:
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


async def test_what_has_arrived_does_not_go_away_again(autojump_clock: MockClock) -> None:
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
async def test_a_changed_rate_holds_for_what_has_not_left(
    autojump_clock: MockClock, rate: int | None, ends_s: float
) -> None:
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
async def test_a_delay_that_cannot_be(seconds: float) -> None:
    async with laboratory() as (_, _, lab):
        with pytest.raises(ConfigError, match=r"delay_s=.*; give 0 or more seconds"):
            lab.delay_s = seconds
        assert lab.delay_s == 0


@pytest.mark.parametrize("rate", [0, -1.0, float("inf"), float("nan")])
async def test_a_rate_that_cannot_be(rate: float) -> None:
    async with laboratory() as (_, _, lab):
        with pytest.raises(ConfigError, match=r"rate_bytes_per_s=.*; give more than 0"):
            lab.rate_bytes_per_s = rate
        assert lab.rate_bytes_per_s is None


# Waiting.


async def test_who_waits_learns_of_bytes_that_somebody_else_took_in(autojump_clock: MockClock) -> None:
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


async def test_who_waits_learns_of_bytes_that_somebody_else_left_behind(autojump_clock: MockClock) -> None:
    async with connected("") as (near, far):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(far.wait_readable)
            await trio.testing.wait_all_tasks_blocked()
            near.try_send([b"xy"])
            assert take(far, 1) == b"x"
        assert take(far) == b"y"


async def test_who_waits_on_a_full_line_learns_that_somebody_else_made_room(autojump_clock: MockClock) -> None:
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


async def test_closing_wakes_who_waits_on_a_full_line(autojump_clock: MockClock) -> None:
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


async def test_a_closed_stream_that_was_cut_is_closed(autojump_clock: MockClock) -> None:
    async with laboratory() as (near, _, lab):
        lab.cut()
        near.close()
        with pytest.raises(trio.ClosedResourceError):
            await near.wait_readable()


async def test_facts_are_those_underneath(autojump_clock: MockClock) -> None:
    async with connected("") as (near, _):
        assert near.tcp_facts() == {}
    listener = await listen("impaired+tcp://127.0.0.1:0?delay=1ms")
    near = await dial(listener.address)
    far = await listener.accept()
    assert near.tcp_facts()["congestion_control"]
    for closable in (near, far, listener):
        closable.close()
