"""A pump with its tasks: a full stream, data that comes while nobody asks, goodbyes, silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
import trio.testing
from network.pump_stage import CODEC, HELLO, Stage
from trio.testing import MockClock

from netstack.base.errors import ConnectionLost
from netstack.exchange.wire.frames import AddCredit, Goodbye
from netstack.network.connection.pump import DRAIN_S


@pytest.fixture
def stage() -> Stage:
    return Stage()


# With its tasks.


def with_tasks(scenario: Callable[[Stage], Callable[[], None] | None]) -> Stage:
    """Runs the pump's tasks, the scenario, and then (after everything has settled) what the scenario returned."""
    stages: list[Stage] = []

    async def main() -> None:
        stage = Stage()
        stages.append(stage)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.pump.run, None, 1.0)
            await trio.testing.wait_all_tasks_blocked()
            check = scenario(stage)
            await trio.testing.wait_all_tasks_blocked()
            if check is not None:
                check()
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    return stages[0]


def test_a_full_stream_is_gone_on_with_when_it_has_room() -> None:
    def scenario(stage: Stage) -> Callable[[], None]:
        stage.open()
        stage.stream.room = 30
        stage.endpoint.add(b"x" * 40)
        stage.wanted()
        stage.pump.write_now()

        def more() -> None:
            assert stage.endpoint.recycled == 0
            stage.stream.room = 1000
            stage.stream.change()

        return more

    stage = with_tasks(scenario)
    assert stage.endpoint.recycled == 1
    assert stage.stream.sent.endswith(b"x" * 40)


def test_data_that_comes_while_nobody_asks_is_read() -> None:
    def scenario(stage: Stage) -> None:
        stage.hear(HELLO)

    assert with_tasks(scenario).pump.connection.peer_hello == HELLO


def test_leaving_says_goodbye_behind_everything_and_then_ends() -> None:
    def scenario(stage: Stage) -> Callable[[], None]:
        stage.open()
        stage.stream.room = 30
        stage.endpoint.add(b"x" * 40)
        stage.wanted()
        stage.pump.write_now()
        stage.pump.leave()
        stage.pump.leave()

        def more() -> None:
            assert not stage.stream.eof_sent
            stage.stream.room = 1000
            stage.stream.change()

        return more

    stage = with_tasks(scenario)
    assert stage.stream.eof_sent
    assert stage.stream.sent.endswith(b"x" * 40 + CODEC.encode_control(Goodbye()))
    assert stage.endpoint.recycled == 1


def test_a_goodbye_is_answered_with_one() -> None:
    def scenario(stage: Stage) -> None:
        stage.open()
        stage.hear(Goodbye())

    stage = with_tasks(scenario)
    assert stage.told()[-1] == Goodbye()
    assert stage.stream.eof_sent


def test_cancellation_closes() -> None:
    stage = with_tasks(lambda stage: stage.open())
    (error,) = stage.closed
    assert isinstance(error, ConnectionLost)
    assert "script://peer was closed by this TaskManager" in str(error)
    assert stage.stream.closed == 1


async def test_a_silent_peer_is_declared_lost(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.hear(HELLO)
    with trio.fail_after(100):
        await stage.pump.run(1.0, 3.0)
    (error,) = stage.closed
    assert isinstance(error, ConnectionLost)
    assert "did not answer" in str(error)


async def test_a_consumer_that_cannot_write_does_not_wait_for_ever_for_the_end(autojump_clock: MockClock) -> None:
    stage = Stage(answers=False)
    stage.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.pump.run, None, 1.0)
        stage.stream.broken_for_writes = ConnectionLost("broken pipe")
        stage.pump.connection.send(AddCredit(((0, 1),)))
        await trio.testing.wait_all_tasks_blocked()
        assert stage.closed == []
        await trio.sleep(DRAIN_S / 2)
        assert stage.closed == []
        await trio.sleep(DRAIN_S)
    assert stage.closed == [stage.stream.broken_for_writes]
