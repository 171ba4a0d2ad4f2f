"""What peers make us do in control frames leaves most of the loop to everybody else."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, strategies as st
from network.pump_stage import Stage

from netstack.base.errors import ConnectionLost
from netstack.exchange.wire.frames import CancelChannel, Frame, Ping
from netstack.network.connection.fair_share import FREE_SHARE, OTHERS_SHARE, TURN_S, FairShare, WorkAccount
from netstack.network.connection.pump import FRAMES_A_READ, MIN_READ_BYTES, SHORT_READ_BYTES


class Work:
    """Seconds that go by only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def run_floods(floods: int) -> tuple[float, float]:
    work = Work()
    share = FairShare(work)
    flooded = others = 0.0

    async def flood() -> None:
        nonlocal flooded
        while True:
            work.now += TURN_S
            flooded += TURN_S
            await share.pass_on(TURN_S)

    async def honest() -> None:
        nonlocal others
        while work.now < 1.0:
            work.now += 0.0001
            others += 0.0001
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(floods):
            nursery.start_soon(flood)
        nursery.start_soon(honest)
    return flooded, others


@pytest.mark.parametrize("floods", [1, 5, 50])
def test_however_many_flood_the_others_keep_most_of_the_loop(floods: int) -> None:
    flooded, others = trio.run(run_floods, floods)
    # Each of them has had a turn before it stood in line for the first time.
    assert others >= (flooded - floods * TURN_S) * (OTHERS_SHARE - 0.5)
    assert others + floods * TURN_S >= 0.7


def test_who_is_alone_waits_for_nobody() -> None:
    async def main() -> int:
        share = FairShare(Work())
        rounds = 0

        async def count() -> None:
            nonlocal rounds
            while True:
                await trio.lowlevel.checkpoint()
                rounds += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            await trio.lowlevel.checkpoint()
            before = rounds
            await share.pass_on(1000.0)
            nursery.cancel_scope.cancel()
            return rounds - before

    assert trio.run(main) < 10


async def test_who_leaves_the_line_holds_nobody_up() -> None:
    share = FairShare(Work())
    with trio.CancelScope() as scope:
        scope.cancel()
        await share.pass_on(1.0)
    assert scope.cancelled_caught
    with trio.fail_after(120):
        await share.pass_on(1.0)


@given(st.lists(st.tuples(st.floats(0, 0.01), st.floats(0, 0.001), st.integers(0, 1_000_000)), max_size=50))
def test_who_moves_data_owes_nothing_and_who_does_not_owes_what_he_causes(
    turns: list[tuple[float, float, int]],
) -> None:
    now, moved, worked, owed = 0.0, 0, 0.0, 0.0
    account = WorkAccount(now)
    for pause, work, count in turns:
        now += pause
        moved += count
        if account.owes(now, now + work, moved):
            owed += account.settle()
        now += work
        worked += work
    owed += account.settle()
    assert owed <= worked + 1e-9
    assert owed >= worked - now * FREE_SHARE - moved / 256e6 - 1e-9


async def test_a_read_takes_in_as_many_control_frames_as_fit_a_turn() -> None:
    stage = Stage()
    stage.open()
    received = stage.pump.connection.control_frames
    sizes = []
    stage.hear(*[Ping(number) for number in range(50_000)])
    while stage.stream.incoming:
        stage.pump.read_now()
        sizes.append(stage.pump.connection.control_frames - received)
        received = stage.pump.connection.control_frames
    assert max(sizes) <= 2 * FRAMES_A_READ
    assert sum(sizes) >= 49_000


async def test_a_read_that_was_cut_short_says_that_there_is_more() -> None:
    stage = Stage()
    stage.open()
    stage.hear(*[Ping(number) for number in range(2000)])
    assert stage.pump.read_now() >= SHORT_READ_BYTES
    assert len(stage.stream.incoming) > 0
    assert MIN_READ_BYTES < SHORT_READ_BYTES


def test_a_mistake_in_handling_what_a_peer_says_ends_that_peer() -> None:
    async def main() -> None:
        for mistake in (RecursionError("deep"), KeyError("x"), ValueError("\n\x1b[31m"), MemoryError()):
            stage = Stage()
            stage.open()

            def fail(frame: Frame, mistake: Exception = mistake) -> None:
                raise mistake

            stage.endpoint.on_frame = fail  # type: ignore[method-assign]
            stage.hear(CancelChannel(1))
            assert stage.pump.read_now() == 0
            assert stage.pump.is_closed
            (error,) = stage.closed
            assert isinstance(error, ConnectionLost)
            assert error.__cause__ is mistake
            assert type(mistake).__name__ in str(error)
            assert str(error).isprintable()
            assert len(stage.mistakes) == 1

    trio.run(main)


def test_a_mistake_in_collecting_or_in_closing_ends_that_peer() -> None:
    async def main() -> None:
        stage = Stage()
        stage.open()

        def fail(*_: object) -> None:
            raise IndexError("x")

        stage.endpoint.collect = fail  # type: ignore[method-assign]
        stage.endpoint.on_closed = fail  # type: ignore[method-assign]
        stage.wanted()
        stage.pump.write_now()
        assert stage.pump.is_closed
        assert len(stage.closed) == 1
        assert len(stage.pump.landing) == 2  # the memory comes back, whatever fails
        assert len(stage.mistakes) == 2

    trio.run(main)
