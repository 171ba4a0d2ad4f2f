"""Looking before parking: no wake-up is lost, an idle wait costs nothing, others get their turn."""

from __future__ import annotations

import socket
from functools import partial

import pytest
import trio
from hypothesis import given, strategies as st
from network.pump_stage import Stage

from netstack.base.timing.wakeup import Signal
from netstack.network.connection import readiness
from netstack.network.connection.readiness import Readiness
from netstack.network.waiting.spin import (
    AVERAGES,
    BUSY_S,
    FIRST_TURN_S,
    LATE_S,
    LOST_S,
    LOST_SHARE,
    MOST_S_OFF,
    VAIN_SHARE,
    WAITS_OFF,
    WORKING_LIMIT_S,
    Spinner,
)

LIMIT_S = 0.002
LOOK_S = 0.000_002


class World:
    """A clock that each look moves on, and data that is there from a moment on."""

    def __init__(self, *, cores: int = 2) -> None:
        self.now = 0.0
        self.looks = 0
        self.looked = 0
        self.finds = True
        self.others_s = 0.0
        self.switch_every_s = 1e9
        self.parks = 0
        self.due = 0.0
        self.yield_s = 0.0
        self.hiccup_s = 0.0
        self.spinner = Spinner(
            clock=lambda: self.now,
            relax=self.relax,
            pass_on=self.pass_on,
            cores=lambda: cores,
            switches=lambda: int(self.now / self.switch_every_s),
        )

    def relax(self) -> None:
        self.now += self.yield_s + self.hiccup_s
        self.hiccup_s = 0.0

    async def pass_on(self) -> None:
        self.now += self.others_s
        await trio.lowlevel.checkpoint()

    def look(self) -> bool:
        self.looks += 1
        self.looked += 1
        self.now += LOOK_S
        return self.finds and self.now >= self.due

    async def park(self) -> None:
        self.parks += 1
        self.now = max(self.now, self.due)

    async def wait(self, seconds: float, limit_s: float = LIMIT_S) -> tuple[int, int]:
        """Waits for what comes in so many seconds; returns the looks and the parks that took."""
        self.looks = self.parks = 0
        self.due = self.now + seconds
        await self.spinner.wait(limit_s, self.look, self.park)
        assert self.now >= self.due
        return self.looks, self.parks

    async def settle(self, seconds: float) -> None:
        for _ in range(40):
            await self.wait(seconds)


@given(waits=st.lists(st.floats(0, 0.01), max_size=80))
def test_a_wait_ends_when_it_is_over_and_spins_no_longer_than_it_may(waits: list[float]) -> None:
    async def main() -> None:
        world = World()
        for seconds in waits:
            began = world.now
            looks, parks = await world.wait(seconds)
            assert parks <= 1
            assert looks * LOOK_S <= LIMIT_S + 3 * LOOK_S
            if not parks:
                assert world.now - began <= max(seconds, LIMIT_S) + 3 * LOOK_S

    trio.run(main)


async def test_it_parks_until_it_has_seen_data_come_fast() -> None:
    world = World()
    assert await world.wait(0.000_05) == (0, 1)
    await world.settle(0.000_05)
    looks, parks = await world.wait(0.000_05)
    assert looks
    assert not parks


async def test_an_idle_wait_is_not_spun_for() -> None:
    world = World()
    await world.settle(0.000_05)
    for _ in range(3):
        await world.wait(10.0)
    assert [await world.wait(10.0) for _ in range(20)] == [(0, 1)] * 20


async def test_the_end_of_a_burst_costs_a_few_waits_and_not_the_limit() -> None:
    world = World()
    await world.settle(0.000_05)
    looks, parks = await world.wait(10.0)
    assert parks == 1
    assert looks * LOOK_S <= AVERAGES * 0.000_06 + FIRST_TURN_S + 2 * LOOK_S


async def test_who_gets_the_processor_back_late_and_in_vain_leaves_it_to_others() -> None:
    world = World()
    await world.settle(0.000_05)
    world.yield_s = LOST_S + LOOK_S
    assert await world.wait(0.001) == (1, 1)
    assert [await world.wait(0.000_05) for _ in range(WAITS_OFF)] == [(0, 1)] * WAITS_OFF
    assert await world.wait(0.001) == (1, 1), "and once more"
    off = 2 * WAITS_OFF
    assert [await world.wait(0.000_05) for _ in range(off)] == [(0, 1)] * off
    world.yield_s = 2 * LATE_S
    assert await world.wait(LATE_S) == (1, 0), "data came, and had to wait"
    off *= 2
    assert [await world.wait(0.000_05) for _ in range(off)] == [(0, 1)] * off
    world.yield_s = 0.0
    looks, parks = await world.wait(0.000_05)
    assert looks
    assert not parks


async def test_who_works_between_waits_spins_for_a_round_trip_only() -> None:
    world = World()
    for _ in range(40):
        await world.wait(0.001)
        world.now += 0.001
    assert await world.wait(0.001) == (0, 1)
    for _ in range(40):
        await world.wait(0.000_05)
        world.now += 0.000_1
    looks, parks = await world.wait(0.000_05)
    assert looks
    assert not parks
    looks, parks = await world.wait(0.001)
    assert parks
    assert looks * LOOK_S <= WORKING_LIMIT_S + 3 * LOOK_S


