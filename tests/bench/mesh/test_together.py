from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock
from trio_runs import run_virtual

from bench.mesh.together import cause_rank, on_all
from netstack.errors import ConnectionLost, NetstackError
from netstack.taskmanager.remote_job import Failed


def failed(kind: str, *, is_secondary: bool = False) -> Failed:
    return Failed("sink", 0, kind, "text", is_secondary)


def test_the_cause_is_told_before_its_consequences() -> None:
    news: list[Failed | NetstackError] = [
        failed("ConnectionLost", is_secondary=True),
        failed("TooSlowError"),
        ConnectionLost("a:1 is gone"),
        failed("ValueError"),
    ]
    assert sorted(news, key=cause_rank) == news[::-1]


def test_results_come_in_the_order_of_the_calls() -> None:
    async def after(seconds: float) -> float:
        await trio.sleep(seconds)
        return seconds

    async def main() -> list[float]:
        return await on_all([lambda: after(3.0), lambda: after(1.0), lambda: after(2.0)])

    assert run_virtual(main) == [3.0, 1.0, 2.0]


async def test_the_first_to_fail_cancels_the_others(autojump_clock: MockClock) -> None:
    async def fail() -> None:
        await trio.sleep(1)
        raise ConnectionLost("a:1 is gone")

    with pytest.raises(ConnectionLost, match="a:1 is gone"):
        await on_all([trio.sleep_forever, fail])