async def test_who_is_late_now_and_then_looks_on() -> None:
    world = World()
    await world.settle(0.001)
    for _ in range(50):
        for world.hiccup_s in (2 * BUSY_S, 0.0, 0.0, 0.0):
            looks, parks = await world.wait(0.001)
            assert looks
            assert not parks
    assert 3 * 0.001 * LOST_SHARE > 2 * BUSY_S - 0.001 * LOST_SHARE, "they are a smaller part of the time spun"


async def test_who_is_late_every_time_leaves_the_processor_to_others() -> None:
    world = World()
    await world.settle(0.001)
    parked = []
    for _ in range(20):
        world.hiccup_s = 2 * BUSY_S
        parked.append((await world.wait(0.001))[1])
    assert sum(parked) >= WAITS_OFF
    assert parked[:2] == [0, 0]


async def test_of_slow_data_it_is_tried_again_soon() -> None:
    world = World()
    await world.settle(0.001)
    for _ in range(7):
        world.yield_s = 2 * LATE_S
        while not (await world.wait(0.001))[0]:
            pass
    world.yield_s = 0.0
    off = 0
    while not (await world.wait(0.001))[0]:
        off += 1
    assert off == pytest.approx(MOST_S_OFF / 0.001, abs=2)


async def test_a_limit_of_0_parks() -> None:
    world = World()
    await world.settle(0.000_05)
    assert await world.wait(0.000_05, 0.0) == (0, 1)


async def test_who_has_one_core_parks() -> None:
    world = World(cores=1)
    await world.settle(0.000_05)
    assert await world.wait(0.000_05) == (0, 1)


@given(
    waits=st.lists(st.tuples(st.floats(0, 0.004), st.booleans()), min_size=1, max_size=40),
    repeats=st.integers(1, 60),
)
def test_who_never_finds_anything_spins_for_a_twentieth_of_the_time_at_most(
    waits: list[tuple[float, bool]], repeats: int
) -> None:
    """Whatever ends the waits: the loop's own task took what came, or others of the loop had work."""

    async def main() -> None:
        world = World()
        world.finds = False
        began = world.now
        for seconds, others_work in waits * repeats:
            world.others_s = 2 * BUSY_S if others_work else 0.0
            await world.wait(seconds)
        spun_s = world.looked * LOOK_S
        assert spun_s <= LOST_S / VAIN_SHARE + LIMIT_S + 0.05 * (world.now - began)

    trio.run(main)


@pytest.mark.parametrize(("every_s", "spins"), [(0.001, False), (0.000_5, False), (0.02, True)])
async def test_who_shares_its_core_leaves_it_to_others(every_s: float, spins: bool) -> None:
    """The yields are short, and each wait is a success: only the kernel's count of switches tells."""
    world = World()
    world.switch_every_s = every_s
    await world.settle(0.001)
    began, world.looked = world.now, 0
    for _ in range(3000):
        await world.wait(0.001)
    share = world.looked * LOOK_S / (world.now - began)
    assert share > 0.9 if spins else share < 0.1


async def test_other_tasks_have_their_turn_and_what_they_bring_is_seen() -> None:
    world = World()
    await world.settle(0.001)
    signal = Signal()
    actual = False

    async def other() -> None:
        nonlocal actual
        await trio.lowlevel.checkpoint()
        actual = True
        signal.wake()  # nobody is parked: what looks must see it

    def look() -> bool:
        world.now += LOOK_S
        return actual

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        with trio.fail_after(5):
            await world.spinner.wait(LIMIT_S, look, signal.wait)
    assert actual


async def test_a_spinning_task_can_be_cancelled() -> None:
    world = World()
    await world.settle(0.001)
    with trio.CancelScope() as scope:
        scope.cancel()
        world.due = 1e9
        await world.spinner.wait(LIMIT_S, world.look, trio.sleep_forever)
    assert scope.cancelled_caught


async def test_of_many_sockets_those_are_asked_that_may_have_something() -> None:
    pairs = [socket.socketpair() for _ in range(readiness.FEW + 3)]
    asked = Readiness()
    assert not asked.only_sockets
    stages = [Stage() for _ in pairs]
    for stage, (ours, _) in zip(stages, pairs, strict=True):
        stage.stream.descriptor = ours.fileno  # type: ignore[method-assign]
        asked.add(stage.pump)
    try:
        assert asked.only_sockets
        assert asked.ready() == []
        pairs[2][1].send(b"x")
        assert asked.ready() == [stages[2].pump]
        asked.discard(stages[2].pump)
        asked.discard(stages[2].pump)
        assert asked.ready() == []
        always = Stage()
        asked.add(always.pump)
        assert asked.ready() == [always.pump]
        assert not asked.only_sockets
        pairs[0][0].close()  # before its pump is known to be over
        assert asked.ready() == [always.pump, stages[0].pump]
        stages[0].pump.abort(None)
        assert asked.ready() == [always.pump]
    finally:
        for ours, theirs in pairs:
            ours.close()
            theirs.close()


async def test_streams_that_know_what_has_come_are_not_read_in_vain() -> None:
    asked = Readiness()
    stages = [Stage() for _ in range(readiness.FEW + 2)]
    came: list[Stage] = []
    for stage in stages:
        stage.stream.has_come = partial(came.__contains__, stage)  # type: ignore[method-assign]
        asked.add(stage.pump)
    assert asked.may_spin
    assert not asked.only_sockets, "a thread cannot wait for them"
    assert asked.ready() == []
    came.append(stages[1])
    assert asked.ready() == [stages[1].pump]
    asked.discard(stages[1].pump)
    assert asked.ready() == []
    blind = Stage()
    asked.add(blind.pump)
    assert asked.ready() == [blind.pump]
    assert not asked.may_spin
